"""Receive, process, produce as one atom against a model: the output and the acknowledgement are one
entry, so that each input has one output, however often it was given out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.receive.grants import Receive
from mq.broker.receive.leases import lease_bytes
from mq.broker.receive.members import ReceiveSpec
from mq.errors import MqError
from mq.wire.v1.consumer_pb2 import Filter, Handle
from tests.sim.flow_checks import seen_in, visible
from tests.sim.flow_clients import Sender, eventually, make_topic
from tests.sim.flow_member import Options
from tests.sim.flow_world import Violation
from tests.support.consensus import batch

if TYPE_CHECKING:
    from mq.broker.broker import Broker
    from mq.broker.receive.grants import GrantedRun
    from mq.broker.state.dedup import StoredAt
    from tests.sim.flow_world import World

OPTIONS = Options(broker={"retries_max": 1_000})
_GROUP, _IN, _OUT = "makers", "raw", "made"
_QUEUES = 2
_INVISIBLE_MS = 1_500


class Maker:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._sequence = 0
        self.is_over = False

    async def run(self) -> None:
        rng = self._world.rng
        wanted = Receive(
            _GROUP,
            _IN,
            self._name,
            ReceiveSpec("", is_ordered=False),
            compile_filter(Filter()),
            3,
            1 << 20,
            _INVISIBLE_MS,
            wait_s=0.5,
            start=Start(is_earliest=True),
        )
        while not self.is_over:
            try:
                given = await self._world.ask(lambda broker: broker.receiving.receive(wanted))
            except (MqError, ConnectionResetError):
                await asyncio.sleep(0.1)
                continue
            # By then the time of some is over, and others have them.
            await asyncio.sleep(rng.choice((0.0, 0.1, 2.0)))
            if given:
                await self._make(given)

    async def _make(self, given: list[GrantedRun]) -> None:
        self._sequence += 1
        sequence = self._sequence
        texts = [seen.text for one in given for seen in seen_in(0, [one.run])]
        handles = [
            Handle(
                lease=lease_bytes(one.queue, one.lease),
                queue_offset=one.run.queue_offset,
                count=one.run.message_count,
            )
            for one in given
        ]

        async def once(broker: Broker) -> list[StoredAt]:
            bodies = [f"made of {text}".encode() for text in texts]
            made = batch(_OUT, *bodies, producer_id=self._name, sequence=sequence)
            return await broker.atomic_sends.send([made], _GROUP, handles=handles)

        while True:
            try:
                await self._world.ask(once)
            except ConnectionResetError:
                pass
            except MqError as error:
                if not error.retryable:
                    await self._check_undone(sequence, error)
                    return
            else:
                return
            await asyncio.sleep(0.1)
            if self._world.rng.random() < 0.2:
                return  # it does not care what became of it

    async def _check_undone(self, sequence: int, error: MqError) -> None:
        """A request that was refused for good was not done by an earlier try."""

        async def find(broker: Broker) -> StoredAt | None:
            broker.leadership.check()
            return broker.state.producers.find(self._name, sequence)

        if await self._world.patiently(find) is not None:
            raise Violation(f"{self._name}, {sequence} was done, and refused: {error}")


async def story(world: World, scale: int = 1) -> None:
    await make_topic(world, _IN, _QUEUES)
    await make_topic(world, _OUT, 1)
    sender = Sender(world, "sender")
    makers = [Maker(world, f"maker-{at}") for at in range(2)]
    world.arm()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one.run()) for one in makers]
    texts = [f"i{at}" for at in range(12 * scale)]
    for at in range(0, len(texts), 2):
        await sender.send(_IN, *texts[at : at + 2], queue_id=at // 2 % _QUEUES)
        await asyncio.sleep(world.rng.uniform(0, 0.5))

    def is_done(broker: Broker) -> bool:
        for task in tasks:
            if task.done():
                task.result()
        found = broker.state.leases.items()
        leases = {queue: one for (group, queue), one in found if group == _GROUP}
        return len(leases) == _QUEUES and all(
            one.next == broker.groups.extent(queue)[1] and not one.ranges
            for queue, one in leases.items()
        )

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
