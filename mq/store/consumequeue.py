"""ConsumeQueues: the light queues. A queue is a list of 20-byte units, one a message.

      0            8        12           20
      +------------+--------+------------+
      | log offset |  size  |  tag hash  |   little-endian; of the message's frame in the log
      +------------+--------+------------+

    <data>/consumequeue/<topic>/<queue id>/<queue offset of the first unit, 20 digits>

All of it is derived from the log: units are appended to memory and reach the files later, oldest
first, or with a checkpoint. A crash loses nothing but work. Queue offsets count messages; a unit's
place in its file follows from its queue offset (`rowblocks`). Invariant: [start, written) is in the
files, [written, end) in memory. Units that come from a file are as they were written, or an error:
a block that fails its checksum goes to `on_damage`. One thread; `derived`
decides which thread writes the files.
"""

from __future__ import annotations

import bisect
import errno
import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from mq.errors import MqError, QueueDamaged
from mq.store.batch import Batch
from mq.store.filepool import FilePool, PendingWrite
from mq.store.rowblocks import BadRows, RowBlocks, RowsDamaged, Tail
from mq.store.rowbuffer import RowBuffer, Rows
from mq.store.vfs import Vfs

UNIT = np.dtype([("log_offset", "<u8"), ("size", "<u4"), ("tag_hash", "<u8")])
UNIT_BYTES = UNIT.itemsize
_pack_unit = struct.Struct("<QIQ").pack
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


def single_unit(log_offset: int, size: int, tag_hash: int) -> Units:
    """As `make_units`, at a fifth of its cost."""
    return np.frombuffer(_pack_unit(log_offset, size, tag_hash), UNIT)


def message_units(batch: Batch, log_offset: int) -> Units:
    """One a message of a batch that is visible; `log_offset` is that of the batch."""
    if len(batch.frame_sizes) == 1:
        return single_unit(
            batch.frame_starts.item() + log_offset,
            batch.frame_sizes.item(),
            batch.tag_hashes.item(),
        )
    return make_units(batch.frame_starts + log_offset, batch.frame_sizes, batch.tag_hashes)


def matching(units: Units, tag_hashes: Iterable[int]) -> npt.NDArray[np.bool_]:
    """A mask of the units that have one of these tags."""
    hashes = units["tag_hash"]
    found = [hashes == np.uint64(tag_hash) for tag_hash in tag_hashes]
    return functools.reduce(np.bitwise_or, found) if found else np.zeros(len(units), np.bool_)


class QueueExtent(NamedTuple):
    topic: str
    queue_id: int
    start: int  # queue offset of the oldest message
    end: int  # queue offset of the next message


class SavedQueue(NamedTuple):
    """A queue in a checkpoint: its extent, all of which is in the files."""

    topic: str
    queue_id: int
    start: int
    end: int
    tail_crc: int = 0  # of the last block of units, while it is incomplete

    @property
    def extent(self) -> QueueExtent:
        return QueueExtent(self.topic, self.queue_id, self.start, self.end)


class DamagedFile(NamedTuple):
    """Units of a queue that are not what was written, and what its file should hold."""

    topic: str
    queue_id: int
    start: int  # queue offset of the oldest message
    path: str
    first: int  # queue offset of the first unit of the file
    bad: BadRows  # counted in the file
    blocks: RowBlocks
    tail: Tail

    @property
    def affected(self) -> str:
        first, end = self.first + self.bad.first, self.first + self.bad.end
        return f"queue {self.queue_id} of topic {self.topic}, queue offsets {first} to {end - 1}"


def no_rebuild(file: DamagedFile) -> MqError:
    """The default `on_damage`: nothing rebuilds the file."""
    return QueueDamaged(f"{file.path} is not what was written ({file.affected}). {REBUILD_ADVICE}")


class ConsumeQueue:
    """One queue. Appends go through `ConsumeQueues`."""

    __slots__ = ("_files", "newest", "queue_id", "start", "tail_crc", "topic")

    def __init__(self, files: QueueFiles, saved: SavedQueue) -> None:
        self.topic, self.queue_id, self.start, end, self.tail_crc = saved
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
        """The exact number of messages from this offset to the end."""
        return self.end - min(max(queue_offset, self.start), self.end)

    def first_at(self, log_offset: int) -> int:
        """Queue offset of the first message at this log offset or behind it, or `end`."""
        offsets = range(self.start, self.end)
        return self.start + bisect.bisect_left(
            offsets, log_offset, key=lambda at: int(self.read(at, at + 1)["log_offset"][0])
        )


