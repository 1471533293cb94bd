"""Leadership: hazards of PySyncObj around elections, and of a node that has forgotten.

Each promise is shown twice: it holds, and with the guard taken out, so that PySyncObj does what it
does by itself, it breaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.errors import NodeStopped, NotLeader, OutcomeUnknown
from mq.raft.contracts import Committed, Outcome, Role, Timing
from mq.raft.election import Election
from mq.raft.proposals import Proposals
from mq.raft.vote import VoteTrust
from mq.store.format import Kind
from tests.sim.ledger import Violation
from tests.sim.network import Weather
from tests.sim.node import Setup
from tests.sim.world import World
from tests.support.faulty_vfs import FaultyVfs

if TYPE_CHECKING:
    from tests.sim.node import SimNode


# -- pre-vote --------------------------------------------------------------------------------------


class WithoutPreVote(Election):
    def _decide_election(self) -> None:
        """PySyncObj's timer goes off whenever it likes."""


def come_back_after_a_while(world: World) -> tuple[SimNode, int]:
    leader = world.settle()
    term = leader.core.term
    away = world.others(leader)[0]
    world.cut_off(away)
    world.run(3.0)  # less than it takes to give the connection up
    assert world.leader() is leader or away.core.term > term
    world.network.heal()
    world.run(3.0)
    return leader, term


def test_a_node_that_was_away_does_not_depose_the_leader() -> None:
    with World(1) as world:
        leader, term = come_back_after_a_while(world)
        assert world.leader() is leader
        assert {node.core.term for node in world.nodes.values()} == {term}
        world.converge()


def test_without_pre_vote_a_node_that_was_away_deposes_the_leader() -> None:
    with World(1, setup=Setup(election_class=WithoutPreVote)) as world:
        _, term = come_back_after_a_while(world)
        assert world.elect().core.term > term + 1


def test_a_node_whose_log_is_behind_stops_raising_terms() -> None:
    """Alone with one that has more, and without a leader: it asks, and is told no."""
    with World(1) as world:
        leader = world.settle()
        ahead, behind = world.others(leader)
        world.cut_off(behind)
        world.commit()
        world.network.cut(ahead.name, leader.name)
        leader.stop(is_power_loss=True)
        world.network.heal()
        assert world.elect() is ahead
        assert ahead.core.term == 2


# -- a leader without a majority -------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 5])
def test_a_leader_without_a_majority_steps_down_within_two_seconds(count: int) -> None:
    with World(1, count) as world:
        leader = world.settle()
        world.run(0.5)
        world.cut_off(leader)
        leader.propose(b"x")
        cut_s = world.now_s
        assert world.run_until(lambda: leader.core.role != Role.LEADER, 2.0)
        assert world.now_s - cut_s <= 2.0
        assert leader.core.leader_id is None
        world.converge()


def test_with_the_timeout_of_pysyncobj_a_leader_without_a_majority_stays() -> None:
    with World(1, setup=Setup(timing=Timing(fallback_s=30.0))) as world:
        leader = world.settle()
        world.cut_off(leader)
        leader.propose(b"x")
        world.run(20.0)
        assert leader.core.role == Role.LEADER
        assert leader.replica is not None
        assert leader.replica.waiting == 1


# -- proposals whose entry is discarded ------------------------------------------------------------


def forget_the_waiters(self: Proposals, error: Exception) -> None:
    """PySyncObj calls back when an entry is applied at the proposed index, and only then."""


def propose_to_a_leader_that_is_cut_off(world: World) -> list[Outcome]:
    leader = world.settle()
    world.cut_off(leader)
    outcomes: list[Outcome] = []
    assert leader.replica is not None
    leader.replica.propose(Kind.COMMAND, [b"x"], outcomes.append)
    leader.tick()
    world.run(4.0)
    world.network.heal()
    world.run(2.0)
    world.commit()
    world.run(1.0)
    return outcomes


def test_a_discarded_entry_has_an_unknown_outcome_for_its_proposer() -> None:
    with World(1) as world:
        (outcome,) = propose_to_a_leader_that_is_cut_off(world)
        assert isinstance(outcome, OutcomeUnknown)
        world.converge()


