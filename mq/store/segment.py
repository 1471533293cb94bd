"""One segment of the CommitLog: a `.log` file of entries and the `.idx` file that finds them by
raft index.

Invariants: entries are contiguous from byte 0 to `end`, the first one is a checkpoint, and record i
of the `.idx` is entry `first_index + i`. Nothing here decides when to roll, to sync or to drop:
that is the CommitLog's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from mq.store.format import (
    IDX_HEADER_BYTES,
    IDX_RECORD,
    IDX_RECORD_BYTES,
    IDX_TERM_AT,
    IDX_TERM_BYTES,
    SEGMENT_BYTES_MAX,
    IdxHeader,
    encode_idx_header,
    segment_name,
)
from mq.store.preallocator import Preallocator
from mq.store.vfs import File, Vfs

LOG_SUFFIX = ".log"
IDX_SUFFIX = ".idx"
MENDED_SUFFIX = ".mended"  # of a file that is not in its place yet
_IDX_STEP_BYTES = 1 << 20
_LOG_STEP_BYTES = 32 << 20


class Segment:
    """Create with `create` or, for what is on disk already, with the facts that recovery
    established.
    """

    def __init__(self, vfs: Vfs, directory: str, base: int, first_index: int) -> None:
        self.base = base  # log offset of byte 0
        self.first_index = first_index
        self.count = 0
        self.end = 0  # bytes used
        self.synced = 0  # bytes known to be durable
        self.is_sealed = False
        self.is_seal_durable = False
        # When the file of a sealed segment had changed last; a later change is not of our making.
        self._sealed_at: int | None = None
        # Of a twin: whether the segment that it is of was sealed.
        self._is_of_sealed: bool | None = None
        self.log_path = f"{directory}/{segment_name(base)}{LOG_SUFFIX}"
        self.idx_path = f"{directory}/{segment_name(base)}{IDX_SUFFIX}"
        self._vfs = vfs
        self._directory = directory
        self._log_file: File | None = None
        self._idx_file: File | None = None
        # Its files are open for writing: it can become the active one again without a descriptor.
        self._is_writable = False
        # Handles for reading only, of a segment that was unsealed or mended.
        self._retired: list[File] = []
        # Of a twin: the number of an entry, and the records from there on.
        self._known: tuple[int, npt.NDArray[np.void]] | None = None
        self._log_room: Preallocator | None = None
        self._idx_room: Preallocator | None = None

    @property
    def end_log_offset(self) -> int:
        return self.base + self.end

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1

    @property
    def is_dirty(self) -> bool:
        return self.synced < self.end or (self.is_sealed and not self.is_seal_durable)

    @property
    def log(self) -> File:
        if self._log_file is None:
            self._log_file = self._vfs.open(self.log_path, read_only=self.is_sealed)
        return self._log_file

    @property
    def idx(self) -> File:
        if self._idx_file is None:
            self._idx_file = self._vfs.open(self.idx_path, read_only=self.is_sealed)
        return self._idx_file

    def open(self) -> tuple[File, File]:
        """Both files, open from now on: reads come from many threads, and one has to open them."""
        return self.log, self.idx

    def twin(self, start: int, end: int) -> Segment:
        """The same entries by a file of its own, for reading only: good whatever becomes of this
        one, also when it is removed. Its owner closes it. It knows the records of the entries
        between these positions alone.
        """
        twin = Segment(self._vfs, self._directory, self.base, self.first_index)
        twin.count, twin.end, twin.is_sealed = self.count, self.end, True
        twin.synced = self.synced
        twin._sealed_at, twin._is_of_sealed = self._sealed_at, self.is_sealed
        twin._log_file = self._vfs.open(self.log_path, read_only=True)
        number, records = self.records_between(start, end)
        # Copied: a map of the `.idx` must not be touched after the file was cut.
        twin._known = number, records.copy()
        return twin

    def twin_through(self, raft_index: int) -> Segment:
        """The entries up to this one, which are committed and so never cut, by files of its own.
        None is open yet: `open` says whether they are still there. Its owner closes it.
        """
        twin = Segment(self._vfs, self._directory, self.base, self.first_index)
        twin.count, twin.end, twin.is_sealed = self.count, self.end, True
        twin._sealed_at, twin._is_of_sealed = self._sealed_at, self.is_sealed
        if raft_index < self.last_index:
            twin.count = raft_index - self.first_index + 1
            twin.end, _ = self.place_of(twin.count)
        return twin

    # -- writing: the active segment only ---------------------------------------------------------

    def create(self) -> None:
        """New, empty files. A leftover of the same name, from a crash in the middle of this, is
        overwritten.

        The `.idx` is durable before the `.log` is there: recovery takes a segment that has lost its
        mark for damaged, so a crash must not lose it.
        """
        self._idx_file = self._vfs.open(self.idx_path, create=True)
        self._idx_file.truncate(0)
        self.write_idx_header()
        self._idx_file.sync()
        self._vfs.sync_dir(self._directory)
        self._log_file = self._vfs.open(self.log_path, create=True)
        self._log_file.truncate(0)

    def make_writable(self, segment_bytes: int, *, zeros: bool, executor: Executor | None) -> None:
        """Prepares for appends behind `end`."""
        self._is_writable = True
        step = min(segment_bytes, _LOG_STEP_BYTES)
        self._log_room = Preallocator(self.log, self.end, step, zeros=zeros, executor=executor)
        step = min(segment_bytes // 16, _IDX_STEP_BYTES)
        self._idx_room = Preallocator(
            self.idx, self._idx_end(self.count), step, zeros=False, executor=None
        )

    def append(self, buffers: Sequence[Buffer], size: int, records: bytes, limit: int) -> None:
        """Writes whole entries behind the end. On OSError nothing counts; call `undo` before the
        next one.
        """
        log_room, idx_room = self._log_room, self._idx_room
        if log_room is None or idx_room is None:
            raise ValueError(f"{self.log_path} is not writable")
        end, idx_position = self.end + size, IDX_HEADER_BYTES + self.count * IDX_RECORD_BYTES
        idx_end = idx_position + len(records)
        if end > log_room.enough:
            log_room.ensure(end, limit)
        if idx_end > idx_room.enough:
            idx_room.ensure(idx_end, limit)
        self.log.pwritev(buffers, self.end)
        self.idx.pwritev([records], idx_position)
        self.end = end
        self.count += len(records) // IDX_RECORD_BYTES

    def undo(self) -> None:
        """Wipes what a failed append may have left, durably, so that a crash cannot bring it back
        in the place of the entries that come next.
        """
        self._cut_log()
        self.log.sync()

    def truncate(self, count: int) -> None:
        """Keeps the first `count` entries; the others are gone for good when this returns, so that
        none can come back behind the entries that take their place.
        """
        self.end = int(self.records()["position"][count]) if count < self.count else self.end
        self.count = count
        self.synced = min(self.synced, self.end)
        # The mark first, and durably: it must never claim more than there is, or a torn tail would
        # look like damage.
        self.write_idx_header()
        self.idx.sync()
        self._cut_log()
        self.log.sync()

    def _cut_log(self) -> None:
        if self._log_room is not None:
            self._log_room.reset(self.end)
        self.log.truncate(self.end)

    def seal(self) -> None:
        """No more appends: gives back the space that was prepared. Content becomes durable with the
        next `sync`.
        """
        self._cut_log()
        self._log_room = self._idx_room = None
        self.idx.truncate(self._idx_end(self.count))
        self.is_sealed, self.is_seal_durable = True, False
        self._sealed_at = self.log.changed_at()

    def unseal(self) -> None:
        """The segments behind this one are gone: it becomes the active one again, after
        `make_writable`.
        """
        if not self._is_writable:
            log, idx = self._vfs.open(self.log_path), self._vfs.open(self.idx_path)
            # Not closed yet: another thread may be reading what stays.
            self._retired += filter(None, (self._log_file, self._idx_file))
            self._log_file, self._idx_file = log, idx
        self.is_sealed, self._sealed_at = False, None

    def sync(self) -> None:
        """Returns when all entries below the `end` at the time of the call are durable. Called from
        the flusher's thread.
        """
        end = self.end
        self.log.sync()
        self.synced = end
        self.write_idx_header()
        if self.is_sealed:
            # From now on the `.idx` is trusted without reading the log.
            self.idx.sync()
            self.is_seal_durable = True

    def write_idx_header(self) -> None:
        self.idx.pwritev([self.idx_header()], 0)

    def idx_header(self) -> bytes:
        header = IdxHeader(self.first_index, self.base, self.synced, int(self.is_sealed))
        return encode_idx_header(header)

    def replace_files(self, log_path: str | None, idx_path: str | None) -> None:
        """Puts files that are durable and hold the same entries in the place of a sealed segment's.
        Durable when this returns; a crash leaves the old or the new ones.
        """
        for source, target in ((log_path, self.log_path), (idx_path, self.idx_path)):
            if source is not None:
                self._vfs.replace(source, target)
        self._vfs.sync_dir(self._directory)
        # Not closed yet: other threads may be reading by them.
        self._retired += filter(None, (self._log_file, self._idx_file))
        self._log_file = self._idx_file = self._sealed_at = None
        self._is_writable = False
        self.open()

    # -- reading ----------------------------------------------------------------------------------

    def records(self) -> npt.NDArray[np.void]:
        """The `.idx` records of all entries, mapped, not loaded."""
        view = self.idx.view(self._idx_end(self.count))
        return np.frombuffer(view, IDX_RECORD, offset=IDX_HEADER_BYTES)

    def read_records(self, number: int, count: int) -> npt.NDArray[np.void]:
        """From the file, of up to so many entries from this one on: fewer where the file ends. By
        a read and not by a map, where a bad sector would be a signal.
        """
        count = min(count, self.count - number)
        data = self.idx.pread(count * IDX_RECORD_BYTES, self._idx_end(number))
        return np.frombuffer(data, IDX_RECORD, len(data) // IDX_RECORD_BYTES)

    def records_between(self, start: int, end: int) -> tuple[int, npt.NDArray[np.void]]:
        """The records of the entries that have bytes in [start, end), and the number of the first
        one.
        """
        first, records = self._known or (0, self.records())
        positions = records["position"]
        # Numbers of the column's own type: for any other, numpy copies the whole column.
        begin = max(0, int(np.searchsorted(positions, np.uint32(start), side="right")) - 1)
        stop = int(np.searchsorted(positions, np.uint32(min(end, SEGMENT_BYTES_MAX))))
        return first + begin, records[begin : max(stop, begin + 1)]

    def place_of(self, number: int) -> tuple[int, int]:
        """Position of entry `first_index + number`, and the length of its payload."""
        first, records = self._known or (0, self.records())
        position, length, _, _ = records[number - first].item()
        return position, length

    def is_untouched(self) -> bool:
        """Whether nothing was written to the log's file since it was sealed, or since the first
        call. True while it is not sealed, because then this process writes to it.
        """
        if not (self.is_sealed if self._is_of_sealed is None else self._is_of_sealed):
            return True
        changed_at = self.log.changed_at()
        if self._sealed_at is None:
            self._sealed_at = changed_at
        return changed_at == self._sealed_at

    def synced_count(self) -> int:
        """The number of entries that are known to be durable. Reads `synced` once: another thread
        may be raising it.
        """
        synced = np.uint32(self.synced)
        return int(np.searchsorted(self.records()["position"], synced))

    def term_of(self, number: int) -> int:
        """The term of entry `first_index + number`. Reads eight bytes and maps nothing."""
        position = self._idx_end(number) + IDX_TERM_AT
        return int.from_bytes(self.idx.pread(IDX_TERM_BYTES, position), "little")

    def read(self, position: int, length: int) -> bytes:
        return self.log.pread(length, position)

    # -- end of life ------------------------------------------------------------------------------

    def close(self) -> None:
        if self._log_room is not None:
            self._log_room.close()
        for file in (self._log_file, self._idx_file, *self._retired):
            if file is not None:
                # What was not synced is not promised; closing has nothing to add.
                with contextlib.suppress(OSError):
                    file.close()
        self._log_file = self._idx_file = None
        self._is_writable = False
        self._retired.clear()

    def remove(self) -> None:
        """The entries are gone for good when this returns."""
        self.close()
        # The log first, and durably: an `.idx` alone is ignored, but a `.log` that has lost its
        # mark would look damaged.
        self._vfs.remove(self.log_path)
        self._vfs.sync_dir(self._directory)
        self._vfs.remove(self.idx_path)

    @staticmethod
    def _idx_end(count: int) -> int:
        return IDX_HEADER_BYTES + count * IDX_RECORD_BYTES
