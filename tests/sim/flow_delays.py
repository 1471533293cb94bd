"""Delayed messages against a model: none early, none lost, none twice, and what was taken back does
not come.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import Counter
from typing import TYPE_CHECKING

from mq.errors import MessageNotFound, MqError
from tests.sim.flow_checks import visible
from tests.sim.flow_clients import Sender, eventually, make_topic
from tests.sim.flow_member import Options
from tests.sim.flow_world import Violation

if TYPE_CHECKING:
    from mq.broker.state.dedup import StoredAt
    from tests.sim.flow_member import Process
    from tests.sim.flow_world import World

OPTIONS = Options()
_TOPICS = ("soon", "late")


class Delayed:
    def __init__(self, world: World) -> None:
        self._world = world
        self._stored: dict[str, StoredAt] = {}
        self._topic_of: dict[str, str] = {}
        # For recalled messages: whether that went well; None: unknown.
        self._recalled: dict[str, bool | None] = {}

    async def send(self, sender: Sender, topic: str, texts: list[str], delay_ms: int) -> None:
        stored = await sender.send(topic, *texts, queue_id=len(texts) % 2, delay_ms=delay_ms)
        log_offset = stored.log_offset
        for text, size in zip(texts, sender.frame_sizes, strict=True):
            self._topic_of[text] = topic
            self._stored[text] = stored._replace(log_offset=log_offset)
            log_offset += size

    async def recall(self, text: str) -> None:
        """Takes it back, if it still waits."""
        topic, stored = self._topic_of[text], self._stored[text]
        if not stored.deliver_at_ms:
            return  # it was due when it came
        was_lost = False
        while True:
            try:
                await self._world.ask(
                    lambda broker: broker.delays.recalls.recall(
                        topic, stored.log_offset, stored.deliver_at_ms
                    )
                )
            except MessageNotFound:
                self._recalled[text] = None if was_lost else False
                return
            except ConnectionResetError:
                was_lost = True
            except MqError as error:
                if not error.retryable:
                    raise
                was_lost = was_lost or type(error).__name__ == "OutcomeUnknown"
            else:
                self._recalled[text] = True
                return
            await asyncio.sleep(0.1)

    def check(self, process: Process) -> None:
        places = _entries(process)
        seen = [one for topic in _TOPICS for one in visible(process, topic)]
        counts = Counter(one.text for one in seen)
        for text in self._stored:
            recalled = self._recalled.get(text, False)
            expected = {None: (0, 1), True: (0,), False: (1,)}[recalled]
            if counts[text] not in expected:
                raise Violation(f"{text} came {counts[text]} times, recalled: {recalled}")
        for one in seen:
            at = bisect.bisect_right(places, (one.log_offset, 0, 0)) - 1
            _, raft_index, term = places[at]
            now_ms = self._world.proposed_at_ms[raft_index, term]
            due_ms = self._stored[one.text].deliver_at_ms
            if now_ms < due_ms:
                raise Violation(f"{one.text} came {due_ms - now_ms} ms early")
        waiting = process.machine.state.schedule
        if waiting.messages or waiting.lanes:
            raise Violation(f"{waiting.messages} messages are said to wait, and none does")


def _entries(process: Process) -> list[tuple[int, int, int]]:
    log = process.log
    found = []
    for ref, _ in log.entries(log.first_index, log.last_index + 1):
        found.append((ref.log_offset, ref.raft_index, ref.term))
    return found


async def story(world: World, scale: int = 1) -> None:
    count = 8 * scale
    for topic in _TOPICS:
        await make_topic(world, topic, 2)
    delayed = Delayed(world)
    senders = [Sender(world, f"sender-{at}") for at in range(2)]
    rng = world.rng
    world.arm()

    async def produce(at: int) -> None:
        for number in range(at, count, len(senders)):
            texts = [f"m{number}.{place}" for place in range(number % 3 + 1)]
            # The first one waits for long: its lane goes on, also when a clock is set back.
            delay_ms = (15_000, 700, 0, 2_500, 400, 150)[number % 6] + rng.randrange(100)
            await delayed.send(senders[at], _TOPICS[number % 2], texts, delay_ms)
            if number % 4 == 3:
                await asyncio.gather(*(delayed.recall(text) for text in texts[-2:]))
            await asyncio.sleep(rng.uniform(0, 0.3))

    await asyncio.gather(*(produce(at) for at in range(len(senders))))
    await eventually(world, "all are delivered", lambda broker: not broker.state.schedule.lanes)
    world.disarm()
    await world.settled()
    assert world.leader is not None
    delayed.check(world.leader.running)
