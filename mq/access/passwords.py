"""Passwords, as they are stored: `scrypt$16384$8$5$<salt>$<hash>`, the last two in base64.

A hash takes 16 MiB and some tenths of a second, on purpose: call `hashed` and `is_right` from a
thread. Only these parameters are taken: a stored text must not choose how much work a login is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets

from mq.errors import IllegalRequest

CHARACTERS_MIN, CHARACTERS_MAX = 8, 200
_N, _R, _P = 1 << 14, 8, 5
_SALT_BYTES, _HASH_BYTES = 16, 32
# Of scrypt's own memory: 128 * N * r, and some.
_MEMORY_BYTES = 64 << 20
_STORED = re.compile(rf"scrypt\${_N}\${_R}\${_P}\$([A-Za-z0-9+/]{{22}}==)\$([A-Za-z0-9+/]{{43}}=)")


def check(password: str) -> None:
    """Raises IllegalRequest; its text says nothing of the password."""
    if not CHARACTERS_MIN <= len(password) <= CHARACTERS_MAX:
        raise IllegalRequest(f"a password has {CHARACTERS_MIN} to {CHARACTERS_MAX} characters")


def hashed(password: str) -> bytes:
    """As it is stored, with a salt of its own."""
    salt = secrets.token_bytes(_SALT_BYTES)
    parts = (_text(salt), _text(_scrypt(password, salt)))
    return "$".join(("scrypt", f"{_N}", f"{_R}", f"{_P}", *parts)).encode()


def is_stored(stored: bytes) -> bool:
    """Whether it is the text of `hashed`."""
    return _parts(stored) is not None


def is_right(password: str, stored: bytes) -> bool:
    """In a time that does not depend on where they differ."""
    parts = _parts(stored)
    if parts is None:
        return False
    salt, expected = parts
    return hmac.compare_digest(_scrypt(password, salt), expected)


def _parts(stored: bytes) -> tuple[bytes, bytes] | None:
    found = _STORED.fullmatch(stored.decode("ascii", "replace"))
    if found is None:
        return None
    try:
        salt, expected = (base64.b64decode(one, validate=True) for one in found.groups())
    except binascii.Error:
        return None
    return salt, expected


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=_N, r=_R, p=_P, maxmem=_MEMORY_BYTES, dklen=_HASH_BYTES
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
