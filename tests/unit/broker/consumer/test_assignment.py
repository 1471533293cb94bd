"""Even, sticky, near, spread: each promise of an assignment, alone and over random groups."""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.consumer import assignment
from mq.broker.consumer.assignment import Candidate, assign
from mq.broker.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

Hands = dict[str, frozenset[Queue]]


def q(text: str) -> Queue:
    """A queue from a letter and a digit: a7."""
    return Queue(text[0], int(text[1:]))


def qs(texts: str) -> frozenset[Queue]:
    return frozenset(q(text) for text in texts.split())


def queues(count: int, topics: str = "t", zones: str = "") -> dict[Queue, str]:
    """As many of each topic, in zones in turn."""
    return {
        Queue(topic, number): zones[number % len(zones)] if zones else ""
        for topic in topics
        for number in range(count)
    }


def members(names: str, owned: Mapping[str, frozenset[Queue]] | None = None) -> list[Candidate]:
    """Each as `name` or `name@zone`."""
    parts = [text.partition("@") for text in names.split()]
    return [Candidate(name, zone, (owned or {}).get(name, frozenset())) for name, _, zone in parts]


def sizes(hands: Hands) -> list[int]:
    return sorted(len(hand) for hand in hands.values())


def moved(before: Hands, after: Hands) -> set[Queue]:
    """The queues that have a new owner."""
    return {queue for name in after for queue in after[name] - before.get(name, frozenset())}


def check_even(hands: Hands, given_queues: Mapping[Queue, str]) -> None:
    assert sorted(queue for hand in hands.values() for queue in hand) == sorted(given_queues)
    assert max(sizes(hands)) - min(sizes(hands)) <= 1


def test_without_members_there_is_nothing_to_assign() -> None:
    assert assign(queues(3), []) == {}


def test_members_without_a_queue_are_in_the_answer() -> None:
    assert assign(queues(1), members("A B")) == {"A": qs("t0"), "B": frozenset()}
    assert assign({}, members("A", {"A": qs("t0")})) == {"A": frozenset()}


@pytest.mark.parametrize(
    ("count", "names", "expected"),
    [(8, "A", [8]), (8, "A B", [4, 4]), (8, "A B C", [2, 3, 3]), (2, "A B C", [0, 1, 1])],
)
def test_queues_are_shared_evenly(count: int, names: str, expected: list[int]) -> None:
    assert sizes(assign(queues(count), members(names))) == expected


@pytest.mark.parametrize(
    ("owned", "expected"),
    [
        pytest.param(
            {"A": "t0 t1 t2 t3"}, {"A": "t0 t1", "B": "t2 t3"}, id="gives-up-no-more-than-it-must"
        ),
        pytest.param({"B": "t0", "A": "t3"}, {"B": "t0", "A": "t3"}, id="keeps-what-it-has"),
        pytest.param({"B": "t0 t1 t2"}, {"A": "t2 t3"}, id="takes-what-is-free-and-in-excess"),
        pytest.param({"A": "t0 t1", "B": "t1 t2"}, {"A": "t0 t1"}, id="two-own-it-first-has-it"),
        pytest.param({"B": "t2 t3 t9 x0"}, {"B": "t2 t3"}, id="queues-that-are-no-more"),
    ],
)
def test_a_member_keeps_what_it_owns(owned: dict[str, str], expected: dict[str, str]) -> None:
    owning = {name: qs(text) for name, text in owned.items()}
    hands = assign(queues(4), members("A B", owning))
    check_even(hands, queues(4))
    for name, text in expected.items():
        assert qs(text) <= hands[name]


@pytest.mark.parametrize(
    ("owned", "pins", "expected"),
    [
        pytest.param({"A": "t0 t1 t2 t3"}, {"t2": "A", "t3": "A"}, {"A": "t2 t3"}, id="kept-last"),
        pytest.param({"A": "t0 t1"}, {"t0": "B"}, {"A": "t1", "B": "t0"}, id="beats-an-owner"),
        pytest.param({}, {"t0": "B", "t1": "B"}, {"B": "t0 t1"}, id="counts-as-owned"),
        pytest.param({}, {f"t{i}": "A" for i in range(4)}, {"A": "t0 t1"}, id="an-even-share-only"),
        pytest.param({"A": "t0 t1"}, {"t0": "Z"}, {"A": "t0 t1"}, id="to-nobody-means-nothing"),
        pytest.param({}, {"t9": "A"}, {}, id="of-no-queue-means-nothing"),
    ],
)
def test_a_pinned_queue_is_the_last_to_move(
    owned: dict[str, str], pins: dict[str, str], expected: dict[str, str]
) -> None:
    owning = {name: qs(text) for name, text in owned.items()}
    pinned = {q(text): name for text, name in pins.items()}
    hands = assign(queues(4), members("A B", owning), pinned)
    check_even(hands, queues(4))
    for name, text in expected.items():
        assert qs(text) <= hands[name]