def _rows_of(newest: RowBuffer, first: int, start: int, end: int) -> list[Units]:
    """Counted from the unit `first`, as in a file."""
    return newest.read(first + start, first + end)


class QueueFiles:
    """The files that hold the units of a queue."""

    def __init__(self, vfs: Vfs, directory: str, units_per_file: int) -> None:
        self._vfs = vfs
        self._directory = directory
        self._units_per_file = units_per_file
        self._blocks = RowBlocks(UNIT, units_per_file)
        self._files = FilePool(vfs, _READ_FILES_MAX)
        # Told of units that are not what was written; what the reader gets instead of them.
        self.on_damage: Callable[[DamagedFile], MqError] = no_rebuild

    def read(self, queue: ConsumeQueue, start: int, end: int) -> Iterator[Units]:
        while start < end:
            first = self._first_of(start)
            stop = min(end, first + self._units_per_file)
            yield self._read(queue, first, start - first, stop - first)
            start = stop

    def _read(self, queue: ConsumeQueue, first: int, start: int, stop: int) -> Units:
        """Rows [start, stop) of the file that begins with `first`."""
        path, tail = self._path(queue, first), self._tail(queue, first)
        try:
            return self._blocks.read(self._files.get(path), start, stop, tail)
        except RowsDamaged as damaged:
            bad = damaged.bad
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EIO):
                raise
            bad = BadRows(self._blocks.block_of(start).first, stop)
        self._files.forget(path)  # a file that was removed or replaced is opened again
        place = queue.topic, queue.queue_id, queue.start
        raise self.on_damage(DamagedFile(*place, path, first, bad, self._blocks, tail))

    def _tail(self, queue: ConsumeQueue, first: int) -> Tail:
        if queue.written >= first + self._units_per_file:
            return Tail(self._units_per_file, 0)
        return Tail(queue.written - first, queue.tail_crc)

    def writes(self, queue: ConsumeQueue) -> tuple[list[PendingWrite], int]:
        """The writes that bring the files up to the queue's `end`, one a file and without a copy of
        units; and the checksum of the last block after them.
        """
        writes, tail_crc = [], queue.tail_crc
        start, end = queue.written, queue.end
        while start < end:
            first = self._first_of(start)
            stop = min(end, first + self._units_per_file)
            newest = functools.partial(_rows_of, queue.newest, first)
            written = Tail(start - first, tail_crc)
            content, tail = self._blocks.encode(newest, written, stop - first)
            position = self._blocks.position(start - first)
            writes.append(PendingWrite(self._path(queue, first), position, content))
            start, tail_crc = stop, tail.crc
        return writes, tail_crc

    def correct_tail(self, queue: ConsumeQueue, before: Tail, first: int, after: int) -> None:
        later = queue.written - first - before.rows
        block = self._blocks.block_of(max(before.rows - 1, 0))
        if later >= 0 and queue.written - first < block.end:
            # A crc is linear: what the change of the first units makes of it depends on how many
            # bytes follow, not on which.
            zeros = bytes(later * UNIT_BYTES)
            queue.tail_crc ^= crc32(zeros, before.crc ^ after) ^ crc32(zeros, 0)

    def empty_tail_crc(self, queue_offset: int) -> int:
        """The checksum of the last block for a queue that goes on here and has no files."""
        return self._blocks.empty_tail(queue_offset - self._first_of(queue_offset)).crc

    def missing(self, queue: SavedQueue) -> str | None:
        """A file that should be there and is not, or is too short."""
        start, end = queue.start, queue.end
        first = self._first_of(start)
        while start < end:
            start = min(end, first + self._units_per_file)
            path = self._path(queue, first)
            if (self._vfs.file_size(path) or 0) < self._blocks.end_position(start - first):
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

    def _path(self, queue: ConsumeQueue | SavedQueue, first: int) -> str:
        return f"{self._directory}/{queue.topic}/{queue.queue_id}/{first:020d}"


class QueueWrites(NamedTuple):
    """Units on their way from memory to files; up to where each queue is written then, and the
    checksum of its last block.
    """

    writes: list[PendingWrite]
    marks: list[tuple[ConsumeQueue, int, int]]


