"""Lanes: what waits in them, what has left, in any order of events."""

from __future__ import annotations

import numpy as np
import pytest

from mq.broker.state.schedule import LanePosition, Schedule
from mq.store.consumequeue import Units, make_units
from mq.store.holding import LANE_MS, LANES, lane_of
from mq.wire.v1.state_pb2 import (
    CarryScheduled,
    DeliverScheduled,
    LaneCarried,
    LaneProgress,
    RecallScheduled,
)
from tests.support.consensus import batch

DUE_MS = 5 * LANE_MS + 1_000
LANE = lane_of(DUE_MS)


def waits(schedule: Schedule, due_ms: int = DUE_MS, messages: int = 1) -> int:
    """The mark that its unit gets."""
    bodies = [b"x"] * messages
    filed = schedule.add(batch("t", *bodies, deliver_at_ms=due_ms))
    assert filed.queue_id == lane_of(due_ms)
    return filed.mark


def delivered(
    schedule: Schedule, due_ms: int, log_offset: int, batches: int = 1, messages: int = 1
) -> list[int]:
    progress = LaneProgress(
        lane=LANE, due_ms=due_ms, log_offset=log_offset, batches=batches, messages=messages
    )
    return schedule.deliver(DeliverScheduled(lanes=[progress]))


def units(*places: tuple[int, int]) -> Units:
    due, at = np.array(places, np.int64).T
    return make_units(at, np.full(len(places), 9, np.uint32), due.astype(np.uint64))


def test_lanes_cover_more_than_forty_days() -> None:
    assert LANE_MS * LANES > 40 * 86_400_000
    assert {lane_of(at * LANE_MS) for at in range(LANES)} == set(range(LANES))


def test_messages_behind_the_place_of_a_lane_wait_unless_they_were_carried() -> None:
    schedule = Schedule()
    for _ in range(6):
        waits(schedule)
    delivered(schedule, DUE_MS, 50)
    lane = schedule.lanes[LANE]
    places = [(DUE_MS - 1, 90), (DUE_MS, 49), (DUE_MS, 50), (DUE_MS, 51), (DUE_MS + 1, 10)]
    assert lane.waiting(units(*places)).tolist() == [False, False, False, True, True]
    schedule.carry(CarryScheduled(lanes=[LaneCarried(lane=LANE, below_log_offset=51)]))
    assert lane.waiting(units(*places)).tolist() == [False, False, False, True, False]


def test_an_empty_lane_begins_anew() -> None:
    schedule = Schedule()
    waits(schedule, messages=3)
    assert schedule.messages == 3
    assert delivered(schedule, DUE_MS, 50, messages=3) == [LANE]
    assert (schedule.lanes, schedule.messages) == ({}, 0)
    # The clock was set back: what comes for a time that was delivered waits for its time.
    assert waits(schedule, DUE_MS - 500) == DUE_MS - 500


def test_a_message_for_a_time_that_its_lane_has_passed_is_late_not_early() -> None:
    schedule = Schedule()
    waits(schedule)
    waits(schedule, DUE_MS + 900)
    delivered(schedule, DUE_MS, 50)
    mark = waits(schedule, DUE_MS - 500)
    assert mark == DUE_MS
    assert schedule.lanes[LANE].waiting(units((mark, 70))).tolist() == [True]


def test_a_place_never_goes_back() -> None:
    schedule = Schedule()
    for _ in range(3):
        waits(schedule)
    delivered(schedule, DUE_MS, 50)
    delivered(schedule, DUE_MS, 40)
    assert schedule.lanes[LANE].delivered == LanePosition(DUE_MS, 50)


@pytest.mark.parametrize(
    ("due_ms", "log_offset", "is_found"),
    [(DUE_MS, 50, False), (DUE_MS, 51, True), (DUE_MS - 1, 99, False), (DUE_MS + 1, 1, True)],
)
def test_only_what_waits_is_taken_back(due_ms: int, log_offset: int, *, is_found: bool) -> None:
    schedule = Schedule()
    waits(schedule, messages=2)
    waits(schedule, DUE_MS + 1, messages=2)
    delivered(schedule, DUE_MS, 50, messages=2)
    command = RecallScheduled(
        lane=LANE, due_ms=due_ms, log_offset=log_offset, message_log_offset=log_offset + 7
    )
    assert schedule.recall(command) is is_found
    assert schedule.messages == 2 - is_found
    assert not schedule.recall(RecallScheduled(lane=LANE + 1, due_ms=1 << 60))


def test_same_state_same_bytes() -> None:
    schedule = Schedule()
    for at in (3, 1, 2):
        waits(schedule, DUE_MS + at * LANE_MS, messages=at)
    waits(schedule)
    waits(schedule)
    delivered(schedule, DUE_MS, 50)
    recalled = RecallScheduled(lane=LANE, due_ms=DUE_MS, log_offset=60, message_log_offset=66)
    assert schedule.recall(recalled)
    again = Schedule()
    again.restore(schedule.encode())
    assert list(again.encode()) == list(schedule.encode())
    assert again.messages == schedule.messages
    assert not again.lanes[LANE].waiting(units((DUE_MS, 50))).any()


def test_commands_about_lanes_that_are_not_there_change_nothing() -> None:
    schedule = Schedule()
    assert delivered(schedule, DUE_MS, 50) == []
    carried = CarryScheduled(lanes=[LaneCarried(lane=3, below_log_offset=9, batches=2)])
    assert schedule.carry(carried) == []
    assert list(schedule.encode()) == []
