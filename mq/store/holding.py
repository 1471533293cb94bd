"""Held batches: the internal queues in which they wait until they are written to their topic.

A held batch is one unit of an internal queue, whatever number of messages it has: the log offset
and the size of the whole batch, and a mark in place of a tag hash. Messages that wait for a time
stand in lanes of ten minutes by their delivery time, with that time as the mark; half messages
stand in one queue. What waits costs twenty bytes beside the log, and no memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mq.names import HALF_TOPIC, SCHEDULE_TOPIC
from mq.store.batch import Batch, parse_stored
from mq.store.consumequeue import Units, single_unit
from mq.store.logreader import LogReader

LANE_MS = 600_000
# Unwanted bytes between two batches that are cheaper to read than to skip.
_GAP_BYTES_MAX = 4096
# More than 40 days of lanes; then they are used again, which their order allows.
LANES = 6_000


class HeldQueue(NamedTuple):
    """The internal queue that a held batch waits in, and the mark of its unit."""

    topic: str
    queue_id: int
    mark: int


def lane_of(due_ms: int) -> int:
    return due_ms // LANE_MS % LANES


def default_held_queue(batch: Batch) -> HeldQueue:
    """The queue of a batch whose lane has never passed its delivery time."""
    if batch.half:
        return HeldQueue(HALF_TOPIC, 0, 0)
    return HeldQueue(SCHEDULE_TOPIC, lane_of(batch.deliver_at_ms), batch.deliver_at_ms)


def held_unit(batch: Batch, log_offset: int, mark: int) -> Units:
    """The one unit of a batch that is held back; `log_offset` is that of the batch."""
    return single_unit(log_offset, len(batch.data), mark)


class HeldBatch(NamedTuple):
    batch: Batch
    log_offset: int

    @property
    def first_message_at(self) -> int:
        """Log offset of its first message, also when it was written again since."""
        return self.batch.origin_log_offset or self.log_offset + self.batch.region_start


def read_held(log: LogReader, places: Iterable[tuple[int, int]]) -> list[HeldBatch]:
    """The batches at these log offsets, of these sizes, with one read for those that follow each
    other with little in between.
    """
    wanted = list(places)
    groups: list[list[int]] = []  # start, end
    for at, size in wanted:
        if groups and 0 <= at - groups[-1][1] <= _GAP_BYTES_MAX:
            groups[-1][1] = at + size
        else:
            groups.append([at, at + size])
    parts = zip(groups, log.read_ranges((start, end) for start, end in groups), strict=True)
    found, start, end, data = [], 0, 0, memoryview(b"")
    for at, size in wanted:
        if not start <= at < end:
            (start, end), part = next(parts)
            data = memoryview(part)
        found.append(HeldBatch(parse_stored(data[at - start : at - start + size]), at))
    return found
