"""Receive and acknowledge against a plain record of each message, under whatever happens in
whichever order: crashes, time, refusals of the log, calls that are given up.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from mq.broker.receive.grants import GrantedRun
from mq.errors import FlowControl
from mq.names import dead_letter_topic
from mq.wire.v1.consumer_pb2 import Handle
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, on_loop, turns
from tests.unit.broker.receive.receive_scene import (
    GROUP,
    TOPIC,
    ack,
    change_invisible,
    handles,
    nack,
    receive,
    restarted,
    wanted,
)

QUEUES = 2
RETRIES_MAX = 4
STEPS = 120
# A message that a member which is gone may have had.
UNCLEAR = -1


@dataclass
class Known:
    """The state of one message, as known to the model."""

    key: str
    attempts: int = 0
    visible_at_ms: int = 0
    lease: int = 0
    is_done: bool = False


@dataclass
class World:
    node: Node
    random: random.Random
    is_ordered: bool
    messages: dict[tuple[int, int], Known] = field(default_factory=dict)
    # Handles that were ever shown, with the message and the lease.
    shown: list[tuple[Handle, tuple[int, int], int]] = field(default_factory=list)

    # -- what may happen --------------------------------------------------------------------------

    async def send(self) -> None:
        queue_id = self.random.randrange(QUEUES)
        keys = [self.random.choice(["", "a", "b", "c"]) for _ in range(self.random.randint(1, 8))]
        end = self.node.ends(TOPIC, QUEUES)[queue_id]
        await self.node.send(
            TOPIC, messages=[Message(ordering_key=key) for key in keys], queue_id=queue_id
        )
        for at, key in enumerate(keys):
            self.messages[queue_id, end + at] = Known(key)

    async def receive(self, **changes: Any) -> list[GrantedRun]:
        given = await receive(
            self.node, is_ordered=self.is_ordered, **{"messages_max": 1_000, **changes}
        )
        self.take(given)
        return given

    def take(self, given: list[GrantedRun]) -> None:
        for one in given:
            for at in range(one.run.message_count):
                place = one.queue.queue_id, one.run.queue_offset + at
                known = self.messages[place]
                assert not known.is_done, f"{place} was acknowledged"
                assert known.visible_at_ms <= self.node.now_ms, f"{place} is in hand"
                assert one.attempt == known.attempts + 1, place
                assert known.attempts <= RETRIES_MAX, place
                known.attempts += 1
                known.lease, known.visible_at_ms = one.lease, one.visible_at_ms
        self.shown += [
            (handle, (one.queue.queue_id, handle.queue_offset), one.lease)
            for one in given
            for handle in handles([one])
        ]
        if self.is_ordered:
            self.check_order()

    def check_order(self) -> None:
        """Of a key, only the first message that is not done may ever have been granted."""
        for queue_id in range(QUEUES):
            held: set[str] = set()
            for place in sorted(one for one in self.messages if one[0] == queue_id):
                known = self.messages[place]
                if known.is_done or not known.key or self.is_over(known):
                    continue
                assert known.key not in held or not known.attempts, f"{place} overtook"
                held.add(known.key)

    async def receive_some(self) -> None:
        await self.receive(messages_max=self.random.randint(1, 5), invisible_ms=10_000)

    async def receive_again(self) -> None:
        """The answer is lost, perhaps with the leader, and the receive is repeated: nothing stays
        with the one that was lost.
        """
        attempt = self.random.getrandbits(56) if self.is_ordered else 0
        changes = {"is_ordered": self.is_ordered, "attempt": attempt, "invisible_ms": 10_000}
        if not attempt:
            return
        lost = await receive(self.node, messages_max=self.random.randint(1, 5), **changes)
        if self.random.random() < 0.3:
            await self.crash()
        self.take(await receive(self.node, messages_max=self.random.randint(1, 5), **changes))
        assert not any(await ack(self.node, handles(lost)))

    async def receive_all(self) -> None:
        """Nothing is left that could be given."""
        while await self.receive(invisible_ms=20_000):
            pass
        await self.bury()
        while await self.receive(invisible_ms=20_000):
            pass
        if not self.is_ordered:
            now_ms = self.node.now_ms
            free = [
                place
                for place, known in self.messages.items()
                if not known.is_done and known.visible_at_ms <= now_ms
            ]
            assert free == []

    def some(self) -> list[tuple[Handle, tuple[int, int], int]]:
        # What was given out too often and is visible may be a dead letter by now, or be one soon.
        known = self.messages
        clear = [
            one
            for one in self.shown
            if not self.is_over(known[one[1]]) and known[one[1]].lease != UNCLEAR
        ]
        return self.random.sample(clear, min(len(clear), self.random.randint(1, 6)))

    def is_over(self, known: Known) -> bool:
        return known.visible_at_ms <= self.node.now_ms and known.attempts > RETRIES_MAX

    def is_good(self, place: tuple[int, int], lease: int) -> bool:
        known = self.messages[place]
        return not known.is_done and known.lease == lease

    async def ack(self) -> None:
        chosen = self.some()
        expected = []
        for _, place, lease in chosen:
            expected.append(self.is_good(place, lease))
            if expected[-1]:
                self.messages[place].is_done = True
        if chosen:
            assert await ack(self.node, [handle for handle, *_ in chosen]) == expected

    async def nack(self) -> None:
        chosen = self.some()
        delay_ms = self.random.choice([0, 0, 5_000])
        expected = []
        for _, place, lease in chosen:
            expected.append(self.is_good(place, lease))
            if expected[-1]:
                known = self.messages[place]
                known.lease, known.visible_at_ms = 0, self.node.now_ms + delay_ms
                known.is_done = known.attempts > RETRIES_MAX
        if chosen:
            shown = [handle for handle, *_ in chosen]
            assert await nack(self.node, shown, delay_ms) == expected

    async def hold_longer(self) -> None:
        chosen = self.some()[:1]
        for handle, place, lease in chosen:
            good, until_ms = await change_invisible(self.node, [handle], 30_000)
            assert good == [self.is_good(place, lease)]
            if good[0]:
                self.messages[place].visible_at_ms = until_ms

    async def pass_time(self) -> None:
        self.node.pass_time(self.random.choice([1, 4_000, 10_000, 30_000]))
        await turns()

    async def crash(self) -> None:
        self.node = restarted(self.node, retries_max=RETRIES_MAX)

    async def fail(self) -> None:
        """The log takes nothing: every caller gets the error, and nothing has changed."""
        self.node.consensus.failure = FlowControl("full")
        for work in (self.receive(), ack(self.node, [one[0] for one in self.some()])):
            try:
                assert not any(await work)
            except FlowControl:
                continue
        self.node.consensus.failure = None

    async def give_up(self) -> None:
        """The caller is gone before the answer comes. Visible messages may have been granted and
        taken back: then no handle of them is good.
        """
        for known in self.messages.values():
            if known.visible_at_ms <= self.node.now_ms:
                known.lease = UNCLEAR
        self.node.consensus.is_held = True
        receiving = self.node.broker.receiving
        call = asyncio.ensure_future(
            receiving.receive(wanted(is_ordered=self.is_ordered, messages_max=3))
        )
        await turns(self.random.randrange(8))
        call.cancel()
        await turns()
        self.node.consensus.is_held = False
        self.node.consensus.commit()
        await turns(60)
        if not call.cancelled():
            self.take(call.result())

    async def bury(self) -> None:
        """A visible message that was granted too often is a dead letter by now."""
        for _ in range(3):
            self.node.broker.tick()
            await turns(60)
        for known in self.messages.values():
            known.is_done = known.is_done or self.is_over(known)

    async def finish(self) -> None:
        """Everything that is not done comes again, once more, and then there is nothing."""
        for _ in range(2_000):
            self.node.pass_time(60_000)
            given = await self.receive(invisible_ms=10_000)
            for one in given:
                shown = handles([one])
                assert await ack(self.node, shown) == [True] * len(shown)
                for handle in shown:
                    self.messages[one.queue.queue_id, handle.queue_offset].is_done = True
            await self.bury()
            if all(known.is_done for known in self.messages.values()):
                break
        assert all(known.is_done for known in self.messages.values())
        assert await self.receive() == []
        committed = self.node.committed(GROUP)
        assert [committed[queue] for queue in sorted(committed)] == self.node.ends(TOPIC, QUEUES)
        dead = sum(known.attempts > RETRIES_MAX for known in self.messages.values())
        end = self.node.ends(dead_letter_topic(GROUP), 1)[0]
        assert end <= dead  # the others were acknowledged the last time


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("seed", range(8))
@on_loop
async def test_each_message_is_in_one_hand_until_it_is_done(seed: int, is_ordered: bool) -> None:
    node = Node(retries_max=RETRIES_MAX)
    await node.topic(TOPIC, QUEUES)
    world = World(node, random.Random(seed), is_ordered)
    await world.receive()
    steps = [
        (world.send, 6),
        (world.receive_some, 8),
        (world.receive_again, 3),
        (world.receive_all, 1),
        (world.ack, 6),
        (world.nack, 4),
        (world.hold_longer, 2),
        (world.pass_time, 4),
        (world.bury, 2),
        (world.crash, 1),
        (world.fail, 1),
        (world.give_up, 2),
    ]
    kinds, weights = zip(*steps, strict=True)
    for _ in range(STEPS):
        (step,) = world.random.choices(kinds, weights)
        await step()
    await world.finish()
