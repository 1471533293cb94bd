"""Statuses of gRPC, and the header blocks that tell them."""

from __future__ import annotations

import base64
import enum
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from mq.http2.hpack import encode_field, encode_status


class Status(enum.IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# The first header block of every answer.
HEADERS: Final = encode_status(200) + encode_field(b"content-type", b"application/grpc")
_STATUSES: Final = {one: encode_field(b"grpc-status", b"%d" % one) for one in Status}
TRAILERS_OK: Final = _STATUSES[Status.OK]
# All of printable ASCII but the percent sign.
_UNQUOTED: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def trailers(status: Status, text: str, metadata: Sequence[tuple[str, str | bytes]] = ()) -> bytes:
    block = _STATUSES[status]
    if text:
        block += encode_field(b"grpc-message", quote(text, safe=_UNQUOTED).encode())
    return block + encode_metadata(metadata)


def encode_metadata(metadata: Sequence[tuple[str, str | bytes]]) -> bytes:
    """ValueError: a value is no ASCII text, or bytes under a key that does not end with -bin."""
    return b"".join(_encoded(key, value) for key, value in metadata)


def _encoded(key: str, value: str | bytes) -> bytes:
    if key.endswith("-bin"):
        raw = value if isinstance(value, bytes) else value.encode()
        return encode_field(key.encode(), base64.b64encode(raw).rstrip(b"="))
    text = value.encode("ascii") if isinstance(value, str) else value
    if not all(0x20 <= byte < 0x7F for byte in text):
        raise ValueError(f"metadata {key}: only printable ASCII, or a key that ends with -bin")
    return encode_field(key.encode(), text)
