"""Batches depend on the rows alone, have numbers of their own, and are what the broker accepts."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.client import QueueRef
from mq.client.arrow import cutting
from mq.client.arrow.cutting import Cutter, NumberedBatch, producer_id
from mq.client.arrow.encoding import encode
from mq.errors import IllegalRequest
from mq.hashing import text_hash
from mq.store.batch import Batch, accept
from mq.wire.v1.message_pb2 import Batch as WireBatch

QUEUES = [QueueRef("t", number, name) for name in ("set-0", "set-1") for number in range(3)]
NOW_MS = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "_BYTES_MIN", 400)


def cut(
    rows: list[tuple[int, str | None]],
    portions: list[int],
    *,
    partition: int = 0,
    batch_id: int = 7,
    queues: list[QueueRef] = QUEUES,
    born_at_ms: int = NOW_MS,
) -> list[NumberedBatch]:
    """`rows`: the size of each body, which begins with the number of its row, and ordering key."""
    batch = pa.RecordBatch.from_pydict(
        {
            "body": [f"{at} ".ljust(size, ".").encode() for at, (size, _) in enumerate(rows)],
            "keys": pa.array(
                [[f"k{at}"] if at % 3 else [] for at in range(len(rows))], pa.list_(pa.string())
            ),
            "ordering_key": pa.array([key for _, key in rows], pa.string()),
        }
    )
    cutter = Cutter("query q", "t", queues, partition, batch_id)
    made: list[NumberedBatch] = []
    bounds = sorted({0, len(rows), *(one % len(rows) for one in portions)})
    for start, end in itertools.pairwise(bounds):
        encoded = encode(batch.slice(start, end - start), "t", 4096)
        made += cutter.add(encoded, born_at_ms)
    return [*made, *cutter.flush(born_at_ms)]


def row_numbers(batch: NumberedBatch) -> list[int]:
    return [int(one.body.split()[0]) for one in WireBatch.FromString(batch.data).messages]


ROWS = st.lists(
    st.tuples(st.integers(3, 900), st.none() | st.sampled_from(["a", "b", "c", "d"])),
    min_size=1,
    max_size=60,
)


@settings(max_examples=settings().max_examples * 3 // 2)
@given(ROWS, st.lists(st.integers(0, 59), max_size=8))
def test_batches_are_the_same_however_rows_come(
    rows: list[tuple[int, str | None]], portions: list[int]
) -> None:
    whole, parts = cut(rows, []), cut(rows, portions)
    assert parts == whole
    assert len({one.sequence for one in whole}) == len(whole)
    assert [one.sequence for one in whole] == sorted(one.sequence for one in whole)


@given(ROWS)
def test_every_row_is_in_one_batch_that_the_broker_accepts(
    rows: list[tuple[int, str | None]],
) -> None:
    made = cut(rows, [])
    found: dict[QueueRef, list[int]] = {}
    for one in made:
        accepted: Batch = accept(one.data, 4 << 20)
        assert accepted.data == one.data, "it was prepared otherwise"
        assert (accepted.topic, accepted.queue_id) == ("t", one.queue.queue_id)
        assert accepted.sequence == one.sequence
        assert accepted.producer_id == producer_id("query q", "t", QUEUES, 0)
        assert accepted.message_count == one.row_count
        numbers = row_numbers(one)
        assert accepted.key_hashes.tolist() == [text_hash(f"k{at}") for at in numbers if at % 3]
        found.setdefault(one.queue, []).extend(numbers)
    assert sorted(itertools.chain(*found.values())) == list(range(len(rows)))
    for queue, numbers in found.items():
        for key in "abcd":
            of_key = [number for number in numbers if rows[number][1] == key]
            assert of_key == sorted(of_key)
            assert not of_key or queue == QUEUES[text_hash(key) % len(QUEUES)]


def test_rows_without_a_key_take_turns_among_all_queues() -> None:
    made = cut([(300, None)] * 12, [])
    at = [QUEUES.index(one.queue) for one in made]
    assert len(made) == 12
    assert at == [(at[0] + turn) % 6 for turn in range(12)]
    # The next batch begins with the next queue, and so does the next partition.
    assert cut([(1, None)], [], batch_id=8)[0].queue == QUEUES[(at[0] + 1) % 6]
    assert cut([(1, None)], [], partition=1)[0].queue == QUEUES[(at[0] + 1) % 6]


def test_later_batches_are_larger() -> None:
    made = cut([(100, None)] * 3_000, [])
    sizes = [one.row_count for one in made]
    assert sizes[0] < sizes[40] < sizes[70] < sizes[100] == sizes[-2]


def test_a_number_has_batch_number_and_check() -> None:
    first, second = cut([(300, None), (300, None)], [])
    assert (first.sequence >> 19, second.sequence >> 19) == (7 << 14 | 1, 7 << 14 | 2)
    (last,) = cut([(1, None)], [], batch_id=2**30 - 1)
    assert 1 << 62 < last.sequence < 1 << 63


def test_batch_ids_that_are_too_large_for_a_number_make_another_producer() -> None:
    """Such as times in milliseconds, of which the lower bits alone would come back."""
    batches = [cut([(1, None)], [], batch_id=one)[0].data for one in (5, 2**30 + 5, 2**33 + 5)]
    ids = [accept(data, 4 << 20).producer_id for data in batches]
    assert len(set(ids)) == 3
    assert ids[0] == producer_id("query q", "t", QUEUES, 0)
    (again,) = cut([(1, None)], [], batch_id=2**33 + 5)
    assert again.data == batches[2]


def test_different_batches_have_different_sequences_whenever_they_were_made() -> None:
    (one,) = cut([(50, "a")], [])
    (later,) = cut([(50, "a")], [], born_at_ms=NOW_MS + 1)
    assert (later.sequence, later.data == one.data) == (one.sequence, False)
    others = [cut([(51, "a")], []), cut([(50, "b")], []), cut([(50, "a")], [], batch_id=8)]
    assert one.sequence not in [other[0].sequence for other in others]


def test_other_queues_another_partition_topic_or_writer_are_another_producer() -> None:
    ids = {
        producer_id("query q", "t", QUEUES, 0),
        producer_id("query q", "t", QUEUES[1:], 0),
        producer_id("query q", "t", QUEUES, 1),
        producer_id("query q", "u", QUEUES, 0),
        producer_id("query r", "t", QUEUES, 0),
    }
    assert len(ids) == 5
    assert all(one.startswith("%SINK%") and len(one) < 100 for one in ids)


def test_a_partition_with_too_many_batches_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "_NUMBER_MAX", 3)
    with pytest.raises(IllegalRequest, match=r"partition 0 has more than 3 batches"):
        cut([(300, None)] * 5, [])


def test_columns_of_numbers_are_little_endian() -> None:
    (one,) = cut([(10, None)], [])
    parsed = WireBatch.FromString(one.data)
    assert parsed.frame_sizes == [len(one.data) - one.data.index(0x7A)]
    assert np.array(parsed.tag_hashes).tolist() == [0]
