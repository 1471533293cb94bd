"""The content of logs: hazards around truncation, stale answers, large entries, starting over and
memory.

Each promise is shown twice: it holds, and with the guard taken out, so that PySyncObj does what it
does by itself, it breaks.
"""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from pysyncobj.journal import createJournal

from mq.errors import MalformedEntries
from mq.raft.contracts import Limits
from mq.raft.raft_log import RaftLog
from mq.raft.replication import Replication
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind
from mq.store.vfs import RealVfs
from tests.sim.ledger import Violation
from tests.sim.machine import CountingMachine
from tests.sim.node import Setup
from tests.sim.world import World
from tests.support.naive_wire import varint

if TYPE_CHECKING:
    from pathlib import Path

    from mq.wire.v1.raft_pb2 import StartOver
    from tests.sim.network import Sent
    from tests.sim.node import SimNode


@pytest.fixture
def one_entry_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.raft.replication.REGION_BYTES_MAX", 1)


# -- entries that are there already are trimmed ----------------------------------------------------


class Truncates(Replication):
    """On any append below its end, as PySyncObj does."""

    def _known_part(self, body: memoryview, index: int, term: int) -> tuple[int, int, int]:  # noqa: ARG002
        return 0, index, term


def get_an_old_append_again(world: World) -> SimNode:
    """Two of three have one entry more when a copy of an append comes late; then the leader goes,
    and the other two elect.
    """
    leader = world.settle()
    follower, behind = world.others(leader)
    world.cut_off(behind)
    world.network.record = []
    first_index = world.commit(b"applied everywhere")
    # Just after a heartbeat: the next one comes when all is over.
    assert world.run_until(lambda: follower.core.commit_index == first_index, 1.0)
    assert leader.replica is not None
    for _ in range(2):
        leader.replica.propose(Kind.COMMAND, [b"the follower does not know"], leader._ended)
        world.proposed += 1
    leader.tick()
    last_index = first_index + 2
    assert world.run_until(lambda: last_index in world.ledger.acknowledged, 1.0)
    (old,) = [
        sent
        for sent in world.network.record
        if sent.receiver == follower.name
        and sent.frame.body
        and sent.frame.message.append.prev_index == first_index
    ]
    assert follower.core.commit_index == first_index
    assert follower.log.last_index == last_index
    world.network.deliver_again(old)
    leader.stop(is_power_loss=True)
    world.network.heal()
    world.run(5.0)
    return follower


@pytest.mark.usefixtures("one_entry_a_frame")
def test_an_append_that_comes_again_takes_nothing_away() -> None:
    with World(1) as world:
        follower = get_an_old_append_again(world)
        assert world.leader() is follower
        world.converge()


@pytest.mark.usefixtures("one_entry_a_frame")
def test_without_trim_an_append_that_comes_again_cuts_committed_entries() -> None:
    with (
        World(1, setup=Setup(replication_class=Truncates)) as world,
        pytest.raises(Violation, match="leader completeness"),
    ):
        get_an_old_append_again(world)


class BelievesTheCommitIndex(Replication):
    """PySyncObj's, which has just truncated what it cannot be sure of: we have not."""

    def _committed_here(self, commit_index: int, verified_index: int) -> int:  # noqa: ARG002
        return commit_index


def come_back_with_entries_that_nobody_else_has(world: World) -> SimNode:
    """A leader does not hear that others have its entries, and writes more alone. Then it gets all
    from its commit point on again, entry by entry, with a commit index far beyond.
    """
    old = world.settle()
    for other in world.others(old):
        world.network.cut(other.name, old.name)
    for _ in range(2):
        old.propose(b"committed by the next leader")
    world.run(0.3)
    world.cut_off(old)
    for _ in range(2):
        old.propose(b"not committed")
    world.run(4.0)
    for _ in range(5):
        world.commit(b"committed")
    world.network.heal()
    world.run(3.0)
    return old


@pytest.mark.usefixtures("one_entry_a_frame")
def test_only_what_is_known_to_be_the_leaders_is_committed() -> None:
    with World(1) as world:
        old = come_back_with_entries_that_nobody_else_has(world)
        assert old.core.role == 0
        world.converge()


