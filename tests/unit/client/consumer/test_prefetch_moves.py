"""The queues in hand: they come and go, streams break, users seek; nothing is lost by it."""

from __future__ import annotations

import pytest

from mq.errors import NotAssigned
from tests.unit.client.consumer.deliveries import SET, deliver, delivery, ref
from tests.unit.client.consumer.manual_buffer import ManualBuffer, offsets

# Queues that come and go


def test_a_queue_that_is_revoked_is_released_after_its_last_handler() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), (1, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    taken = buffered.take(2)
    buffered.told()
    buffered.assign((1, 0))
    assert buffered.buffer.assignment == {ref(1)}
    assert buffered.take(100) == []
    assert buffered.told() == []
    buffered.buffer.done(taken[:1])
    assert buffered.told() == [("progress", [(0, 1, 0)])]
    buffered.buffer.done(taken[1:])
    assert buffered.reports[-1] is True
    assert buffered.told() == [("progress", [(0, 2, 0)]), ("released", [(0, 0)])]
    assert buffered.buffer.positions(SET) == {ref(1): 0}


def test_an_idle_queue_is_released_at_once() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    buffered.told()
    buffered.assign()
    assert buffered.reports == [True]
    assert buffered.told() == [("released", [(0, 0)])]


def test_a_message_that_waits_for_its_next_attempt_does_not_hold_a_queue_back() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(2)))
    first, second = buffered.take(2)
    buffered.buffer.done([first])
    buffered.buffer.retry(second, 5.0)
    buffered.told()
    buffered.assign()
    assert buffered.told() == [("released", [(0, 0)])]
    buffered.now_s = 5.0
    assert buffered.take(100) == []


def test_a_queue_that_comes_back_before_it_was_released_goes_on_where_it_was() -> None:
    """The broker delivers again from what it has heard of; nothing comes twice."""
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(6)))
    running, failed, done = buffered.take(3)
    buffered.buffer.done([done])
    buffered.buffer.retry(failed, 1.0)
    buffered.told()
    buffered.assign()
    buffered.now_s = 1.0
    assert buffered.take(100) == []
    buffered.assign((0, 0, 1))
    assert offsets(buffered.take(2)) == [1, 3]
    deliver(buffered.buffer, delivery(0, range(4), epoch=1))
    deliver(buffered.buffer, delivery(0, range(4, 8), epoch=1))
    assert offsets(buffered.take(100)) == [4, 5, 6, 7]
    buffered.buffer.done([running])
    assert buffered.told() == [("progress", [(0, 1, 1)])]


def test_progress_never_claims_what_was_not_delivered_under_its_epoch() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(6)))
    taken = buffered.take(6)
    buffered.told()
    buffered.assign()
    buffered.assign((0, 0, 1))
    buffered.buffer.done(taken)
    assert buffered.told() == []
    deliver(buffered.buffer, delivery(0, range(4), epoch=1))
    assert buffered.told() == [("progress", [(0, 4, 1)])]
    deliver(buffered.buffer, delivery(0, range(4, 6), epoch=1))
    assert buffered.told() == [("progress", [(0, 6, 1)])]


def test_a_queue_that_is_given_back_while_its_release_is_on_the_way_repeats_nothing() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(4)))
    taken = buffered.take(3)
    buffered.told()
    buffered.assign()
    buffered.buffer.done(taken)
    assert buffered.told()[-1] == ("released", [(0, 0)])
    buffered.assign((0, 0, 1))
    deliver(buffered.buffer, delivery(0, range(5), epoch=1))
    assert offsets(buffered.take(100)) == [3, 4]


@pytest.mark.parametrize("is_released", [False, True])
def test_a_queue_that_comes_back_after_a_reconnect_repeats_nothing(is_released: bool) -> None:
    """The broker has it from the last commit: what was reported on the old stream may be lost."""
    buffered = ManualBuffer()
    buffered.assign((0, 0, 3), first=True)
    deliver(buffered.buffer, delivery(0, range(8), epoch=3))
    taken = buffered.take(6)
    buffered.buffer.done(taken[:5])
    buffered.told()
    buffered.assign(first=True)
    if is_released:
        buffered.buffer.done(taken[5:])
        assert buffered.told() == [("progress", [(0, 6, 0)]), ("released", [(0, 0)])]
    buffered.assign((0, 2, 1))
    if not is_released:
        buffered.buffer.done(taken[5:])
    deliver(buffered.buffer, delivery(0, range(2, 9), epoch=1))
    assert offsets(buffered.take(100)) == [6, 7, 8]
    assert buffered.told()[-1] == ("progress", [(0, 6, 1)])


