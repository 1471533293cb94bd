"""Watchers of queues: they are called when new messages are applied, instead of polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mq.broker.queue import Queue

Watcher = Callable[[Queue], None]


class Arrivals:
    def __init__(self) -> None:
        # Dicts for their order: the first watcher is called first.
        self._watchers: dict[Queue, dict[Watcher, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._watchers.values()))

    def watch(self, queue: Queue, watcher: Watcher) -> None:
        self._watchers.setdefault(queue, {})[watcher] = None

    def unwatch(self, queue: Queue, watcher: Watcher) -> None:
        watchers = self._watchers.get(queue)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[queue]

    def arrived(self, queue: Queue) -> None:
        watchers = self._watchers.get(queue)
        if watchers:
            for watcher in tuple(watchers):
                watcher(queue)

    def stir(self) -> None:
        """Calls all watchers, whether something has arrived or not."""
        for queue in tuple(self._watchers):
            self.arrived(queue)

    async def wait(self, queue: Queue, timeout_s: float) -> bool:
        """Whether something may have arrived in time."""
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(_: Queue) -> None:
            if not arrived.done():
                arrived.set_result(None)

        self.watch(queue, tell)
        try:
            await asyncio.wait([arrived], timeout=max(0.0, timeout_s))
            return arrived.done()
        finally:
            self.unwatch(queue, tell)
