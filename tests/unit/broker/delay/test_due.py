"""The picture of the lanes: which batches leave next, and what has to be looked up first."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mq.broker.delay import due
from mq.broker.delay.due import NEVER_MS, Agenda, Budget, DueUnit, Gathering, Window
from mq.store.consumequeue import Units, make_units


def units(*places: tuple[int, int], size: int = 10) -> Units:
    """Units from pairs of due time and log offset."""
    marks, at = np.array(places or np.empty((0, 2)), np.int64).T
    return make_units(at, np.full(len(at), size, np.uint32), marks.astype(np.uint64))


def filled(*places: tuple[int, int], are_all: bool = True) -> Window:
    window = Window()
    window.open()
    window.fill(units(*sorted(places)), are_all=are_all)
    return window


def taken(window: Window, until_ms: int, budget: Budget | None = None) -> list[tuple[int, int]]:
    found = window.take(until_ms, budget or Budget(1 << 30, 1 << 30))
    return [(one.due_ms, one.log_offset) for one in found]


def test_units_leave_in_the_order_of_time_and_log_and_never_early() -> None:
    window = filled((20, 1), (10, 9), (10, 3), (30, 2))
    assert window.first_ms == 10
    assert taken(window, 9) == []
    assert taken(window, 20) == [(10, 3), (10, 9), (20, 1)]
    assert taken(window, 20) == []
    assert window.first_ms == 30
    assert taken(window, 30) == [(30, 2)]
    assert (window.first_ms, window.has_first) == (NEVER_MS, False)


def test_units_added_later_are_taken_in_order_of_time() -> None:
    window = filled((20, 1), (40, 2))
    for due_ms, at in ((30, 5), (10, 6), (20, 7), (50, 8)):
        window.add(DueUnit(due_ms, at, 10))
    assert window.first_ms == 10
    assert taken(window, 45) == [(10, 6), (20, 1), (20, 7), (30, 5), (40, 2)]
    assert window.first_ms == 50


def test_a_new_window_knows_only_a_time() -> None:
    window = Window(500)
    assert (window.first_ms, window.has_first, window.is_filled) == (500, False, False)
    window.add(DueUnit(400, 1, 10))
    window.waits_from(450)
    assert (window.first_ms, window.has_first) == (400, False)
    assert taken(window, 1_000) == []


def test_units_added_while_the_window_is_filled_are_kept() -> None:
    window = Window(5)
    window.open()
    window.add(DueUnit(7, 100, 10))
    window.fill(units((5, 1), (9, 2)), are_all=True)
    assert taken(window, 10) == [(5, 1), (7, 100), (9, 2)]


def test_behind_its_bound_a_window_knows_only_a_time() -> None:
    window = Window()
    window.open()
    window.add(DueUnit(9, 100, 10))
    window.add(DueUnit(5, 99, 10))
    window.fill(units((3, 1), (5, 2)), are_all=False)  # up to (5, 2)
    window.add(DueUnit(4, 101, 10))
    window.add(DueUnit(5, 102, 10))
    assert taken(window, 100) == [(3, 1), (4, 101), (5, 2)]
    # The others have to be looked up: they may be due from the bound on.
    assert (window.first_ms, window.has_first) == (5, False)


def test_a_window_that_forgets_keeps_the_time() -> None:
    window = filled((20, 1), (30, 2))
    assert taken(window, 20) == [(20, 1)]
    window.forget()
    window.waits_from(20)
    assert (window.first_ms, window.has_first, window.is_filled) == (20, False, False)


def test_a_budget_has_room_for_a_first_unit_of_any_size() -> None:
    overhead = due.UNIT_OVERHEAD_BYTES
    window = filled((1, 1), (1, 2), (1, 3))
    assert taken(window, 5, Budget(1, 9)) == [(1, 1)]
    assert taken(window, 5, Budget(2 * (10 + overhead), 9)) == [(1, 2), (1, 3)]
    window = filled(*((1, at) for at in range(9)))
    budget = Budget(1 << 20, 5)
    assert len(taken(window, 5, budget)) == 5
    assert taken(window, 5, budget) == []


def test_many_arrivals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "ARRIVALS_MAX", 10)
    monkeypatch.setattr(due.Gathering.__init__, "__defaults__", (50,))
    window = filled()
    places = [(at * 37 % 1_000, at) for at in range(1, 400)]
    for due_ms, at in places:
        window.add(DueUnit(due_ms, at, 10))
    assert len(window._sorted) + len(window._block) + len(window._arrived) <= 50 + 11
    first = sorted(places)[:50]
    assert taken(window, first[-1][0] - 1) == [one for one in first if one[0] < first[-1][0]]


@pytest.mark.parametrize("seed", range(20))
def test_a_window_is_a_sorted_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a model: a lane on disk, filled again whenever the window asks for it."""
    rng = random.Random(seed)
    monkeypatch.setattr(due, "ARRIVALS_MAX", rng.choice((3, 20)))
    monkeypatch.setattr(due, "_BLOCK_UNITS", rng.choice((1, 4)))
    units_max = rng.choice((4, 30))
    monkeypatch.setattr(due.Gathering.__init__, "__defaults__", (units_max,))
    lane: set[tuple[int, int]] = set()
    window, now_ms = Window(), 0
    for at in range(1, 500):
        match rng.randrange(8):
            case 0 | 1 | 2 | 3:
                place = now_ms + rng.randrange(60), at
                lane.add(place)
                window.add(DueUnit(*place, 10))
            case 4 | 5:
                now_ms += rng.randrange(20)
            case 6:
                window.forget()
            case _:
                while window.first_ms <= now_ms:
                    if not window.has_first:
                        fill(window, lane)
                        continue
                    found = taken(window, now_ms, Budget(1 << 30, rng.randrange(1, 9)))
                    due_now = sorted(one for one in lane if one[0] <= now_ms)
                    assert found == due_now[: len(found)]
                    lane -= set(found)
                assert not [one for one in lane if one[0] <= now_ms]
        assert window.first_ms <= min((one[0] for one in lane), default=NEVER_MS)


