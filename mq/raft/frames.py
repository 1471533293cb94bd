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
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
from google.protobuf.message import DecodeError

from mq.store.scan import PAYLOAD_BYTES_MAX
from mq.wire.v1.raft_pb2 import RaftFrame

PREFIX = struct.Struct("<II")
MESSAGE_BYTES_MAX = 64 << 10
# One entry of any legal size, with its header.
BODY_BYTES_MAX = PAYLOAD_BYTES_MAX + (64 << 10)
# A frame before the handshake, which has no body.
GREETING_BYTES_MAX = 4096
# Room for bytes that arrive while no frame is half received; several small ones cost one call.
_STAGING_BYTES = 16 << 10
# One write to asyncio's transport, which copies what the socket does not take of it.
_PIECE_BYTES = 256 << 10
# Below this a copy is cheaper than a system call and a packet of its own.
_JOINED_BYTES = 16 << 10
# The start of a TLS connection, read as the length of a message.
_TLS_OPENING = 0x0316


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


class Malformed(Exception):
    """The other side does not keep to the protocol; the text says in what."""


class OpensTls(Malformed):
    """It tries to start TLS."""


class FrameReader:
    """Cuts a stream of bytes into frames: fill `buffer`, then ask what was `received`."""

    def __init__(self) -> None:
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._staged = 0
        # The frame that is half received, without its prefix.
        self._frame: memoryview | None = None
        self._filled = 0
        self._message_bytes = 0
        self._message_bytes_max = GREETING_BYTES_MAX
        self._body_bytes_max = 0

    def allow_all(self) -> None:
        """From the next frame on, any legal one is taken."""
        self._message_bytes_max = MESSAGE_BYTES_MAX
        self._body_bytes_max = BODY_BYTES_MAX

    def buffer(self) -> memoryview:
        """The buffer for the next bytes; never empty."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._staging[self._staged :]

    def received(self, count: int) -> Iterator[Frame]:
        """The frames that `count` more bytes complete. Malformed: the stream is of no use."""
        if self._frame is None:
            self._staged += count
            yield from self._staged_frames()
            return
        self._filled += count
        if self._filled == len(self._frame):
            frame, self._frame = self._frame.toreadonly(), None
            yield _parsed(frame[: self._message_bytes], frame[self._message_bytes :])

    def _staged_frames(self) -> Iterator[Frame]:
        start = 0
        while self._staged - start >= PREFIX.size:
            message_bytes, body_bytes = PREFIX.unpack_from(self._staging, start)
            self._check(message_bytes, body_bytes)
            start += PREFIX.size
            body_start = start + message_bytes
            end = body_start + body_bytes
            if end > self._staged:
                self._begin_frame(message_bytes, body_bytes, self._staging[start : self._staged])
                return
            body = memoryview(bytes(self._staging[body_start:end])) if body_bytes else b""
            yield _parsed(self._staging[start:body_start], body)
            start = end
        rest = bytes(self._staging[start : self._staged])
        self._staging[: len(rest)] = rest
        self._staged = len(rest)

    def _check(self, message_bytes: int, body_bytes: int) -> None:
        if message_bytes & 0xFFFF == _TLS_OPENING and not self._body_bytes_max:
            raise OpensTls("it opens TLS, which this node is not configured for")
        if not message_bytes:
            raise Malformed("a frame without content")
        if message_bytes > self._message_bytes_max:
            raise Malformed(f"a message of more than {self._message_bytes_max} bytes")
        if body_bytes > self._body_bytes_max:
            raise Malformed(f"a body of more than {self._body_bytes_max} bytes")

    def _begin_frame(self, message_bytes: int, body_bytes: int, received: memoryview) -> None:
        # Not zeroed, so that a length alone costs no memory that was not received.
        frame = memoryview(cast("bytearray", np.empty(message_bytes + body_bytes, np.uint8)))
        frame[: len(received)] = received
        self._frame, self._filled, self._message_bytes = frame, len(received), message_bytes
        self._staged = 0


def _parsed(message: memoryview, body: bytes | memoryview) -> Frame:
    try:
        parsed = RaftFrame.FromString(cast("bytes", message))
    except DecodeError:
        raise Malformed("a message that is no RaftFrame") from None
    if parsed.WhichOneof("content") is None:
        raise Malformed("a frame without content")
    return Frame(parsed, body)


class SendQueue:
    """Buffers that wait to be written, and the pieces in which they are."""

    def __init__(self) -> None:
        self._buffers: deque[bytes | memoryview] = deque()
        self.byte_count = 0

    def push(self, frame: Frame) -> None:
        for buffer in encode(frame):
            self._buffers.append(buffer)
            self.byte_count += len(buffer)

    def pop(self) -> bytes | memoryview:
        """The next piece; the queue must not be empty."""
        first = self._buffers.popleft()
        piece = self._cut(first, _PIECE_BYTES) if len(first) >= _JOINED_BYTES else self._join(first)
        self.byte_count -= len(piece)
        return piece

    def clear(self) -> None:
        self._buffers.clear()
        self.byte_count = 0

    def _cut(self, buffer: bytes | memoryview, byte_count: int) -> bytes | memoryview:
        view = memoryview(buffer)
        if len(view) > byte_count:
            self._buffers.appendleft(view[byte_count:])
        return view[:byte_count]

    def _join(self, first: bytes | memoryview) -> bytes | memoryview:
        parts, room = [first], _JOINED_BYTES - len(first)
        while self._buffers and room:
            parts.append(self._cut(self._buffers.popleft(), room))
            room -= len(parts[-1])
        return b"".join(parts) if len(parts) > 1 else first
