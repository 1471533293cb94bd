"""Reading a queue: from units to slices of the CommitLog as they stand.

A run is a stretch of messages that are neighbours in their queue and in the log: one slice of
bytes, which parses as `repeated Message`. Work is done for each run, never for each message; runs
that stand close together share one read of the file.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.errors import OffsetOutOfRange, QueueDamaged
from mq.store.batch import FRAME_TAG
from mq.store.commitlog import CommitLog
from mq.store.consumequeue import ConsumeQueue, Units, matching

# Units looked at for one call: a filter that matches nothing must come back to its caller, too.
_UNITS_MAX = 1 << 18
# Unwanted bytes between two runs that are cheaper to read than to skip.
_GAP_BYTES_MAX = 4096


class Status(enum.Enum):
    FOUND = "FOUND"
    NOTHING_MATCHED = "NOTHING_MATCHED"  # go on at `next_offset`
    END = "END"  # nothing there yet
    TOO_SMALL = "TOO_SMALL"  # before the oldest message
    TOO_LARGE = "TOO_LARGE"  # behind the end
    NO_QUEUE = "NO_QUEUE"


class Run(NamedTuple):
    queue_offset: int
    message_count: int
    log_offset: int
    stored_at_ms: int
    frames: memoryview


class ReadResult(NamedTuple):
    status: Status
    runs: list[Run]
    next_offset: int
    start: int  # of the queue
    end: int


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue,
    queue_offset: int,
    *,
    bytes_max: int,
    messages_max: int,
    tag_hashes: Collection[int] = (),
) -> ReadResult:
    """Messages from `queue_offset` on, of these tags or of all: as many as the limits allow, at
    least one if there is one.
    """
    start, end = queue.start, queue.end
    if queue_offset < start:
        return ReadResult(Status.TOO_SMALL, [], start, start, end)
    if queue_offset >= end:
        status = Status.END if queue_offset == end else Status.TOO_LARGE
        return ReadResult(status, [], end, start, end)
    wanted = _UNITS_MAX if tag_hashes else min(messages_max, _UNITS_MAX)
    units = queue.read(queue_offset, min(end, queue_offset + wanted))
    places = np.arange(queue_offset, queue_offset + len(units), dtype=np.int64)
    if tag_hashes:
        chosen = matching(units, tag_hashes)
        if not chosen.any():
            return ReadResult(Status.NOTHING_MATCHED, [], queue_offset + len(units), start, end)
        units, places, next_offset = units[chosen], places[chosen], queue_offset + len(units)
    else:
        next_offset = queue_offset + len(units)
    fitting = _fitting(units, bytes_max, messages_max)
    if fitting < len(units):
        next_offset = int(places[fitting])
        units, places = units[:fitting], places[:fitting]
    try:
        runs = _runs(log, units, places)
    except (OffsetOutOfRange, QueueDamaged):
        raise QueueDamaged(
            f"queue {queue.queue_id} of topic {queue.topic} points at {queue_offset} to bytes that are "
            "no message. Stop the node and remove its file `checkpoint`: the queues are rebuilt at start"
        ) from None
    return ReadResult(Status.FOUND, runs, next_offset, start, end)


def _fitting(units: Units, bytes_max: int, messages_max: int) -> int:
    """How many of the units the limits allow; one is always allowed."""
    total = np.cumsum(units["size"], dtype=np.int64)
    return max(1, min(int(np.searchsorted(total, bytes_max, side="right")), messages_max))


def _runs(log: CommitLog, units: Units, places: npt.NDArray[np.int64]) -> list[Run]:
    starts = units["log_offset"].astype(np.int64)
    ends = starts + units["size"]
    breaks = 1 + np.flatnonzero((starts[1:] != ends[:-1]) | (places[1:] != places[:-1] + 1))
    first = np.concatenate(([0], breaks))
    last = np.concatenate((breaks, [len(units)])) - 1
    starts, ends = starts[first], ends[last]
    numbers = zip(
        places[first].tolist(),
        (last - first + 1).tolist(),
        starts.tolist(),
        log.stored_at(starts).tolist(),
        _frames(log, starts, ends),
        strict=True,
    )
    return list(map(Run._make, numbers))


def _frames(
    log: CommitLog, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> list[memoryview]:
    """The bytes of each run, with one read for runs that have little in between."""
    breaks = (1 + np.flatnonzero(starts[1:] - ends[:-1] > _GAP_BYTES_MAX)).tolist()
    slices: list[memoryview] = []
    for first, last in zip([0, *breaks], [*breaks, len(starts)], strict=True):
        base = int(starts[first])
        data = memoryview(log.read(base, int(ends[last - 1]) - base))
        cuts = (starts[first:last] - base).tolist(), (ends[first:last] - base).tolist()
        slices.extend(data[cut:end] for cut, end in zip(*cuts, strict=True))
    if not all(frames[0] == FRAME_TAG for frames in slices):
        raise QueueDamaged("no frame starts here")
    return slices
