"""The events of a chaos run: acknowledgements with their latency, sightings, faults.

Times are seconds since the beginning, by a clock that only goes forward and is handed in. The pause
of a fail-over is the longest gap between two acknowledgements of a producer that sends one after
the other to the set whose leader was hit.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BUCKET_S = 0.5
# A producer may meet what a fault left behind just after it has ended.
_AFTER_S = 1.0


@dataclass(slots=True)
class Fault:
    """`leads`: the sets that lost their leader by it, and could elect another at once."""

    kind: str
    nodes: Sequence[str]
    began_s: float
    ended_s: float = 0.0
    leads: Sequence[str] = ()
    pauses_s: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}: {', '.join(self.nodes)}"


class Timeline:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s = clock()
        self.acked: Counter[int] = Counter()
        self.seen: Counter[int] = Counter()
        # Of each acknowledged send: when it was begun, and how long it took.
        self.sends: list[tuple[float, float]] = []
        # Of each set: when its steady producer had an answer.
        self.steady: dict[str, list[float]] = defaultdict(list)
        self.faults: list[Fault] = []
        # What the clients are doing: sending, draining, ...
        self.phases: list[tuple[float, str]] = []

    @property
    def now_s(self) -> float:
        return self._clock() - self._began_s

    def phase(self, name: str) -> None:
        self.phases.append((self.now_s, name))

    def acknowledge(self, latency_s: float) -> None:
        bucket = int(self.now_s / BUCKET_S)
        self.acked[bucket] += 1
        self.sends.append((self.now_s - latency_s, latency_s))

    def see(self) -> None:
        self.seen[int(self.now_s / BUCKET_S)] += 1

    def beat(self, broker_set: str) -> None:
        """Its steady producer had an answer."""
        self.steady[broker_set].append(self.now_s)

    def begin(self, kind: str, nodes: Sequence[str], leads: Sequence[str] = ()) -> Fault:
        fault = Fault(kind, nodes, self.now_s, leads=leads)
        self.faults.append(fault)
        return fault

    def end(self, fault: Fault) -> None:
        fault.ended_s = self.now_s

    # -- the end -----------------------------------------------------------------------------------

    def latencies_s(self) -> dict[int, list[float]]:
        """Of each bucket of acknowledgements, in ascending order."""
        found: dict[int, list[float]] = defaultdict(list)
        for began_s, latency_s in self.sends:
            found[int((began_s + latency_s) / BUCKET_S)].append(latency_s)
        return {bucket: sorted(found[bucket]) for bucket in sorted(found)}

    def judge(self) -> None:
        """The pause of each set that lost its leader."""
        for fault in self.faults:
            for broker_set in fault.leads:
                pause_s = longest_gap_s(
                    self.steady[broker_set], fault.began_s, fault.ended_s + _AFTER_S
                )
                fault.pauses_s[broker_set] = pause_s

    def pauses_s(self) -> list[float]:
        return [pause_s for fault in self.faults for pause_s in fault.pauses_s.values()]

    def pause_s_median(self) -> float:
        pauses_s = self.pauses_s()
        return round(statistics.median(pauses_s), 3) if pauses_s else 0.0

    def pause_s_max(self) -> float:
        return round(max(self.pauses_s(), default=0.0), 3)


def longest_gap_s(beats: Sequence[float], start_s: float, end_s: float) -> float:
    """Between two neighbours of which one is in [start, end), or which have it between them."""
    first = max(0, bisect.bisect_left(beats, start_s) - 1)
    last = bisect.bisect_left(beats, end_s) + 1
    return max(
        (after - before for before, after in itertools.pairwise(beats[first:last])), default=0.0
    )
