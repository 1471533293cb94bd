"""A change of members, from the request to its outcome."""

from __future__ import annotations

import pytest

from mq.errors import IllegalMembership, NotLeader, OutcomeUnknown
from mq.raft.contracts import Committed, Outcome
from mq.raft.membership import Changes

MEMBERS = {"a": "a:1", "b": "b:1", "c": "c:1"}
MATCHES = {"a": 100, "b": 100, "c": 100}
NOT_LEADER = NotLeader(None, None)


def learner_id(changes: Changes) -> str | None:
    return changes.learner_id


def may_cancel(changes: Changes) -> bool:
    return changes.may_cancel


def test_a_node_is_a_learner_until_it_has_nearly_all_and_then_counts_with_the_next_segment() -> (
    None
):
    changes, outcomes = Changes(), list[Outcome]()
    changes.begin_add(MEMBERS, "d", "d:1", outcomes.append)
    assert learner_id(changes) == "d"
    assert changes.learner_address() == {"d": "d:1"}
    changes.applied(100)
    for match_index in (0, 35):
        assert not changes.follow_learner(match_index, 100)
        assert changes.members_after(MEMBERS) == MEMBERS
    changes.written(101, 1)
    assert learner_id(changes) == "d"
    assert changes.follow_learner(36, 100)
    assert not changes.follow_learner(100, 100)
    assert changes.members_after(MEMBERS) == {**MEMBERS, "d": "d:1"}
    changes.written(102, 3)
    assert learner_id(changes) is None
    assert changes.members_after(MEMBERS) == MEMBERS
    changes.applied(101)
    assert outcomes == []
    changes.applied(102)
    assert outcomes == [Committed(102, 3)]
    assert changes.learner_address() == {}


def test_a_node_that_has_nothing_of_a_short_log_is_not_close_to_its_end() -> None:
    changes = Changes()
    changes.begin_add(MEMBERS, "d", "d:1", lambda _: None)
    assert not changes.follow_learner(0, 2)
    assert changes.follow_learner(1, 2)


def test_a_member_that_goes_is_not_in_the_next_segment() -> None:
    changes, outcomes = Changes(), list[Outcome]()
    changes.begin_remove(MATCHES, "b", "a", 100, outcomes.append)
    assert learner_id(changes) is None
    assert changes.learner_address() == {}
    assert changes.members_after(MEMBERS) == {"a": "a:1", "c": "c:1"}
    changes.written(101, 1)
    # A roll that comes later belongs to nobody.
    changes.written(105, 1)
    changes.applied(101)
    assert outcomes == [Committed(101, 1)]


@pytest.mark.parametrize(
    ("matches", "node_id"),
    [
        ({"a": 100, "b": 100, "c": 0}, "b"),
        ({"a": 100, "b": 100, "c": 35}, "b"),
        ({"a": 100, "b": 0, "c": 100, "d": 0, "e": 100}, "c"),
    ],
)
def test_a_removal_that_leaves_no_majority_that_is_up_to_date_is_refused(
    matches: dict[str, int], node_id: str
) -> None:
    changes = Changes()
    with pytest.raises(IllegalMembership, match="not caught up"):
        changes.begin_remove(matches, node_id, "a", 100, lambda _: None)
    # Nothing has begun.
    changes.begin_remove(MATCHES, "b", "a", 100, lambda _: None)


@pytest.mark.parametrize(
    ("matches", "node_id"),
    [
        ({"a": 100, "b": 100, "c": 36}, "b"),
        ({"a": 100, "b": 0, "c": 100}, "b"),
        ({"a": 100, "b": 0, "c": 100, "d": 100}, "c"),
        ({"a": 100, "b": 0}, "b"),
    ],
)
def test_a_removal_that_leaves_a_majority_is_taken(matches: dict[str, int], node_id: str) -> None:
    Changes().begin_remove(matches, node_id, "a", 100, lambda _: None)


def test_without_a_change_a_new_segment_is_only_that() -> None:
    changes = Changes()
    assert learner_id(changes) is None
    assert changes.learner_address() == {}
    assert not changes.follow_learner(100, 100)
    assert changes.members_after(MEMBERS) == MEMBERS
    changes.written(101, 1)
    changes.applied(101)
    changes.end(NOT_LEADER)
    assert changes.members_after(MEMBERS) == MEMBERS


def test_nonsense_is_refused() -> None:
    changes = Changes()
    with pytest.raises(IllegalMembership, match="a member already, at b:1"):
        changes.begin_add(MEMBERS, "b", "x:1", lambda _: None)
    with pytest.raises(IllegalMembership, match="z is no member"):
        changes.begin_remove(MATCHES, "z", "a", 100, lambda _: None)
    with pytest.raises(IllegalMembership, match="cannot remove itself"):
        changes.begin_remove(MATCHES, "a", "a", 100, lambda _: None)
    changes.begin_add(MEMBERS, "d", "d:1", lambda _: None)
    with pytest.raises(IllegalMembership, match="one change at a time"):
        changes.begin_add(MEMBERS, "e", "e:1", lambda _: None)
    with pytest.raises(IllegalMembership, match="one change at a time"):
        changes.begin_remove(MATCHES, "b", "a", 100, lambda _: None)


def test_a_change_that_is_in_the_log_has_an_unknown_outcome_and_cannot_be_called_off() -> None:
    changes, outcomes = Changes(), list[Outcome]()
    assert not may_cancel(changes)
    changes.begin_remove(MATCHES, "b", "a", 100, outcomes.append)
    assert may_cancel(changes)
    changes.written(101, 1)
    assert not may_cancel(changes)
    changes.end(NOT_LEADER)
    assert isinstance(outcomes[0], OutcomeUnknown)
    changes.end(NOT_LEADER)
    assert len(outcomes) == 1


def test_a_change_that_was_not_written_ends_with_the_reason() -> None:
    changes, outcomes = Changes(), list[Outcome]()
    changes.begin_add(MEMBERS, "d", "d:1", outcomes.append)
    changes.end(NOT_LEADER)
    assert outcomes == [NOT_LEADER]
    changes.begin_add(MEMBERS, "d", "d:1", outcomes.append)
