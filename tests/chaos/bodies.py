"""The bodies of messages of a chaos run: each tells its name, and whether it is damaged."""

from __future__ import annotations

import zlib


def body_of(name: str) -> bytes:
    """The name, and bytes that follow from it, of another length for each."""
    text = name.encode()
    check = zlib.crc32(text)
    return b"%s %s" % (text, check.to_bytes(4, "big").hex().encode() * (1 + check % 30))


def name_in(body: bytes) -> str:
    """ValueError: it is not as it was sent."""
    name = body.partition(b" ")[0].decode()
    if body_of(name) != body:
        raise ValueError(f"{body!r} is damaged")
    return name
