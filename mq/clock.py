"""Time as an argument. `store` and `broker` never read a clock: their callers hold one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class SystemClock:
    """The machine's wall clock. It may step backwards: the leader clamps the times of entries."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
