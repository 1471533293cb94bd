"""A node with a topic `t` of four queues, and streams of members of a group `g`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mq.broker.consumer.filters import canonical, compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.consumer.membership import Spec
from mq.broker.consumer.subscriber import (
    Assigned,
    CacheLimits,
    Delivered,
    Position,
    Redirected,
    Subscriber,
)
from mq.broker.queue import Queue
from mq.wire.v1.consumer_pb2 import MODE_CLUSTERING, Filter
from tests.support.consensus import Node, turns

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST, LATEST = Start(is_earliest=True), Start()
EXPIRES_MS = 30_000


def t(*queue_ids: int) -> frozenset[Queue]:
    return frozenset(Queue("t", queue_id) for queue_id in queue_ids)


ALL = t(0, 1, 2, 3)


def spec(
    member_id: str,
    mode: int = MODE_CLUSTERING,
    *,
    topic: str = "t",
    tags: str = "",
    zone: str = "",
) -> Spec:
    wanted = {topic: canonical(Filter(tags=tags))}
    return Spec(member_id, zone, mode, wanted, f"{member_id}:1", is_streaming=True)


class World:
    """A node with a topic `t` of four queues, and members of group `g`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.groups = node.broker.groups

    def subscribe(
        self,
        member_id: str,
        mode: int = MODE_CLUSTERING,
        *,
        start: Start = EARLIEST,
        positions: Mapping[Queue, int] | None = None,
        **fields: Any,
    ) -> Subscriber:
        wanted = spec(member_id, mode, **fields)
        filters = {topic: compile_filter(Filter()) for topic in wanted.subscriptions}
        claims = {
            queue: self.groups.claim("g", wanted, queue, at)
            for queue, at in (positions or {}).items()
        }
        return self.groups.subscribe("g", wanted, filters, CacheLimits(), start, claims)

    def hand_over(self, one: Subscriber) -> frozenset[Queue]:
        """Lets go of whatever left its assignment; what that is."""
        leaving = frozenset(one._leaving)
        self.groups.released(one, {queue: one._leaving[queue].told_epoch for queue in leaving})
        return leaving

    def assigned(self, member_id: str) -> frozenset[Queue]:
        live = self.groups.live("g")
        return live.assigned(member_id) if live else frozenset()


async def world(**options: Any) -> World:
    node = Node(**options)
    await node.topic("t")
    return World(node)


async def drain(one: Subscriber) -> list[Assigned | Delivered]:
    """Everything that it has to say now."""
    said: list[Assigned | Delivered] = []
    while True:
        waiting = asyncio.create_task(one.next())
        await turns(10)
        if not waiting.done():
            waiting.cancel()
            await turns()
            return said
        out = waiting.result()
        assert not isinstance(out, Redirected), out
        said.append(out)


def last_assignment(said: list[Assigned | Delivered]) -> dict[Queue, Position]:
    found = [one for one in said if isinstance(one, Assigned)]
    return {position.queue: position for position in found[-1].positions}
