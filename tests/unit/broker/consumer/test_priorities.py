"""Topics with priorities: how they are made, and that high comes first and low does not starve."""

from __future__ import annotations

from collections import Counter

import pytest

from mq.admin.inspector import topic_info
from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.subscriber import Assigned, CacheLimits, Delivered, Position, Subscriber
from mq.broker.queue import Queue
from mq.errors import IllegalRequest
from mq.wire.v1.consumer_pb2 import Filter
from tests.support.consensus import Node, on_loop, soon

LOW, MIDDLE, HIGH = (Queue("t", at) for at in range(3))
PLAIN = Queue("plain", 0)


@on_loop
async def test_each_priority_has_a_queue() -> None:
    node = Node()
    catalog = node.broker.catalog
    for queues, priorities in ((8, 1), (8, 11), (2, 3)):
        with pytest.raises(IllegalRequest):
            await catalog.create("t", queues, 0, priorities)
    assert "t" not in node.machine.state.topics
    topic = await catalog.create("t", 3, 0, 3)
    assert (topic.priorities, topic_info(topic).priorities) == (3, 3)
    assert [topic.rank(at) for at in range(5)] == [2, 1, 0, 2, 1]
    with pytest.raises(IllegalRequest):
        await catalog.alter("t", write_queues=2)
    assert (await catalog.alter("t", write_queues=6, read_queues=6)).priorities == 3
    node.machine.state.restore(node.machine.state.encode())
    assert node.machine.state.topics.find("t").priorities == 3
    assert (await catalog.create("u", 0, 0, 10)).write_queues == 10, "as many as it needs"


@on_loop
async def test_a_topic_without_priorities_has_one_rank() -> None:
    node = Node()
    topic = await node.broker.catalog.create("t", 4, 0)
    assert [topic.rank(at) for at in range(4)] == [0] * 4
    assert node.machine.state.topics.rank("gone", 3) == 0


async def busy(*queues: Queue) -> Subscriber:
    """A stream of a member that always has room, of queues that have always more."""
    node = Node()
    await node.broker.catalog.create("t", 3, 0, 3)
    await node.topic("plain")
    for queue in queues:
        await node.send(queue.topic, *[b"."] * 400, queue_id=queue.queue_id)
    filters = {topic: compile_filter(Filter()) for topic in ("t", "plain")}
    one = Subscriber(
        "g",
        "m",
        filters,
        CacheLimits(messages=1),
        node.broker.puller,
        node.broker.arrivals,
    )
    one.assign(1, dict.fromkeys((LOW, MIDDLE, HIGH, PLAIN), 0))
    return one


async def served(one: Subscriber, count: int) -> Counter[Queue]:
    """The queues of the next so many deliveries, each of which is done at once."""
    found: Counter[Queue] = Counter()
    while found.total() < count:
        out = await soon(one.next())
        assert isinstance(out, Delivered)
        found[out.queue] += 1
        one.progress([Position(out.queue, out.result.next_offset, out.epoch)])
    return found


@on_loop
async def test_the_client_is_told_the_ranks() -> None:
    one = await busy()
    out = await soon(one.next())
    assert isinstance(out, Assigned)
    assert {at.queue: out.ranks.get(at.queue, 0) for at in out.positions} == {
        LOW: 2,
        MIDDLE: 1,
        HIGH: 0,
        PLAIN: 0,
    }


@on_loop
async def test_high_comes_first_and_low_has_its_share() -> None:
    one = await busy(LOW, HIGH)
    await soon(one.next())
    shares = await served(one, 100)
    assert shares == {HIGH: 90, LOW: 10}


@on_loop
async def test_no_queue_starves_between_the_others() -> None:
    one = await busy(LOW, MIDDLE, HIGH, PLAIN)
    await soon(one.next())
    shares = await served(one, 200)
    assert min(shares[LOW], shares[MIDDLE]) >= 5
    assert shares[HIGH] + shares[PLAIN] >= 170
    assert min(shares[HIGH], shares[PLAIN]) >= 70, "a topic without priorities is as good as high"


@on_loop
async def test_low_is_served_at_once_when_there_is_nothing_else() -> None:
    one = await busy(LOW)
    await soon(one.next())
    assert await served(one, 30) == {LOW: 30}
