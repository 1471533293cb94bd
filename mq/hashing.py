"""The one hash that producers, brokers and consumers must agree on.

The first eight bytes of SHA-256: in the standard library of every language a client may be written
in.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

NO_TAG = 0


# Longer texts are not kept for the next time: keys come from callers, memory does not.
_CACHED_CHARACTERS_MAX = 128


def text_hash(text: str) -> int:
    """The first eight bytes of the SHA-256 of the UTF-8 text, little-endian; of no text, 0."""
    return _cached_hash(text) if len(text) <= _CACHED_CHARACTERS_MAX else _hash(text)


def _hash(text: str) -> int:
    if not text:
        return NO_TAG
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def text_hashes(texts: Iterable[bytes]) -> bytes:
    """The hashes of many UTF-8 texts, eight bytes each, little-endian. For texts that hardly ever
    come again.
    """
    sha256 = hashlib.sha256
    return b"".join([sha256(text).digest()[:8] if text else bytes(8) for text in texts])


_cached_hash = functools.lru_cache(maxsize=65_536)(_hash)
