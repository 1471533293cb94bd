"""What becomes of batches whose time has come: a pure decision on batches, topics and recalls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mq.broker.delay.due import DueUnit, numbers_of
from mq.broker.state.schedule import Lane
from mq.broker.state.topics import Topic, Topics
from mq.store import rebatch
from mq.store.batch import Batch
from mq.store.holding import HeldBatch
from mq.wire.v1.state_pb2 import LaneProgress


class Leaving(NamedTuple):
    """A batch that leaves its lane, in the order of the lane."""

    number: int
    unit: DueUnit
    # None: the log does not have it any more.
    held: HeldBatch | None


class Outgoing(NamedTuple):
    batches: list[Batch]
    lanes: list[LaneProgress]
    delivered: int
    # Messages whose topic is gone, and batches that are.
    dropped: int
    lost: int


def outgoing(leaving: Iterable[Leaving], lanes: Mapping[int, Lane], topics: Topics) -> Outgoing:
    """One batch for each queue, with all that goes there in its order; how far lanes are then."""
    by_queue: dict[tuple[str, int], list[Batch]] = {}
    progress: dict[int, LaneProgress] = {}
    delivered = dropped = lost = 0
    for number, unit, held in leaving:
        one = progress.setdefault(number, LaneProgress(lane=number))
        one.due_ms, one.log_offset = unit.due_ms, unit.log_offset
        one.batches += 1
        if held is None:
            lost += 1
            continue
        one.messages += held.batch.message_count
        topic = home_of(held, topics)
        if topic is None:
            dropped += held.batch.message_count
            continue
        batch = _without_recalled(held, lanes[number].recalled)
        if batch is not None:
            queue_id = batch.queue_id % topic.write_queues
            by_queue.setdefault((topic.name, queue_id), []).append(batch)
            delivered += batch.message_count
    batches = [rebatch.joined(some, *queue) for queue, some in by_queue.items()]
    return Outgoing(batches, list(progress.values()), delivered, dropped, lost)


def home_of(held: HeldBatch, topics: Topics) -> Topic | None:
    """The topic it was sent to; None: that one was deleted, whether there is a new one of its name
    or not. By places in the log: clocks may stand still, or go back.
    """
    if held.batch.topic not in topics:
        return None
    topic = topics.find(held.batch.topic)
    return topic if topic.created_at_log_offset < held.first_message_at else None


def _without_recalled(held: HeldBatch, recalled: Mapping[int, int]) -> Batch | None:
    if not recalled:
        return held.batch
    batch = held.batch
    starts = batch.frame_starts + (held.first_message_at - batch.region_start)
    numbers = numbers_of(starts, recalled)
    return rebatch.without(batch, numbers) if numbers else batch
