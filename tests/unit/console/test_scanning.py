"""Scans: in the order of time, nothing twice, nothing missed, within the budget, few reads."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.aio import QueueRef, ReceivedMessage
from mq.console import positions
from mq.console.scanning import QUEUES_MAX, Budget, Lane, Scan, contains
from mq.errors import IllegalRequest
from tests.unit.console.queues import MemoryQueues, message

REFS = [QueueRef("t", at, "s") for at in range(4)] + [QueueRef("t", 0, "other")]


def lanes(queues: MemoryQueues, after: dict[QueueRef, int], *, is_backward: bool) -> list[Lane]:
    made = []
    for ref, found in queues.stored.items():
        last_ms = found[-1].stored_at_ms if found else 0
        low, high = 0, len(found)
        if is_backward:
            high = after.get(ref, high)
        else:
            low = after.get(ref, low)
        made.append(Lane(ref, low, high, last_ms if is_backward else 0))
    return made


def read_all(
    queues: MemoryQueues, page: int, *, is_backward: bool, tag: str | None, budget: int
) -> list[ReceivedMessage]:
    """Page by page, each from the text of the link on the one before."""
    found: list[ReceivedMessage] = []
    after: dict[QueueRef, int] = {}
    for _ in range(1_000):
        scan = Scan(
            queues.client,
            lanes(queues, after, is_backward=is_backward),
            is_backward=is_backward,
            wanted=tag,
            budget=Budget(seconds=1e9, messages=budget),
        )
        found += asyncio.run(scan.page(page))
        if not scan.left:
            return found
        after = positions.decode("t", positions.encode(scan.positions()))
    raise AssertionError("it does not end")


@given(
    times=st.lists(st.lists(st.integers(0, 50), max_size=30), min_size=5, max_size=5),
    page=st.integers(1, 20),
    is_backward=st.booleans(),
    pull_max=st.integers(1, 9),
    budget=st.integers(1, 60),
    tag=st.sampled_from([None, "a"]),
)
def test_pages_together_are_all_messages_once_in_order(
    times: list[list[int]],
    page: int,
    is_backward: bool,
    pull_max: int,
    budget: int,
    tag: str | None,
) -> None:
    queues = MemoryQueues(*REFS, pull_max=pull_max)
    for ref, found in zip(REFS, times, strict=True):
        for at, at_ms in enumerate(sorted(found)):
            queues.put(ref, at_ms, tag="a" if at % 3 else "b")
    wanted = [one for found in queues.stored.values() for one in found if tag in (None, one.tag)]
    read = read_all(queues, page, is_backward=is_backward, tag=tag, budget=budget)
    assert sorted(one.message_id for one in read) == sorted(one.message_id for one in wanted)
    if budget == 60 and tag is None:
        moments = [one.stored_at_ms for one in read]
        assert moments == sorted(moments, reverse=is_backward)


def test_the_newest_of_many_queues_are_found_by_few_reads() -> None:
    refs = [QueueRef("t", at, "s") for at in range(1_000)]
    queues = MemoryQueues(*refs)
    for at, ref in enumerate(refs):
        queues.put(ref, at)
    scan = Scan(queues.client, lanes(queues, {}, is_backward=True), is_backward=True)
    found = asyncio.run(scan.page(50))
    assert [one.stored_at_ms for one in found] == list(range(999, 949, -1))
    assert queues.pulls <= 51


def test_a_search_that_finds_nothing_ends_with_its_budget_and_says_so() -> None:
    queues = MemoryQueues(REFS[0])
    for at in range(5_000):
        queues.put(REFS[0], at, b"hay")
    scan = Scan(
        queues.client,
        lanes(queues, {}, is_backward=True),
        is_backward=True,
        predicate=contains("needle"),
        budget=Budget(messages=1_000),
    )
    assert asyncio.run(scan.page(10)) == []
    assert scan.is_cut
    assert 1_000 <= scan.looked_at < 3_000
    assert scan.looked_at + scan.left == 5_000


def test_more_queues_than_a_page_can_merge_ask_for_a_choice() -> None:
    many = [Lane(QueueRef("t", at, "s"), 0, 0) for at in range(QUEUES_MAX + 1)]
    with pytest.raises(IllegalRequest, match="choose a queue"):
        Scan(MemoryQueues().client, many, is_backward=True)


@pytest.mark.parametrize("text", ["Needle", "NEEDLE", "needle", "größe", "GRÖSSE"])
def test_text_is_found_in_whatever_case_and_field(text: str) -> None:
    is_in = contains(text)
    hidden = "a needle und GRÖßE"
    for fields in (
        {"body": hidden.encode()},
        {"keys": [hidden]},
        {"properties": {"p": hidden}},
        {"properties": {hidden: "v"}},
        {"tag": hidden},
        {"body": b"\xff\xfe" + hidden.encode()},
    ):
        assert is_in(message(REFS[0], 0, 0, **fields)), fields
    assert not is_in(message(REFS[0], 0, 0, b"hay", tag="hay", keys=["hay"]))
