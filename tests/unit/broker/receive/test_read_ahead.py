"""Steps through a backlog are what the queue has, however they were read."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.pulling import Query
from mq.broker.queue import Queue
from mq.broker.receive.read_ahead import ReadAhead
from mq.broker.retry.origins import opened
from mq.store.reading import Status
from mq.wire.v1.consumer_pb2 import Filter
from tests.support.consensus import Node, on_loop
from tests.unit.broker.receive.receive_scene import TOPIC, ack, bodies, handles, receive

if TYPE_CHECKING:
    from mq.store.reading import Found, ReadResult

QUEUE = Queue(TOPIC, 0)
EVERYTHING = compile_filter(Filter())


async def backlog(sizes: list[int]) -> Node:
    """A queue of batches of so many messages, each of which is its own number."""
    node = Node()
    await node.topic(TOPIC, 1)
    at = 0
    for size in sizes:
        await node.send(TOPIC, *(b"%d" % number for number in range(at, at + size)))
        at += size
    return node


def numbers(result: ReadResult) -> list[int]:
    return [int(message.body) for run in result.runs for message in opened(run)]


@pytest.mark.parametrize("sizes", [[600], [1] * 300, [7, 1, 40, 2, 300, 3] * 2])
@pytest.mark.parametrize("seed", range(3))
@on_loop
async def test_steps_are_what_the_queue_has(sizes: list[int], seed: int) -> None:
    node, rng = await backlog(sizes), random.Random(seed)
    puller = node.broker.puller
    ahead, at, given, given_bytes = ReadAhead(puller), 0, 0, 0
    located, locate = 0, puller.locate

    def counting(query: Query) -> ReadResult | Found:
        nonlocal located
        located += 1
        return locate(query)

    puller.locate = counting  # type: ignore[method-assign]
    began = puller.messages_total, puller.bytes_total
    steps = 0
    while at < sum(sizes):
        wanted = rng.randint(1, 30)
        result = ahead.read(Query(QUEUE, at, EVERYTHING, messages_max=wanted))
        found = numbers(result)
        assert found == list(range(at, result.next_offset))
        assert 0 < len(found) <= wanted
        assert result.runs[0].queue_offset == at
        at, steps, given = result.next_offset, steps + 1, given + len(found)
        given_bytes += sum(len(run.frames) for run in result.runs)
        if not rng.randrange(20):
            ahead.clear()
    # What is kept and never given is not counted.
    assert (puller.messages_total - began[0], puller.bytes_total - began[1]) == (given, given_bytes)
    assert located < steps / 2


@on_loop
async def test_a_step_elsewhere_a_small_one_and_one_with_a_filter_are_read_as_ever() -> None:
    node = await backlog([200])
    puller = node.broker.puller
    ahead = ReadAhead(puller)
    for at in (0, 10, 20):
        query = Query(QUEUE, at, EVERYTHING, messages_max=10)
        assert numbers(ahead.read(query)) == list(range(at, at + 10))
    # Another reader begins at the start.
    assert numbers(ahead.read(Query(QUEUE, 0, EVERYTHING, messages_max=10))) == list(range(10))
    for at in (10, 20):
        ahead.read(Query(QUEUE, at, EVERYTHING, messages_max=10))
    # One message is given, however few bytes there is room for.
    result = ahead.read(Query(QUEUE, 30, EVERYTHING, 1, 10))
    assert numbers(result) == [30]
    tagged = compile_filter(Filter(tags="none"))
    for at in (31, 31):
        result = ahead.read(Query(QUEUE, at, tagged, messages_max=10))
        assert result.status == Status.NOTHING_MATCHED
    assert ahead.read(Query(QUEUE, 200, EVERYTHING, messages_max=10)).status == Status.END


@on_loop
async def test_large_messages_are_not_kept() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *(bytes([at]) * 20_000 for at in range(60)))
    ahead = ReadAhead(node.broker.puller)
    for at in range(0, 60, 5):
        result = ahead.read(Query(QUEUE, at, EVERYTHING, messages_max=5))
        assert result.next_offset == at + 5
        assert not ahead._steps[QUEUE].rest


@on_loop
async def test_messages_of_a_topic_that_is_gone_are_not_given() -> None:
    node = await backlog([100])
    for _ in range(3):
        given = await receive(node, messages_max=1)
        assert await ack(node, handles(given)) == [True]
    assert node.broker.receiving._ahead._steps
    await node.broker.catalog.delete(TOPIC)
    assert not node.broker.receiving._ahead._steps
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *(b"new %d" % at for at in range(10)))
    found = [bodies(await receive(node, messages_max=1)) for _ in range(10)]
    assert sorted(found) == [[b"new %d" % at] for at in range(10)]


@on_loop
async def test_what_is_kept_is_forgotten_with_the_next_tick() -> None:
    node = await backlog([100])
    for _ in range(3):
        await receive(node, messages_max=1)
    ahead = node.broker.receiving._ahead
    assert ahead._steps[QUEUE].rest
    node.broker.receiving.tick()
    assert not ahead._steps
