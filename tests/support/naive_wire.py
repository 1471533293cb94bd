"""A second writer and reader of batches, as naive as can be, to compare the real ones with."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message, RawBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes([value])
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def read_varint(data: bytes) -> tuple[int, bytes]:
    """Value and what follows; IndexError when the data ends first."""
    if data[0] < 0x80:
        return data[0], data[1:]
    high, rest = read_varint(data[1:])
    return data[0] & 0x7F | high << 7, rest


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def frame(message: bytes) -> bytes:
    return field(15, message)


def unframe(data: bytes) -> bytes:
    """The message of exactly one frame."""
    assert data[0] == 0x7A
    length, message = read_varint(data[1:])
    assert len(message) == length
    return message


def text_hash(text: str) -> int:
    if not text:
        return 0
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "little")


def fixed(values: Iterable[int], width: int) -> bytes:
    return b"".join(value.to_bytes(width, "little") for value in values)


def header(sizes: Sequence[int], **columns: Any) -> bytes:
    """The fields of a prepared batch before its frames; the tag hash of message n is n."""
    fields: dict[str, Any] = {
        "topic": "orders",
        "queue_id": 3,
        "frame_sizes": fixed(sizes, 4),
        "tag_hashes": fixed(range(len(sizes)), 8),
    }
    return RawBatch(**fields | columns).SerializeToString()


def prepared(messages: Sequence[bytes], **columns: Any) -> bytes:
    frames = [frame(message) for message in messages]
    return header([len(one) for one in frames], **columns) + b"".join(frames)


def plain(messages: Sequence[Message], topic: str = "orders", queue_id: int = 3) -> bytes:
    return WireBatch(topic=topic, queue_id=queue_id, messages=messages).SerializeToString()


def bodies(sizes: Iterable[int]) -> list[bytes]:
    return [
        bytes([0x7A, index % 251])[: min(size, 2)].ljust(size, b"z")
        for index, size in enumerate(sizes)
    ]


def message_of_size(size: int) -> Message:
    """A Message of so many bytes serialised; there is none of exactly one."""
    candidates = (
        Message(body=bytes(body_bytes), born_at_ms=born_at_ms)
        for born_at_ms in (0, 1)
        for body_bytes in range(max(0, size - 8), size + 1)
    )
    return next(message for message in candidates if message.ByteSize() == size)
