"""ConsumeQueues: the light queues. A queue is a list of 20-byte units, one a message.

      0            8        12           20
      +------------+--------+------------+
      | log offset |  size  |  tag hash  |   little-endian; of the message's frame in the log
      +------------+--------+------------+

    <data>/consumequeue/<topic>/<queue id>/<queue offset of the first unit, 20 digits>

All of it is derived from the log: units are appended to memory and reach the files later, oldest
first, or with a checkpoint. A crash loses nothing but work. Queue offsets count messages; a unit's
place in its file follows from its queue offset. Invariant: [start, written) is in the files,
[written, end) in memory. One thread; who writes the files is not decided here.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.errors import QueueDamaged
from mq.store.filepool import FilePool, PendingWrite
from mq.store.rowbuffer import RowBuffer, Rows, bytes_of
from mq.store.vfs import Vfs

UNIT = np.dtype([("log_offset", "<u8"), ("size", "<u4"), ("tag_hash", "<u8")])
UNIT_BYTES = UNIT.itemsize
Units = Rows

REBUILD_ADVICE = "Stop the node and remove its file `checkpoint`: the queues are rebuilt at start"
_READ_FILES_MAX = 256
# So many units are looked at in one go: they fit a processor's cache.
SCAN_UNITS = 1 << 14


def make_units(
    log_offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.uint32],
    tag_hashes: npt.NDArray[np.uint64],
) -> Units:
    units = np.empty(len(sizes), UNIT)
    units["log_offset"] = log_offsets
    units["size"] = sizes
    units["tag_hash"] = tag_hashes
    return units


def matching(units: Units, tag_hashes: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Which units have one of these tags."""
    hashes = units["tag_hash"]
    found = [hashes == np.uint64(tag_hash) for tag_hash in tag_hashes]
    return functools.reduce(np.bitwise_or, found) if found else np.zeros(len(units), np.bool_)


class QueueExtent(NamedTuple):
    topic: str
    queue_id: int
    start: int  # queue offset of the oldest message
    end: int  # queue offset of the next message


class ConsumeQueue:
    """One queue. Reads are for everybody; appends go through `ConsumeQueues`."""

    __slots__ = ("_files", "newest", "queue_id", "start", "topic")

    def __init__(self, files: QueueFiles, extent: QueueExtent) -> None:
        self.topic, self.queue_id, self.start, end = extent
        self.newest = RowBuffer(UNIT, end)
        self._files = files

    @property
    def end(self) -> int:
        return self.newest.end

    @property
    def written(self) -> int:
        return self.newest.start

    def read(self, start: int, end: int) -> Units:
        """The units [start, end), which must lie within the queue."""
        if not self.start <= start <= end <= self.end:
            raise IndexError(f"[{start}, {end}) of a queue of [{self.start}, {self.end})")
        parts = list(self._files.read(self, start, min(end, self.written)))
        parts += self.newest.read(start, end)
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, UNIT)

    def backlog(self, queue_offset: int) -> int:
        """How many messages a consumer at this offset has before it; exact."""
        return self.end - min(max(queue_offset, self.start), self.end)

    def count_matching(self, start: int, end: int, tag_hashes: Iterable[int]) -> int:
        """How many of [start, end) have one of these tags."""
        hashes = tuple(tag_hashes)
        return sum(
            int(np.count_nonzero(matching(self.read(at, min(at + SCAN_UNITS, end)), hashes)))
            for at in range(start, end, SCAN_UNITS)
        )

    def first_at(self, log_offset: int) -> int:
        """Queue offset of the first message at this log offset or behind it, or `end`."""
        offsets = range(self.start, self.end)
        return self.start + bisect.bisect_left(
            offsets, log_offset, key=lambda at: int(self.read(at, at + 1)["log_offset"][0])
        )


class QueueFiles:
    """Where the units of a queue stand on disk."""

    def __init__(self, vfs: Vfs, directory: str, units_per_file: int) -> None:
        self._vfs = vfs
        self._directory = directory
        self._units_per_file = units_per_file
        self._files = FilePool(vfs, _READ_FILES_MAX)

    def read(self, queue: ConsumeQueue, start: int, end: int) -> Iterator[Units]:
        while start < end:
            first = self._first_of(start)
            stop = min(end, first + self._units_per_file)
            path, length = self._path(queue, first), (stop - start) * UNIT_BYTES
            try:
                data = self._files.get(path).pread(length, (start - first) * UNIT_BYTES)
            except FileNotFoundError:
                data = b""
            if len(data) < length:
                raise QueueDamaged(f"{path} is missing or too short. {REBUILD_ADVICE}")
            yield np.frombuffer(data, UNIT)
            start = stop

    def writes(self, queue: ConsumeQueue) -> Iterator[PendingWrite]:
        """What brings the files up to the queue's `end`: one write a file, nothing copied."""
        start, end = queue.written, queue.end
        while start < end:
            first = self._first_of(start)
            stop = min(end, first + self._units_per_file)
            content = [bytes_of(units) for units in queue.newest.read(start, stop)]
            yield PendingWrite(self._path(queue, first), (start - first) * UNIT_BYTES, content)
            start = stop

    def missing(self, queue: QueueExtent) -> str | None:
        """A file that should be there and is not, or is too short."""
        _, _, start, end = queue
        first = self._first_of(start)
        while start < end:
            start = min(end, first + self._units_per_file)
            path = self._path(queue, first)
            if (self._vfs.file_size(path) or 0) < (start - first) * UNIT_BYTES:
                return path
            first = start
        return None

    def between(self, queue: ConsumeQueue, start: int, end: int) -> list[str]:
        """The files from the one that holds `start` to the last before the one that holds `end`."""
        firsts = range(self._first_of(start), self._first_of(end), self._units_per_file)
        return [self._path(queue, first) for first in firsts]

    def forget(self, paths: list[str]) -> None:
        for path in paths:
            self._files.forget(path)

    def remove_all(self) -> None:
        self._files.close()
        self._vfs.remove_tree(self._directory)

    def close(self) -> None:
        self._files.close()

    def _first_of(self, queue_offset: int) -> int:
        return queue_offset - queue_offset % self._units_per_file

    def _path(self, queue: ConsumeQueue | QueueExtent, first: int) -> str:
        return f"{self._directory}/{queue.topic}/{queue.queue_id}/{first:020d}"


