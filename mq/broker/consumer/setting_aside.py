"""Queues that cannot be read for the time being, because a file of theirs is damaged: when each is
tried again.

Mostly the file is rebuilt within milliseconds. Pauses double while a queue goes on failing, so that
one that cannot be rebuilt costs next to nothing. One loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mq.broker.queue import Queue

_PAUSE_S, _PAUSE_S_MAX = 0.01, 2.0


class SetAside:
    def __init__(self, on_retry: Callable[[Queue], None]) -> None:
        """`on_retry` is told when a queue may be tried again."""
        self._on_retry = on_retry
        self._timers: dict[Queue, asyncio.TimerHandle] = {}
        # Of queues that failed the last time they were tried.
        self._pauses_s: dict[Queue, float] = {}

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._timers

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, queue: Queue) -> None:
        """The queue could not be read. The damage was reported where it was found."""
        if queue not in self._timers:
            pause_s = self._pauses_s[queue] = min(
                2 * self._pauses_s.get(queue, 0.0) or _PAUSE_S, _PAUSE_S_MAX
            )
            loop = asyncio.get_running_loop()
            self._timers[queue] = loop.call_later(pause_s, self._retry, queue)

    def worked(self, queue: Queue) -> None:
        """It was read."""
        self._pauses_s.pop(queue, None)

    def forget(self, queue: Queue) -> None:
        """It is not to be tried again."""
        self._pauses_s.pop(queue, None)
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()

    def clear(self) -> None:
        for queue in list(self._timers):
            self.forget(queue)

    def _retry(self, queue: Queue) -> None:
        del self._timers[queue]
        self._on_retry(queue)
