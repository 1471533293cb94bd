"""A stream goes on while a file of one of its queues is damaged, and has that queue again when the
file is rebuilt.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from mq.broker.consumer.setting_aside import SetAside
from mq.store.damage import Damage, DamageKind
from tests.support.consensus import on_loop, turns
from tests.support.stores import messages_in
from tests.unit.broker.consumer.test_subscriber import A, B, stream

if TYPE_CHECKING:
    import pytest

    from mq.broker.queue import Queue
    from tests.support.consensus import Node


def flip(node: Node, queue: Queue) -> None:
    """A byte of the queue's file, which holds all of its units."""
    node.store.checkpoint()
    node.vfs.flip_bit(f"/data/consumequeue/{queue.topic}/{queue.queue_id}/{0:020d}", 30)


@on_loop
async def test_a_queue_that_is_being_rebuilt_is_delivered_a_moment_later() -> None:
    one = await stream({A: 5, B: 5})
    flip(one.node, A)
    one.subscriber.assign(1, {A: 0, B: 0})
    await one.assigned()
    found = [await one.delivered(), await one.delivered()]
    assert [each.queue for each in found] == [B, A]
    assert [len(messages_in(each.result)) for each in found] == [5, 5]


@on_loop
async def test_a_queue_that_cannot_be_rebuilt_keeps_no_other_waiting_and_is_tried_again() -> None:
    one = await stream({A: 5, B: 5})
    flip(one.node, A)
    one.node.vfs.fail("open", "/consumequeue/t/0", errno.EIO, after=2)
    one.subscriber.assign(1, {A: 0, B: 0})
    await one.assigned()
    for number in range(5):
        assert (await one.delivered()).queue == B
        for queue in (A, B):
            await one.node.send("t", b"%d" % number, queue_id=queue.queue_id)
    assert one.node.store.damage.open_count(DamageKind.QUEUE) == 1
    assert A in one.subscriber._aside._pauses_s, "it is tried again, with pauses that grow"
    # What keeps it from being rebuilt is over.
    one.node.store.damage.found(Damage(DamageKind.LOG, "a segment", 0, "rotten"))
    one.node.store.damage.mended(DamageKind.LOG, "a segment")
    found = await one.delivered()
    while found.queue == B:
        found = await one.delivered()
    assert messages_in(found.result)[0].body == b"0"
    one.subscriber.detach()
    assert not one.subscriber._aside


@on_loop
async def test_a_queue_that_leaves_is_not_tried_again() -> None:
    one = await stream({A: 5, B: 5})
    flip(one.node, A)
    one.node.vfs.fail("open", "/consumequeue/t/0", errno.EIO, after=2)
    one.subscriber.assign(1, {A: 0, B: 0})
    await one.assigned()
    assert (await one.delivered()).queue == B
    one.subscriber.assign(2, {B: 0})
    await one.assigned()
    assert not one.subscriber._aside
    await one.nothing()


@on_loop
async def test_pauses_double_up_to_a_bound_and_begin_anew_when_a_queue_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    pauses: list[float] = []
    tried: list[Queue] = []
    call_later = loop.call_later

    def at_once(delay: float, *args: object) -> asyncio.TimerHandle:
        pauses.append(delay)
        return call_later(0, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", at_once)
    aside = SetAside(tried.append)
    for number in range(12):
        aside.add(A)
        aside.add(A)
        assert A in aside
        await turns()
        assert len(tried) == number + 1
        assert A not in aside
    assert pauses == [min(0.01 * 2**number, 2.0) for number in range(12)]
    aside.worked(A)
    aside.add(A)
    assert pauses[-1] == pauses[0]
    aside.clear()
    assert not aside