@pytest.mark.usefixtures("one_entry_a_frame")
def test_a_trimmed_append_with_the_leaders_commit_index_commits_other_entries() -> None:
    with (
        World(1, setup=Setup(replication_class=BelievesTheCommitIndex)) as world,
        pytest.raises(Violation, match="state machine safety: entry 5"),
    ):
        come_back_with_entries_that_nobody_else_has(world)


# -- an answer of another term ---------------------------------------------------------------------


class CountsAnyAnswer(Replication):
    def _is_current(self, term: int) -> bool:  # noqa: ARG002
        return True


def answer_in_an_old_term(world: World) -> tuple[SimNode, int]:
    """An answer for many entries of term 1 is late. They are discarded; their leader is elected
    again, with other entries at those places, and now the answer comes.
    """
    leader = world.settle()
    answerer, first, *_ = world.others(leader)
    world.cut_off(leader, answerer)
    world.network.record = []
    for _ in range(20):
        leader.propose(b"discarded")
        world.run(0.01)
    world.run(0.2)
    late = answers(world.network.record, answerer, leader)[-1]
    assert late.frame.message.append_answer.next_index > 20
    world.run(4.0)
    world.network.heal()
    world.cut_off(answerer)
    world.commit(b"instead")
    world.run(1.0)
    world.lead(leader)
    world.run(0.5)
    world.cut_off(leader, first)
    leader.propose(b"on two of five")
    world.run(0.3)
    last_index = leader.log.last_index
    assert last_index < late.frame.message.append_answer.next_index
    world.network.deliver_again(late)
    return leader, last_index


def answers(record: list[Sent], sender: SimNode, receiver: SimNode) -> list[Sent]:
    ways = sender.name, receiver.name
    return [s for s in record if s[1:3] == ways and s.kind == "append_answer"]


def test_an_answer_of_an_old_term_does_not_count() -> None:
    with World(1, 5) as world:
        leader, last_index = answer_in_an_old_term(world)
        assert leader.core.commit_index < last_index
        world.converge()


def test_an_answer_of_an_old_term_that_counts_commits_what_two_of_five_have() -> None:
    with (
        World(1, 5, Setup(replication_class=CountsAnyAnswer)) as world,
        pytest.raises(Violation, match="durable on 2 of 5"),
    ):
        answer_in_an_old_term(world)


# -- large entries ---------------------------------------------------------------------------------

CHUNK_BYTES = 1 << 16
LARGE = Setup(
    limits=Limits(),
    segment_bytes=64 << 20,
    buffer_bytes=16 << 20,
)


def test_entries_of_any_legal_size_are_replicated() -> None:
    with World(1, setup=LARGE) as world:
        world.settle()
        # Around the size from which PySyncObj itself would send in chunks, and the largest.
        for size in (CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES - 60, 4 << 20):
            world.commit(bytes(size))
        leader = world.settle()
        assert {node.log.end_offset for node in world.nodes.values()} == {leader.log.end_offset}
        world.converge()


class LargeState(CountingMachine):
    def checkpoint_payload(self) -> list[bytes]:
        # An unknown field of the message, as large as a broker with very many topics has it.
        size = 9 << 20
        return [*super().checkpoint_payload(), b"\xf2\x01" + varint(size), bytes(size)]


def test_a_checkpoint_larger_than_any_batch_is_replicated() -> None:
    setup = LARGE._replace(machine_class=LargeState, segment_bytes=10 << 20)
    with World(1, setup=setup) as world:
        world.settle()
        for _ in range(3):
            world.commit(bytes(900 << 10))
        leader = world.settle()
        assert len(leader.log.segments()) > 1
        world.converge()


# -- a follower too far behind -------------------------------------------------------------------


def come_back_when_the_log_has_moved_on(world: World) -> SimNode:
    """It has entries that no other node has, and those that it needs next are gone."""
    away = world.settle()
    world.cut_off(away)
    for _ in range(4):
        away.propose(b"not committed")
    world.run(4.0)
    for _ in range(30):
        world.commit(bytes(400))
    for node in world.others(away):
        node.log.drop_front(len(node.log.segments()) - 1)
    world.network.heal()
    world.run(3.0)
    return away


