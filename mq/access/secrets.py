"""Secrets that the broker has to know as they are: those of RocketMQ's access keys, which sign.

They are stored encrypted, with AES-GCM and a key from a file that all brokers of a cluster have.
The nonce follows from the secret and what it belongs to, so that all broker sets store the same
bytes: it repeats for the same secret of the same access key alone.

A RocketMQ client signs the time of its call, as it writes it. Some say more than the access key
in Credential, behind a slash; some write the signature in upper case.

    authorization: MQv2-HMAC-SHA1 Credential=<access key>[/...], SignedHeaders=x-mq-date-time,
                   Signature=<HMAC-SHA1(secret, x-mq-date-time), in hex>
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import NamedTuple

KEY_BYTES_MIN = 32
SECRET_BYTES_MAX = 256
_AUTHORIZATION = re.compile(
    r"MQv2-HMAC-SHA1 Credential=([^\s,/]{1,128})(?:/[^\s,]*)?, *"
    r"SignedHeaders=x-mq-date-time, *Signature=([0-9A-Fa-f]{40})"
)
_VERSION = b"\x01"
_NONCE_BYTES = 12


class SecretBox:
    """Encrypts and decrypts; its key is in no log."""

    def __init__(self, key: bytes) -> None:
        """ValueError: the key is too short to be one."""
        if len(key) < KEY_BYTES_MIN:
            raise ValueError(f"a key of {len(key)} bytes: at least {KEY_BYTES_MIN} random ones")
        # Here: a broker without such secrets does not pay for the library.
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._invalid = InvalidTag
        self._cipher = AESGCM(_derived(key, b"mq encrypt"))
        self._nonce_key = _derived(key, b"mq nonce")

    def __repr__(self) -> str:
        return "SecretBox()"

    def sealed(self, secret: bytes, owner: str) -> bytes:
        """`owner`: the id of the credential; the secret can be opened for it alone."""
        bound = owner.encode()
        text = len(bound).to_bytes(4, "big") + bound + secret
        nonce = hmac.digest(self._nonce_key, text, "sha256")[:_NONCE_BYTES]
        return _VERSION + nonce + self._cipher.encrypt(nonce, secret, bound)

    def opened(self, sealed: bytes, owner: str) -> bytes | None:
        """None: it was sealed with another key, for another owner, or is damaged."""
        start = len(_VERSION)
        nonce, data = sealed[start : start + _NONCE_BYTES], sealed[start + _NONCE_BYTES :]
        if not sealed.startswith(_VERSION) or len(nonce) < _NONCE_BYTES:
            return None
        try:
            return self._cipher.decrypt(nonce, data, owner.encode())
        except self._invalid:
            return None


class Signed(NamedTuple):
    """The parts of an authorization of RocketMQ."""

    access_key: str
    # Upper-case hex.
    signature: str

    def is_right(self, secret: bytes, date_time: str) -> bool:
        """In a time that does not depend on where they differ."""
        expected = hmac.digest(secret, date_time.encode(), "sha1").hex().upper()
        return hmac.compare_digest(expected, self.signature)


def parse_signed(authorization: str) -> Signed | None:
    """None: it is none of RocketMQ's."""
    found = _AUTHORIZATION.fullmatch(authorization[:1_000])
    return Signed(found[1], found[2].upper()) if found else None


def _derived(key: bytes, purpose: bytes) -> bytes:
    """HKDF would be the same for a key that is random already."""
    return hashlib.sha256(purpose + b"\x00" + key).digest()
