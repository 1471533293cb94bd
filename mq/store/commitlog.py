"""The one sequential log: entries with consecutive raft indexes in segments, appended or copied
from another log, synced, cut, dropped from the front.

Invariants: indexes are contiguous from `first_index` to `last_index`; log offsets are contiguous
over segments; `stored_at_ms` and terms never go backwards; each segment opens with a checkpoint;
`durable_offset <= end_offset`. The log does not know what an entry means, when to sync, or what is
committed.

One thread appends, extends, rolls, truncates and drops; `sync` may run on another one; reads may
run on any.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from mq.errors import (
    DiskFull,
    MalformedEntries,
    MessageTooLarge,
    MqError,
    OffsetOutOfRange,
    SegmentFull,
    StorageFailed,
)
from mq.store.damage import DamageKind, DamageLog
from mq.store.format import (
    HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    EntryHeader,
    Kind,
    decode_header,
    encode_header,
    pack_idx_record,
)
from mq.store.logreader import EntryRef, LogReader
from mq.store.recovery import recover
from mq.store.scan import PAYLOAD_BYTES_MAX, check_entries
from mq.store.segment import Segment
from mq.store.vfs import Vfs, is_shortage, shortage


class NewEntry(NamedTuple):
    kind: Kind
    term: int
    stored_at_ms: int
    payload: Sequence[bytes | memoryview]


class _Block(NamedTuple):
    """Entries as they will stand in a segment, and the last of them."""

    buffers: Sequence[bytes | memoryview]
    size: int
    records: bytes
    last: EntryRef


class CommitLog(LogReader):
    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        *,
        segment_bytes: int,
        verify_bytes: int,
        zero_ahead: bool = False,
        background: bool = True,
        damage: DamageLog | None = None,
    ) -> None:
        """Opens the directory, creates it when it is not there. Raises LogDamaged; cuts a torn tail
        (see `recovery`).
        """
        self._vfs = vfs
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._zero_ahead = zero_ahead
        self._executor = ThreadPoolExecutor(1, "mq-room") if background else None
        self._failure: MqError | None = None
        # Goes up whenever bytes of entries that stand in the log were written again.
        self.mends = 0
        self._must_undo = False
        # Held while files are synced, and by whatever would pull them away from under a sync.
        self._sync_lock = threading.Lock()
        # Segments whose files are still to be removed, by one thread at a time.
        self._released: list[Segment] = []
        self._removal_lock = threading.Lock()
        if not vfs.exists(directory):
            vfs.make_dirs(directory)
            vfs.sync_dir(os.path.dirname(directory) or ".")
        segments, self.recovery = recover(vfs, directory, verify_bytes, self._executor)
        super().__init__(segments, damage)
        self.verified.start_at(self.end_offset)
        self._names_changed = True
        self._last_term = self._last_stored_at_ms = 0
        if self._segments:
            self._activate(self._segments[-1])
            last = self._segments[-1].records()[-1]
            self._last_term = int(last["term"])
            self._last_stored_at_ms = int(last["stored_at_ms"])

    # -- facts -------------------------------------------------------------------------------------

    @property
    def last_term(self) -> int:
        return self._last_term

    @property
    def last_stored_at_ms(self) -> int:
        return self._last_stored_at_ms

    @property
    def durable_offset(self) -> int:
        """Everything below it survives a power loss."""
        segment = self._first_dirty()
        return self.end_offset if segment is None else segment.base + segment.synced

    @property
    def durable_index(self) -> int:
        """Raft index of the last entry that survives a power loss; `first_index - 1` when there is
        none. For the thread that owns the log, while `sync` may run on another.
        """
        segment = self._first_dirty()
        if segment is None:
            return self.last_index
        return segment.first_index + segment.synced_count() - 1

    def _first_dirty(self) -> Segment | None:
        """Syncs go from the front to the back, so that what is not durable stands at the end."""
        found = None
        for segment in reversed(self._segments):
            if not segment.is_dirty:
                break
            found = segment
        return found

    # -- writing ----------------------------------------------------------------------------------

    def append(self, entries: Sequence[NewEntry]) -> list[EntryRef]:
        """Writes the entries, in one write, behind the last one. Durable after the next `sync`.

        Times that would go backwards are lifted to the last entry's. SegmentFull: `roll` first;
        empty NOOPs fit a full segment too, because a new leader needs one before it can apply what
        is before it. DiskFull: nothing was written. StorageFailed: stop the node.
        """
        if self._failure is not None:
            raise self._failure
        if not self._segments:
            raise SegmentFull("the log is empty and has to open with a checkpoint: roll first")
        if not entries:
            return []
        active = self._segments[-1]
        refs, block = self._encode(entries, active)
        end = active.end + block.size
        if end > self._segment_bytes or end > SEGMENT_BYTES_MAX:
            # A segment that holds only its checkpoint takes any entry, so that rolling helps.
            is_any = active.count == 1 or all(r.kind == Kind.NOOP and not r.length for r in refs)
            if not is_any or end > SEGMENT_BYTES_MAX:
                raise SegmentFull(
                    f"{block.size} bytes do not fit {active.log_path}, which has {active.end}"
                )
        self._write(block)
        return refs

    def roll(self, checkpoint: NewEntry) -> EntryRef:
        """Seals the active segment and opens a new one with this checkpoint entry. Errors as for
        `append`.
        """
        self._check_usable()
        if checkpoint.kind != Kind.CHECKPOINT:
            raise ValueError("a segment opens with a checkpoint")
        segment = self._next_segment()
        refs, block = self._encode([checkpoint], segment)
        self._open_with(segment, block)
        return refs[0]

    def extend(self, data: bytes | bytearray | memoryview) -> EntryRef:
        """Writes a `region` of another log behind the last entry, in one write and byte for byte;
        returns the last of its entries. Durable after the next `sync`.

        A region that starts with a checkpoint opens a new segment. Any other goes to the active
        one, whatever its size: the borders of segments are those of the other log. All of it is
        there or, after an error, nothing: MalformedEntries when this is not whole, intact entries
        that may follow here; others as for `append`.
        """
        self._check_usable()
        view = memoryview(data).cast("B")
        end = self._segments[-1].end if self._segments else 0
        last = EntryHeader(
            0, Kind.NOOP, 0, self.last_index, self._last_term, self._last_stored_at_ms
        )
        is_opening, last, position, records = check_entries(view, end, last)
        if not is_opening and not self._segments:
            raise MalformedEntries("the log is empty and has to open with a checkpoint")
        segment = self._next_segment() if is_opening else self._segments[-1]
        _, kind, length, raft_index, term, stored_at_ms = last
        ref = EntryRef(raft_index, term, Kind(kind), stored_at_ms, segment.base + position, length)
        block = _Block([view], len(view), records, ref)
        if is_opening:
            self._open_with(segment, block)
        else:
            self._write(block)
        return ref

    def _next_segment(self) -> Segment:
        return Segment(self._vfs, self._directory, self.end_offset, self.last_index + 1)

    def _write(self, block: _Block) -> None:
        """Behind the end of the active segment."""
        active = self._segments[-1]
        if self._must_undo:
            self._undo_failed_append()
        try:
            active.append(block.buffers, block.size, block.records, self._segment_bytes)
        except OSError as error:
            raise self._write_failed(error, active.log_path) from error
        self._last_term, self._last_stored_at_ms = block.last.term, block.last.stored_at_ms
        self.verified.appended(active.base + active.end)

    def _open_with(self, segment: Segment, block: _Block) -> None:
        """Seals the active segment; the new one starts with these entries, or does not exist."""
        if self._must_undo:
            self._undo_failed_append()
        with self._sync_lock:
            try:
                segment.create()
                self._activate(segment)
                segment.append(block.buffers, block.size, block.records, self._segment_bytes)
            except OSError as error:
                raise self._roll_failed(error, segment) from error
            try:
                if self._segments:
                    self._segments[-1].seal()
            except OSError as error:
                raise self._stop(error, self._segments[-1].log_path) from error
            self._segments.append(segment)
            self.verified.sealed(segment.base)
            self._names_changed = True
        self._last_term, self._last_stored_at_ms = block.last.term, block.last.stored_at_ms

    def sync(self) -> int:
        """Returns `durable_offset` when everything appended before the call is durable. May run on
        any one thread.

        A failed sync is final: the kernel may have dropped the pages, so that a second try would
        succeed on nothing.
        """
        with self._sync_lock:
            self._check_usable()
            path = self._directory
            try:
                for segment in [s for s in self._segments if s.is_dirty]:
                    if self._names_changed:
                        self._names_changed = False
                        self._vfs.sync_dir(self._directory)
                    path = segment.log_path
                    segment.sync()
            except OSError as error:
                raise self._stop(error, path) from error
            return self.durable_offset

    def truncate(self, from_index: int) -> None:
        """Removes the entries from `from_index` on. The first entry of the log stays."""
        self._check_usable()
        if from_index > self.last_index:
            return
        if from_index <= self.first_index:
            raise OffsetOutOfRange(
                f"cannot truncate from {from_index}: the log starts at {self.first_index}"
            )
        with self._sync_lock:
            path = self._directory
            try:
                while self._segments[-1].first_index >= from_index:
                    path = self._segments[-1].log_path
                    self._remove(self._segments.pop())
                active = self._segments[-1]
                path = active.log_path
                if active.is_sealed:
                    active.unseal()
                    self._activate(active)
                active.truncate(from_index - active.first_index)
                self.damage.dropped(DamageKind.LOG, active.log_path, active.end)
                self.verified.cut(active.end_log_offset)
            except OSError as error:
                raise self._stop(error, path) from error
        last = self._segments[-1].records()[-1]
        self._last_term, self._last_stored_at_ms = int(last["term"]), int(last["stored_at_ms"])

    def start_over(self, first_index: int, log_offset: int) -> None:
        """Removes all entries. The next one, a checkpoint, will have this raft index and log
        offset; until it is there, a crash leaves a log that starts at 1 and 0.

        Newest segment first, each for good before the next: a crash leaves a shorter log.
        """
        if first_index < 1 or log_offset < 0:
            raise ValueError(f"a log cannot start at entry {first_index}, byte {log_offset}")
        self._check_usable()
        # What comes next must not stand behind a gap.
        self.remove_released()
        with self._sync_lock:
            while self._segments:
                path = self._segments[-1].log_path
                try:
                    self._remove(self._segments.pop())
                except OSError as error:
                    raise self._stop(error, path) from error
        self._origin = first_index, log_offset
        self.verified.start_at(log_offset)
        self._must_undo = False
        self._last_term = self._last_stored_at_ms = 0

    def drop_front(self, count: int) -> None:
        """Removes the first `count` segments, never the active one."""
        self.release_front(count)
        self.remove_released()

    def release_front(self, count: int) -> None:
        """The log starts behind its first `count` segments from now on, never behind the active
        one. Their files are there until `remove_released`.
        """
        count = max(0, min(count, len(self._segments) - 1))
        with self._sync_lock:
            for segment in self._segments[:count]:
                segment.close()
            self._released += self._segments[:count]
            del self._segments[:count]

    def remove_released(self) -> None:
        """Removes the files of released segments. Blocks on the disk; any thread. What stays is
        durable before anything goes. Oldest first, each for good before the next: a crash leaves no
        gap, and what it leaves is dropped again.
        """
        with self._removal_lock:
            if self._released:
                self.sync()
            while self._released:
                segment = self._released[0]
                try:
                    self._remove(segment)
                except OSError as error:
                    raise self._stop(error, segment.log_path) from error
                del self._released[0]

    # -- mending ----------------------------------------------------------------------------------

    def twin_at(self, base: int) -> Segment | None:
        """The segment that starts at this log offset, all of it, by a file of its own; None when
        it is gone.
        """
        found = self._segment_with(base)
        return found.twin(0, found.end) if found is not None else None

    def is_resting(self, base: int) -> bool:
        """Whether the segment is complete, and all of it durable."""
        segment = self._segment_with(base)
        return segment is not None and segment.is_sealed and not segment.is_dirty

    def replace_files(self, base: int, log_path: str | None, idx_path: str | None) -> bool:
        """Puts files of the same entries, made by `segment_mending`, in the place of a segment that
        is resting. False: it is gone, or in use.
        """
        self._check_usable()
        with self._sync_lock:
            segment = self._segment_with(base)
            if segment is None or not self.is_resting(base):
                return False
            try:
                segment.replace_files(log_path, idx_path)
            except OSError as error:
                raise self._stop(error, segment.log_path) from error
            self._mended(segment)
        return True

    def rewrite(self, base: int, position: int, data: bytes) -> bool:
        """Writes entries again that stand here already, in place; durable when this returns. Any
        thread. False: they have left the log.
        """
        self._check_usable()
        with self._sync_lock:
            segment = self._segment_with(base)
            if segment is None or position + len(data) > segment.end:
                return False
            header = decode_header(data)
            number, records = segment.records_between(position, position + len(data))
            expected = segment.first_index + number, int(records["term"][0])
            if header is None or (header.raft_index, header.term) != expected:
                return False
            try:
                with contextlib.closing(self._vfs.open(segment.log_path)) as file:
                    file.pwritev([data], position)
                    file.sync()
            except OSError as error:
                raise self._stop(error, segment.log_path) from error
            self._mended(segment)
        return True

    def _mended(self, segment: Segment) -> None:
        self.mends += 1
        self.verified.discard(segment.base, segment.end_log_offset)

    def _segment_with(self, base: int) -> Segment | None:
        return next((one for one in self._segments if one.base == base), None)

    def close(self) -> None:
        """Closes the files; syncs nothing."""
        with self._sync_lock:
            if self._executor is not None:
                self._executor.shutdown()
            for segment in self._segments:
                segment.close()

    # -- inside -----------------------------------------------------------------------------------

    def _remove(self, segment: Segment) -> None:
        segment.remove()
        self.damage.dropped(DamageKind.LOG, segment.log_path)

    def _encode(
        self, entries: Sequence[NewEntry], segment: Segment
    ) -> tuple[list[EntryRef], _Block]:
        refs: list[EntryRef] = []
        buffers: list[bytes | memoryview] = []
        records = b""
        raft_index, position = segment.first_index + segment.count, segment.end
        last_term, stored_at_ms = self._last_term, self._last_stored_at_ms
        for kind, term, wanted_ms, payload in entries:
            length = sum(map(len, payload))
            if length > PAYLOAD_BYTES_MAX:
                raise MessageTooLarge(
                    f"an entry of {length} bytes: at most {PAYLOAD_BYTES_MAX} are legal"
                )
            if term < last_term:
                raise ValueError(f"term {term} after term {last_term}")
            if kind == Kind.CHECKPOINT and raft_index != segment.first_index:
                raise ValueError("a checkpoint opens a segment: roll")
            last_term = term
            stored_at_ms = max(stored_at_ms, wanted_ms)
            buffers.append(encode_header(kind, raft_index, term, stored_at_ms, payload, length))
            buffers.extend(payload)
            records += pack_idx_record(position, length, term, stored_at_ms)
            refs.append(
                EntryRef(raft_index, term, kind, stored_at_ms, segment.base + position, length)
            )
            raft_index += 1
            position += HEADER_BYTES + length
        return refs, _Block(buffers, position - segment.end, records, refs[-1])

    def _activate(self, segment: Segment) -> None:
        if segment.is_sealed:
            segment.unseal()
        segment.make_writable(self._segment_bytes, zeros=self._zero_ahead, executor=self._executor)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write_failed(self, error: OSError, path: str) -> MqError:
        """A shortage is a state of the disk or the process and passes; anything else is a state of
        the file and does not.
        """
        if is_shortage(error):
            self._must_undo = True
            return DiskFull(
                f"{shortage(error)} to write {path}: free some or extend it; reads go on"
            )
        return self._stop(error, path)

    def _undo_failed_append(self) -> None:
        active = self._segments[-1]
        try:
            active.undo()
        except OSError as error:
            raise self._stop(error, active.log_path) from error
        self._must_undo = False

    def _roll_failed(self, error: OSError, segment: Segment) -> MqError:
        """Removes the new segment for good, so that a crash cannot bring it back in the place of
        the entries that come next.
        """
        failure = self._write_failed(error, segment.log_path)
        self._must_undo = False
        try:
            segment.remove()
        except OSError as second:
            return self._stop(second, segment.log_path)
        return failure

    def _stop(self, error: OSError, path: str) -> MqError:
        self._failure = StorageFailed(
            f"{path}: {error.strerror or error}. Its content is unknown now, "
            "so the node has to stop; check the disk"
        )
        return self._failure
