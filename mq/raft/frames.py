"""One frame between two nodes: a protobuf message and, behind it, a body of raw log entries.

    +----------------+----------------+------------------+----------------------------+
    | message length | body length    | RaftFrame        | entries, as in the log     |
    | u32            | u32            | (protobuf)       | (may be empty)             |
    +----------------+----------------+------------------+----------------------------+

Little-endian. The body is never copied into the message, so that entries go from the page cache to
the socket and from the socket to the log as they are. Nothing is pickled.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from mq.store.scan import PAYLOAD_BYTES_MAX
from mq.wire.v1.raft_pb2 import RaftFrame

PREFIX = struct.Struct("<II")
MESSAGE_BYTES_MAX = 64 << 10
# One entry of any legal size, with its header.
BODY_BYTES_MAX = PAYLOAD_BYTES_MAX + (64 << 10)


class Frame(NamedTuple):
    message: RaftFrame
    body: bytes | memoryview = b""

    @property
    def size(self) -> int:
        return PREFIX.size + self.message.ByteSize() + len(self.body)


def encode(frame: Frame) -> list[bytes | memoryview]:
    """Buffers to be written one after another."""
    message = frame.message.SerializeToString()
    head = PREFIX.pack(len(message), len(frame.body)) + message
    return [head, frame.body] if len(frame.body) else [head]
