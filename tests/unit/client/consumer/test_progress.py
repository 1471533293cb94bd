"""The one number that matters after a crash: everything before it is done."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mq.client.consumer.prefetch_queue import PrefetchQueue
from mq.client.decode import Decoder, parse_subscribe_response
from mq.client.messages import QueueRef
from tests.unit.client.consumer.deliveries import SET, TOPIC, delivery, response

DECODER = Decoder()


def queue_with(
    *queue_offsets: int, start: int = 0, next_offset: int | None = None
) -> PrefetchQueue:
    queue = PrefetchQueue(QueueRef(TOPIC, 0, SET), start, 0)
    deliver(queue, queue_offsets, next_offset)
    return queue


def deliver(queue: PrefetchQueue, queue_offsets: tuple[int, ...], next_offset: int | None) -> None:
    content = delivery(0, queue_offsets, next_offset=next_offset)
    _, runs = parse_subscribe_response(response(content))
    queue.add(runs, content.next_offset)


def test_progress_starts_where_deliveries_start() -> None:
    assert PrefetchQueue(QueueRef(TOPIC, 0), 17, 0).done_to == 17


def test_a_message_holds_progress_back_until_it_is_finished() -> None:
    queue = queue_with(5, start=5)
    assert queue.done_to == 5
    taken = queue.take(1, DECODER)
    assert taken is not None
    assert queue.done_to == 5
    queue.finish(taken)
    assert queue.done_to == 6


def test_progress_passes_messages_finished_out_of_order() -> None:
    queue = queue_with(*range(5))
    taken = queue.take(5, DECODER)
    assert taken is not None
    single = taken.singles
    for at in (3, 1, 2):
        queue.finish(single[at])
        assert queue.done_to == 0
    queue.finish(single[0])
    assert (queue.done_to, queue.unfinished) == (4, 1)


def test_progress_passes_the_gaps_of_a_filter() -> None:
    queue = queue_with(10, 20, next_offset=99)
    taken = queue.take(2, DECODER)
    assert taken is not None
    assert queue.done_to == 10
    queue.finish(taken.singles[1])
    assert queue.done_to == 10
    queue.finish(taken.singles[0])
    assert queue.done_to == 99


def test_a_gap_alone_is_progress() -> None:
    queue = queue_with(next_offset=1_000)
    assert (queue.done_to, queue.position) == (1_000, 1_000)


@given(st.data())
def test_progress_is_the_first_unfinished_message_in_any_order(data: st.DataObject) -> None:
    """Against the plain definition, for any order of delivering, taking and finishing."""
    queue = PrefetchQueue(QueueRef(TOPIC, 0, SET), 3, 0)
    undone, taken, before = set[int](), list[Any](), 3
    for _ in range(data.draw(st.integers(0, 60), "steps")):
        step = data.draw(st.sampled_from(["deliver", "take", "finish", "finish"]))
        if step == "deliver":
            gaps = data.draw(st.lists(st.integers(0, 3), max_size=8))
            offsets = tuple(accumulate(gaps, lambda at, gap: at + gap + 1, initial=queue.position))
            end = offsets[-1] + 1 + data.draw(st.integers(0, 3))
            deliver(queue, offsets, end)
            undone.update(offsets)
        elif step == "take":
            found = queue.take(data.draw(st.integers(1, 5)), DECODER)
            if found is not None:
                taken += [found] if data.draw(st.booleans()) else found.singles
        elif taken:
            one = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            queue.finish(one)
            undone -= {message.queue_offset for message in one.messages}
        assert queue.done_to == min(undone, default=queue.position)
        assert queue.done_to >= before
        assert queue.running == sum(len(one.messages) for one in taken)
        before = queue.done_to
