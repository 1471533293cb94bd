"""Deadlines of calls: one sweep for all of them instead of a timer each.

A deadline is kept up to a tick late, which no client sees: it ends the call by itself in time. Most
calls have ended before the first sweep that they see, and their deadlines are never even read.
"""

from __future__ import annotations

from typing import Final, Protocol

TICK_S: Final = 0.05


class Expiring(Protocol):
    # The set that the call is to be removed from when it ends.
    due: set[Expiring] | None

    @property
    def connection(self) -> object | None:
        """None: it has ended."""

    def deadline_s(self) -> float | None:
        """None: it has ended, or the client waits for ever."""

    def expire(self) -> None: ...


class Deadlines:
    def __init__(self) -> None:
        self._new: list[Expiring] = []
        self._ticks: dict[int, set[Expiring]] = {}

    def add(self, call: Expiring) -> None:
        self._new.append(call)

    def sweep(self, now_s: float) -> None:
        new, self._new = self._new, []
        for call in new:
            if call.connection is None:
                continue
            deadline_s = call.deadline_s()
            if deadline_s is None:
                continue
            tick = int(deadline_s / TICK_S) + 1
            due = self._ticks.get(tick)
            if due is None:
                due = self._ticks[tick] = set()
            due.add(call)
            call.due = due
        swept = int(now_s / TICK_S)
        for tick in [tick for tick in self._ticks if tick <= swept]:
            for call in [*self._ticks.pop(tick)]:
                call.expire()
