"""The queues in hand: who may take what, and what is reported."""

from __future__ import annotations

import threading

import pytest

from mq.client.consumer.held_queue import Taken
from mq.errors import NotAssigned, SubscriptionMismatch
from tests.unit.client.deliveries import SET, assignment, deliver, delivery, ref
from tests.unit.client.desk import Desk, offsets

# Taking


def test_messages_are_taken_in_the_order_of_their_queue() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(3)))
    deliver(desk.holdings, delivery(0, range(3, 5)))
    assert offsets(desk.take(4)) == [0, 1, 2, 3]
    assert offsets(desk.take(4)) == [4]
    assert desk.take(4) == []


def test_queues_take_turns() -> None:
    desk = Desk()
    desk.assign((0, 0), (1, 0), first=True)
    deliver(desk.holdings, delivery(0, range(4)))
    deliver(desk.holdings, delivery(1, range(4)))
    queues = [desk.take()[0].message.queue_id for _ in range(4)]
    assert queues == [0, 1, 0, 1]
    assert len(desk.take(100)) == 4


def test_what_is_late_is_left_out() -> None:
    desk = Desk()
    desk.assign((0, 0, 4), first=True)
    deliver(desk.holdings, delivery(0, range(3), epoch=3))
    deliver(desk.holdings, delivery(7, range(3)))
    assert desk.take(100) == []


def test_an_ordered_queue_has_one_message_at_work_at_a_time() -> None:
    desk = Desk(is_ordered=True)
    desk.assign((0, 0), (1, 0), first=True)
    deliver(desk.holdings, delivery(0, range(3)))
    deliver(desk.holdings, delivery(1, range(3)))
    first = desk.take(100)
    assert offsets(first) == [0, 0]
    assert desk.take(100) == []
    before = desk.ready
    desk.holdings.done(first[:1])
    assert desk.ready > before
    assert offsets(desk.take(100)) == [1]


def test_an_ordered_queue_waits_for_a_message_that_failed() -> None:
    desk = Desk(is_ordered=True)
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(3)))
    desk.holdings.retry(desk.take()[0], 5.0)
    assert desk.take(100) == []
    desk.now_s = 5.0
    (again,) = desk.take(100)
    assert (again.message.queue_offset, again.failures) == (0, 1)
    desk.holdings.done([again])
    assert offsets(desk.take(100)) == [1]


def test_an_ordered_queue_does_not_wait_for_a_failed_message_that_is_void() -> None:
    desk = Desk(is_ordered=True)
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(3)))
    desk.holdings.retry(desk.take()[0], 5.0)
    desk.holdings.seek({ref(0): 1})
    desk.told()
    desk.assign((0, 1, 1))
    deliver(desk.holdings, delivery(0, [1, 2], epoch=1))
    assert offsets(desk.take(100)) == [1]
    desk.now_s = 5.0
    assert desk.take(100) == []


def test_an_ordered_queue_stays_in_order_over_a_seek() -> None:
    """The handler that was at work when the user sought is waited for."""
    desk = Desk(is_ordered=True)
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(3)))
    old = desk.take()
    desk.holdings.seek({ref(0): 1})
    desk.told()
    desk.assign((0, 1, 1))
    deliver(desk.holdings, delivery(0, [1, 2], epoch=1))
    assert desk.take(100) == []
    desk.holdings.done(old)
    assert offsets(desk.take(100)) == [1]


def test_side_by_side_others_go_on_while_one_waits_for_its_next_attempt() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(3)))
    failed, *others = desk.take(3)
    desk.holdings.retry(failed, 5.0)
    desk.holdings.done(others)
    assert desk.holdings.next_retry_s() == 5.0
    assert desk.take(100) == []
    assert desk.holdings.done_offsets() == {ref(0): 0}
    desk.now_s = 5.0
    (again,) = desk.take(100)
    desk.holdings.done([again])
    assert desk.holdings.done_offsets() == {ref(0): 3}


def test_paused_queues_give_out_nothing_until_they_are_resumed() -> None:
    desk = Desk()
    desk.assign((0, 0), (1, 0), first=True)
    deliver(desk.holdings, delivery(0, range(2)))
    deliver(desk.holdings, delivery(1, range(2)))
    desk.holdings.pause([ref(0)])
    assert {one.message.queue_id for one in desk.take(100)} == {1}
    desk.holdings.resume([ref(0)])
    assert offsets(desk.take(100)) == [0, 1]
    with pytest.raises(NotAssigned, match="queue 9 of topic orders"):
        desk.holdings.pause([ref(9)])


