"""Damaged files of queues and index are rebuilt from the log while the node runs.

A reader that meets a block which fails its checksum reports it here and gets Rebuilding: ask again.
The file is mended on a thread of its own, one file at a time: all of its bad blocks are found, made
again from a part of the log that is opened apart, written by the thread that writes all derived
files, and read back. Nothing else waits: other queues are served meanwhile, and what is appended
stands behind the blocks that are mended.

A file that cannot be rebuilt, because the log itself is damaged there, is not tried again before
something of the log was mended; its readers get QueueDamaged. Without a thread, for simulations, a
file is mended at once and the reader has to ask again all the same.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import numpy as np

from mq.errors import MqError, QueueDamaged, Rebuilding
from mq.logging import get_logger
from mq.store.consumequeue import UNIT, DamagedFile
from mq.store.damage import Damage, DamageKind, DamageLog
from mq.store.derived import DerivedFiles
from mq.store.filepool import PendingWrite
from mq.store.keyindex import DamagedIndexFile, item_blocks, slot_blocks
from mq.store.logreader import LogWalk
from mq.store.rebuilding import (
    KnownUnit,
    StartHeldReplay,
    Stretch,
    rebuild_index_file,
    rebuild_units,
)
from mq.store.rowblocks import BadRows, RowBlocks, RowsDamaged, Tail
from mq.store.vfs import File, Vfs, is_shortage
from mq.store.writeback import Writeback

log = get_logger(__name__)

# A rest after so many entries, for so long.
_ENTRIES_EACH, _REST_S = 64, 0.001


class TailChange(NamedTuple):
    """The last block of a queue was mended, and some of its units, whose messages are gone from the
    log, are not what they were: so its checksum is another one.
    """

    topic: str
    queue_id: int
    rows: int  # of the file that holds the block, when it was mended
    first: int  # queue offset of the file's first unit
    before: int
    after: int


class _Failure(NamedTuple):
    text: str
    log_mended: int  # how much of the log had been mended by then


class _Void(Exception):
    """The result is not needed any longer."""


_Mend: TypeAlias = "Callable[[_Job, LogWalk], TailChange | None]"


class Mending:
    def __init__(
        self,
        vfs: Vfs,
        walk: Callable[[], LogWalk],
        derived: DerivedFiles,
        damage: DamageLog,
        start_held_replay: StartHeldReplay,
        *,
        background: bool,
    ) -> None:
        self._vfs = vfs
        self._walk = walk
        self._queues = derived.queues
        self._writeback = derived.writeback
        self._damage = damage
        self._start_held_replay = start_held_replay
        self._background = background
        self._closing = threading.Event()
        self._executor: ThreadPoolExecutor | None = None
        # Goes up when the files are dropped: what is under way is void then.
        self._generation = 0
        # Guards what is below, which both threads change.
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._failures: dict[str, _Failure] = {}
        self._tails: list[TailChange] = []
        derived.queues.watch(self.queue_damaged)
        derived.index.on_damage = self.index_damaged

    # -- from readers, by the thread that owns the store ------------------------------------------

    def queue_damaged(self, file: DamagedFile) -> MqError:
        position = file.blocks.position(file.bad.first)
        reason = "units are not what was written"
        damage = Damage(DamageKind.QUEUE, file.path, position, reason, affected=file.affected)
        if self._correct_tails():
            return _rebuilding(file.affected)
        return self._begin(file, damage, lambda job, walk: self._mend_queue(job, walk, file))

    def index_damaged(self, file: DamagedIndexFile) -> MqError:
        header = file.header
        affected = (
            f"keys of messages at log offsets {header.first_log_offset} to {header.last_log_offset}"
        )
        damage = Damage(
            DamageKind.INDEX,
            file.path,
            file.blocks.position(file.bad.first),
            "slots or items are not what was written",
            header.first_log_offset,
            header.last_log_offset,
            affected,
        )
        return self._begin(file, damage, lambda job, walk: self._mend_index(job, walk, file))

    def _correct_tails(self) -> bool:
        """Whether there were any: a reader that met a wrong checksum may have met one of these."""
        with self._lock:
            changes, self._tails = self._tails, []
        for change in changes:
            self._queues.correct_tail(*change)
        return bool(changes)

    def _begin(self, file: DamagedFile | DamagedIndexFile, damage: Damage, mend: _Mend) -> MqError:
        path = damage.path
        with self._lock:
            if path not in self._running and not self._is_damaged(file):
                # It was mended since the reader read it.
                return _rebuilding(damage.affected)
            self._damage.found(damage)
            failure = self._failures.get(path)
            if failure and failure.log_mended == self._damage.mended_total[DamageKind.LOG]:
                return QueueDamaged(f"{damage.affected}: {failure.text}")
            if path in self._running:
                return _rebuilding(damage.affected)
            self._running.add(path)
            self._failures.pop(path, None)
        job = _Job(damage, self._vfs, self._writeback, self._wanted_now(), self._rest)
        walk = self._walk()
        if not self._background:
            self._run(job, mend, walk)
            self._correct_tails()
        else:
            self._executor = self._executor or ThreadPoolExecutor(1, "mq-mending")
            self._executor.submit(self._run, job, mend, walk)
        return _rebuilding(damage.affected)

    def _is_damaged(self, file: DamagedFile | DamagedIndexFile) -> bool:
        """Reads again what a reader found."""
        try:
            with contextlib.closing(self._vfs.open(file.path, read_only=True)) as handle:
                file.blocks.read(handle, file.bad.first, file.bad.end, file.tail)
        except (RowsDamaged, OSError):
            return True
        return False

    def _rest(self) -> None:
        """The loop gets the processor in between."""
        if self._background:
            self._closing.wait(_REST_S)

    def _wanted_now(self) -> Callable[[], bool]:
        """Says whether what is begun now is still wanted."""
        generation = self._generation
        return lambda: generation == self._generation

    def void(self) -> None:
        """All derived files are dropped: so is their damage, and what is being mended."""
        self._generation += 1
        with self._lock:
            self._failures.clear()
            self._tails.clear()
        self.dropped({one.path for one in self._damage.records() if one.kind != DamageKind.LOG})

    def dropped(self, paths: Iterable[str]) -> None:
        """These files are gone, with all that is wrong with them."""
        damaged = {one.path for one in self._damage.records()}
        for path in damaged.intersection(paths):
            for kind in (DamageKind.QUEUE, DamageKind.INDEX):
                self._damage.dropped(kind, path)

    def close(self) -> None:
        self._generation += 1
        self._closing.set()
        if self._executor is not None:
            self._executor.shutdown()

    # -- on the thread ----------------------------------------------------------------------------

    def _run(self, job: _Job, mend: _Mend, walk: LogWalk) -> None:
        kind, path = job.damage.kind, job.damage.path
        change, failure, is_mended = None, "", False
        try:
            with contextlib.closing(walk):
                change = mend(job, walk)
            is_mended = True
        except _Void:
            pass
        except (MqError, OSError) as error:
            # A full disk passes, and so does a segment that retention took meanwhile: the next
            # reader begins again.
            if not (isinstance(error, OSError) and (is_shortage(error) or _is_gone(error))):
                failure = f"cannot be rebuilt from the log: {error}"
            log.warning("a damaged file cannot be rebuilt", file=path, error=str(error))
        except Exception:
            failure = "cannot be rebuilt from the log; the broker's log says why"
            log.exception("a damaged file cannot be rebuilt", file=path)
        with self._lock:
            self._running.discard(path)
            if not job.is_wanted():
                return
            if change is not None:
                self._tails.append(change)
            if failure:
                log_mended = self._damage.mended_total[DamageKind.LOG]
                self._failures[path] = _Failure(failure, log_mended)
            if is_mended:
                self._damage.mended(kind, path)

    def _mend_queue(self, job: _Job, walk: LogWalk, file: DamagedFile) -> TailChange | None:
        """Rebuilds all damaged blocks of the file, not only the reported one."""
        bad = job.bad_rows([(file.blocks, file.tail)])[0]
        if not bad:
            return None
        first, end = bad[0].first, bad[-1].end
        wanted = Stretch(
            file.topic,
            file.queue_id,
            max(file.first + first, file.start),
            max(file.first + end, file.start),
        )
        # What stands before the queue's start is gone from the log, and is not read.
        units = np.zeros(end - first, UNIT)
        if wanted.start < wanted.end:
            known = self._unit_before(job, file, first) if file.first + first > file.start else None
            rebuilt = rebuild_units(walk, wanted, known, self._start_held_replay, job.step)
            units[len(units) - len(rebuilt) :] = rebuilt
        tail = file.tail
        writes = []
        for part in bad:
            content, tail = file.blocks.encode(
                lambda begin, end: [units[begin - first : end - first]],
                Tail(part.first, 0),
                part.end,
            )
            writes.append(PendingWrite(file.path, file.blocks.position(part.first), content))
        # A tail that ends a complete block has no checksum of its own.
        after = Tail(file.tail.rows, tail.crc if end == file.tail.rows else file.tail.crc)
        job.write(writes)
        job.check([(file.blocks, after)])
        log.warning(
            "queue rebuilt from the log",
            topic=file.topic,
            queue=file.queue_id,
            first_offset=wanted.start,
            end_offset=wanted.end,
            blocks=len(bad),
        )
        if after == file.tail:
            return None
        crcs = file.tail.crc, after.crc
        return TailChange(file.topic, file.queue_id, file.tail.rows, file.first, *crcs)

    def _unit_before(self, job: _Job, file: DamagedFile, row: int) -> KnownUnit | None:
        if row == 0:
            return None
        with job.opened() as handle:
            unit = file.blocks.read(handle, row - 1, row, file.tail)
        return KnownUnit(file.first + row - 1, int(unit["log_offset"][0]))

    def _mend_index(self, job: _Job, walk: LogWalk, file: DamagedIndexFile) -> None:
        header = file.header
        filling = rebuild_index_file(walk, header, job.step)
        content, tail = filling.blocks.encode(filling.newest.read, Tail(0, 0), file.written)
        writes = [PendingWrite(file.path, filling.blocks.position(0), content)]
        parts = [(filling.blocks, tail)]
        if file.is_full:
            writes += filling.closing_writes(file.path)
            items = item_blocks(header.slots, header.items)
            slots = slot_blocks(header.slots)
            parts = [(slots, Tail(header.slots, 0)), (items, Tail(header.items, 0))]
        job.write(writes)
        job.check(parts)
        log.warning(
            "key index rebuilt from the log",
            file=file.path,
            items=file.written,
            first_log_offset=header.first_log_offset,
            last_log_offset=header.last_log_offset,
        )


class _Job:
    """One file that is being mended."""

    def __init__(
        self,
        damage: Damage,
        vfs: Vfs,
        writeback: Writeback,
        is_wanted: Callable[[], bool],
        rest: Callable[[], object],
    ) -> None:
        self.damage = damage
        self.is_wanted = is_wanted
        self._vfs = vfs
        self._writeback = writeback
        self._rest = rest
        self._entries = 0

    def step(self) -> None:
        """For each entry of the log that was read."""
        self._entries += 1
        if not self.is_wanted():
            raise _Void
        if self._entries % _ENTRIES_EACH == 0:
            self._rest()

    def opened(self) -> contextlib.closing[File]:
        return contextlib.closing(self._vfs.open(self.damage.path, read_only=True))

    def bad_rows(self, parts: Sequence[tuple[RowBlocks, Tail]]) -> list[list[BadRows]]:
        """The damaged rows of each part; all rows if the file is missing."""
        try:
            with self.opened() as file:
                return [blocks.bad(file, tail) for blocks, tail in parts]
        except FileNotFoundError:
            return [[BadRows(0, tail.rows)] for _, tail in parts]

    def write(self, writes: Sequence[PendingWrite]) -> None:
        # Behind a start over, the file of this name is another one.
        self._writeback.rewrite(writes, self.is_wanted).result()
        if not self.is_wanted():
            raise _Void

    def check(self, parts: Sequence[tuple[RowBlocks, Tail]]) -> None:
        if any(self.bad_rows(parts)):
            raise QueueDamaged(f"{self.damage.path} does not keep what is written to it")


def _is_gone(error: OSError) -> bool:
    return error.errno == errno.ENOENT


def _rebuilding(affected: str) -> Rebuilding:
    return Rebuilding(f"{affected}: being rebuilt from the log, ask again in a moment")
