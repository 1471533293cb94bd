"""The queues in hand: who may take what, and what is reported."""

from __future__ import annotations

import math
import threading

import pytest

from mq.client.consumer.prefetch_queue import InFlight
from mq.client.decode import Decoder
from mq.errors import NotAssigned, SubscriptionMismatch
from mq.wire.v1.consumer_pb2 import Run
from tests.unit.client.consumer.deliveries import SET, assignment, deliver, delivery, ref
from tests.unit.client.consumer.manual_buffer import ManualBuffer, offsets

# Taking


def test_messages_are_taken_in_the_order_of_their_queue() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(3)))
    deliver(buffered.buffer, delivery(0, range(3, 5)))
    assert offsets(buffered.take(4)) == [0, 1, 2, 3]
    assert offsets(buffered.take(4)) == [4]
    assert buffered.take(4) == []


def test_queues_take_turns() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), (1, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(4)))
    deliver(buffered.buffer, delivery(1, range(4)))
    queues = [buffered.take()[0].message.queue_id for _ in range(4)]
    assert queues == [0, 1, 0, 1]
    assert len(buffered.take(100)) == 4


def test_stale_deliveries_are_dropped() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0, 4), first=True)
    deliver(buffered.buffer, delivery(0, range(3), epoch=3))
    deliver(buffered.buffer, delivery(7, range(3)))
    assert buffered.take(100) == []


def test_an_ordered_queue_has_one_message_at_work_at_a_time() -> None:
    buffered = ManualBuffer(is_ordered=True)
    buffered.assign((0, 0), (1, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(3)))
    deliver(buffered.buffer, delivery(1, range(3)))
    first = buffered.take(100)
    assert offsets(first) == [0, 0]
    assert buffered.take(100) == []
    before = buffered.ready
    buffered.buffer.done(first[:1])
    assert buffered.ready > before
    assert offsets(buffered.take(100)) == [1]


def test_an_ordered_queue_waits_for_a_message_that_failed() -> None:
    buffered = ManualBuffer(is_ordered=True)
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(3)))
    buffered.buffer.retry(buffered.take()[0], 5.0)
    assert buffered.take(100) == []
    buffered.now_s = 5.0
    (again,) = buffered.take(100)
    assert (again.message.queue_offset, again.message.attempt) == (0, 2)
    buffered.buffer.done([again])
    assert offsets(buffered.take(100)) == [1]


def test_an_ordered_queue_does_not_wait_for_a_failed_message_that_is_void() -> None:
    buffered = ManualBuffer(is_ordered=True)
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(3)))
    buffered.buffer.retry(buffered.take()[0], 5.0)
    buffered.buffer.seek({ref(0): 1})
    buffered.told()
    buffered.assign((0, 1, 1))
    deliver(buffered.buffer, delivery(0, [1, 2], epoch=1))
    assert offsets(buffered.take(100)) == [1]
    buffered.now_s = 5.0
    assert buffered.take(100) == []


def test_an_ordered_queue_stays_in_order_over_a_seek() -> None:
    """The handler that was at work when the user sought is waited for."""
    buffered = ManualBuffer(is_ordered=True)
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(3)))
    old = buffered.take()
    buffered.buffer.seek({ref(0): 1})
    buffered.told()
    buffered.assign((0, 1, 1))
    deliver(buffered.buffer, delivery(0, [1, 2], epoch=1))
    assert buffered.take(100) == []
    buffered.buffer.done(old)
    assert offsets(buffered.take(100)) == [1]


def test_side_by_side_others_go_on_while_one_waits_for_its_next_attempt() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(3)))
    failed, *others = buffered.take(3)
    buffered.buffer.retry(failed, 5.0)
    buffered.buffer.done(others)
    assert buffered.buffer.take_or_wait(100, math.inf) == ([], 5.0)
    assert buffered.take(100) == []
    assert buffered.buffer.done_offsets() == {ref(0): 0}
    buffered.now_s = 5.0
    (again,) = buffered.take(100)
    buffered.buffer.done([again])
    assert buffered.buffer.done_offsets() == {ref(0): 3}