class QueueWrites(NamedTuple):
    """Units on their way from memory to files, and up to where each queue is written then."""

    writes: list[PendingWrite]
    marks: list[tuple[ConsumeQueue, int]]


class ConsumeQueues:
    """All queues of the store. They are numbers in memory until they are read or written."""

    def __init__(self, vfs: Vfs, directory: str, units_per_file: int) -> None:
        self._files = QueueFiles(vfs, directory, units_per_file)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        # Queues that nobody has asked for since the start: numbers only.
        self._resting: dict[tuple[str, int], QueueExtent] = {}
        # Queues with units in memory; insertion order is the order of waiting.
        self._dirty: dict[ConsumeQueue, None] = {}
        self.pending_bytes = 0

    def __len__(self) -> int:
        return len(self._queues) + len(self._resting)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        key = topic, queue_id
        queue = self._queues.get(key)
        if queue is None and key in self._resting:
            queue = self._queues[key] = ConsumeQueue(self._files, self._resting.pop(key))
        return queue

    def append(self, topic: str, queue_id: int, units: Units) -> int:
        """Queue offset of the first one. Creates the queue when it is new. In memory only."""
        queue = self.get(topic, queue_id)
        if queue is None:
            queue = ConsumeQueue(self._files, QueueExtent(topic, queue_id, 0, 0))
            self._queues[topic, queue_id] = queue
        first = queue.newest.end
        queue.newest.append(units)
        self.pending_bytes += units.nbytes
        self._dirty[queue] = None
        return first

    def pending_writes(self, bytes_max: int | None = None) -> QueueWrites:
        """What waits longest, up to about so many bytes, or all of it."""
        plan = QueueWrites([], [])
        planned = 0
        for queue in self._dirty:
            plan.writes.extend(self._files.writes(queue))
            plan.marks.append((queue, queue.end))
            planned += (queue.end - queue.written) * UNIT_BYTES
            if bytes_max is not None and planned >= bytes_max:
                break
        return plan

    def set_written(self, plan: QueueWrites) -> None:
        """The writes of this plan were done: their units are let go."""
        for queue, end in plan.marks:
            before = queue.written
            queue.newest.drop_before(end)
            self.pending_bytes -= (queue.written - before) * UNIT_BYTES
            self._dirty.pop(queue, None)
            if queue.written < queue.end:
                # What came in meanwhile waits behind all others.
                self._dirty[queue] = None

    def extents(self) -> list[QueueExtent]:
        awake = [QueueExtent(q.topic, q.queue_id, q.start, q.end) for q in self._queues.values()]
        return [*awake, *self._resting.values()]

    def restore(self, extents: Iterable[QueueExtent]) -> None:
        """The state of a checkpoint: everything below each `end` is in the files."""
        self._resting = {(extent.topic, extent.queue_id): extent for extent in extents}

    def missing_file(self) -> str | None:
        """Right after `restore`: a file that should be there and is not, or is too short."""
        return next(filter(None, map(self._files.missing, self._resting.values())), None)

    def advance_start(self, extent: QueueExtent) -> list[str] | None:
        """The messages before the extent's start are gone from the log.

        The files that only they are in, or will be once they are written, to be removed; None when
        the queue does not move.
        """
        resting = self._resting.get((extent.topic, extent.queue_id))
        if resting is not None and extent.start <= resting.start:
            return None
        queue = self.get(extent.topic, extent.queue_id)
        if queue is None or extent.start <= queue.start:
            return None
        paths = self._files.between(queue, queue.start, extent.start)
        self._files.forget(paths)
        queue.start = extent.start
        return paths

    def clear(self) -> None:
        """Forgets all queues and deletes their files."""
        self._queues.clear()
        self._resting.clear()
        self._dirty.clear()
        self.pending_bytes = 0
        self._files.remove_all()

    def close(self) -> None:
        self._files.close()
