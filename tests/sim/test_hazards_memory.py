"""A node that has forgotten what it promised: for whom it counts, and when it votes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.raft.election import Election
from mq.raft.replication import Replication
from mq.raft.vote import VoteFile
from tests.sim.ledger import Violation
from tests.sim.node import Setup
from tests.sim.world import World
from tests.support.faulty_vfs import FaultyVfs

if TYPE_CHECKING:
    from mq.wire.v1.raft_pb2 import AppendAnswer
    from tests.sim.node import SimNode


def lose_the_directory(node: SimNode) -> None:
    node.stop(is_power_loss=False)
    node.vfs = FaultyVfs(1)


# -- a leader that was deposed and does not know it ------------------------------------------------


class CountsWhoHasForgotten(Replication):
    def _counts(self, answer: AppendAnswer) -> bool:  # noqa: ARG002
        return True


class TrustsAnyLeader(Election):
    @property
    def has_sure_leader(self) -> bool:
        return True


def come_back_to_a_deposed_leader(world: World) -> SimNode:
    """A node helps another leader, forgets it, and meets the old one, which does not know yet."""
    old = world.settle()
    world.commit()
    world.run(0.3)
    world.cut_off(old)
    for node in world.others(old):
        # Its machine is reachable, its process is not: they need not wait.
        node.core.election.enter(world.now_s)
        node.core.election.leader_lost()
    assert world.run_until(lambda: world.leader() not in (None, old), 1.0)
    new = world.elect()
    world.commit(b"by the new leader")
    (forgetful,) = world.others(old, new)
    lose_the_directory(forgetful)
    world.network.heal()
    world.cut_off(new)
    forgetful.start()
    old.propose(b"by the old leader")
    world.run(2.0)
    return old


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_has_forgotten_does_not_count_for_a_deposed_leader(seed: int) -> None:
    with World(seed) as world:
        old = come_back_to_a_deposed_leader(world)
        assert world.leader() is not old
        world.converge()


@pytest.mark.parametrize(
    "setup",
    [Setup(replication_class=CountsWhoHasForgotten), Setup(election_class=TrustsAnyLeader)],
)
def test_a_node_that_has_forgotten_and_counts_lets_two_leaders_commit(setup: Setup) -> None:
    with (
        World(1, setup=setup) as world,
        pytest.raises(Violation, match="state machine safety: entry 4"),
    ):
        come_back_to_a_deposed_leader(world)


def test_a_node_that_has_forgotten_votes_again_when_its_leader_has_lasted() -> None:
    with World(1) as world:
        leader = world.settle()
        forgetful = world.others(leader)[0]
        lose_the_directory(forgetful)
        forgetful.start()
        world.run(1.0)
        assert forgetful.log.last_index == leader.log.last_index
        assert forgetful.must_catch_up()
        assert leader.core.match_index(forgetful.name) == 0
        world.run(3.0)
        assert not forgetful.must_catch_up()
        assert leader.core.match_index(forgetful.name) == leader.log.last_index


# -- all members together know everything ----------------------------------------------------------


def forget_a_majority(world: World) -> SimNode:
    """Two of three have forgotten, but got the log again; then the leader is restarted."""
    leader = world.settle()
    world.commit()
    first, second = world.others(leader)
    for node in (first, second):
        lose_the_directory(node)
    first.start()
    second.start()
    world.run(1.0)
    assert first.must_catch_up()
    assert second.must_catch_up()
    assert world.run_until(lambda: world.leader() is None, 3.0)
    return leader


def test_a_group_whose_majority_has_forgotten_goes_on_when_all_are_there() -> None:
    """None of them has more than the candidate, and no other node can."""
    with World(1) as world:
        forget_a_majority(world)
        world.commit()
        world.converge()


def test_a_group_whose_majority_has_forgotten_waits_for_all() -> None:
    with World(1) as world:
        leader = forget_a_majority(world)
        leader.stop(is_power_loss=False)
        world.run(10.0)
        assert world.leader() is None
        leader.start()
        world.converge()


def test_without_unanimous_votes_a_group_whose_majority_has_forgotten_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand = Election._stand_if_winning

    def stand_by_majority(self: Election) -> None:
        self._supporters.clear()
        stand(self)

    monkeypatch.setattr(Election, "_stand_if_winning", stand_by_majority)
    with World(1) as world:
        forget_a_majority(world)
        with pytest.raises(Violation, match="liveness"):
            world.converge()


def test_a_group_in_which_all_have_to_catch_up_elects_the_one_that_has_most() -> None:
    with World(1) as world:
        leader = world.settle()
        behind = world.others(leader)[0]
        world.cut_off(behind)
        world.commit()
        for node in world.nodes.values():
            node.stop(is_power_loss=False)
            vote = VoteFile(node.vfs, "/data/vote")
            vote.save(vote.term, vote.voted_for, must_catch_up=True)
            vote.close()
        world.network.heal()
        for node in world.nodes.values():
            node.start()
        assert world.elect() is not behind
        world.converge()
