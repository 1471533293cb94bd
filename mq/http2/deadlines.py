"""Deadlines of calls: one sweep for all of them instead of a timer each.

A deadline is kept up to a tick late, which no client sees: it ends the call by itself in time.
"""

from __future__ import annotations

from typing import Final, Protocol

TICK_S: Final = 0.05


class Expiring(Protocol):
    def expire(self) -> None: ...


class Deadlines:
    def __init__(self) -> None:
        self._ticks: dict[int, set[Expiring]] = {}
        self._swept = 0

    def add(self, call: Expiring, deadline_s: float) -> set[Expiring]:
        """Returns the set that the call is to be removed from when it ends."""
        tick = max(int(deadline_s / TICK_S) + 1, self._swept + 1)
        due = self._ticks.get(tick)
        if due is None:
            due = self._ticks[tick] = set()
        due.add(call)
        return due

    def sweep(self, now_s: float) -> None:
        self._swept = int(now_s / TICK_S)
        late = [tick for tick in self._ticks if tick <= self._swept]
        for tick in late:
            for call in [*self._ticks.pop(tick)]:
                call.expire()
