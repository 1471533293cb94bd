"""Requests are decided together, and only when nothing of theirs is under way."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.batched_decider import BatchedDecider, TurnDecision
from mq.broker.state.machine import ProposedEntry
from mq.errors import DiskFull, IllegalRequest, MqError, NotLeader
from mq.wire.v1.state_pb2 import Command, PutGroup
from tests.support.consensus import Node, on_loop, soon, turns


class Counting:
    """Decides by what is applied: gives each request the next number."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.decided: list[list[str]] = []
        self.line: BatchedDecider[str, int] = BatchedDecider(
            node.broker.writer, node.broker.leadership, self.decide, requests_max=3
        )

    @property
    def count(self) -> int:
        return self.node.machine.state.offsets.retries_max("counter") or 0

    def decide(self, requests: list[str]) -> TurnDecision[int]:
        self.decided.append(requests)
        if "explode" in requests:
            raise ZeroDivisionError
        count = self.count
        answers: list[int | MqError] = []
        for one in requests:
            if one == "bad":
                answers.append(IllegalRequest("bad"))
            else:
                count += 1
                answers.append(count)
        put = PutGroup(group="counter", retries_max=count)
        return TurnDecision(answers, ProposedEntry(command=Command(put_group=put)))


@on_loop
async def test_requests_that_gather_become_one_entry() -> None:
    node = Node()
    counting = Counting(node)
    node.consensus.is_held = True
    before = len(node.consensus.proposed)
    first = asyncio.ensure_future(counting.line.submit("a"))
    await turns()
    others = [asyncio.ensure_future(counting.line.submit(one)) for one in "bcde"]
    await turns()
    assert counting.decided == [["a"]]  # the others wait until that is applied
    assert not first.done()
    node.consensus.commit()
    assert await soon(first) == 1
    await turns()
    assert counting.decided == [["a"], ["b", "c", "d"]]  # no more than the limit
    node.consensus.commit()
    await turns()
    node.consensus.commit()
    assert [await soon(one) for one in others] == [2, 3, 4, 5]
    assert len(node.consensus.proposed) == before + 3


@on_loop
async def test_answers_come_by_callback_when_the_entry_is_applied() -> None:
    node = Node()
    counting = Counting(node)
    node.consensus.is_held = True
    answers: list[int | Exception] = []

    def fail(_: object) -> None:
        raise ZeroDivisionError

    counting.line.begin("a", fail)
    counting.line.begin("bad", answers.append)
    counting.line.begin("b", answers.append)
    await turns()
    assert not answers
    node.consensus.commit()
    await turns()
    # A caller that fails on its answer does not keep the others from theirs.
    assert [type(one) for one in answers] == [IllegalRequest, int]
    assert counting.decided == [["a", "bad", "b"]]


@on_loop
async def test_a_bad_request_is_refused_alone() -> None:
    counting = Counting(Node())
    results = await asyncio.gather(
        *(counting.line.submit(one) for one in ("a", "bad", "b")), return_exceptions=True
    )
    assert isinstance(results[1], IllegalRequest)
    assert (results[0], results[2]) == (1, 2)


@on_loop
async def test_an_exception_fails_the_requests_of_its_turn_only() -> None:
    counting = Counting(Node())
    results = await asyncio.gather(
        *(counting.line.submit(one) for one in ("a", "explode")), return_exceptions=True
    )
    assert all(isinstance(one, ZeroDivisionError) for one in results)
    assert await soon(counting.line.submit("b")) == 1


@on_loop
async def test_a_failed_write_is_reported_and_changes_nothing() -> None:
    node = Node()
    counting = Counting(node)
    node.consensus.failure = DiskFull("no")
    results = await asyncio.gather(
        *(counting.line.submit(one) for one in ("a", "bad")), return_exceptions=True
    )
    assert isinstance(results[0], DiskFull)
    assert isinstance(results[1], IllegalRequest)
    node.consensus.failure = None
    assert await soon(counting.line.submit("a")) == 1


@on_loop
async def test_a_cancelled_request_is_not_decided() -> None:
    node = Node()
    counting = Counting(node)
    node.consensus.is_held = True
    first = asyncio.ensure_future(counting.line.submit("a"))
    await turns()
    gone, stays = (asyncio.ensure_future(counting.line.submit(one)) for one in "bc")
    await turns()
    gone.cancel()
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    assert (await soon(first), await soon(stays)) == (1, 2)
    assert counting.decided == [["a"], ["c"]]


@on_loop
async def test_requests_that_wait_when_leadership_is_lost_are_sent_away() -> None:
    node = Node()
    counting = Counting(node)
    node.consensus.is_held = True
    first = asyncio.ensure_future(counting.line.submit("a"))
    await turns()
    second = asyncio.ensure_future(counting.line.submit("b"))
    await turns()
    node.consensus.depose()
    node.consensus.commit()
    assert await soon(first) == 1
    with pytest.raises(NotLeader):
        await soon(second)
    with pytest.raises(NotLeader):
        await soon(counting.line.submit("c"))


@on_loop
async def test_requests_left_over_come_first_in_the_next_turn() -> None:
    node = Node()
    decided: list[list[str]] = []

    def decide(requests: list[str]) -> TurnDecision[str]:
        decided.append(requests)
        return TurnDecision(
            requests[:2], ProposedEntry(command=Command(put_group=PutGroup(group="g")))
        )

    line: BatchedDecider[str, str] = BatchedDecider(
        node.broker.writer, node.broker.leadership, decide
    )
    asked = [asyncio.ensure_future(line.submit(one)) for one in "abcde"]
    node.consensus.is_held = True
    await turns()
    late = asyncio.ensure_future(line.submit("late"))
    asked[3].cancel()
    for _ in range(3):
        await turns()
        node.consensus.commit()
    assert [await soon(one) for one in (*asked[:3], asked[4], late)] == ["a", "b", "c", "e", "late"]
    assert decided == [list("abcde"), ["c", "e", "late"], ["late"]]


@on_loop
async def test_answers_by_callback_come_with_their_entry_and_not_after_a_cancel() -> None:
    node = Node()
    counting = Counting(node)
    node.consensus.is_held = True
    told: list[int | Exception] = []
    counting.line.begin("a", told.append)
    in_flight = counting.line.begin("b", told.append)
    await turns()
    undecided = counting.line.begin("c", told.append)
    counting.line.begin("bad", told.append)
    in_flight.cancel()
    undecided.cancel()
    assert not told
    node.consensus.is_held = False
    node.consensus.commit()
    await turns()
    assert told[0] == 1
    assert isinstance(told[1], IllegalRequest)
    assert len(told) == 2
    assert counting.decided == [["a", "b"], ["bad"]]
