"""Queues, positions and starts as requests say them, for all services. Long lists are decoded and
encoded in several turns of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from mq.broker.broker import Broker
from mq.broker.consumer.groups import Start
from mq.broker.long_work import in_turns
from mq.broker.queue import Queue
from mq.errors import IllegalRequest
from mq.wire.v1 import consumer_pb2 as pb


async def decode_queues(wire: Iterable[pb.QueueId]) -> list[Queue]:
    return await in_turns(Queue(one.topic, one.queue_id) for one in wire)


async def decode_positions(wire: Iterable[pb.QueuePosition]) -> dict[Queue, int]:
    return dict(await in_turns((Queue(one.topic, one.queue_id), one.queue_offset) for one in wire))


async def add_positions(
    field: RepeatedCompositeFieldContainer[pb.QueuePosition],
    positions: Mapping[Queue, int],
    broker_set: str = "",
) -> None:
    """Adds them to the field of a response, by topic and queue id."""
    await in_turns(
        field.add(
            topic=queue.topic, queue_id=queue.queue_id, queue_offset=at, broker_set=broker_set
        )
        for queue, at in sorted(positions.items())
    )


async def topic_queues(broker: Broker, name: str, queue_ids: Iterable[int]) -> list[Queue]:
    """The queues that are named, or all of the topic. TopicNotFound, QueueNotFound."""
    topic = broker.state.topics.readable(name)
    wanted = list(queue_ids) or range(topic.read_queues)
    return await in_turns(_readable(broker, Queue(name, queue_id)) for queue_id in wanted)


def _readable(broker: Broker, queue: Queue) -> Queue:
    broker.state.topics.readable(*queue)
    return queue


async def start_offsets(broker: Broker, queues: Iterable[Queue], start: Start) -> dict[Queue, int]:
    return dict(
        await in_turns((queue, broker.groups.start_offset(queue, start)) for queue in queues)
    )


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
