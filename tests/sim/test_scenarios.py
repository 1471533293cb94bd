"""Members that come and go, disks that fail or fill up, planned stops: small stories by hand."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from mq.errors import (
    DiskFull,
    IllegalMembership,
    MqError,
    NodeStopped,
    OutcomeUnknown,
    StorageFailed,
)
from mq.raft.contracts import Committed, Outcome, Role
from mq.raft.core import Core
from mq.raft.membership import Changes, Membership
from mq.raft.ready import Ready
from mq.raft.replica import Replica
from mq.store.format import Kind
from tests.sim.ledger import Violation
from tests.sim.network import IDLE_TIMEOUT_S
from tests.sim.node import Setup, SimNode
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mq.raft.frames import Frame


def replica_of(node: SimNode) -> Replica:
    assert node.replica is not None
    return node.replica


def join(world: World, *, starts: bool = True) -> tuple[SimNode, list[Outcome]]:
    """A fourth node is being added to the group."""
    leader = world.elect()
    outcomes: list[Outcome] = []
    node = world.join(leader, outcomes.append)
    if starts:
        node.start()
    return node, outcomes


def test_the_first_entry_of_a_new_leader_has_the_time_at_which_it_was_written() -> None:
    with World(1) as world:
        leader = world.settle()
        written = leader.log.ref(2)
        assert written.kind == Kind.NOOP
        assert leader.now_ms() - 2_000 <= written.stored_at_ms <= leader.now_ms()


# -- members ---------------------------------------------------------------------------------------


def test_a_new_node_gets_the_log_and_is_then_counted() -> None:
    with World(1) as world:
        world.settle()
        for _ in range(40):
            world.commit(bytes(200))
        node, outcomes = join(world)
        assert world.run_until(lambda: bool(outcomes), 5.0)
        assert isinstance(outcomes[0], Committed)
        leader = world.settle()
        assert node.name in replica_of(leader).membership.members
        assert len(leader.core.other_ids) == 3
        assert {len(each.core.other_ids) for each in world.nodes.values()} == {3}
        world.converge()


def test_a_removed_member_is_not_counted() -> None:
    with World(1, 5) as world:
        leader = world.settle()
        gone = world.others(leader)[0]
        outcomes: list[Outcome] = []
        replica_of(leader).remove_member(gone.name, outcomes.append)
        assert world.run_until(lambda: bool(outcomes), 3.0)
        assert isinstance(outcomes[0], Committed)
        assert len(leader.core.other_ids) == 3
        world.run(3.0)
        assert world.leader() is leader
        assert gone.core.role == Role.FOLLOWER
        assert leader.core.term == 1
        # Three of the four that are left are a majority, with or without it.
        gone.stop(is_power_loss=False)
        world.others(leader, gone)[0].stop(is_power_loss=False)
        world.commit()


def test_two_changes_at_once_are_refused_and_so_is_nonsense() -> None:
    with World(1) as world:
        leader = world.settle()
        replica, other = replica_of(leader), world.others(leader)[0]
        for wrong in (leader.name, "nobody"):
            with pytest.raises(IllegalMembership):
                replica.remove_member(wrong, lambda _: None)
        with pytest.raises(IllegalMembership, match="a member already"):
            replica.add_member(other.name, "x:1", lambda _: None)
        with pytest.raises(MqError):
            replica_of(other).remove_member(leader.name, lambda _: None)
        replica.add_member("n9", "n9:1", lambda _: None)
        with pytest.raises(IllegalMembership, match="one change at a time"):
            replica.remove_member(other.name, lambda _: None)
        world.converge()


def test_a_change_that_is_called_off_leaves_no_trace() -> None:
    with World(1) as world:
        leader = world.settle()
        outcomes: list[Outcome] = []
        replica_of(leader).add_member("n9", "n9:1", outcomes.append)
        assert "n9" in leader.peers
        replica_of(leader).cancel_change()
        assert isinstance(outcomes[0], NodeStopped)
        assert "n9" not in leader.peers
        replica_of(leader).cancel_change()
        assert len(outcomes) == 1
        world.converge()


def test_a_change_ends_with_the_leadership_that_began_it() -> None:
    with World(1) as world:
        leader = world.settle()
        other = world.others(leader)[0]
        world.cut_off(leader)
        outcomes: list[Outcome] = []
        replica_of(leader).remove_member(other.name, outcomes.append)
        leader.tick()
        assert leader.log.last_checkpoint_index == leader.log.last_index > 1
        world.run(3.0)
        (outcome,) = outcomes
        assert isinstance(outcome, OutcomeUnknown)
        world.converge()
        assert set(replica_of(leader).membership.members) == set(world.nodes)


def forget_the_former(*_: object) -> dict[str, str]:
    """Only the members at the end of the log are known."""
    return {}


def take_a_removal_back(world: World) -> SimNode:
    """A leader alone writes that one goes; that one leads next, and has to reach it."""
    leader = world.settle()
    removed, other = world.others(leader)
    world.cut_off(leader)
    replica_of(leader).remove_member(removed.name, lambda _: None)
    leader.tick()
    assert removed.name not in replica_of(leader).membership.members
    world.run(5.0)
    if world.leader() is other:
        world.lead(removed)
    # It is never the other one that leads: a node that knows no better would find only that one.
    other.core.election.is_voter = False
    world.network.heal()
    return leader


def test_former_members_are_reachable_while_their_removal_is_not_committed() -> None:
    with World(1) as world:
        leader = take_a_removal_back(world)
        world.converge()
        assert set(replica_of(leader).membership.members) == set(world.nodes)


def test_a_node_that_forgets_former_members_never_hears_that_they_are_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Membership, "_members_before", forget_the_former)
    with World(1) as world:
        take_a_removal_back(world)
        with pytest.raises(Violation, match="liveness"):
            world.converge(10.0)


def test_a_removal_that_would_leave_no_healthy_majority_is_refused() -> None:
    with World(1) as world:
        leader = world.settle()
        down, healthy = world.others(leader)
        down.stop(is_power_loss=False)
        for _ in range(3):
            world.commit()
        world.run(0.5)
        with pytest.raises(IllegalMembership, match=f"{down.name} would be needed"):
            replica_of(leader).remove_member(healthy.name, lambda _: None)
        outcomes: list[Outcome] = []
        replica_of(leader).remove_member(down.name, outcomes.append)
        assert world.run_until(lambda: bool(outcomes), 3.0)
        assert isinstance(outcomes[0], Committed)


def test_a_removal_that_leaves_no_healthy_majority_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq.raft.membership.is_close", lambda *_: True)
    with World(1) as world:
        leader = world.settle()
        down, healthy = world.others(leader)
        down.stop(is_power_loss=False)
        world.commit()
        replica_of(leader).remove_member(healthy.name, lambda _: None)
        with pytest.raises(Violation, match="nothing committed"):
            world.commit(timeout_s=10.0)


def admits_anybody(self: Changes, members: Mapping[str, str]) -> dict[str, str]:
    """Whether or not it has the log."""
    return {**members, **self.learner_address()}


def fill_a_segment_while_a_node_joins_that_never_comes(world: World) -> SimNode:
    world.settle()
    join(world, starts=False)
    leader = world.elect()
    before = leader.log.last_checkpoint_index
    while leader.log.last_checkpoint_index == before:
        world.commit(bytes(400))
    world.run(0.5)
    return leader


def test_a_full_segment_does_not_admit_a_node_that_is_not_ready() -> None:
    with World(1) as world:
        leader = fill_a_segment_while_a_node_joins_that_never_comes(world)
        assert set(replica_of(leader).membership.members) == {"n0", "n1", "n2"}
        world.others(leader, world.nodes["n3"])[0].stop(is_power_loss=False)
        world.commit()


def test_a_node_that_is_admitted_before_it_is_ready_costs_the_majority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Changes, "members_after", admits_anybody)
    with World(1) as world:
        leader = fill_a_segment_while_a_node_joins_that_never_comes(world)
        assert "n3" in replica_of(leader).membership.members
        world.others(leader, world.nodes["n3"])[0].stop(is_power_loss=False)
        with pytest.raises(Violation, match="nothing committed"):
            world.commit(timeout_s=10.0)


class SaysNothing(Replica):
    """Without a log there is nothing to answer with."""

    def _receive(self, peer_id: str, frame: Frame) -> None:
        if self.core is not None or frame.message.WhichOneof("content") != "append":
            super()._receive(peer_id, frame)


@pytest.mark.parametrize("replica_class", [Replica, SaysNothing])
def test_a_blank_node_asks_for_the_log_by_answering(replica_class: type[Replica]) -> None:
    with World(1, setup=Setup(replica_class=replica_class)) as world:
        world.settle()
        node, outcomes = join(world)
        world.run(6.0)
        assert bool(outcomes) == (node.log.last_index > 0) == (replica_class is Replica)


def test_a_node_that_was_away_while_all_members_changed_finds_them() -> None:
    """By those that it knows and are still there."""
    with World(1) as world:
        leader = world.settle()
        away, other = world.others(leader)
        away.stop(is_power_loss=False)
        _, added = join(world)
        assert world.run_until(lambda: bool(added), 5.0)
        removed: list[Outcome] = []
        replica_of(leader).remove_member(other.name, removed.append)
        assert world.run_until(lambda: bool(removed), 5.0)
        other.stop(is_power_loss=False)
        away.start()
        world.run(2.0)
        assert set(away.peers) == {leader.name, "n3"}
        assert away.machine.applied_index == leader.log.last_index


# -- planned stop ----------------------------------------------------------------------------------


def test_a_planned_stop_hands_the_leadership_over_without_a_gap() -> None:
    with World(1) as world:
        leader = world.settle()
        world.run(0.3)
        replica = replica_of(leader)
        replica.begin_stop()
        with pytest.raises(NodeStopped):
            replica.propose(Kind.COMMAND, [b"x"], lambda _: None)
        assert replica.hand_over()
        start_s = world.now_s
        assert world.run_until(lambda: leader.core.role != Role.LEADER, 0.1)
        assert world.run_until(lambda: world.leader() is not None, 0.1)
        assert world.now_s - start_s < 0.1
        leader.stop(is_power_loss=False)
        world.commit()
        world.converge()


def test_only_a_node_with_the_whole_log_is_asked_to_lead() -> None:
    with World(1) as world:
        leader = world.settle()
        world.run(0.3)
        for node in world.others(leader):
            node.sync_s = 1000.0
        leader.propose(b"x")
        world.run(0.3)
        assert not replica_of(leader).hand_over()
        assert not replica_of(world.others(leader)[0]).hand_over()
        world.converge()


# -- disks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))], ids=["heap", "map"]
)
def test_a_leader_without_memory_says_so_and_gives_up_and_another_leads(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: int) -> None:
        raise error

    with World(1) as world:
        leader = world.settle()
        replica = replica_of(leader)
        monkeypatch.setattr(leader.machine, "apply_through", fail)
        world.commit()
        assert "no memory is left" in str(replica.failure)
        assert world.leader() not in (None, leader)
        world.converge()


class NeverResigns(Core):
    def _resign(self) -> None:
        """Raft says nothing of a disk that stands still."""


class GoesOn(Replica):
    def fail(self, error: MqError) -> None:
        """PySyncObj never asks whether the disk took anything."""


def fail_the_leaders_disk(world: World) -> tuple[SimNode, list[Outcome]]:
    leader = world.settle()
    leader.vfs.fail("sync", "commitlog", times=1000)
    outcomes: list[Outcome] = []
    replica_of(leader).propose(Kind.COMMAND, [b"x"], outcomes.append)
    leader.tick()
    world.run(4.0)
    return leader, outcomes


def test_a_leader_whose_disk_fails_gives_up_and_another_leads() -> None:
    with World(1) as world:
        leader, outcomes = fail_the_leaders_disk(world)
        assert not leader.is_up
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown]
        assert world.leader() not in (None, leader)
        world.commit()
        world.converge()


def stall_the_leaders_disk(world: World) -> SimNode:
    """Its syncs do not end; messages come and go as before."""
    leader = world.settle()
    leader.sync_s = 1_000_000.0
    world.propose()
    return leader


def test_a_leader_whose_disk_stands_still_leaves_the_lead_to_one_whose_disk_moves() -> None:
    with World(1) as world:
        leader = stall_the_leaders_disk(world)
        world.commit()
        assert world.leader() not in (None, leader)
        world.converge()


def test_a_leader_that_stays_with_a_disk_that_stands_still_hangs() -> None:
    with World(1, setup=Setup(core_class=NeverResigns)) as world:
        leader = stall_the_leaders_disk(world)
        with pytest.raises(Violation, match="nothing committed"):
            world.commit()
        assert world.leader() is leader


def test_a_leader_that_goes_on_with_a_broken_disk_hangs() -> None:
    setup = Setup(replica_class=GoesOn, core_class=NeverResigns)
    with World(1, setup=setup) as world:
        leader, outcomes = fail_the_leaders_disk(world)
        assert world.leader() is leader
        assert outcomes == []


def test_a_node_that_cannot_save_its_vote_does_not_vote() -> None:
    with World(1) as world:
        leader = world.settle()
        voter = world.others(leader)[0]
        voter.vfs.fail("sync", "vote", times=1000)
        world.network.record = []
        leader.stop(is_power_loss=False)
        world.run(3.0)
        assert not voter.is_up
        assert not any(
            sent.sender == voter.name and sent.kind in ("vote_response", "vote_request")
            for sent in world.network.record
        )
        world.converge()


class Stays(Core):
    def transfer_leadership(self, now_s: float, to: str = "") -> Ready:  # noqa: ARG002
        return Ready()


def fill_the_leaders_disk(world: World) -> tuple[SimNode, list[Outcome]]:
    leader = world.settle()
    world.run(0.3)
    world.commit()
    leader.machine.is_full = True
    outcomes: list[Outcome] = []
    replica_of(leader).propose(Kind.COMMAND, [b"x"], outcomes.append)
    leader.tick()
    world.run(0.5)
    return leader, outcomes


def test_a_leader_without_space_refuses_and_another_leads() -> None:
    with World(1) as world:
        leader, outcomes = fill_the_leaders_disk(world)
        assert [type(outcome) for outcome in outcomes] == [DiskFull]
        assert world.leader() not in (None, leader)
        world.commit()
        world.converge()


def test_a_leader_without_space_that_stays_takes_nothing() -> None:
    with World(1, setup=Setup(Stays)) as world:
        leader, _ = fill_the_leaders_disk(world)
        assert world.leader() is leader
        with pytest.raises(Violation, match="nothing committed"):
            world.commit(timeout_s=5.0)


def test_a_leader_whose_disk_runs_full_in_the_middle_of_a_write_loses_nothing() -> None:
    with World(1) as world:
        leader = world.settle()
        world.run(0.3)
        leader.vfs.capacity_bytes = leader.vfs._used_bytes
        for _ in range(60):
            world.propose(bytes(400))
            world.run(0.02)
        assert world.leader() not in (None, leader)
        assert len(world.ledger.acknowledged) > 20
        world.converge()


class FailsWithoutSpace(Core):
    def refused(self, error: MqError, now_s: float) -> Ready:  # noqa: ARG002
        raise StorageFailed(str(error)) from error


def fill_a_followers_disk(world: World) -> SimNode:
    leader = world.settle()
    full = world.others(leader)[0]
    full.vfs.capacity_bytes = full.vfs._used_bytes
    for _ in range(40):
        world.commit(bytes(400))
    world.run(0.5)
    return full


def test_a_follower_without_space_waits_and_catches_up() -> None:
    with World(1) as world:
        full = fill_a_followers_disk(world)
        leader = world.elect()
        assert full.log.last_index < leader.log.last_index
        assert full.starts == 1
        full.vfs.capacity_bytes = None
        assert world.settle(2.0) is leader
        assert full.starts == 1
        world.converge()


def test_a_follower_that_takes_a_full_disk_for_a_broken_one_is_gone() -> None:
    with World(1, setup=Setup(FailsWithoutSpace)) as world:
        assert not fill_a_followers_disk(world).is_up


def test_a_node_without_space_for_its_first_entry_steps_down_at_once() -> None:
    """A new leader writes a no-op; a node that cannot does not lead."""
    with World(1) as world:
        leader = world.settle()
        full, other = world.others(leader)
        world.run(0.3)
        full.vfs.fail("pwritev", "commitlog", 28, times=1000)
        assert replica_of(leader).hand_over()
        world.run(3.0)
        assert world.leader() in (leader, other)
        world.converge()


def test_followers_that_have_nothing_to_say_stay_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Silence for long is taken for the end of a machine."""
    lost: list[str] = []

    def disconnected(node: SimNode, peer_id: str, *, was_lost: bool) -> None:
        lost.append(f"{node.name} - {peer_id}, lost: {was_lost}")

    with World(1) as world:
        leader = world.settle()
        monkeypatch.setattr(SimNode, "disconnected", disconnected)
        world.run(4 * IDLE_TIMEOUT_S)
        assert lost == []
        assert world.leader() is leader
