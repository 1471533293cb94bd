"""Offsets and locks of groups, by applying commands."""

from __future__ import annotations

import pytest

from mq.broker.queue import Queue
from mq.broker.state.offsets import Offsets
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.state_pb2 import GroupPositions, PutGroup, QueueLock

TOPICS = {"t", "u"}


def commit(offsets: Offsets, group: str, **positions: int) -> None:
    """`t0=5`: queue 0 of topic t."""
    wire = [
        QueuePosition(topic=name[0], queue_id=int(name[1:]), queue_offset=at)
        for name, at in positions.items()
    ]
    offsets.commit([GroupPositions(group=group, positions=wire)], TOPICS)


def lock(offsets: Offsets, group: str, **locks: str) -> None:
    wire = [
        QueueLock(topic=name[0], queue_id=int(name[1:]), member_id=member_id)
        for name, member_id in locks.items()
    ]
    offsets.lock(group, wire)


@pytest.fixture
def offsets() -> Offsets:
    found = Offsets()
    commit(found, "g", t0=1, t1=2, u0=3)
    commit(found, "h", t0=9)
    lock(found, "g", t0="a", u0="b")
    lock(found, "only-locks", t0="c")
    return found


def restored(offsets: Offsets) -> Offsets:
    other = Offsets()
    other.restore(list(offsets.encode()))
    return other


def test_the_newest_commit_counts_also_when_it_goes_back(offsets: Offsets) -> None:
    commit(offsets, "g", t0=7, t1=0)
    assert offsets.positions("g") == {Queue("t", 0): 7, Queue("t", 1): 0, Queue("u", 0): 3}
    assert offsets.positions("h") == {Queue("t", 0): 9}
    assert offsets.positions("nobody") == {}


def test_a_topic_that_is_gone_has_no_offsets(offsets: Offsets) -> None:
    commit(offsets, "g", t0=5, v0=8)
    assert Queue("v", 0) not in offsets.positions("g")
    assert offsets.positions("g")[Queue("t", 0)] == 5


def test_a_group_is_known_by_an_offset_or_a_lock(offsets: Offsets) -> None:
    assert offsets.groups() == ["g", "h", "only-locks"]
    assert "only-locks" in offsets
    lock(offsets, "nobody", t0="")
    assert "nobody" not in offsets


def test_locks_are_taken_over_and_let_go_of(offsets: Offsets) -> None:
    lock(offsets, "g", t0="z", u0="", t5="a", t6="")
    assert offsets.locks("g") == {Queue("t", 0): "z", Queue("t", 5): "a"}
    assert offsets.locks("nobody") == {}


def test_a_dropped_group_leaves_nothing(offsets: Offsets) -> None:
    offsets.drop_group("g")
    offsets.drop_group("only-locks")
    offsets.drop_group("g")
    assert (offsets.groups(), offsets.locks("g"), offsets.positions("g")) == (["h"], {}, {})


def test_a_dropped_topic_takes_offsets_and_locks_along_and_groups_stay(offsets: Offsets) -> None:
    offsets.drop_topic("t")
    assert offsets.positions("g") == {Queue("u", 0): 3}
    assert offsets.locks("g") == {Queue("u", 0): "b"}
    assert (offsets.positions("h"), "h" in offsets) == ({}, True)
    assert (offsets.locks("only-locks"), "only-locks" in offsets) == ({}, True)


def test_a_checkpoint_has_all_of_it_and_the_same_bytes(offsets: Offsets) -> None:
    other = restored(offsets)
    assert list(other.encode()) == list(offsets.encode())
    assert other.groups() == offsets.groups()
    assert other.locks("only-locks") == offsets.locks("only-locks")
    # In whichever order it came to be.
    again = Offsets()
    lock(again, "only-locks", t0="c")
    lock(again, "g", u0="b", t0="a")
    commit(again, "h", t0=9)
    commit(again, "g", u0=3, t1=2, t0=1)
    assert list(again.encode()) == list(offsets.encode())


def test_restored_offsets_behave_like_the_original_ones(offsets: Offsets) -> None:
    """A replica that was restored on the way comes to the same state as the others."""
    for change in (
        lambda one: lock(one, "only-locks", t0=""),
        lambda one: one.drop_topic("t"),
        lambda one: one.put(PutGroup(group="only-locks", retries_max=1)),
        lambda one: one.drop_topic("u"),
        lambda one: one.drop_group("only-locks"),
    ):
        other = restored(offsets)
        change(other)
        change(offsets)
        assert list(other.encode()) == list(offsets.encode())
        assert other.groups() == offsets.groups()


def test_a_group_without_offsets_outlives_a_checkpoint(offsets: Offsets) -> None:
    offsets.drop_topic("t")
    assert "h" in restored(offsets)
