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
    """The fields of a prepared batch before its frames, of messages without a tag."""
    fields: dict[str, Any] = {
        "topic": "orders",
        "queue_id": 3,
        "frame_sizes": fixed(sizes, 4),
        "tag_hashes": bytes(8 * len(sizes)),
    }
    return RawBatch(**fields | columns).SerializeToString()


def prepared(messages: Sequence[bytes], **columns: Any) -> bytes:
    frames = [frame(message) for message in messages]
    return header([len(one) for one in frames], **columns) + b"".join(frames)


def plain(messages: Sequence[Message], topic: str = "orders", queue_id: int = 3) -> bytes:
    return WireBatch(topic=topic, queue_id=queue_id, messages=messages).SerializeToString()


def prepared_of(messages: Sequence[Message]) -> bytes:
    """A prepared batch with all the columns of its messages."""
    keys = [text_hash(key) for message in messages for key in message.keys]
    return prepared(
        [message.SerializeToString() for message in messages],
        tag_hashes=fixed((text_hash(message.tag) for message in messages), 8),
        key_hashes=fixed(keys, 8),
        key_counts=fixed((len(message.keys) for message in messages), 4) if keys else b"",
    )


def messages_of_sizes(sizes: Iterable[int]) -> list[bytes]:
    """Messages of so many bytes serialised, each one another."""
    return [
        message_of_size(size, bytes([0x7A, index % 251])).SerializeToString()
        for index, size in enumerate(sizes)
    ]


def message_of_size(size: int, start: bytes = b"") -> Message:
    """A Message of so many bytes serialised; there is none of exactly one."""
    for born_at_ms in (0, 1):
        for envelope_bytes in range(min(size, 8) + 1):
            body_bytes = size - envelope_bytes
            body = start[:body_bytes].ljust(body_bytes, b"z")
            message = Message(body=body, born_at_ms=born_at_ms)
            if message.ByteSize() == size:
                return message
    raise AssertionError(f"no message has {size} bytes")
