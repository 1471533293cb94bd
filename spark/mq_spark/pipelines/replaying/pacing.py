"""The due times of the messages of a replay, at a rate or at a multiple of their own speed.

One schedule holds for a whole replay, and begins with its first message: a task takes it over from
the one before, as how long from now its next message is due. What is sent late moves what follows,
except for one second that may be made up: a broker that was away is not flooded. So there are never
more messages than the rate times the time that has passed, and one chunk.

Pure: the time comes in as an argument, in seconds of whatever clock.
"""

from __future__ import annotations

import dataclasses

MADE_UP_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """The state that travels from task to task. One of `rate` (messages a second) and `speed` (2:
    twice as fast as they were stored) is above 0.
    """

    rate: float = 0.0
    speed: float = 0.0
    # With a rate: until the next message is due. With a speed: until that of `base_ms` is, or was.
    # None: nothing was sent yet, and the first message is due when it comes.
    due_in_s: float | None = None
    # None: whatever comes next.
    base_ms: int | None = None


class Schedule:
    """The schedule of one task."""

    def __init__(self, pace: Pace, now_s: float) -> None:
        self._pace = pace
        self._due_s = None if pace.due_in_s is None else now_s + pace.due_in_s
        self._base_ms = pace.base_ms

    def wait_s(self, stored_at_ms: int, now_s: float) -> float:
        """The time that a message stored then has to wait."""
        due_s = now_s if self._due_s is None else self._due_s
        if self._pace.speed:
            base_ms = stored_at_ms if self._base_ms is None else self._base_ms
            # One that is older than what was sent before it is due at once.
            self._base_ms = max(stored_at_ms, base_ms)
            due_s += (self._base_ms - base_ms) / 1000 / self._pace.speed
        self._due_s = max(due_s, now_s - MADE_UP_S)
        return max(0.0, due_s - now_s)

    def sent(self, rows: int) -> None:
        """So many, in what waited last. None: an earlier run had sent them, and what follows them
        does not wait for it again.
        """
        if self._pace.rate and self._due_s is not None:
            self._due_s += rows / self._pace.rate
        elif not rows:
            self._base_ms = None

    def handed_on(self, now_s: float) -> Pace:
        """For the next task."""
        due_in_s = None if self._due_s is None else self._due_s - now_s
        return dataclasses.replace(self._pace, due_in_s=due_in_s, base_ms=self._base_ms)
