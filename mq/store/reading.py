"""Reading a queue: from units to slices of the CommitLog as they stand.

A run is a stretch of messages that are neighbours in their queue and in the log: one slice of
bytes, which parses as `repeated Message`. Work is done for each run, never for each message; runs
that stand close together share one read of the file.

Reading has two steps: finding the messages (`find_in_queue`: units, by the thread that owns the
store), and reading them (`Found.read`: the log only, by any thread that has files of its own).
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mq.errors import MessagesDamaged, OffsetOutOfRange, QueueDamaged
from mq.store.consumequeue import REBUILD_ADVICE, SCAN_UNITS, ConsumeQueue, Units, matching
from mq.store.frame_check import FRAME_TAG
from mq.store.logreader import LogReader

# Units looked at for one call: a filter that matches nothing must come back to its caller, too.
_UNITS_MAX = 1 << 18
_SAMPLE_UNITS = 64
# Unwanted bytes between two runs that are cheaper to read than to skip.
_GAP_BYTES_MAX = 4096
_PROBES_MAX = 16


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
    sizes: npt.NDArray[np.uint32]  # of each frame


class ReadResult(NamedTuple):
    status: Status
    runs: list[Run]
    next_offset: int
    start: int  # of the queue
    end: int
    lost: int = 0  # messages that were passed over: they are damaged, and no node has them


# The bytes of ranges [start, end) of log offsets.
ReadRanges: TypeAlias = Callable[[Sequence[tuple[int, int]]], list[bytes | memoryview]]


_FIRST = np.zeros(1, np.intp)


class _Chosen(NamedTuple):
    """Units to be read; `places` counts from where the reading began, None: one after another."""

    units: Units
    places: npt.NDArray[np.intp] | None
    next_offset: int


class _Extents(NamedTuple):
    """The runs: their first and last units, and the log offsets [start, end)."""

    first: npt.NDArray[np.intp]
    last: npt.NDArray[np.intp]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @property
    def size_bytes(self) -> int:
        return int((self.ends - self.starts).sum())


class Found(NamedTuple):
    """Messages whose place in the log is known, and whose bytes are not read yet."""

    topic: str
    queue_id: int
    queue_offset: int
    chosen: _Chosen
    extents: _Extents
    stored_at_ms: npt.NDArray[np.int64]  # of each run
    start: int  # of the queue
    end: int

    @property
    def log_range(self) -> tuple[int, int]:
        """Everything that is read stands in here."""
        return int(self.extents.starts[0]), int(self.extents.ends[-1])

    @property
    def log_ranges(self) -> list[tuple[int, int]]:
        """Of each run."""
        return list(zip(self.extents.starts.tolist(), self.extents.ends.tolist(), strict=True))

    def read_in_memory(self, log: LogReader) -> ReadResult | None:
        """As `read`; None when it would most likely wait for the disk. Of many runs, some are
        looked at.
        """
        step = len(self.extents.starts) // _PROBES_MAX + 1
        starts, ends = self.extents.starts[::step].tolist(), self.extents.ends[::step].tolist()
        if not all(map(log.is_in_memory, starts, ends)):
            return None
        return self.read(log.read_ranges if step > 1 else log.read_ranges_in_memory)

    def read(self, read_ranges: ReadRanges) -> ReadResult:
        """Less, when something of it is damaged: what stands before. QueueDamaged; MessagesDamaged
        when nothing does.
        """
        try:
            runs = _runs(read_ranges, self)
        except MessagesDamaged as error:
            return self._around(error, read_ranges)
        except (OffsetOutOfRange, QueueDamaged):
            raise _damaged(self.topic, self.queue_id, self.queue_offset) from None
        return ReadResult(Status.FOUND, runs, self.chosen.next_offset, self.start, self.end)

    def _around(self, error: MessagesDamaged, read_ranges: ReadRanges) -> ReadResult:
        """The messages before a damaged entry. If there are none and the entry is lost, the reader
        goes on behind it.
        """
        chosen = self.chosen
        log_offsets = chosen.units["log_offset"]
        before = int(np.searchsorted(log_offsets, np.uint64(error.start)))
        if before:
            chosen = _cut(chosen, self.queue_offset, before)
            extents = _extents(chosen)
            # A run ends where its entry ends.
            stored_at_ms = self.stored_at_ms[: len(extents.starts)]
            part = self._replace(chosen=chosen, extents=extents, stored_at_ms=stored_at_ms)
            return part.read(read_ranges)
        if not error.is_lost:
            raise error
        lost = int(np.searchsorted(log_offsets, np.uint64(error.end)))
        next_offset = chosen.next_offset
        if lost < len(chosen.units):
            place = lost if chosen.places is None else int(chosen.places[lost])
            next_offset = self.queue_offset + place
        return ReadResult(Status.NOTHING_MATCHED, [], next_offset, self.start, self.end, lost)


def find_in_queue(
    log: LogReader,
    queue: ConsumeQueue,
    queue_offset: int,
    *,
    bytes_max: int,
    messages_max: int,
    tag_hashes: Collection[int] = (),
) -> ReadResult | Found:
    """Finds messages from `queue_offset` on, of these tags or of all: as many as the limits allow,
    but at least one if there is one. Returns a result if there is nothing to read.
    """
    start, end = queue.start, queue.end
    bytes_max, messages_max = max(1, bytes_max), max(1, messages_max)
    if queue_offset < start:
        return ReadResult(Status.TOO_SMALL, [], start, start, end)
    if queue_offset >= end:
        status = Status.END if queue_offset == end else Status.TOO_LARGE
        return ReadResult(status, [], end, start, end)
    if tag_hashes:
        chosen = _choose(queue, queue_offset, bytes_max, messages_max, tag_hashes)
    else:
        chosen = _take(queue, queue_offset, bytes_max, messages_max)
    if not len(chosen.units):
        return ReadResult(Status.NOTHING_MATCHED, [], chosen.next_offset, start, end)
    topic, queue_id = queue.topic, queue.queue_id
    try:
        extents = _extents(chosen)
        if extents.size_bytes > bytes_max:
            chosen = _cut(chosen, queue_offset, _fitting(chosen.units, bytes_max))
            extents = _extents(chosen)
        stored_at_ms = log.stored_at(extents.starts)
    except (OffsetOutOfRange, QueueDamaged):
        raise _damaged(topic, queue_id, queue_offset) from None
    return Found(topic, queue_id, queue_offset, chosen, extents, stored_at_ms, start, end)


def _damaged(topic: str, queue_id: int, queue_offset: int) -> QueueDamaged:
    return QueueDamaged(
        f"queue {queue_id} of topic {topic} points from {queue_offset} on to bytes that are no "
        f"message. {REBUILD_ADVICE}"
    )


def _take(queue: ConsumeQueue, queue_offset: int, bytes_max: int, messages_max: int) -> _Chosen:
    wanted = messages_max
    if wanted > _SAMPLE_UNITS:  # which is the least that the guess can be
        wanted = min(wanted, _guess(queue, queue_offset, bytes_max))
    units = queue.read(queue_offset, min(queue.end, queue_offset + wanted))
    return _Chosen(units, None, queue_offset + len(units))


def _choose(
    queue: ConsumeQueue,
    queue_offset: int,
    bytes_max: int,
    messages_max: int,
    tag_hashes: Collection[int],
) -> _Chosen:
    next_offset, end = queue_offset, min(queue.end, queue_offset + _UNITS_MAX)
    found, found_at, found_bytes, found_count = [], [], 0, 0
    while next_offset < end and found_bytes < bytes_max and found_count < messages_max:
        units = queue.read(next_offset, min(end, next_offset + SCAN_UNITS))
        places = np.flatnonzero(matching(units, tag_hashes))
        found.append(units[places])
        found_at.append(places + (next_offset - queue_offset))
        found_bytes += int(np.add.reduce(found[-1]["size"], dtype=np.int64))
        found_count += len(places)
        next_offset += len(units)
    chosen = _Chosen(np.concatenate(found), np.concatenate(found_at), next_offset)
    return _cut(chosen, queue_offset, messages_max)


def _cut(chosen: _Chosen, queue_offset: int, count: int) -> _Chosen:
    """The first `count` of them; reading goes on at the next one."""
    units, places, _ = chosen
    if count >= len(units):
        return chosen
    if places is None:
        return _Chosen(units[:count], None, queue_offset + count)
    return _Chosen(units[:count], places[:count], queue_offset + int(places[count]))


def _guess(queue: ConsumeQueue, queue_offset: int, bytes_max: int) -> int:
    """About how many messages make `bytes_max`, by the size of the next ones; rather too few."""
    sample = queue.read(queue_offset, min(queue.end, queue_offset + _SAMPLE_UNITS))
    sample_bytes = int(np.add.reduce(sample["size"], dtype=np.int64))
    return min(_UNITS_MAX, max(_SAMPLE_UNITS, len(sample) * bytes_max // max(1, sample_bytes)))


def _fitting(units: Units, bytes_max: int) -> int:
    """The number of units that fit into `bytes_max`; one is always allowed."""
    total = np.cumsum(units["size"], dtype=np.int64)
    return max(1, int(np.searchsorted(total, bytes_max, side="right")))


def _extents(chosen: _Chosen) -> _Extents:
    units, places, _ = chosen
    # Columns of 32 bits, which numpy need not copy: a neighbour goes on where the one before it
    # ends in the low half of its log offset, and has the same high half. A run over a border of
    # 4 GiB becomes two.
    words = units.view("<u4").reshape(-1, 5)
    low, high, sizes = words[:, 0], words[:, 1], words[:, 2]
    is_break = low[:-1] + sizes[:-1] != low[1:]
    is_break |= high[:-1] != high[1:]
    if places is not None:
        is_break |= places[1:] != places[:-1] + 1
    if is_break.any():
        breaks = 1 + np.flatnonzero(is_break)
        first = np.concatenate(([0], breaks))
        last = np.concatenate((breaks, [len(units)])) - 1
    else:
        first, last = _FIRST, np.array([len(units) - 1])
    starts = units["log_offset"][first].astype(np.int64)
    ends = units["log_offset"][last].astype(np.int64) + sizes[last]
    if (ends <= starts).any() or (starts[1:] < ends[:-1]).any():
        raise QueueDamaged("messages overlap")
    return _Extents(first, last, starts, ends)


def _runs(read_ranges: ReadRanges, found: Found) -> list[Run]:
    first, last, starts, ends = found.extents
    chosen = found.chosen
    frames = _frames(read_ranges, starts, ends)
    sizes = chosen.units["size"]
    if not all(map(_is_run, frames, sizes[first].tolist(), sizes[last].tolist())):
        raise QueueDamaged("no message starts here, or it is of another size")
    places = first if chosen.places is None else chosen.places[first]
    columns = zip(
        (found.queue_offset + places).tolist(),
        (last - first + 1).tolist(),
        starts.tolist(),
        found.stored_at_ms.tolist(),
        frames,
        [sizes[begin : end + 1] for begin, end in zip(first.tolist(), last.tolist(), strict=True)],
        strict=True,
    )
    return list(map(Run._make, columns))


def _frames(
    read_ranges: ReadRanges, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> list[memoryview]:
    """The bytes of each run, with one read for runs that have little in between."""
    breaks = (1 + np.flatnonzero(starts[1:] - ends[:-1] > _GAP_BYTES_MAX)).tolist()
    begin, stop = starts.tolist(), ends.tolist()
    groups = list(zip([0, *breaks], [*breaks, len(begin)], strict=True))
    parts = read_ranges([(begin[first], stop[last - 1]) for first, last in groups])
    if len(parts) == len(begin):
        return [memoryview(part) for part in parts]
    slices: list[memoryview] = []
    for (first, last), part in zip(groups, parts, strict=True):
        base, data = begin[first], memoryview(part)
        slices.extend(data[begin[i] - base : stop[i] - base] for i in range(first, last))
    return slices


def _is_run(frames: memoryview, first_size: int, last_size: int) -> bool:
    """Whether the run begins and ends with whole frames.

    A unit with a wrong log offset or size does not join its neighbours, so that it stands at an end
    of its run: those in between need no look.
    """
    first, at = _frame_head(first_size), len(frames) - last_size
    if frames[: len(first)] != first:
        return False
    if at == 0:
        return True  # a run of one
    last = _frame_head(last_size)
    return frames[at : at + len(last)] == last


@functools.lru_cache(maxsize=4096)
def _frame_head(frame_size: int) -> bytes:
    """Tag and length of a frame of this size; bytes that never match if there is no such frame."""
    for width in range(1, 6):
        length = frame_size - 1 - width
        if length >= 0 and max(1, (length.bit_length() + 6) // 7) == width:
            groups = [length >> 7 * i & 0x7F | 0x80 * (i < width - 1) for i in range(width)]
            return bytes([FRAME_TAG, *groups])
    return b"no frame is of this size"
