"""A client of `mq.http2.connection` without sockets, and streams that record what they get.

    peer = Peer()
    peer.open(1)
    peer.send(http2.data(1, b"abc"))
    peer.frames()           # of the server, since the last time

The time is `peer.now_s`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from mq.http2 import frames
from mq.http2.connection import Connection
from mq.http2.limits import Limits, Usage
from mq.http2.stream import Stream
from tests.support import http2_frames as http2
from tests.support.http2_frames import Received

if TYPE_CHECKING:
    from mq.http2.connection import Acceptor
    from mq.http2.requests import Request, Timeout

BLOCK = http2.call_headers("/s/M")
TOO_LARGE = b"too large"


class Recorder(Stream):
    """Owes credit for all that it gets, and answers nothing by itself."""

    def __init__(self, connection: Connection, stream_id: int, request: Request) -> None:
        super().__init__(connection, stream_id, request.content_length)
        self.data = b""
        self.has_end = False
        self.is_cancelled: bool | None = None

    def on_open(self, timeout: Timeout) -> None:
        self.timeout = timeout

    def on_data(self, data: bytes, start: int, stop: int) -> None:
        self.data += data[start:stop]
        self.owe(stop - start)

    def on_end(self) -> None:
        self.has_end = True

    def on_whole(self, timeout: Timeout, data: bytes, start: int, stop: int) -> None:
        self.on_open(timeout)
        self.on_data(data, start, stop)
        self.on_end()

    def on_sent(self) -> None:
        pass

    def on_closed(self, connection: Connection, *, is_cancelled: bool) -> None:
        assert connection.streams.get(self.stream_id) is None
        self.is_cancelled = is_cancelled


class Recording:
    """An acceptor. All streams that were ever opened, by number."""

    too_large = TOO_LARGE

    def __init__(self) -> None:
        self.streams: dict[int, Recorder] = {}
        self.overloads = 0

    def open(self, connection: Connection, stream_id: int, request: Request) -> Stream:
        self.streams[stream_id] = Recorder(connection, stream_id, request)
        return self.streams[stream_id]

    def on_overload(self) -> None:
        self.overloads += 1


class Peer:
    def __init__(
        self,
        limits: Limits | None = None,
        acceptor: Acceptor | None = None,
        *,
        usage: Usage | None = None,
        settings: bytes = http2.settings(),
        acknowledges: bool = True,
        now_s: float = 1_000.0,
    ) -> None:
        self.now_s = now_s
        self.limits = limits or Limits()
        self.recording = Recording()
        self.usage = usage or Usage()
        self.wakes = 0
        self.connection = Connection(
            acceptor or self.recording, self.limits, self.usage, self._wake, self.now_s
        )
        self._unparsed = b""
        self.greeting = self.frames()
        if settings:
            self.send(http2.PREFACE + settings)
        if acknowledges:
            self.send(http2.settings_ack())
        self.frames()

    def _wake(self) -> None:
        self.wakes += 1

    def __getitem__(self, stream_id: int) -> Recorder:
        return self.recording.streams[stream_id]

    def send(self, data: bytes) -> None:
        self.connection.receive(data, self.now_s)

    def open(self, *stream_ids: int, is_end: bool = False, block: bytes = BLOCK) -> None:
        flags = http2.END_HEADERS | (http2.END_STREAM if is_end else 0)
        for stream_id in stream_ids:
            self.send(http2.headers(stream_id, block, flags))

    def output(self, bytes_max: int = 1 << 20) -> bytes:
        """Everything that is to be sent."""
        found = []
        while data := b"".join(self.connection.take_output(bytes_max)):
            found.append(data)
        return b"".join(found)

    def frames(self, bytes_max: int = 1 << 20) -> list[Received]:
        data = self._unparsed + self.output(bytes_max)
        found = []
        while len(data) >= frames.HEAD_BYTES:
            size = int.from_bytes(data[:3], "big")
            kind, flags, stream_id = struct.unpack_from(">BBI", data, 3)
            found.append(Received(kind, flags, stream_id, data[9 : 9 + size]))
            data = data[9 + size :]
        self._unparsed = data
        return found

    def has_ended(self) -> bool:
        return self.connection.is_closed

    def goaway(self) -> Received:
        """The connection has ended with it."""
        assert self.connection.is_closed
        (found,) = [one for one in self.frames() if one.kind == http2.GOAWAY]
        return found

    def pass_time(self, seconds: float) -> None:
        """Calls `on_time` when the connection asks for it."""
        end_s, due_s = self.now_s + seconds, self.now_s
        while due_s <= end_s and not self.connection.is_closed:
            self.now_s = due_s
            due_s = max(self.connection.on_time(self.now_s), self.now_s + 0.001)
        self.now_s = end_s
