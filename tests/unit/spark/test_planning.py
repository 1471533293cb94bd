"""Ranges and tasks: nothing is lost or doubled on the way."""

from __future__ import annotations

import itertools
import pickle

from hypothesis import given
from hypothesis import strategies as st

from mq.client import QueueRef
from mq_spark.reading.offsets import Layout, QueueRange
from mq_spark.reading.planning import QueuePartition, packed, partitions, split


def of(*lengths: int) -> list[QueueRange]:
    return [
        QueueRange(QueueRef("t", at, "s"), 100, 100 + length) for at, length in enumerate(lengths)
    ]


some_ranges = st.lists(st.integers(1, 1000), max_size=20).map(lambda lengths: of(*lengths))


def offsets_of(ranges: list[QueueRange]) -> list[tuple[QueueRef, int]]:
    return [(one.ref, at) for one in ranges for at in range(one.start, one.end)]


@given(some_ranges, st.integers(1, 3000), st.integers(1, 10))
def test_small_ranges_share_a_task(
    ranges: list[QueueRange], rows_max: int, queues_max: int
) -> None:
    packs = packed(ranges, Layout(None, rows_max, queues_max))
    assert [one for pack in packs for one in pack] == ranges
    assert all(packs)
    assert all(len(pack) == 1 or sum(one.rows for one in pack) <= rows_max for pack in packs)
    assert all(len(pack) <= queues_max for pack in packs)
    # And no fewer of them than there must be: the next one did not fit.
    for pack, following in itertools.pairwise(packs):
        rows = sum(one.rows for one in (*pack, following[0]))
        assert len(pack) == queues_max or rows > rows_max


@given(some_ranges, st.integers(1, 50))
def test_the_longest_are_split_until_there_are_enough(
    ranges: list[QueueRange], count_min: int
) -> None:
    pieces = split(ranges, count_min)
    assert offsets_of(pieces) == offsets_of(ranges)
    rows = sum(one.rows for one in ranges)
    assert len(pieces) == max(len(ranges), min(count_min, rows))


def test_pieces_are_about_as_long() -> None:
    assert [one.rows for one in split(of(100, 10), 6)] == [20, 20, 20, 20, 20, 10]


def test_partitions_follow_the_layout_and_can_be_sent_to_workers() -> None:
    ranges = of(5, 5, 30_000, 5)
    made = partitions(ranges, Layout())
    assert [len(one.ranges) for one in made if isinstance(one, QueuePartition)] == [2, 1, 1]
    made = partitions(ranges, Layout(partitions_min=3))
    assert len(made) == 4
    copy = pickle.loads(pickle.dumps(made[0]))  # noqa: S301
    assert isinstance(copy, QueuePartition)
    assert list(copy.ranges) == ranges[:1]
    assert partitions([], Layout()) == partitions([], Layout(5)) == []
