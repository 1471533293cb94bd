"""Entries on their way into the log: what is due among them is known until they are applied."""

from __future__ import annotations

import asyncio

import pytest

from mq.errors import FlowControl
from mq.store.batch import Batch
from mq.wire.v1.state_pb2 import Command, PutGroup
from tests.support.consensus import Node, batch, on_loop, turns


def delayed(due_ms: int) -> list[Batch]:
    return [batch("t", b"now"), batch("t", b"later", deliver_at_ms=due_ms)]


async def held_node() -> Node:
    node = Node()
    await node.topic("t")
    node.consensus.is_held = True
    return node


@on_loop
async def test_the_first_delay_in_flight_is_known_until_it_is_applied() -> None:
    node = await held_node()
    writer = node.broker.writer
    pending, seen = writer.pending_delays, []
    pending.watch(lambda: seen.append(pending.first_due_ms()))
    assert pending.first_due_ms() is None
    writes = [asyncio.ensure_future(writer.write(batches=delayed(at))) for at in (900, 500, 700)]
    plain = asyncio.ensure_future(writer.write(batches=[batch("t", b"x")]))
    await turns()
    assert pending.first_due_ms() == 500
    node.consensus.commit(2)
    await asyncio.wait(writes[:2])
    assert pending.first_due_ms() == 700
    node.consensus.commit()
    await asyncio.gather(*writes, plain)
    await turns()
    assert pending.first_due_ms() is None
    assert seen == [500, 700, None]


@on_loop
async def test_a_caller_that_is_cancelled_leaves_its_entry_in_flight() -> None:
    node = await held_node()
    pending = node.broker.writer.pending_delays
    writing = asyncio.ensure_future(node.broker.writer.write(batches=delayed(500)))
    await turns()
    writing.cancel()
    await turns()
    assert writing.cancelled()
    assert pending.first_due_ms() == 500
    node.consensus.lose(FlowControl("busy"))
    await turns()
    assert pending.first_due_ms() is None


@on_loop
async def test_an_entry_that_fails_is_not_in_flight() -> None:
    node = await held_node()
    node.consensus.failure = FlowControl("busy")
    with pytest.raises(FlowControl):
        await node.broker.writer.write(batches=delayed(500))
    await turns()
    assert node.broker.writer.pending_delays.first_due_ms() is None


@on_loop
async def test_an_uncancelled_write_lasts_until_its_entry_is_applied() -> None:
    node = await held_node()
    put = Command(put_group=PutGroup(group="g", retries_max=3))
    writing = asyncio.ensure_future(node.broker.writer.write_uncancelled(put))
    await turns()
    writing.cancel()
    await turns()
    assert not writing.done()
    node.consensus.commit()
    await asyncio.wait([writing])
    assert writing.cancelled()
    assert node.machine.state.offsets.retries_max("g") == 3