def test_the_odd_queue_stays_with_one_that_is_pinned_to_it() -> None:
    owned = {"A": qs("t0 t1"), "B": qs("t2 t3")}
    pinned = dict.fromkeys(owned["B"], "B") | {q("t0"): "A"}
    hands = assign(queues(4) | {q("t4"): ""}, members("A B C D", owned), pinned)
    assert (len(hands["A"]), len(hands["B"])) == (1, 2)


def test_free_queues_go_to_their_zone() -> None:
    hands = assign(queues(6, zones="xy"), members("A@y B@x"))
    assert hands == {"A": qs("t1 t3 t5"), "B": qs("t0 t2 t4")}


def test_evenness_comes_before_nearness() -> None:
    hands = assign(queues(6, zones="x"), members("A@y B@x"))
    assert sizes(hands) == [3, 3]
    hands = assign(queues(4, zones="x"), members("A@x B@x C@y"))
    assert sizes(hands) == [1, 1, 2]


def test_stickiness_comes_before_nearness() -> None:
    owned = {"A": qs("t0 t2"), "B": qs("t1 t3")}
    assert assign(queues(4, zones="xy"), members("A@y B@x", owned)) == owned


def test_a_member_gives_up_far_queues_first_and_those_that_are_near_to_another() -> None:
    zones = {q("t0"): "y", q("t1"): "y", q("t2"): "x", q("t3"): "far"}
    hands = assign(zones, members("A@x B@y", {"A": frozenset(zones)}))
    assert hands == {"A": qs("t2 t3"), "B": qs("t0 t1")}


def test_a_pin_is_dearer_than_a_zone() -> None:
    zones = {q("t0"): "x", q("t1"): "x", q("t2"): "y", q("t3"): "y"}
    pinned = {q("t2"): "A", q("t3"): "A"}
    hands = assign(zones, members("A@x B@y", {"A": frozenset(zones)}), pinned)
    assert hands["A"] == qs("t2 t3")


def test_a_queue_of_unknown_zone_is_kept_rather_than_one_that_is_near_to_another() -> None:
    zones = {q("t0"): "y", q("t1"): ""}
    assert assign(zones, members("A@ B@y", {"A": frozenset(zones)}))["A"] == qs("t1")


def test_in_a_zone_the_one_with_the_fewest_is_first() -> None:
    zones = {q("t0"): "x", q("t1"): "x", q("t2"): "", q("t3"): "x"}
    hands = assign(zones, members("A@x B@x C@", {"A": qs("t0 t1")}))
    assert hands == {"A": qs("t0 t1"), "B": qs("t3"), "C": qs("t2")}


def test_the_odd_queue_stays_where_it_is_near() -> None:
    zones = {q("t0"): "x", q("t1"): "y", q("t2"): "y", q("t3"): "y", q("t4"): ""}
    owned = {"A": qs("t0 t1"), "B": qs("t2 t3")}
    hands = assign(zones, members("A@x B@y C@ D@", owned))
    assert hands["A"] == qs("t0")
    assert hands["B"] == qs("t2 t3")


def test_a_place_near_the_queue_is_not_given_to_a_stranger() -> None:
    zones = {q("t0"): "", q("t1"): "", q("t2"): "x", q("t3"): "x"}
    assert assign(zones, members("A@x B")) == {"A": qs("t2 t3"), "B": qs("t0 t1")}


def test_unknown_zones_are_not_near_to_each_other() -> None:
    """Neither when queues are dealt nor when they are given up."""
    zones = {q("t0"): "", q("t1"): "", q("t2"): "x"}
    assert assign(zones, members("A@x B@")) == {"A": qs("t1 t2"), "B": qs("t0")}
    zones = {q("t0"): "far", q("t1"): ""}
    assert assign(zones, members("A@ B@", {"A": frozenset(zones)}))["A"] == qs("t0")


