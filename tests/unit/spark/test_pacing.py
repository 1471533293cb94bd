"""Never faster than asked for, and not much slower."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mq_spark.pipelines.pacing import Pace, Schedule
from mq_spark.pipelines.replay_sending import chunks


def _run(pace: Pace, took_s: list[float], rows: int) -> list[float]:
    """When each chunk was sent, if sending it takes so long; a task has three of them."""
    now_s, sent_at_s = 100.0, []
    schedule = Schedule(pace, now_s)
    for number, chunk_s in enumerate(took_s):
        now_s += schedule.wait_s(0, now_s)
        sent_at_s.append(now_s - 100.0)
        now_s += chunk_s
        schedule.sent(rows)
        if number % 3 == 2:
            # Another machine has another clock.
            schedule = Schedule(schedule.handed_on(now_s), now_s)
    return sent_at_s


def test_chunks_leave_at_the_rate() -> None:
    sent_at_s = _run(Pace(rate=10), [0.001] * 8, rows=2)
    assert np.allclose(sent_at_s, np.arange(8) * 0.2)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40), st.integers(1, 50))
def test_there_are_never_more_than_rate_times_time(took_s: list[float], rows: int) -> None:
    sent_at_s = _run(Pace(rate=20), took_s, rows)
    for number, at_s in enumerate(sent_at_s):
        assert number * rows / 20 <= at_s + 1e-6
    # Whatever came before: from any chunk on, no more than a second's worth is made up.
    for first, began_s in enumerate(sent_at_s):
        for number, at_s in enumerate(sent_at_s[first:]):
            assert number * rows <= 20 * (at_s - began_s + 1) + rows + 1e-6


def test_a_stall_is_made_up_by_one_second_only() -> None:
    sent_at_s = _run(Pace(rate=1), [0, 10, *[0] * 6], rows=1)
    assert np.allclose(sent_at_s, [0, 1, 11, 11, 12, 13, 14, 15])


def test_what_an_earlier_run_had_stored_takes_no_time() -> None:
    schedule = Schedule(Pace(rate=1), 0.0)
    for _ in range(5):
        assert schedule.wait_s(0, 0.0) == 0.0
        schedule.sent(0)


def test_a_speed_keeps_the_distances_of_the_messages() -> None:
    schedule = Schedule(Pace(speed=2), 50.0)
    assert schedule.wait_s(7_000, 50.0) == 0.0
    assert schedule.wait_s(9_000, 50.0) == 1.0
    handed_on = schedule.handed_on(51.0)
    later = Schedule(handed_on, 500.0)
    assert np.isclose(later.wait_s(13_000, 500.0), 2.0)
    # Far behind: what follows is moved.
    assert later.wait_s(13_000, 510.0) == 0.0
    assert np.isclose(later.wait_s(15_000, 510.0), 0.0)
    assert np.isclose(later.wait_s(17_000, 510.0), 1.0)


@given(st.lists(st.integers(0, 20)), st.integers(1, 7))
def test_chunks_do_not_depend_on_how_rows_come(sizes: list[int], rows: int) -> None:
    whole = np.arange(sum(sizes))
    ends = np.cumsum([0, *sizes])
    batches = [
        pa.RecordBatch.from_pydict({"n": whole[start:end]})
        for start, end in itertools.pairwise(ends)
    ]
    found = [chunk.column("n").to_pylist() for chunk in chunks(iter(batches), rows)]
    assert found == [
        list(range(at, min(at + rows, len(whole)))) for at in range(0, len(whole), rows)
    ]
