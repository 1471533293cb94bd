"""Deficit round robin: equal shares of bytes for owners that wait, order within each."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mq.broker.fair_queue import FairQueue

QUANTUM = 1_000


def drained(queue: FairQueue[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """The next so many pieces, each of (owner, number)."""
    found = []
    for _ in range(count):
        piece = queue.first()
        assert piece is not None
        queue.remove(piece[0], piece, is_served=True)
        found.append(piece)
    return found


def test_one_that_waits_with_little_is_not_behind_all_of_another() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(QUANTUM)
    for number in range(100):
        queue.add("flooder", ("flooder", number), QUANTUM)
    assert drained(queue, 3) == [("flooder", 0), ("flooder", 1), ("flooder", 2)]
    queue.add("quiet", ("quiet", 0), 10)
    assert ("quiet", 0) in drained(queue, 2)
    assert drained(queue, 1) == [("flooder", 4)]


def test_the_first_one_stays_the_first_whatever_comes() -> None:
    queue: FairQueue[str] = FairQueue(QUANTUM)
    assert queue.first() is None
    queue.add("a", "large", 50 * QUANTUM)
    assert queue.first() == "large"
    queue.add("b", "small", 1)
    assert queue.first() == "large"
    queue.remove("a", "large", is_served=False)
    assert queue.first() == "small"
    queue.remove("b", "small", is_served=True)
    assert queue.waiting == 0
    assert queue.first() is None


def test_one_that_gives_up_costs_its_owner_nothing() -> None:
    queue: FairQueue[str] = FairQueue(QUANTUM)
    for piece in ("a1", "a2"):
        queue.add("a", piece, 600)
    queue.add("b", "b1", 600)
    assert queue.first() == "a1"
    queue.remove("a", "a1", is_served=False)
    assert queue.first() == "a2"
    queue.remove("a", "a2", is_served=True)
    assert queue.first() == "b1"


PIECES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 20 * QUANTUM)), min_size=1, max_size=60
)


@given(PIECES, st.randoms(use_true_random=False))
def test_all_come_once_and_each_owner_in_its_order(
    pieces: list[tuple[str, int]], rng: random.Random
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(QUANTUM)
    waiting: list[tuple[str, int]] = []
    served: list[tuple[str, int]] = []
    for number, (owner, size) in enumerate(pieces):
        queue.add(owner, (owner, number), size)
        waiting.append((owner, number))
        # The piece itself is compared by identity.
        if rng.random() < 0.4:
            first = queue.first()
            assert first is not None
            queue.remove(first[0], first, is_served=True)
            served.append(first)
    while (first := queue.first()) is not None:
        queue.remove(first[0], first, is_served=True)
        served.append(first)
    assert sorted(served, key=lambda one: one[1]) == waiting
    for owner in "abcd":
        numbers = [number for name, number in served if name == owner]
        assert numbers == sorted(numbers)


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 5 * QUANTUM), min_size=2))
def test_owners_that_always_wait_get_the_same_bytes(sizes: dict[str, int]) -> None:
    """However large their pieces are: apart by a quantum and a piece at the most."""
    queue: FairQueue[tuple[str, int]] = FairQueue(QUANTUM)
    for owner, size in sizes.items():
        queue.add(owner, (owner, 0), size)
    shares: Counter[str] = Counter()
    largest = max(sizes.values())
    for number in range(1, 400):
        piece = queue.first()
        assert piece is not None
        owner = piece[0]
        queue.add(owner, (owner, number), sizes[owner])
        queue.remove(owner, piece, is_served=True)
        shares[owner] += sizes[owner]
        assert max(shares.values()) - min(shares[one] for one in sizes) <= 2 * (QUANTUM + largest)


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_pieces_of_any_size_take_no_long_search(one: int, other: int) -> None:
    queue: FairQueue[str] = FairQueue(1)
    queue.add("a", "one", one)
    queue.add("b", "other", other)
    assert queue.first() == ("one" if one <= other else "other")
