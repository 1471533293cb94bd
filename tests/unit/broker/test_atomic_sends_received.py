"""Atoms of what was received: handles are acknowledged with the output, all or nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mq.broker.queue import Queue
from mq.errors import DiskFull, IllegalHandle, IllegalRequest, IllegalSequence, QueueNotFound
from mq.wire.v1.consumer_pb2 import Handle
from tests.support.consensus import Node, batch, on_loop, soon, turns
from tests.unit.broker.atomic_scene import output, written
from tests.unit.broker.consumer.group_scene import World
from tests.unit.broker.receive.receive_scene import GROUP, TOPIC, handles, receive

if TYPE_CHECKING:
    from mq.broker.state.dedup import StoredAt
    from mq.store.batch import Batch

INBOX = Queue(TOPIC, 0)


async def received(count: int = 5) -> tuple[World, list[Handle]]:
    """Messages of `inbox` in the hands of a receiver of the group."""
    one = World(Node())
    await one.node.topic(TOPIC, 1)
    await one.node.topic("out")
    await one.node.send(TOPIC, *(b"%d" % n for n in range(count)))
    return one, handles(await receive(one.node, messages_max=count))


async def settle(one: World, shown: list[Handle], *batches: Batch) -> list[StoredAt]:
    stored: list[StoredAt] = await soon(
        one.node.broker.atomic_sends.send(batches, GROUP, handles=shown)
    )
    return stored


@on_loop
async def test_received_messages_are_acknowledged_with_their_output() -> None:
    one, shown = await received()
    before = written(one)
    first = await settle(one, shown, output(1, b"a", b"b"), output(2, queue_id=3))
    assert written(one) == before + 1
    assert (one.node.ends("out"), one.node.committed(GROUP)) == ([2, 0, 0, 1], {INBOX: 5})
    again = await settle(one, shown, output(1, b"a", b"b"), output(2, queue_id=3))
    assert again == [at._replace(is_duplicate=True) for at in first]
    with pytest.raises(IllegalHandle):
        await settle(one, shown, output(3))
    assert one.node.ends("out") == [2, 0, 0, 1]
    assert one.node.broker.publisher.in_flight_bytes == 0


@on_loop
async def test_the_same_handles_at_the_same_time_count_once() -> None:
    one, shown = await received()
    answers = await asyncio.gather(
        settle(one, shown, output(1)),
        settle(one, shown, output(1)),
        settle(one, shown, output(1), output(2)),
        settle(one, shown[:1], output(1, producer_id="q")),
        return_exceptions=True,
    )
    assert answers[0] == answers[1]
    assert isinstance(answers[2], IllegalSequence)
    assert isinstance(answers[3], IllegalHandle)
    assert one.node.ends("out")[0] == 1


@on_loop
async def test_one_bad_handle_or_batch_and_nothing_is_done() -> None:
    one, shown = await received()
    state = one.node.machine.state.encode()
    forged = Handle(lease=b"x", queue_offset=0, count=1)
    for wrong, batches, error in (
        ([*shown, forged], [output(1)], IllegalHandle),
        (shown, [output(1), output(2, queue_id=9)], QueueNotFound),
        (shown, [batch("out", b"x")], IllegalRequest),
    ):
        with pytest.raises(error):
            await settle(one, wrong, *batches)
    with pytest.raises(IllegalRequest):
        await one.node.broker.atomic_sends.send([], GROUP, "", {INBOX: 1}, shown)
    assert one.node.machine.state.encode() == state
    await settle(one, shown, output(1))


@on_loop
async def test_an_acknowledgement_that_failed_may_come_again_and_leaves_nothing_behind() -> None:
    one, shown = await received()
    one.node.consensus.failure = DiskFull("no space")
    with pytest.raises(DiskFull):
        await settle(one, shown, output(1))
    one.node.consensus.failure = None
    asked = asyncio.create_task(settle(one, shown, output(1)))
    await asyncio.sleep(0)
    asked.cancel()
    await turns()
    assert (await settle(one, shown, output(1)))[0].queue_offset == 0
    assert one.node.broker.atomic_sends._acknowledging == {}
    assert one.node.broker.publisher.in_flight_bytes == 0
