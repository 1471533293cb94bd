"""Time is an argument: two clocks, one question."""

from __future__ import annotations

import time

import pytest

from mq.clock import Clock, ManualClock, SystemClock


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_both_clocks_answer_in_whole_milliseconds(clock: Clock) -> None:
    assert type(clock.now_ms()) is int


def test_the_system_clock_is_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_999_999)
    assert SystemClock().now_ms() == 1_700_000_000_123


def test_the_system_clock_may_step_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([5_000_000, 4_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(readings))
    clock = SystemClock()
    assert [clock.now_ms(), clock.now_ms()] == [5, 4]


def test_a_manual_clock_moves_only_when_told_to() -> None:
    clock = ManualClock(1_000)
    assert [clock.now_ms(), clock.now_ms()] == [1_000, 1_000]
    clock.advance(250)
    clock.advance(1)
    assert clock.now_ms() == 1_251


def test_a_manual_clock_starts_at_zero_and_is_not_shared() -> None:
    first, second = ManualClock(), ManualClock()
    first.advance(7)
    assert (first.now_ms(), second.now_ms()) == (7, 0)
