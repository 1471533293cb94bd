"""One fault under load: before, during and after it, what producers see of it.

The load is that of a chaos run, of two kinds: messages in lanes at a fixed pace, whatever becomes
of those before, and a producer that sends one after the other. p50 and p99 are of all sends that
were begun in a phase and acknowledged in the end; a pause is the longest time without an
acknowledgement for the second kind. A send has a minute: a fault should be a pause, no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos import engine as questions
from tests.chaos.run import Run
from tests.chaos.timeline import longest_gap_s
from tests.chaos.workloads import ORDERED, STEADY
from tests.faults.engine import HURT, SET
from tests.faults.faults import LEADER, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.timeline import Timeline
    from tests.faults.engine import NamespaceEngine
    from tests.faults.faults import Fault

BEFORE, DURING, AFTER = "before", "during", "after"
_PAUSE_S = 0.015
# New clients and brokers are slow at first.
_WARM_S = 2.0
# Between two phases: a pause that begins with a fault is none of before.
_APART_S = 0.5


@dataclass(frozen=True)
class Figures:
    sends: int
    p50_ms: float
    p99_ms: float
    pause_ms: float


@dataclass
class Result:
    fault: str
    role: str
    text: str
    phases: dict[str, Figures] = field(default_factory=dict)
    elections: int = 0
    # From the end of the fault until all nodes were in order.
    well_again_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    verdict: dict[str, int] = field(default_factory=dict)
    # What is wrong; empty if every promise was kept.
    details: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


class Trial(Run):
    """`execute` it once, with the length of a phase; then `result` has what happened."""

    def __init__(
        self, engine: NamespaceEngine, fault: Fault, role: str, tell: Callable[[str], None]
    ) -> None:
        super().__init__(engine, 1, _PAUSE_S, tell, topics=(ORDERED, STEADY))
        self.result = Result(fault.name, role, fault.text)
        self._cluster = engine
        self._fault = fault
        self._spans: dict[str, tuple[float, float]] = {}

    async def execute(self, seconds: float) -> None:
        await super().execute(seconds)
        result = self.result
        result.verdict = self.ledger.verdict()
        for name, (start_s, end_s) in self._spans.items():
            result.phases[name] = figures(self.timeline, start_s, end_s)
        if not self.ledger.is_good():
            result.details = self.ledger.details() or "nothing was acknowledged"

    async def torment(self, seconds: float) -> None:
        await asyncio.to_thread(self._phases, seconds)

    def _phases(self, seconds: float) -> None:
        cluster, result = self._cluster, self.result
        cluster.lead(HURT if result.role == LEADER else cluster.others(HURT)[0])
        time.sleep(_WARM_S)
        with self._phase(BEFORE):
            time.sleep(seconds)
        time.sleep(_APART_S)
        term = cluster.term()
        fault = self.timeline.begin(self._fault.name, [HURT])
        with self._phase(DURING), self._fault.harm(Target(cluster, HURT, result.notes)):
            time.sleep(seconds)
        self._check_progress(*self._spans[DURING])
        with self._phase(AFTER):
            healed_s = time.monotonic()
            questions.wait_well(cluster, cluster.sets)
            result.well_again_s = time.monotonic() - healed_s
            self.timeline.end(fault)
            time.sleep(seconds)
        result.elections = cluster.term() - term

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._tell(f"{name}: {self.ledger.progress()}")
        start_s = self.timeline.now_s
        yield
        self._spans[name] = start_s, self.timeline.now_s

    def _check_progress(self, start_s: float, end_s: float) -> None:
        """Two of three nodes are well: the set goes on without the third."""
        middle_s = (start_s + end_s) / 2
        if not any(middle_s < at_s < end_s for at_s in self.timeline.steady[SET]):
            self.ledger.errors.append("nothing was acknowledged in the second half of the fault")


def figures(timeline: Timeline, start_s: float, end_s: float) -> Figures:
    found = [
        latency_s * 1000 for began_s, latency_s in timeline.sends if start_s <= began_s < end_s
    ]
    cuts = statistics.quantiles(found, n=100) if len(found) > 1 else [0.0] * 99
    pause_s = longest_gap_s(timeline.steady[SET], start_s, end_s)
    return Figures(len(found), round(cuts[49], 1), round(cuts[98], 1), round(pause_s * 1000))
