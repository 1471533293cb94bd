"""Some fields of a large protobuf message, without parsing the rest.

For checkpoints, of which the state of the broker may be tens of megabytes: protobuf makes copies
of all that it parses, also of fields that the wanted message type does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from mq.wire import varint

_NUMBER_MAX = (1 << 29) - 1


class Field(NamedTuple):
    """A field of the top level: its bytes in the message, and where the content begins."""

    number: int
    start: int
    content: int
    end: int


def fields(data: bytes | memoryview) -> Iterator[Field]:
    """In their order. ValueError: this is no message."""
    at = 0
    while at < len(data):
        start = at
        tag, at = varint.decode(data, at)
        content = at
        match tag & 7:
            case 0:
                _, at = varint.decode(data, at)
            case 1:
                at += 8
            case 2:
                length, content = varint.decode(data, at)
                at = content + length
            case 5:
                at += 4
            case kind:
                raise ValueError(f"field {tag >> 3} at byte {start} is of the unknown kind {kind}")
        if not 0 < tag >> 3 <= _NUMBER_MAX:
            raise ValueError(f"{tag >> 3} at byte {start} is no number of a field")
        if at > len(data):
            raise ValueError(f"field {tag >> 3} at byte {start} is cut short")
        yield Field(tag >> 3, start, content, at)


def only(data: bytes | memoryview, numbers: Collection[int]) -> bytes:
    """The message with these fields alone. ValueError."""
    view = memoryview(data)
    return b"".join(view[one.start : one.end] for one in fields(view) if one.number in numbers)
