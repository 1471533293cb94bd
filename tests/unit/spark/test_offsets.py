"""Offsets of a stream: their JSON, and where the next batch ends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client import QueueRef
from mq_spark.errors import MqSparkError
from mq_spark.reading.offsets import (
    Layout,
    Loss,
    QueueRange,
    StreamOffset,
    from_json,
    losses,
    named,
    next_offset,
    ranges,
    shares,
    to_json,
    within,
)

LAYOUT = {"minPartitions": None, "queuesPerTask": 1, "rowsPerTask": 1}
A, B, C = QueueRef("t", 0, "s"), QueueRef("t", 1, "s"), QueueRef("u", 10, "s")


def places(*numbers: int) -> dict[QueueRef, int]:
    return dict(zip((A, B, C), numbers, strict=False))


queue_refs = st.builds(QueueRef, st.sampled_from("tu"), st.integers(0, 11), st.sampled_from("ab"))
queue_offsets = st.dictionaries(queue_refs, st.integers(0, 1 << 62))


@given(
    st.builds(
        StreamOffset,
        queue_offsets,
        st.builds(
            Layout,
            st.none() | st.integers(1, 1000),
            st.integers(1, 1 << 30),
            st.integers(1, 1 << 30),
        ),
        queue_offsets,
    )
)
def test_an_offset_comes_back_as_it_was_and_is_always_the_same_text(made: StreamOffset) -> None:
    text = json.dumps(to_json(made))
    assert from_json(json.loads(text)) == made
    assert text == json.dumps(json.loads(text), sort_keys=True)
    shuffled = StreamOffset(
        dict(reversed(list(made.queues.items()))),
        made.layout,
        dict(reversed(list(made.begins.items()))),
    )
    assert json.dumps(to_json(shuffled)) == text


@pytest.mark.parametrize(
    "strange",
    [
        {"index": 3},
        {"version": 2, "queues": {}},
        {"version": 1},
        {"version": 1, "queues": {"t": {"s/0": 5}}, "layout": {"minPartitions": None}},
        {"version": 1, "queues": {"t": 5}, "layout": LAYOUT},
        {"version": 1, "queues": [], "layout": LAYOUT},
        {"version": 1, "queues": {"t": {"x": 5}}, "layout": LAYOUT},
    ],
)
def test_a_checkpoint_of_another_format_is_refused(strange: dict[str, object]) -> None:
    with pytest.raises(MqSparkError, match="checkpoint"):
        from_json(strange)


def test_a_batch_reads_from_one_offset_to_the_next() -> None:
    start = StreamOffset(places(5, 7))
    end = StreamOffset(places(9, 7, 3))
    assert ranges(start, end) == [QueueRange(A, 5, 9), QueueRange(C, 0, 3)]
    # One that begins elsewhere than it stood, and one that is gone.
    moved = StreamOffset({A: 9}, begins={A: 2})
    assert ranges(start, moved) == [QueueRange(A, 2, 9)]
    assert ranges(start, start) == []


def test_nothing_new_is_no_batch() -> None:
    start = StreamOffset(places(5, 7))
    assert next_offset(start, places(0, 0), places(5, 7), Layout(), None) is None
    # A queue that is new and empty is nothing to read either; nor is one less.
    assert next_offset(start, places(0, 0, 4), places(5, 7, 4), Layout(), None) is None
    assert next_offset(start, {A: 0}, {A: 5}, Layout(), 10) is None


def test_new_queues_begin_at_their_earliest_message() -> None:
    layout = Layout(4)
    found = next_offset(StreamOffset(places(5)), places(0, 0, 6), places(8, 3, 9), layout, None)
    assert found == StreamOffset(places(8, 3, 9), layout, {B: 0, C: 6})
    assert ranges(StreamOffset(places(5)), found) == [
        QueueRange(A, 5, 8),
        QueueRange(B, 0, 3),
        QueueRange(C, 6, 9),
    ]


def test_lost_messages_are_reported_and_skipped() -> None:
    start = places(5, 50, 5)
    earliest, latest = {A: 10, B: 0}, {A: 12, B: 2}
    assert losses(start, earliest, latest) == [Loss(A, 5, 10, 12), Loss(B, 50, 0, 2), Loss(C, 5)]
    assert [str(loss) for loss in losses(start, earliest, latest)] == [
        "t s/0 at 5 (it has 10 to 12)",
        "t s/1 at 50 (it has 0 to 2)",
        "u s/10 at 5 (the queue is gone)",
    ]
    assert [loss.is_behind_end for loss in losses(start, earliest, latest)] == [False, True, False]
    found = next_offset(StreamOffset(start), earliest, latest, Layout(), None)
    assert found is not None
    assert ranges(StreamOffset(start), found) == [QueueRange(A, 10, 12), QueueRange(B, 0, 2)]


def test_the_edges_of_a_queue_are_no_loss() -> None:
    assert losses(places(3, 9), places(3, 3), places(9, 9)) == []


def test_a_cap_counts_what_is_there_and_not_what_is_lost() -> None:
    found = next_offset(StreamOffset({A: 0}), {A: 1000}, {A: 2000}, Layout(), 10)
    assert found == StreamOffset({A: 1010}, Layout(), {A: 1000})


@given(st.dictionaries(queue_refs, st.integers(0, 10_000)), st.integers(1, 20_000))
def test_shares_are_fair_and_use_all_that_is_allowed(
    backlogs: dict[QueueRef, int], rows_max: int
) -> None:
    taken = shares(backlogs, rows_max)
    assert sum(taken.values()) == min(rows_max, sum(backlogs.values()))
    assert all(0 < taken[ref] <= backlogs[ref] for ref in taken)
    assert shares(dict(reversed(backlogs.items())), rows_max) == taken
    waiting = {ref for ref, rows in backlogs.items() if rows}
    assert len(taken) == min(len(waiting), rows_max)
    for one in taken:
        for other in taken:
            # Not fewer for a longer backlog, but for one row of rounding.
            assert backlogs[one] < backlogs[other] or taken[one] >= taken[other] - 1


def test_offsets_outside_of_a_queue_are_refused_or_brought_inside() -> None:
    given_places, earliest, latest = places(1, 50), places(3, 3), places(9, 9)
    with pytest.raises(MqSparkError, match=r"startingOffsets is out of range: t s/0 at 1 \(it has"):
        within("startingOffsets", given_places, earliest, latest, fail=True)
    found = within("startingOffsets", given_places, earliest, latest, fail=False)
    assert found == places(3, 9)


def test_long_lists_are_cut() -> None:
    assert named(["a", "b"]) == "a, b"
    assert named(range(10)) == "0, 1, 2 and 7 more"