def test_pysyncobj_answers_the_proposer_of_a_discarded_entry_with_the_result_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Proposals, "end_leadership", forget_the_waiters)
    with World(1) as world:
        (outcome,) = propose_to_a_leader_that_is_cut_off(world)
        assert isinstance(outcome, Committed)
        assert world.ledger.committed[outcome.raft_index] != outcome.term


def test_unwritten_proposals_are_refused_when_the_leadership_ends() -> None:
    with World(1) as world:
        leader = world.settle()
        outcomes: list[Outcome] = []
        assert leader.replica is not None
        leader.replica.propose(Kind.COMMAND, [b"x"], outcomes.append)
        leader.core.election.step_down()
        leader.replica.on_writable()
        (outcome,) = outcomes
        assert isinstance(outcome, NotLeader)


def test_proposers_are_answered_when_the_node_stops() -> None:
    with World(1) as world:
        leader = world.settle()
        world.cut_off(leader)
        outcomes: list[Outcome] = []
        assert leader.replica is not None
        for _ in range(2):
            leader.replica.propose(Kind.COMMAND, [b"x"], outcomes.append)
        replica = leader.replica
        leader.stop(is_power_loss=False)
        assert [type(outcome) for outcome in outcomes] == [NodeStopped, NodeStopped]
        with pytest.raises(NodeStopped):
            replica.propose(Kind.COMMAND, [b"x"], outcomes.append)


# -- one vote a node -------------------------------------------------------------------------------


class CountsVoteMessages(Election):
    def _is_first_vote(self, peer_id: str, term: int) -> bool:  # noqa: ARG002
        return True


def stand_with_one_voter_and_a_network_that_copies(world: World) -> SimNode:
    voter = world.settle()
    candidate = world.others(voter)[0]
    world.cut_off(voter, candidate)
    voter.ask_to_lead(candidate)
    world.network.weather = Weather(duplicate=1.0)
    world.run(4.0)
    return candidate


def test_a_vote_counts_once_however_often_it_arrives() -> None:
    with World(2, 5) as world:
        candidate = stand_with_one_voter_and_a_network_that_copies(world)
        assert candidate.name not in world.ledger.leaders.values()
        assert len(world.ledger.leaders) > 1
        world.converge()


def test_votes_that_count_by_the_message_elect_two_leaders_of_a_term() -> None:
    with (
        World(2, 5, Setup(election_class=CountsVoteMessages)) as world,
        pytest.raises(Violation, match=r"election safety: .* term 2"),
    ):
        stand_with_one_voter_and_a_network_that_copies(world)


# -- a node that has forgotten does not vote -------------------------------------------------------


