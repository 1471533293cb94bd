"""A consumer that asks and never reads an answer, on a bare socket: HTTP/2 by hand, because every
real client reads what comes.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from mq.wire.v1 import consumer_pb2 as pb
from tests.conformance.calls import path_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
_END_HEADERS, _END_STREAM, _ACK = 4, 1, 1
_FRAME_HEAD_BYTES = 9
_INITIAL_WINDOW_SIZE = 4
_WINDOW_BYTES = 65_535
_HEADER_FIELDS = {
    b":method": b"POST",
    b":scheme": b"http",
    b":authority": b"broker",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
}


def silent_consumer(address: str, topic: str, group: str, window_bytes: int) -> socket.socket:
    """Lets the broker send so much before it reads, which it never does."""
    start = pb.SubscribeStart(
        group=group,
        member_id="silent",
        subscriptions=[pb.Subscription(topic=topic)],
        start_position=pb.START_EARLIEST,
        cache_messages=1_000_000,
        cache_bytes=1 << 30,
    )
    request = pb.SubscribeRequest(start=start)
    return _connection(address, window_bytes, _call(1, "ConsumerService/Subscribe", request))


def silent_calls(address: str, method: str, requests: Iterable[Message]) -> socket.socket:
    """Unary calls at once on one connection, whose answers are never read."""
    calls = [
        _call(number, method, request, _END_STREAM)
        for number, request in zip(range(1, 1 << 31, 2), requests, strict=False)
    ]
    return _connection(address, _WINDOW_BYTES, b"".join(calls))


def _connection(address: str, window_bytes: int, calls: bytes) -> socket.socket:
    host, _, port = address.rpartition(":")
    frames = [_frame(_SETTINGS, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window_bytes))]
    if window_bytes > _WINDOW_BYTES:
        more = struct.pack(">I", window_bytes - _WINDOW_BYTES)
        frames.append(_frame(_WINDOW_UPDATE, 0, more))
    connection = socket.create_connection((host, int(port)))
    connection.sendall(_PREFACE + b"".join(frames) + calls)
    # The settings alone are read and acknowledged: without that gRPC closes the connection soon.
    head = _received(connection, _FRAME_HEAD_BYTES)
    assert head[3] == _SETTINGS, head
    _received(connection, int.from_bytes(head[:3], "big"))
    connection.sendall(_frame(_SETTINGS, 0, b"", _ACK))
    return connection


def _received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        assert more, "the broker has closed the connection"
        data += more
    return data


def _call(stream_id: int, method: str, request: Message, flags: int = 0) -> bytes:
    # Literal fields that are not to be remembered, with names and values of less than 127 bytes.
    fields = b"".join(
        bytes([0, len(name)]) + name + bytes([len(value)]) + value
        for name, value in {b":path": path_of(method).encode(), **_HEADER_FIELDS}.items()
    )
    data = request.SerializeToString()
    data = struct.pack(">BI", 0, len(data)) + data
    return _frame(_HEADERS, stream_id, fields, _END_HEADERS) + _frame(_DATA, stream_id, data, flags)


def _frame(kind: int, stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    length = struct.pack(">I", len(payload))[1:]
    return length + struct.pack(">BBI", kind, flags, stream_id) + payload
