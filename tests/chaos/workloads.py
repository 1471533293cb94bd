"""The work of the clients of a chaos run, with the public client library: several kinds, each on a
topic of its own that is spread over all broker sets.

Sends have a minute and as many retries as they like: within that a fault is a pause, no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from mq.client import Nack
from mq.client.aio import Message, Producer, PushConsumer, SimpleConsumer, TransactionProducer
from mq.errors import MqError, Unreachable
from tests.chaos import engine as questions
from tests.chaos.bodies import body_of, name_in
from tests.chaos.faults import CLOCK_STEP_MS_MAX

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Coroutine,
        Iterable,
    )

    from mq.client import HalfMessage, ReceivedMessage
    from mq.client.consumer.options import Mode
    from tests.chaos.checker import Ledger, Work
    from tests.chaos.engine import Access, Engine
    from tests.chaos.timeline import Timeline

PLAIN, LATER, IN_TRANSACTION = "plain", "later", "transacted"
TAKEN, FAILING, ORDERED, STEADY = "taken", "failing", "ordered", "steady"
TOPICS = (PLAIN, LATER, IN_TRANSACTION, TAKEN, FAILING, ORDERED, STEADY)
# Looked for by their keys, while the key index rots.
_KEYED = (PLAIN, ORDERED)
# A client that finds no leader goes on trying for so long.
PATIENCE_S = 60.0
_INVISIBLE_S = 10.0
_LANES = [f"lane{at}" for at in range(12)]
_UNDER_WAY_MAX = 500
_STEADY_PAUSE_S = 0.01
_TRANSACTING = 3


class Clients:
    """`start` begins with the work on each of `topics`; `stop` ends the sending, `close` the rest.
    `access` is what clients show, `pause_s` the mean time between two messages of one kind.
    """

    def __init__(
        self,
        ledger: Ledger,
        timeline: Timeline,
        engine: Engine,
        access: Access,
        seed: int,
        pause_s: float,
        topics: Collection[str] = TOPICS,
    ) -> None:
        self._topics = topics
        self._ledger = ledger
        self._timeline = timeline
        self._servers = questions.servers_of(engine)
        self._access = access.options
        self._sets = list(engine.sets)
        self._pause_s = pause_s
        self._rng = random.Random(seed)
        self._numbers = itertools.count(1)
        self._lanes: Counter[str] = Counter()
        self._is_sending = True
        self._closing = asyncio.Event()
        self._senders: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        # What a service knows of its own transactions: what became of each.
        self._executed: dict[str, str] = {}
        self._transacting = TransactionProducer(
            self._servers,
            "shop",
            self._execute,
            self._check,
            timeout_s=PATIENCE_S,
            **self._access,
        )

    async def start(self) -> None:
        if IN_TRANSACTION in self._topics:
            await self._transacting.start()
        for topic in self._topics:
            self._senders += map(self._run, self._senders_of(topic))
            self._others += map(self._run, self._readers_of(topic))

    def _senders_of(self, topic: str) -> Iterable[Coroutine[Any, Any, None]]:
        work = self._ledger.work(topic)
        if topic == ORDERED:
            return [self._send_lanes(work)]
        if topic == STEADY:
            return [self._beat(work, name) for name in self._sets]
        if topic == IN_TRANSACTION:
            return [self._transact(work) for _ in range(_TRANSACTING)]
        return [self._send(work)]

    def _readers_of(self, topic: str) -> Iterable[Coroutine[Any, Any, None]]:
        if topic == ORDERED:
            see = self._see_in_order
            return [self._consume(topic, name, see, mode="ordered") for name in ("first", "second")]
        if topic == TAKEN:
            work = self._ledger.work(topic)
            return [self._take(work, f"taker-{at}") for at in range(3)]
        return [self._consume(topic, "reader", self._fail_first if topic == FAILING else self._see)]

    async def stop(self) -> None:
        """Returns when everything that was sent has an answer."""
        self._is_sending = False
        await asyncio.gather(*self._senders)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.gather(*self._others)
        if IN_TRANSACTION in self._topics:
            await self._transacting.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._watched(work))

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - it is counted, and the others go on
            self._ledger.errors.append(f"{work}: {error!r}")

    def _name(self, message: ReceivedMessage | HalfMessage) -> str:
        """The name of the message. A damaged one is an error of the run, also when a client hides
        it.
        """
        try:
            return name_in(message.body)
        except ValueError as error:
            self._ledger.errors.append(str(error))
            raise

    # -- sending -----------------------------------------------------------------------------------

    async def _pace(self, pause_s: float) -> AsyncIterator[str]:
        while self._is_sending:
            yield f"m{next(self._numbers)}"
            await asyncio.sleep(self._rng.uniform(0, 2 * pause_s))

    async def _send(self, work: Work) -> None:
        """Some at a time, not waiting for answers one by one."""
        async with self._producer() as producer, _UnderWay() as under_way:
            async for name in self._pace(self._pause_s):
                await under_way.add(self._send_one(producer, work, name))

    async def _send_lanes(self, work: Work) -> None:
        async with self._producer() as producer, _UnderWay() as under_way:
            async for _ in self._pace(self._pause_s):
                lane = self._rng.choice(_LANES)
                self._lanes[lane] += 1
                name = f"{lane}.{self._lanes[lane]}"
                await under_way.add(self._send_one(producer, work, name, lane=lane))

    async def _beat(self, work: Work, broker_set: str) -> None:
        """One after the other, to one set: its pauses are what a fail-over costs."""
        async with self._producer() as producer:
            async for name in self._pace(_STEADY_PAUSE_S):
                await self._send_one(producer, work, name, broker_set=broker_set)
                if name in work.acked:
                    self._timeline.beat(broker_set)

    def _producer(self) -> Producer:
        return Producer(self._servers, timeout_s=PATIENCE_S, retries=1_000, **self._access)

    async def _send_one(
        self, producer: Producer, work: Work, name: str, *, lane: str = "", broker_set: str = ""
    ) -> None:
        delay_s = round(self._rng.uniform(1, 5), 2) if work.topic == LATER else 0.0
        began_s, began_ms = time.monotonic(), _now_ms()
        # Before there is an answer: a consumer may see it sooner than that.
        work.sent.add(name)
        if delay_s:
            work.due_ms[name] = began_ms + round(delay_s * 1000)
        message = Message(body_of(name), keys=[name], delay_s=delay_s, ordering_key=lane)
        place: dict[str, Any] = {"queue_id": 0, "broker_set": broker_set} if broker_set else {}
        try:
            result = await producer.send(work.topic, message, **place)
        except MqError as error:
            self._ledger.failed(work, name, error)
            return
        work.acked.add(name)
        self._timeline.acknowledge(time.monotonic() - began_s)
        work.told(name, f"{result.broker_set}/{result.queue_id}", self._timeline.now_s)
        if delay_s:
            work.due_ms[name] = max(work.due_ms[name], result.deliver_at_ms)

    # -- transactions ------------------------------------------------------------------------------

    async def _transact(self, work: Work) -> None:
        async for name in self._pace(_TRANSACTING * self._pause_s):
            plan = self._rng.choice(
                ("COMMIT", "COMMIT", "ROLLBACK", "LATER COMMIT", "LATER ROLLBACK")
            )
            work.sent.add(name)
            if plan.endswith("ROLLBACK"):
                work.forbidden.add(name)
            began_s = time.monotonic()
            try:
                result = await self._transacting.send_in_transaction(
                    work.topic, Message(body_of(name)), plan
                )
            except MqError as error:
                self._ledger.failed(work, name, error)
                if name not in self._executed:
                    work.forbidden.add(name)
                continue
            if result.state == "COMMIT" or plan.endswith("COMMIT"):
                # Also when no word came: then the broker asks, and is told.
                work.acked.add(name)
                self._timeline.acknowledge(time.monotonic() - began_s)

    async def _execute(self, message: HalfMessage, plan: str) -> str:
        self._executed[self._name(message)] = plan.removeprefix("LATER ")
        return "UNKNOWN" if plan.startswith("LATER") else plan

    async def _check(self, message: HalfMessage) -> str:
        """One that was never begun here, as far as this service knows, is not to be."""
        missing = "ROLLBACK" if message.check > 20 else "UNKNOWN"
        return self._executed.get(self._name(message), missing)

    # -- consuming ---------------------------------------------------------------------------------

    async def _consume(
        self,
        topic: str,
        member: str,
        handler: Callable[[Work, ReceivedMessage, str], Awaitable[None]],
        mode: Mode = "clustering",
    ) -> None:
        work = self._ledger.work(topic)

        async def handle(message: ReceivedMessage) -> None:
            await handler(work, message, member)

        # A start has 5 s: less than a fault may take, or a machine that is shared.
        while not self._closing.is_set():
            consumer = PushConsumer(
                self._servers,
                f"{topic}-readers",
                topic,
                handle,
                start="earliest",
                mode=mode,
                **self._access,
            )
            with contextlib.suppress(Unreachable):
                async with consumer:
                    await self._closing.wait()

    async def _see(self, work: Work, message: ReceivedMessage, _: str) -> None:
        self._saw(work, self._name(message))

    def _saw(self, work: Work, name: str) -> None:
        self._timeline.see()
        if work.topic in _KEYED and name not in work.seen:
            work.keyed.append(name)
        work.see(name, _now_ms(), CLOCK_STEP_MS_MAX)

    async def _fail_first(self, work: Work, message: ReceivedMessage, _: str) -> None:
        """Every third one fails twice."""
        name = self._name(message)
        if int(name[1:]) % 3 == 0 and message.attempt <= 2:
            raise Nack("for this run", delay_s=0.3 * message.attempt)
        self._saw(work, name)

    async def _see_in_order(self, work: Work, message: ReceivedMessage, member: str) -> None:
        name = self._name(message)
        work.take(name, member)
        self._saw(work, name)
        # Others would have the time to come in between.
        await asyncio.sleep(0)
        work.leave(name, member)

    async def _take(self, work: Work, member: str) -> None:
        rng = random.Random(member)
        async with SimpleConsumer(
            self._servers, "takers", work.topic, start="earliest", **self._access
        ) as taker:
            while not self._closing.is_set():
                try:
                    messages = await taker.receive(16, wait_s=1, invisible_s=_INVISIBLE_S)
                except MqError:
                    await asyncio.sleep(0.2)
                    continue
                received = [(self._name(each), each) for each in messages]
                for name, _ in received:
                    work.receive(name)
                if self._is_sending and rng.random() < 0.1:
                    continue  # as if it had died: they come again
                done = [one for one in received if not self._is_sending or rng.random() < 0.9]
                await self._settle(taker, work, done)
                back = [each for one, each in received if one not in {name for name, _ in done}]
                if back:
                    # They come again when their time is over, if not before.
                    with contextlib.suppress(MqError):
                        await taker.nack(back, delay_s=0.2)

    async def _settle(
        self, taker: SimpleConsumer, work: Work, done: list[tuple[str, ReceivedMessage]]
    ) -> None:
        if not done:
            return
        for name, _ in done:
            self._saw(work, name)
        began_s = time.monotonic()
        try:
            await taker.ack([each for _, each in done])
        except MqError:
            return  # they may be done, and may come again
        # An acknowledgement that came after the time was over may have found another's lease.
        if time.monotonic() - began_s < _INVISIBLE_S / 2:
            work.done.update(name for name, _ in done)


class _UnderWay:
    """Sends that have no answer yet: so many at the most."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(self._tasks) >= _UNDER_WAY_MAX:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)


def _now_ms() -> int:
    return int(time.time() * 1000)
