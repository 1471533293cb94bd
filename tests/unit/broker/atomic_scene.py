"""Atoms on one node: twenty messages in queue 0 of `t`, a topic `out`, members of a group `g`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mq.broker import atomic_sends
from mq.broker.queue import Queue
from mq.store.format import Kind
from tests.support.consensus import batch, soon
from tests.unit.broker.consumer.group_scene import World, world

if TYPE_CHECKING:
    from mq.broker.state.dedup import StoredAt
    from mq.store.batch import Batch

IN_0, IN_1 = Queue("t", 0), Queue("t", 1)


def output(sequence: int, *bodies: bytes, queue_id: int = 0, producer_id: str = "p") -> Batch:
    return batch(
        "out", *(bodies or (b"x",)), queue_id=queue_id, producer_id=producer_id, sequence=sequence
    )


async def scene(*members: str) -> World:
    """Twenty messages in queue 0 of `t`, a topic `out`, and members of the group `g`."""
    scene = await world()
    await scene.node.topic("out")
    await scene.node.send("t", *(b"%d" % n for n in range(20)))
    for member in members or ("m",):
        scene.subscribe(member)
    await scene.node.broker.commits.flush()
    return scene


def move(start: int, end: int, queue: Queue = IN_0, first: int | None = None) -> dict[str, Any]:
    """The report of a member that did [start, end), of which those before `first` were no work."""
    began = atomic_sends.WorkStart(start, start if first is None else first)
    return {"positions": {queue: end}, "starts": {queue: began}}


async def send(one: World, *batches: Batch, member: str = "m", **fields: Any) -> list[StoredAt]:
    stored: list[StoredAt] = await soon(
        one.node.broker.atomic_sends.send(batches, "g", member, **fields)
    )
    return stored


def written(one: World) -> int:
    return sum(kind in (Kind.MESSAGES, Kind.COMMAND) for kind, _ in one.node.consensus.proposed)
