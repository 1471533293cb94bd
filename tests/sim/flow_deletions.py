"""A topic is deleted while messages wait for it, and a new one of its name is made: what waited for
the old one does not come to the new one, what waits for the new one does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from mq.errors import MqError, TopicNotFound, TransactionNotFound
from mq.wire.v1.message_pb2 import Half
from tests.sim.flow_checks import visible
from tests.sim.flow_clients import Sender, eventually, make_topic
from tests.sim.flow_member import Options
from tests.sim.flow_world import Violation

if TYPE_CHECKING:
    from mq.broker.broker import Broker
    from mq.broker.state.dedup import StoredAt
    from tests.sim.flow_world import World

OPTIONS = Options(
    transactions={"first_check_ms": 20_000, "check_interval_ms": 20_000, "checks_max": 2}
)
_TOPIC = "reborn"


async def story(world: World, scale: int = 1) -> None:
    sender = Sender(world, "sender")
    expected: Counter[str] = Counter()
    world.arm()
    for life in range(1 + scale):
        await make_topic(world, _TOPIC, 1)
        await sender.send(_TOPIC, f"soon {life}", delay_ms=400)
        await sender.send(_TOPIC, f"later {life}", delay_ms=3_000)
        half = await sender.send(_TOPIC, f"half {life}", half=Half(producer_group="makers"))
        if life == scale:
            await _commit(world, half)
            expected.update([f"soon {life}", f"later {life}", f"half {life}"])
        else:
            await asyncio.sleep(world.rng.choice((0.0, 0.0, 0.6)))
            await _delete(world)
            if world.rng.random() < 0.5:
                await make_topic(world, _TOPIC, 1)
            await _commit_in_vain(world, half)
    await eventually(world, "nothing waits", lambda broker: not broker.state.schedule.lanes)
    world.disarm()
    await world.settled()
    assert world.leader is not None
    found = Counter(one.text for one in visible(world.leader.running, _TOPIC))
    if found != expected:
        raise Violation(f"on the new topic: {sorted(found)}, expected {sorted(expected)}")


async def _delete(world: World) -> None:
    async def delete(broker: Broker) -> None:
        broker.leadership.check()
        if _TOPIC in broker.state.topics:
            await broker.catalog.delete(_TOPIC)

    await world.patiently(delete)


async def _commit(world: World, half: StoredAt) -> None:
    await world.patiently(
        lambda broker: broker.transacting.end(
            half.log_offset, commits=True, producer_group="makers"
        )
    )


async def _commit_in_vain(world: World, half: StoredAt) -> None:
    """There is no topic for it, or another one."""
    try:
        await _commit(world, half)
    except (TopicNotFound, TransactionNotFound):
        return
    except MqError as error:
        raise Violation(f"a commit without a topic: {error!r}") from error
    raise Violation("a commit without a topic was done")
