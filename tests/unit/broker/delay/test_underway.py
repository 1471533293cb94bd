"""What waits for a time and is on its way into the log: known until it has landed."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.delay.underway import UnderWay
from mq.broker.state.machine import Written
from mq.broker.writing import write
from mq.errors import FlowControl
from mq.store.batch import encode_payload
from mq.store.format import Kind
from tests.support.consensus import Node, batch, on_loop, turns


def held_until(due_ms: int) -> Written:
    return Written([batch("t", b"now"), batch("t", b"later", deliver_at_ms=due_ms)])


async def scene() -> tuple[Node, UnderWay]:
    node = Node()
    await node.topic("t")
    node.consensus.is_held = True
    return node, UnderWay(node.consensus)


@on_loop
async def test_the_first_of_what_is_under_way_is_known_until_it_lands() -> None:
    node, under_way = await scene()
    landed: list[int | None] = []
    under_way.on_landed = lambda: landed.append(under_way.first_due_ms())
    assert under_way.first_due_ms() is None
    writes = [asyncio.ensure_future(write(under_way, held_until(at))) for at in (900, 500, 700)]
    plain = asyncio.ensure_future(write(under_way, Written([batch("t", b"x")])))
    await turns()
    assert under_way.first_due_ms() == 500
    node.consensus.commit(2)
    await asyncio.wait(writes[:2])
    assert under_way.first_due_ms() == 700
    node.consensus.commit()
    await asyncio.gather(*writes, plain)
    await turns()
    assert under_way.first_due_ms() is None
    assert landed == [500, 700, None]


@on_loop
async def test_whoever_stops_waiting_does_not_make_it_land() -> None:
    node, under_way = await scene()
    writing = asyncio.ensure_future(write(under_way, held_until(500)))
    await turns()
    writing.cancel()
    await turns()
    assert writing.cancelled()
    assert under_way.first_due_ms() == 500
    node.consensus.lose(FlowControl("busy"))
    await turns()
    assert under_way.first_due_ms() is None


@on_loop
async def test_a_failure_is_told_and_lands() -> None:
    node, under_way = await scene()
    node.consensus.failure = FlowControl("busy")
    with pytest.raises(FlowControl):
        await write(under_way, held_until(500))
    await turns()
    assert under_way.first_due_ms() is None


@on_loop
async def test_it_stands_in_for_the_log() -> None:
    node, under_way = await scene()
    node.consensus.is_held = False
    assert under_way.leading_term == node.consensus.leading_term
    assert under_way.leading == node.consensus.leading
    assert list(under_way.peers) == list(node.consensus.peers)
    plain = Written([batch("t", b"x")])
    await under_way.propose(Kind.MESSAGES, encode_payload(plain.batches), plain)
    assert len(plain.stored) == 1
