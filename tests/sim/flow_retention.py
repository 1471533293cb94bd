"""Retention while things wait: the log goes on, its front goes away, and what waits in it does not.

Delayed messages, open transactions and such that were taken back stand in segments that are due to
go. The leader writes them again, every node drops what it may; in the end each of them is where it
belongs, once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from mq.errors import MqError
from mq.store.retention import Policy
from mq.wire.v1.message_pb2 import Half
from tests.sim.flow_checks import visible
from tests.sim.flow_clients import Sender, eventually, make_topic
from tests.sim.flow_member import EPOCH_MS, Options
from tests.sim.flow_world import Violation

if TYPE_CHECKING:
    from mq.broker.broker import Broker
    from mq.broker.state.dedup import StoredAt
    from tests.sim.flow_member import Process
    from tests.sim.flow_world import World

_SEGMENT_BYTES = 8_192
OPTIONS = Options(
    segment_bytes=_SEGMENT_BYTES,
    transactions={"first_check_ms": 3_600_000, "check_interval_ms": 3_600_000},
)
_POLICY = Policy(1 << 50, 4 * _SEGMENT_BYTES, 0.75, 0.85, 0.9)
_TOPIC, _NOISE = "kept", "noise"


class House:
    """Each node keeps its own, as `mq.server` does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.dropped = 0

    async def keep(self) -> None:
        while True:
            for member in self._world.members:
                if member.process is not None:
                    await self._retain(member.process)
            await asyncio.sleep(0.7)

    async def _retain(self, process: Process) -> None:
        async def retain(broker: Broker) -> None:
            store, now_ms = process.store, process.member.now_ms()
            staying = store.expiring_before(_POLICY, now_ms)
            if staying and broker.leadership.is_serving and broker.needs_log_before(staying):
                await broker.carry(staying)
            dropped = store.retain(_POLICY, now_ms, broker.needs_log_before)
            store.log.remove_released()
            broker.on_dropped(dropped.moved)
            self.dropped += dropped.segments

        # Whatever is in the way, there is a next time.
        with contextlib.suppress(MqError, ConnectionResetError):
            await self._world.ask_process(process, retain)


class Watcher:
    """Sees what comes before retention takes it away, each place once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._places: dict[tuple[int, int], str] = {}
        self.due_ms: dict[str, int] = {}

    async def watch(self) -> None:
        while True:
            self.look(await self._world.until_led())
            await asyncio.sleep(0.2)

    def look(self, process: Process) -> None:
        now_ms = EPOCH_MS + round(asyncio.get_running_loop().time() * 1000)
        for one in visible(process, _TOPIC):
            place = one.queue_id, one.queue_offset
            if self._places.setdefault(place, one.text) != one.text:
                raise Violation(f"{one.text} and {self._places[place]} stand at {place}")
            if now_ms < self.due_ms.get(one.text, 0):
                raise Violation(f"{one.text} is early")

    @property
    def counts(self) -> Counter[str]:
        return Counter(self._places.values())


async def story(world: World, scale: int = 1) -> None:
    count = 4 * scale
    await make_topic(world, _TOPIC, 1)
    await make_topic(world, _NOISE, 1)
    sender, house, watcher = Sender(world, "sender"), House(world), Watcher(world)
    expected: dict[str, int] = {}
    transactions: list[tuple[StoredAt, bool]] = []
    world.arm()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(house.keep()), loop.create_task(watcher.watch())]
    for number in range(count):
        stored = await sender.send(_TOPIC, f"d{number}", f"e{number}", delay_ms=9_000 + number)
        expected |= {f"d{number}": number % 2, f"e{number}": 1}
        watcher.due_ms |= dict.fromkeys((f"d{number}", f"e{number}"), stored.deliver_at_ms)
        if number % 2 == 0:
            await _recall(world, stored)
        half = await sender.send(_TOPIC, f"h{number}", half=Half(producer_group="makers"))
        transactions.append((half, number % 2 == 0))
        expected[f"h{number}"] = int(number % 2 == 0)
    for number in range(26):
        await sender.send(_NOISE, f"{number} " + "x" * 3_000)
        await asyncio.sleep(0.25)
    for half, commits in transactions:
        await _end(world, half, commits=commits)
    await eventually(world, "nothing waits", lambda broker: not broker.state.schedule.lanes)
    world.disarm()
    await world.settled()
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    assert world.leader is not None
    watcher.look(world.leader.running)
    _check_counts(watcher.counts, expected)
    ended = world.leader.running.machine.state.transactions
    if ended.open or ended.committed + ended.rolled_back != len(transactions):
        raise Violation(f"{len(ended.open)} of {len(transactions)} transactions are still open")
    if world.steps > 300 * scale:
        raise Violation(f"{world.steps} entries: what waits is carried without end")
    if house.dropped < 6:
        raise Violation(f"only {house.dropped} segments were dropped: nothing was tried here")


def _check_counts(found: Counter[str], expected: dict[str, int]) -> None:
    if any(found[text] != wanted for text, wanted in expected.items()):
        raise Violation(f"found {sorted(found.items())}, expected {sorted(expected.items())}")


async def _recall(world: World, stored: StoredAt) -> None:
    """Until it is certain: taken back, by this or by a try whose answer was lost."""
    while True:
        try:
            await world.ask(
                lambda broker: broker.delays.recalls.recall(
                    _TOPIC, stored.log_offset, stored.deliver_at_ms
                )
            )
        except ConnectionResetError:
            pass
        except MqError as error:
            if not error.retryable:
                return
        else:
            return
        await asyncio.sleep(0.1)


async def _end(world: World, half: StoredAt, *, commits: bool) -> None:
    await world.patiently(
        lambda broker: broker.transacting.end(
            half.log_offset, commits=commits, producer_group="makers"
        )
    )
