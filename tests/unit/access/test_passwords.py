"""Passwords, as they are stored and compared."""

from __future__ import annotations

import base64
import hashlib

import pytest

from mq.access import passwords
from mq.errors import IllegalRequest


def test_a_stored_password_says_how_it_was_made() -> None:
    stored = passwords.hashed("correct horse")
    name, n, r, p, salt, found = stored.decode().split("$")
    assert (name, n, r, p) == ("scrypt", "16384", "8", "5")
    expected = hashlib.scrypt(
        b"correct horse", salt=base64.b64decode(salt), n=16384, r=8, p=5, maxmem=1 << 26, dklen=32
    )
    assert base64.b64decode(found) == expected
    assert passwords.is_stored(stored)
    assert passwords.is_right("correct horse", stored)
    assert not passwords.is_right("correct horsf", stored)


def test_each_has_a_salt_of_its_own() -> None:
    assert passwords.hashed("correct horse") != passwords.hashed("correct horse")


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"plain",
        b"\xff\xfe",
        # More work than a login may be.
        b"scrypt$1048576$8$5$AAAAAAAAAAAAAAAAAAAAAA==$" + b"A" * 43 + b"=",
        b"scrypt$16384$8$5$AAAA$AAAA",
        b"scrypt$16384$8$5$AAAAAAAAAAAAAAAAAAAAAA==$" + b"A" * 43 + b"=\n",
        b"md5$16384$8$5$AAAAAAAAAAAAAAAAAAAAAA==$" + b"A" * 43 + b"=",
    ],
)
def test_another_text_is_no_stored_password(stored: bytes) -> None:
    assert not passwords.is_stored(stored)
    assert not passwords.is_right("", stored)


@pytest.mark.parametrize("text", ["", "short", "x" * 201])
def test_a_password_is_neither_short_nor_endless(text: str) -> None:
    with pytest.raises(IllegalRequest) as caught:
        passwords.check(text)
    assert not text or text not in str(caught.value)
    passwords.check("x" * 8)
