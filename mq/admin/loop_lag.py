"""How late the loop is: a timer that asks for its turn ten times a second, and when it gets it.

What holds the loop holds every client of the broker, whoever caused it. A timer of the loop may be
early or late by a millisecond without any reason; only what is later counts.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from mq.admin.histogram import Histogram

_PERIOD_S: Final = 0.1
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class LoopLag:
    def __init__(self) -> None:
        self.histogram = Histogram(_BUCKETS_S)
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """On the loop that is watched."""
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._due_s = time.perf_counter() + _PERIOD_S
        self._timer = self._loop.call_later(_PERIOD_S, self._on_time)

    def _on_time(self) -> None:
        self.histogram.observe(max(0.0, time.perf_counter() - self._due_s))
        self._schedule()
