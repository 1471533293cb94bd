"""Pulls that any node may answer: what a follower shows, and where it sends its readers."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.consumer.filters import CompiledFilter, compile_filter
from mq.broker.consumer.pulling import Pulled, Query
from mq.broker.contracts import Leading, Peer
from mq.broker.queue import Queue
from mq.errors import NotLeader, TopicNotFound
from mq.store.reading import Status
from mq.wire.v1.consumer_pb2 import Filter
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, on_loop, soon, turns
from tests.support.stores import messages_in

HERE = Queue("t", 0)
EVERYTHING = compile_filter(Filter())
LONG_S = 60.0
BACKLOG = 4000
# A message of it with its frame; a hundred are twice a backlog and more.
BODY = bytes(90)


def query(queue_offset: int = 0, wanted: CompiledFilter = EVERYTHING, **limits: int) -> Query:
    return Query(HERE, queue_offset, wanted, **limits)


async def filled(count: int = 100, zone: str = "") -> Node:
    """A leader with a follower `b` in `zone` that has everything."""
    node = Node(backlog_bytes=BACKLOG)
    await node.topic("t")
    for at in range(0, count, 10):
        await node.send("t", *[BODY] * min(10, count - at))
    follows(node, zone)
    return node


def follows(node: Node, zone: str = "") -> None:
    last = node.store.log.last_index
    node.consensus.seen = [
        Peer("node-0", "here:8081", "east"),
        Peer("b", "b:8081", zone, "outside:1", last),
        Peer("other", "other:8081", "west"),
    ]
    node.broker.tick()


def deposed(node: Node) -> Node:
    node.consensus.depose()
    node.broker.tick()
    return node


async def pull(node: Node, asked: Query, wait_s: float = 0.0, zone: str = "") -> Pulled:
    pulled = await soon(node.broker.puller.pull_anywhere(asked, wait_s, zone))
    assert isinstance(pulled, Pulled)
    return pulled


def place(pulled: Pulled) -> str:
    return pulled.read_from.node_id if pulled.read_from else ""


def count(pulled: Pulled) -> int:
    return len(messages_in(pulled.result))


# -- on the leader ---------------------------------------------------------------------------------


@on_loop
async def test_a_reader_far_behind_gets_messages_and_the_name_of_a_follower() -> None:
    node = await filled()
    pulled = await pull(node, query(messages_max=5))
    assert (count(pulled), place(pulled)) == (5, "b")
    assert pulled.read_from is not None
    assert pulled.read_from.external_address == "outside:1"
    near = await pull(node, query(90, messages_max=5))
    assert (count(near), place(near)) == (5, "")


@on_loop
async def test_a_reader_whose_zone_has_a_follower_is_sent_there_with_its_next_messages() -> None:
    node = await filled(zone="north")
    assert place(await pull(node, query(99), zone="north")) == "b"
    assert place(await pull(node, query(99), zone="east")) == "", "the leader's own"
    assert place(await pull(node, query(99), zone="south")) == ""
    # At the end it waits here: no reader is sent to and fro for nothing.
    waiting = asyncio.create_task(pull(node, query(100), LONG_S, "north"))
    await turns()
    assert not waiting.done()
    await node.send("t", b"news")
    pulled = await waiting
    assert (count(pulled), place(pulled)) == (1, "b")


@on_loop
async def test_a_filter_that_finds_nothing_far_behind_is_no_reason_to_stay() -> None:
    node = await filled()
    wanted = compile_filter(Filter(sql="a = 1"))
    pulled = await pull(node, query(wanted=wanted, messages_max=5), LONG_S)
    assert (pulled.result.status, pulled.result.next_offset) == (Status.END, 5)
    assert place(pulled) == "b"


@on_loop
async def test_errors_are_the_leaders_to_say() -> None:
    node = await filled()
    await node.broker.catalog.delete("t")
    with pytest.raises(TopicNotFound):
        await pull(node, query())
    follower = deposed(node)
    pulled = await pull(follower, query(7), LONG_S)
    assert (pulled.result.status, pulled.result.next_offset) == (Status.END, 7)
    assert place(pulled) == "other"


# -- on a follower ---------------------------------------------------------------------------------


@on_loop
async def test_a_follower_serves_far_readers_and_sends_near_ones_back() -> None:
    node = deposed(await filled())
    reads = node.broker.puller
    pulled = await pull(node, query(messages_max=5))
    assert (count(pulled), place(pulled)) == (5, "")
    assert reads.follower_reads_total == 1
    # 80 messages of about 100 bytes to go: more than half a backlog; then 15: less.
    assert place(await pull(node, query(15, messages_max=5))) == ""
    back = await pull(node, query(80, messages_max=5))
    assert (count(back), place(back)) == (5, "other")
    end = await pull(node, query(100), LONG_S)
    assert (end.result.status, place(end)) == (Status.END, "other"), "it does not wait here"
    assert reads.follower_reads_total == 3


@on_loop
async def test_a_follower_serves_its_own_zone_up_to_the_end_and_beyond() -> None:
    node = deposed(await filled())
    pulled = await pull(node, query(95), zone="east")
    assert (count(pulled), place(pulled)) == (5, "")
    waiting = asyncio.create_task(pull(node, query(100), LONG_S, "east"))
    await turns()
    assert not waiting.done()
    node.consensus.is_leader = True  # so that something is written; it is applied below
    node.consensus.is_held = True
    sending = asyncio.create_task(node.send("t", b"news"))
    await turns()
    node.consensus.depose()
    await turns()
    assert not waiting.done(), "it is not committed"
    node.consensus.commit()
    assert count(await waiting) == 1
    await sending


@on_loop
async def test_a_follower_shows_nothing_that_is_not_committed() -> None:
    node = await filled(10)
    node.consensus.is_held = True
    sending = asyncio.create_task(node.send("t", b"not yet"))
    await turns()
    deposed(node)
    assert node.store.log.last_index > node.store.applied_index
    pulled = await pull(node, query(10), zone="east")
    assert (pulled.result.status, pulled.result.end) == (Status.END, 10)
    assert count(await pull(node, query(0))) == 10
    node.consensus.commit()
    await sending
    assert [m.body for m in messages_in((await pull(node, query(10))).result)] == [b"not yet"]


@pytest.mark.parametrize("queue_offset", [101, 5000])
@on_loop
async def test_a_message_that_a_follower_lacks_is_no_error(queue_offset: int) -> None:
    node = deposed(await filled())
    pulled = await pull(node, query(queue_offset), LONG_S, "east")
    result = pulled.result
    assert (result.status, result.next_offset) == (Status.END, queue_offset)
    assert place(pulled) == "other"
    unwritten = Query(Queue("t", 3), queue_offset, EVERYTHING)
    pulled = await pull(node, unwritten, LONG_S, "east")
    assert (pulled.result.next_offset, place(pulled)) == (queue_offset, "other")


@on_loop
async def test_messages_dropped_by_the_follower_alone_are_read_from_the_leader() -> None:
    node = await filled()
    node.store.derived.trim("t", 0, 50)
    pulled = await pull(deposed(node), query(20), LONG_S, "east")
    assert (pulled.result.status, pulled.result.next_offset) == (Status.END, 20)
    assert place(pulled) == "other"


@on_loop
async def test_a_node_without_a_leader_sends_all_readers_away() -> None:
    node = deposed(await filled())
    waiting = asyncio.create_task(pull(node, query(100), LONG_S, "east"))
    await turns()
    assert not waiting.done()
    node.consensus.followed = Leading(9, None, None)
    node.broker.tick()
    with pytest.raises(NotLeader):
        await soon(waiting)
    with pytest.raises(NotLeader):
        await pull(node, query())


@on_loop
async def test_a_node_that_stops_sends_its_readers_to_the_leader() -> None:
    node = deposed(await filled())
    waiting = asyncio.create_task(pull(node, query(100), LONG_S, "east"))
    await turns()
    assert not waiting.done()
    node.broker.drain()
    pulled = await waiting
    assert (pulled.result.status, pulled.result.next_offset) == (Status.END, 100)
    assert place(pulled) == "other"


@on_loop
async def test_a_pull_that_waits_at_the_leader_ends_when_it_steps_down() -> None:
    node = await filled()
    waiting = asyncio.create_task(node.broker.puller.pull(query(100), LONG_S))
    await turns()
    deposed(node)
    with pytest.raises(NotLeader, match="other:8081"):
        await soon(waiting)


@on_loop
async def test_a_follower_filters_as_the_leader_does() -> None:
    node = Node(backlog_bytes=BACKLOG)
    await node.topic("t")
    messages = [Message(body=BODY, tag="ab"[n % 2], properties={"n": str(n)}) for n in range(100)]
    await node.send("t", messages=messages)
    follows(node)
    wanted = [compile_filter(Filter(tags="b")), compile_filter(Filter(sql="n = 7 OR n = 60"))]
    found = [
        [m.body for m in messages_in(node.broker.puller.read(query(wanted=w)))] for w in wanted
    ]
    deposed(node)
    assert [len(one) for one in found] == [50, 2]
    for one, expected in zip(wanted, found, strict=True):
        pulled = await pull(node, query(wanted=one))
        assert [m.body for m in messages_in(pulled.result)] == expected


# -- positions from elsewhere ----------------------------------------------------------------------


@on_loop
async def test_a_position_that_is_ahead_of_this_node_is_waited_for() -> None:
    node = await filled(10)
    node.consensus.is_held = True
    sending = asyncio.create_task(node.send("t", b"on its way"))
    await turns()
    waiting = asyncio.create_task(node.broker.puller.until_applied({HERE: 11}))
    await turns()
    assert not waiting.done()
    node.consensus.commit()
    await soon(waiting)
    await sending
    # A wrong one delays no reader for long.
    await soon(node.broker.puller.until_applied({HERE: 5000, Queue("t", 1): 1}))
