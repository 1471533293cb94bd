"""The power cuts of a leg, one after the other, chosen by a seed: which nodes lose power, in which
of the two ways, and in which order they come back.

    all    every node of the set at once; a node that is alone, too
    one    one of three, leader or follower: the others go on. It catches up; every other time it is
           made the leader then
    two    one of three is away; the two others, which alone have what was acknowledged since, lose
           power at once. One of them comes back with the one that was away, and has to lead
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mq.client.aio import Admin
from tests.chaos import engine as questions
from tests.chaos.faults import Faults
from tests.power_loss.disks import Cut

if TYPE_CHECKING:
    import random
    import threading
    from collections.abc import Callable, Sequence

    from tests.chaos.checker import Ledger
    from tests.chaos.timeline import Timeline
    from tests.power_loss.engine import PoweredSet

_AWAY_S = (0.3, 1.5)
_TRANSFER_S = 60.0
# Longer than the loop of the clients stands still on a busy machine.
_SILENCE_S = 1.0
# So many answers are progress.
_ANSWERS = 20


@dataclass(frozen=True, slots=True)
class Round:
    """The disks were cut after `cut_s`; none of them was used again before `restored_s`. It
    `may_lose` some of the last that was acknowledged, with asynchronous flush.
    """

    who: str
    way: Cut
    cut_s: float
    restored_s: float
    may_lose: bool


class Cuts(Faults):
    def __init__(
        self,
        engine: PoweredSet,
        rng: random.Random,
        timeline: Timeline,
        ledger: Ledger,
        over: threading.Event,
        *,
        is_async: bool,
    ) -> None:
        super().__init__(engine, rng, timeline, ledger, over)
        self.rounds: list[Round] = []
        self._powered = engine
        self._is_async = is_async
        self._nodes = questions.nodes_of(engine)

    def kinds(self) -> list[Callable[[], None]]:
        found = [self._cut_all] if len(self._nodes) == 1 else [self._cut_all, self._cut_one] * 2
        if len(self._nodes) > 1:
            found.append(self._cut_two)
        return [
            lambda kind=kind, way=way: kind(way)  # type: ignore[misc] # one for each of them
            for kind in found
            for way in Cut
        ]

    def _cut_all(self, way: Cut) -> None:
        with self._fault(f"power of all, {way.value}", self._nodes):
            cut_s = self._cut_power(way, self._nodes)
            self._restore("all", way, cut_s, self._nodes)

    def _cut_one(self, way: Cut) -> None:
        leader = questions.leader(self._engine, self._set())
        node = self._rng.choice(self._nodes)
        who = "leader" if node == leader else "follower"
        with self._fault(f"power of {who}, {way.value}", [node]):
            cut_s = self._cut_power(way, [node])
            self._wait_progress()
            self._over.wait(self._rng.uniform(*_AWAY_S))
            self._restore(who, way, cut_s, [node])
            self._powered.wait_caught_up(node)
            if self._rng.random() < 0.5:
                self._lead(node)

    def _cut_two(self, way: Cut) -> None:
        away, first, second = self._rng.sample(self._nodes, 3)
        with self._fault(f"power of two, {way.value}", [first, second]):
            self._engine.kill(away)
            self._wait_progress()
            cut_s = self._cut_power(way, [first, second])
            self._restore("two", way, cut_s, [first], others=[away])
            self._wait_progress()
            # Only this one has what was acknowledged while the other was away.
            leader = questions.leader(self._engine, self._set())
            if leader != first and not self._is_async:
                raise AssertionError(f"{leader} leads, without what {first} alone has")
            self._powered.restore(second)

    def _cut_power(self, way: Cut, nodes: Sequence[str]) -> float:
        cut_s = self._timeline.now_s
        self._powered.cut(way, *nodes)
        return cut_s

    def _restore(
        self,
        who: str,
        way: Cut,
        cut_s: float,
        nodes: Sequence[str],
        others: Sequence[str] = (),
    ) -> None:
        may_lose = self._is_async and who in ("all", "two")
        if may_lose:
            self._wait_silence()
        self.rounds.append(Round(who, way, cut_s, self._timeline.now_s, may_lose))
        self._powered.restore(*nodes, others=others)

    def _wait_silence(self) -> None:
        """No node runs: until clients have read all answers that were on their way. They are of the
        time before the cut.
        """
        before, acked = -1, 0
        while before != acked:
            time.sleep(_SILENCE_S)
            before, acked = acked, sum(len(one.acked) for one in self._ledger.works.values())

    def _wait_progress(self) -> None:
        """Until more messages are acknowledged, all of them sent after this call."""
        sent = sum(map(len, self._timeline.steady.values()))

        def has_come() -> bool:
            return sum(map(len, self._timeline.steady.values())) > sent + _ANSWERS

        questions.wait(has_come, f"{_ANSWERS} more messages are acknowledged")

    def _lead(self, node: str) -> None:
        async def transfer() -> None:
            async with Admin(questions.servers_of(self._engine), timeout_s=_TRANSFER_S) as admin:
                await admin.transfer_leadership(node)

        asyncio.run(transfer())
