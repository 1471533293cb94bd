"""Creating, altering and deleting topics, and what happens to it at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq.broker.queue import Queue
from mq.errors import (
    DiskFull,
    GroupNotEmpty,
    GroupNotFound,
    IllegalGroup,
    IllegalRequest,
    IllegalTopic,
    MqError,
    NotLeader,
    PermissionDenied,
    TopicExists,
    TopicNotFound,
)
from mq.wire.v1.cluster_pb2 import TOPIC_DELAYED
from tests.support.consensus import Node, batch, on_loop, soon, turns


@on_loop
async def test_a_topic_is_created_with_what_was_asked_for() -> None:
    node = Node(default_queues=5)
    catalog = node.broker.catalog
    topic = await catalog.create("t", 3, TOPIC_DELAYED)
    assert (topic.write_queues, topic.read_queues, topic.type) == (3, 3, TOPIC_DELAYED)
    assert topic.created_at_ms == node.now_ms
    assert topic.is_readable
    assert topic.is_writable
    assert not (await catalog.alter("t", is_writable=False)).is_writable
    topic = await catalog.alter("t", is_writable=True)
    assert (await catalog.create("u", 0, 0)).read_queues == 5
    assert (await catalog.create("x", 65_536, 0)).read_queues == 65_536
    await catalog.ensure(["t", "v", "w"])
    assert [one.name for one in node.machine.state.topics] == ["t", "u", "v", "w", "x"]
    assert node.machine.state.topics.find("t") == topic


BAD: list[tuple[str, tuple[Any, ...], dict[str, Any], type[MqError]]] = [
    ("create", ("t", 1, 0), {}, TopicExists),
    ("create", ("a b", 1, 0), {}, IllegalTopic),
    ("create", ("%SYS%X", 1, 0), {}, PermissionDenied),
    ("create", ("new", 1 << 40, 0), {}, IllegalRequest),
    ("create", ("new", 65_537, 0), {}, IllegalRequest),
    ("create", ("new", -1, 0), {}, IllegalRequest),
    ("create", ("new", 1, 77), {}, IllegalRequest),
    ("ensure", (["a b"],), {}, IllegalTopic),
    ("ensure", (["%SYS%X"],), {}, PermissionDenied),
    ("alter", ("new",), {}, TopicNotFound),
    ("alter", ("%SYS%X",), {}, PermissionDenied),
    ("alter", ("t",), {"write_queues": 0}, IllegalRequest),
    ("alter", ("t",), {"read_queues": 0}, IllegalRequest),
    ("alter", ("t",), {"read_queues": 65_537}, IllegalRequest),
    ("alter", ("t",), {"read_queues": 3}, IllegalRequest),
    ("alter", ("t",), {"write_queues": 5}, IllegalRequest),
    ("delete", ("new",), {}, TopicNotFound),
    ("delete", ("a b",), {}, IllegalTopic),
    ("delete_group", ("g", 0), {}, GroupNotFound),
    ("delete_group", ("g", 2), {}, GroupNotEmpty),
    ("delete_group", ("%g", 0), {}, IllegalGroup),
]


@pytest.mark.parametrize(("method", "args", "fields", "error"), BAD)
@on_loop
async def test_an_illegal_change_is_refused_before_it_is_written(
    method: str, args: tuple[Any, ...], fields: dict[str, Any], error: type[MqError]
) -> None:
    node = Node()
    await node.topic("t")
    count = len(node.consensus.proposed)
    with pytest.raises(error):
        await soon(getattr(node.broker.catalog, method)(*args, **fields))
    assert len(node.consensus.proposed) == count


@on_loop
async def test_only_the_leader_changes_topics() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.depose()
    catalog = node.broker.catalog
    for work in (
        catalog.create("u", 1, 0),
        catalog.alter("t"),
        catalog.delete("t"),
        catalog.delete_group("g", 0),
    ):
        with pytest.raises(NotLeader):
            await soon(work)


@on_loop
async def test_a_failed_write_changes_nothing() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.failure = DiskFull("no space")
    catalog = node.broker.catalog
    for work in (catalog.create("u", 1, 0), catalog.alter("t", read_queues=9), catalog.delete("t")):
        with pytest.raises(DiskFull):
            await soon(work)
    assert node.machine.state.topics.find("t").read_queues == 4
    node.consensus.failure = None
    await node.send("t", b"it is not being deleted any more")


@on_loop
async def test_of_many_that_create_a_topic_one_does() -> None:
    node = Node()
    node.consensus.is_held = True
    catalog = node.broker.catalog
    creating = [asyncio.create_task(catalog.create("t", queues, 0)) for queues in (3, 2, 1)]
    ensuring = asyncio.create_task(catalog.ensure(["t"]))
    other = asyncio.create_task(catalog.create("u", 1, 0))
    await turns()
    assert len(node.consensus.proposed) == 2, "different topics do not wait for each other"
    node.consensus.is_held = False
    node.consensus.commit()
    outcomes = await soon(asyncio.gather(*creating, return_exceptions=True))
    assert [type(one) for one in outcomes[1:]] == [TopicExists, TopicExists]
    await soon(asyncio.gather(ensuring, other))
    assert node.machine.state.topics.find("t").write_queues == 3


@on_loop
async def test_changes_at_the_same_time_do_not_undo_each_other() -> None:
    node = Node()
    await node.topic("t")
    catalog = node.broker.catalog
    await soon(
        asyncio.gather(
            catalog.alter("t", write_queues=2),
            catalog.alter("t", read_queues=8),
            catalog.alter("t", is_readable=False),
        )
    )
    topic = node.machine.state.topics.find("t")
    assert (topic.write_queues, topic.read_queues, topic.is_readable) == (2, 8, False)


@on_loop
async def test_a_topic_that_is_being_deleted_takes_nothing_and_may_be_created_behind_it() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.is_held = True
    catalog = node.broker.catalog
    deleting = asyncio.create_task(catalog.delete("t"))
    await turns()
    with pytest.raises(TopicNotFound):
        node.broker.publisher.submit(batch("t", b"x"))
    creating = asyncio.create_task(catalog.create("t", 2, 0))
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    await soon(deleting)
    assert (await soon(creating)).write_queues == 2
    assert (await node.send("t", b"x")).queue_offset == 0


@on_loop
async def test_a_batch_that_was_let_in_before_does_not_outlive_its_topic() -> None:
    node = Node()
    await node.topic("t")
    slot = node.broker.publisher.submit(batch("t", b"x"))
    # In the same turn of the loop: the batch is not written yet.
    await node.broker.catalog.delete("t")
    assert (await soon(slot.outcome)).queue_offset == 0
    start, end = node.broker.groups.extent(Queue("t", 0))
    assert (start, end) == (1, 1)


@on_loop
async def test_a_group_is_deleted_with_all_that_is_known_of_it() -> None:
    node = Node()
    await node.topic("t")
    await node.broker.commits.commit("g", {Queue("t", 0): 0})
    await soon(node.broker.catalog.delete_group("g", 0))
    assert "g" not in node.machine.state.offsets


@on_loop
async def test_a_cancelled_delete_lasts_until_it_is_done() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.is_held = True
    deleting = asyncio.ensure_future(node.broker.catalog.delete("t"))
    await turns()
    deleting.cancel()
    await turns()
    with pytest.raises(TopicNotFound, match="being deleted"):
        node.broker.catalog.writable("t", 0)
    node.consensus.is_held = False
    node.consensus.commit()
    await asyncio.wait([deleting])
    assert deleting.cancelled()
    assert "t" not in node.machine.state.topics
