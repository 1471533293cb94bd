"""The store against plain lists, on a disk that is killed, loses power, fills up and loses files.

After every step everything that the store shows is compared with the model: queues, messages, tags,
times, ids, keys. After every restart: nothing synced is lost, what is there is a prefix of what was
appended, and every message has the queue offset it always had.

A failure prints the steps that lead to it. `MQ_MODEL_EXAMPLES=5000` looks longer, with other steps
each time; CONTRIBUTING.md has the command.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mq.errors import DiskFull, SegmentFull
from mq.store import checkpoint, derived
from mq.store.format import Kind
from mq.wire.v1.message_pb2 import Message
from tests.support.faulty_vfs import FaultyVfs
from tests.support.store_checks import (
    KEYS,
    QUEUES,
    TAGS,
    check_all_keys,
    check_everything,
    check_files,
)
from tests.support.store_model import Model, Queue, entry_of
from tests.support.stores import (
    DIRECTORY,
    NOW_MS,
    append_entry,
    apply_through,
    batch,
    files_below,
    open_store,
    small_config,
    truncate,
)

if TYPE_CHECKING:
    from mq.store.batch import Batch
    from mq.store.derived import CheckpointPlan
    from mq.store.store import Store
from tests.support.stores import Applied

# A batch: its queue, how many messages, what is in them.
NEWS = st.lists(
    st.tuples(st.sampled_from(QUEUES), st.integers(1, 12), st.integers(0, 999)),
    min_size=1,
    max_size=3,
)
CLOCK_STEPS_MS = st.sampled_from([0, 1, 7, 400, 1300, 60_000, -1, -5000])
# What may be lost: below which name, and one file with this ending or all of them.
LOSSES = [
    ("checkpoint", ""),
    ("consumequeue", ""),
    ("consumequeue/orders", ""),
    ("consumequeue", "0"),
    ("consumequeue", "6"),
    ("index", ""),
    *(("index", str(digit)) for digit in range(0, 10, 3)),
    ("commitlog", ".idx"),
]


def random_messages(count: int, seed: int) -> list[Message]:
    rng = random.Random(seed)
    return [
        Message(
            body=rng.randbytes(rng.choice([0, 3, 20, 130])),
            tag=rng.choice(TAGS),
            # The same key twice in a message, too.
            keys=rng.choices(KEYS, k=rng.choice([0, 0, 1, 1, 2, 4])),
        )
        for _ in range(count)
    ]


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.vfs = FaultyVfs()
        self.model = Model()
        self.now_ms = NOW_MS
        self.steps = 0
        self.plan: CheckpointPlan | None = None
        self.is_plan_written = False
        self.checkpointed = 0  # the newest entry that a checkpoint on disk speaks of
        # Files of dropped messages may be there still: the crash came before they were removed.
        self.may_have_leftovers = False
        self.most_applied = 0

    @initialize(
        flush=st.sampled_from(["sync", "async"]),
        verify=st.sampled_from([0, 1 << 20]),
        pending=st.sampled_from([200, 2000, 1 << 20]),
    )
    def start(self, flush: str, verify: int, pending: int) -> None:
        # Instead of eight million bytes in memory, so that files are written often.
        self.patch.setattr(derived, "_PENDING_BYTES", pending)
        self.config = small_config(flush=flush, verify_bytes=verify, segment_bytes=2500)
        self.store = open_store(self.vfs, self.config, self._broker_state)
        assert self.store.log.last_index == self.store.applied_index == 0

    def teardown(self) -> None:
        self.patch.undo()

    def _broker_state(self) -> bytes:
        return b"%d" % self.store.applied_index

    # -- writing ----------------------------------------------------------------------------------

    @rule(news=NEWS, clock_ms=CLOCK_STEPS_MS)
    def append(self, news: list[tuple[Queue, int, int]], clock_ms: int) -> None:
        self.now_ms += clock_ms
        made = [(queue, random_messages(count, seed)) for queue, count, seed in news]
        batches = [(batch(messages, *queue), messages) for queue, messages in made]
        try:
            self._append(batches)
        except DiskFull:
            assert self.vfs.capacity_bytes is not None
            # Nothing of it was written, but the checkpoint of a new segment may have been.
            if self.store.log.last_index > self.model.last_index:
                assert self.store.log.ref(self.store.log.last_index).kind == Kind.CHECKPOINT
                self.model.add_checkpoint(self.now_ms)

    def _append(self, news: list[tuple[Batch, list[Message]]]) -> None:
        batches = [batch for batch, _ in news]
        try:
            ref = append_entry(self.store, batches, self.now_ms)
        except SegmentFull:
            assert self.model.applied_index < self.model.last_index
            self.sync()
            self._apply(self.model.last_index)
            ref = append_entry(self.store, batches, self.now_ms)
        if ref.raft_index == self.model.last_index + 2:
            self.model.add_checkpoint(self.now_ms)
        assert ref.raft_index == self.model.last_index + 1
        time = max(self.model.last_stored_at_ms, self.now_ms)
        assert ref.stored_at_ms == time
        self.model.entries.append(entry_of(ref, time, news))

    @rule(many=st.lists(st.tuples(NEWS, CLOCK_STEPS_MS), min_size=1, max_size=6))
    def publish(self, many: list[tuple[list[tuple[Queue, int, int]], int]]) -> None:
        """The everyday life of a store: entries come in, are synced together and become visible."""
        for news, clock_ms in many:
            self.append(news, clock_ms)
        self.sync()
        self.apply(1.0)

    @rule(queue=st.sampled_from(QUEUES), counts=st.lists(st.integers(1, 20), min_size=2))
    def publish_to_one(self, queue: Queue, counts: list[int]) -> None:
        """Fills files of a queue, of the index and of the log."""
        self.publish([([(queue, count, count + self.steps)], count % 3) for count in counts[:8]])

    @rule()
    def sync(self) -> None:
        assert self.store.log.sync() == self.store.log.end_offset
        self.model.durable_index = self.model.last_index

    @rule(part=st.sampled_from([0.0, 0.3, 1.0, 1.0]))
    def apply(self, part: float) -> None:
        waiting = max(0, self.model.durable_index - self.model.applied_index)
        self._apply(self.model.applied_index + round(part * waiting))

    def _apply(self, raft_index: int) -> None:
        first = self.model.applied_index + 1
        applied = apply_through(self.store, raft_index)
        self.model.applied_index = max(self.model.applied_index, raft_index)
        self.most_applied = max(self.most_applied, raft_index)
        assert [one.ref.raft_index for one in applied] == list(range(first, raft_index + 1))
        for one in applied:
            self._check_applied(one)

    def _check_applied(self, applied: Applied) -> None:
        entry = self.model.entries[applied.ref.raft_index - 1]
        assert applied.ref.stored_at_ms == entry.stored_at_ms
        assert (applied.ref.kind == Kind.CHECKPOINT) == (entry.payload is None)
        assert applied.queue_offsets == self.model.queue_offsets_of(entry.raft_index)

    @precondition(lambda self: self.model.applied_index < self.model.last_index)
    @rule(part=st.sampled_from([0.0, 0.5, 1.0]))
    def truncate(self, part: float) -> None:
        unapplied = self.model.last_index - self.model.applied_index
        from_index = self.model.applied_index + 1 + round(part * (unapplied - 1))
        # The first entry of a log stays.
        from_index = max(from_index, self.model.first_index + 1)
        truncate(self.store, from_index)
        self.model.cut(from_index - 1)

    @precondition(lambda self: len(self.store.log.segments()) > 1)
    @rule(count=st.integers(1, 3))
    def drop_front(self, count: int) -> None:
        firsts = [info.first_index for info in self.store.log.segments()]
        may_go = [first for first in firsts[1:][:count] if first <= self.model.applied_index]
        before = {queue: self.model.start(queue) for queue in self.model.queues()}
        dropped = self.store.drop_front(count)
        assert dropped.segments == len(may_go)
        if may_go:
            self.model.durable_index = self.model.last_index
            self.model.first_index = may_go[-1]
        starts = {queue: self.model.start(queue) for queue in self.model.queues()}
        moved = {(extent.topic, extent.queue_id): extent.start for extent in dropped.moved}
        assert moved == {queue: at for queue, at in starts.items() if at != before[queue]}

    # -- checkpoints ------------------------------------------------------------------------------

    @precondition(lambda self: self.plan is None)
    @rule()
    def checkpoint(self) -> None:
        self.plan_checkpoint()
        self.write_checkpoint()
        if self.plan is not None:
            self.finish_checkpoint()
            # Files may be ahead of a checkpoint that failed, until their entries are applied again.
            leftovers = self.may_have_leftovers or self.model.applied_index < self.most_applied
            check_files(self.vfs, self.store, self.model, may_have_leftovers=leftovers)

    @precondition(lambda self: self.plan is None)
    @rule()
    def plan_checkpoint(self) -> None:
        self.plan = self.store.plan_checkpoint()
        self.is_plan_written = False

    @precondition(lambda self: self.plan is not None and not self.is_plan_written)
    @rule()
    def write_checkpoint(self) -> None:
        assert self.plan is not None
        try:
            self.store.write_checkpoint(self.plan)
        except DiskFull:
            assert self.vfs.capacity_bytes is not None
            self.plan = None
        else:
            self.is_plan_written = True
            self.checkpointed = self.plan.state.raft_index
        self.model.durable_index = self.model.last_index

    @precondition(lambda self: self.plan is not None and self.is_plan_written)
    @rule()
    def finish_checkpoint(self) -> None:
        assert self.plan is not None
        self.store.finish_checkpoint(self.plan)
        self.plan = None

    # -- a full disk ------------------------------------------------------------------------------

    @precondition(lambda self: self.vfs.capacity_bytes is None)
    @rule(spare_bytes=st.sampled_from([0, 30, 500, 3000, 9000]))
    def fill_disk(self, spare_bytes: int) -> None:
        used = sum(len(self.vfs.read_all(path)) for path in files_below(self.vfs, DIRECTORY))
        self.vfs.capacity_bytes = used + spare_bytes

    @precondition(lambda self: self.vfs.capacity_bytes is not None)
    @rule()
    def make_room(self) -> None:
        self.vfs.capacity_bytes = None
        self.append([(QUEUES[0], 1, self.steps)], 0)

    # -- restarts ---------------------------------------------------------------------------------

    @precondition(lambda self: self.model.entries)
    @rule()
    def close(self) -> None:
        self._close()
        self._reopen()

    def _close(self) -> None:
        self.store.close()
        state = checkpoint.load(self.vfs, f"{DIRECTORY}/checkpoint")
        is_checkpoint_new = state is not None and state.raft_index == self.model.applied_index
        if is_checkpoint_new:
            self.checkpointed = self.model.applied_index
        elif self.model.applied_index:
            assert self.vfs.capacity_bytes is not None

    @rule()
    def kill(self) -> None:
        self.vfs.kill()
        self._reopen()

    @precondition(lambda self: self.model.entries)
    @rule(keep=st.sampled_from([0.0, 0.3, 0.7, 1.0]), seed=st.integers(0, 999))
    def lose_power(self, keep: float, seed: int) -> None:
        self.vfs.crash(seed, keep)
        self._reopen(has_lost_power=True)

    @precondition(lambda self: self.model.entries)
    @rule(
        is_killed=st.booleans(),
        what=st.sampled_from(LOSSES),
        number=st.integers(0, 99),
        size=st.sampled_from([None, None, 0, 30, 300]),
    )
    def lose_derived_files(
        self, is_killed: bool, what: tuple[str, str], number: int, size: int | None
    ) -> None:
        """While the node is stopped: a whole directory, or one file, or the end of a file."""
        if is_killed:
            self.vfs.kill()
        else:
            self._close()
        below, ending = what
        paths = files_below(self.vfs, f"{DIRECTORY}/{below}")
        paths = [path for path in paths if path.endswith(ending)]
        for path in paths if ending == "" else paths[number % max(1, len(paths)) :][:1]:
            if size is None:
                self.vfs.remove(path)
            else:
                self.vfs.truncate_file(path, min(size, self.vfs.file_size(path) or 0))
        self._reopen(is_checkpoint_known=False)

    def _reopen(self, *, has_lost_power: bool = False, is_checkpoint_known: bool = True) -> None:
        self.may_have_leftovers |= has_lost_power or self.is_plan_written or not is_checkpoint_known
        self.plan, self.is_plan_written = None, False
        self.store = self._open()
        log, model = self.store.log, self.model
        assert model.durable_index <= log.last_index <= model.last_index
        assert has_lost_power or log.last_index == model.last_index
        model.cut(log.last_index)
        assert log.first_index == (model.first_index if model.entries else 1)
        for entry in log.entries(log.first_index, log.last_index + 1):
            wanted = model.entries[entry.ref.raft_index - 1]
            assert entry.ref.stored_at_ms == wanted.stored_at_ms
            assert wanted.payload is None or bytes(entry.payload) == wanted.payload
        model.durable_index = log.last_index
        self._check_restored(is_checkpoint_known=is_checkpoint_known)

    def _open(self) -> Store:
        try:
            return open_store(self.vfs, self.config, self._broker_state)
        except (OSError, DiskFull):
            # To write an `.idx` again takes space: an operator has to make some.
            assert self.vfs.capacity_bytes is not None
            self.vfs.capacity_bytes = None
            self.vfs.kill()
            return open_store(self.vfs, self.config, self._broker_state)

    def _check_restored(self, *, is_checkpoint_known: bool) -> None:
        model, applied_index = self.model, self.store.applied_index
        first_index = model.first_index if model.entries else 0
        # The checkpoint that opens a segment keeps the state of the entry before it.
        is_rebuilt = self.store.restored_broker_state != b"%d" % applied_index
        if is_rebuilt:
            assert applied_index == first_index
            assert int(self.store.restored_broker_state or b"-1") == first_index - 1
            assert not is_checkpoint_known or self.checkpointed < max(1, first_index)
            self.checkpointed, self.may_have_leftovers = 0, False
        else:
            assert applied_index == self.checkpointed
        model.applied_index = applied_index
        # Everything that was recovered is committed; some nodes have not heard of it yet.
        if self.steps % 4:
            self._apply(model.last_index)
        check_all_keys(self.store, model)

    # -- what must hold after every step ----------------------------------------------------------

    @invariant()
    def shows_what_the_model_shows(self) -> None:
        self.steps += 1
        check_everything(self.store, self.model, random.Random(self.steps))


def test_a_store_equals_its_model_of_lists_under_disk_faults(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", logger="mq")  # thousands of crashes, each with its warnings
    longer = os.environ.get("MQ_MODEL_EXAMPLES")
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=int(longer or settings().max_examples // 2),
            stateful_step_count=40,
            derandomize=longer is None,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
        ),
    )