@pytest.fixture
def forgetful_nodes_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the directory is all there ever was."""
    monkeypatch.setattr(VoteTrust, "check", lambda *_: None)
    monkeypatch.setattr(VoteTrust, "notice", lambda *_: None)


def lose_the_directory_of_one_of_two(world: World) -> tuple[SimNode, SimNode]:
    """Two of three have an entry. One of them loses its directory, the other is away."""
    leader = world.settle()
    forgetful, behind = world.others(leader)
    world.cut_off(behind)
    world.commit()
    forgetful.stop(is_power_loss=False)
    leader.stop(is_power_loss=False)
    forgetful.vfs = FaultyVfs(1)
    world.network.heal()
    forgetful.start()
    world.run(6.0)
    return leader, forgetful


def test_a_node_with_an_empty_directory_does_not_help_to_elect_one_that_is_behind() -> None:
    with World(1) as world:
        leader, forgetful = lose_the_directory_of_one_of_two(world)
        assert world.leader() is None
        assert forgetful.must_catch_up()
        leader.start()
        world.settle()
        assert not forgetful.must_catch_up()
        world.converge()


@pytest.mark.usefixtures("forgetful_nodes_vote")
def test_a_node_with_an_empty_directory_that_votes_loses_what_was_committed() -> None:
    with (
        World(1) as world,
        pytest.raises(Violation, match="leader completeness"),
    ):
        lose_the_directory_of_one_of_two(world)


def lose_synced_entries_of_one_of_two(world: World) -> SimNode:
    """As above, but the disk has lost the end of the log only."""
    leader = world.settle()
    forgetful, behind = world.others(leader)
    world.cut_off(behind)
    before = forgetful.log.end_offset
    world.commit()
    forgetful.stop(is_power_loss=False)
    leader.stop(is_power_loss=False)
    path = "/data/commitlog/00000000000000000000.log"
    data = bytearray(forgetful.vfs.read_all(path))
    data[before:] = bytes(len(data) - before)
    forgetful.vfs.write_all(path, data)
    world.network.heal()
    forgetful.start()
    world.run(6.0)
    return leader


def test_a_node_that_lost_synced_entries_does_not_vote_before_it_has_them_again() -> None:
    with World(1) as world:
        leader = lose_synced_entries_of_one_of_two(world)
        assert world.leader() is None
        leader.start()
        world.converge()


@pytest.mark.usefixtures("forgetful_nodes_vote")
def test_a_node_that_lost_synced_entries_and_votes_loses_what_was_committed() -> None:
    with (
        World(1) as world,
        pytest.raises(Violation, match="leader completeness"),
    ):
        lose_synced_entries_of_one_of_two(world)


def vote_and_lose_the_vote_file(world: World) -> None:
    """A voter of term 2 comes back without its vote, to one that asks in term 2."""
    voter = world.settle()
    first, second = world.others(voter)
    world.network.cut(first.name, second.name)
    world.network.cut(second.name, first.name)
    world.lead(first)
    voter.stop(is_power_loss=False)
    voter.vfs.remove("/data/vote")
    world.cut_off(first)
    voter.start()
    world.run(4.0)


def test_a_node_that_lost_its_vote_file_does_not_vote_again() -> None:
    with World(3) as world:
        vote_and_lose_the_vote_file(world)
        assert max(world.ledger.leaders) == 2
        world.converge()


@pytest.mark.usefixtures("forgetful_nodes_vote")
def test_a_node_that_lost_its_vote_file_and_votes_votes_twice() -> None:
    with (
        World(3) as world,
        pytest.raises(Violation, match=r"election safety: .* term 2"),
    ):
        vote_and_lose_the_vote_file(world)


def test_a_new_group_trusts_itself_however_early_it_crashes() -> None:
    """Every participant of the first election knows that there was nothing before."""
    with World(1) as world:
        world.elect()
        for node in world.nodes.values():
            node.stop(is_power_loss=False)
        for node in world.nodes.values():
            node.start()
        world.settle()
        world.converge()
        assert not any(node.must_catch_up() for node in world.nodes.values())


# -- prompt ----------------------------------------------------------------------------------------


def test_a_killed_leader_is_replaced_before_the_election_timeout() -> None:
    """Its machine resets the connections."""
    with World(1) as world:
        leader = world.settle()
        world.run(0.5)
        leader.stop(is_power_loss=False)
        killed_s = world.now_s
        world.elect()
        assert world.now_s - killed_s < 0.4


def test_a_leader_whose_machine_is_gone_is_replaced_in_about_a_second() -> None:
    with World(1) as world:
        leader = world.settle()
        world.run(0.5)
        leader.stop(is_power_loss=True)
        lost_s = world.now_s
        world.elect()
        assert 0.4 < world.now_s - lost_s < 2.0


# -- asymmetric partitions -------------------------------------------------------------------------


def test_a_leader_that_can_send_but_not_hear_is_replaced() -> None:
    with World(1) as world:
        leader = world.settle()
        for other in world.others(leader):
            world.network.cut(other.name, leader.name)
        cut_s = world.now_s
        leader.propose(b"x")
        assert world.run_until(lambda: leader.core.role != Role.LEADER, 2.0)
        world.commit()
        assert world.leader() is not leader
        assert world.now_s - cut_s < 4.0
        world.converge()


def test_a_leader_that_can_hear_but_not_send_is_replaced() -> None:
    with World(1) as world:
        leader = world.settle()
        for other in world.others(leader):
            world.network.cut(leader.name, other.name)
        cut_s = world.now_s
        leader.propose(b"x")
        assert world.run_until(lambda: leader.core.role != Role.LEADER, 2.0)
        world.commit()
        assert world.leader() is not leader
        assert world.now_s - cut_s < 4.0
        world.converge()


def test_a_follower_that_can_send_but_not_hear_disturbs_no_leader() -> None:
    with World(1) as world:
        leader = world.settle()
        deaf = world.others(leader)[0]
        for other in world.others(deaf):
            world.network.cut(other.name, deaf.name)
        for _ in range(30):
            world.commit()
            world.run(0.1)
        assert world.leader() is leader
        assert leader.core.term == 1
        world.converge()
