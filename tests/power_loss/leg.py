"""One leg of a power-loss run: a new broker set with the clients of a chaos run, and cuts; then
everything is drained, read once more and judged, as after a chaos run.

With synchronous flush nothing that was acknowledged may be missing. With asynchronous flush a cut
of all nodes may cost what was acknowledged within `ASYNC_LOSS_S` before it, and nothing else: such
losses are counted and `excused`. All other promises hold: what is left is whole, there once and in
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from mq.client.aio import PullConsumer
from tests.chaos import engine as questions
from tests.chaos.checker import Work
from tests.chaos.run import Run, names_in
from tests.chaos.workloads import FAILING, STEADY, TOPICS
from tests.power_loss.cuts import Cuts
from tests.power_loss.offsets import Committer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.chaos.faults import Faults
    from tests.power_loss.cuts import Round
    from tests.power_loss.engine import PoweredSet

# `store.async_flush_ms` is 0.5 s; a disk whose syncs take longer may lose two of them.
ASYNC_LOSS_S = 3.0
_SETTLE_S = 240.0


class Stamped(set[str]):
    """Names, and when each of them was added."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self.at_s: dict[str, float] = {}
        self._now_s = now_s

    def add(self, name: str) -> None:
        super().add(name)
        self.at_s.setdefault(name, self._now_s())

    def update(self, *names: Iterable[str]) -> None:
        for some in names:
            for name in some:
                self.add(name)


class Leg(Run):
    def __init__(
        self,
        engine: PoweredSet,
        seed: int,
        pause_s: float,
        tell: Callable[[str], None],
        *,
        is_async: bool,
    ) -> None:
        # The copy of a message that is to be retried may be lost, too, and its group has passed it.
        topics = [topic for topic in TOPICS if not (is_async and topic == FAILING)]
        super().__init__(engine, seed, pause_s, tell, topics=topics)
        rng = random.Random(seed)
        self._cuts = Cuts(engine, rng, self.timeline, self.ledger, self._over, is_async=is_async)
        self._committer: Committer | None = None
        # By round: how long before the cut the oldest message that it cost was acknowledged.
        self.excused: Counter[int] = Counter()
        self.oldest_excused_s: dict[int, float] = {}
        self.rewound = 0
        for topic in topics:
            self.ledger.works[topic] = Work(topic, acked=self._stamped(), done=self._stamped())

    @property
    def rounds(self) -> list[Round]:
        return self._cuts.rounds

    @property
    def commits(self) -> int:
        return self._committer.commits if self._committer else 0

    def acked_by_round(self) -> Counter[int]:
        """Messages whose answer came before the cut of a round, and after the one before it."""
        found: Counter[int] = Counter()
        for work in self.ledger.works.values():
            for at_s in _stamps(work.acked).values():
                number = sum(one.restored_s <= at_s for one in self.rounds)
                found[number] += 1
        return found

    def _stamped(self) -> Stamped:
        return Stamped(lambda: self.timeline.now_s)

    def _faults(self) -> Faults:
        return self._cuts

    # -- in place of what a chaos run does --------------------------------------------------------

    async def execute(self, seconds: float) -> None:
        await super().execute(seconds)
        # Leases last longer than draining: messages come again until the last client is closed.
        self.excuse_reappeared()

    async def torment(self, seconds: float) -> None:
        servers, (broker_set,) = questions.servers_of(self._engine), self._engine.sets
        self._committer = Committer(servers, STEADY, broker_set, lambda: self.timeline.now_s)
        committing = asyncio.create_task(self._committer.run())
        try:
            await super().torment(seconds)
        finally:
            committing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await committing
        await self._committer.check()
        for at_s, what in self._committer.rewound:
            if self._round_that_cost(at_s) is None:
                self.rewound += 1
                self.ledger.errors.append(f"an offset went back: {what}")

    async def _drain(self) -> None:
        if any(one.may_lose for one in self.rounds):
            await self._settle()
            self.excuse_lost(await self._stored_names())
        await super()._drain()

    # -- asynchronous flush ------------------------------------------------------------------------

    def _round_that_cost(self, acked_s: float) -> int | None:
        """The number of the round that may have cost what was acknowledged then."""
        for number, one in enumerate(self.rounds):
            if one.may_lose and one.cut_s - ASYNC_LOSS_S <= acked_s <= one.restored_s:
                return number
        return None

    async def _settle(self) -> None:
        """Until nothing waits to come to its topic: then what is not there is lost."""
        async with self._admin() as admin, asyncio.timeout(_SETTLE_S):
            waiting = 1
            while waiting:
                await asyncio.sleep(0.2)
                transactions = await admin.list_transactions(max_transactions=1)
                waiting = transactions.open + (await admin.count_scheduled()).messages

    def excuse_lost(self, stored: set[str]) -> None:
        """Takes out of the ledger what is not stored because of a cut that may lose."""
        for work in self.ledger.works.values():
            for name in work.acked - stored:
                self._excuse_one(work.acked, name)

    def excuse_reappeared(self) -> None:
        """What was given out again because such a cut cost the word that it was done."""
        for work in self.ledger.works.values():
            for name in list(work.reappeared):
                if self._round_that_cost(_stamps(work.done)[name]) is not None:
                    work.reappeared.discard(name)

    def _excuse_one(self, names: set[str], name: str) -> None:
        at_s = _stamps(names)[name]
        number = self._round_that_cost(at_s)
        if number is None:
            return
        names.discard(name)
        self.excused[number] += 1
        age_s = self.rounds[number].cut_s - at_s
        self.oldest_excused_s[number] = max(self.oldest_excused_s.get(number, 0.0), age_s)

    async def _stored_names(self) -> set[str]:
        """What is on all topics by now."""
        async with PullConsumer(questions.servers_of(self._engine)) as reader:
            return {
                name
                for topic in self._topics
                for queue in await reader.queues(topic)
                async for name in names_in(reader, queue)
            }


def _stamps(names: Any) -> dict[str, float]:
    assert isinstance(names, Stamped)
    return names.at_s
