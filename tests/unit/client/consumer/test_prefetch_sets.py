"""Queues of several broker sets in one buffer: what happens to one set moves no other."""

from __future__ import annotations

import pytest

from mq.client.messages import QueueRef
from mq.errors import IllegalRequest, NotAssigned
from tests.unit.client.consumer.deliveries import TOPIC, deliver, delivery, ref
from tests.unit.client.consumer.manual_buffer import ManualBuffer


def both(*, is_ordered: bool = False, cache_messages: int = 1_000) -> ManualBuffer:
    """Queue 0 of sets a and b, three messages each."""
    buffered = ManualBuffer(is_ordered=is_ordered, cache_messages=cache_messages)
    for name in ("a", "b"):
        buffered.assign((0, 0), first=True, broker_set=name)
        assert deliver(buffered.buffer, delivery(0, range(3)), name)
    return buffered


def places(buffered: ManualBuffer, count: int) -> list[tuple[str, int]]:
    return [(one.queue.ref.broker_set, one.message.queue_offset) for one in buffered.take(count)]


def test_queues_of_the_same_number_are_two() -> None:
    buffered = both()
    assert buffered.buffer.assignment == {ref(0, "a"), ref(0, "b")}
    taken = buffered.take(6)
    assert [one.message.queue for one in taken] == [ref(0, "a")] * 3 + [ref(0, "b")] * 3
    buffered.buffer.done([one for one in taken if one.queue.ref.broker_set == "b"])
    assert buffered.buffer.done_offsets() == {ref(0, "a"): 0, ref(0, "b"): 3}
    assert buffered.buffer.positions("a") == {ref(0, "a"): 3}


def test_sets_take_turns() -> None:
    buffered = both()
    assert places(buffered, 2) == [("a", 0), ("a", 1)]
    assert places(buffered, 2) == [("b", 0), ("b", 1)]
    assert places(buffered, 2) == [("a", 2), ("b", 2)]


def test_each_set_hears_of_its_own() -> None:
    buffered = both()
    assert buffered.told("a") == buffered.told("b") == []
    taken = buffered.take(6)
    buffered.asked.clear()
    buffered.buffer.done(taken[3:])
    assert set(buffered.asked) == {"b"}
    assert buffered.told("a") == []
    assert buffered.told("b") == [("progress", [(0, 3, 0)])]
    assert buffered.told("b") == []


def test_an_assignment_says_nothing_of_other_sets() -> None:
    buffered = both()
    buffered.assign(broker_set="a")
    assert buffered.buffer.assignment == {ref(0, "b")}
    assert buffered.told("a") == [("released", [(0, 0)])]
    assert buffered.told("b") == []
    assert places(buffered, 9) == [("b", 0), ("b", 1), ("b", 2)]
    buffered.assign((0, 3, 1), broker_set="b")
    assert buffered.told("a") == []


def test_a_new_stream_of_one_set_leaves_the_reports_of_the_other() -> None:
    buffered = both()
    buffered.buffer.done(buffered.take(6))
    buffered.told("a")
    buffered.told("b")
    buffered.assign((0, 3, 4), first=True, broker_set="b")
    assert buffered.told("a") == []
    assert buffered.told("b") == [("progress", [(0, 3, 4)])]


def test_a_set_that_is_not_heard_gives_out_nothing_and_the_other_goes_on() -> None:
    buffered = both()
    failed = buffered.take(4)
    buffered.buffer.done(failed[:3])
    buffered.buffer.retry(failed[3], 1.0)
    buffered.buffer.suspend("b")
    buffered.now_s = 5.0
    assert places(buffered, 9) == []
    deliver(buffered.buffer, delivery(0, [3]), "a")
    assert places(buffered, 9) == [("a", 3)]
    # It is heard again: what failed there is due, what was cached is there.
    buffered.assign((0, 3), first=True, broker_set="b")
    assert places(buffered, 9) == [("b", 0), ("b", 1), ("b", 2)]


def test_ordered_queues_of_the_same_number_do_not_wait_for_each_other() -> None:
    buffered = both(is_ordered=True)
    taken = buffered.take(9)
    assert [one.queue.ref.broker_set for one in taken] == ["a", "b"]
    buffered.buffer.done(taken[1:])
    assert places(buffered, 9) == [("b", 1)]


