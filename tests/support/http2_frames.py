"""HTTP/2 written by hand (RFC 9113, RFC 7541), for what no gRPC client would ever send.

    with Http2Client(broker.address) as client:
        client.send(headers(1, call_headers("/mq.v1.ClusterService/Route")))
        client.frames(2.0)

Frames are plain bytes; `Http2Client` is a socket that has sent its preface. It answers nothing by
itself, neither SETTINGS nor PING: what a test wants to be said, the test says.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Types of frames.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
# Flags.
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
# Error codes.
NO_ERROR, PROTOCOL_ERROR, CANCEL, ENHANCE_YOUR_CALM = 0x0, 0x1, 0x8, 0xB

_HEAD_BYTES = 9
_FRAME_BYTES_MAX = 1 << 24


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    assert len(payload) < _FRAME_BYTES_MAX
    return (
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload
    )


def settings(**values: int) -> bytes:
    """Settings of this side: header_table_size, max_concurrent_streams, initial_window_size and so
    on.
    """
    return frame(
        SETTINGS,
        0,
        0,
        b"".join(struct.pack(">HI", _SETTINGS[name], value) for name, value in values.items()),
    )


_SETTINGS = {
    "header_table_size": 1,
    "enable_push": 2,
    "max_concurrent_streams": 3,
    "initial_window_size": 4,
    "max_frame_size": 5,
    "max_header_list_size": 6,
}


def settings_of(received: Received) -> dict[str, int]:
    """The server's settings, by the names that `settings` takes."""
    names = {number: name for name, number in _SETTINGS.items()}
    pairs = struct.iter_unpack(">HI", received.payload)
    return {names[number]: value for number, value in pairs if number in names}


def settings_ack() -> bytes:
    return frame(SETTINGS, ACK, 0)


def ping(payload: bytes = bytes(8)) -> bytes:
    return frame(PING, 0, 0, payload)


def rst_stream(stream_id: int, error: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream_id, struct.pack(">I", error))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment))


def headers(stream_id: int, block: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream_id, block)


def continuation(stream_id: int, block: bytes, flags: int = 0) -> bytes:
    return frame(CONTINUATION, flags, stream_id, block)


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream_id, payload)


def grpc_message(body: bytes) -> bytes:
    """Uncompressed, as it stands in DATA frames."""
    return struct.pack(">BI", 0, len(body)) + body


def header_field(name: str, value: str) -> bytes:
    """A literal without indexing and without Huffman coding: it leaves no trace in any table."""
    return b"\x00" + _text(name) + _text(value)


def header_block(fields: Iterable[tuple[str, str]]) -> bytes:
    return b"".join(header_field(name, value) for name, value in fields)


def call_headers(path: str, *more: tuple[str, str]) -> bytes:
    """The header block that opens a gRPC call."""
    return header_block(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *more,
        ]
    )


def _text(text: str) -> bytes:
    raw = text.encode()
    return _integer(len(raw), 7) + raw


def _integer(value: int, prefix_bits: int) -> bytes:
    """RFC 7541, 5.1; the bits before the prefix are zero."""
    largest = (1 << prefix_bits) - 1
    if value < largest:
        return bytes([value])
    value -= largest
    encoded = bytearray([largest])
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class Received(NamedTuple):
    """A frame of the server."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def error(self) -> int:
        """The error code of GOAWAY and RST_STREAM."""
        at = 4 if self.kind == GOAWAY else 0
        return int(struct.unpack_from(">I", self.payload, at)[0])

    @property
    def text(self) -> str:
        """The server's reason for ending a connection, in a GOAWAY."""
        return self.payload[8:].decode(errors="replace")


class Flood(NamedTuple):
    """The progress of a flood."""

    bytes_sent: int
    seconds: float
    # The server has closed the connection or said GOAWAY; which one, if it said so.
    was_cut_off: bool
    goaway: Received | None


class Http2Client:
    """One connection. Closed by the server is a state: `is_open`."""

    def __init__(self, address: str, first: bytes = PREFACE + settings()) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._unparsed = bytearray()
        self.is_open = True
        self.send(first)

    def send(self, content: bytes) -> bool:
        """Blocks until the socket has taken all of it; False when the server has closed."""
        try:
            self._socket.sendall(content)
        except (ConnectionError, TimeoutError):
            self.is_open = False
        return self.is_open

    def frames(self, timeout_s: float) -> Iterator[Received]:
        """Frames as they arrive, until the server closes or none has come for so long."""
        while True:
            yield from self._parsed()
            if not self.is_open or not self._receive(timeout_s):
                return

    def flood(self, chunks: Iterable[bytes], seconds: float) -> Flood:
        """Sends chunk after chunk for so long, or until they end or the server has had enough.
        What the server sends is read all the time: a client that does not read stops itself.
        """
        began, sent, goaway = time.monotonic(), 0, None
        for chunk in chunks:
            if time.monotonic() - began >= seconds or not self._send_reading(chunk):
                break
            sent += len(chunk)
            goaway = next((one for one in self._parsed() if one.kind == GOAWAY), goaway)
            if goaway is not None:
                break
        if self.is_open and goaway is None:
            goaway = next((one for one in self.frames(0.1) if one.kind == GOAWAY), None)
        was_cut_off = goaway is not None or not self.is_open
        return Flood(sent, time.monotonic() - began, was_cut_off, goaway)

    def close(self) -> None:
        self._socket.close()
        self.is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_reading(self, chunk: bytes) -> bool:
        """Like `send`, and takes in what comes meanwhile."""
        view, deadline = memoryview(chunk), time.monotonic() + 10
        while view and self.is_open and time.monotonic() < deadline:
            readable, writable, _ = select.select([self._socket], [self._socket], [], 1.0)
            if readable and not self._receive(0.0):
                break
            if writable:
                try:
                    view = view[self._socket.send(view, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    continue
                except ConnectionError:
                    self.is_open = False
        return self.is_open and not view

    def _receive(self, timeout_s: float) -> bool:
        """Whether something came; nothing at all within the time, or the end: False."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return False
        try:
            received = self._socket.recv(1 << 20)
        except ConnectionError:
            received = b""
        self._unparsed += received
        self.is_open = self.is_open and bool(received)
        return bool(received)

    def _parsed(self) -> Iterator[Received]:
        while len(self._unparsed) >= _HEAD_BYTES:
            length = int.from_bytes(self._unparsed[:3], "big")
            if len(self._unparsed) < _HEAD_BYTES + length:
                return
            kind, flags, stream_id = struct.unpack_from(">BBI", self._unparsed, 3)
            payload = bytes(self._unparsed[_HEAD_BYTES : _HEAD_BYTES + length])
            del self._unparsed[: _HEAD_BYTES + length]
            yield Received(kind, flags, stream_id & 0x7FFFFFFF, payload)