def test_paused_queues_give_out_nothing_until_they_are_resumed() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), (1, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(2)))
    deliver(buffered.buffer, delivery(1, range(2)))
    buffered.buffer.pause([ref(0)])
    assert {one.message.queue_id for one in buffered.take(100)} == {1}
    buffered.buffer.resume([ref(0)])
    assert offsets(buffered.take(100)) == [0, 1]
    with pytest.raises(NotAssigned, match="queue 9 of topic orders"):
        buffered.buffer.pause([ref(9)])


def test_a_pause_of_all_holds_for_queues_to_come() -> None:
    buffered = ManualBuffer()
    buffered.buffer.pause(None)
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(2)))
    assert buffered.take(100) == []
    buffered.buffer.resume(None)
    assert offsets(buffered.take(100)) == [0, 1]
    buffered.assign((0, 2), (1, 0))
    deliver(buffered.buffer, delivery(1, [0]))
    assert offsets(buffered.take(100)) == [0]


def test_a_queue_that_is_resumed_alone_stays_so_when_members_come_and_go() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), (1, 0), first=True)
    buffered.buffer.pause(None)
    buffered.buffer.resume([ref(1)])
    buffered.assign((0, 0), (1, 0), (2, 0))
    for queue_id in range(3):
        deliver(buffered.buffer, delivery(queue_id, [0]))
    assert [one.message.queue_id for one in buffered.take(100)] == [1]


def test_nothing_is_given_out_after_a_stop_and_what_is_at_work_may_be_finished() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(2)))
    taken = buffered.take()
    buffered.buffer.stop()
    assert buffered.take() == []
    buffered.buffer.done(taken)
    assert buffered.buffer.done_offsets() == {ref(0): 1}


def test_a_take_raises_the_error_that_ended_the_consumer() -> None:
    buffered = ManualBuffer()
    buffered.buffer.fail(SubscriptionMismatch("a and b"))
    buffered.buffer.fail(SubscriptionMismatch("a later one"))
    with pytest.raises(SubscriptionMismatch, match="a and b"):
        buffered.take()
    with pytest.raises(SubscriptionMismatch, match="a and b"):
        buffered.buffer.wait_take(1, None)


def test_a_thread_that_waits_gets_what_is_delivered() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    found: list[InFlight] = []
    waiter = threading.Thread(target=lambda: found.extend(buffered.buffer.wait_take(5, None)))
    waiter.start()
    deliver(buffered.buffer, delivery(0, range(2)))
    waiter.join(10)
    assert offsets(found) == [0, 1]


def test_a_thread_that_waits_is_woken_by_a_stop() -> None:
    buffered = ManualBuffer()
    found: list[list[InFlight]] = []
    waiter = threading.Thread(target=lambda: found.append(buffered.buffer.wait_take(5, None)))
    waiter.start()
    buffered.buffer.stop()
    waiter.join(10)
    assert found == [[]]


def test_a_wait_without_time_looks_once() -> None:
    buffered = ManualBuffer()
    assert buffered.buffer.wait_take(5, 0.0) == []


# Reporting


def test_progress_is_reported_soon_and_once() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    buffered.told()
    taken = buffered.take(3)
    buffered.buffer.done(taken[1:])
    assert buffered.told() == []
    buffered.buffer.done(taken[:1])
    assert buffered.reports == [False]
    buffered.buffer.done(buffered.take(1))
    assert buffered.reports == [False]
    assert buffered.told() == [("progress", [(0, 4, 0)])]
    assert buffered.told() == []


def test_half_of_the_cache_is_reported_at_once() -> None:
    buffered = ManualBuffer(cache_messages=10)
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(10)))
    buffered.told()
    taken = buffered.take(10)
    buffered.buffer.done(taken[:4])
    assert True not in buffered.reports
    buffered.buffer.done(taken[4:5])
    assert True in buffered.reports


def test_half_of_the_cached_bytes_is_reported_at_once() -> None:
    buffered = ManualBuffer(cache_messages=1_000)
    buffered.buffer._cache_bytes = 40
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(4)))
    buffered.told()
    taken = buffered.take(4)
    buffered.buffer.done(taken[:1])
    assert True not in buffered.reports
    buffered.buffer.done(taken[1:2])
    assert True in buffered.reports