def test_a_seek_goes_to_the_set_that_is_named() -> None:
    buffered = both()
    buffered.told("a")
    buffered.told("b")
    with pytest.raises(IllegalRequest, match="queue 0 of topic orders is in a, b: say which"):
        buffered.buffer.seek({QueueRef(TOPIC, 0): 1})
    with pytest.raises(NotAssigned, match="queue 0 of topic orders in broker set c"):
        buffered.buffer.seek({ref(0, "a"): 1, ref(0, "c"): 1})
    assert buffered.told("a") == []
    buffered.buffer.seek({ref(0, "b"): 1})
    assert buffered.told("a") == []
    assert buffered.told("b") == [("seek", [(0, 1)])]


def test_a_pair_is_enough_where_there_is_no_choice() -> None:
    buffered = both()
    buffered.assign((0, 3), (1, 0), broker_set="b")
    deliver(buffered.buffer, delivery(1, range(2)), "b")
    buffered.buffer.pause([QueueRef(TOPIC, 1)])
    assert len(buffered.take(99)) == 6
    buffered.buffer.resume([QueueRef(TOPIC, 1)])
    assert len(buffered.take(99)) == 2


def test_dropped_queues_are_void_and_their_successors_start_clean() -> None:
    buffered = both()
    taken = buffered.take(5)
    failed = taken.pop()
    buffered.buffer.retry(failed, 0.0)
    buffered.buffer.drop("b")
    assert buffered.buffer.assignment == {ref(0, "a")}
    buffered.open_set("b")
    buffered.assign((0, 0), first=True, broker_set="b")
    buffered.buffer.done(taken)
    assert buffered.told("b") == []
    assert buffered.buffer.done_offsets() == {ref(0, "a"): 3, ref(0, "b"): 0}
    assert buffered.buffer.assignment == {ref(0, "a"), ref(0, "b")}
    deliver(buffered.buffer, delivery(0, range(3)), "b")
    assert places(buffered, 9) == [("b", 0), ("b", 1), ("b", 2)]


def test_durable_progress_is_not_committed_again() -> None:
    buffered = both()
    buffered.buffer.done(buffered.take(4))
    done = buffered.buffer.to_commit("b")
    assert [(one.queue.ref, one.queue_offset) for one in done] == [(ref(0, "b"), 1)]
    buffered.buffer.committed(done)
    assert buffered.buffer.to_commit("b") == []
    assert [one.queue_offset for one in buffered.buffer.to_commit("a")] == [3]
    buffered.buffer.done(buffered.take(1))
    assert [one.queue_offset for one in buffered.buffer.to_commit("b")] == [2]


@pytest.mark.parametrize("is_late", [False, True])
def test_progress_that_was_durable_before_the_queue_moved_does_not_count(is_late: bool) -> None:
    """An operator may have reset the group to where it was before."""
    buffered = both()
    buffered.buffer.done(buffered.take(6))
    done = buffered.buffer.to_commit("b")
    if not is_late:
        buffered.buffer.committed(done)
    buffered.assign((0, 0, 1), broker_set="b")
    if is_late:
        buffered.buffer.committed(done)
    deliver(buffered.buffer, delivery(0, range(3), epoch=1), "b")
    buffered.buffer.done(buffered.take(3))
    assert [one.queue_offset for one in buffered.buffer.to_commit("b")] == [3]


def test_progress_that_was_durable_before_the_stream_broke_does_not_count() -> None:
    """It may have been reset meanwhile, though the member goes on where it was."""
    buffered = both()
    buffered.buffer.done(buffered.take(6))
    buffered.buffer.committed(buffered.buffer.to_commit("b"))
    buffered.assign((0, 3), first=True, broker_set="b")
    assert [one.queue_offset for one in buffered.buffer.to_commit("b")] == [3]


def test_room_is_what_is_delivered_and_not_done() -> None:
    buffered = both()
    buffer = buffered.buffer
    assert buffer.backlog(ref(0, "a"), 0) == (3, 0)
    taken = buffered.take(3)
    buffer.done(taken[1:2])
    assert buffer.backlog(ref(0, "a"), 0) == (3, 0)
    buffer.done(taken[:1])
    assert buffer.backlog(ref(0, "a"), 0) == (1, 2)
    assert buffer.backlog(ref(0, "a"), 1) is None
    assert buffer.backlog(ref(0, "c"), 0) is None
    buffer.seek({ref(0, "a"): 0})
    assert buffer.backlog(ref(0, "a"), 0) is None
    buffered.assign(broker_set="b")
    assert buffer.backlog(ref(0, "b"), 0) is None
