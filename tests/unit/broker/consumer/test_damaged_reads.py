"""Readers of messages that are damaged on this node: sent elsewhere, held, or led past them."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.pulling import Query
from mq.broker.consumer.subscriber import Assigned, CacheLimits, Delivered, Redirected, Subscriber
from mq.broker.contracts import Peer
from mq.broker.queue import Queue
from mq.broker.receive.grants import GrantedRun
from mq.errors import MessagesDamaged
from mq.store.damage import DamageKind
from mq.store.reading import Status
from mq.wire.v1.consumer_pb2 import Filter
from tests.support.consensus import Node, on_loop, soon
from tests.support.stores import messages_in
from tests.unit.broker.receive.receive_scene import receive, waiting

A, B = Queue("t", 0), Queue("t", 1)
EVERYTHING = compile_filter(Filter())


class Damaged(Node):
    damaged_at = 0, 0


async def damaged(*, followers: bool = True) -> Damaged:
    """Queue A has three entries of ten messages, the second one is damaged; B has one of ten."""
    node = Damaged()
    await node.topic("t")
    bodies = [b"%d" % at * 40 for at in range(30)]
    for at in range(0, 30, 10):
        await node.send("t", *bodies[at : at + 10])
        if at == 10:
            node.damaged_at = node.store.log.place_of(node.store.log.last_index)
    await node.send("t", *bodies[:10], queue_id=1)
    node.consensus.seen = [Peer("node-0", "here:8081", "")]
    if followers:
        last_index = node.store.log.last_index
        node.consensus.seen.append(Peer("b", "b:8081", "", match_index=last_index))
    node.broker.tick()
    flip(node)
    return node


def flip(node: Damaged) -> None:
    """Damages it, or mends it. Nothing is known of any entry."""
    (info,) = node.store.log.segments()
    node.vfs.flip_bit(info.path, node.damaged_at[1] - 20)
    node.store.log.verified.start_at(node.store.log.end_offset)


def lose(node: Damaged) -> None:
    with pytest.raises(MessagesDamaged):
        node.store.read("t", 0, 10)
    (found,) = node.store.damage.records()
    node.store.damage.lose(found.path, found.start, "t/0: 10 to 19")


def query(queue_offset: int) -> Query:
    return Query(A, queue_offset, EVERYTHING)


@on_loop
async def test_a_plain_pull_gets_what_is_intact_and_then_an_error_that_a_retry_mends() -> None:
    node = await damaged()
    pull = node.broker.puller.pull
    result = await soon(pull(query(0), 0.0))
    assert (len(messages_in(result)), result.next_offset) == (10, 10)
    with pytest.raises(MessagesDamaged) as raised:
        await soon(pull(query(10), 0.0))
    assert raised.value.retryable
    assert node.store.damage.open_count(DamageKind.LOG) == 1
    flip(node)
    assert len(messages_in(await soon(pull(query(10), 0.0)))) == 20


@on_loop
async def test_a_reader_of_any_replica_is_sent_to_a_follower() -> None:
    node = await damaged()
    pulled = await soon(node.broker.puller.pull_anywhere(query(12), 5.0, ""))
    assert pulled.read_from.node_id == "b"
    result = pulled.result
    assert (result.status, result.runs, result.next_offset, result.end) == (Status.END, [], 12, 30)


@on_loop
async def test_a_reader_of_any_replica_hears_of_it_when_there_is_no_follower() -> None:
    node = await damaged(followers=False)
    with pytest.raises(MessagesDamaged):
        await soon(node.broker.puller.pull_anywhere(query(12), 5.0, ""))


@on_loop
async def test_a_damaged_follower_sends_its_readers_to_the_leader() -> None:
    node = await damaged()
    node.consensus.depose()
    node.broker.tick()
    pulled = await soon(node.broker.puller.pull_anywhere(query(12), 5.0, ""))
    assert (pulled.read_from.node_id, pulled.result.runs) == ("other", [])


def subscriber(node: Damaged, *, takes_redirects: bool = True) -> Subscriber:
    one = Subscriber(
        "g", "m", {"t": EVERYTHING}, CacheLimits(), node.broker.puller, node.broker.arrivals
    )
    if takes_redirects:
        one.allow_redirects(node.broker.replicas, "")
    return one


async def delivered(one: Subscriber) -> tuple[Queue, list[int]]:
    out = await soon(one.next())
    assert isinstance(out, Delivered), out
    offsets = [run.queue_offset + at for run in out.result.runs for at in range(run.message_count)]
    return out.queue, offsets


@on_loop
async def test_a_stream_is_redirected_where_the_damage_begins() -> None:
    one = subscriber(await damaged())
    one.assign(1, {A: 0})
    assert isinstance(await soon(one.next()), Assigned)
    assert await delivered(one) == (A, list(range(10)))
    out = await soon(one.next())
    assert isinstance(out, Redirected), out
    assert (out.queue, out.queue_offset, out.to.node_id) == (A, 10, "b")


@on_loop
async def test_a_cold_read_is_redirected_as_well() -> None:
    node = await damaged()
    node.broker.replicas.backlog_bytes = 100
    node.vfs.is_cold = True
    node.consensus.seen.pop()
    node.broker.tick()
    one = subscriber(node)
    one.assign(1, {A: 10})
    assert isinstance(await soon(one.next()), Assigned)
    node.consensus.seen.append(Peer("b", "b:8081", "", match_index=node.store.log.last_index))
    node.broker.tick()
    out = await soon(one.next())
    assert isinstance(out, Redirected), out


@pytest.mark.parametrize("takes_redirects", [True, False])
@on_loop
async def test_a_queue_that_cannot_be_redirected_is_held_and_the_others_go_on(
    takes_redirects: bool,
) -> None:
    node = await damaged(followers=not takes_redirects)
    one = subscriber(node, takes_redirects=takes_redirects)
    one.assign(1, {A: 10, B: 0})
    assert isinstance(await soon(one.next()), Assigned)
    assert await delivered(one) == (B, list(range(10)))
    flip(node)
    assert await delivered(one) == (A, list(range(10, 30)))


@on_loop
async def test_a_stream_is_led_past_what_is_lost() -> None:
    node = await damaged(followers=False)
    lose(node)
    one = subscriber(node)
    one.assign(1, {A: 0})
    assert isinstance(await soon(one.next()), Assigned)
    assert await delivered(one) == (A, list(range(10)))
    assert await delivered(one) == (A, list(range(20, 30)))
    assert node.broker.puller.lost_total == 10


@on_loop
async def test_a_pull_is_led_past_what_is_lost() -> None:
    node = await damaged(followers=False)
    lose(node)
    result = await soon(node.broker.puller.pull(query(13), 5.0))
    assert result.runs[0].queue_offset == 20
    assert node.broker.puller.lost_total == 7


@on_loop
async def test_receiving_goes_on_with_other_queues_and_waits_for_the_mended_one() -> None:
    node = await damaged()
    given = await receive(node, topic="t", messages_max=100)
    got = {(one.queue, one.run.queue_offset, one.run.message_count) for one in given}
    assert got == {(A, 0, 10), (B, 0, 10)}
    task = waiting(node, topic="t", messages_max=100)
    flip(node)
    rest = await until(node, task)
    assert sum(one.run.message_count for one in rest) == 20


@on_loop
async def test_receiving_is_led_past_what_is_lost() -> None:
    node = await damaged(followers=False)
    lose(node)
    given = await receive(node, topic="t", messages_max=100) + await receive(
        node, topic="t", messages_max=100
    )
    offsets = [(one.run.queue_offset, one.run.message_count) for one in given if one.queue == A]
    assert offsets == [(0, 10), (20, 10)]


async def until(node: Damaged, task: asyncio.Task[list[GrantedRun]]) -> list[GrantedRun]:
    """While time goes on."""
    async with asyncio.timeout(30):
        while not task.done():
            node.broker.tick()
            await asyncio.sleep(0.005)
    return task.result()
