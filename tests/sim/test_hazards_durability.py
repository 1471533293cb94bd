"""Only what is on disk counts: hazards of PySyncObj around fsync and restarts.

Each promise is shown twice: it holds, and with the guard taken out, so that PySyncObj does what it
does by itself, it breaks.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from mq.raft.core import Core
from mq.raft.ready import Ready
from mq.raft.replication import Replication
from mq.raft.vote import Vote, VoteFile, encode
from tests.sim.ledger import Violation
from tests.sim.machine import CountingMachine
from tests.sim.node import TIMING, Setup
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.raft.engine import Peer
    from mq.store.commitlog import CommitLog
    from mq.store.logreader import Entry
    from mq.store.vfs import Vfs
    from tests.sim.node import SimNode

NEVER_S = 1000.0


# -- a follower answers after its sync -------------------------------------------------------------


class AnswersBeforeTheSync(Replication):
    def _answer(self, leader: Peer, verified_index: int) -> None:
        self._send_answer(leader.id, verified_index + 1, success=True)


def propose_to_a_follower_that_does_not_sync(world: World) -> SimNode:
    leader = world.settle()
    follower, away = world.others(leader)
    world.cut_off(away)
    follower.sync_s = NEVER_S
    leader.propose(b"on the leader's disk only")
    world.run(1.0)
    return follower


def test_an_entry_that_a_follower_has_not_synced_is_not_committed() -> None:
    with World(1) as world:
        follower = propose_to_a_follower_that_does_not_sync(world)
        assert follower.log.last_index == 3
        assert 3 not in world.ledger.committed
        assert not world.ledger.acknowledged
        world.converge()


def test_answers_before_the_sync_commit_what_one_disk_has() -> None:
    with (
        World(1, setup=Setup(replication_class=AnswersBeforeTheSync)) as world,
        pytest.raises(Violation, match=r"durability: .* durable on 1 of 3"),
    ):
        propose_to_a_follower_that_does_not_sync(world)


def test_a_follower_whose_disk_is_slow_still_says_that_it_lives() -> None:
    """Otherwise its leader would step down while a sync takes its time."""
    with World(1) as world:
        leader = world.settle()
        for node in world.others(leader):
            node.sync_s = NEVER_S
        leader.propose(b"x")
        world.run(5.0)
        assert world.leader() is leader


# -- the leader counts itself after its sync -------------------------------------------------------


class CountsItselfAtOnce(Replication):
    def _own_index(self) -> int:
        return self.log.last_index


def propose_to_a_leader_that_does_not_sync(world: World) -> SimNode:
    leader = world.settle()
    _, away = world.others(leader)
    world.cut_off(away)
    leader.sync_s = NEVER_S
    leader.propose(b"on the follower's disk only")
    world.run(1.0)
    return leader


def test_an_entry_that_the_leader_has_not_synced_is_not_committed() -> None:
    with World(1) as world:
        leader = propose_to_a_leader_that_does_not_sync(world)
        assert leader.core.match_index(world.others(leader)[0].name) == 3
        assert 3 not in world.ledger.committed
        world.converge()


def test_a_leader_that_counts_itself_at_once_commits_what_one_disk_has() -> None:
    with (
        World(1, setup=Setup(replication_class=CountsItselfAtOnce)) as world,
        pytest.raises(Violation, match=r"durability: .* durable on 1 of 3"),
    ):
        propose_to_a_leader_that_does_not_sync(world)


def test_a_node_alone_acknowledges_after_its_sync() -> None:
    with World(1, 1) as world:
        node = world.settle()
        node.sync_s = 0.5
        node.propose(b"x")
        world.run(0.2)
        assert not world.ledger.acknowledged
        world.run(1.0)
        assert list(world.ledger.acknowledged) == [3]
        node.stop(is_power_loss=True, keep=0)
        node.start()
        world.converge()
        assert node.log.last_index > 3


def test_a_node_alone_that_counts_itself_at_once_acknowledges_what_no_disk_has() -> None:
    with World(1, 1, Setup(replication_class=CountsItselfAtOnce)) as world:
        world.nodes["n0"].sync_s = 0.5
        with pytest.raises(Violation, match="durable on 0 of 1"):
            world.settle()


# -- term and vote ---------------------------------------------------------------------------------


class VotesWithoutSync(VoteFile):
    def _write(self, vote: Vote) -> None:
        self._file.pwritev([encode(vote)], vote.sequence % 2 * 4096)
        self._vote = vote


def vote_lose_power_and_be_asked_again(world: World) -> None:
    """One gets a vote in term 2, the voter loses power, another asks it in term 2."""
    voter = world.settle()
    first, second = world.others(voter)
    for node in world.nodes.values():
        node.vfs.sync_tree("/data")  # the kernel does so every half minute
    world.network.cut(first.name, second.name)
    world.network.cut(second.name, first.name)
    voter.sync_s = NEVER_S
    world.lead(first)
    assert first.core.term == 2
    voter.stop(is_power_loss=True, keep=0)
    world.cut_off(first)
    voter.start()
    world.run(4.0)


def test_a_vote_survives_a_power_loss() -> None:
    with World(3) as world:
        vote_lose_power_and_be_asked_again(world)
        assert max(world.ledger.leaders) > 2
        world.converge()


def test_a_vote_without_sync_is_given_twice() -> None:
    with (
        World(3, setup=Setup(vote_class=VotesWithoutSync)) as world,
        pytest.raises(Violation, match=r"election safety: .* term 2"),
    ):
        vote_lose_power_and_be_asked_again(world)


# -- a commit index that outlives its entries ------------------------------------------------------


class BelievesTheCommitIndex(Core):
    """As PySyncObj's file journal: in the file's header, without sync, believed as it is."""

    kept: dict[int, int]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._disk = id(self.log.commitlog._vfs)
        self.replication.commit_index = self.kept.get(self._disk, 1)

    def tick(self, now_s: float) -> Ready:
        ready = super().tick(now_s)
        self.kept[self._disk] = self.commit_index
        return ready


def lose_the_end_of_every_log(world: World) -> tuple[SimNode, SimNode]:
    """In async flush mode that is legal: no sync is waited for. Then a leader writes others, which
    reach one node only.
    """
    world.settle()
    for node in world.nodes.values():
        node.log.sync()  # now and then that happens
    for _ in range(5):
        world.commit(b"lost")
    world.run(0.3)
    for node in world.nodes.values():
        node.stop(is_power_loss=True, keep=0)
    world.ledger.forget(3)
    for node in world.nodes.values():
        node.start()
    leader = world.settle()
    follower = world.others(leader)[0]
    world.cut_off(leader, follower)
    for _ in range(6):
        leader.propose(b"new")
    world.run(1.0)
    return leader, follower


def test_a_commit_index_beyond_the_log_is_not_believed() -> None:
    with World(1, 5, Setup(counts_unsynced=True)) as world:
        leader, follower = lose_the_end_of_every_log(world)
        assert follower.log.last_index == leader.log.last_index
        assert follower.core.commit_index < follower.log.last_index - 5


def test_a_commit_index_beyond_the_log_applies_what_is_not_committed() -> None:
    BelievesTheCommitIndex.kept = {}
    with (
        World(1, 5, Setup(BelievesTheCommitIndex, counts_unsynced=True)) as world,
        pytest.raises(Violation, match="in the logs of 1 of 5"),
    ):
        lose_the_end_of_every_log(world)


def test_the_commit_index_starts_at_the_applied_index_within_the_log() -> None:
    with World(1, 1) as world:
        node = world.settle()
        assert node.replica is not None
        core, vote = node.core, node.replica.vote
        for applied_index, commit_index in ((0, 0), (1, 1), (1 << 40, node.log.last_index)):
            made = Core(
                "n0",
                ["n0"],
                core.log,
                vote,
                TIMING,
                applied_index=applied_index,
                has_room=lambda _: True,
                rng=random.Random(1),
                now_s=0.0,
            )
            assert made.commit_index == commit_index


# -- what was applied is not applied again ---------------------------------------------------------


class AppliesFromTheStart(CountingMachine):
    """Derived files that are there, and a start at index 2: PySyncObj's `raftLastApplied = 1`."""

    def __init__(
        self, vfs: Vfs, path: str, log: CommitLog, on_apply: Callable[[Entry], None]
    ) -> None:
        super().__init__(vfs, path, log, on_apply)
        self.applied_index = min(self.applied_index, 1)


