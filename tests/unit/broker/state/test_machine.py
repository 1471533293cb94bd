"""Applying entries: every replica comes to the same state, whatever node wrote them, however many
at once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from mq.broker.queue import Queue
from mq.broker.state.dedup import StoredAt
from mq.broker.state.machine import AppliedEntry, Machine, ProposedEntry
from mq.broker.state.state import State
from mq.names import SCHEDULE_TOPIC
from mq.store.batch import encode_payload
from mq.store.commitlog import NewEntry
from mq.store.format import Kind
from mq.store.holding import HeldQueue, lane_of, read_held
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.message_pb2 import Half
from mq.wire.v1.state_pb2 import (
    ChangeLeases,
    ChangeTransactions,
    Command,
    CommitPositions,
    DeliverScheduled,
    DropGroup,
    DropTopic,
    GroupPositions,
    LaneProgress,
    LeaseChange,
    LockQueues,
    Many,
    PutGroup,
    PutTopic,
    QueueLeases,
    QueueLock,
    TrimQueues,
)
from tests.support.consensus import STORE, batch
from tests.support.faulty_vfs import FaultyVfs
from tests.support.logs import send
from tests.support.stores import open_store, read_all, roll

if TYPE_CHECKING:
    from mq.store.batch import Batch
    from mq.store.logreader import EntryRef
    from mq.store.store import Store


class Replica:
    """A machine that writes for itself, as a leader does, or is given a log, as a follower is."""

    def __init__(self, vfs: FaultyVfs | None = None) -> None:
        self.vfs = vfs or FaultyVfs()
        self.state = State()
        self.store: Store = open_store(self.vfs, STORE, self.state.encode)
        self.machine = Machine(self.state, self.store)

    def open(self) -> Replica:
        roll(self.store, 1_000)
        self.apply()
        return self

    def write(self, work: Command | list[Batch], term: int = 1) -> ProposedEntry:
        if isinstance(work, Command):
            written = ProposedEntry(command=work)
            entry = NewEntry(Kind.COMMAND, term, 5_000, [work.SerializeToString()])
        else:
            written = ProposedEntry(work)
            entry = NewEntry(Kind.MESSAGES, term, 5_000, encode_payload(work))
        return self._append(entry, written)

    def write_atom(self, batches: list[Batch], command: Command, term: int = 1) -> ProposedEntry:
        payload = encode_payload(batches, command.SerializeToString())
        return self._append(
            NewEntry(Kind.MESSAGES, term, 5_000, payload), ProposedEntry(batches, command)
        )

    def _append(self, entry: NewEntry, written: ProposedEntry) -> ProposedEntry:
        (ref,) = self.store.log.append([entry])
        self.machine.appended(ref, written)
        return written

    def apply(self, through: int | None = None) -> list[AppliedEntry]:
        self.store.log.sync()
        return list(self.machine.apply_through(through or self.store.log.last_index))

    def summary(self) -> tuple[bytes, list[tuple[str, int, int, int]]]:
        return self.state.encode(), sorted(self.store.queues.extents())


def put(name: str, queues: int = 2) -> Command:
    return Command(
        put_topic=PutTopic(
            topic=name,
            write_queues=queues,
            read_queues=queues,
            is_readable=True,
            is_writable=True,
        )
    )


def drop(name: str) -> Command:
    return Command(drop_topic=DropTopic(topic=name))


def commit(group: str, topic: str, queue_id: int, queue_offset: int) -> Command:
    position = QueuePosition(topic=topic, queue_id=queue_id, queue_offset=queue_offset)
    groups = [GroupPositions(group=group, positions=[position])]
    return Command(commit_positions=CommitPositions(groups=groups))


def lock(group: str, topic: str, queue_id: int, member_id: str) -> Command:
    locks = [QueueLock(topic=topic, queue_id=queue_id, member_id=member_id)]
    return Command(lock_queues=LockQueues(group=group, locks=locks))


def random_work(rng: random.Random, sequence: int) -> Command | list[Batch]:
    topic = rng.choice("tuv")
    match rng.randrange(8):
        case 0:
            return put(topic, rng.randint(1, 4))
        case 1:
            return drop(topic)
        case 2:
            return commit(rng.choice("gh"), topic, rng.randrange(3), rng.randrange(9))
        case 3:
            return lock(rng.choice("gh"), topic, rng.randrange(3), rng.choice(["", "a", "b"]))
        case 4:
            return Command(drop_group=DropGroup(group=rng.choice("gh")))
    who = {"producer_id": rng.choice("pq"), "sequence": sequence} if rng.random() < 0.7 else {}
    return [
        batch(topic, b"%d" % sequence, b"more", queue_id=rng.randrange(3), **who)
        for _ in range(1 if who else rng.randint(1, 3))
    ]


@pytest.mark.parametrize("seed", range(30))
def test_a_follower_comes_to_the_same_as_the_leader_however_it_applies(seed: int) -> None:
    rng = random.Random(seed)
    leader, follower, late = Replica().open(), Replica(), Replica()
    for sequence in range(1, 60):
        leader.write(random_work(rng, sequence))
        leader.apply()
        if rng.random() < 0.3:
            send(leader.store.log, follower.store.log, 1 << 20)
            follower.apply()
    for replica in (follower, late):
        send(leader.store.log, replica.store.log, 1 << 20)
        replica.apply()
        assert replica.summary() == leader.summary()
        for topic in "tuv":
            for queue_id in range(3):
                assert read_all(replica.store, topic, queue_id) == read_all(
                    leader.store, topic, queue_id
                )


@pytest.mark.parametrize("seed", range(10))
def test_a_machine_that_starts_again_has_the_same(seed: int) -> None:
    """With a checkpoint somewhere in between, and the rest from the log."""
    rng = random.Random(seed)
    replica = Replica().open()
    for sequence in range(1, 40):
        replica.write(random_work(rng, sequence))
        replica.apply()
        if rng.random() < 0.1:
            replica.store.checkpoint()
    before = replica.summary()
    replica.vfs.kill()
    again = Replica(replica.vfs)
    again.apply()
    assert again.summary() == before


def test_messages_after_the_deletion_of_a_topic_do_not_belong_to_it() -> None:
    """Also when all of it is applied in one go."""
    leader, follower = Replica().open(), Replica()
    for work in (put("t"), [batch("t", b"old")], drop("t"), put("t"), [batch("t", b"new")]):
        leader.write(work)
    leader.apply()
    send(leader.store.log, follower.store.log, 1 << 20)
    follower.apply()
    for replica in (leader, follower):
        assert [one.body for one in read_all(replica.store, "t")] == [b"new"]
        assert [(one.start, one.end) for one in replica.store.queues.extents()] == [(1, 2)]


def test_the_proposer_is_told_the_place_of_each_batch() -> None:
    replica = Replica().open()
    refs: list[EntryRef] = []
    written = ProposedEntry([batch("t", b"1", b"2"), batch("t", b"3")], on_appended=refs.append)
    entry = NewEntry(Kind.MESSAGES, 1, 5_000, encode_payload(written.batches))
    (ref,) = replica.store.log.append([entry])
    replica.machine.appended(ref, written)
    assert (written.ref, refs, written.stored) == (ref, [ref], [])
    replica.apply()
    assert [(one.queue_id, one.queue_offset) for one in written.stored] == [(0, 0), (0, 2)]
    for one, body in zip(written.stored, (b"1", b"3"), strict=True):
        assert one.stored_at_ms == 5_000
        assert not one.is_duplicate
        assert replica.store.lookup.by_id(one.log_offset).message.body == body


def test_producers_are_known_by_what_is_applied() -> None:
    leader, follower = Replica().open(), Replica()
    written = leader.write([batch("t", b"x", producer_id="p", sequence=7)])
    assert leader.state.producers.find("p", 7) is None
    leader.apply()
    send(leader.store.log, follower.store.log, 1 << 20)
    follower.apply()
    expected = written.stored[0]._replace(is_duplicate=True)
    assert leader.state.producers.find("p", 7) == expected
    assert follower.state.producers.find("p", 7) == expected


def test_applying_returns_what_each_entry_changed() -> None:
    replica = Replica().open()
    replica.write(put("t"))
    late = batch("t", b"3", deliver_at_ms=9_000_000)
    replica.write([batch("t", b"1"), batch("t", b"2", queue_id=1), late])
    replica.write(drop("t"), term=2)
    created, filled, dropped = replica.apply()
    assert created == AppliedEntry(True, [], [], [put("t")])
    assert not filled.is_first_of_term
    assert filled.arrivals == [Queue("t", 0), Queue("t", 1)]
    (held,) = filled.held
    assert held.queue == HeldQueue(SCHEDULE_TOPIC, lane_of(9_000_000), 9_000_000)
    (found,) = read_held(replica.store.log, [(held.log_offset, len(held.batch.data))])
    assert found.batch.data == late.data
    assert dropped == AppliedEntry(True, [], [], [drop("t")])
    assert replica.machine.applied_term == 2


def test_an_entry_is_applied_when_the_one_before_it_is_done_with() -> None:
    replica = Replica().open()
    replica.write(put("t"))
    replica.write(drop("t"))
    replica.store.log.sync()
    applying = replica.machine.apply_through(replica.store.log.last_index)
    next(applying)
    assert "t" in replica.state.topics
    next(applying)
    assert "t" not in replica.state.topics
    assert list(applying) == []


@pytest.mark.parametrize("payload", [b"\xff\xff", b"", b"\x7a\x03abc"])
def test_an_illegal_command_changes_nothing(payload: bytes) -> None:
    replica = Replica().open()
    replica.write(put("t"))
    replica.apply()
    before = replica.summary()
    replica.store.log.append([NewEntry(Kind.COMMAND, 1, 5_000, [payload])])
    replica.apply()
    assert replica.summary() == before
    assert replica.store.applied_index == replica.store.log.last_index


def test_entries_that_are_taken_back_are_forgotten() -> None:
    replica = Replica().open()
    replica.write(put("t"))
    replica.apply()
    lost = replica.write([batch("t", b"lost", producer_id="p", sequence=1)])
    assert lost.ref is not None
    replica.store.log.truncate(lost.ref.raft_index)
    replica.machine.forget(lost.ref.raft_index)
    # Another one stands in its place: what comes of it is not told to the first.
    kept = replica.write([batch("t", b"kept")], term=2)
    replica.apply()
    assert lost.stored == []
    assert len(kept.stored) == 1
    assert [one.body for one in read_all(replica.store, "t")] == [b"kept"]
    assert replica.state.producers.find("p", 1) is None


def test_commands_do_what_they_say() -> None:
    replica = Replica().open()
    topics, offsets = replica.state.topics, replica.state.offsets

    def apply(work: Command | list[Batch]) -> None:
        replica.write(work)
        replica.apply()

    apply(put("t", 3))
    assert (topics.find("t").read_queues, topics.find("t").created_at_ms) == (3, 5_000)
    apply(commit("g", "t", 1, 8))
    apply(commit("g", "gone", 1, 8))
    assert offsets.positions("g") == {Queue("t", 1): 8}
    apply(lock("g", "t", 1, "m"))
    assert offsets.locks("g") == {Queue("t", 1): "m"}
    apply(drop("t"))
    assert "t" not in topics
    assert (offsets.positions("g"), offsets.locks("g"), "g" in offsets) == ({}, {}, True)
    apply(Command(drop_group=DropGroup(group="g")))
    assert "g" not in offsets


def test_entries_of_another_leader_replace_truncated_ones() -> None:
    leader, replica = Replica().open(), Replica()
    send(leader.store.log, replica.store.log, 1 << 20)
    replica.apply()
    for name in ("lost", "lost-too"):
        replica.write(put(name), term=1)
    first_index = replica.store.log.last_index - 1
    replica.store.log.truncate(first_index)
    replica.machine.forget(first_index)
    for work in (put("kept"), [batch("kept", b"x")]):
        leader.write(work, term=2)
    leader.apply()
    send(leader.store.log, replica.store.log, 1 << 20)
    replica.apply()
    assert [one.name for one in replica.state.topics] == ["kept"]
    assert replica.summary() == leader.summary()


def test_entries_before_truncated_ones_keep_their_proposers() -> None:
    replica = Replica().open()
    kept = replica.write([batch("t", b"kept")])
    lost = replica.write([batch("t", b"lost")])
    assert lost.ref is not None
    replica.store.log.truncate(lost.ref.raft_index)
    replica.machine.forget(lost.ref.raft_index)
    replica.apply()
    assert (len(kept.stored), lost.stored) == (1, [])


def test_a_machine_starts_over_with_the_log_of_another() -> None:
    leader, replica = Replica().open(), Replica().open()
    leader.write(put("theirs"))
    leader.write([batch("theirs", b"x", producer_id="p", sequence=1)])
    leader.apply()
    roll(leader.store, 9_000, 1)
    leader.apply()
    leader.store.drop_front(1)
    replica.write(put("mine"))
    replica.apply()
    # Where the other log has something else.
    nevers = [replica.write(put(f"never-{number}")) for number in range(4)]
    log = leader.store.log
    replica.store.log.start_over(log.first_index, log.start_offset)
    send(log, replica.store.log, 1 << 20)
    replica.store.log.sync()
    replica.machine.start_over()
    assert replica.summary()[0] == leader.summary()[0]
    assert replica.state.producers.find("p", 1) is not None
    # And goes on from there; what it wrote itself once is forgotten.
    for name in ("more", "and-more"):
        leader.write(put(name))
    leader.apply()
    send(log, replica.store.log, 1 << 20)
    replica.apply()
    assert [one.name for one in replica.state.topics] == ["and-more", "more", "theirs"]
    assert nevers[-1].ref is not None
    assert nevers[-1].ref.raft_index == replica.store.log.last_index


def test_the_state_is_the_same_bytes_and_comes_back() -> None:
    replica = Replica().open()
    for work in (
        put("t"),
        commit("g", "t", 1, 0),
        lock("g", "t", 0, "m"),
        [batch("t", b"x", producer_id="p", sequence=1)],
    ):
        replica.write(work)
    replica.apply()
    encoded = replica.state.encode()
    other = State()
    other.restore(encoded)
    assert other.encode() == encoded
    assert other.topics.find("t") == replica.state.topics.find("t")
    assert other.offsets.locks("g") == {Queue("t", 0): "m"}
    assert other.producers.find("p", 1) is not None
    other.producers.record("q", 1, StoredAt(0, 0, 0, 0))
    other.restore(encoded)
    assert other.encode() == encoded, "nothing stays of what was there before"
    other.restore(b"")
    assert (len(other.topics), other.offsets.groups(), len(other.producers)) == (0, [], 0)


def held_and_done(leader: Replica) -> None:
    """Half messages, delayed ones and leases, each with what becomes of it, as atoms."""
    leader.write(put("t"))
    half = batch("t", b"half", half=Half(producer_group="g", first_check_ms=1, checks_max=1))
    late = batch("t", b"late", deliver_at_ms=900_000)
    written = leader.write([half, late, batch("t", b"now", producer_id="p", sequence=1)])
    leader.apply()
    first, _, _ = written.stored
    (lane,) = leader.state.schedule.lanes
    at = leader.store.queues.get(SCHEDULE_TOPIC, lane)
    assert at is not None
    place = int(at.read(0, 1)["log_offset"][0])
    progress = LaneProgress(lane=lane, due_ms=900_000, log_offset=place, batches=1, messages=1)
    ended = ChangeTransactions(committed=[first.log_offset])
    lease = LeaseChange(start=0, end=1, lease=7, visible_at_ms=9_000, attempts=1)
    leases = QueueLeases(group="g", topic="t", queue_id=0, changes=[lease])
    commands = [
        Command(deliver_scheduled=DeliverScheduled(lanes=[progress])),
        Command(change_transactions=ended),
        Command(change_leases=ChangeLeases(queues=[leases])),
        Command(put_group=PutGroup(group="g", retries_max=3)),
    ]
    leader.write_atom(
        [batch("t", b"half"), batch("t", b"late", queue_id=1)],
        Command(many=Many(commands=commands)),
    )
    leader.apply()


def test_messages_and_a_command_are_one_entry_on_every_replica() -> None:
    leader, follower = Replica().open(), Replica()
    held_and_done(leader)
    send(leader.store.log, follower.store.log, 1 << 20)
    told = [command.WhichOneof("kind") for one in follower.apply() for command in one.commands]
    assert follower.summary() == leader.summary()
    assert told[1:] == ["deliver_scheduled", "change_transactions", "change_leases", "put_group"]
    state = follower.state
    assert (state.schedule.lanes, state.transactions.open) == ({}, {})
    assert state.transactions.committed == 1
    assert state.offsets.retries_max("g") == 3
    assert [one.body for one in read_all(follower.store, "t", 0)] == [b"now", b"half"]
    assert [one.body for one in read_all(follower.store, "t", 1)] == [b"late"]
    before = leader.summary()
    leader.vfs.kill()
    again = Replica(leader.vfs)
    again.apply()
    assert again.summary() == before


def test_a_queue_is_trimmed_and_a_group_that_is_dropped_takes_all_along() -> None:
    leader = Replica().open()
    held_and_done(leader)
    starts = [QueuePosition(topic="t", queue_id=0, queue_offset=1)]
    leader.write(Command(trim_queues=TrimQueues(starts=starts)))
    leader.write(Command(drop_group=DropGroup(group="g")))
    leader.apply()
    queue = leader.store.queues.get("t", 0)
    assert queue is not None
    assert (queue.start, queue.end) == (1, 2)
    assert "g" not in leader.state.offsets
    assert list(leader.state.leases.encode()) == []
