"""A consumer that subscribes and never reads, on a bare socket: HTTP/2 by hand, because every real
client reads what comes.
"""

from __future__ import annotations

import socket
import struct

from mq.wire.v1 import consumer_pb2 as pb

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
_END_HEADERS = 4
_INITIAL_WINDOW_SIZE = 4
_WINDOW_BYTES = 65_535
_HEADER_FIELDS = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/mq.v1.ConsumerService/Subscribe",
    b":authority": b"broker",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
}


def silent_consumer(address: str, topic: str, group: str, window_bytes: int) -> socket.socket:
    """Lets the broker send so much before it reads, which it never does."""
    host, _, port = address.rpartition(":")
    start = pb.SubscribeStart(
        group=group,
        member_id="silent",
        subscriptions=[pb.Subscription(topic=topic)],
        start_position=pb.START_EARLIEST,
        cache_messages=1_000_000,
        cache_bytes=1 << 30,
    )
    request = pb.SubscribeRequest(start=start).SerializeToString()
    frames = [_frame(_SETTINGS, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window_bytes))]
    if window_bytes > _WINDOW_BYTES:
        more = struct.pack(">I", window_bytes - _WINDOW_BYTES)
        frames.append(_frame(_WINDOW_UPDATE, 0, more))
    # Literal fields that are not to be remembered, with names and values of less than 127 bytes.
    fields = b"".join(
        bytes([0, len(name)]) + name + bytes([len(value)]) + value
        for name, value in _HEADER_FIELDS.items()
    )
    frames.append(_frame(_HEADERS, 1, fields, _END_HEADERS))
    frames.append(_frame(_DATA, 1, struct.pack(">BI", 0, len(request)) + request))
    connection = socket.create_connection((host, int(port)))
    connection.sendall(_PREFACE + b"".join(frames))
    return connection


def _frame(kind: int, stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    length = struct.pack(">I", len(payload))[1:]
    return length + struct.pack(">BBI", kind, flags, stream_id) + payload