@pytest.mark.parametrize("names", ["A B", "A B C D"])
def test_each_topic_is_spread_over_the_members(names: str) -> None:
    hands = assign(queues(8, topics="abc"), members(names))
    for hand in hands.values():
        assert set(Counter(queue.topic for queue in hand).values()) == {8 // len(hands)}


def test_a_member_that_gives_up_queues_gives_up_some_of_each_topic() -> None:
    everything = queues(8, topics="abc")
    hands = assign(everything, members("A B", {"A": frozenset(everything)}))
    for hand in hands.values():
        assert Counter(queue.topic for queue in hand) == {"a": 4, "b": 4, "c": 4}


ZONES = st.sampled_from(["", "x", "y", "z"])


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[Queue, str], list[Candidate], dict[Queue, str]]:
    names = draw(st.lists(st.sampled_from("ABCDEFGH"), unique=True, min_size=1))
    everything = [Queue(topic, number) for topic in "ab" for number in range(12)]
    some = st.sets(st.sampled_from(everything))
    known = {queue: draw(ZONES) for queue in sorted(draw(some))}
    candidates = [Candidate(name, draw(ZONES), frozenset(draw(some))) for name in names]
    pins = {queue: draw(st.sampled_from("ABCDEFGHZ")) for queue in sorted(draw(some))}
    return known, candidates, pins


@given(groups())
def test_every_queue_goes_to_one_member_and_shares_are_even(
    group: tuple[dict[Queue, str], list[Candidate], dict[Queue, str]],
) -> None:
    known, candidates, pins = group
    hands = assign(known, candidates, pins)
    assert hands.keys() == {member.member_id for member in candidates}
    check_even(hands, known)
    # No member gives up a queue that it holds firmly for one that is not firm, or more than it
    # must.
    share = len(known) // len(candidates)
    for member in candidates:
        pinned = {
            queue for queue, name in pins.items() if name == member.member_id and queue in known
        }
        hand = hands[member.member_id]
        assert len(hand & pinned) >= min(len(pinned), share)
        if pinned - hand:
            assert hand <= pinned
        mine = {
            queue
            for queue in member.owned & known.keys()
            if pins.get(queue, "Z") not in hands
            if member.member_id == min(one.member_id for one in candidates if queue in one.owned)
        }
        assert len(hand & (pinned | mine)) >= min(len(pinned | mine), share)


@given(groups(), st.randoms(use_true_random=False))
def test_the_answer_does_not_depend_on_the_order_of_anything(
    group: tuple[dict[Queue, str], list[Candidate], dict[Queue, str]], dice: random.Random
) -> None:
    known, candidates, pins = group
    expected = assign(known, candidates, pins)

    def shuffled(mapping: Mapping[Queue, str]) -> dict[Queue, str]:
        return dict(dice.sample(list(mapping.items()), len(mapping)))

    others = dice.sample(candidates, len(candidates))
    assert assign(shuffled(known), others, shuffled(pins)) == expected


@given(groups())
def test_assigning_again_moves_nothing(
    group: tuple[dict[Queue, str], list[Candidate], dict[Queue, str]],
) -> None:
    known, candidates, pins = group
    hands = assign(known, candidates, pins)
    again = [one._replace(owned=hands[one.member_id]) for one in candidates]
    assert assign(known, again) == hands


