"""Fair shares over broker sets: even, near, spread, and the same for all, over random clusters."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker.consumer.shares import Portion, plan, quotas

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

Cluster = tuple[dict[str, str], dict[str, Portion]]


def members(text: str) -> dict[str, str]:
    """Each as `name` or `name@zone`."""
    parts = [one.partition("@") for one in text.split()]
    return {name: zone for name, _, zone in parts}


def portions(text: str) -> dict[str, Portion]:
    """Each as `name:queues` or `name:queues@zones`, zones of one letter."""
    found = {}
    for one in text.split():
        name, _, rest = one.partition(":")
        count, _, zones = rest.partition("@")
        found[name] = Portion(int(count), frozenset(zones))
    return found


def sums(found: Mapping[str, Counter[str]]) -> dict[str, int]:
    return {name: hand.total() for name, hand in found.items()}


def test_without_members_no_queue_is_assigned() -> None:
    assert plan({}, portions("a:4 b:4")) == {}
    assert quotas({}, portions("a:4"), "a") == {}


def test_sets_without_queues_give_nothing() -> None:
    assert plan(members("A B"), {}) == {"A": {}, "B": {}}
    assert quotas(members("A B"), portions("a:0 b:3"), "a") == {"A": 0, "B": 0}


@pytest.mark.parametrize(
    ("who", "what", "expected"),
    [
        # Odd queues of one set go to others than those of the next.
        ("A B", "a:3 b:3", {"A": {"a": 2, "b": 1}, "B": {"a": 1, "b": 2}}),
        ("A B C", "a:1 b:1 c:1", {"A": {"a": 1}, "B": {"b": 1}, "C": {"c": 1}}),
        ("A B", "a:4 b:4", {"A": {"a": 2, "b": 2}, "B": {"a": 2, "b": 2}}),
        # A node of each set in each zone: zones tell nothing.
        ("A@x B@y", "a:4@xy b:4@xy", {"A": {"a": 2, "b": 2}, "B": {"a": 2, "b": 2}}),
        ("A@x B@y", "a:4@x b:4@y", {"A": {"a": 4}, "B": {"b": 4}}),
        # Evenness comes first.
        ("A@x B@y", "a:6@x b:2@y", {"A": {"a": 4}, "B": {"a": 2, "b": 2}}),
        # The odd queue goes to the near member.
        ("A B@x", "a:3@x", {"A": {"a": 1}, "B": {"a": 2}}),
        # B could have either, A only one: A is not left with a stranger.
        ("A@x B@y", "a:2@xy b:2@y", {"A": {"a": 2}, "B": {"b": 2}}),
        # Both sets are near to B alone, which takes some of each.
        ("A B@x", "a:6@x b:6@x", {"A": {"a": 3, "b": 3}, "B": {"a": 3, "b": 3}}),
        # An unknown zone is near to no set.
        ("A@ B@x", "a:2@ b:2@x", {"A": {"a": 2}, "B": {"b": 2}}),
    ],
)
def test_shares_of_each_member(who: str, what: str, expected: dict[str, dict[str, int]]) -> None:
    assert plan(members(who), portions(what)) == expected


def test_a_member_that_joins_takes_no_more_than_its_share_of_each_set() -> None:
    before = plan(members("A B"), portions("a:4 b:4"))
    after = plan(members("A B C"), portions("a:4 b:4"))
    taken = {name: before[name] - after[name] for name in "AB"}
    assert sum(hand.total() for hand in taken.values()) == after["C"].total() == 2
    assert not any(after[name] - before[name] for name in "AB")


def test_the_work_does_not_grow_with_the_number_of_queues() -> None:
    """It runs on the loop of the broker: as many as other sets may claim to have."""
    many = {f"s{at}": Portion(65_536 * 256, frozenset("xyz"[at % 3])) for at in range(20)}
    found = plan({f"m{at:03}": "xyzw"[at % 4] for at in range(200)}, many)
    assert sum(sums(found).values()) == sum(one.queues for one in many.values())


ZONES = ["", "x", "y", "z"]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = draw(st.lists(st.sampled_from("ABCDEF"), unique=True, min_size=1))
    sets = draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1))
    who = {name: draw(st.sampled_from(ZONES)) for name in names}
    zones = st.frozensets(st.sampled_from(ZONES))
    return who, {one: Portion(draw(st.integers(0, 9)), draw(zones)) for one in sets}


@given(clusters())
def test_sums_are_even_and_all_queues_are_given(cluster: Cluster) -> None:
    who, what = cluster
    found = plan(who, what)
    assert found.keys() == who.keys()
    totals = sums(found).values()
    assert max(totals) - min(totals) <= 1
    for name, portion in what.items():
        shares = quotas(who, what, name)
        assert shares == {one: found[one][name] for one in who}
        assert min(shares.values()) >= 0
        assert sum(shares.values()) == portion.queues


@given(clusters(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_anything(
    cluster: Cluster, dice: random.Random
) -> None:
    who, what = cluster
    others = dict(dice.sample(list(who.items()), len(who)))
    sets = dict(dice.sample(list(what.items()), len(what)))
    assert plan(others, sets) == plan(who, what)


def is_near(zone: str, portion: Portion) -> bool:
    return zone != "" and zone in portion.zones


def near_count(who: Mapping[str, str], what: Mapping[str, Portion]) -> int:
    found = plan(who, what)
    return sum(
        count
        for member_id, hand in found.items()
        for name, count in hand.items()
        if is_near(who[member_id], what[name])
    )


def most_near(who: Mapping[str, str], what: Mapping[str, Portion]) -> int:
    """By trying all that may have one more, and matching queues with places one by one."""
    queues = [name for name, one in what.items() for _ in range(one.queues)]
    share, extras = divmod(len(queues), len(who))
    best = 0
    for lucky in itertools.combinations(who, extras):
        places = [one for one in who for _ in range(share + (one in lucky))]
        taken: dict[int, int] = {}

        def seated(at: int, seen: set[int], places: list[str], taken: dict[int, int]) -> bool:
            for place, member_id in enumerate(places):
                if place not in seen and is_near(who[member_id], what[queues[at]]):
                    seen.add(place)
                    if place not in taken or seated(taken[place], seen, places, taken):
                        taken[place] = at
                        return True
            return False

        best = max(best, sum(seated(at, set(), places, taken) for at in range(len(queues))))
    return best


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_as_many_as_can_be_are_near(cluster: Cluster) -> None:
    assert near_count(*cluster) == most_near(*cluster)


@given(clusters())
def test_where_zones_tell_nothing_each_set_is_shared_evenly(cluster: Cluster) -> None:
    who, what = cluster
    for zones in (frozenset[str](), frozenset(ZONES)):
        alike = {name: one._replace(zones=zones) for name, one in what.items()}
        for name in what:
            shares = quotas(dict.fromkeys(who, "x"), alike, name).values()
            assert max(shares) - min(shares) <= 1
