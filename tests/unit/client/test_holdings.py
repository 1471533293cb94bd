"""The queues in hand: who may take what, what is reported, and when a queue is let go of."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from mq.client.decode import Decoder
from mq.client.holdings import Holdings
from mq.client.model import QueueRef
from mq.errors import NotAssigned, SubscriptionMismatch
from tests.unit.client.deliveries import TOPIC, assignment, deliver, delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.client.held_queue import Taken
    from mq.wire.v1.consumer_pb2 import SubscribeRequest


class Desk:
    """Holdings with a clock that stands still, and what they asked for."""

    def __init__(self, *, is_ordered: bool = False, cache_messages: int = 1_000) -> None:
        self.now_s = 0.0
        self.reports: list[bool] = []
        self.ready = 0
        self.holdings = Holdings(
            Decoder({"tagged": frozenset({"a"})}),
            is_ordered=is_ordered,
            cache_messages=cache_messages,
            cache_bytes=cache_messages * 1_000,
            on_ready=self._on_ready,
            on_report=self._on_report,
            clock=lambda: self.now_s,
        )

    def _on_ready(self) -> None:
        self.ready += 1

    def _on_report(self, *, is_urgent: bool) -> None:
        self.reports.append(is_urgent)

    def assign(self, *queues: tuple[int, int] | tuple[int, int, int], first: bool = False) -> None:
        self.holdings.assign(assignment(*queues), is_first=first)

    def take(self, count: int = 1) -> list[Taken]:
        return self.holdings.take(count)

    def told(self) -> list[tuple[str, list[tuple[int, ...]]]]:
        """What goes to the broker, in short."""
        self.reports.clear()
        return [summary(request) for request in self.holdings.outgoing()]


def summary(request: SubscribeRequest) -> tuple[str, list[tuple[int, ...]]]:
    match request.WhichOneof("kind"):
        case "progress":
            places = request.progress.positions
            return "progress", [(one.queue_id, one.queue_offset, one.epoch) for one in places]
        case "seek":
            return "seek", [(one.queue_id, one.queue_offset) for one in request.seek.positions]
        case "released":
            return "released", [(one.queue_id,) for one in request.released.queues]
    raise AssertionError(request)


def offsets(taken: Sequence[Taken]) -> list[int]:
    return [one.message.queue_offset for one in taken]


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


def test_an_ordered_queue_stays_in_order_over_a_seek() -> None:
    """The handler that was at work when the user sought is waited for."""
    desk = Desk(is_ordered=True)
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(3)))
    old = desk.take()
    desk.holdings.seek({QueueRef(TOPIC, 0): 1})
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
    assert desk.holdings.done_offsets() == {QueueRef(TOPIC, 0): 0}
    desk.now_s = 5.0
    (again,) = desk.take(100)
    desk.holdings.done([again])
    assert desk.holdings.done_offsets() == {QueueRef(TOPIC, 0): 3}


def test_paused_queues_give_out_nothing_until_they_are_resumed() -> None:
    desk = Desk()
    desk.assign((0, 0), (1, 0), first=True)
    deliver(desk.holdings, delivery(0, range(2)))
    deliver(desk.holdings, delivery(1, range(2)))
    desk.holdings.pause([(TOPIC, 0)])
    assert {one.message.queue_id for one in desk.take(100)} == {1}
    desk.holdings.resume([(TOPIC, 0)])
    assert offsets(desk.take(100)) == [0, 1]
    with pytest.raises(NotAssigned, match="queue 9 of topic orders"):
        desk.holdings.pause([(TOPIC, 9)])


def test_a_pause_of_all_holds_for_queues_to_come() -> None:
    desk = Desk()
    desk.holdings.pause(None)
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(2)))
    assert desk.take(100) == []
    desk.holdings.resume(None)
    assert offsets(desk.take(100)) == [0, 1]


def test_nothing_is_given_out_after_a_stop_and_what_is_at_work_may_be_finished() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(2)))
    taken = desk.take()
    desk.holdings.stop()
    assert desk.take() == []
    desk.holdings.done(taken)
    assert desk.holdings.done_offsets() == {QueueRef(TOPIC, 0): 1}


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
    assert desk.told() == [("progress", [(0, 3, 0)])]
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
    desk.holdings.assign(tagged, is_first=True)
    for at, tag in enumerate("abab"):
        one = delivery(0, [at], tag=tag)
        one.topic = "tagged"
        deliver(desk.holdings, one)
    taken = desk.take(100)
    assert offsets(taken) == [0, 2]
    desk.holdings.done(taken)
    assert desk.told() == [("progress", [(0, 4, 0)])]


# Queues that come and go


def test_a_queue_that_is_revoked_is_released_after_its_last_handler() -> None:
    desk = Desk()
    desk.assign((0, 0), (1, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    taken = desk.take(2)
    desk.told()
    desk.assign((1, 0))
    assert desk.holdings.assignment == {QueueRef(TOPIC, 1)}
    assert desk.take(100) == []
    assert desk.told() == []
    desk.holdings.done(taken[:1])
    assert desk.told() == [("progress", [(0, 1, 0)])]
    desk.holdings.done(taken[1:])
    assert desk.reports[-1] is True
    assert desk.told() == [("progress", [(0, 2, 0)]), ("released", [(0,)])]
    assert desk.holdings.positions() == {QueueRef(TOPIC, 1): 0}


def test_an_idle_queue_is_released_at_once() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    desk.told()
    desk.assign()
    assert desk.reports == [True]
    assert desk.told() == [("released", [(0,)])]


def test_a_message_that_waits_for_its_next_attempt_does_not_hold_a_queue_back() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(2)))
    first, second = desk.take(2)
    desk.holdings.done([first])
    desk.holdings.retry(second, 5.0)
    desk.told()
    desk.assign()
    assert desk.told() == [("released", [(0,)])]
    desk.now_s = 5.0
    assert desk.take(100) == []


def test_a_queue_that_comes_back_before_it_was_released_goes_on_where_it_was() -> None:
    """The broker delivers again from what it has heard of; nothing comes twice."""
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(6)))
    running, failed, done = desk.take(3)
    desk.holdings.done([done])
    desk.holdings.retry(failed, 1.0)
    desk.told()
    desk.assign()
    desk.now_s = 1.0
    assert desk.take(100) == []
    desk.assign((0, 0, 1))
    assert offsets(desk.take(2)) == [1, 3]
    deliver(desk.holdings, delivery(0, range(4), epoch=1))
    deliver(desk.holdings, delivery(0, range(4, 8), epoch=1))
    assert offsets(desk.take(100)) == [4, 5, 6, 7]
    desk.holdings.done([running])
    assert desk.told() == [("progress", [(0, 1, 1)])]


def test_progress_never_claims_what_was_not_delivered_under_its_epoch() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(6)))
    taken = desk.take(6)
    desk.told()
    desk.assign()
    desk.assign((0, 0, 1))
    desk.holdings.done(taken)
    assert desk.told() == []
    deliver(desk.holdings, delivery(0, range(4), epoch=1))
    assert desk.told() == [("progress", [(0, 4, 1)])]
    deliver(desk.holdings, delivery(0, range(4, 6), epoch=1))
    assert desk.told() == [("progress", [(0, 6, 1)])]


def test_a_queue_that_is_given_back_while_its_release_is_on_the_way_repeats_nothing() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(4)))
    taken = desk.take(3)
    desk.told()
    desk.assign()
    desk.holdings.done(taken)
    assert desk.told()[-1] == ("released", [(0,)])
    desk.assign((0, 0, 1))
    deliver(desk.holdings, delivery(0, range(5), epoch=1))
    assert offsets(desk.take(100)) == [3, 4]


def test_a_queue_that_others_had_meanwhile_starts_where_the_broker_says() -> None:
    desk = Desk()
    desk.assign((0, 0, 2), first=True)
    deliver(desk.holdings, delivery(0, range(4), epoch=2))
    desk.holdings.done(desk.take(4))
    desk.assign()
    desk.told()
    desk.assign((0, 1, 0))
    deliver(desk.holdings, delivery(0, [1, 2], epoch=0))
    assert offsets(desk.take(100)) == [1, 2]


def test_a_reset_by_an_operator_voids_what_is_in_hand() -> None:
    desk = Desk()
    desk.assign((0, 50), first=True)
    deliver(desk.holdings, delivery(0, range(50, 55)))
    old = desk.take(2)
    desk.assign((0, 10, 1))
    desk.holdings.done(old)
    assert desk.told() == []
    deliver(desk.holdings, delivery(0, [55], epoch=0))
    deliver(desk.holdings, delivery(0, [10, 11], epoch=1))
    taken = desk.take(100)
    assert offsets(taken) == [10, 11]
    desk.holdings.done(taken)
    assert desk.told() == [("progress", [(0, 12, 1)])]


def test_a_topic_that_was_made_anew_starts_at_its_new_end() -> None:
    desk = Desk()
    desk.assign((0, 50), first=True)
    deliver(desk.holdings, delivery(0, [], next_offset=0))
    deliver(desk.holdings, delivery(0, range(2)))
    taken = desk.take(100)
    assert offsets(taken) == [0, 1]
    desk.holdings.done(taken)
    assert desk.told() == [("progress", [(0, 2, 0)])]


# Streams that break


def test_after_a_reconnect_what_is_in_hand_stays_and_is_reported_again() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    taken = desk.take(2)
    desk.holdings.done(taken[:1])
    desk.told()
    assert desk.holdings.positions() == {QueueRef(TOPIC, 0): 5}
    desk.assign((0, 5, 0), first=True)
    assert desk.told() == [("progress", [(0, 1, 0)])]
    desk.holdings.done(taken[1:])
    assert offsets(desk.take(100)) == [2, 3, 4]
    assert desk.told() == [("progress", [(0, 2, 0)])]
    deliver(desk.holdings, delivery(0, [5]))
    assert offsets(desk.take(100)) == [5]


def test_all_that_is_done_is_reported_also_when_nothing_new_comes_after_a_reconnect() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    taken = desk.take(5)
    desk.assign((0, 5, 0), first=True)
    desk.told()
    desk.holdings.done(taken)
    assert desk.told() == [("progress", [(0, 5, 0)])]


def test_after_a_reconnect_the_broker_may_know_better() -> None:
    """Others had the queue meanwhile, or it was reset: its place is not the one we asked for."""
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    old = desk.take(2)
    desk.assign((0, 3, 0), first=True)
    desk.holdings.done(old)
    deliver(desk.holdings, delivery(0, [3, 4]))
    assert offsets(desk.take(100)) == [3, 4]
    assert desk.holdings.done_offsets() == {QueueRef(TOPIC, 0): 3}


def test_a_queue_that_is_not_ours_after_a_reconnect_is_let_go_of() -> None:
    desk = Desk()
    desk.assign((0, 0, 6), first=True)
    deliver(desk.holdings, delivery(0, range(5), epoch=6))
    taken = desk.take(2)
    desk.assign(first=True)
    assert desk.take(100) == []
    desk.holdings.done(taken)
    # The broker has seen no epoch of this stream, and counts from 0.
    assert desk.told() == [("progress", [(0, 2, 0)]), ("released", [(0,)])]


def test_alone_for_long_nothing_is_given_out_until_the_broker_is_there_again() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    desk.holdings.suspend()
    assert desk.take() == []
    desk.assign((0, 5), first=True)
    assert offsets(desk.take()) == [0]


# Seeking


def test_a_seek_voids_what_is_in_hand_and_waits_for_the_broker() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    old = desk.take(2)
    desk.told()
    desk.holdings.seek({QueueRef(TOPIC, 0): 3})
    assert desk.reports == [True]
    deliver(desk.holdings, delivery(0, range(5, 7)))
    assert desk.take(100) == []
    assert desk.told() == [("seek", [(0, 3)])]
    desk.holdings.done(old)
    assert desk.told() == []
    desk.assign((0, 3, 1))
    deliver(desk.holdings, delivery(0, [3, 4], epoch=1))
    assert offsets(desk.take(100)) == [3, 4]


def test_of_two_seeks_the_last_one_counts() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    desk.holdings.seek({QueueRef(TOPIC, 0): 3})
    assert desk.told() == [("seek", [(0, 3)])]
    desk.holdings.seek({QueueRef(TOPIC, 0): 9})
    assert desk.told() == []
    desk.assign((0, 3, 1))
    deliver(desk.holdings, delivery(0, [3], epoch=1))
    assert desk.take(100) == []
    assert desk.told() == [("seek", [(0, 9)])]
    desk.assign((0, 9, 2))
    deliver(desk.holdings, delivery(0, [9], epoch=2))
    assert offsets(desk.take(100)) == [9]


def test_a_seek_that_was_lost_with_its_stream_is_made_on_the_next() -> None:
    desk = Desk()
    desk.assign((0, 50), first=True)
    desk.holdings.seek({QueueRef(TOPIC, 0): 3})
    desk.told()
    assert desk.holdings.positions() == {QueueRef(TOPIC, 0): 3}
    desk.assign((0, 50, 0), first=True)
    deliver(desk.holdings, delivery(0, [50], epoch=0))
    assert desk.take(100) == []
    assert desk.told() == [("seek", [(0, 3)])]
    desk.assign((0, 3, 1))
    deliver(desk.holdings, delivery(0, [3], epoch=1))
    assert offsets(desk.take(100)) == [3]


def test_only_what_is_assigned_can_be_sought() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    with pytest.raises(NotAssigned, match="queue 1 of topic orders"):
        desk.holdings.seek({QueueRef(TOPIC, 0): 1, QueueRef(TOPIC, 1): 1})
    assert desk.told() == []