def test_a_follower_too_far_behind_starts_over() -> None:
    with World(1) as world:
        away = come_back_when_the_log_has_moved_on(world)
        assert away.replica is not None
        assert away.replica.start_overs == 1
        assert away.log.first_index > 20
        world.converge()


# -- start over ------------------------------------------------------------------------------------


class AlwaysStartsOver(Replication):
    def _lacks_opening(self, start: StartOver, term: int) -> bool:
        return super()._lacks_opening(start, term) or not self.log.has(start.first_index, 0)


def get_an_old_start_over_again(world: World) -> SimNode:
    """A follower starts over and acknowledges more; then a copy of the message comes late."""
    world.network.record = []
    follower = come_back_when_the_log_has_moved_on(world)
    (start_over, *_) = [sent for sent in world.network.record if sent.kind == "start_over"]
    world.cut_off(next(iter(node for node in world.others(follower) if node is not world.leader())))
    for _ in range(10):
        world.commit(bytes(400))
    world.run(0.5)
    world.network.deliver_again(start_over)
    return follower


def test_a_node_that_has_the_leaders_first_entry_does_not_start_over() -> None:
    with World(1) as world:
        follower = get_an_old_start_over_again(world)
        assert follower.replica is not None
        assert follower.replica.start_overs == 1
        leader = world.leader()
        assert leader is not None
        assert follower.log.last_index == leader.log.last_index
        world.converge()


def test_a_start_over_that_comes_again_would_take_back_what_was_acknowledged() -> None:
    with World(1, setup=Setup(replication_class=AlwaysStartsOver)) as world:
        follower = get_an_old_start_over_again(world)
        assert follower.replica is not None
        assert follower.replica.start_overs == 2
        leader = world.leader()
        assert leader is not None
        assert follower.log.last_index < leader.core.match_index(follower.name)


# -- memory ----------------------------------------------------------------------------------------

LOG_BYTES = 32 << 20


def open_log(directory: Path) -> RaftLog:
    log = CommitLog(
        RealVfs(),
        str(directory / "commitlog"),
        segment_bytes=4 << 20,
        verify_bytes=1,
        background=False,
    )
    return RaftLog(log)


def fill(log: CommitLog) -> None:
    payload = bytes(64 << 10)
    while log.end_offset < LOG_BYTES:
        log.roll(NewEntry(Kind.CHECKPOINT, 1, 0, [b""]))
        for _ in range(32):
            log.append([NewEntry(Kind.COMMAND, 1, 0, [payload])])


def test_the_log_is_not_in_memory(tmp_path: Path) -> None:
    raft_log = open_log(tmp_path)
    fill(raft_log.commitlog)
    raft_log.commitlog.sync()
    raft_log.commitlog.close()
    tracemalloc.start()
    try:
        raft_log = open_log(tmp_path)
        assert {raft_log.term_at(index) for index in range(1, raft_log.last_index + 1)} == {1}
        sent, next_index = 0, 1
        while next_index <= raft_log.last_index:
            region = raft_log.region(next_index, 1 << 20)
            sent += len(region.data)
            next_index = region.last_index + 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        raft_log.commitlog.close()
    assert sent == raft_log.commitlog.end_offset >= LOG_BYTES
    assert peak < LOG_BYTES / 4


def test_a_journal_of_pysyncobj_is_in_memory() -> None:
    tracemalloc.start()
    try:
        journal = createJournal(None)
        for index in range(LOG_BYTES >> 16):
            journal.add(bytes(64 << 10), index + 1, 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held >= LOG_BYTES


def test_a_body_that_is_no_entries_is_refused_whole() -> None:
    with World(1) as world:
        leader = world.settle()
        follower = world.others(leader)[0]
        with pytest.raises(MalformedEntries):
            follower.log.extend(b"nothing of the kind")
        before = follower.log.end_offset
        world.network.record = []
        world.commit()
        appends = [sent for sent in world.network.record if sent.frame.body]
        damaged = bytearray(appends[0].frame.body)
        damaged[-1] ^= 1
        follower.log.truncate(3)
        follower.receive(leader.name, appends[0].frame._replace(body=memoryview(damaged)))
        assert follower.log.end_offset == before
