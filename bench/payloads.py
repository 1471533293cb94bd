"""Batches and deliveries for benchmarks, encoded before the clock starts."""

from __future__ import annotations

from mq.store.batch import prepare
from mq.wire import varint
from mq.wire.v1 import consumer_pb2
from mq.wire.v1.message_pb2 import Batch, Message


def messages(size: int, count: int) -> list[Message]:
    """Bodies of so many bytes, each one another."""
    return [Message(body=at.to_bytes(8, "big") + bytes(max(0, size - 8))) for at in range(count)]


def batch(topic: str, queue_id: int, size: int, count: int) -> bytes:
    """A prepared batch, as a client sends it."""
    wire = Batch(topic=topic, queue_id=queue_id, messages=messages(size, count))
    return prepare(wire.SerializeToString())


def publish_request(request_id: int, data: bytes) -> bytes:
    """The request for one batch: field 15, the last of a PublishRequest."""
    return b"\x08" + varint.encode(request_id) + b"\x7a" + varint.encode(len(data)) + data


def delivery(size: int, count: int) -> bytes:
    """A broker's delivery of this many messages that stand together in its log."""
    wire = messages(size, count)
    run = consumer_pb2.Run(log_offset=1 << 30, stored_at_ms=1 << 40, messages=wire)
    frames = [len(one.SerializeToString()) for one in wire]
    run.frame_sizes.extend(length + 1 + len(varint.encode(length)) for length in frames)
    body = consumer_pb2.Delivery(topic="bench", next_offset=count, end=1 << 30, runs=[run])
    return consumer_pb2.SubscribeResponse(delivery=body).SerializeToString()
