"""History: gaps stay gaps, memory is bounded, what does not move costs nothing."""

from __future__ import annotations

from mq.console import series
from mq.console.series import History


def test_values_stand_at_their_times_and_gaps_are_none() -> None:
    history = History(10)
    history.add(1_000, {("in", "a"): 1.0})
    history.add(2_000, {("in", "b"): 5.0})
    history.add(3_000, {("in", "a"): 3.0, ("in", "b"): 0.0})
    assert history.times_ms() == [1_000, 2_000, 3_000]
    assert history.of("in", "a") == [1.0, None, 3.0]
    assert history.of("in", "b") == [None, 5.0, 0.0]
    assert history.of("in", "never") == [0.0, 0.0, 0.0]
    assert history.latest("in", ["a", "b", "never"]) == {"a": 3.0, "b": 0.0, "never": 0.0}
    history.add(4_000, {})
    assert history.latest("in", ["a"]) == {"a": 0.0}


def test_old_samples_go_and_so_do_series_that_stood_still_all_the_time() -> None:
    history = History(5)
    history.add(0, {("in", "busy"): 1.0, ("in", "once"): 1.0})
    for at in range(1, 40):
        history.add(at, {("in", "busy"): float(at), ("in", "once"): 0.0})
        assert len(history.times_ms()) <= 5
    assert history.of("in", "busy") == [35.0, 36.0, 37.0, 38.0, 39.0]
    assert len(history) == 1
    assert history.of("in", "once") == [0.0] * 5


def test_topics_that_never_moved_and_those_beyond_the_limit_take_no_memory() -> None:
    history = History(5)
    history.add(0, {("in", f"still-{number}"): 0.0 for number in range(100)})
    assert len(history) == 0
    history.add(1, {("in", f"busy-{number}"): 1.0 for number in range(series.SERIES_MAX + 100)})
    assert len(history) == series.SERIES_MAX