def restart_after_a_checkpoint(world: World) -> list[int]:
    """The entries that the node applies after its restart."""
    leader = world.settle()
    for _ in range(4):
        world.commit()
    node = world.others(leader)[0]
    world.settle()
    node.machine.save()
    world.commit()
    world.settle()
    node.stop(is_power_loss=False)
    applied: list[int] = []
    before = node._applied

    def apply(entry: Entry) -> None:
        applied.append(entry.ref.raft_index)
        before(entry)

    node._applied = apply  # type: ignore[method-assign]
    node.start()
    world.converge()
    return applied


def test_a_restart_applies_what_follows_the_checkpoint_once() -> None:
    with World(1, setup=Setup(segment_bytes=1 << 20)) as world:
        applied = restart_after_a_checkpoint(world)
        assert applied == list(range(7, world.elect().log.last_index + 1))


def test_a_restart_that_applies_from_the_start_applies_twice() -> None:
    setup = Setup(segment_bytes=1 << 20, machine_class=AppliesFromTheStart)
    with (
        World(1, setup=setup) as world,
        pytest.raises(Violation, match=r"state machine safety: .* differ"),
    ):
        restart_after_a_checkpoint(world)


# -- async flush: exactly what can be lost ---------------------------------------------------------

ASYNC = Setup(counts_unsynced=True)


