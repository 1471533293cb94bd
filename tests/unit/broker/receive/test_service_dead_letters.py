"""Messages that were given out too often, and acknowledgements that are one atom with batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mq.broker.consumer.groups import Start
from mq.broker.queue import Queue
from mq.broker.retry.origins import opened
from mq.errors import IllegalHandle, IllegalSequence, MessageTooLarge, MqError
from mq.names import dead_letter_topic
from mq.wire.v1.message_pb2 import Message
from mq.wire.v1.state_pb2 import Command, PutGroup
from tests.support.consensus import Node, batch, on_loop, soon, turns
from tests.unit.broker.receive.receive_scene import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    ack,
    bodies,
    handles,
    nack,
    receive,
    restarted,
    send_keyed,
)

if TYPE_CHECKING:
    from mq.broker.state.dedup import StoredAt
    from mq.store.batch import Batch

QUEUE = Queue(TOPIC, 0)


# -- dead letters ---------------------------------------------------------------------------------


async def dead(node: Node) -> list[Message]:
    result = node.store.read(dead_letter_topic(GROUP), 0, 0)
    return [message for run in result.runs for message in opened(run)]


@on_loop
async def test_a_message_that_failed_too_often_is_a_dead_letter_with_its_reason() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b")
    await node.broker.receiving._core.writer.write(
        Command(put_group=PutGroup(group=GROUP, retries_max=2))
    )
    attempts = []
    for _ in range(3):
        given = await receive(node)
        attempts += [one.attempt for one in given if b"a" in bodies([one])]
        await ack(node, handles(given)[1:])
        await nack(node, handles(given)[:1], 0, "no luck")
    assert attempts == [1, 2, 3]
    assert await receive(node) == []
    (letter,) = await dead(node)
    assert (letter.body, letter.origin.topic, letter.origin.queue_offset) == (b"a", TOPIC, 0)
    assert (letter.origin.attempts, letter.origin.reason) == (3, "no luck")
    assert node.committed(GROUP)[QUEUE] == 2
    leases = node.machine.state.leases.get(GROUP, QUEUE)
    assert leases is not None
    assert leases.ranges == []


@on_loop
async def test_a_message_never_acknowledged_in_time_is_a_dead_letter_once() -> None:
    node = Node(retries_max=1)
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(5)])
    for _ in range(2):
        assert len(bodies(await receive(node))) == 5
        node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []
    for _ in range(3):
        node.broker.tick()
        await turns(100)
    assert [message.body for message in await dead(node)] == [b"%d" % i for i in range(5)]
    assert "2 times" in (await dead(node))[0].origin.reason
    assert node.committed(GROUP)[QUEUE] == 5
    again = restarted(node)
    assert await receive(again) == []
    again.broker.tick()
    await turns(100)
    assert len(await dead(again)) == 5


@on_loop
async def test_a_message_whose_group_allows_more_retries_meanwhile_is_no_dead_letter() -> None:
    node = Node(retries_max=0)
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a")
    await receive(node)
    node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []
    more = Command(put_group=PutGroup(group=GROUP, retries_max=5))
    await node.broker.receiving._core.writer.write(more)
    node.broker.tick()
    await turns(100)
    (again,) = await receive(node)
    assert (bodies([again]), again.attempt) == ([b"a"], 2)
    assert node.ends(dead_letter_topic(GROUP), 1) == [0]


@on_loop
async def test_more_dead_letters_than_fit_one_entry_are_several() -> None:
    node = Node(retries_max=0)
    await node.topic(TOPIC, 1)
    for _ in range(4):
        await node.send(TOPIC, *[bytes(3_000)] * 100)
    assert len(bodies(await receive(node, messages_max=1_000))) == 400
    node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []
    for _ in range(30):
        node.broker.tick()
        await turns(50)
    end = node.broker.groups.extent(Queue(dead_letter_topic(GROUP), 0))[1]
    assert end == 400
    assert node.committed(GROUP)[QUEUE] == 400


@on_loop
async def test_a_dead_letter_frees_its_key() -> None:
    node = Node(retries_max=0)
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"))
    assert bodies(await receive(node, is_ordered=True)) == [b"k1"]
    node.pass_time(INVISIBLE_MS)
    assert await receive(node, is_ordered=True) == []
    node.broker.tick()
    await turns(100)
    assert bodies(await receive(node, is_ordered=True)) == [b"k2"]
    assert [message.body for message in await dead(node)] == [b"k1"]


# -- one atom with batches ------------------------------------------------------------------------


class Made:
    """`AtomicBatches` that are new, refused with an error, or stored before."""

    def __init__(
        self, batches: list[Batch], before: list[StoredAt] | MqError | None = None
    ) -> None:
        self.batches = batches
        self._before = before

    def stored_before(self) -> list[StoredAt] | None:
        if isinstance(self._before, MqError):
            raise self._before
        return self._before

    def begin(self) -> None:
        pass

    def end(self, stored: list[StoredAt], error: MqError | None) -> None:
        pass


@on_loop
async def test_handles_and_batches_are_one_atom_or_nothing() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.topic("out", 1)
    await node.send(TOPIC, b"a", b"b")
    receiving = node.broker.receiving
    shown = handles(await receive(node))
    made = [batch("out", b"A"), batch("out", b"B")]
    stored = await soon(receiving.ack_atomically(GROUP, shown, Made(made)))
    assert [one.queue_offset for one in stored] == [0, 1]
    with pytest.raises(IllegalHandle, match="handle 0 of 2"):
        await soon(receiving.ack_atomically(GROUP, shown, Made(made)))
    large = Made([batch("out", bytes(5 << 20 >> 1))] * 2)
    with pytest.raises(MessageTooLarge):
        await soon(receiving.ack_atomically(GROUP, shown, large))
    assert node.ends("out", 1) == [2]
    assert node.committed(GROUP)[QUEUE] == 2


@on_loop
async def test_batches_may_be_refused_or_stored_before() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a")
    receiving = node.broker.receiving
    shown = handles(await receive(node))
    with pytest.raises(IllegalSequence):
        await soon(receiving.ack_atomically(GROUP, shown, Made([], IllegalSequence("no"))))
    assert await soon(receiving.ack_atomically(GROUP, shown, Made([], []))) == []
    assert await ack(node, shown) == [True]


@on_loop
async def test_several_atoms_of_one_turn_know_their_own_batches() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.topic("out", 3)
    await node.send(TOPIC, *[b"%d" % i for i in range(3)])
    receiving = node.broker.receiving
    shown = handles(await receive(node))
    stored = await soon(
        asyncio.gather(
            *(
                receiving.ack_atomically(GROUP, [handle], Made([batch("out", b"x", queue_id=at)]))
                for at, handle in enumerate(shown)
            )
        )
    )
    assert [[one.queue_id for one in each] for each in stored] == [[0], [1], [2]]


@on_loop
async def test_start_at_a_time_and_latest() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"old")
    node.pass_time(1_000)
    await node.send(TOPIC, b"new")
    given = await receive(node, start=Start(at_ms=node.now_ms))
    assert bodies(given) == [b"new"]