@pytest.mark.parametrize("is_released", [False, True])
def test_a_reset_of_a_leaving_queue_voids_messages_in_flight(is_released: bool) -> None:
    """It is one epoch more than the return of the queue alone."""
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    taken = buffered.take(5)
    if is_released:
        buffered.buffer.done(taken)
    buffered.assign()
    buffered.told()
    buffered.assign((0, 1, 2))
    deliver(buffered.buffer, delivery(0, range(1, 4), epoch=2))
    assert offsets(buffered.take(100)) == [1, 2, 3]


def test_a_queue_that_others_had_meanwhile_starts_where_the_broker_says() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0, 2), first=True)
    deliver(buffered.buffer, delivery(0, range(4), epoch=2))
    buffered.buffer.done(buffered.take(4))
    buffered.assign()
    buffered.told()
    buffered.assign((0, 1, 0))
    deliver(buffered.buffer, delivery(0, [1, 2], epoch=0))
    assert offsets(buffered.take(100)) == [1, 2]


def test_a_reset_by_an_operator_voids_messages_in_flight() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 50), first=True)
    deliver(buffered.buffer, delivery(0, range(50, 55)))
    old = buffered.take(2)
    buffered.assign((0, 10, 1))
    buffered.buffer.done(old)
    assert buffered.told() == []
    deliver(buffered.buffer, delivery(0, [55], epoch=0))
    deliver(buffered.buffer, delivery(0, [10, 11], epoch=1))
    taken = buffered.take(100)
    assert offsets(taken) == [10, 11]
    buffered.buffer.done(taken)
    assert buffered.told() == [("progress", [(0, 12, 1)])]


def test_a_topic_that_was_made_anew_starts_at_its_new_end() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 50), first=True)
    deliver(buffered.buffer, delivery(0, [], next_offset=0))
    deliver(buffered.buffer, delivery(0, range(2)))
    taken = buffered.take(100)
    assert offsets(taken) == [0, 1]
    buffered.buffer.done(taken)
    assert buffered.told() == [("progress", [(0, 2, 0)])]


# Streams that break


def test_messages_in_flight_survive_a_reconnect_and_are_reported_again() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    taken = buffered.take(2)
    buffered.buffer.done(taken[:1])
    buffered.told()
    assert buffered.buffer.positions(SET) == {ref(0): 5}
    buffered.assign((0, 5, 0), first=True)
    assert buffered.told() == [("progress", [(0, 1, 0)])]
    buffered.buffer.done(taken[1:])
    assert offsets(buffered.take(100)) == [2, 3, 4]
    assert buffered.told() == [("progress", [(0, 2, 0)])]
    deliver(buffered.buffer, delivery(0, [5]))
    assert offsets(buffered.take(100)) == [5]


def test_all_that_is_done_is_reported_also_when_nothing_new_comes_after_a_reconnect() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    taken = buffered.take(5)
    buffered.assign((0, 5, 0), first=True)
    buffered.told()
    buffered.buffer.done(taken)
    assert buffered.told() == [("progress", [(0, 5, 0)])]


def test_after_a_reconnect_the_broker_may_know_better() -> None:
    """Others had the queue meanwhile, or it was reset: its place is not the one we asked for."""
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    old = buffered.take(2)
    buffered.assign((0, 3, 0), first=True)
    buffered.buffer.done(old)
    deliver(buffered.buffer, delivery(0, [3, 4]))
    assert offsets(buffered.take(100)) == [3, 4]
    assert buffered.buffer.done_offsets() == {ref(0): 3}


def test_a_queue_that_is_not_ours_after_a_reconnect_is_let_go_of() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0, 6), first=True)
    deliver(buffered.buffer, delivery(0, range(5), epoch=6))
    taken = buffered.take(2)
    buffered.assign(first=True)
    assert buffered.take(100) == []
    buffered.buffer.done(taken)
    # The broker has seen no epoch of this stream, and counts from 0.
    assert buffered.told() == [("progress", [(0, 2, 0)]), ("released", [(0, 0)])]


def test_all_that_is_done_of_a_lost_queue_is_reported_before_it_is_let_go_of() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    buffered.buffer.done(buffered.take(5))
    buffered.assign(first=True)
    assert buffered.told() == [("progress", [(0, 5, 0)]), ("released", [(0, 0)])]


