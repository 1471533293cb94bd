"""One chaos run: clients at work, faults meanwhile; then everything is healed, drained, read once
more and judged.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import TYPE_CHECKING

from mq.client.aio import Admin, PullConsumer
from tests.chaos import engine as questions
from tests.chaos import rocketmq
from tests.chaos.bodies import name_in
from tests.chaos.checker import Ledger
from tests.chaos.faults import Faults
from tests.chaos.timeline import Timeline
from tests.chaos.workloads import PATIENCE_S, TOPICS, Clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from mq.client.messages import QueueRef
    from tests.chaos.checker import Work
    from tests.chaos.engine import Engine

_QUEUES = 8
_USER = "shop"
# Retries and checks take seconds, what a broker has to take back from RocketMQ's push consumers two
# minutes; machines that are shared stand still for longer.
_STILL_S = 240.0
_TOLD_S = 5.0
_CALM_S = 60.0
_PULL_MESSAGES = 1_000


class Run:
    """`execute` it once; then `ledger` and `timeline` have what happened."""

    def __init__(
        self,
        engine: Engine,
        seed: int,
        pause_s: float,
        tell: Callable[[str], None],
        only: Collection[str] = (),
        topics: Sequence[str] = TOPICS,
        *,
        has_rocketmq: bool = False,
    ) -> None:
        """`pause_s` and `topics` as in `Clients`, `only` as in `Faults`. With `has_rocketmq` its
        client is at work, too.
        """
        self.ledger = Ledger()
        self.timeline = Timeline(time.monotonic)
        self._engine = engine
        self._seed = seed
        self._pause_s = pause_s
        self._tell = tell
        self._only = only
        self._topics = topics
        self._rocketmq_topics = rocketmq.TOPICS if has_rocketmq else ()
        self._over = threading.Event()
        self._is_calm = threading.Event()
        self._is_calm.set()

    async def execute(self, seconds: float) -> None:
        """Whatever goes wrong is in the ledger."""
        try:
            await self._execute(seconds)
        except Exception as error:  # noqa: BLE001 - such as a broker that does not start again
            self.ledger.errors.append(f"the run did not come to its end: {error!r}")
        self.timeline.judge()

    async def _execute(self, seconds: float) -> None:
        # A topic is spread over the sets that are known.
        await asyncio.to_thread(questions.wait_known, self._engine)
        async with self._admin() as admin:
            for topic in self._topics:
                await admin.create_topic(topic, _QUEUES)
            for topic in self._rocketmq_topics:
                is_ordered = topic == rocketmq.GROUPED
                await admin.create_topic(topic, _QUEUES, type="ordered" if is_ordered else "normal")
            clients = await self._clients(admin)
        topics = (*self._topics, *self._rocketmq_topics)
        await asyncio.to_thread(questions.wait_known, self._engine, topics)
        self.timeline.phase("sending")
        for one in clients:
            await one.start()
        await self.torment(seconds)
        self.timeline.phase("draining")
        for one in clients:
            await one.stop()
        self._tell("all is sent; draining")
        await self._drain()
        for one in clients:
            await one.close()
        self.timeline.phase("reading")
        await asyncio.to_thread(questions.wait_same, self._engine)
        self._tell("drained; reading everything once more")
        await self._read_topics()

    def calm_down(self) -> None:
        """Ends the faults, when the run is broken off: what is healed can be stopped."""
        self._over.set()
        self._is_calm.wait(_CALM_S)

    def _admin(self) -> Admin:
        servers, access = questions.servers_of(self._engine), self._engine.access.options
        return Admin(servers, timeout_s=PATIENCE_S, **access)

    async def _clients(self, admin: Admin) -> list[Clients | rocketmq.RocketMqClients]:
        """Where callers are known, they are those of a user that may do its work and no more."""
        access, key = self._engine.access, {}
        if access.api_key:
            await admin.create_user(_USER)
            for topic in (*self._topics, *self._rocketmq_topics):
                await admin.add_policy(f"user:{_USER}", f"allow publish,consume topic {topic}")
            await admin.add_policy(f"user:{_USER}", "allow consume group *")
            access = access._replace(api_key=(await admin.create_key(_USER)).text)
            made = await admin.create_access_key(_USER)
            key = {"ROCKETMQ_ACCESS_KEY": made.id, "ROCKETMQ_SECRET_KEY": made.secret}
        work = self.ledger, self.timeline, self._engine
        pace = self._seed, self._pause_s
        clients: list[Clients | rocketmq.RocketMqClients] = [
            Clients(*work, access, *pace, self._topics)
        ]
        if self._rocketmq_topics:
            clients.append(rocketmq.RocketMqClients(*work, key, *pace))
        return clients

    def _faults(self) -> Faults:
        rng = random.Random(self._seed)
        return Faults(self._engine, rng, self.timeline, self.ledger, self._over, self._only)

    async def torment(self, seconds: float) -> None:
        """The faults, while clients are at work."""
        faults = self._faults()

        def tell(what: str) -> None:
            self._tell(f"{what}; {self.ledger.progress()}")

        def torment() -> None:
            self._is_calm.clear()
            try:
                faults.run(tell)
            finally:
                self._is_calm.set()

        under_way = asyncio.create_task(asyncio.to_thread(torment))
        await asyncio.wait([under_way], timeout=seconds)
        self._over.set()
        await under_way

    async def _drain(self) -> None:
        """Until everything acknowledged was seen, and no transaction is open; or nothing moves."""
        changed_s = told_s = time.monotonic()
        left = ""
        async with self._admin() as admin:
            while time.monotonic() < changed_s + _STILL_S:
                transactions = await admin.list_transactions(max_transactions=1)
                if self.ledger.is_drained and not transactions.open:
                    return
                before, left = left, f"{self.ledger.waiting()}, {transactions.open} transactions"
                changed_s = changed_s if left == before else time.monotonic()
                if time.monotonic() - told_s > _TOLD_S:
                    told_s = time.monotonic()
                    self._tell(f"draining: {left}")
                await asyncio.sleep(0.3)
        self.ledger.errors.append(f"not drained, for {_STILL_S:g} s nothing has changed: {left}")

    async def _read_topics(self) -> None:
        """Each message of each topic, once, by where it stands."""
        servers, access = questions.servers_of(self._engine), self._engine.access.options
        async with PullConsumer(servers, **access) as reader:
            for work in self.ledger.works.values():
                for queue in await reader.queues(work.topic):
                    await self._read(reader, work, queue)

    async def _read(self, reader: PullConsumer, work: Work, queue: QueueRef) -> None:
        names = [name async for name in names_in(reader, queue)]
        work.holds(f"{queue.broker_set}/{queue.queue_id}", names)


async def names_in(reader: PullConsumer, queue: QueueRef) -> AsyncIterator[str]:
    """Of all messages of a queue, from its beginning."""
    at, end = 0, 1
    while at < end:
        result = await reader.pull(
            queue.topic,
            queue.queue_id,
            at,
            max_messages=_PULL_MESSAGES,
            broker_set=queue.broker_set,
        )
        for message in result.messages:
            yield name_in(message.body)
        at, end = result.next_offset, result.end
