"""Leadership that an operator moves, in virtual time: the new leader, and the fate of proposals
made meanwhile.
"""

from __future__ import annotations

import contextlib
import math

import pytest

from mq.errors import FlowControl, IllegalMembership, NotLeader, OutcomeUnknown
from mq.raft.contracts import Committed, Outcome, Role
from mq.raft.replica import Replica
from mq.raft.transfer import Transfer
from mq.store.format import Kind
from tests.sim.node import SimNode
from tests.sim.world import World


def replica_of(node: SimNode) -> Replica:
    assert node.replica is not None
    return node.replica


def propose_often(
    world: World,
    leader: SimNode,
    outcomes: list[Outcome],
    period_s: float,
    duration_s: float = math.inf,
) -> None:
    """As long as it leads."""
    end_s = world.now_s + duration_s

    def propose() -> None:
        is_leading = leader.is_up and replica_of(leader).leadership.role == Role.LEADER
        if is_leading and world.now_s < end_s:
            with contextlib.suppress(FlowControl):
                replica_of(leader).propose(Kind.COMMAND, [b"x"], outcomes.append)
            world.schedule(period_s, propose)

    propose()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_named", [True, False])
def test_the_chosen_node_leads_and_every_proposal_ends_in_a_known_way(
    seed: int, *, is_named: bool
) -> None:
    with World(seed) as world:
        leader = world.settle()
        world.run(0.3)
        chosen = world.others(leader)[seed % 2]
        outcomes: list[Outcome] = []
        propose_often(world, leader, outcomes, 0.001)
        world.run(0.05)
        replica_of(leader).begin_transfer(chosen.name if is_named else "", 5.0)
        assert world.run_until(lambda: world.leader() not in (None, leader), 1.0)
        assert not is_named or world.leader() is chosen
        assert not replica_of(leader).transfer.is_under_way
        world.run(0.5)
        assert sum(isinstance(one, Committed) for one in outcomes) > 10
        # None of them unknown: a producer that is not idempotent gets no duplicate by this.
        assert {type(one) for one in outcomes} <= {Committed, NotLeader}
        world.commit()
        world.converge()


def test_a_leader_whose_own_disk_is_slow_waits_for_it() -> None:
    """The others have committed without it, but it has not answered yet."""
    with World(3) as world:
        leader = world.settle()
        world.run(0.3)
        leader.sync_s = 0.3
        outcomes: list[Outcome] = []
        propose_often(world, leader, outcomes, 0.01)
        world.run(0.1)
        replica_of(leader).begin_transfer("", 5.0)
        assert world.run_until(lambda: world.leader() not in (None, leader), 1.5)
        world.run(0.5)
        assert {type(one) for one in outcomes} == {Committed, NotLeader}
        leader.sync_s = 0.001
        world.converge()


def test_without_the_pause_of_the_pen_outcomes_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transfer, "blocks_writes", False)
    outcomes: list[Outcome] = []
    for seed in range(6):
        with World(seed) as world:
            leader = world.settle()
            world.run(0.3)
            propose_often(world, leader, outcomes, 0.002)
            world.run(0.05)
            replica_of(leader).begin_transfer("", 5.0)
            world.run(2.0)
    assert any(isinstance(one, OutcomeUnknown) for one in outcomes)


@pytest.mark.parametrize("seed", range(24))
def test_the_set_goes_on_whichever_node_dies_or_is_cut_off_at_any_step(seed: int) -> None:
    """The chosen node, the leader or the third one, for good or for a while; the world checks at
    each step that there is one leader in a term and that nothing committed is lost.
    """
    with World(seed) as world:
        leader = world.settle()
        world.run(0.3)
        chosen, third = world.others(leader)
        outcomes: list[Outcome] = []
        propose_often(world, leader, outcomes, 0.002, 0.2)
        world.run(0.02)
        replica = replica_of(leader)
        replica.begin_transfer(chosen.name, 5.0)
        # Held, asked, elected: all of it within some ten milliseconds.
        world.run(seed * 0.0015)
        victim = (chosen, leader, third)[seed % 3]
        if seed % 2:
            world.cut_off(victim)
        else:
            victim.stop(is_power_loss=True)
        # The other two agree on a leader, and it writes: no pen rests for ever.
        world.commit(timeout_s=10.0)
        if victim.is_up:
            assert world.run_until(lambda: not replica.transfer.is_under_way, 10.0)
        world.converge()
        assert not any(replica_of(node).transfer.blocks_writes for node in world.up())


def test_a_node_that_is_behind_gets_time_and_then_the_leader_goes_on() -> None:
    with World(1) as world:
        leader = world.settle()
        world.run(0.3)
        slow = world.others(leader)[0]
        world.cut_off(slow)
        for _ in range(100):
            leader.propose(b"x")
        world.run(0.5)
        replica = replica_of(leader)
        replica.begin_transfer(slow.name, 1.0)
        # It is not waited for while it is away.
        outcomes: list[Outcome] = []
        replica.propose(Kind.COMMAND, [b"x"], outcomes.append)
        assert world.run_until(lambda: bool(outcomes), 0.5)
        assert world.run_until(lambda: not replica.transfer.is_under_way, 1.1)
        assert slow.name in replica.transfer.failure
        assert world.leader() is leader
        world.heal()
        replica.begin_transfer(slow.name, 5.0)
        assert world.run_until(lambda: world.leader() is slow, 6.0)
        world.converge()


def test_a_node_that_does_not_stand_costs_a_moment_and_the_pen_goes_on() -> None:
    with World(1) as world:
        leader = world.settle()
        world.run(0.3)
        deaf = world.others(leader)[0]
        assert deaf.replica is not None
        deaf.core._steps["timeout_now"] = lambda *_: None
        replica = replica_of(leader)
        outcomes: list[Outcome] = []
        replica.begin_transfer(deaf.name, 5.0)
        leader.tick()
        replica.propose(Kind.COMMAND, [b"x"], outcomes.append)
        world.run(1.0)
        assert replica.transfer.blocks_writes
        assert outcomes == []
        assert world.run_until(lambda: bool(outcomes), 1.5)
        assert [type(one) for one in outcomes] == [Committed]
        assert "did not take over" in replica.transfer.failure
        assert world.leader() is leader
        world.converge()


def test_wishes_that_make_no_sense_are_refused() -> None:
    with World(1) as world:
        leader = world.settle()
        one, other = world.others(leader)
        replica = replica_of(leader)
        with pytest.raises(IllegalMembership, match="n9 is no member: there are n0, n1, n2"):
            replica.begin_transfer("n9", 1.0)
        with pytest.raises(NotLeader):
            replica_of(one).begin_transfer(other.name, 1.0)
        replica.begin_transfer(one.name, 1.0)
        replica.begin_transfer(one.name, 1.0)
        with pytest.raises(IllegalMembership, match=f"on its way to {one.name}"):
            replica.begin_transfer(other.name, 1.0)
        assert world.run_until(lambda: world.leader() is one, 2.0)
        replica_of(one).add_member("n7", "n7:1", lambda _: None)
        with pytest.raises(IllegalMembership, match="n7 is being added"):
            replica_of(one).begin_transfer(other.name, 1.0)
        world.converge()


def test_a_node_alone_cannot_hand_over() -> None:
    with World(1, count=1) as world:
        leader = world.settle()
        with pytest.raises(IllegalMembership, match="alone"):
            replica_of(leader).begin_transfer("", 1.0)