@given(groups(), ZONES)
def test_a_joining_member_moves_no_more_than_its_share(
    group: tuple[dict[Queue, str], list[Candidate], dict[Queue, str]], zone: str
) -> None:
    known, candidates, _ = group
    before = assign(known, candidates)
    settled = [one._replace(owned=before[one.member_id]) for one in candidates]
    after = assign(known, [*settled, Candidate("N", zone, frozenset())])
    assert moved(before, after) == after["N"]
    assert len(after["N"]) <= -(-len(known) // len(after))


@given(groups())
def test_a_leaving_member_moves_only_its_own_queues(
    group: tuple[dict[Queue, str], list[Candidate], dict[Queue, str]],
) -> None:
    known, candidates, _ = group
    before = assign(known, candidates)
    settled = [one._replace(owned=before[one.member_id]) for one in candidates]
    after = assign(known, settled[1:])
    if after:
        assert moved(before, after) == before[settled[0].member_id]


# -- quotas ----------------------------------------------------------------------------------------


@st.composite
def rationed(
    draw: st.DrawFn,
) -> tuple[dict[Queue, str], list[Candidate], dict[Queue, str], dict[str, int]]:
    known, candidates, pins = draw(groups())
    cuts = sorted(draw(st.integers(0, len(known))) for _ in candidates[1:])
    ends = [0, *cuts, len(known)]
    quotas = {one.member_id: ends[at + 1] - ends[at] for at, one in enumerate(candidates)}
    return known, candidates, pins, quotas


@given(rationed())
def test_with_quotas_each_gets_its_own_and_keeps_what_it_can(
    group: tuple[dict[Queue, str], list[Candidate], dict[Queue, str], dict[str, int]],
) -> None:
    known, candidates, pins, quotas = group
    hands = assign(known, candidates, pins, quotas=quotas)
    assert {name: len(hand) for name, hand in hands.items()} == quotas
    assert sorted(queue for hand in hands.values() for queue in hand) == sorted(known)
    for name, hand in hands.items():
        pinned = {queue for queue, one in pins.items() if one == name and queue in known}
        assert len(hand & pinned) == min(len(pinned), quotas[name])
    again = [one._replace(owned=hands[one.member_id]) for one in candidates]
    assert assign(known, again, quotas=quotas) == hands


@given(groups())
def test_quotas_as_they_would_be_anyway_change_nothing(
    group: tuple[dict[Queue, str], list[Candidate], dict[Queue, str]],
) -> None:
    known, candidates, pins = group
    hands = assign(known, candidates, pins)
    quotas = {name: len(hand) for name, hand in hands.items()}
    settled = [one._replace(owned=hands[one.member_id]) for one in candidates]
    assert assign(known, settled, quotas=quotas) == hands


def test_a_member_with_a_quota_of_none_gives_up_everything() -> None:
    owned = {"A": qs("t0 t1 t2 t3")}
    hands = assign(queues(4), members("A B", owned), quotas={"A": 0, "B": 4})
    assert hands == {"A": frozenset(), "B": qs("t0 t1 t2 t3")}


def test_with_quotas_each_topic_is_spread_as_well() -> None:
    hands = assign(queues(4, topics="ab"), members("A B C"), quotas={"A": 4, "B": 2, "C": 2})
    assert [Counter(one.topic for one in hands[name]) for name in "ABC"] == [
        {"a": 2, "b": 2},
        {"a": 1, "b": 1},
        {"a": 1, "b": 1},
    ]


def lines_run(call: Callable[[], object]) -> int:
    """The number of lines of the module that ran."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != assignment.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_the_work_grows_with_the_queues_and_not_with_queues_times_members() -> None:
    def work(count: int, names: int) -> int:
        known = queues(count, topics="abcd", zones="xyz")
        # All queues are with half of the members, so that there is much to give up and to deal.
        candidates = [
            Candidate(f"m{number:03}", "xyz"[number % 3], frozenset()) for number in range(names)
        ]
        half = candidates[::2]
        hands = assign(known, half)
        owning = [one._replace(owned=hands[one.member_id]) for one in half]
        return lines_run(lambda: assign(known, [*owning, *candidates[1::2]]))

    small = work(256, 20)
    assert small > 4 * 256
    assert work(2_560, 20) < 12 * small
    assert work(2_560, 200) < 12 * small


# -- priorities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["A B", "A B C", "A B C D"])
def test_members_share_each_priority_of_a_topic(names: str) -> None:
    hands = assign(queues(12), members(names), priorities={"t": 3})
    count = len(hands)
    for hand in hands.values():
        by_priority = Counter(queue.queue_id % 3 for queue in hand)
        assert all(by_priority[priority] >= 4 // count for priority in range(3)), hands


def test_a_later_member_gets_some_of_each_priority() -> None:
    alone = assign(queues(12), members("A"), priorities={"t": 3})
    hands = assign(queues(12), members("A B", dict(alone)), priorities={"t": 3})
    for hand in hands.values():
        assert Counter(queue.queue_id % 3 for queue in hand) == {0: 2, 1: 2, 2: 2}
