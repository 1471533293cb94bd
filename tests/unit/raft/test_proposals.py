"""Entries from the queue to their outcome."""

from __future__ import annotations

import pytest

from mq.errors import DiskFull, FlowControl, NotLeader, OutcomeUnknown
from mq.raft.contracts import Committed, Outcome
from mq.raft.proposals import Proposal, Proposals
from mq.store.format import Kind

NOT_LEADER = NotLeader(None, None)


class Waiting:
    """Proposals by name, and what came of them."""

    def __init__(self, *, count_max: int = 10, bytes_max: int = 100) -> None:
        self.proposals = Proposals(count_max=count_max, bytes_max=bytes_max)
        self.ended: list[tuple[str, Outcome]] = []

    def put(self, name: str, size: int = 10) -> None:
        def done(outcome: Outcome) -> None:
            self.ended.append((name, outcome))

        self.proposals.put(Proposal(Kind.COMMAND, [], size, done, name))

    def told(self) -> list[tuple[str, Outcome]]:
        self.proposals.tell()
        return self.ended

    def names(self) -> list[str]:
        return [name for name, _ in self.told()]


def test_each_proposal_ends_once_in_order_when_it_is_applied() -> None:
    waiting = Waiting()
    for name in "abc":
        waiting.put(name)
    waiting.proposals.appended(waiting.proposals.take(100), 5, 2)
    waiting.proposals.applied(4)
    assert waiting.told() == []
    waiting.proposals.applied(6)
    assert waiting.ended == []
    assert waiting.told() == [("a", Committed(5, 2)), ("b", Committed(6, 2))]
    assert len(waiting.proposals) == 1
    waiting.proposals.applied(9)
    waiting.proposals.applied(9)
    assert waiting.names() == ["a", "b", "c"]


@pytest.mark.parametrize(("count_max", "bytes_max"), [(2, 1000), (10, 20)])
def test_more_than_may_wait_is_refused_until_something_ends(count_max: int, bytes_max: int) -> None:
    waiting = Waiting(count_max=count_max, bytes_max=bytes_max)
    waiting.put("a")
    waiting.put("b")
    with pytest.raises(FlowControl):
        waiting.put("c", 1)
    waiting.proposals.appended(waiting.proposals.take(100), 1, 1)
    with pytest.raises(FlowControl):
        waiting.put("c", 1)
    waiting.proposals.applied(1)
    waiting.put("c")
    with pytest.raises(FlowControl):
        waiting.put("d", 1)


def test_as_many_are_taken_as_fit_but_at_least_one() -> None:
    waiting = Waiting()
    for name in "abcd":
        waiting.put(name)
    assert [each.context for each in waiting.proposals.take(20)] == ["a", "b"]
    assert [each.context for each in waiting.proposals.take(0)] == ["c"]
    assert [each.context for each in waiting.proposals.take(19)] == ["d"]
    assert waiting.proposals.take(19) == []
    assert not waiting.proposals.queued


def test_proposals_that_are_put_back_come_first_and_in_order() -> None:
    waiting = Waiting()
    for name in "abc":
        waiting.put(name)
    taken = waiting.proposals.take(20)
    waiting.proposals.put_back(taken)
    assert waiting.proposals.queued
    assert [each.context for each in waiting.proposals.take(100)] == ["a", "b", "c"]


def test_at_the_end_of_a_leadership_what_was_written_is_unknown_and_the_rest_refused() -> None:
    waiting = Waiting(bytes_max=20)
    waiting.put("written")
    (written,) = waiting.proposals.take(0)
    waiting.proposals.appended([written], 5, 2)
    waiting.put("queued")
    waiting.proposals.end_leadership(NOT_LEADER)
    assert [(name, type(outcome)) for name, outcome in waiting.told()] == [
        ("written", OutcomeUnknown),
        ("queued", NotLeader),
    ]
    assert len(waiting.proposals) == 0
    waiting.put("next", 20)


def test_a_full_disk_refuses_only_what_was_not_written() -> None:
    waiting = Waiting()
    waiting.put("written")
    (written,) = waiting.proposals.take(0)
    waiting.proposals.appended([written], 5, 2)
    waiting.put("queued")
    waiting.proposals.refuse_queued(DiskFull("full"))
    assert waiting.names() == ["queued"]
    assert len(waiting.proposals) == 1


def test_a_proposer_that_fails_on_its_outcome_keeps_it_from_no_other() -> None:
    waiting = Waiting()

    def fail(_: Outcome) -> None:
        raise ZeroDivisionError

    waiting.proposals.put(Proposal(Kind.COMMAND, [], 10, fail))
    waiting.put("b")
    waiting.proposals.refuse_queued(DiskFull("full"))
    assert waiting.names() == ["b"]
