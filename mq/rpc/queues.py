"""Queues, positions and starts as requests say them, for all services. Long lists are decoded and
encoded in several turns of the loop.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

from google.protobuf.message import Message

from mq.broker.broker import Broker
from mq.broker.consumer.groups import Start
from mq.broker.long_work import encode_in_turns, in_turns
from mq.broker.queue import Queue, queues_of
from mq.errors import IllegalRequest
from mq.wire.v1 import consumer_pb2 as pb


async def decode_queues(wire: Iterable[pb.QueueId]) -> list[Queue]:
    return await in_turns(Queue(one.topic, one.queue_id) for one in wire)


async def decode_positions(wire: Iterable[pb.QueuePosition]) -> dict[Queue, int]:
    positions: dict[Queue, int] = {}
    # Each one as it comes: a dict made of very many at the end would take long.
    await in_turns(
        operator.setitem(positions, Queue(one.topic, one.queue_id), one.queue_offset)
        for one in wire
    )
    return positions


async def encode_positions(
    answer: Message, field: str, positions: Mapping[Queue, int], broker_set: str = ""
) -> bytes:
    """The bytes of an answer with these in a field of it, by topic and queue id."""
    elements = (
        {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "queue_offset": positions[queue],
            "broker_set": broker_set,
        }
        for queue in sorted(positions)
    )
    return await encode_in_turns(answer, field, elements)


async def topic_queues(broker: Broker, name: str, queue_ids: Iterable[int]) -> list[Queue]:
    """The queues that are named, or all of the topic. TopicNotFound, QueueNotFound."""
    topic, wanted = broker.state.topics.readable(name), list(queue_ids)
    if not wanted:
        return list(queues_of(name, topic.read_queues))
    broker.state.topics.readable(name, max(wanted))
    return await in_turns(Queue(name, queue_id) for queue_id in wanted)


async def start_offsets(broker: Broker, queues: Iterable[Queue], start: Start) -> dict[Queue, int]:
    offsets: dict[Queue, int] = {}
    await in_turns(
        operator.setitem(offsets, queue, broker.groups.start_offset(queue, start))
        for queue in queues
    )
    return offsets


def decode_offset_kind(kind: int, at_ms: int) -> Start:
    match kind:
        case pb.OFFSET_EARLIEST:
            return Start(is_earliest=True)
        case pb.OFFSET_LATEST:
            return Start()
        case pb.OFFSET_AT_TIME:
            return Start(at_ms=_checked_time(at_ms))
    raise IllegalRequest(f"unknown kind {kind}: use 0 (earliest), 1 (latest) or 2 (a time)")


def decode_start(request: pb.SubscribeStart | pb.ReceiveRequest) -> Start:
    match request.start_position:
        case pb.START_LATEST:
            return Start()
        case pb.START_EARLIEST:
            return Start(is_earliest=True)
        case pb.START_TIMESTAMP:
            return Start(at_ms=_checked_time(request.start_at_ms))
    raise IllegalRequest(
        f"unknown start_position {request.start_position}: use 0 (latest), 1 (earliest) or 2 "
        "(a time)"
    )


def _checked_time(at_ms: int) -> int:
    if at_ms < 0:
        raise IllegalRequest(f"{at_ms} is no time: milliseconds since 1970")
    return at_ms
