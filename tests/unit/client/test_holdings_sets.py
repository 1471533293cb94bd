"""Queues of several broker sets in one pair of hands: what happens to one set moves no other."""

from __future__ import annotations

import pytest

from mq.client.messages import QueueRef
from mq.errors import IllegalRequest, NotAssigned
from tests.unit.client.deliveries import TOPIC, deliver, delivery, ref
from tests.unit.client.desk import Desk


def both(*, is_ordered: bool = False, cache_messages: int = 1_000) -> Desk:
    """Queue 0 of sets a and b, three messages each."""
    desk = Desk(is_ordered=is_ordered, cache_messages=cache_messages)
    for name in ("a", "b"):
        desk.assign((0, 0), first=True, broker_set=name)
        assert deliver(desk.holdings, delivery(0, range(3)), name)
    return desk


def places(desk: Desk, count: int) -> list[tuple[str, int]]:
    return [(one.queue.ref.broker_set, one.message.queue_offset) for one in desk.take(count)]


def test_queues_of_the_same_number_are_two() -> None:
    desk = both()
    assert desk.holdings.assignment == {ref(0, "a"), ref(0, "b")}
    taken = desk.take(6)
    assert [one.message.queue for one in taken] == [ref(0, "a")] * 3 + [ref(0, "b")] * 3
    desk.holdings.done([one for one in taken if one.queue.ref.broker_set == "b"])
    assert desk.holdings.done_offsets() == {ref(0, "a"): 0, ref(0, "b"): 3}
    assert desk.holdings.positions("a") == {ref(0, "a"): 3}


def test_sets_take_turns() -> None:
    desk = both()
    assert places(desk, 2) == [("a", 0), ("a", 1)]
    assert places(desk, 2) == [("b", 0), ("b", 1)]
    assert places(desk, 2) == [("a", 2), ("b", 2)]


def test_each_set_hears_of_its_own() -> None:
    desk = both()
    assert desk.told("a") == desk.told("b") == []
    taken = desk.take(6)
    desk.asked.clear()
    desk.holdings.done(taken[3:])
    assert set(desk.asked) == {"b"}
    assert desk.told("a") == []
    assert desk.told("b") == [("progress", [(0, 3, 0)])]
    assert desk.told("b") == []


def test_an_assignment_says_nothing_of_other_sets() -> None:
    desk = both()
    desk.assign(broker_set="a")
    assert desk.holdings.assignment == {ref(0, "b")}
    assert desk.told("a") == [("released", [(0,)])]
    assert desk.told("b") == []
    assert places(desk, 9) == [("b", 0), ("b", 1), ("b", 2)]
    desk.assign((0, 3, 1), broker_set="b")
    assert desk.told("a") == []


def test_a_new_stream_of_one_set_leaves_the_reports_of_the_other() -> None:
    desk = both()
    desk.holdings.done(desk.take(6))
    desk.told("a")
    desk.told("b")
    desk.assign((0, 3, 4), first=True, broker_set="b")
    assert desk.told("a") == []
    assert desk.told("b") == [("progress", [(0, 3, 4)])]


def test_a_set_that_is_not_heard_gives_out_nothing_and_the_other_goes_on() -> None:
    desk = both()
    failed = desk.take(4)
    desk.holdings.done(failed[:3])
    desk.holdings.retry(failed[3], 1.0)
    desk.holdings.suspend("b")
    desk.now_s = 5.0
    assert places(desk, 9) == []
    deliver(desk.holdings, delivery(0, [3]), "a")
    assert places(desk, 9) == [("a", 3)]
    # It is heard again: what failed there is due, what was cached is there.
    desk.assign((0, 3), first=True, broker_set="b")
    assert places(desk, 9) == [("b", 0), ("b", 1), ("b", 2)]


def test_ordered_queues_of_the_same_number_do_not_wait_for_each_other() -> None:
    desk = both(is_ordered=True)
    taken = desk.take(9)
    assert [one.queue.ref.broker_set for one in taken] == ["a", "b"]
    desk.holdings.done(taken[1:])
    assert places(desk, 9) == [("b", 1)]


