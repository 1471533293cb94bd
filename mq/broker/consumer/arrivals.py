"""Watchers of queues: they are called when new messages are applied, instead of polling."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import TypeVar

from mq.broker.queue import Queue

Watcher = Callable[[Queue], None]
Place = TypeVar("Place")


class Arrivals:
    def __init__(self) -> None:
        # The first watcher is called first.
        self._watchers: dict[Queue, tuple[Watcher, ...]] = {}
        # Of all queues of a topic.
        self._topic_watchers: dict[str, tuple[Watcher, ...]] = {}

    def __len__(self) -> int:
        every = itertools.chain(self._watchers.values(), self._topic_watchers.values())
        return sum(map(len, every))

    def watch(self, queues: Iterable[Queue], watcher: Watcher) -> None:
        _add(self._watchers, queues, watcher)

    def watch_topic(self, topic: str, watcher: Watcher) -> None:
        _add(self._topic_watchers, [topic], watcher)

    def unwatch(self, queues: Iterable[Queue], watcher: Watcher) -> None:
        _remove(self._watchers, queues, watcher)

    def unwatch_topic(self, topic: str, watcher: Watcher) -> None:
        _remove(self._topic_watchers, [topic], watcher)

    def arrived(self, queue: Queue) -> None:
        for watchers in (self._watchers.get(queue), self._topic_watchers.get(queue.topic)):
            for watcher in watchers or ():
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

        self.watch([queue], tell)
        try:
            await asyncio.wait([arrived], timeout=max(0.0, timeout_s))
            return arrived.done()
        finally:
            self.unwatch([queue], tell)


def _add(
    known: dict[Place, tuple[Watcher, ...]], places: Iterable[Place], watcher: Watcher
) -> None:
    alone = (watcher,)
    for place in places:
        watchers = known.setdefault(place, alone)
        if watchers is not alone and watcher not in watchers:
            known[place] = (*watchers, watcher)


def _remove(
    known: dict[Place, tuple[Watcher, ...]], places: Iterable[Place], watcher: Watcher
) -> None:
    alone = (watcher,)
    for place in places:
        watchers = known.pop(place, alone)
        if watchers != alone:
            known[place] = tuple(one for one in watchers if one != watcher)