def test_a_pause_of_all_holds_for_queues_to_come() -> None:
    desk = Desk()
    desk.holdings.pause(None)
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(2)))
    assert desk.take(100) == []
    desk.holdings.resume(None)
    assert offsets(desk.take(100)) == [0, 1]
    desk.assign((0, 2), (1, 0))
    deliver(desk.holdings, delivery(1, [0]))
    assert offsets(desk.take(100)) == [0]


def test_a_queue_that_is_resumed_alone_stays_so_when_members_come_and_go() -> None:
    desk = Desk()
    desk.assign((0, 0), (1, 0), first=True)
    desk.holdings.pause(None)
    desk.holdings.resume([ref(1)])
    desk.assign((0, 0), (1, 0), (2, 0))
    for queue_id in range(3):
        deliver(desk.holdings, delivery(queue_id, [0]))
    assert [one.message.queue_id for one in desk.take(100)] == [1]


def test_nothing_is_given_out_after_a_stop_and_what_is_at_work_may_be_finished() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(2)))
    taken = desk.take()
    desk.holdings.stop()
    assert desk.take() == []
    desk.holdings.done(taken)
    assert desk.holdings.done_offsets() == {ref(0): 1}


def test_who_takes_hears_what_has_ended_the_consumer() -> None:
    desk = Desk()
    desk.holdings.fail(SubscriptionMismatch("a and b"))
    desk.holdings.fail(SubscriptionMismatch("a later one"))
    with pytest.raises(SubscriptionMismatch, match="a and b"):
        desk.take()
    with pytest.raises(SubscriptionMismatch, match="a and b"):
        desk.holdings.wait_take(1, None)


def test_a_thread_that_waits_gets_what_is_delivered() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    found: list[Taken] = []
    waiter = threading.Thread(target=lambda: found.extend(desk.holdings.wait_take(5, None)))
    waiter.start()
    deliver(desk.holdings, delivery(0, range(2)))
    waiter.join(10)
    assert offsets(found) == [0, 1]


def test_a_thread_that_waits_is_woken_by_a_stop() -> None:
    desk = Desk()
    found: list[list[Taken]] = []
    waiter = threading.Thread(target=lambda: found.append(desk.holdings.wait_take(5, None)))
    waiter.start()
    desk.holdings.stop()
    waiter.join(10)
    assert found == [[]]


def test_a_wait_without_time_looks_once() -> None:
    desk = Desk()
    assert desk.holdings.wait_take(5, 0.0) == []


# Reporting


def test_progress_is_reported_soon_and_once() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    desk.told()
    taken = desk.take(3)
    desk.holdings.done(taken[1:])
    assert desk.told() == []
    desk.holdings.done(taken[:1])
    assert desk.reports == [False]
    desk.holdings.done(desk.take(1))
    assert desk.reports == [False]
    assert desk.told() == [("progress", [(0, 4, 0)])]
    assert desk.told() == []


def test_half_of_the_cache_is_reported_at_once() -> None:
    desk = Desk(cache_messages=10)
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(10)))
    desk.told()
    taken = desk.take(10)
    desk.holdings.done(taken[:4])
    assert True not in desk.reports
    desk.holdings.done(taken[4:5])
    assert True in desk.reports


def test_half_of_the_cached_bytes_is_reported_at_once() -> None:
    desk = Desk(cache_messages=1_000)
    desk.holdings._cache_bytes = 40
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(4)))
    desk.told()
    taken = desk.take(4)
    desk.holdings.done(taken[:1])
    assert True not in desk.reports
    desk.holdings.done(taken[1:2])
    assert True in desk.reports


def test_what_the_filter_left_out_is_progress_when_all_before_it_is_done() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, [3, 5], next_offset=20))
    taken = desk.take(5)
    desk.holdings.done(taken[:1])
    assert desk.told() == [("progress", [(0, 5, 0)])]
    desk.holdings.done(taken[1:])
    assert desk.told() == [("progress", [(0, 20, 0)])]
    deliver(desk.holdings, delivery(0, [], next_offset=50))
    assert desk.told() == [("progress", [(0, 50, 0)])]


def test_a_message_with_a_wrong_tag_of_the_same_hash_is_passed_over() -> None:
    desk = Desk()
    tagged = assignment((0, 0))
    tagged.queues[0].topic = "tagged"
    desk.holdings.assign(tagged, SET, is_first=True)
    for at, tag in enumerate("abab"):
        one = delivery(0, [at], tag=tag)
        one.topic = "tagged"
        deliver(desk.holdings, one)
    taken = desk.take(100)
    assert offsets(taken) == [0, 2]
    desk.holdings.done(taken)
    assert desk.told() == [("progress", [(0, 4, 0)])]