class ConsumeQueues:
    """All queues of the store. They are numbers in memory until they are read or written."""

    def __init__(self, vfs: Vfs, directory: str, units_per_file: int) -> None:
        self._files = QueueFiles(vfs, directory, units_per_file)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        # Queues that were not used since the start: numbers only.
        self._resting: dict[tuple[str, int], SavedQueue] = {}
        # Queues with units in memory; insertion order is the order of waiting.
        self._dirty: dict[ConsumeQueue, None] = {}
        self.pending_bytes = 0

    def watch(self, on_damage: Callable[[DamagedFile], MqError]) -> None:
        """From now on this one hears of units that are not what was written."""
        self._files.on_damage = on_damage

    def __len__(self) -> int:
        return len(self._queues) + len(self._resting)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        key = topic, queue_id
        queue = self._queues.get(key)
        if queue is None and key in self._resting:
            queue = self._queues[key] = ConsumeQueue(self._files, self._resting.pop(key))
        return queue

    def ids_of(self, topic: str) -> list[int]:
        """The queues of the topic that were written to."""
        every = itertools.chain(self._queues, self._resting)
        return [queue_id for name, queue_id in every if name == topic]

    def append(self, topic: str, queue_id: int, units: Units) -> int:
        """Queue offset of the first one. Creates the queue when it is new. In memory only."""
        queue = self._queues.get((topic, queue_id)) or self.get(topic, queue_id)
        if queue is None:
            queue = ConsumeQueue(self._files, SavedQueue(topic, queue_id, 0, 0))
            self._queues[topic, queue_id] = queue
        first = queue.newest.end
        queue.newest.append(units)
        self.pending_bytes += units.nbytes
        self._dirty[queue] = None
        return first

    def pending_writes(self, bytes_max: int | None = None) -> QueueWrites:
        """The writes that have waited longest, up to about this many bytes, or all of them."""
        plan = QueueWrites([], [])
        planned = 0
        for queue in self._dirty:
            writes, tail_crc = self._files.writes(queue)
            plan.writes.extend(writes)
            plan.marks.append((queue, queue.end, tail_crc))
            planned += (queue.end - queue.written) * UNIT_BYTES
            if bytes_max is not None and planned >= bytes_max:
                break
        return plan

    def set_written(self, plan: QueueWrites) -> None:
        """The writes of this plan were done: their units are let go."""
        for queue, end, tail_crc in plan.marks:
            before = queue.written
            if end > before:
                queue.newest.drop_before(end)
                queue.tail_crc = tail_crc
            self.pending_bytes -= (queue.written - before) * UNIT_BYTES
            self._dirty.pop(queue, None)
            if queue.written < queue.end:
                # What came in meanwhile waits behind all others.
                self._dirty[queue] = None

    def extents(self) -> list[QueueExtent]:
        awake = [QueueExtent(q.topic, q.queue_id, q.start, q.end) for q in self._queues.values()]
        return [*awake, *(one.extent for one in self._resting.values())]

    def saved(self, plan: QueueWrites) -> list[SavedQueue]:
        """For a checkpoint: as they are when all of the plan, which is of now, is written."""
        crcs = {queue: crc for queue, _, crc in plan.marks}
        awake = [
            SavedQueue(q.topic, q.queue_id, q.start, q.end, crcs.get(q, q.tail_crc))
            for q in self._queues.values()
        ]
        return [*awake, *self._resting.values()]

    def restore(self, saved: Iterable[SavedQueue]) -> None:
        """The state of a checkpoint: everything below each `end` is in the files."""
        self._resting = {(one.topic, one.queue_id): one for one in saved}

    def restart(self, extents: Iterable[QueueExtent]) -> None:
        """Queues of which there are no files: they go on where they end."""
        self.restore(
            SavedQueue(*extent, self._files.empty_tail_crc(extent.end)) for extent in extents
        )

    def missing_file(self) -> str | None:
        """Right after `restore`: a file that should be there and is not, or is too short."""
        return next(filter(None, map(self._files.missing, self._resting.values())), None)

    def correct_tail(
        self, topic: str, queue_id: int, rows: int, first: int, before: int, after: int
    ) -> None:
        """The first `rows` units of the file that begins with `first` had `before` as the checksum
        of their last block and have `after` now. Changes nothing if that block is complete by now:
        a reader finds that its checksum is not the one in the file.
        """
        queue = self.get(topic, queue_id)
        if queue is not None:
            self._files.correct_tail(queue, Tail(rows, before), first, after)

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
