"""Consume, process, produce as one atom against a model: for each input one output, whichever
process crashes or does the work twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from mq.broker.atomic_sends import WorkStart
from mq.broker.queue import Queue
from mq.errors import MqError
from tests.sim.flow_checks import Seen, visible
from tests.sim.flow_clients import PullMember, Sender, eventually, make_topic, read
from tests.sim.flow_member import Options
from tests.sim.flow_world import Violation
from tests.support.consensus import batch

if TYPE_CHECKING:
    from mq.broker.broker import Broker
    from mq.broker.state.dedup import StoredAt
    from tests.sim.flow_world import World

# A member that is silent for so long is gone: the others do not wait for it for ever.
OPTIONS = Options(broker={"member_expires_ms": 3_000})
_GROUP, _IN, _OUT = "makers", "raw", "made"
_QUEUES = 2


class Maker:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._lives = 0
        self._sequence = 0
        self._begin()
        self.is_over = False

    def _begin(self) -> None:
        """A process that starts knows nothing of the one before."""
        self._lives += 1
        self._producer_id = f"{self._name}-{self._lives}"
        self._member = PullMember(self._world, _GROUP, self._producer_id, _IN)

    async def run(self) -> None:
        rng = self._world.rng
        while not self.is_over:
            for queue in await self._member.refresh():
                # Some do the same work twice at once, and must not get away with it.
                twice = rng.choice((1, 2))
                await asyncio.gather(*(self._work_on(queue) for _ in range(twice)))
            await asyncio.sleep(rng.uniform(0.02, 0.3))
            if rng.random() < 0.05:
                # Some say that they go, others do not.
                if rng.random() < 0.5:
                    await self._member.leave()
                self._begin()

    async def _work_on(self, queue: Queue) -> None:
        try:
            found = await self._world.ask(lambda broker: read(broker, _GROUP, queue))
        except (MqError, ConnectionResetError):
            return
        if not found:
            return
        # Others may have the queue by the time that this is done.
        await asyncio.sleep(self._world.rng.choice((0.0, 0.05, 1.0, 6.0)))
        await self._send(queue, found)

    async def _send(self, queue: Queue, found: list[Seen]) -> None:
        self._sequence += 1
        sequence = self._sequence
        first, last = found[0].queue_offset, found[-1].queue_offset

        async def once(broker: Broker) -> list[StoredAt]:
            made = batch(
                _OUT,
                *(f"made of {one.text}".encode() for one in found),
                queue_id=queue.queue_id,
                producer_id=self._producer_id,
                sequence=sequence,
            )
            return await broker.atomic_sends.send(
                [made],
                _GROUP,
                self._producer_id,
                {queue: last + 1},
                starts={queue: WorkStart(first, first)},
            )

        rng = self._world.rng
        while True:
            try:
                await self._world.ask(once)
            except ConnectionResetError:
                pass
            except MqError as error:
                if not error.retryable:
                    await self._check_undone(sequence, error)
                    return  # others have done it, or will: thrown away
            else:
                return
            await asyncio.sleep(0.1)
            await self._member.refresh()
            if rng.random() < 0.3:
                return  # it does not care what became of it: the group's place will tell

    async def _check_undone(self, sequence: int, error: MqError) -> None:
        """A request that was refused for good was not done by an earlier try."""

        async def find(broker: Broker) -> StoredAt | None:
            broker.leadership.check()
            return broker.state.producers.find(self._producer_id, sequence)

        if await self._world.patiently(find) is not None:
            raise Violation(f"{self._producer_id}, {sequence} was done, and refused: {error}")


async def story(world: World, scale: int = 1) -> None:
    count = 12 * scale
    await make_topic(world, _IN, _QUEUES)
    await make_topic(world, _OUT, _QUEUES)
    sender = Sender(world, "sender")
    makers = [Maker(world, f"maker-{at}") for at in range(2)]
    world.arm()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one.run()) for one in makers]
    texts = [f"i{at}" for at in range(count)]
    for at in range(0, count, 2):
        await sender.send(_IN, *texts[at : at + 2], queue_id=at // 2 % _QUEUES)
        await asyncio.sleep(world.rng.uniform(0, 0.5))

    def is_done(broker: Broker) -> bool:
        for task in tasks:
            if task.done():
                task.result()
        positions = broker.state.offsets.positions(_GROUP)
        queues = [Queue(_IN, at) for at in range(_QUEUES)]
        return all(positions.get(one) == broker.groups.extent(one)[1] for one in queues)

    await eventually(world, "all is made", is_done)
    world.disarm()
    for one in makers:
        one.is_over = True
    await asyncio.gather(*tasks)
    await world.settled()
    assert world.leader is not None
    made = Counter(one.text for one in visible(world.leader.running, _OUT))
    if made != Counter(f"made of {text}" for text in texts):
        raise Violation(f"made of {texts}: {sorted(made.items())}")