def test_a_seek_goes_to_the_set_that_is_named() -> None:
    desk = both()
    desk.told("a")
    desk.told("b")
    with pytest.raises(IllegalRequest, match="queue 0 of topic orders is in a, b: say which"):
        desk.holdings.seek({QueueRef(TOPIC, 0): 1})
    with pytest.raises(NotAssigned, match="queue 0 of topic orders in broker set c"):
        desk.holdings.seek({ref(0, "a"): 1, ref(0, "c"): 1})
    assert desk.told("a") == []
    desk.holdings.seek({ref(0, "b"): 1})
    assert desk.told("a") == []
    assert desk.told("b") == [("seek", [(0, 1)])]


def test_a_pair_is_enough_where_there_is_no_choice() -> None:
    desk = both()
    desk.assign((0, 3), (1, 0), broker_set="b")
    deliver(desk.holdings, delivery(1, range(2)), "b")
    desk.holdings.pause([QueueRef(TOPIC, 1)])
    assert len(desk.take(99)) == 6
    desk.holdings.resume([QueueRef(TOPIC, 1)])
    assert len(desk.take(99)) == 2


def test_what_is_dropped_is_void_and_its_successor_does_not_suffer() -> None:
    desk = both()
    taken = desk.take(5)
    failed = taken.pop()
    desk.holdings.retry(failed, 0.0)
    desk.holdings.drop("b")
    assert desk.holdings.assignment == {ref(0, "a")}
    desk.assign((0, 0), first=True, broker_set="b")
    desk.holdings.done(taken)
    assert desk.told("b") == []
    assert desk.holdings.done_offsets() == {ref(0, "a"): 3, ref(0, "b"): 0}
    assert desk.holdings.assignment == {ref(0, "a"), ref(0, "b")}
    deliver(desk.holdings, delivery(0, range(3)), "b")
    assert places(desk, 9) == [("b", 0), ("b", 1), ("b", 2)]


def test_what_is_durable_is_not_committed_again() -> None:
    desk = both()
    desk.holdings.done(desk.take(4))
    done = desk.holdings.to_commit("b")
    assert [(one.queue.ref, one.queue_offset) for one in done] == [(ref(0, "b"), 1)]
    desk.holdings.committed(done)
    assert desk.holdings.to_commit("b") == []
    assert [one.queue_offset for one in desk.holdings.to_commit("a")] == [3]
    desk.holdings.done(desk.take(1))
    assert [one.queue_offset for one in desk.holdings.to_commit("b")] == [2]


@pytest.mark.parametrize("is_late", [False, True])
def test_what_was_durable_before_the_queue_moved_does_not_count(is_late: bool) -> None:
    """An operator may have reset the group to where it was before."""
    desk = both()
    desk.holdings.done(desk.take(6))
    done = desk.holdings.to_commit("b")
    if not is_late:
        desk.holdings.committed(done)
    desk.assign((0, 0, 1), broker_set="b")
    if is_late:
        desk.holdings.committed(done)
    deliver(desk.holdings, delivery(0, range(3), epoch=1), "b")
    desk.holdings.done(desk.take(3))
    assert [one.queue_offset for one in desk.holdings.to_commit("b")] == [3]


def test_what_was_durable_before_the_stream_broke_does_not_count() -> None:
    """It may have been reset meanwhile, though the member goes on where it was."""
    desk = both()
    desk.holdings.done(desk.take(6))
    desk.holdings.committed(desk.holdings.to_commit("b"))
    desk.assign((0, 3), first=True, broker_set="b")
    assert [one.queue_offset for one in desk.holdings.to_commit("b")] == [3]


def test_room_is_what_is_delivered_and_not_done() -> None:
    desk = both()
    holdings = desk.holdings
    assert holdings.in_hand(ref(0, "a"), 0) == (3, 0)
    taken = desk.take(3)
    holdings.done(taken[1:2])
    assert holdings.in_hand(ref(0, "a"), 0) == (3, 0)
    holdings.done(taken[:1])
    assert holdings.in_hand(ref(0, "a"), 0) == (1, 2)
    assert holdings.in_hand(ref(0, "a"), 1) is None
    assert holdings.in_hand(ref(0, "c"), 0) is None
    holdings.seek({ref(0, "a"): 0})
    assert holdings.in_hand(ref(0, "a"), 0) is None
    desk.assign(broker_set="b")
    assert holdings.in_hand(ref(0, "b"), 0) is None
