"""RocketMQ 5's own client for Go at work in a chaos run: sends, a push consumer, receives with
acknowledgements, and message groups in order.

Its promise is less than that of ours: a send that it tries again is stored twice, and a message
comes at least once. So copies are counted and are no error. A send of a message group is repeated
by its name until it is acknowledged, as an application would that needs the order.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.chaos import engine as questions
from tests.chaos.bodies import body_of, name_in
from tests.rocketmq.official.client import CLIENTS, Client, ClientError
from tests.support.foreign import programs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence

    from tests.chaos.checker import Ledger, Work
    from tests.chaos.engine import Engine
    from tests.chaos.timeline import Timeline

PUSHED, RECEIVED, GROUPED = "rocketmq-pushed", "rocketmq-received", "rocketmq-grouped"
TOPICS = (PUSHED, RECEIVED, GROUPED)
# Of sends at once; each of them waits for its answer.
_SENDERS = 3
_GROUPS = 4
_ANSWER_S = 120.0
_INVISIBLE_S = 10
_AGAIN_S = 0.2


def why_not() -> str:
    """The reason why it cannot be built here; empty if it can."""
    return "there is no Go" if programs.missing("go") else ""


def command() -> list[str]:
    """Built, if it was not."""
    return programs.command("go", CLIENTS / "go")


class RocketMqClients:
    """`start`, `stop` and `close` as of `workloads.Clients`."""

    def __init__(
        self,
        ledger: Ledger,
        timeline: Timeline,
        engine: Engine,
        key: Mapping[str, str],
        seed: int,
        pause_s: float,
    ) -> None:
        """`key` has the variables by which its client knows its access key."""
        self._ledger = ledger
        self._timeline = timeline
        self._endpoints = questions.servers_of(engine).replace(",", ";")
        self._environment = {**key, "ROCKETMQ_TLS": "1" if engine.access.ca else "0"}
        self._rng = random.Random(seed)
        self._pause_s = pause_s
        self._numbers = itertools.count(1)
        self._is_sending = self._is_open = True
        self._tasks: list[asyncio.Task[None]] = []
        self._receiving: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(2 * _SENDERS + _GROUPS + 1)
        for topic in TOPICS:
            ledger.work(topic).may_repeat = True

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        def on_event(event: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(self._see_event, event)

        self._client = Client(
            command(),
            self._endpoints,
            self._environment,
            on_event=on_event,
        )
        # By the numbers of its consumers.
        self._pushed: dict[int, Work] = {}
        for topic in (PUSHED, GROUPED):
            answer = await self._do("push", topic=topic, group=f"{topic}-readers")
            self._pushed[answer["consumer"]] = self._ledger.work(topic)
        answer = await self._do("simple", topic=RECEIVED, group="rocketmq-takers", await_s=2)
        self._receiving = asyncio.create_task(self._watched(self._receive(answer["consumer"])))
        work: list[Coroutine[Any, Any, None]] = []
        for topic in (PUSHED, RECEIVED):
            work += [self._send(self._ledger.work(topic)) for _ in range(_SENDERS)]
        work += [
            self._send_group(self._ledger.work(GROUPED), f"group{at}") for at in range(_GROUPS)
        ]
        self._tasks = [asyncio.create_task(self._watched(one)) for one in work]

    async def stop(self) -> None:
        """Returns when everything that was sent has an answer."""
        self._is_sending = False
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        self._is_open = False
        if self._receiving is not None:
            await self._receiving
        self._client.__exit__()

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - it is counted, and the others go on
            self._ledger.errors.append(f"RocketMQ's client: {work}: {error!r}")

    async def _do(self, deed: str, **fields: Any) -> dict[str, Any]:
        """ClientError."""
        wait: Callable[[float], dict[str, Any]] = self._client.begin(deed, **fields)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, wait, _ANSWER_S)

    # -- sending -----------------------------------------------------------------------------------

    async def _paced(self) -> AsyncIterator[None]:
        while self._is_sending:
            yield
            await asyncio.sleep(self._rng.uniform(0, 2 * _SENDERS * self._pause_s))

    async def _send(self, work: Work) -> None:
        async for _ in self._paced():
            name = f"r{next(self._numbers)}"
            try:
                await self._send_one(work, name)
            except ClientError as error:
                self._ledger.failed(work, name, error)

    async def _send_group(self, work: Work, group: str) -> None:
        numbers = itertools.count(1)
        async for _ in self._paced():
            name = f"{group}.{next(numbers)}"
            while name not in work.acked:
                try:
                    await self._send_one(work, name, message_group=group)
                except ClientError as error:
                    self._ledger.refuse(work, error)
                    await asyncio.sleep(_AGAIN_S)

    async def _send_one(self, work: Work, name: str, **fields: str) -> None:
        began_s = time.monotonic()
        work.sent.add(name)
        await self._do("send", topic=work.topic, body=body_of(name).decode(), **fields)
        work.acked.add(name)
        self._timeline.acknowledge(time.monotonic() - began_s)

    # -- consuming ---------------------------------------------------------------------------------

    def _see_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "message":
            self._see(self._pushed[event["consumer"]], [event["message"]])

    def _see(self, work: Work, messages: Sequence[Mapping[str, Any]]) -> None:
        for message in messages:
            try:
                name = name_in(message["body"].encode())
            except ValueError as error:
                self._ledger.errors.append(str(error))
                continue
            self._timeline.see()
            work.see(name, int(time.time() * 1000))

    async def _receive(self, consumer: int) -> None:
        work = self._ledger.work(RECEIVED)
        while self._is_open:
            try:
                answer = await self._do(
                    "receive", consumer=consumer, count=32, invisible_s=_INVISIBLE_S
                )
            except ClientError:
                await asyncio.sleep(_AGAIN_S)
                continue
            self._see(work, answer["messages"])
            acks = [
                self._do("ack", consumer=consumer, message_id=one["message_id"])
                for one in answer["messages"]
            ]
            # What is not acknowledged comes again.
            for failed in await asyncio.gather(*acks, return_exceptions=True):
                if not isinstance(failed, dict | ClientError):
                    raise failed
