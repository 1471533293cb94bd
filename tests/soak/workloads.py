"""What the clients of a soak do, with the client library as users have it: five kinds of work, each
on a topic of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from typing import TYPE_CHECKING, Any

from mq.client import Nack
from mq.client.aio import Message, Producer, PushConsumer, SimpleConsumer, TransactionProducer
from mq.errors import MqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from mq.client import HalfMessage, ReceivedMessage
    from tests.soak.ledger import Ledger, Work

PLAIN, LATER, IN_TRANSACTION, TAKEN, FAILING = "plain", "later", "transacted", "taken", "failing"
TOPICS = (PLAIN, LATER, IN_TRANSACTION, TAKEN, FAILING)
# A client that finds no leader goes on trying for so long.
PATIENCE_S = 60.0
_INVISIBLE_S = 10.0


class Clients:
    """Starts all of them; `stop` ends the sending, `close` the rest."""

    def __init__(self, ledger: Ledger, servers: str, seed: int) -> None:
        self._ledger = ledger
        self._servers = servers
        self._rng = random.Random(seed)
        self._numbers = itertools.count(1)
        self._is_sending = True
        self._closing = asyncio.Event()
        self._senders: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        # What a service knows of its own transactions: what became of each.
        self._executed: dict[str, str] = {}

    async def start(self) -> None:
        for topic in (PLAIN, LATER, TAKEN, FAILING):
            self._senders.append(self._run(self._send(self._ledger.work(topic))))
        self._transacting = TransactionProducer(
            self._servers, "shop", self._execute, self._check, timeout_s=PATIENCE_S
        )
        await self._transacting.start()
        for _ in range(4):
            self._senders.append(self._run(self._transact(self._ledger.work(IN_TRANSACTION))))
        for topic, handler in (
            (PLAIN, self._see),
            (LATER, self._see),
            (IN_TRANSACTION, self._see),
            (FAILING, self._fail_first),
        ):
            self._others.append(self._run(self._consume(topic, handler)))
        for at in range(3):
            self._others.append(self._run(self._take(self._ledger.work(TAKEN), f"taker-{at}")))

    async def stop(self) -> None:
        """Returns when everything that was sent has an answer."""
        self._is_sending = False
        await asyncio.gather(*self._senders)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.gather(*self._others)
        await self._transacting.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._watched(work))

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - it is counted, and the others go on
            self._ledger.errors.append(f"{work}: {error!r}")

    # -- sending -----------------------------------------------------------------------------------

    async def _pace(self, pause_s: float) -> AsyncIterator[str]:
        while self._is_sending:
            yield f"m{next(self._numbers)}"
            await asyncio.sleep(self._rng.uniform(0, 2 * pause_s))

    async def _send(self, work: Work) -> None:
        """Some at a time, not waiting for answers one by one."""
        under_way: set[asyncio.Task[None]] = set()
        async with Producer(self._servers, timeout_s=PATIENCE_S, retries=1_000) as producer:
            async for name in self._pace(0.005):
                task = asyncio.create_task(self._send_one(producer, work, name))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                if len(under_way) >= 500:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            if under_way:
                await asyncio.wait(under_way)

    async def _send_one(self, producer: Producer, work: Work, name: str) -> None:
        work.sent += 1
        delay_s = round(self._rng.uniform(1, 5), 2) if work.topic == LATER else 0.0
        began_ms = _now_ms()
        # Before there is an answer: somebody may see it sooner than that.
        work.due_ms[name] = began_ms + round(delay_s * 1000)
        try:
            result = await producer.send(work.topic, Message(name.encode(), delay_s=delay_s))
        except MqError:
            work.unknown += 1
            return
        work.acked.add(name)
        work.due_ms[name] = max(work.due_ms[name], result.deliver_at_ms)

    # -- transactions ------------------------------------------------------------------------------

    async def _transact(self, work: Work) -> None:
        async for name in self._pace(0.03):
            plan = self._rng.choice(
                ("COMMIT", "COMMIT", "ROLLBACK", "LATER COMMIT", "LATER ROLLBACK")
            )
            work.sent += 1
            if plan.endswith("ROLLBACK"):
                work.forbidden.add(name)
            try:
                result = await self._transacting.send_in_transaction(
                    work.topic, Message(name.encode()), plan
                )
            except MqError:
                work.unknown += 1
                if name not in self._executed:
                    work.forbidden.add(name)
                continue
            if result.state == "COMMIT" or plan.endswith("COMMIT"):
                # Also when no word came: then the broker asks, and is told.
                work.acked.add(name)

    async def _execute(self, message: HalfMessage, plan: str) -> str:
        self._executed[message.body.decode()] = plan.removeprefix("LATER ")
        return "UNKNOWN" if plan.startswith("LATER") else plan

    async def _check(self, message: HalfMessage) -> str:
        """One that was never begun here, as far as this service knows, is not to be."""
        missing = "ROLLBACK" if message.check > 20 else "UNKNOWN"
        return self._executed.get(message.body.decode(), missing)

    # -- consuming ---------------------------------------------------------------------------------

    async def _consume(
        self, topic: str, handler: Callable[[Work, ReceivedMessage], Awaitable[None]]
    ) -> None:
        work = self._ledger.work(topic)

        async def handle(message: ReceivedMessage) -> None:
            await handler(work, message)

        group = f"{topic}-readers"
        consumer = PushConsumer(self._servers, group, topic, handle, start="earliest")
        async with consumer:
            await self._closing.wait()

    async def _see(self, work: Work, message: ReceivedMessage) -> None:
        work.see(message.body.decode(), _now_ms())

    async def _fail_first(self, work: Work, message: ReceivedMessage) -> None:
        """Every third one fails twice."""
        name = message.body.decode()
        if int(name[1:]) % 3 == 0 and message.attempt <= 2:
            raise Nack("for this soak", delay_s=0.3 * message.attempt)
        work.see(name, _now_ms())

    async def _take(self, work: Work, name: str) -> None:
        rng = random.Random(name)
        async with SimpleConsumer(self._servers, "takers", work.topic, start="earliest") as taker:
            while not self._closing.is_set():
                try:
                    messages = await taker.receive(16, wait_s=1, invisible_s=_INVISIBLE_S)
                except MqError:
                    await asyncio.sleep(0.2)
                    continue
                received = [(each.body.decode(), each) for each in messages]
                work.reappeared.update(name for name, _ in received if name in work.done)
                if self._is_sending and rng.random() < 0.1:
                    continue  # as if it had died: they come again
                done = [one for one in received if not self._is_sending or rng.random() < 0.9]
                await self._settle(taker, work, done)
                back = [each for one, each in received if one not in {name for name, _ in done}]
                if back:
                    await _quietly(taker.nack(back, delay_s=0.2))

    async def _settle(
        self, taker: SimpleConsumer, work: Work, done: list[tuple[str, ReceivedMessage]]
    ) -> None:
        if not done:
            return
        began_s = time.monotonic()
        try:
            await taker.ack([each for _, each in done])
        except MqError:
            return  # it may be done, and may come again
        for name, _ in done:
            work.see(name, _now_ms())
            # An acknowledgement that came after the time was over may have found another's lease.
            if time.monotonic() - began_s < _INVISIBLE_S / 2:
                work.done.add(name)


async def _quietly(work: Awaitable[object]) -> None:
    # They come again when their time is over.
    with contextlib.suppress(MqError):
        await work


def _now_ms() -> int:
    return int(time.time() * 1000)
