"""A reader that commits its offset and notes each that was acknowledged: what the group has may
never be less.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mq.client.aio import PullConsumer
from mq.errors import MqError

if TYPE_CHECKING:
    from collections.abc import Callable

_PAUSE_S = 0.02
_RETRY_S = 0.2


class Committer:
    """One queue of a topic. `now_s` stamps what it notes."""

    def __init__(self, servers: str, topic: str, broker_set: str, now_s: Callable[[], float]):
        self.commits = 0
        # Pairs: when the offset that is missing was acknowledged, and what was found instead.
        self.rewound: list[tuple[float, str]] = []
        self._servers = servers
        self._queue = (topic, 0, broker_set)
        self._now_s = now_s
        self._noted = 0
        self._noted_s = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        async with PullConsumer(self._servers, "committers", read_followers=False) as reader:
            while True:
                try:
                    await self._commit_next(reader)
                    await asyncio.sleep(_PAUSE_S)
                except MqError:
                    await asyncio.sleep(_RETRY_S)

    async def check(self) -> None:
        """Once more, in the end."""
        async with PullConsumer(self._servers, "committers", read_followers=False) as reader:
            await self._committed(reader)

    async def _commit_next(self, reader: PullConsumer) -> None:
        topic, queue_id, broker_set = self._queue
        at = await self._committed(reader)
        read = await reader.pull(topic, queue_id, at, wait_ms=100, broker_set=broker_set)
        if read.next_offset <= at:
            return
        ref = next(one for one in await reader.queues(topic) if one == self._queue)
        await reader.commit({ref: read.next_offset})
        self.commits += 1
        self._noted, self._noted_s = read.next_offset, self._now_s()

    async def _committed(self, reader: PullConsumer) -> int:
        found = await reader.committed()
        at = next((place for ref, place in found.items() if ref == self._queue), 0)
        if at < self._noted:
            self.rewound.append((self._noted_s, f"committed {self._noted}, found {at}"))
            self._noted = at
        return at
