"""API keys: `mqk_<id>_<secret>`. Of the secret, 256 random bits, only the SHA-256 is kept.

A fast hash is right for such a secret, and wrong for a password: see `mq.access.passwords`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

PREFIX = "mqk_"
_ID_CHARACTERS = 12
_SECRET_BYTES = 32
_KEY = re.compile(r"mqk_([a-z2-7]{12})_([A-Za-z0-9_-]{43})")


class ApiKey(NamedTuple):
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"ApiKey({self.id!r})"  # a secret is in no log

    @property
    def text(self) -> str:
        """As the client sends it."""
        return f"{PREFIX}{self.id}_{self.secret}"


def new() -> ApiKey:
    return ApiKey(new_id(), secrets.token_urlsafe(_SECRET_BYTES))


def new_id() -> str:
    return base64.b32encode(secrets.token_bytes(8)).decode().lower()[:_ID_CHARACTERS]


def parse(text: str) -> ApiKey | None:
    """None: it has not the form of a key."""
    found = _KEY.fullmatch(text)
    return ApiKey(*found.groups()) if found else None


def digest(secret: str) -> bytes:
    """The stored form of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def is_right(secret: str, stored: bytes) -> bool:
    """In a time that does not depend on where they differ."""
    return hmac.compare_digest(digest(secret), stored)
