"""Receive and acknowledge while things happen around it: priorities, limits, crashes, retention,
deleted topics, moved groups.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from mq.broker.consumer.groups import Start
from mq.broker.queue import Queue
from mq.broker.state.leases import Leases
from mq.errors import MessageTooLarge
from mq.wire.v1.cluster_pb2 import TopicType
from mq.wire.v1.state_pb2 import Command, PutTopic
from tests.support.consensus import Node, eventually, on_loop, soon, turns
from tests.unit.broker.receive.receive_scene import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    ack,
    bodies,
    handles,
    receive,
    restarted,
    send_keyed,
    waiting,
)

QUEUE = Queue(TOPIC, 0)


# -- priorities and limits ------------------------------------------------------------------------


@on_loop
async def test_high_priority_comes_first_and_low_never_starves() -> None:
    node = Node()
    topic = PutTopic(
        topic=TOPIC,
        type=TopicType.TOPIC_NORMAL,
        write_queues=4,
        read_queues=4,
        is_readable=True,
        is_writable=True,
        priorities=2,
    )
    await node.broker.receiving._core.writer.write(Command(put_topic=topic))
    for queue_id in range(4):
        await node.send(TOPIC, *[b"%d" % queue_id] * 30, queue_id=queue_id)
    seen = [int(bodies(await receive(node, messages_max=1))[0]) % 2 for _ in range(60)]
    assert seen.count(0) == 6
    assert seen[:9] == [1] * 9
    assert seen[9] == 0


@on_loop
async def test_messages_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.broker.receive.grants.IN_HAND_MAX", 20)
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(50)])
    first = await receive(node, messages_max=15)
    assert len(bodies(first)) == 15
    assert len(bodies(await receive(node, messages_max=15))) == 5
    call = waiting(node, messages_max=15)
    await turns()
    assert not call.done()
    await ack(node, handles(first)[3:5])
    assert bodies(await soon(call)) == [b"20", b"21"]


@on_loop
async def test_an_answer_stays_within_its_bytes_but_has_one_message() -> None:
    node = Node()
    await node.topic(TOPIC, 2)
    await node.send(TOPIC, b"x" * 400, b"y" * 400)
    await node.send(TOPIC, b"z" * 400, queue_id=1)
    sizes = []
    while given := await receive(node, bytes_max=500):
        sizes.append([len(one) for one in bodies(given)])
    assert sizes == [[400], [400], [400]]
    node.pass_time(INVISIBLE_MS)
    assert [len(one) for one in bodies(await receive(node, bytes_max=100))] == [400]


@on_loop
async def test_a_group_begins_in_very_many_queues_by_several_entries() -> None:
    node = Node()
    node.settings.config = msgspec.structs.replace(
        node.settings.config,
        store=msgspec.structs.replace(node.settings.config.store, entry_bytes_max=16 << 10),
    )
    await node.topic(TOPIC, 100)
    for queue_id in (0, 99):
        await node.send(TOPIC, b"old", queue_id=queue_id)
    assert await receive(node, start=Start()) == []
    begun = [queue for queue in range(100) if (GROUP, Queue(TOPIC, queue)) in leases(node)]
    assert begun == list(range(100))
    assert sum(node.committed(GROUP).values()) == 2
    await node.broker.catalog.alter(TOPIC, read_queues=102, write_queues=102)
    for queue_id in (0, 99, 101):
        await node.send(TOPIC, b"new", queue_id=queue_id)
    seen: list[bytes] = []
    while given := await receive(node, start=Start()):
        seen += bodies(given)
    assert seen == [b"new"] * 3


@on_loop
async def test_more_handles_than_fit_one_entry_are_refused_alone() -> None:
    node = Node()
    node.settings.config = msgspec.structs.replace(
        node.settings.config,
        store=msgspec.structs.replace(node.settings.config.store, entry_bytes_max=8 << 10),
    )
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"x"] * 500)
    shown = handles(await receive(node, messages_max=500))
    many, few = await asyncio.gather(
        ack(node, shown[::2]), ack(node, shown[1:2]), return_exceptions=True
    )
    assert isinstance(many, MessageTooLarge)
    assert few == [True]
    assert await ack(node, shown) == [True, False, *[True] * 498]


def leases(node: Node) -> Leases:
    return node.machine.state.leases


# -- crashes, retention, moves --------------------------------------------------------------------


@on_loop
async def test_a_crash_redelivers_only_what_was_not_acknowledged() -> None:
    node = Node()
    await node.topic(TOPIC, 2)
    for queue_id in range(2):
        await node.send(TOPIC, *[b"%d-%d" % (queue_id, i) for i in range(5)], queue_id=queue_id)
    shown = handles(await receive(node))
    await ack(node, shown[::2])
    node = restarted(node)
    # It stays in flight, and its handles are good.
    assert await receive(node) == []
    await ack(node, shown[1:2])
    node = restarted(node)
    node.pass_time(INVISIBLE_MS)
    again = await receive(node)
    assert len(bodies(again)) == 4
    assert {one.attempt for one in again} == {2}


@on_loop
async def test_an_acknowledgement_in_the_log_counts_also_without_an_answer() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b")
    shown = handles(await receive(node))
    node.consensus.is_held = True
    unheard = ack(node, shown[:1])
    task = asyncio.ensure_future(unheard)
    await turns()
    node.store.log.sync()
    task.cancel()
    node = restarted(node)
    assert await ack(node, shown) == [False, True]
    node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []


@on_loop
async def test_messages_dropped_by_retention_are_done() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(10)])
    shown = handles(await receive(node, messages_max=6))
    node.store.derived.trim(TOPIC, 0, 4)
    await ack(node, shown[1:2])
    node.pass_time(INVISIBLE_MS)
    assert bodies(await receive(node)) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    leases = node.machine.state.leases.get(GROUP, QUEUE)
    assert leases is not None
    assert leases.done_to == 4
    node.store.derived.trim(TOPIC, 0, 10)
    node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []
    assert node.committed(GROUP)[QUEUE] == 10


@on_loop
async def test_a_message_dropped_by_retention_holds_no_key() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"), ("k", b"k3"))
    assert bodies(await receive(node, is_ordered=True)) == [b"k1"]
    node = restarted(node)
    node.store.derived.trim(TOPIC, 0, 2)
    assert bodies(await receive(node, is_ordered=True)) == [b"k3"]


@on_loop
async def test_a_topic_that_is_deleted_and_made_again_is_a_new_one() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"old", b"old")
    shown = handles(await receive(node))
    await node.broker.catalog.delete(TOPIC)
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"new")
    assert await ack(node, shown) == [False, False]
    assert bodies(await receive(node)) == [b"new"]


@on_loop
async def test_a_group_that_is_moved_starts_there_and_old_handles_are_void() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(6)])
    shown = handles(await receive(node))
    await ack(node, shown[:3])
    call = waiting(node)
    await turns()
    await node.broker.groups.reset(GROUP, {QUEUE: 1})
    assert bodies(await soon(call)) == [b"%d" % i for i in range(1, 6)]
    assert await ack(node, shown[3:]) == [False] * 3


@on_loop
async def test_a_move_wins_over_what_was_decided_before_it_was_applied() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(6)])
    shown = handles(await receive(node, messages_max=3))
    node.consensus.is_held = True
    reset = asyncio.ensure_future(node.broker.groups.reset(GROUP, {QUEUE: 1}))
    await eventually(lambda: len(node.consensus._waiting) == 1)
    # 3, 4 and 5 are decided now, and stand behind the reset in the log.
    call, late = waiting(node), asyncio.ensure_future(ack(node, shown))
    await eventually(lambda: len(node.consensus._waiting) == 2)
    node.consensus.is_held = False
    node.consensus.commit()
    await soon(reset)
    await soon(late)
    given = await soon(call)
    assert bodies(given) == [b"%d" % i for i in range(1, 6)]
    assert node.committed(GROUP)[QUEUE] == 1
    assert await ack(node, handles(given)) == [True] * 5


@on_loop
async def test_changes_that_were_decided_on_another_place_change_nothing() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(6)])
    given = await receive(node)
    receiving = node.broker.receiving
    command = next(
        context.command  # type: ignore[attr-defined]
        for _, context in reversed(node.consensus.proposed)
    )
    await node.broker.groups.reset(GROUP, {QUEUE: 1})
    late = Command.FromString(command.SerializeToString())
    late.change_leases.queues[0].next = 3
    await receiving._core.writer.write(late)
    assert node.committed(GROUP)[QUEUE] == 1
    await node.broker.catalog.delete_group(GROUP, 0)
    await receiving._core.writer.write(late)
    assert GROUP not in node.machine.state.offsets
    assert await ack(node, handles(given)) == [False] * 6


@on_loop
async def test_a_queue_that_is_being_rebuilt_is_received_from_a_moment_later() -> None:
    node = Node()
    await node.topic(TOPIC, 2)
    for queue_id in range(2):
        await node.send(TOPIC, b"%d" % queue_id, queue_id=queue_id)
    node.store.checkpoint()
    node.vfs.flip_bit(f"/data/consumequeue/{TOPIC}/0/{0:020d}", 5)
    assert bodies(await receive(node)) == [b"1"]
    assert bodies(await receive(node, wait_s=5.0)) == [b"0"]