def test_releases_of_a_stream_that_has_ended_do_not_count() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    buffered.buffer.done(buffered.take(5))
    buffered.assign()
    buffered.told()
    buffered.assign((0, 2, 1), first=True)
    deliver(buffered.buffer, delivery(0, [2, 3], epoch=1))
    assert offsets(buffered.take(100)) == [2, 3]


@pytest.mark.parametrize("is_heard", [False, True])
def test_an_ordered_queue_whose_release_may_be_lost_is_claimed_again(is_heard: bool) -> None:
    """Nobody else knows how far it is. If another has it by now, it is let go of once more."""
    buffered = ManualBuffer(is_ordered=True)
    buffered.assign((0, 0), (1, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    for _ in range(3):
        buffered.buffer.done(buffered.take(1))
    buffered.assign((1, 0))
    assert buffered.told()[-1] == ("released", [(0, 0)])
    for _ in range(2):
        buffered.buffer.reclaim(SET)
        assert buffered.buffer.positions(SET) == {ref(0): 3, ref(1): 0}
        assert buffered.buffer.assignment == {ref(1)}
    if is_heard:
        buffered.assign((1, 0, 1), first=True)
        assert ("released", [(0, 0)]) in buffered.told()
        assert buffered.buffer.positions(SET) == {ref(1): 0}
    else:
        buffered.assign((0, 3, 1), (1, 0, 1), first=True)
        assert buffered.told()[0][1][0] == (0, 3, 1)
        deliver(buffered.buffer, delivery(0, range(3, 5), epoch=1))
        assert offsets(buffered.take(100)) == [3]
        buffered.buffer.reclaim(SET)
        assert buffered.buffer.positions(SET) == {ref(0): 5, ref(1): 0}


def test_a_queue_without_locks_is_not_claimed_again_when_it_was_let_go_of() -> None:
    """Another may have it, and be first or second to come back."""
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    buffered.assign()
    buffered.told()
    buffered.buffer.reclaim(SET)
    assert buffered.buffer.positions(SET) == {}


def test_alone_for_long_nothing_is_given_out_until_the_broker_is_there_again() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    buffered.buffer.suspend(SET)
    assert buffered.take() == []
    before = buffered.ready
    buffered.assign((0, 5), first=True)
    assert buffered.ready > before
    assert offsets(buffered.take()) == [0]


# Seeking


def test_a_seek_voids_messages_in_flight_and_waits_for_the_broker() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    deliver(buffered.buffer, delivery(0, range(5)))
    old = buffered.take(2)
    buffered.told()
    buffered.buffer.seek({ref(0): 3})
    assert buffered.reports == [True]
    deliver(buffered.buffer, delivery(0, range(5, 7)))
    assert buffered.take(100) == []
    assert buffered.told() == [("seek", [(0, 3)])]
    buffered.buffer.done(old)
    assert buffered.told() == []
    buffered.assign((0, 3, 1))
    deliver(buffered.buffer, delivery(0, [3, 4], epoch=1))
    assert offsets(buffered.take(100)) == [3, 4]


def test_of_two_seeks_the_last_one_counts() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    buffered.buffer.seek({ref(0): 3})
    assert buffered.told() == [("seek", [(0, 3)])]
    buffered.buffer.seek({ref(0): 9})
    assert buffered.told() == []
    buffered.assign((0, 3, 1))
    deliver(buffered.buffer, delivery(0, [3], epoch=1))
    assert buffered.take(100) == []
    assert buffered.told() == [("seek", [(0, 9)])]
    buffered.assign((0, 9, 2))
    deliver(buffered.buffer, delivery(0, [9], epoch=2))
    assert offsets(buffered.take(100)) == [9]


def test_a_seek_that_was_lost_with_its_stream_is_made_on_the_next() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 50), first=True)
    buffered.buffer.seek({ref(0): 3})
    buffered.told()
    assert buffered.buffer.positions(SET) == {ref(0): 3}
    buffered.assign((0, 50, 0), first=True)
    deliver(buffered.buffer, delivery(0, [50], epoch=0))
    assert buffered.take(100) == []
    assert buffered.told() == [("seek", [(0, 3)])]
    buffered.assign((0, 3, 1))
    deliver(buffered.buffer, delivery(0, [3], epoch=1))
    assert offsets(buffered.take(100)) == [3]


def test_only_what_is_assigned_can_be_sought() -> None:
    buffered = ManualBuffer()
    buffered.assign((0, 0), first=True)
    with pytest.raises(NotAssigned, match="queue 1 of topic orders"):
        buffered.buffer.seek({ref(0): 1, ref(1): 1})
    assert buffered.told() == []
