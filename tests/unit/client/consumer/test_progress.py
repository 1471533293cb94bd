"""The one number that matters after a crash: everything before it is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.consumer.prefetch import QueueProgress


def test_progress_starts_where_deliveries_start() -> None:
    assert QueueProgress(17).done_to == 17


def test_a_taken_message_holds_progress_back_until_it_is_finished() -> None:
    progress = QueueProgress(5)
    progress.take(5)
    assert progress.done_to == 5
    progress.finish(5)
    assert progress.done_to == 6


def test_progress_passes_messages_finished_out_of_order() -> None:
    progress = QueueProgress(0)
    for queue_offset in range(5):
        progress.take(queue_offset)
    for queue_offset in (3, 1, 2):
        progress.finish(queue_offset)
        assert progress.done_to == 0
    progress.finish(0)
    assert progress.done_to == 4
    assert progress.under_way == 1


def test_progress_passes_the_gaps_of_a_filter() -> None:
    progress = QueueProgress(0)
    progress.take(10)
    progress.take(20)
    progress.skip_to(99)
    assert progress.done_to == 10
    progress.finish(20)
    assert progress.done_to == 10
    progress.finish(10)
    assert progress.done_to == 99


def test_a_gap_alone_is_progress() -> None:
    progress = QueueProgress(0)
    progress.skip_to(1_000)
    assert progress.done_to == 1_000
    progress.skip_to(7)
    assert progress.done_to == 1_000


def test_taking_goes_forward_only() -> None:
    progress = QueueProgress(5)
    progress.take(6)
    with pytest.raises(ValueError, match="6 is taken after 6"):
        progress.take(6)


@given(st.data())
def test_progress_is_the_first_unfinished_message_in_any_order(data: st.DataObject) -> None:
    """Against the plain definition, for any order of taking, skipping and finishing."""
    progress = QueueProgress(3)
    taken_to, open_offsets, before = 3, set[int](), 3
    for _ in range(data.draw(st.integers(0, 60), "steps")):
        step = data.draw(st.sampled_from(["take", "skip", "finish"]))
        if step == "finish" and open_offsets:
            chosen = data.draw(st.sampled_from(sorted(open_offsets)))
            open_offsets.remove(chosen)
            progress.finish(chosen)
        elif step == "skip":
            taken_to += data.draw(st.integers(0, 5))
            progress.skip_to(taken_to)
        else:
            chosen = taken_to + data.draw(st.integers(0, 5))
            open_offsets.add(chosen)
            progress.take(chosen)
            taken_to = chosen + 1
        assert progress.done_to == min(open_offsets, default=taken_to)
        assert progress.done_to >= before
        before = progress.done_to
    for queue_offset in sorted(open_offsets, reverse=True):
        progress.finish(queue_offset)
    assert (progress.done_to, progress.under_way) == (taken_to, 0)
    assert not progress._finished
