"""The queues in hand: they come and go, streams break, users seek; nothing is lost by it."""

from __future__ import annotations

import pytest

from mq.errors import NotAssigned
from tests.unit.client.deliveries import SET, deliver, delivery, ref
from tests.unit.client.desk import Desk, offsets

# Queues that come and go


def test_a_queue_that_is_revoked_is_released_after_its_last_handler() -> None:
    desk = Desk()
    desk.assign((0, 0), (1, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    taken = desk.take(2)
    desk.told()
    desk.assign((1, 0))
    assert desk.holdings.assignment == {ref(1)}
    assert desk.take(100) == []
    assert desk.told() == []
    desk.holdings.done(taken[:1])
    assert desk.told() == [("progress", [(0, 1, 0)])]
    desk.holdings.done(taken[1:])
    assert desk.reports[-1] is True
    assert desk.told() == [("progress", [(0, 2, 0)]), ("released", [(0,)])]
    assert desk.holdings.positions(SET) == {ref(1): 0}


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


@pytest.mark.parametrize("is_released", [False, True])
def test_a_queue_that_comes_back_after_a_reconnect_repeats_nothing(is_released: bool) -> None:
    """The broker has it from the last commit: what was reported on the old stream may be lost."""
    desk = Desk()
    desk.assign((0, 0, 3), first=True)
    deliver(desk.holdings, delivery(0, range(8), epoch=3))
    taken = desk.take(6)
    desk.holdings.done(taken[:5])
    desk.told()
    desk.assign(first=True)
    if is_released:
        desk.holdings.done(taken[5:])
        assert desk.told() == [("progress", [(0, 6, 0)]), ("released", [(0,)])]
    desk.assign((0, 2, 1))
    if not is_released:
        desk.holdings.done(taken[5:])
    deliver(desk.holdings, delivery(0, range(2, 9), epoch=1))
    assert offsets(desk.take(100)) == [6, 7, 8]
    assert desk.told()[-1] == ("progress", [(0, 6, 1)])


@pytest.mark.parametrize("is_released", [False, True])
def test_a_reset_of_a_queue_that_was_to_leave_voids_what_is_in_hand(is_released: bool) -> None:
    """It is one epoch more than the return of the queue alone."""
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    taken = desk.take(5)
    if is_released:
        desk.holdings.done(taken)
    desk.assign()
    desk.told()
    desk.assign((0, 1, 2))
    deliver(desk.holdings, delivery(0, range(1, 4), epoch=2))
    assert offsets(desk.take(100)) == [1, 2, 3]


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
    assert desk.holdings.positions(SET) == {ref(0): 5}
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
    assert desk.holdings.done_offsets() == {ref(0): 3}


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


def test_all_that_is_done_of_a_lost_queue_is_reported_before_it_is_let_go_of() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    desk.holdings.done(desk.take(5))
    desk.assign(first=True)
    assert desk.told() == [("progress", [(0, 5, 0)]), ("released", [(0,)])]


def test_what_was_released_on_a_stream_that_is_gone_counts_no_more() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    desk.holdings.done(desk.take(5))
    desk.assign()
    desk.told()
    desk.assign((0, 2, 1), first=True)
    deliver(desk.holdings, delivery(0, [2, 3], epoch=1))
    assert offsets(desk.take(100)) == [2, 3]


@pytest.mark.parametrize("is_heard", [False, True])
def test_an_ordered_queue_whose_release_may_be_lost_is_claimed_again(is_heard: bool) -> None:
    """Nobody else knows how far it is. If another has it by now, it is let go of once more."""
    desk = Desk(is_ordered=True)
    desk.assign((0, 0), (1, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    for _ in range(3):
        desk.holdings.done(desk.take(1))
    desk.assign((1, 0))
    assert desk.told()[-1] == ("released", [(0,)])
    for _ in range(2):
        desk.holdings.reclaim(SET)
        assert desk.holdings.positions(SET) == {ref(0): 3, ref(1): 0}
        assert desk.holdings.assignment == {ref(1)}
    if is_heard:
        desk.assign((1, 0, 1), first=True)
        assert ("released", [(0,)]) in desk.told()
        assert desk.holdings.positions(SET) == {ref(1): 0}
    else:
        desk.assign((0, 3, 1), (1, 0, 1), first=True)
        assert desk.told()[0][1][0] == (0, 3, 1)
        deliver(desk.holdings, delivery(0, range(3, 5), epoch=1))
        assert offsets(desk.take(100)) == [3]
        desk.holdings.reclaim(SET)
        assert desk.holdings.positions(SET) == {ref(0): 5, ref(1): 0}


def test_a_queue_without_locks_is_not_claimed_again_when_it_was_let_go_of() -> None:
    """Another may have it, and be first or second to come back."""
    desk = Desk()
    desk.assign((0, 0), first=True)
    desk.assign()
    desk.told()
    desk.holdings.reclaim(SET)
    assert desk.holdings.positions(SET) == {}


def test_alone_for_long_nothing_is_given_out_until_the_broker_is_there_again() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    desk.holdings.suspend(SET)
    assert desk.take() == []
    before = desk.ready
    desk.assign((0, 5), first=True)
    assert desk.ready > before
    assert offsets(desk.take()) == [0]


# Seeking


def test_a_seek_voids_what_is_in_hand_and_waits_for_the_broker() -> None:
    desk = Desk()
    desk.assign((0, 0), first=True)
    deliver(desk.holdings, delivery(0, range(5)))
    old = desk.take(2)
    desk.told()
    desk.holdings.seek({ref(0): 3})
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
    desk.holdings.seek({ref(0): 3})
    assert desk.told() == [("seek", [(0, 3)])]
    desk.holdings.seek({ref(0): 9})
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
    desk.holdings.seek({ref(0): 3})
    desk.told()
    assert desk.holdings.positions(SET) == {ref(0): 3}
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
        desk.holdings.seek({ref(0): 1, ref(1): 1})
    assert desk.told() == []
