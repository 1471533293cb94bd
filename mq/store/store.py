"""The store of one node: the CommitLog and everything that is derived from it.

    log.append      writes an entry; it is not visible yet
    log.sync        makes the log durable; `Flusher` does it for many at once
    committed       entries to be applied, in order; the caller puts their batches into `derived`,
                    which gives queue offsets and makes them visible, and calls `set_applied`
    checkpoint      makes derived files durable, so that a start replays only what came later

Invariants: checkpointed <= applied_index <= log.last_index. The store reads no clock. One thread
owns it; `log.sync`, `write_checkpoint` and reads of the log may run on others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from mq.config import StoreConfig
from mq.errors import DiskFull, MqError, StorageFailed
from mq.logging import get_logger
from mq.store import checkpoint, identity, retention
from mq.store.batch import Batch, data_offsets, decode_payload
from mq.store.commitlog import CommitLog
from mq.store.consumequeue import QueueExtent
from mq.store.damage import DamageLog
from mq.store.derived import CheckpointPlan, DerivedFiles
from mq.store.format import HEADER_BYTES, Kind
from mq.store.logreader import EntryRef, LogWalk
from mq.store.lookup import Lookup
from mq.store.mending import Mending
from mq.store.reading import Found, ReadResult, Status, find_in_queue
from mq.store.rebuilding import DefaultHeldReplay, StartHeldReplay
from mq.store.vfs import DiskUsage, Vfs, is_shortage, shortage

log = get_logger(__name__)


class CommittedEntry(NamedTuple):
    """An entry to be applied: its batches, each with its log offset; and its command, or for an
    entry that was written here, the `context` that its owner gave with it.
    """

    ref: EntryRef
    batches: list[tuple[Batch, int]]
    command: bytes = b""
    context: Any = None


class Dropped(NamedTuple):
    """The result of retention: the queues whose start moved, with the new start."""

    segments: int
    reason: retention.Reason | None
    moved: list[QueueExtent]


class Store:
    def __init__(  # noqa: PLR0913 - what its owner decides, each with its default
        self,
        vfs: Vfs,
        directory: str,
        config: StoreConfig,
        node: identity.Identity,
        *,
        broker_state: Callable[[], bytes] = bytes,
        background: bool = True,
        damage: DamageLog | None = None,
        start_held_replay: StartHeldReplay = DefaultHeldReplay,
    ) -> None:
        """Takes the directory, checks the log, restores the derived state of the last checkpoint.

        Nothing behind `applied_index` is visible yet: apply what `committed` returns.
        `broker_state` gives what a checkpoint keeps for the broker; what the last one kept is in
        `restored_broker_state`. `background` False: no threads, for simulations. `damage` records
        files that do not hold what was written. `start_held_replay` is used when a part of an
        internal queue is rebuilt.
        """
        self.damage = damage or DamageLog()
        self._vfs = vfs
        self._directory = directory
        self._config = config
        self._broker_state = broker_state
        self._is_disk_nearly_full = self._ignores_disk_limit = False
        # Entries that were appended here, so that applying them does not read them again.
        self._unapplied: dict[int, CommittedEntry] = {}
        try:
            self._lock = identity.take(vfs, directory, node)
        except OSError as error:
            raise _unusable(directory, error) from error
        try:
            self.derived = DerivedFiles(
                vfs,
                directory,
                queue_file_units=config.queue_file_units,
                index_slots=config.index_slots,
                index_items=config.index_items,
                background=background,
            )
            self.log = CommitLog(
                vfs,
                f"{directory}/commitlog",
                segment_bytes=config.segment_bytes,
                verify_bytes=config.verify_bytes,
                zero_ahead=config.flush == "sync",
                background=background,
                damage=self.damage,
            )
            self.applied_index, self.restored_broker_state = self.derived.restore(self.log)
        except OSError as error:
            self._lock.close()
            raise _unusable(directory, error) from error
        except BaseException:
            self._lock.close()
            raise
        self.queues = self.derived.queues
        self._mending = Mending(
            vfs, self._walk, self.derived, self.damage, start_held_replay, background=background
        )
        self.lookup = Lookup(self.log, self.queues, self.derived.index)
        self._checkpointed_offset = self._applied_offset()

    # -- writing ----------------------------------------------------------------------------------

    def appended(self, ref: EntryRef, batches: Sequence[Batch], context: Any = None) -> None:
        """An entry of these batches, or of another kind and without any, was written to the log by
        its owner: applying it will not read it again, and comes with this context.
        """
        if ref.raft_index > self.applied_index:
            offsets = data_offsets(batches, ref.log_offset + HEADER_BYTES)
            placed = list(zip(batches, offsets, strict=True))
            self._unapplied[ref.raft_index] = CommittedEntry(ref, placed, b"", context)

    def _walk(self) -> LogWalk:
        return self.log.apart_through(self.applied_index)

    def checkpoint_payload(self) -> list[bytes]:
        """The payload of a checkpoint entry right behind `applied_index`, in parts."""
        return checkpoint.encode_entry(self.queues.extents(), self._broker_state())

    def committed(self, raft_index: int) -> Iterator[CommittedEntry]:
        """The entries behind `applied_index` up to this one, which must be committed and durable.
        The caller applies each, says so with `set_applied`, and only then asks for the next.
        """
        end = min(raft_index, self.log.last_index) + 1
        while self.applied_index + 1 < end:
            appended = self._unapplied.pop(self.applied_index + 1, None)
            if appended is not None:
                yield appended
                continue
            # At most up to the next entry that is remembered.
            stop = min(end, next(iter(self._unapplied), end))
            for ref, payload in self.log.entries(self.applied_index + 1, stop):
                yield _decoded(ref, payload)

    def set_applied(self, ref: EntryRef) -> None:
        """The batches of the entry are in `derived`, and visible. StorageFailed: stop the node."""
        self.applied_index = ref.raft_index
        self.derived.write_surplus()

    def forget(self, from_index: int) -> None:
        """The log was truncated from here on by its owner."""
        if from_index <= self.applied_index:
            raise ValueError(f"entry {from_index} is applied (up to {self.applied_index})")
        for raft_index in [index for index in self._unapplied if index >= from_index]:
            del self._unapplied[raft_index]

    def start_over(self) -> None:
        """The log was replaced by its owner, with `CommitLog.start_over` and `extend`: everything
        derived is dropped, and restored from the checkpoint that opens the log, which is applied.

        Waits for writes that are under way. A crash at any point leaves a directory that opens on
        whatever log is there. ValueError when the log is empty; StorageFailed: stop the node.
        """
        if self.log.last_index < self.log.first_index:
            raise ValueError("an empty log has no checkpoint to start over from")
        self._unapplied.clear()
        self._mending.void()
        self.applied_index, self.restored_broker_state = self.derived.start_over(self.log)
        self._checkpointed_offset = self._applied_offset()

    def check_writable(self) -> None:
        """Raises DiskFull while writes are refused; callers that write to the log themselves call
        it first.
        """
        self.derived.check_usable()
        if self._is_disk_nearly_full and not self._ignores_disk_limit:
            raise DiskFull(
                f"the disk of {self._directory} is nearly full: free some space or extend it; "
                "writes are refused, reads go on"
            )
        if self.derived.is_stalled:
            self.derived.write_surplus()
        if self.derived.is_stalled:
            raise DiskFull(f"no space for the queues in {self._directory}: reads go on")

    def settle(self) -> None:
        """Waits until queues and index hold no more in memory than they may at rest."""
        self.derived.write_surplus()
        self.derived.settle()

    # -- reading ----------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        bytes_max: int = 4 << 20,
        messages_max: int = 1 << 18,
        tag_hashes: Collection[int] = (),
    ) -> ReadResult:
        """Messages of a queue as slices of the log; see `reading`."""
        found = self.find(
            topic,
            queue_id,
            queue_offset,
            bytes_max=bytes_max,
            messages_max=messages_max,
            tag_hashes=tag_hashes,
        )
        return found.read(self.log.read_ranges) if isinstance(found, Found) else found

    def find(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        bytes_max: int = 4 << 20,
        messages_max: int = 1 << 18,
        tag_hashes: Collection[int] = (),
    ) -> ReadResult | Found:
        """The first step of `read`: where the messages are. `Found.read(store.log.read_ranges)` is
        the second, or on another thread with `LogReader.apart`.
        """
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return ReadResult(Status.NO_QUEUE, [], 0, 0, 0)
        return find_in_queue(
            self.log,
            queue,
            queue_offset,
            bytes_max=bytes_max,
            messages_max=messages_max,
            tag_hashes=tag_hashes,
        )

    def offset_at_time(self, topic: str, queue_id: int, stored_at_ms: int) -> int | None:
        """Queue offset of the first message stored at this time or later, or the queue's end.

        None when there is no such queue.
        """
        queue = self.queues.get(topic, queue_id)
        return queue.first_at(self.log.offset_at_time(stored_at_ms)) if queue else None

    def messages_between(self, start: int, end: int) -> Iterator[QueueExtent | None]:
        """The messages between these log offsets, by the queues alone: a queue and its offsets
        [start, end), or None for a queue that has none there, so that a caller can pause.
        """
        for topic, queue_id, *_ in self.queues.extents():
            queue = self.queues.get(topic, queue_id)
            first, last = (queue.first_at(start), queue.first_at(end)) if queue else (0, 0)
            yield QueueExtent(topic, queue_id, first, last) if first < last else None

    # -- checkpoints ------------------------------------------------------------------------------

    @property
    def is_checkpoint_due(self) -> bool:
        """There is much to replay, or files to get rid of."""
        if not self.log.first_index <= self.applied_index <= self.log.last_index:
            return False  # nothing is applied yet, or the log is just being replaced
        behind = self._applied_offset() - self._checkpointed_offset
        return behind >= self._config.checkpoint_log_bytes or self.derived.has_surplus

    def checkpoint(self) -> None:
        """Derived files are durable up to `applied_index` when this returns."""
        plan = self.plan_checkpoint()
        self.write_checkpoint(plan)
        self.finish_checkpoint(plan)

    def plan_checkpoint(self) -> CheckpointPlan:
        term = self.log.term_at(self.applied_index) if self.applied_index else 0
        return self.derived.plan_checkpoint(self.applied_index, term, self._broker_state())

    def write_checkpoint(self, plan: CheckpointPlan) -> None:
        """Blocks on the disk; any thread. The log goes first: nothing may speak of what it lost."""
        self.log.sync()
        self.derived.write_checkpoint(plan)

    def finish_checkpoint(self, plan: CheckpointPlan) -> None:
        self.derived.finish_checkpoint(plan)
        self._mending.dropped(plan.surplus)
        if self.derived.is_current(plan):
            self._checkpointed_offset = self._offset_of(plan.state.raft_index)

    def _applied_offset(self) -> int:
        return self._offset_of(self.applied_index)

    def _offset_of(self, raft_index: int) -> int:
        if raft_index < self.log.first_index:
            return self.log.start_offset
        return self.log.place_of(raft_index)[0]

    # -- retention --------------------------------------------------------------------------------

    def expiring_before(self, policy: retention.Policy, now_ms: int) -> int:
        """Log offset before which everything may go by this policy; 0: nothing."""
        infos = self.log.segments()
        count = self._expired(policy, now_ms).segments
        return infos[count].base_log_offset if count else 0

    def retain(
        self,
        policy: retention.Policy,
        now_ms: int,
        is_needed_before: Callable[[int], bool] = lambda _: False,
    ) -> Dropped:
        """Drops what the policy lets go, and refuses or allows writes by the use of the disk. What
        is needed before some log offset stays, whatever the policy says. The files of what is
        dropped go with `log.remove_released`, which the caller has to call.
        """
        count, reason = self._expired(policy, now_ms)
        dropped = self._release_front(count, reason, is_needed_before)
        disk = self._vfs.disk_usage(self._directory)
        is_nearly_full = retention.refuses_writes(policy, disk)
        if is_nearly_full != self._is_disk_nearly_full:
            self._is_disk_nearly_full = is_nearly_full
            event = "disk nearly full, writes are refused" if is_nearly_full else "writes go on"
            used = round(disk.used_ratio, 3)
            log.warning(event, used_ratio=used, limit=policy.refuse_writes_ratio)
        return dropped

    def disk_usage(self) -> DiskUsage:
        """Of the disk that the data directory is on."""
        return self._vfs.disk_usage(self._directory)

    def _expired(self, policy: retention.Policy, now_ms: int) -> retention.Decision:
        disk = self._vfs.disk_usage(self._directory)
        return retention.expired_segments(self.log.segments(), now_ms, policy, disk)

    @contextlib.contextmanager
    def ignoring_disk_limit(self) -> Iterator[None]:
        """Inside, a nearly full disk refuses no write: the entries written here make room."""
        self._ignores_disk_limit = True
        try:
            yield
        finally:
            self._ignores_disk_limit = False

    def drop_front(
        self,
        count: int,
        reason: retention.Reason | None = None,
        is_needed_before: Callable[[int], bool] = lambda _: False,
    ) -> Dropped:
        """Drops so many segments from the front, as far as they are applied and not needed."""
        dropped = self._release_front(count, reason, is_needed_before)
        self.log.remove_released()
        return dropped

    def _release_front(
        self,
        count: int,
        reason: retention.Reason | None,
        is_needed_before: Callable[[int], bool],
    ) -> Dropped:
        infos = self.log.segments()
        count = min(count, len(infos) - 1)
        while count > 0 and (
            infos[count].first_index > self.applied_index
            or is_needed_before(infos[count].base_log_offset)
        ):
            count -= 1
        if count <= 0:
            return Dropped(0, reason, [])
        self.log.release_front(count)
        moved = self.derived.follow_front(self.log)
        log.info(
            "segments dropped",
            segments=count,
            bytes=sum(info.size_bytes for info in infos[:count]),
            reason=reason.value if reason else "asked for",
            queues=len(moved),
        )
        return Dropped(count, reason, moved)

    # -- end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """With a checkpoint, unless the disk failed: the next start has nothing to replay."""
        try:
            if self.applied_index:
                self.checkpoint()
        except MqError as error:
            log.warning("no checkpoint at close, the next start replays more", error=str(error))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Lets go of everything as it is, as a crash would."""
        self._mending.close()
        self.log.close()
        self.derived.close()
        self._lock.close()


def _decoded(ref: EntryRef, payload: memoryview) -> CommittedEntry:
    if ref.kind == Kind.MESSAGES:
        return CommittedEntry(ref, *decode_payload(payload, ref.payload_log_offset))
    return CommittedEntry(ref, [], bytes(payload) if ref.kind == Kind.COMMAND else b"")


def _unusable(directory: str, error: OSError) -> MqError:
    """Nothing was acknowledged yet: whatever the disk says, the node just does not start."""
    text = f"{error.filename or directory}: {error.strerror or error}"
    if is_shortage(error):
        return DiskFull(f"{text}: {shortage(error)}; free some, the node needs it to start")
    return StorageFailed(
        f"{text}. The data directory cannot be used: check its rights and the disk"
    )