def fill(window: Window, lane: set[tuple[int, int]]) -> None:
    window.open()
    gathering = Gathering()
    rows = units(*sorted(lane, key=lambda one: one[1]))
    for start in range(0, len(rows), 3):
        gathering.add(rows[start : start + 3])
    found, are_all = gathering.result()
    window.fill(found, are_all=are_all)


def agenda_of(**first_ms: int) -> Agenda:
    """Lanes by name, such as l3, with something that is due then."""
    agenda = Agenda()
    for name, due_ms in first_ms.items():
        number = int(name[1:])
        agenda.window(number).waits_from(due_ms)
        agenda.changed(number)
    return agenda


def test_the_longest_overdue_lane_comes_first() -> None:
    agenda = agenda_of(l1=50, l2=20, l3=30)
    agenda.window(4)
    agenda.changed(4)
    assert agenda.first_ms() == 20
    assert agenda.take_due(19, 9) == []
    assert agenda.take_due(40, 9) == [2, 3]
    assert agenda.first_ms() == 50
    agenda.changed(3)
    assert agenda.take_due(60, 1) == [3]
    assert agenda.take_due(60, 9) == [1]
    assert (agenda.first_ms(), Agenda().first_ms()) == (NEVER_MS, NEVER_MS)


def test_adding_and_dropping_units_changes_the_next_due_time() -> None:
    agenda = agenda_of(l1=50, l2=20)
    agenda.add(1, DueUnit(10, 5, 1))
    agenda.add(1, DueUnit(15, 6, 1))
    agenda.add(9, DueUnit(5, 7, 1))
    assert (agenda.first_ms(), 9 in agenda, 8 in agenda) == (5, True, False)
    agenda.drop(9)
    assert agenda.first_ms() == 10
    agenda.drop(1)
    agenda.drop(77)
    assert agenda.first_ms() == 20
    agenda.forget(2, 3)
    agenda.forget(77, 1)
    assert agenda.first_ms() == 3


def test_of_filled_windows_those_that_are_needed_last_are_forgotten() -> None:
    agenda = agenda_of(l1=50, l2=20, l3=30)
    for number, due_ms in ((1, 50), (2, 20), (3, 30)):
        window = agenda.window(number)
        window.open()
        window.fill(units((due_ms, 1)), are_all=True)
        agenda.changed(number)
    agenda.forget_surplus(3)
    assert all(agenda.window(number).is_filled for number in (1, 2, 3))
    agenda.forget_surplus(1)
    assert [agenda.window(number).is_filled for number in (1, 2, 3)] == [False, True, False]
    assert agenda.take_due(60, 9) == [2, 3, 1]


def test_an_agenda_does_not_grow_with_what_was_true_once() -> None:
    agenda = agenda_of(l1=5_000)
    for at in range(10_000, 0, -1):
        agenda.add(2, DueUnit(at, at, 1))
    assert len(agenda._heap) < 1_100
    assert agenda.take_due(1, 9) == [2]
    assert agenda.take_due(5_000, 9) == [1]


@pytest.mark.parametrize("wanted", [[], [30], [10, 40], list(range(1_000))])
def test_messages_are_found_by_their_log_offset(wanted: list[int]) -> None:
    offsets = np.array([10, 20, 30, 40])
    expected = [at for at, one in enumerate((10, 20, 30, 40)) if one in wanted]
    assert due.numbers_of(offsets, dict.fromkeys(wanted, 0)) == expected
