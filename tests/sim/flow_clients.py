"""Clients of a simulated broker set: they send again with the same sequence until there is an
answer, as real ones do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mq.broker.consumer.membership import Spec
from mq.errors import MqError
from mq.wire.v1.consumer_pb2 import MODE_CLUSTERING
from mq.wire.v1.message_pb2 import Message
from tests.sim.flow_checks import Seen, seen_in
from tests.sim.flow_world import Violation
from tests.support.consensus import batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.broker.broker import Broker
    from mq.broker.queue import Queue
    from mq.broker.state.dedup import StoredAt
    from tests.sim.flow_world import World

# In virtual time: what does not happen until then, never does.
_DEADLINE_S = 600.0


def tag_of(text: str) -> str:
    """The tag of the message with this text; a tag has no spaces."""
    return f"tag-{text.replace(' ', '-')}"


class Sender:
    """A producer with sequences of its own."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._sequence = 0
        # Of the messages of the last batch.
        self.frame_sizes: list[int] = []

    async def send(self, topic: str, *texts: str, queue_id: int = 0, **fields: Any) -> StoredAt:
        """One batch, stored once when this returns."""
        self._sequence += 1
        sequence = self._sequence
        messages = [
            Message(
                body=text.encode(),
                tag=tag_of(text),
                keys=[text],
                properties={"is": text},
                # Every third text has the same.
                ordering_key=f"key-{int(text[1:]) % 3}" if text[1:].isdecimal() else "",
            )
            for text in texts
        ]

        async def once(broker: Broker) -> StoredAt:
            made = batch(
                topic,
                messages=messages,
                queue_id=queue_id,
                producer_id=self.name,
                sequence=sequence,
                **fields,
            )
            self.frame_sizes = made.frame_sizes.tolist()
            slot = await broker.submit(made)
            return await asyncio.shield(slot.outcome)

        return await self._world.patiently(once)


async def make_topic(world: World, name: str, queues: int) -> None:
    async def create(broker: Broker) -> None:
        if name not in broker.state.topics:
            await broker.catalog.create(name, queues, 0)

    await world.patiently(create)


async def eventually(world: World, what: str, is_so: Callable[[Broker], bool]) -> None:
    """Waits until a leader says so, in virtual time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _DEADLINE_S
    while not is_so((await world.until_led()).broker):
        if loop.time() > deadline_s:
            raise Violation(f"never: {what}")
        await asyncio.sleep(0.1)


class PullMember:
    """A member of a group that pulls: it joins, and again after each fail-over."""

    def __init__(self, world: World, group: str, name: str, *topics: str) -> None:
        self._world = world
        self.group = group
        self.name = name
        self.queues: list[Queue] = []
        self._spec = Spec(name, "", int(MODE_CLUSTERING), dict.fromkeys(topics, ""), "", False)

    async def refresh(self) -> list[Queue]:
        """The queues that it has; none while they change hands, or no node answers."""

        async def beat(broker: Broker) -> list[Queue]:
            try:
                group = broker.groups.heartbeat(self.group, self.name, self.queues)
            except MqError:
                group = broker.groups.join(self.group, self._spec, self.queues)
            return sorted(group.assigned(self.name))

        try:
            self.queues = await self._world.ask(beat)
        except (MqError, ConnectionResetError):
            await asyncio.sleep(0.2)
        return self.queues

    async def leave(self) -> None:
        async def leave(broker: Broker) -> None:
            broker.groups.leave(self.group, self.name)

        self.queues = []
        await self._world.patiently(leave)


async def read(broker: Broker, group: str, queue: Queue, messages_max: int = 3) -> list[Seen]:
    """The messages of the queue that the group has not done, as the leader says."""
    broker.leadership.check()
    start, _ = broker.groups.extent(queue)
    at = max(start, broker.state.offsets.positions(group).get(queue, 0))
    result = broker.store.read(queue.topic, queue.queue_id, at, messages_max=messages_max)
    return seen_in(queue.queue_id, result.runs)
