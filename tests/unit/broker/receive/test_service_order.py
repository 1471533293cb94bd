"""Receive in the order of keys: one message of a key at a time, over all receivers."""

from __future__ import annotations

from typing import Any

import pytest

from mq.broker.queue import Queue
from mq.wire.v1.consumer_pb2 import Filter
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, on_loop, soon, turns
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
    waiting,
)

QUEUE = Queue(TOPIC, 0)


@on_loop
async def test_of_a_key_one_message_at_a_time_and_others_meanwhile() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"), ("l", b"l1"), ("", b"free"), ("l", b"l2"))
    first = await receive(node, is_ordered=True, member_id="a")
    assert bodies(first) == [b"k1", b"l1", b"free"]
    assert await receive(node, is_ordered=True, member_id="b") == []
    shown = handles(first)
    await ack(node, shown[:1])
    assert bodies(await receive(node, is_ordered=True, member_id="b")) == [b"k2"]
    await ack(node, shown[1:2])
    assert bodies(await receive(node, is_ordered=True, member_id="a")) == [b"l2"]


@on_loop
async def test_a_message_that_failed_holds_its_key() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"), ("l", b"l1"))
    first = await receive(node, is_ordered=True)
    await nack(node, handles(first)[:1], 5_000)
    await ack(node, handles(first)[1:])
    assert await receive(node, is_ordered=True) == []
    call = waiting(node, is_ordered=True)
    await turns()
    node.pass_time(5_000)
    again = await soon(call)
    assert (bodies(again), again[0].attempt) == ([b"k1"], 2)
    await ack(node, handles(again))
    assert bodies(await receive(node, is_ordered=True)) == [b"k2"]


@on_loop
async def test_a_waiting_ordered_receive_is_woken_by_an_acknowledgement() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"))
    first = await receive(node, is_ordered=True, member_id="a")
    call = waiting(node, is_ordered=True, member_id="b")
    await turns()
    assert not call.done()
    await ack(node, handles(first))
    assert bodies(await soon(call)) == [b"k2"]


@on_loop
async def test_a_new_leader_knows_the_keys_in_flight() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"), ("l", b"l1"), ("k", b"k3"))
    first = await receive(node, is_ordered=True)
    assert bodies(first) == [b"k1", b"l1"]
    node = restarted(node)
    assert await receive(node, is_ordered=True) == []
    await ack(node, handles(first)[:1])
    assert bodies(await receive(node, is_ordered=True)) == [b"k2"]


@on_loop
async def test_a_key_that_is_held_up_holds_up_others_only_beyond_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq.broker.receive.grants.WINDOW_MESSAGES", 100)
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, *[("k", b"k")] * 120, ("l", b"far"))
    first = await receive(node, is_ordered=True)
    assert bodies(first) == [b"k"]
    # Within the window all are of the same key: nothing to give, and no more is looked at.
    assert await receive(node, is_ordered=True) == []
    leases = node.machine.state.leases.get(GROUP, QUEUE)
    assert leases is not None
    assert leases.next == 100
    assert len(leases.ranges) == 2
    for _ in range(20):
        assert bodies(first) == [b"k"]
        await ack(node, handles(first))
        first = await receive(node, is_ordered=True)
    await ack(node, handles(first))
    assert bodies(await receive(node, is_ordered=True)) == [b"k", b"far"]


@on_loop
async def test_messages_that_cannot_be_granted_wake_no_receive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq.broker.receive.grants.WINDOW_MESSAGES", 50)
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, *[("k", b"k")] * 60)
    first = await receive(node, is_ordered=True)
    calls = [waiting(node, is_ordered=True, member_id=str(at)) for at in range(20)]
    await turns(500)
    decisions = 0
    decide = node.broker.receiving.grant

    def counting(*arguments: Any) -> Any:
        nonlocal decisions
        decisions += 1
        return decide(*arguments)

    monkeypatch.setattr(node.broker.receiving, "grant", counting)
    for _ in range(10):
        await send_keyed(node, ("k", b"k"), ("l", b"l"))
    await turns(100)
    assert decisions == 0
    await ack(node, handles(first))
    await turns(100)
    assert [bodies(call.result()) for call in calls if call.done()] == [[b"k"]]
    assert decisions <= 3
    for call in calls:
        call.cancel()


@on_loop
async def test_filtered_messages_do_not_fill_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq.broker.receive.grants.WINDOW_MESSAGES", 50)
    node = Node()
    await node.topic(TOPIC, 1)
    for _ in range(4):
        await node.send(TOPIC, messages=[Message(tag="y", ordering_key="k")] * 100)
    await node.send(TOPIC, messages=[Message(body=b"x", tag="x", ordering_key="k")])
    given = await receive(node, is_ordered=True, filter=Filter(tags="x"))
    assert bodies(given) == [b"x"]


@on_loop
async def test_messages_in_order_are_filtered_too() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    messages = [
        Message(body=b"%d" % i, tag="xy"[i % 2], ordering_key="k" if i < 4 else "")
        for i in range(8)
    ]
    await node.send(TOPIC, messages=messages)
    given = await receive(node, is_ordered=True, filter=Filter(tags="x"))
    assert bodies(given) == [b"0", b"4", b"6"]
    await ack(node, handles(given))
    given = await receive(node, is_ordered=True, filter=Filter(tags="x"))
    assert bodies(given) == [b"2"]
    await ack(node, handles(given))
    assert node.committed(GROUP)[QUEUE] >= 7


@on_loop
async def test_a_filter_that_changed_counts_for_what_was_given_out_before() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    messages = [Message(body=b"%d" % i, tag="xy"[i % 2], ordering_key="k") for i in range(4)]
    await node.send(TOPIC, messages=messages)
    for is_ordered in (True, False):
        await node.broker.groups.reset(GROUP, {QUEUE: 0})
        assert b"0" in bodies(await receive(node, is_ordered=is_ordered))
        node.pass_time(INVISIBLE_MS)
        given = await receive(node, is_ordered=is_ordered, filter=Filter(tags="y"))
        assert bodies(given) == ([b"1"] if is_ordered else [b"1", b"3"])
        found = node.machine.state.leases.get(GROUP, QUEUE)
        assert found is not None
        assert found.done_to == 1


@on_loop
async def test_a_sql_filter_gives_no_more_than_was_asked_for() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    messages = [Message(body=b"%d" % i, properties={"n": str(i % 3)}) for i in range(30)]
    for at in range(0, 30, 7):
        await node.send(TOPIC, messages=messages[at : at + 7])
    seen = []
    while given := await receive(node, filter=Filter(sql="n = 1"), messages_max=2):
        assert len(bodies(given)) <= 2
        seen += bodies(given)
    assert seen == [b"%d" % i for i in range(30) if i % 3 == 1]
