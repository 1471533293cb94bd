"""Topics and messages for tests of consumers, by single calls that need no client of ours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc

from mq.hashing import text_hash
from mq.wire.v1 import admin_pb2, consumer_pb2, producer_pb2
from mq.wire.v1.message_pb2 import Message, RawBatch
from tests.support.naive_wire import field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEADLINE_S = 30.0
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def call(address: str, method: str, request: Any, answer: Any, key: str = "") -> Any:
    """`method` is Service/Method, `key` the API key of the caller."""
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        ask = channel.unary_unary(
            f"/mq.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        metadata = [("authorization", f"Bearer {key}")] if key else []
        return ask(request, timeout=DEADLINE_S, wait_for_ready=True, metadata=metadata)


def create_topic(address: str, topic: str, queues: int) -> None:
    request = admin_pb2.CreateTopicRequest(topic=topic, queues=queues)
    call(address, "AdminService/CreateTopic", request, admin_pb2.TopicInfo)


def send(
    address: str, topic: str, queue_id: int, messages: Iterable[Message | bytes], **fields: Any
) -> int:
    """To one queue, as one batch; the queue offset of the first one."""
    wire = [one if isinstance(one, Message) else Message(body=one) for one in messages]
    request = producer_pb2.SendRequest(topic=topic, queue_id=queue_id, messages=wire, **fields)
    answer = call(address, "ProducerService/Send", request, producer_pb2.SendResponse)
    return int(answer.queue_offset)


def fill(address: str, topic: str, queues: int, each: int) -> set[bytes]:
    """So many messages in each queue, "queue-number"; all bodies."""
    create_topic(address, topic, queues)
    for queue_id in range(queues):
        send(address, topic, queue_id, [b"%d-%d" % (queue_id, at) for at in range(each)])
    return {b"%d-%d" % (queue_id, at) for queue_id in range(queues) for at in range(each)}


def send_prepared(address: str, topic: str, queue_id: int, messages: list[bytes]) -> None:
    """Messages that have no tag and no keys, as they are: in a prepared batch."""
    batch = RawBatch(
        topic=topic,
        queue_id=queue_id,
        frame_sizes=b"".join((2 + len(one)).to_bytes(4, "little") for one in messages),
        tag_hashes=text_hash("").to_bytes(8, "little") * len(messages),
        messages=messages,
    ).SerializeToString()
    assert all(len(one) < 128 for one in messages)
    request = b"\x08\x01" + field(15, batch)
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        publish = channel.stream_stream(
            "/mq.v1.ProducerService/Publish",
            response_deserializer=producer_pb2.PublishResponse.FromString,
        )
        (answer,) = publish(iter([request]), timeout=DEADLINE_S)
    assert [one.code for one in answer.results] == [0], answer


def committed(address: str, group: str, topic: str) -> dict[int, int]:
    """By queue."""
    request = consumer_pb2.QueryOffsetsRequest(group=group)
    answer = call(
        address, "ConsumerService/QueryOffsets", request, consumer_pb2.QueryOffsetsResponse
    )
    return {one.queue_id: one.queue_offset for one in answer.positions if one.topic == topic}


def eventually(condition: Callable[[], object], what: str = "it did not come to pass") -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
