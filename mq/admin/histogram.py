"""Times, counted in buckets: plain integers for one thread. A histogram of the Prometheus library,
with its locks, costs ten times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    __slots__ = ("_bounds_s", "_counts", "seconds")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each with what is below its bound."""
        names = [*map(str, map(float, self._bounds_s)), "+Inf"]
        return [*zip(names, accumulate(self._counts), strict=True)]
