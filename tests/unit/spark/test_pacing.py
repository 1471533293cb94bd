"""Never faster than asked for, and not much slower."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq_spark.pipelines.replaying import replay_sending
from mq_spark.pipelines.replaying.pacing import Pace, Schedule
from mq_spark.pipelines.replaying.replay_sending import chunks, windows


def _run(pace: Pace, took_s: list[float], rows: int) -> list[float]:
    """The time at which each chunk was sent, if sending it takes so long; a task has three of
    them.
    """
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


def test_messages_stored_by_an_earlier_run_take_no_time() -> None:
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


def test_the_schedule_begins_with_the_first_message() -> None:
    """And not with the job that has to find it: nothing is made up then."""
    for pace in (Pace(rate=1), Pace(speed=1)):
        schedule = Schedule(pace, 0.0)
        untouched = schedule.handed_on(5.0)
        assert untouched == pace
        later = Schedule(untouched, 60.0)
        assert later.wait_s(1_000, 90.0) == 0.0
        later.sent(1)
        assert later.wait_s(2_000, 90.0) == 1.0


def test_a_message_that_is_older_than_the_one_before_it_does_not_wait_nor_keep_others_waiting() -> (
    None
):
    schedule = Schedule(Pace(speed=1), 0.0)
    assert schedule.wait_s(100_000, 0.0) == 0.0
    assert schedule.wait_s(40_000, 0.0) == 0.0
    assert schedule.wait_s(103_000, 0.0) == 3.0


def test_a_speed_does_not_wait_again_for_what_an_earlier_run_had_stored() -> None:
    schedule = Schedule(Pace(speed=1), 0.0)
    for stored_at_ms in (0, 60_000, 120_000):
        assert schedule.wait_s(stored_at_ms, 0.0) == 0.0
        schedule.sent(0)
    assert schedule.wait_s(180_000, 0.0) == 0.0
    schedule.sent(1)
    assert schedule.wait_s(182_000, 0.0) == 2.0


@given(st.lists(st.lists(st.integers(0, 12), max_size=20)), st.integers(1, 7))
def test_chunks_do_not_depend_on_how_rows_come(batches: list[list[int]], rows: int) -> None:
    sizes = [size for batch in batches for size in batch]
    ends = np.cumsum([0, *map(len, batches)])
    bodies = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    whole = pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], ["body"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_sending, "CHUNK_BYTES", 20)
        parts = (whole.slice(start, end - start) for start, end in itertools.pairwise(ends))
        found = [chunk.column("body").to_pylist() for chunk in chunks(parts, rows)]
    expected: list[list[bytes]] = []
    for body in bodies:
        last = expected[-1] if expected else []
        if not last or len(last) == rows or sum(map(len, last)) + len(body) > 20:
            expected.append([])
        expected[-1].append(body)
    assert found == expected


def test_a_window_has_what_was_stored_in_it() -> None:
    at_ms = [100, 199, 200, 399, 400, 1_000]
    stored_at = pa.array([at * 1000 for at in at_ms], pa.timestamp("us", tz="UTC"))
    chunk = pa.RecordBatch.from_arrays([stored_at], ["stored_at"])
    found = [(part.num_rows, first_ms) for part, first_ms in windows(chunk, 200)]
    assert found == [(2, 100), (2, 200), (1, 400), (1, 1_000)]
    assert [(part.num_rows, first_ms) for part, first_ms in windows(chunk, 0)] == [(6, 100)]
