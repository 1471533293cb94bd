"""The store against plain lists, on a disk that is killed, loses power, fills up and loses files.

After every step everything that the store shows is compared with the model: queues, messages, tags,
times, ids, keys. After every restart: nothing synced is lost, what is there is a prefix of what was
appended, and every message has the queue offset it always had.

A failure prints the steps that lead to it. `MQ_MODEL_EXAMPLES=5000` looks longer, with other steps
each time.
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

from mq.errors import DiskFull, MessageNotFound, SegmentFull
from mq.hashing import text_hash
from mq.store import checkpoint, derived
from mq.store.format import Kind
from mq.store.lookup import QUERY_RESULTS_MAX, StoredMessage
from mq.store.reading import Status
from mq.wire.v1.message_pb2 import Message
from tests.support.faulty_vfs import FaultyVfs
from tests.support.store_model import Model, Queue, Stored, entry_of
from tests.support.stores import (
    DIRECTORY,
    NOW_MS,
    UNITS_PER_FILE,
    batch,
    files_below,
    messages_in,
    open_store,
    parsed,
    queue_files,
    small_config,
)

if TYPE_CHECKING:
    from mq.store.batch import Batch
    from mq.store.derived import CheckpointPlan
    from mq.store.reading import Run
    from mq.store.store import Applied

QUEUES: list[Queue] = [("orders", 0), ("orders", 1), ("orders", 7), ("%RETRY%g", 0), ("bills", 3)]
TAGS = ["", "paid", "sent", "lost"]
KEYS = ["a", "b", "c", "d", "e", "f"]
from hypothesis import Phase
PH=[Phase.generate] if os.environ.get('NOSHRINK') else list(Phase)
FOREVER_MS = 1 << 50
# A batch: its queue, how many messages, what is in them.
NEWS = st.lists(
    st.tuples(st.sampled_from(QUEUES), st.integers(1, 12), st.integers(0, 999)),
    min_size=1,
    max_size=3,
)
CLOCK_STEPS_MS = st.sampled_from([0, 1, 7, 400, 1300, 60_000, -1, -5000])
DERIVED = ["checkpoint", "consumequeue", "index", "consumequeue/orders", "consumequeue/bills/3"]


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


def shown(stored: StoredMessage | Stored) -> tuple[object, ...]:
    return tuple(stored[:6])


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # A few hundred bytes instead of eight million in memory, so that files are written often.
        self.patch.setattr(derived, "_PENDING_BYTES", 600)
        self.vfs = FaultyVfs()
        self.model = Model()
        self.now_ms = NOW_MS
        self.steps = 0
        self.plan: CheckpointPlan | None = None
        self.is_plan_written = False
        self.checkpointed = 0  # the newest entry that a checkpoint on disk speaks of
        # Files of dropped messages may be there still: the crash came before they were removed.
        self.may_have_leftovers = False

    @initialize(flush=st.sampled_from(["sync", "async"]), verify=st.sampled_from([0, 1 << 20]))
    def start(self, flush: str, verify: int) -> None:
        self.config = small_config(flush=flush, verify_bytes=verify)
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
            ref = self.store.append(batches, self.now_ms)
        except SegmentFull:
            assert self.model.applied_index < self.model.last_index
            self.sync()
            self._apply(self.model.last_index)
            ref = self.store.append(batches, self.now_ms)
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
        applied = self.store.apply_through(raft_index)
        self.model.applied_index = max(self.model.applied_index, raft_index)
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
        self.store.truncate(from_index)
        self.model.cut(from_index - 1)

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
            self._check_files()

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

    def _check_files(self) -> None:
        """Right after a checkpoint: the files of what is there, and no others."""
        for queue, messages in self.model.queues().items():
            start, end = self.model.start(queue), len(messages)
            wanted = set(range(start - start % UNITS_PER_FILE, end, UNITS_PER_FILE))
            found = set(queue_files(self.vfs, *queue))
            if start < end:
                assert wanted <= found
            if not self.may_have_leftovers:
                assert found <= wanted

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

    @rule(keep=st.sampled_from([0.0, 0.3, 0.7, 1.0]), seed=st.integers(0, 999))
    def lose_power(self, keep: float, seed: int) -> None:
        self.vfs.crash(seed, keep)
        self._reopen(has_lost_power=True)

    @rule(
        is_killed=st.booleans(),
        what=st.lists(st.sampled_from(DERIVED), max_size=2),
        files=st.lists(st.integers(0, 99), max_size=3),
        idx=st.lists(st.integers(0, 99), max_size=2),
        size=st.integers(-1, 300),
    )
    def lose_derived_files(
        self, is_killed: bool, what: list[str], files: list[int], idx: list[int], size: int
    ) -> None:
        """While the node is stopped: whole directories, single files, or parts of them."""
        if is_killed:
            self.vfs.kill()
        else:
            self._close()
        for name in what:
            for path in files_below(self.vfs, f"{DIRECTORY}/{name}"):
                self.vfs.remove(path)
        places = [("consumequeue", files), ("index", files), ("commitlog", idx)]
        for directory, numbers in places:
            for number in numbers:
                paths = files_below(self.vfs, f"{DIRECTORY}/{directory}")
                paths = [path for path in paths if not path.endswith(".log")]
                path = paths[number % len(paths)] if paths else ""
                if path and size < 0:
                    self.vfs.remove(path)
                elif path:
                    self.vfs.truncate_file(path, min(size, self.vfs.file_size(path) or 0))
        self._reopen(is_checkpoint_known=False)

    def _reopen(self, *, has_lost_power: bool = False, is_checkpoint_known: bool = True) -> None:
        self.may_have_leftovers |= has_lost_power or self.is_plan_written or not is_checkpoint_known
        self.plan, self.is_plan_written = None, False
        self.store = open_store(self.vfs, self.config, self._broker_state)
        self.vfs.sync_dir(f"{DIRECTORY}/commitlog")  # TODO: recovery's work
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

    def _check_restored(self, *, is_checkpoint_known: bool) -> None:
        model, applied_index = self.model, self.store.applied_index
        first_index = model.first_index if model.entries else 0
        # The checkpoint that opens a segment keeps the state of the entry before it.
        is_rebuilt = self.store.restored_broker_state != b"%d" % applied_index
        if is_rebuilt:
            assert applied_index == first_index
            assert int(self.store.restored_broker_state or b"-1") == first_index - 1
            assert not is_checkpoint_known or self.checkpointed < max(1, first_index)
            self.checkpointed = 0
        else:
            assert applied_index == self.checkpointed
        model.applied_index = applied_index
        # Everything that was recovered is committed; some nodes have not heard of it yet.
        if self.steps % 4:
            self._apply(model.last_index)

    # -- what must hold after every step ----------------------------------------------------------

    @invariant()
    def shows_what_the_model_shows(self) -> None:
        self.steps += 1
        rng = random.Random(self.steps)
        store, model = self.store, self.model
        assert store.applied_index == model.applied_index
        assert store.log.last_index == model.last_index
        assert len(store.queues) == len(model.queues())
        assert store.read("nobody", 0, 0).status is Status.NO_QUEUE
        assert store.offset_at_time("nobody", 0, 0) is None
        for queue in model.queues():
            self._check_queue(queue)
            self._check_limits(queue, rng)
            self._check_tags(queue, rng)
            self._check_times(queue, rng)
        self._check_ids(rng)
        self._check_keys(rng)

    def _check_queue(self, queue: Queue) -> None:
        start, end = self.model.start(queue), len(self.model.queues()[queue])
        found = self.store.queues.get(*queue)
        assert found is not None
        assert (found.start, found.end) == (start, end)
        for at, status, next_offset in [
            (start - 1, Status.TOO_SMALL, start),
            (end, Status.END, end),
            (end + 1, Status.TOO_LARGE, end),
        ]:
            result = self.store.read(*queue, at)
            assert result == (status, [], next_offset, start, end)
        for at in (0, start, (start + end) // 2, end, end + 5):
            assert found.backlog(at) == len(self.model.queues()[queue][max(at, start) :])
        units = found.read(start, end)
        wanted = self.model.there(queue)
        assert units.tolist() == [
            (one.log_offset, len(one.frame), text_hash(one.message.tag)) for one in wanted
        ]
        if wanted:
            result = self.store.read(*queue, start)
            assert (result.status, result.start, result.end) == (Status.FOUND, start, end)
            assert result.next_offset > start
            self._check_runs(queue, result.runs, wanted[: result.next_offset - start])
            assert messages_in(result) == [
                one.message for one in wanted[: result.next_offset - start]
            ]

    def _check_runs(self, queue: Queue, runs: list[Run], wanted: list[Stored]) -> None:
        """The runs are these messages, all of them, in order, each with its place and time."""
        there = self.model.queues()[queue]
        found: list[Stored] = []
        for run in runs:
            members = there[run.queue_offset : run.queue_offset + run.message_count]
            assert bytes(run.frames) == b"".join(one.frame for one in members)
            assert run.log_offset == members[0].log_offset
            assert {one.stored_at_ms for one in members} == {run.stored_at_ms}
            found += members
        assert found == wanted

    def _check_limits(self, queue: Queue, rng: random.Random) -> None:
        there = self.model.there(queue)
        if not there:
            return
        place = rng.randrange(len(there))
        bytes_max, messages_max = rng.choice([0, 50, 400, 9999]), rng.choice([1, 2, 9, 99])
        limits = {"bytes_max": bytes_max, "messages_max": messages_max}
        result = self.store.read(*queue, there[place].queue_offset, **limits)
        wanted = there[place : place + 1]
        for one in there[place + 1 : place + messages_max]:
            if sum(len(each.frame) for each in [*wanted, one]) > bytes_max:
                break
            wanted.append(one)
        self._check_runs(queue, result.runs, wanted)
        assert result.next_offset == wanted[-1].queue_offset + 1

    def _check_tags(self, queue: Queue, rng: random.Random) -> None:
        there = self.model.there(queue)
        if not there:
            return
        tags = rng.sample(TAGS[1:], rng.choice([1, 2]))
        hashes = [text_hash(tag) for tag in tags]
        wanted = [one for one in there if one.message.tag in tags]
        result = self.store.read(*queue, there[0].queue_offset, tag_hashes=hashes)
        assert result.status is (Status.FOUND if wanted else Status.NOTHING_MATCHED)
        assert result.next_offset == result.end
        self._check_runs(queue, result.runs, wanted)
        assert parsed(run.frames for run in result.runs) == [one.message for one in wanted]
        found = self.store.queues.get(*queue)
        assert found is not None
        assert found.count_matching(result.start, result.end, hashes) == len(wanted)
        few = self.store.read(*queue, result.start, tag_hashes=hashes, messages_max=2)
        self._check_runs(queue, few.runs, wanted[:2])
        assert few.next_offset == (wanted[2].queue_offset if len(wanted) > 2 else result.end)

    def _check_times(self, queue: Queue, rng: random.Random) -> None:
        there = self.model.there(queue)
        times = [0, self.model.last_stored_at_ms + 1, *(one.stored_at_ms for one in there)]
        time = rng.choice(times) + rng.choice([-1, 0, 1])
        later = [one.queue_offset for one in there if one.stored_at_ms >= time]
        end = len(self.model.queues()[queue])
        assert self.store.offset_at_time(*queue, time) == (later[0] if later else end)

    def _check_ids(self, rng: random.Random) -> None:
        there = [one for queue in self.model.queues() for one in self.model.there(queue)]
        for one in rng.sample(there, min(2, len(there))):
            assert shown(self.store.lookup.by_id(one.log_offset)) == shown(one)
        hidden = [
            log_offset
            for entry in self.model.entries
            if not self.model.first_index <= entry.raft_index <= self.model.applied_index
            for _, log_offset, *_ in entry.frames
        ]
        inside = [one.log_offset + 1 for one in there]
        for log_offset in rng.sample(hidden, min(1, len(hidden))) + rng.sample(
            inside, min(1, len(inside))
        ):
            with pytest.raises(MessageNotFound):
                self.store.lookup.by_id(log_offset)

    def _check_keys(self, rng: random.Random) -> None:
        topic, key = rng.choice(QUEUES)[0], rng.choice([*KEYS, "nobody's"])
        times = [0, *(entry.stored_at_ms + 1 for entry in self.model.entries), FOREVER_MS]
        begin, end = sorted(rng.choices([0, FOREVER_MS, *times], k=2))
        limit = rng.choice([1, 3, QUERY_RESULTS_MAX, 99])
        for begin_ms, end_ms in [(0, FOREVER_MS), (begin, end)]:
            found = self.store.lookup.by_key(topic, key, begin_ms, end_ms, limit)
            wanted = self.model.by_key(topic, key, begin_ms, end_ms)
            assert list(map(shown, found)) == list(
                map(shown, wanted[: min(limit, QUERY_RESULTS_MAX)])
            )


def test_a_store_is_what_plain_lists_say_whatever_happens_to_its_disk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", logger="mq")  # thousands of crashes, each with its warnings
    longer = os.environ.get("MQ_MODEL_EXAMPLES")
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        StoreMachine,
        settings=settings(
            max_examples=int(longer or 60),
            stateful_step_count=40,
            derandomize=longer is None,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
            phases=PH,
        ),
    )
