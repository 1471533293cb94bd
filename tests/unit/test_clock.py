"""Time is an argument; what there is to know of the clock that gives it."""

from __future__ import annotations

import time

import pytest

from mq.clock import SystemClock


def test_the_system_clock_is_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_999_999)
    assert SystemClock().now_ms() == 1_700_000_000_123


def test_the_system_clock_may_step_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([5_000_000, 4_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(readings))
    clock = SystemClock()
    assert [clock.now_ms(), clock.now_ms()] == [5, 4]
