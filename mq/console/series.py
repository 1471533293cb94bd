"""Two hours of numbers, in memory: one ring for each topic, group or node that moved.

All series share the times of their samples. A series costs four bytes a sample; one that was zero
for the whole time is dropped, and there are never more than `SERIES_MAX`. What was not measured is
a gap (NaN), never a zero.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping

KEPT_S = 7200.0
SERIES_MAX = 4_000

Key = tuple[str, str]


class Series:
    __slots__ = ("last_seen", "values")

    def __init__(self) -> None:
        self.values = array("f")
        # The number of the last sample that was not zero.
        self.last_seen = 0


class History:
    """`add` takes the numbers of one moment; keys are a measure and a name: ("in", "orders")."""

    def __init__(self, samples_max: int) -> None:
        self._max = samples_max
        self._number = 0
        self._times = array("d")
        self._series: dict[Key, Series] = {}

    def __len__(self) -> int:
        return len(self._series)

    def add(self, at_ms: int, numbers: Mapping[Key, float]) -> None:
        self._number += 1
        self._times.append(at_ms)
        for key, value in numbers.items():
            found = self._series.get(key)
            if found is None:
                if not value or len(self._series) >= SERIES_MAX:
                    continue
                found = self._series[key] = Series()
            if value:
                found.last_seen = self._number
            self._fill(found.values, len(self._times) - 1)
            found.values.append(value)
        if len(self._times) > 2 * self._max:
            self._trim()

    def times_ms(self) -> list[int]:
        return [int(one) for one in self._times[-self._max :]]

    def of(self, measure: str, name: str) -> list[float | None]:
        """As many as there are times; None where nothing was measured."""
        found = self._series.get((measure, name))
        count = min(len(self._times), self._max)
        if found is None:
            # Nothing to tell of it, but that it did not move.
            return [0.0] * count
        self._fill(found.values, len(self._times))
        return [None if math.isnan(one) else one for one in found.values[-count:]]

    def last(self, measure: str, name: str, count: int) -> list[float | None]:
        """The last ones of these."""
        return self.of(measure, name)[-count:]

    def latest(self, measure: str, names: Iterable[str]) -> dict[str, float]:
        """The last value of each; 0 for those that did not move."""
        found = {name: self._series.get((measure, name)) for name in names}
        full = len(self._times)
        return {
            name: (
                one.values[-1]
                if one is not None and len(one.values) == full and not math.isnan(one.values[-1])
                else 0.0
            )
            for name, one in found.items()
        }

    @staticmethod
    def _fill(values: array[float], count: int) -> None:
        if len(values) < count:
            values.extend([math.nan] * (count - len(values)))

    def _trim(self) -> None:
        excess = len(self._times) - self._max
        del self._times[:excess]
        oldest = self._number - self._max
        for key, found in list(self._series.items()):
            if found.last_seen <= oldest:
                del self._series[key]
            else:
                self._fill(found.values, excess + self._max)
                del found.values[:excess]
