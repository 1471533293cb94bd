"""Retries against a model: attempts count up by one to the limit, each once; then there is one dead
letter.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from mq import names
from mq.broker.queue import Queue
from mq.broker.retry.retrying import Failed, MessagePosition, RetryResult
from mq.errors import MqError, NotAssigned, UnknownMember
from tests.sim.flow_checks import Seen, visible
from tests.sim.flow_clients import PullMember, Sender, eventually, make_topic, read
from tests.sim.flow_member import Options
from tests.sim.flow_world import Violation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mq.broker.broker import Broker
    from tests.sim.flow_world import World

_LIMIT = 2
OPTIONS = Options(broker={"retries_max": _LIMIT})
_GROUP, _TOPIC = "workers", "jobs"
_LETTERS = Queue(names.dead_letter_topic(_GROUP), 0)
# By the number in its name: how often a job fails. The last ones for ever.
_FAILS = (0, 1, 2, 99, 99)


class Worker:
    """A consumer whose handler fails, and that does what the client library does about it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._member = PullMember(world, _GROUP, "worker", _TOPIC)
        self._sequence = 0
        # What it was given, by text: the attempts that had failed before.
        self.deliveries: dict[str, list[int]] = defaultdict(list)
        self.is_over = False
        # No more failures.
        self.is_mended = False

    async def run(self) -> None:
        while not self.is_over:
            for queue in await self._member.refresh():
                await self._work_on(queue)
            await asyncio.sleep(0.1)

    async def _work_on(self, queue: Queue) -> None:
        found = await self._until_done(lambda broker: read(broker, _GROUP, queue))
        for one in found or ():
            attempts = one.message.origin.attempts if one.message.HasField("origin") else 0
            self.deliveries[one.text].append(attempts)
            if not self.is_mended and attempts < _fails(one.text):
                await self._fail(queue, one)
            await self._until_done(functools.partial(self._commit, queue, one.queue_offset + 1))

    async def _fail(self, queue: Queue, one: Seen) -> None:
        # One by its level, which is ten seconds.
        delay_ms = None if one.text == "j1" else 150
        failed = Failed(MessagePosition(queue, one.queue_offset), delay_ms, f"{one.text} failed")
        while True:
            self._sequence += 1
            sequence = self._sequence
            (result,) = await self._until_done(functools.partial(self._retry, sequence, failed))
            assert isinstance(result, RetryResult)
            if result.error is None:
                return
            await self._member.refresh()

    async def _commit(self, queue: Queue, queue_offset: int, broker: Broker) -> None:
        await broker.groups.commit(_GROUP, "worker", {queue: queue_offset})

    async def _retry(self, sequence: int, failed: Failed, broker: Broker) -> list[RetryResult]:
        return await broker.retrying.retry(_GROUP, "worker", sequence, [failed])

    async def _until_done(self, question: Callable[[Broker], Awaitable[Any]]) -> Any:
        """Joins again when the leader does not know it."""
        while True:
            try:
                return await self._world.ask(question)
            except ConnectionResetError:
                pass
            except MqError as error:
                if not (error.retryable or isinstance(error, UnknownMember | NotAssigned)):
                    raise
            await asyncio.sleep(0.1)
            await self._member.refresh()


def _fails(text: str) -> int:
    return _FAILS[int(text[1:]) % len(_FAILS)]


async def story(world: World, scale: int = 1) -> None:
    await make_topic(world, _TOPIC, 2)
    sender, worker = Sender(world, "sender"), Worker(world)
    texts = [f"j{at}" for at in range(5 * scale)]
    dead = [text for text in texts if _fails(text) > _LIMIT]
    world.arm()
    task = asyncio.get_running_loop().create_task(worker.run())
    for at, text in enumerate(texts):
        await sender.send(_TOPIC, text, queue_id=at % 2)
    wanted = sum(min(_fails(text), _LIMIT) + 1 for text in texts)

    def is_done(broker: Broker, count: int, letters: int) -> bool:
        if task.done():
            task.result()
        given = sum(map(len, worker.deliveries.values()))
        _, end = broker.groups.extent(_LETTERS)
        return given >= count and end >= letters and not broker.state.schedule.lanes

    await eventually(world, "all failed", lambda broker: is_done(broker, wanted, len(dead)))
    # An operator mends what was wrong, and sends the dead letters again.
    letters = visible((await world.until_led()), _LETTERS.topic)
    worker.is_mended = True
    await world.patiently(lambda broker: broker.dead_letters.resend_all(_GROUP))
    wanted += len(dead)
    await eventually(world, "all is done", lambda broker: is_done(broker, wanted, len(dead)))
    world.disarm()
    await world.settled()
    # Nothing more comes: nothing waits.
    await asyncio.sleep(2)
    worker.is_over = True
    await task
    _check(world, worker, texts, letters)


def _check(world: World, worker: Worker, texts: list[str], dead: list[Seen]) -> None:
    assert world.leader is not None
    process = world.leader.running
    copies: dict[str, list[int]] = defaultdict(list)
    for one in visible(process, names.retry_topic(_GROUP)):
        copies[one.text].append(one.message.origin.attempts)
        if one.message.origin.topic != _TOPIC or one.message.origin.reason != f"{one.text} failed":
            raise Violation(f"{one.text} forgot where it comes from: {one.message.origin}")
    letters: dict[str, list[int]] = defaultdict(list)
    for one in dead:
        letters[one.text].append(one.message.origin.attempts)
    for text in texts:
        is_dead = _fails(text) > _LIMIT
        # What was sent again after its death begins anew.
        attempts = [*range(1, min(_fails(text), _LIMIT) + 1), *([0] if is_dead else [])]
        if copies[text] != attempts:
            raise Violation(f"{text} came back with the attempts {copies[text]}, not {attempts}")
        if letters[text] != ([_LIMIT + 1] if is_dead else []):
            raise Violation(f"{text} failed {_fails(text)} times, dead: {letters[text]}")
        if worker.deliveries[text] != [0, *attempts]:
            raise Violation(f"{text} was delivered as {worker.deliveries[text]}")
    start, end = process.broker.groups.extent(_LETTERS)
    if start != end:
        raise Violation(f"dead letters {start} to {end} were sent again and are still there")
