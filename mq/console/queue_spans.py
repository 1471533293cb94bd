"""When the oldest message of a queue was stored: read once, and kept while that message is there.

Brokers tell the time of the newest one. The oldest changes with retention alone, so a page that
refreshes costs no reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from mq.client.aio import PullConsumer
from mq.client.messages import QueueRef
from mq.errors import MqError, Unauthenticated

_KNOWN_MAX = 20_000
_AT_ONCE = 8


class QueueSpans:
    """Of one user: others may not read the same queues."""

    def __init__(self, pull: Callable[[], PullConsumer]) -> None:
        self._pull = pull
        self._known: dict[tuple[QueueRef, int], int] = {}

    async def first_stored_at_ms(self, starts: Mapping[QueueRef, int]) -> dict[QueueRef, int]:
        """By queue that is not empty, from the offset of its oldest message. Queues that the caller
        may not read, or that do not answer, are left out.
        """
        turn = asyncio.Semaphore(_AT_ONCE)

        async def read(ref: QueueRef, start: int) -> None:
            try:
                async with turn:
                    result = await self._pull().pull(
                        ref.topic, ref.queue_id, start, max_messages=1, broker_set=ref.broker_set
                    )
            except Unauthenticated:
                raise
            except MqError:
                return
            if result.messages:
                self._known[ref, start] = result.messages[0].stored_at_ms

        if len(self._known) > _KNOWN_MAX:
            self._known.clear()
        unknown = {ref: at for ref, at in starts.items() if (ref, at) not in self._known}
        await asyncio.gather(*(read(ref, at) for ref, at in unknown.items()))
        return {ref: self._known[ref, at] for ref, at in starts.items() if (ref, at) in self._known}
