"""ConsumeQueues: the light queues. A queue is a list of 20-byte units, one a message, in files of
fixed length.

      0            8        12           20
      +------------+--------+------------+
      | log offset |  size  |  tag hash  |     little-endian; of the message's frame in the CommitLog
      +------------+--------+------------+

    <data>/consumequeue/<topic>/<queue id>/<queue offset of the first unit, 20 digits>

All of it is derived from the log: units are appended to memory and reach the files in the
background, oldest first, or with a checkpoint. A crash loses nothing but work. Invariant: [start,
written) is in the files, [written, end) in memory. Queue offsets count messages; a unit's place in
its file follows from its queue offset. One thread.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.store.filepool import FilePool, PendingWrite
from mq.store.vfs import Vfs

UNIT = np.dtype([("log_offset", "<u8"), ("size", "<u4"), ("tag_hash", "<u8")])
UNIT_BYTES = UNIT.itemsize

Units = npt.NDArray[np.void]

# A queue goes to its file when this much of it waits, so that a busy one is written in large pieces
# ...
_QUEUE_PENDING_BYTES = 256 << 10
# ... and the queue that waits longest when all together hold this much.
_ALL_PENDING_BYTES = 8 << 20
# What an array costs besides its units.
_ARRAY_BYTES = 128
_SCAN_UNITS = 1 << 18


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
    result = np.zeros(len(units), np.bool_)
    for tag_hash in tag_hashes:
        result |= hashes == np.uint64(tag_hash)
    return result


class QueueExtent(NamedTuple):
    topic: str
    queue_id: int
    start: int
    end: int


class ConsumeQueue:
    """One queue. Reads are for everybody; appends go through `ConsumeQueues`, which keeps the
    account of memory.
    """

    __slots__ = (
        "_files",
        "_pending",
        "end",
        "pending_bytes",
        "queue_id",
        "start",
        "topic",
        "written",
    )

    def __init__(self, files: QueueFiles, extent: QueueExtent) -> None:
        # [start, end) in queue offsets: of the oldest message, and of the next one.
        self.topic, self.queue_id, self.start, self.end = extent
        self.written = self.end
        self.pending_bytes = 0
        self._pending: list[Units] = []
        self._files = files

    def append(self, units: Units) -> int:
        """Queue offset of the first one. In memory when this returns."""
        first = self.end
        self.end += len(units)
        self._pending.append(units)
        self.pending_bytes += units.nbytes + _ARRAY_BYTES
        return first

    def read(self, start: int, end: int) -> Units:
        """The units [start, end), which must lie within the queue."""
        if not self.start <= start <= end <= self.end:
            raise IndexError(f"[{start}, {end}) of a queue of [{self.start}, {self.end})")
        parts = list(self._files.read(self, start, min(end, self.written)))
        if end > self.written:
            parts.extend(self._read_memory(start, end))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, UNIT)

    def _read_memory(self, start: int, end: int) -> Iterator[Units]:
        first = self.written
        for units in self._pending:
            last = first + len(units)
            if first < end and start < last:
                yield units[max(start - first, 0) : end - first]
            first = last

    def backlog(self, queue_offset: int) -> int:
        """How many messages a consumer at this offset has before it: exact, whatever was dropped."""
        return self.end - min(max(queue_offset, self.start), self.end)

    def count_matching(self, start: int, end: int, tag_hashes: Iterable[int]) -> int:
        """How many of [start, end) have one of these tags."""
        hashes = tuple(tag_hashes)
        return sum(
            int(np.count_nonzero(matching(self.read(at, min(at + _SCAN_UNITS, end)), hashes)))
            for at in range(start, end, _SCAN_UNITS)
        )

    def first_at(self, log_offset: int) -> int:
        """Queue offset of the first message at this log offset or behind it; `end` when there is
        none.
        """
        offsets = range(self.start, self.end)
        return self.start + bisect.bisect_left(
            offsets, log_offset, key=lambda at: int(self.read(at, at + 1)["log_offset"][0])
        )

    def pending_writes(self) -> list[PendingWrite]:
        """What brings the files up to `end`."""
        return list(self._files.place(self, self.written, self._pending))

    def set_written(self, end: int) -> int:
        """The files have everything below `end`, which is where some append ended. Returns the
        memory that this frees.
        """
        freed = 0
        while self._pending and self.written + len(self._pending[0]) <= end:
            units = self._pending.pop(0)
            self.written += len(units)
            freed += units.nbytes + _ARRAY_BYTES
        self.pending_bytes -= freed
        return freed


class QueueFiles:
    """Where the units of a queue stand on disk."""

    def __init__(self, vfs: Vfs, directory: str, units_per_file: int) -> None:
        self._vfs = vfs
        self._directory = directory
        self._units_per_file = units_per_file
        self._files = FilePool(vfs, vfs.open_files_max())

    def read(self, queue: ConsumeQueue, start: int, end: int) -> Iterator[Units]:
        while start < end:
            first = self._first_of(start)
            stop = min(end, first + self._units_per_file)
            file = self._files.get(self._path(queue, first))
            data = file.pread((stop - start) * UNIT_BYTES, (start - first) * UNIT_BYTES)
            yield np.frombuffer(data, UNIT)
            start = stop

    def place(self, queue: ConsumeQueue, start: int, arrays: list[Units]) -> Iterator[PendingWrite]:
        """The writes that put these units at queue offset `start`: one a file, without copying them."""
        content: list[memoryview] = []
        position = start
        for units in arrays:
            while len(units):
                room = self._first_of(start) + self._units_per_file - start
                content.append(units[:room].view(np.uint8).data)
                start += min(room, len(units))
                if len(units) >= room:
                    yield self._write_at(queue, position, content)
                    content, position = [], start
                units = units[room:]  # noqa: PLW2901 - what is left of it
        if content:
            yield self._write_at(queue, position, content)

    def _write_at(self, queue: ConsumeQueue, start: int, content: list[memoryview]) -> PendingWrite:
        first = self._first_of(start)
        return PendingWrite(self._path(queue, first), (start - first) * UNIT_BYTES, content)

    def write(self, write: PendingWrite) -> None:
        self._files.write(write)

    def missing(self, queue: ConsumeQueue) -> str | None:
        """A file that should be there and is not, or is too short."""
        if queue.start == queue.written:
            return None
        for first in range(self._first_of(queue.start), queue.written, self._units_per_file):
            units = min(self._units_per_file, queue.written - first)
            path = self._path(queue, first)
            if (self._vfs.file_size(path) or 0) < units * UNIT_BYTES:
                return path
        return None

    def remove_between(self, queue: ConsumeQueue, start: int, end: int) -> None:
        """Removes the files from the one that holds `start` to the last before the one that holds
        `end`.
        """
        for first in range(self._first_of(start), self._first_of(end), self._units_per_file):
            self._files.remove(self._path(queue, first))

    def remove_all(self) -> None:
        self._files.close()
        self._vfs.remove_tree(self._directory)

    def close(self) -> None:
        self._files.close()

    def _first_of(self, queue_offset: int) -> int:
        return queue_offset - queue_offset % self._units_per_file

    def _path(self, queue: ConsumeQueue, first: int) -> str:
        return f"{self._directory}/{queue.topic}/{queue.queue_id}/{first:020d}"


class ConsumeQueues:
    """All queues of the store. They are numbers in memory until they are read or written."""

    def __init__(self, vfs: Vfs, directory: str, units_per_file: int) -> None:
        self._files = QueueFiles(vfs, directory, units_per_file)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        # Insertion order is the order of waiting.
        self._dirty: dict[ConsumeQueue, None] = {}
        self._busy: list[ConsumeQueue] = []
        self._pending_bytes = 0

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def append(self, topic: str, queue_id: int, units: Units) -> int:
        """Queue offset of the first one; a queue that is not there yet is created."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(self._files, QueueExtent(topic, queue_id, 0, 0))
            self._queues[topic, queue_id] = queue
        self._pending_bytes -= queue.pending_bytes
        first = queue.append(units)
        self._pending_bytes += queue.pending_bytes
        self._dirty[queue] = None
        if queue.pending_bytes >= _QUEUE_PENDING_BYTES:
            self._busy.append(queue)
        return first

    def write_surplus(self) -> None:
        """Writes what waits beyond the limits; called after appends. OSError: it waits on."""
        while self._busy:
            self._write(self._busy[-1])
            self._busy.pop()
        while self._pending_bytes > _ALL_PENDING_BYTES:
            self._write(next(iter(self._dirty)))

    def _write(self, queue: ConsumeQueue) -> None:
        end = queue.end
        for write in queue.pending_writes():
            self._files.write(write)
        self.set_written(queue, end)

    def dirty(self) -> list[ConsumeQueue]:
        return list(self._dirty)

    def set_written(self, queue: ConsumeQueue, end: int) -> None:
        """Somebody wrote `pending_writes` up to `end`."""
        self._pending_bytes -= queue.set_written(end)
        if queue.written == queue.end:
            self._dirty.pop(queue, None)

    def extents(self) -> list[QueueExtent]:
        return [QueueExtent(q.topic, q.queue_id, q.start, q.end) for q in self]

    def restore(self, extents: Iterable[QueueExtent]) -> None:
        """The state of a checkpoint: everything below each `end` is in the files."""
        for extent in extents:
            self._queues[extent.topic, extent.queue_id] = ConsumeQueue(self._files, extent)

    def missing_file(self) -> str | None:
        """A file that should be there and is not, or is too short: then all has to be rebuilt."""
        return next(filter(None, map(self._files.missing, self)), None)

    def advance_start(self, extent: QueueExtent) -> bool:
        """The messages before `start` are gone from the log: so are the files that only they were
        in. Whether that moved the queue.
        """
        queue = self._queues.get((extent.topic, extent.queue_id))
        if queue is None or extent.start <= queue.start:
            return False
        self._files.remove_between(queue, queue.start, min(extent.start, queue.written))
        queue.start = extent.start
        return True

    def clear(self) -> None:
        """Forgets all queues and deletes their files."""
        self._queues.clear()
        self._dirty.clear()
        self._busy.clear()
        self._pending_bytes = 0
        self._files.remove_all()

    def close(self) -> None:
        self._files.close()
