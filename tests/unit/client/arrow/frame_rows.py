"""Frames as a broker sends them, made of messages or of whatever bytes stand in their place; and
what protobuf makes of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from mq.client.arrow.runs import Rows
from mq.wire.v1.message_pb2 import Message
from tests.support.naive_wire import varint

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG_OFFSET, STORED_AT_MS = 5_000_000_000, 1_700_000_000_000
# Before the first frame: a page has a head.
_HEAD = b"\x08\x00head"


def frame_of(message: Message | bytes) -> bytes:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return b"\x7a" + varint(len(data)) + data


def rows_with(frames: Sequence[bytes], first_offset: int = 100) -> Rows:
    """Rows of these frames, that stand one behind the other."""
    sizes = np.array([len(frame) for frame in frames], np.int64)
    before = np.cumsum(sizes) - sizes
    return Rows(
        _HEAD + b"".join(frames),
        len(_HEAD) + before,
        sizes,
        first_offset + np.arange(len(frames), dtype=np.int64),
        LOG_OFFSET + before,
        np.full(len(frames), STORED_AT_MS, np.int64),
    )


def parsed(data: bytes) -> dict[str, Any] | None:
    """As protobuf reads it; None: it does not."""
    try:
        message = Message.FromString(data)
    except DecodeError:
        return None
    return {
        "body": message.body,
        "tag": message.tag,
        "ordering_key": message.ordering_key,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "born_at_ms": message.born_at_ms,
        "compression": message.compression & 0xFFFF_FFFF,
        "attempts": message.origin.attempts,
    }
