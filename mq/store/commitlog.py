"""The one sequential log: entries with consecutive raft indexes in segments, appended, synced, cut,
dropped from the front.

Invariants: indexes are contiguous from `first_index` to `last_index`; log offsets are contiguous
over segments; `stored_at_ms` and terms never go backwards; each segment opens with a checkpoint;
`durable_offset <= end_offset`. The log does not know what an entry means, when to sync, or what is
committed.

One thread appends, rolls, truncates and drops; `sync` may run on another one; reads may run on any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from mq.errors import (
    DiskFull,
    MessageTooLarge,
    MqError,
    OffsetOutOfRange,
    SegmentFull,
    StorageFailed,
)
from mq.store.format import HEADER_BYTES, Kind, encode_header, pack_idx_record
from mq.store.logreader import EntryRef, LogReader
from mq.store.recovery import recover
from mq.store.scan import PAYLOAD_BYTES_MAX
from mq.store.segment import Segment
from mq.store.vfs import Vfs, is_no_space


class NewEntry(NamedTuple):
    kind: Kind
    term: int
    stored_at_ms: int
    payload: Sequence[bytes | memoryview]


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
        self._must_undo = False
        # Held while files are synced, and by whatever would pull them away from under a sync.
        self._sync_lock = threading.Lock()
        if not vfs.exists(directory):
            vfs.make_dirs(directory)
            vfs.sync_dir(os.path.dirname(directory) or ".")
        segments, self.recovery = recover(vfs, directory, verify_bytes, self._executor)
        super().__init__(segments)
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
        for segment in self._segments:
            if segment.is_dirty:
                return segment.base + segment.synced
        return self.end_offset

    # -- writing ----------------------------------------------------------------------------------

    def append(self, entries: Sequence[NewEntry]) -> list[EntryRef]:
        """Writes the entries, in one write, behind the last one. Durable after the next `sync`.

        Times that would go backwards are lifted to the last entry's. SegmentFull: `roll` first.
        DiskFull: nothing was written. StorageFailed: stop the node.
        """
        self._check_usable()
        if not self._segments:
            raise SegmentFull("the log is empty and has to open with a checkpoint: roll first")
        active = self._segments[-1]
        refs, buffers, records, size = self._encode(entries, active)
        # A segment that holds only its checkpoint takes any entry, so that rolling always helps.
        if active.count > 1 and active.end + size > self._segment_bytes:
            raise SegmentFull(f"{size} bytes do not fit {active.log_path}, which has {active.end}")
        self._undo_failed_append()
        try:
            active.append(buffers, size, records, self._segment_bytes)
        except OSError as error:
            raise self._write_failed(error, active.log_path) from error
        if refs:
            self._last_term, self._last_stored_at_ms = refs[-1].term, refs[-1].stored_at_ms
        return refs

    def roll(self, checkpoint: NewEntry) -> EntryRef:
        """Seals the active segment and opens a new one with this checkpoint entry. Errors as for
        `append`.
        """
        self._check_usable()
        if checkpoint.kind != Kind.CHECKPOINT:
            raise ValueError("a segment opens with a checkpoint")
        segment = Segment(self._vfs, self._directory, self.end_offset, self.last_index + 1)
        refs, buffers, records, size = self._encode([checkpoint], segment)
        self._undo_failed_append()
        with self._sync_lock:
            try:
                segment.create()
                self._activate(segment)
                segment.append(buffers, size, records, self._segment_bytes)
            except OSError as error:
                raise self._roll_failed(error, segment) from error
            try:
                if self._segments:
                    self._segments[-1].seal()
            except OSError as error:
                raise self._stop(error, self._segments[-1].log_path) from error
            self._segments.append(segment)
            self._names_changed = True
        self._last_term, self._last_stored_at_ms = refs[0].term, refs[0].stored_at_ms
        return refs[0]

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
                    self._segments.pop().remove()
                active = self._segments[-1]
                path = active.log_path
                if active.is_sealed:
                    active.unseal()
                    self._activate(active)
                active.truncate(from_index - active.first_index)
            except OSError as error:
                raise self._stop(error, path) from error
        last = self._segments[-1].records()[-1]
        self._last_term, self._last_stored_at_ms = int(last["term"]), int(last["stored_at_ms"])

    def drop_front(self, count: int) -> None:
        """Removes the first `count` segments, never the active one. What stays is durable before
        anything goes. Oldest first, each for good before the next: a crash leaves no gap.
        """
        count = min(count, len(self._segments) - 1)
        if count > 0:
            self.sync()
        with self._sync_lock:
            for _ in range(count):
                segment = self._segments.pop(0)
                try:
                    segment.remove()
                except OSError as error:
                    raise self._stop(error, segment.log_path) from error

    def close(self) -> None:
        """Closes the files; syncs nothing."""
        with self._sync_lock:
            if self._executor is not None:
                self._executor.shutdown()
            for segment in self._segments:
                segment.close()

    # -- inside -----------------------------------------------------------------------------------

    def _encode(
        self, entries: Sequence[NewEntry], segment: Segment
    ) -> tuple[list[EntryRef], list[bytes | bytearray | memoryview], bytes, int]:
        refs: list[EntryRef] = []
        buffers: list[bytes | bytearray | memoryview] = []
        records: list[bytes] = []
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
            records.append(pack_idx_record(position, length, term, stored_at_ms))
            refs.append(
                EntryRef(raft_index, term, kind, stored_at_ms, segment.base + position, length)
            )
            raft_index += 1
            position += HEADER_BYTES + length
        return refs, buffers, b"".join(records), position - segment.end

    def _activate(self, segment: Segment) -> None:
        if segment.is_sealed:
            segment.unseal()
        segment.make_writable(self._segment_bytes, zeros=self._zero_ahead, executor=self._executor)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write_failed(self, error: OSError, path: str) -> MqError:
        """No space is a state of the disk and passes; anything else is a state of the file and does
        not.
        """
        if is_no_space(error):
            self._must_undo = True
            return DiskFull(f"no space to write {path}: free some or extend the disk; reads go on")
        return self._stop(error, path)

    def _undo_failed_append(self) -> None:
        if not self._must_undo:
            return
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
