"""The one hash that producers, brokers and consumers must agree on.

The first eight bytes of SHA-256: in the standard library of every language a client may be written
in.
"""

from __future__ import annotations

import functools
import hashlib

NO_TAG = 0


@functools.lru_cache(maxsize=65_536)
def text_hash(text: str) -> int:
    """Little-endian integer of the first eight bytes of the SHA-256 of the UTF-8 text; of no text,
    0.
    """
    if not text:
        return NO_TAG
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
