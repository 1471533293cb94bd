"""Batches out of stored ones: the same messages, whatever else changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mq.store import rebatch
from mq.store.batch import Batch, accept, prepare
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Half, Message

LIMIT = 1 << 20

messages = st.builds(
    Message,
    body=st.binary(max_size=300),
    tag=st.sampled_from(["", "a", "b"]),
    keys=st.lists(st.sampled_from(["k1", "k2", "k3"]), max_size=3),
)
message_lists = st.lists(messages, min_size=1, max_size=6)


def made(contents: list[Message], **fields: object) -> Batch:
    wire = WireBatch(topic="t", queue_id=3, messages=contents, **fields)  # type: ignore[arg-type]
    return accept(prepare(wire.SerializeToString()), LIMIT)


def contents_of(batch: Batch) -> list[Message]:
    return list(WireBatch.FromString(bytes(batch.data)).messages)


def check(batch: Batch, expected: list[Message]) -> None:
    """It is what the same messages would be if a producer had sent them."""
    assert contents_of(batch) == expected
    fresh = made(expected)
    for name in ("frame_sizes", "tag_hashes", "key_hashes"):
        assert np.array_equal(getattr(batch, name), getattr(fresh, name)), name
    if len(fresh.key_hashes):
        assert np.array_equal(batch.key_counts, fresh.key_counts)
    if not batch.origin_log_offset:
        assert accept(bytes(batch.data), LIMIT).message_count == len(expected)


@given(message_lists)
def test_placed_is_for_another_queue_and_has_no_producer(contents: list[Message]) -> None:
    batch = made(contents, producer_id="p", sequence=7, deliver_at_ms=5)
    placed = rebatch.placed(batch, "other", 9)
    check(placed, contents)
    assert (placed.topic, placed.queue_id) == ("other", 9)
    assert (placed.producer_id, placed.sequence, placed.is_held) == ("", 0, False)


@given(message_lists)
def test_delayed_and_halved_keep_the_producer(contents: list[Message]) -> None:
    batch = made(contents, producer_id="p", sequence=7, delay_ms=5)
    delayed = rebatch.delayed(batch, 1_000)
    check(delayed, contents)
    assert (delayed.producer_id, delayed.sequence) == ("p", 7)
    assert (delayed.deliver_at_ms, delayed.delay_ms, delayed.is_held) == (1_000, 0, True)
    assert not rebatch.delayed(batch, 0).is_held
    half = Half(producer_group="g", checks_max=3).SerializeToString()
    halved = rebatch.halved(batch, half)
    check(halved, contents)
    assert (halved.half, halved.producer_id, halved.is_held) == (half, "p", True)


@given(message_lists)
def test_carried_keeps_the_origin_and_not_the_producer(contents: list[Message]) -> None:
    batch = made(contents, producer_id="p", sequence=7, deliver_at_ms=1_000)
    carried = rebatch.carried(batch, 4711)
    check(carried, contents)
    assert (carried.deliver_at_ms, carried.origin_log_offset) == (1_000, 4711)
    assert (carried.topic, carried.queue_id, carried.producer_id) == ("t", 3, "")


@given(st.lists(message_lists, min_size=1, max_size=5))
def test_joined_has_the_messages_of_all_in_their_order(parts: list[list[Message]]) -> None:
    joined = rebatch.joined([made(part) for part in parts], "t", 0)
    check(joined, [message for part in parts for message in part])


@given(message_lists, st.data())
def test_removing_messages_leaves_the_others_unchanged(
    contents: list[Message], data: st.DataObject
) -> None:
    places = data.draw(st.sets(st.integers(0, len(contents) - 1)))
    left = [message for at, message in enumerate(contents) if at not in places]
    found = rebatch.without(made(contents, deliver_at_ms=9), places)
    if not left:
        assert found is None
    else:
        assert found is not None
        check(found, left)
        assert found.deliver_at_ms == 9
