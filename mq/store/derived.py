"""Everything that is built by applying the log: queues, key index, and the checkpoint that says how
far.

Queue offsets come from here: entries are applied in the order of the log, each one
once, and nothing but their bytes decides, so that every replica and every rebuild gives each
message the same queue offset. The files may be deleted at any time while the node is stopped.

Invariant: the checkpoint on disk is never ahead of the files it speaks of, nor those of the log.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import NamedTuple

from mq.errors import DiskFull, MqError, StorageFailed
from mq.logging import get_logger
from mq.store import checkpoint
from mq.store.batch import Batch
from mq.store.checkpoint import DerivedState
from mq.store.commitlog import CommitLog
from mq.store.consumequeue import ConsumeQueues, QueueExtent, QueueWrites, message_units
from mq.store.filepool import PendingWrite
from mq.store.holding import HeldQueue, held_unit
from mq.store.keyindex import IndexPosition, KeyIndex, batch_keys
from mq.store.vfs import Vfs, is_shortage, shortage
from mq.store.writeback import Writeback

log = get_logger(__name__)


# More than this in memory starts going to the files, half of it at a time ...
_PENDING_BYTES = 8 << 20
# ... and with more than this the owner waits for them.
_PENDING_BYTES_MAX = 64 << 20


class Plan(NamedTuple):
    """Data on its way from memory to the files, while the store goes on."""

    queues: QueueWrites
    index_writes: list[PendingWrite]
    index_position: IndexPosition


class CheckpointPlan(NamedTuple):
    """A consistent picture of everything, to be written on any thread."""

    plan: Plan
    state: DerivedState
    surplus: list[str]  # files that `state` has no more use for
    generation: int  # of the log that it was made of


class DerivedFiles:
    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        *,
        queue_file_units: int,
        index_slots: int,
        index_items: int,
        background: bool,
    ) -> None:
        self._vfs = vfs
        self._directory = directory
        self._checkpoint_path = f"{directory}/checkpoint"
        self.writeback = Writeback(vfs, background=background)
        self._writing: tuple[Plan, Future[None]] | None = None
        self.queues = ConsumeQueues(vfs, f"{directory}/consumequeue", queue_file_units)
        self.index = KeyIndex(
            vfs, f"{directory}/index", slot_count=index_slots, item_count_max=index_items
        )
        self.is_stalled = False
        self._failure: MqError | None = None
        # Counts the logs that took the place of another; a checkpoint of an older one is void.
        self._generation = 0
        # Held while a checkpoint is written, and while everything is dropped.
        self._checkpoint_lock = threading.Lock()
        # Files of which all messages are gone. They are removed once the checkpoint on disk no
        # longer names them: a start that misses them would rebuild everything.
        self._surplus: list[str] = []

    # -- applying ---------------------------------------------------------------------------------

    def put(self, batch: Batch, log_offset: int, stored_at_ms: int) -> int:
        """A batch that is visible at once. Returns the queue offset of its first message."""
        if len(batch.key_hashes):
            self.index.add(*batch_keys(batch, log_offset), stored_at_ms)
        units = message_units(batch, log_offset)
        return self.queues.append(batch.topic, batch.queue_id, units)

    def put_held(self, batch: Batch, log_offset: int, held: HeldQueue) -> None:
        """A batch that waits in an internal queue."""
        units = held_unit(batch, log_offset, held.mark)
        self.queues.append(held.topic, held.queue_id, units)

    def write_surplus(self) -> None:
        """Starts moving to the files what waits in memory beyond its limit; called after applying.

        A full disk is no error yet: it waits on in memory, and `is_stalled` says so; the owner lets
        no more in until a later call gets through. StorageFailed: stop the node.
        """
        if self._failure is not None:
            raise self._failure
        pending = self.queues.pending_bytes + self.index.pending_bytes
        if self._writing is not None:
            if not self._writing[1].done() and pending < _PENDING_BYTES_MAX:
                return
            self.settle()
        if pending > _PENDING_BYTES or self.is_stalled:
            queues = self.queues.pending_writes(_PENDING_BYTES // 2)
            plan = Plan(queues, self.index.pending_writes(), self.index.position())
            writes = [*queues.writes, *plan.index_writes]
            self._writing = plan, self.writeback.write(writes)
            if self.is_stalled:
                self.settle()

    def settle(self) -> None:
        """Waits for what is being written, and lets go of its memory."""
        if self._writing is None:
            return
        plan, future = self._writing
        self._writing = None
        try:
            future.result()
        except OSError as error:
            self.is_stalled = True
            if not is_shortage(error):
                raise self._failed(error) from error
        else:
            self.is_stalled = False
            self._set_written(plan)

    def _set_written(self, plan: Plan) -> None:
        self.queues.set_written(plan.queues)
        self.index.set_written(plan.index_position)

    def check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -- checkpoints ------------------------------------------------------------------------------

    def plan_checkpoint(self, raft_index: int, term: int, broker_state: bytes) -> CheckpointPlan:
        # One plan at a time holds marks on the queues.
        self.settle()
        position, queues = self.index.position(), self.queues.pending_writes()
        plan = Plan(queues, self.index.pending_writes(), position)
        saved = self.queues.saved(queues)
        state = DerivedState(raft_index, term, saved, position, broker_state)
        return CheckpointPlan(plan, state, self._surplus.copy(), self._generation)

    def write_checkpoint(self, checkpoint_plan: CheckpointPlan) -> None:
        """Blocks on the disk; any thread. DiskFull: try later. StorageFailed: stop the node."""
        self.check_usable()
        plan, state, *_ = checkpoint_plan
        with self._checkpoint_lock:
            if not self.is_current(checkpoint_plan):
                return
            try:
                self.writeback.write([*plan.queues.writes, *plan.index_writes]).result()
                self._vfs.sync_tree(self._directory)
                checkpoint.save(self._vfs, self._checkpoint_path, state)
            except OSError as error:
                raise self._failed(error) from error

    def is_current(self, plan: CheckpointPlan) -> bool:
        """Whether the plan is of the log that is there now."""
        return plan.generation == self._generation

    def finish_checkpoint(self, plan: CheckpointPlan) -> None:
        """Frees the memory of what is on disk now, and removes surplus files."""
        if not self.is_current(plan):
            return
        self.settle()
        self._set_written(plan.plan)
        self.writeback.remove(plan.surplus)
        del self._surplus[: len(plan.surplus)]

    @property
    def has_surplus(self) -> bool:
        """Whether the next checkpoint gives back space."""
        return bool(self._surplus)

    # -- start, retention, end --------------------------------------------------------------------

    def restore(self, commitlog: CommitLog) -> tuple[int, bytes]:
        """Brings back the last checkpoint, or the one that opens the log when that does not fit or
        files are missing.

        Returns the raft index up to which all is applied, and the broker's state of that moment.
        """
        if commitlog.last_index < commitlog.first_index:
            self._clear()
            return 0, b""
        state = checkpoint.load(self._vfs, self._checkpoint_path)
        problem = self._misfit(state, commitlog)
        if state is not None and not problem:
            self.follow_front(commitlog)
            return state.raft_index, state.broker_state
        log.warning("queues and index are rebuilt from the log", reason=problem)
        return self._rebuild(commitlog)

    def start_over(self, commitlog: CommitLog) -> tuple[int, bytes]:
        """The log is another one: drops everything, and brings back the checkpoint that opens it.

        Waits for all writes that are under way; plans of checkpoints that were made before are void
        from here on. Returns what `restore` does. StorageFailed: stop the node.
        """
        self.check_usable()
        with self._checkpoint_lock:
            self._generation += 1
            self._writing = None
            self._surplus.clear()
            self.is_stalled = False
            try:
                # Behind all other writes, whose results do not matter.
                self.writeback.forget_files().result()
                return self._rebuild(commitlog)
            except OSError as error:
                raise self._stop(error) from error

    def _rebuild(self, commitlog: CommitLog) -> tuple[int, bytes]:
        entry = commitlog.entry(commitlog.first_index)
        queues, broker_state = checkpoint.decode_entry(entry.payload)
        self._clear()
        self.queues.restart(queues)
        return entry.ref.raft_index, broker_state

    def follow_front(self, commitlog: CommitLog) -> list[QueueExtent]:
        """Queues start where the log starts: the checkpoint that opens it has the ends of all
        before. Returns the queues that moved. Surplus files go with the next checkpoint.
        """
        entry = commitlog.entry(commitlog.first_index)
        queues = checkpoint.decode_queues(entry.payload)
        moved = []
        self._surplus += self.index.drop_before(commitlog.start_offset)
        for extent in queues:
            paths = self.queues.advance_start(extent)
            if paths is not None:
                moved.append(extent)
                self._surplus += paths
        return moved

    def clear_topic(self, topic: str) -> None:
        """Each of its queues starts where it ends; files go with the next checkpoint."""
        for one in [one for one in self.queues.extents() if one.topic == topic]:
            self.trim(topic, one.queue_id, one.end)

    def trim(self, topic: str, queue_id: int, start: int | None) -> None:
        """The queue starts here, or where it ends; files go with the next checkpoint."""
        queue = self.queues.get(topic, queue_id)
        if queue is not None:
            first = queue.end if start is None else min(start, queue.end)
            paths = self.queues.advance_start(QueueExtent(topic, queue_id, first, queue.end))
            self._surplus += paths or ()

    def close(self) -> None:
        self.writeback.close()
        self.queues.close()
        self.index.close()

    def _misfit(self, state: DerivedState | None, commitlog: CommitLog) -> str:
        """The reason why the derived files cannot be used; empty if they were restored."""
        if state is None:
            return "there is no valid checkpoint"
        if not commitlog.first_index <= state.raft_index <= commitlog.last_index:
            return f"the checkpoint is for entry {state.raft_index}, which the log does not have"
        if commitlog.ref(state.raft_index).term != state.term:
            return f"the checkpoint is for another entry {state.raft_index}"
        self.queues.restore(state.queues)
        if missing := self.queues.missing_file():
            return f"{missing} is missing or too short"
        if not self.index.restore(state.key_index):
            return "a file of the key index is missing, too short or damaged"
        return ""

    def _clear(self) -> None:
        # The checkpoint first: it must not outlive the files it speaks of.
        self._vfs.remove(self._checkpoint_path)
        self._vfs.sync_dir(self._directory)
        self.queues.clear()
        self.index.clear()

    def _failed(self, error: OSError) -> MqError:
        if is_shortage(error):
            missing = shortage(error)
            return DiskFull(f"{missing} for queues, index and checkpoint in {self._directory}")
        return self._stop(error)

    def _stop(self, error: OSError) -> MqError:
        self._failure = StorageFailed(
            f"{error.filename or self._directory}: {error.strerror or error}. "
            "The node has to stop; check the disk"
        )
        return self._failure
