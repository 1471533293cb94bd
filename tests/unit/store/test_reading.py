"""Reads: limits, runs, filters, and queues whose files are not what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.errors import QueueDamaged, Rebuilding
from mq.hashing import text_hash
from mq.store import consumequeue, reading
from mq.store.consumequeue import UNIT_BYTES, make_units
from mq.store.reading import Status
from mq.wire.v1.message_pb2 import Message
from tests.support import naive_wire
from tests.support.stores import (
    DIRECTORY,
    NOW_MS,
    batch,
    messages_in,
    messages_of,
    new_store,
    put,
    read_all,
    reopen,
    small_config,
)

if TYPE_CHECKING:
    from mq.store.store import Store
    from tests.support.faulty_vfs import FaultyVfs

ONE_SEGMENT = small_config(segment_bytes=1 << 20)
QUEUE_FILE = f"{DIRECTORY}/consumequeue/orders/0/{0:020d}"


def frame_size(message: Message) -> int:
    return len(naive_wire.frame(message.SerializeToString()))


# -- limits ----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    sizes=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=40), min_size=1, max_size=6),
    start=st.floats(0, 1, exclude_max=True),
    bytes_max=st.integers(0, 5000),
    messages_max=st.integers(0, 60),
)
def test_a_read_takes_what_the_limits_allow_but_at_least_one(
    sizes: list[list[int]], start: float, bytes_max: int, messages_max: int
) -> None:
    _, store = new_store()
    sent: list[Message] = []
    for entry in sizes:
        news = [Message(body=bytes(size)) for size in entry]
        put(store, batch(news))
        sent += news
    at = int(start * len(sent))
    result = store.read("orders", 0, at, bytes_max=bytes_max, messages_max=messages_max)
    found = messages_in(result)
    assert result.status is Status.FOUND
    assert found == sent[at : at + len(found)]
    assert result.next_offset == at + len(found)
    assert 1 <= len(found) <= max(1, messages_max)
    total = sum(map(frame_size, found))
    assert total <= bytes_max or len(found) == 1
    is_all = result.next_offset == len(sent)
    next_bytes = 0 if is_all else total + frame_size(sent[result.next_offset])
    assert is_all or len(found) >= messages_max or next_bytes > bytes_max


def test_many_small_messages_are_read_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_UNITS_MAX", 100)
    _, store = new_store(ONE_SEGMENT)
    sent = messages_of(250, size=1)
    put(store, batch(sent))
    assert store.read("orders", 0, 0).next_offset == 100
    assert read_all(store) == sent


def test_a_filter_that_matches_nothing_comes_back_and_says_where_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_UNITS_MAX", 100)
    monkeypatch.setattr(reading, "SCAN_UNITS", 30)
    _, store = new_store(ONE_SEGMENT)
    sent = messages_of(150)
    sent[120].tag = "rare"
    put(store, batch(sent))
    result = store.read("orders", 0, 0, tag_hashes=[text_hash("rare")])
    assert result == (Status.NOTHING_MATCHED, [], 100, 0, 150, 0)
    result = store.read("orders", 0, 100, tag_hashes=[text_hash("rare")])
    assert (messages_in(result), result.next_offset) == ([sent[120]], 150)


@pytest.mark.parametrize(
    ("queue_offset", "status", "next_offset"),
    [
        (-1, Status.TOO_SMALL, 0),
        (0, Status.FOUND, 3),
        (3, Status.END, 3),
        (4, Status.TOO_LARGE, 3),
    ],
)
def test_an_offset_out_of_the_queue_is_a_status(
    queue_offset: int, status: Status, next_offset: int
) -> None:
    _, store = new_store()
    put(store, batch(messages_of(3)))
    result = store.read("orders", 0, queue_offset)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.start, result.end) == (0, 3)
    assert store.read("orders", 1, queue_offset).status is Status.NO_QUEUE


# -- runs ------------------------------------------------------------------------------------------


def test_the_messages_of_a_batch_are_one_run() -> None:
    _, store = new_store(ONE_SEGMENT)
    sent = messages_of(100)
    ref = put(store, batch(sent), now_ms=NOW_MS)
    [run] = store.read("orders", 0, 0).runs
    assert (run.queue_offset, run.message_count, run.stored_at_ms) == (0, 100, NOW_MS)
    assert ref.payload_log_offset < run.log_offset < ref.payload_log_offset + ref.length
    assert bytes(run.frames) == store.log.read(run.log_offset, len(run.frames))


def test_batches_of_one_entry_are_runs_with_the_same_time() -> None:
    _, store = new_store(ONE_SEGMENT)
    first, second = messages_of(3), messages_of(4, seed=1)
    put(store, batch(first), batch(messages_of(9), "other"), batch(second), now_ms=5)
    put(store, batch(first), now_ms=7)
    result = store.read("orders", 0, 1)
    assert [run[:2] for run in result.runs] == [(1, 2), (3, 4), (7, 3)]
    assert [run.stored_at_ms for run in result.runs] == [5, 5, 7]
    assert messages_in(result) == [*first[1:], *second, *first]


@pytest.mark.parametrize("gap_bytes_max", [0, 200, 1 << 20])
def test_runs_are_the_same_however_their_reads_are_put_together(
    gap_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_GAP_BYTES_MAX", gap_bytes_max)
    _, store = new_store()
    sent: list[Message] = []
    for number in range(30):
        news = messages_of(2, seed=number)
        put(store, batch(news), batch(messages_of(1, size=number * 20), "other"))
        sent += news
    assert len(store.log.segments()) > 2
    result = store.read("orders", 0, 0)
    assert len(result.runs) == 30
    assert messages_in(result) == sent


@pytest.mark.parametrize("messages_max", [1, 2, 7, 100])
def test_a_filter_gives_what_matches_and_never_skips(messages_max: int) -> None:
    _, store = new_store()
    sent = messages_of(60)
    for place, message in enumerate(sent):
        message.tag = ["", "a", "b", "b", "a", "c"][place % 6]
    for start in range(0, 60, 10):
        put(store, batch(sent[start : start + 10]))
    tags, found, at = [text_hash("a"), text_hash("b")], [], 0
    while at < 60:
        result = store.read("orders", 0, at, tag_hashes=tags, messages_max=messages_max)
        assert sum(run.message_count for run in result.runs) <= messages_max
        assert result.next_offset > at
        found += messages_in(result)
        at = result.next_offset
    assert found == [message for message in sent if message.tag in ("a", "b")]


def test_a_filter_makes_runs_of_neighbours_only() -> None:
    _, store = new_store(ONE_SEGMENT)
    sent = messages_of(6)
    for message, tag in zip(sent, "aabaab", strict=True):
        message.tag = tag
    put(store, batch(sent))
    result = store.read("orders", 0, 0, tag_hashes=[text_hash("a")])
    assert [run[:2] for run in result.runs] == [(0, 2), (3, 2)]


# -- damage ----------------------------------------------------------------------------------------


def damaged_store() -> tuple[FaultyVfs, Store, list[Message]]:
    """Two entries with a gap, every message of another size, all units in one file."""
    vfs, store = new_store(ONE_SEGMENT)
    sent = [Message(body=b"z" * (9 * number)) for number in range(16)]
    put(store, batch(sent[:9]), batch(messages_of(1), "other"))
    put(store, batch(sent[9:]))
    store.checkpoint()
    return vfs, store, sent


@pytest.mark.parametrize("unit", [0, 4, 8, 9, 15])
def test_a_flipped_bit_of_a_unit_is_never_served(unit: int) -> None:
    vfs, store, sent = damaged_store()
    limits: list[dict[str, Any]] = [{}, {"tag_hashes": [text_hash("")]}, {"messages_max": 2}]
    for bit in range(UNIT_BYTES * 8):
        vfs.flip_bit(QUEUE_FILE, unit * UNIT_BYTES + bit // 8, bit % 8)
        for number, queue_offset in enumerate((0, unit, unit)):
            if number == 0:
                with pytest.raises(Rebuilding, match="queue 0 of topic orders"):
                    store.read("orders", 0, queue_offset, **limits[bit % 3])
            result = store.read("orders", 0, queue_offset, **limits[number])
            assert messages_in(result) == sent[queue_offset : result.next_offset]
    assert read_all(store) == sent


def test_zeros_in_a_queue_file_are_damage() -> None:
    """A disk gives back zeros for a block that it never wrote."""
    vfs, store, sent = damaged_store()
    vfs.write_all(QUEUE_FILE, bytes(16 * UNIT_BYTES))
    with pytest.raises(Rebuilding, match="queue 0 of topic orders"):
        store.read("orders", 0, 3, messages_max=1)
    assert read_all(store) == sent


def test_the_advice_for_a_queue_that_nothing_rebuilds_works() -> None:
    vfs, store, sent = damaged_store()
    store.queues.watch(consumequeue.no_rebuild)
    vfs.flip_bit(QUEUE_FILE, 1)
    with pytest.raises(QueueDamaged, match="remove its file `checkpoint`"):
        store.read("orders", 0, 0)
    vfs.remove(f"{DIRECTORY}/checkpoint")
    assert read_all(reopen(vfs, ONE_SEGMENT)) == sent


@given(size=st.integers(0, 1 << 32))
def test_the_head_of_a_frame_follows_from_its_size(size: int) -> None:
    head = reading._frame_head(size)
    if head[0] == 0x7A:
        length, rest = naive_wire.read_varint(head[1:])
        assert (len(head) + length, rest) == (size, b"")
    else:
        assert not any(
            1 + len(naive_wire.varint(length)) + length == size
            for length in range(max(0, size - 8), size)
        )


@pytest.mark.parametrize(
    ("offsets", "runs"),
    [
        ([100, 110, 120], [(0, 2)]),
        ([100, 110, 121], [(0, 1), (2, 2)]),
        # Neighbours by the low half of their offsets only.
        ([100, 110, 120 + (1 << 32)], [(0, 1), (2, 2)]),
        ([100, 110 + (3 << 32), 120 + (3 << 32)], [(0, 0), (1, 2)]),
        # A run over a border of 4 GiB is read as two.
        ([(1 << 32) - 15, (1 << 32) - 5, (1 << 32) + 5], [(0, 1), (2, 2)]),
        ([(1 << 40) + 1, (1 << 40) + 11, (1 << 40) + 21], [(0, 2)]),
    ],
)
def test_runs_end_where_the_log_has_something_else(
    offsets: list[int], runs: list[tuple[int, int]]
) -> None:
    units = make_units(np.array(offsets), np.full(3, 10, np.uint32), np.zeros(3, np.uint64))
    first, last, starts, ends = reading._extents(reading._Chosen(units, None, 0))
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == runs
    assert starts.tolist() == [offsets[at] for at, _ in runs]
    assert ends.tolist() == [offsets[at] + 10 for _, at in runs]
