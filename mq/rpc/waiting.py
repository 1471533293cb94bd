"""Waiting with a time-out: for one future, or for many requests with one timer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def done_by(future: asyncio.Future[Any], deadline_s: float) -> bool:
    """Cheaper than asyncio.wait, for every batch. Not wait_for, which would cancel a future that
    others wait for.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(wake)
    timer = loop.call_at(deadline_s, wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    return future.done()


class Pending(Generic[T]):
    """A request without an outcome so far: `tell` is called once, with the outcome or an error, and
    is None then.
    """

    __slots__ = ("tell",)

    def __init__(self, tell: Callable[[T | Exception], None]) -> None:
        self.tell: Callable[[T | Exception], None] | None = tell

    def settle(self, outcome: T | Exception) -> None:
        """Only the first outcome counts."""
        tell, self.tell = self.tell, None
        if tell is not None:
            tell(outcome)


class Timeouts:
    """Requests that all have the same time-out: they expire in the order in which they came, so
    that one timer serves all.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, Pending[Any], Callable[[], Exception]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, pending: Pending[Any], too_late: Callable[[], Exception]) -> None:
        """The request gets the error of `too_late` if it is not settled in time."""
        waiting = self._waiting
        while waiting and waiting[0][1].tell is None:
            waiting.popleft()
        deadline_s = self._loop.time() + self._timeout_s
        waiting.append((deadline_s, pending, too_late))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        while self._waiting:
            deadline_s, pending, too_late = self._waiting[0]
            if pending.tell is not None and deadline_s > now_s:
                self._timer = self._loop.call_at(deadline_s, self._sweep)
                return
            self._waiting.popleft()
            if pending.tell is not None:
                pending.settle(too_late())
