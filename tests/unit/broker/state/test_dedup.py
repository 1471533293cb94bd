"""The table of producers against plain sets, and its limits."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.state import dedup
from mq.broker.state.dedup import NEWEST_MIN, RANGES_MAX, Producers, StoredAt
from mq.errors import IllegalSequence


def stored(number: int) -> StoredAt:
    return StoredAt(number % 7, number * 10, number * 1_000, 5_000 + number)


def duplicate(number: int) -> StoredAt:
    return stored(number)._replace(is_duplicate=True)


def copied(producers: Producers) -> Producers:
    """By way of a checkpoint."""
    other = Producers()
    other.restore(iter(list(producers.encode())))
    return other


def state(producers: Producers) -> list[bytes]:
    return [one.SerializeToString() for one in producers.encode()]


SEQUENCES = st.lists(st.integers(1, 40), max_size=60)


@given(SEQUENCES)
def test_every_stored_sequence_is_known_and_no_other(sequences: list[int]) -> None:
    producers = Producers()
    seen: set[int] = set()
    for sequence in sequences:
        found = producers.find("p", sequence)
        assert (found is not None) == (sequence in seen)
        if found is None:
            producers.record("p", sequence, stored(sequence))
            seen.add(sequence)
    for sequence in range(45):
        expected = duplicate(sequence) if sequence in seen else None
        assert producers.find("p", sequence) == expected
    for encoded in producers.encode():
        bounds = list(encoded.stored)
        assert bounds == sorted(set(bounds)), "ranges ascend and do not touch"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30)), max_size=80))
def test_a_checkpoint_has_all_of_it(records: list[tuple[str, int]]) -> None:
    producers = Producers()
    for producer_id, sequence in records:
        if producers.find(producer_id, sequence) is None:
            producers.record(producer_id, sequence, stored(sequence))
    other = copied(producers)
    assert state(other) == state(producers)
    for producer_id in "abcd":
        for sequence in range(31):
            assert other.find(producer_id, sequence) == producers.find(producer_id, sequence)
    # They go on the same way.
    for each in (producers, other):
        each.record("a", 50, stored(50))
    assert state(other) == state(producers)


def test_the_places_of_the_newest_are_known_and_of_the_others_that_they_are_stored() -> None:
    producers = Producers()
    for sequence in range(1, 1_001):
        producers.record("p", sequence, stored(sequence))
        for back in range(NEWEST_MIN):
            if sequence > back:
                assert producers.find("p", sequence - back) == duplicate(sequence - back)
    old = producers.find("p", 1)
    assert old == StoredAt(0, -1, -1, 0, is_duplicate=True)
    (encoded,) = producers.encode()
    assert list(encoded.stored) == [1, 1_001]
    assert len(encoded.newest) < 2 * NEWEST_MIN * 40 + 40


def test_a_producer_may_leave_so_many_gaps_and_no_more() -> None:
    producers = Producers()
    for number in range(RANGES_MAX):
        sequence = 2 * number + 1
        producers.check("p", sequence)
        producers.record("p", sequence, stored(sequence))
    with pytest.raises(IllegalSequence, match="producer p left 256 gaps"):
        producers.check("p", 10_000)
    # What follows a range, and so makes no new one, is fine; of others nothing is known.
    producers.check("p", 2)
    producers.check("p", 2 * RANGES_MAX)
    producers.check("q", 10_000)
    producers.record("p", 2, stored(2))
    producers.check("p", 10_000)


def test_the_producer_that_was_not_heard_of_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedup, "PRODUCERS_MAX", 3)
    producers = Producers()
    order: OrderedDict[str, None] = OrderedDict()
    for producer_id, sequence in [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("d", 1), ("e", 1)]:
        producers.record(producer_id, sequence, stored(sequence))
        order[producer_id] = None
        order.move_to_end(producer_id)
        assert [one.producer_id for one in producers.encode()] == list(order)[-3:]
    assert len(producers) == 3
    assert producers.find("b", 1) is None
    assert producers.find("a", 1) == duplicate(1)
    # A checkpoint keeps the order of eviction.
    other = copied(producers)
    other.record("f", 1, stored(1))
    assert other.find("a", 1) is None
    assert other.find("d", 1) is not None
