"""Watchers of queues: they are called when new messages are applied, instead of polling."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeVar

from mq.broker.queue import Queue

Watcher = Callable[[Queue], None]
Place = TypeVar("Place")


class Arrivals:
    def __init__(self) -> None:
        # Dicts for their order: the first watcher is called first.
        self._watchers: dict[Queue, dict[Watcher, None]] = {}
        # Of all queues of a topic.
        self._topic_watchers: dict[str, dict[Watcher, None]] = {}

    def __len__(self) -> int:
        every = itertools.chain(self._watchers.values(), self._topic_watchers.values())
        return sum(map(len, every))

    def watch(self, queue: Queue, watcher: Watcher) -> None:
        self._watchers.setdefault(queue, {})[watcher] = None

    def watch_topic(self, topic: str, watcher: Watcher) -> None:
        self._topic_watchers.setdefault(topic, {})[watcher] = None

    def unwatch(self, queue: Queue, watcher: Watcher) -> None:
        _remove(self._watchers, queue, watcher)

    def unwatch_topic(self, topic: str, watcher: Watcher) -> None:
        _remove(self._topic_watchers, topic, watcher)

    def arrived(self, queue: Queue) -> None:
        for watchers in (self._watchers.get(queue), self._topic_watchers.get(queue.topic)):
            if watchers:
                for watcher in tuple(watchers):
                    watcher(queue)

    def stir(self) -> None:
        """Calls all watchers of single queues, whether something has arrived or not."""
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


def _remove(known: dict[Place, dict[Watcher, None]], place: Place, watcher: Watcher) -> None:
    watchers = known.get(place)
    if watchers is not None:
        watchers.pop(watcher, None)
        if not watchers:
            del known[place]