def test_filtered_messages_are_progress_when_all_before_them_are_done() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, [3, 5], next_offset=20))
    taken = buffered.take(5)
    buffered.buffer.done(taken[:1])
    assert buffered.told() == [("progress", [(0, 5, 0)])]
    buffered.buffer.done(taken[1:])
    assert buffered.told() == [("progress", [(0, 20, 0)])]
    deliver(buffered.buffer, delivery(0, [], next_offset=50))
    assert buffered.told() == [("progress", [(0, 50, 0)])]


def test_a_message_with_a_wrong_tag_of_the_same_hash_is_passed_over() -> None:
    buffered = ManualBuffer()
    tagged = assignment((0, 0))
    tagged.queues[0].topic = "tagged"
    buffered.open_set()
    buffered.buffer.assign(tagged, SET, is_first=True)
    for at, tag in enumerate("abab"):
        one = delivery(0, [at], tag=tag)
        one.topic = "tagged"
        deliver(buffered.buffer, one)
    taken = buffered.take(100)
    assert offsets(taken) == [0, 2]
    buffered.buffer.done(taken)
    assert buffered.told() == [("progress", [(0, 4, 0)])]


def test_messages_that_were_put_back_are_the_next_and_their_gaps_stay_done() -> None:
    buffered = ManualBuffer()
    tagged = assignment((0, 0))
    tagged.queues[0].topic = "tagged"
    buffered.open_set()
    buffered.buffer.assign(tagged, SET, is_first=True)
    mixed = delivery(0, range(8))
    mixed.topic = "tagged"
    for one, tag in zip(mixed.runs, "abaabbaa", strict=True):
        one.messages[0].tag, one.messages[0].ordering_key = tag, ""
        one.frame_sizes[:] = [Run(messages=one.messages).ByteSize()]
    deliver(buffered.buffer, mixed)
    (taken,) = buffered.buffer.take(100)
    assert offsets([taken]) == [0, 2, 3, 6, 7]
    buffered.ready = 0
    buffered.buffer.put_back(taken.part(1, 5))
    assert buffered.ready == 1
    buffered.buffer.done([taken.part(0, 1)])
    assert buffered.told() == [("progress", [(0, 2, 0)])]
    (first,) = buffered.buffer.take(3)
    assert offsets([first]) == [2, 3, 6]
    buffered.buffer.put_back(first.part(1, 3))
    (second,) = buffered.buffer.take(2)
    assert offsets([second]) == [3, 6]
    assert list(second.to_batch(Decoder()).offsets) == [3, 6]
    buffered.buffer.done([second])
    assert buffered.told() == []
    buffered.buffer.done([first.part(0, 1)])
    assert buffered.told() == [("progress", [(0, 7, 0)])]
    (last,) = buffered.buffer.take(100)
    buffered.buffer.done([last])
    assert offsets([last]) == [7]
    assert buffered.told() == [("progress", [(0, 8, 0)])]


def test_messages_that_are_put_back_after_a_seek_are_void() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(4)))
    (taken,) = buffered.buffer.take(4)
    buffered.buffer.seek({ref(0): 0})
    buffered.buffer.put_back(taken.part(1, 4))
    assert buffered.buffer.cached_messages == {ref(0): 0}
    assert buffered.buffer.take(4) == []


def test_messages_that_failed_together_come_again_together() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(20)))
    (taken,) = buffered.buffer.take(17)
    before = list(taken.messages)
    buffered.buffer.retry(taken, 5.0)
    assert offsets(buffered.buffer.take(100)) == [17, 18, 19]
    buffered.now_s = 5.0
    (again,) = buffered.buffer.take(100)
    assert offsets([again]) == list(range(17))
    assert {one.attempt for one in again.messages} == {2}
    assert {one.attempt for one in before} == {1}
    buffered.buffer.done([again])
    assert buffered.told() == [("progress", [(0, 17, 0)])]
