"""A state machine that only counts: how many entries, and a digest of all of them in order.

It restores itself from the checkpoint that opens the log, or from one of its own that it saves now
and then, as the store does with its derived files.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from zlib import crc32

from mq.errors import DiskFull
from mq.store.format import Kind
from mq.store.vfs import Vfs, write_file_atomically
from mq.wire.v1.log_pb2 import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.store.commitlog import CommitLog
    from mq.store.logreader import Entry, EntryRef

_STATE = struct.Struct("<QI")
_SAVED = struct.Struct("<QQQI")


class CountingMachine:
    def __init__(
        self,
        vfs: Vfs,
        path: str,
        log: CommitLog,
        on_apply: Callable[[Entry], None],
    ) -> None:
        self.applied_index = 0
        self.count = 0
        self.digest = 0
        self.is_full = False
        self._vfs = vfs
        self._path = path
        self._log = log
        self._on_apply = on_apply
        if log.last_index >= log.first_index and not self._restore_saved():
            self._restore_first()

    def checkpoint_payload(self) -> list[bytes]:
        state = _STATE.pack(self.count, self.digest)
        return [Checkpoint(broker_state=state).SerializeToString()]

    def check_writable(self) -> None:
        if self.is_full:
            raise DiskFull("the simulated disk is nearly full")

    def appended(self, ref: EntryRef, context: object) -> None:
        pass

    def apply_through(self, raft_index: int) -> None:
        for entry in self._log.entries(self.applied_index + 1, raft_index + 1):
            if entry.ref.raft_index != self.applied_index + 1:
                raise AssertionError(f"{entry.ref} after {self.applied_index}")
            self.applied_index += 1
            if entry.ref.kind == Kind.CHECKPOINT and self.applied_index > 1:
                self._check_checkpoint(entry)
            elif entry.ref.kind in (Kind.MESSAGES, Kind.COMMAND):
                self.count += 1
                self.digest = crc32(entry.payload, self.digest)
            self._on_apply(entry)

    def forget(self, from_index: int) -> None:
        if from_index <= self.applied_index:
            raise AssertionError(f"entry {from_index} goes, {self.applied_index} are applied")

    def start_over(self) -> None:
        self._vfs.remove(self._path)
        self._restore_first()

    def save(self) -> None:
        """Durable; the log goes first."""
        self._log.sync()
        term = self._log.term_at(self.applied_index)
        saved = _SAVED.pack(self.applied_index, term, self.count, self.digest)
        write_file_atomically(self._vfs, self._path, [saved])

    def _restore_saved(self) -> bool:
        if self._vfs.file_size(self._path) != _SAVED.size:
            return False
        file = self._vfs.open(self._path, read_only=True)
        index, term, count, digest = _SAVED.unpack(file.pread(_SAVED.size, 0))
        file.close()
        log = self._log
        if not log.first_index <= index <= log.last_index or log.term_at(index) != term:
            return False
        self.applied_index, self.count, self.digest = index, count, digest
        return True

    def _restore_first(self) -> None:
        entry = self._log.entry(self._log.first_index)
        checkpoint = Checkpoint.FromString(bytes(entry.payload))
        self.applied_index = entry.ref.raft_index
        self.count, self.digest = _STATE.unpack(checkpoint.broker_state)
        self._on_apply(entry)

    def _check_checkpoint(self, entry: Entry) -> None:
        checkpoint = Checkpoint.FromString(bytes(entry.payload))
        if checkpoint.broker_state != _STATE.pack(self.count, self.digest):
            raise AssertionError(f"the checkpoint {entry.ref} is not the state before it")
