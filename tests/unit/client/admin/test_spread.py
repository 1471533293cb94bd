"""How queues are spread over broker sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.admin.topics import left_over, needs_loads, spread

NAMES = st.text("abcdef", min_size=1, max_size=3)
LOADS = st.dictionaries(NAMES, st.integers(0, 100), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("queues", "least", "expected"),
    [
        (8, 1, {"a": 3, "b": 2, "c": 3}),
        (9, 1, {"a": 3, "b": 3, "c": 3}),
        (2, 1, {"a": 1, "c": 1}),
        (1, 1, {"c": 1}),
        # Each set has queues of all priorities.
        (8, 4, {"a": 4, "c": 4}),
        (8, 5, {"c": 8}),
        (3, 5, {"c": 3}),
    ],
)
def test_the_remainder_goes_to_those_with_the_fewest_queues(
    queues: int, least: int, expected: dict[str, int]
) -> None:
    assert spread(queues, {"a": 5, "b": 9, "c": 4}, least) == expected


@given(st.integers(1, 1000), LOADS, st.integers(1, 10))
def test_all_queues_are_given_out_evenly(queues: int, loads: dict[str, int], least: int) -> None:
    found = spread(queues, loads, least)
    assert sum(found.values()) == queues
    assert found.keys() <= loads.keys()
    assert max(found.values()) - min(found.values()) <= 1
    assert len(found) == 1 or min(found.values()) >= least
    # Nobody is left out who could have had enough.
    assert len(found) == len(loads) or queues < least * (len(found) + 1)


@given(st.integers(1, 200), LOADS, st.integers(1, 10), st.data())
def test_a_creation_that_broke_off_is_completed_as_planned(
    queues: int, loads: dict[str, int], least: int, data: st.DataObject
) -> None:
    whole = spread(queues, loads, least)
    there_names = data.draw(st.sets(st.sampled_from(sorted(whole)), max_size=len(whole) - 1))
    there = {name: whole[name] for name in there_names}
    # Meanwhile other topics came and went.
    later = {name: data.draw(st.integers(0, 100)) for name in loads}
    rest = left_over(queues, there, later, least)
    assert rest is not None
    assert there.keys().isdisjoint(rest)
    together = {**there, **rest}
    assert sorted(together.values()) == sorted(whole.values())


@pytest.mark.parametrize(
    "there",
    [
        {"a": 4, "b": 4},
        {"a": 8},
        {"a": 3},
        {"a": 5},
        {"x": 4},
    ],
)
def test_a_topic_that_was_made_otherwise_is_not_completed(there: dict[str, int]) -> None:
    assert left_over(8, there, {"a": 0, "b": 0}) is None


def test_no_more_larger_parts_than_the_remainder() -> None:
    assert left_over(7, {"a": 3, "b": 3}, {"a": 0, "b": 0, "c": 0}) is None
    assert left_over(7, {"a": 3, "b": 2}, {"a": 0, "b": 0, "c": 0}) == {"c": 2}
    assert left_over(8, {"a": 2, "b": 2}, {"a": 0, "b": 0, "c": 0}) is None


@given(st.integers(1, 200), LOADS, st.integers(1, 10), st.data())
def test_loads_change_nothing_when_queues_divide_evenly(
    queues: int, loads: dict[str, int], least: int, data: st.DataObject
) -> None:
    if not needs_loads(queues, len(loads), least):
        others = {name: data.draw(st.integers(0, 100)) for name in loads}
        assert spread(queues, loads, least) == spread(queues, others, least)