def acknowledge_without_sync(world: World) -> SimNode:
    world.settle()
    for _ in range(5):
        world.commit()
    return world.settle()


def test_async_flush_loses_nothing_when_all_processes_are_killed() -> None:
    with World(1, setup=ASYNC) as world:
        acknowledge_without_sync(world)
        acknowledged = dict(world.ledger.acknowledged)
        for node in world.nodes.values():
            node.stop(is_power_loss=False)
        for node in world.nodes.values():
            node.start()
        world.converge()
        assert world.ledger.acknowledged.items() >= acknowledged.items()


def test_async_flush_loses_nothing_when_one_machine_loses_power_and_gets_the_log_again() -> None:
    with World(1, setup=ASYNC) as world:
        leader = acknowledge_without_sync(world)
        for node in (leader, *world.others(leader)):
            node.stop(is_power_loss=True, keep=0)
            world.run(4.0)
            node.start()
            world.settle()
        world.converge()


def test_async_flush_loses_what_was_acknowledged_when_a_majority_loses_power_at_once() -> None:
    with World(1, setup=ASYNC) as world:
        leader = acknowledge_without_sync(world)
        for node in world.others(leader):
            node.stop(is_power_loss=True, keep=0)
        leader.stop(is_power_loss=False)
        for node in world.others(leader):
            node.start()
        with pytest.raises(Violation, match="leader completeness"):
            world.run(5.0)


def test_async_flush_loses_what_was_acknowledged_when_two_fail_one_after_the_other() -> None:
    """A machine loses power, and the leader goes before the first has got back what it lost."""
    with World(1, setup=ASYNC) as world:
        leader = world.settle()
        for node in world.nodes.values():
            node.log.sync()
        follower, behind = world.others(leader)
        world.cut_off(behind)
        world.commit()
        follower.stop(is_power_loss=True, keep=0)
        leader.stop(is_power_loss=False)
        world.network.heal()
        follower.start()
        with pytest.raises(Violation, match="leader completeness"):
            world.run(6.0)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_async_flush_takes_back_what_one_node_has_applied_and_a_majority_has_lost(
    is_restarted: bool,
) -> None:
    """The others lead, and write other entries in its place: all nodes are the same again."""
    with World(1, setup=ASYNC) as world:
        leader = world.settle()
        for node in world.nodes.values():
            node.log.sync()
        lost = world.commit(b"lost")
        for _ in range(4):
            world.commit(b"lost")
        leader = world.settle()
        keeper, other = world.others(leader)
        keeper.machine.save()  # a checkpoint, which syncs the log first
        assert keeper.machine.applied_index >= lost + 4
        for node in (leader, other):
            node.stop(is_power_loss=True, keep=0)
        if is_restarted:
            keeper.stop(is_power_loss=True, keep=0)
            keeper.start()
            keeper._committed = keeper.log.last_index  # which the ledger has heard of
        world.ledger.forget(lost)
        world.cut_off(keeper)
        for node in (leader, other):
            node.start()
        world.run(3.0)
        kept = [world.commit(b"kept") for _ in range(3)]
        assert lost < kept[0] <= lost + 4 <= keeper.machine.applied_index
        world.converge()
        assert keeper.replica is not None
        assert keeper.replica.start_overs == 1
        assert world.ledger.acknowledged.keys() >= set(kept)


def test_sync_flush_loses_nothing_when_all_machines_lose_power() -> None:
    with World(1) as world:
        world.settle()
        for _ in range(5):
            world.commit()
        acknowledged = dict(world.ledger.acknowledged)
        for node in world.nodes.values():
            node.stop(is_power_loss=True, keep=0)
        for node in world.nodes.values():
            node.start()
        world.converge()
        assert world.ledger.acknowledged.items() >= acknowledged.items()
