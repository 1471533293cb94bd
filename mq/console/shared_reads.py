"""Reads of the live tails of one user: tabs that follow the same topic ask brokers once.

Tails wake at the same moments, a tick apart, so that those that are up to date ask for the same;
the first one asks, the others get its answer. Nothing is kept beyond a tick, and nothing is shared
between users: one may read what another may not.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, TypeVar

from mq.client.aio import PullConsumer, PullResult
from mq.client.messages import FilterLike, QueueRef, ReceivedMessage

T = TypeVar("T")

TICK_S = 0.5


class SharedReads:
    def __init__(self, pull: Callable[[], PullConsumer], tick_s: float = TICK_S) -> None:
        """`tick_s` 0: nothing is shared."""
        self._pull = pull
        self._tick_s = tick_s
        self._numbers = itertools.count()
        self._tick = -1
        self._answers: dict[Hashable, asyncio.Task[Any]] = {}
        self._rows: dict[Hashable, str] = {}

    async def next_tick(self) -> None:
        """The same moment for all tails."""
        await asyncio.sleep(self._tick_s - time.monotonic() % self._tick_s if self._tick_s else 0)

    async def ends(self, topic: str) -> dict[QueueRef, int]:
        return await self._once(topic, lambda: self._pull().find_offsets(topic, "latest"))

    async def read(
        self, ref: QueueRef, start: int, end: int, wanted: FilterLike, max_bytes: int
    ) -> PullResult:
        return await self._once(
            (ref, start, end, wanted),
            lambda: self._pull().pull(
                ref.topic,
                ref.queue_id,
                start,
                broker_set=ref.broker_set,
                filter=wanted,
                max_messages=end - start,
                max_bytes=max_bytes,
            ),
        )

    def rows(
        self, messages: Sequence[ReceivedMessage], render: Callable[[Sequence[Any]], str]
    ) -> str:
        """The same messages are rendered once."""
        self._forget()
        key = tuple(one.message_id for one in messages)
        if key not in self._rows:
            self._rows[key] = render(messages)
        return self._rows[key]

    async def _once(self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._forget()
        task = self._answers.get(key)
        if task is None:
            task = self._answers[key] = asyncio.create_task(ask())
            # Whoever asked may be gone when it fails.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A tab that is closed does not end what others wait for.
        found: T = await asyncio.shield(task)
        return found

    def _forget(self) -> None:
        now = next(self._numbers) if not self._tick_s else int(time.monotonic() / self._tick_s)
        if now != self._tick:
            self._tick = now
            self._answers, self._rows = {}, {}
