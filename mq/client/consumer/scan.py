"""Scans of ranges of queues, as pages of raw responses, for readers of whole columns such as Spark.

No membership and no position: the caller names a range, and may read it again. The next page is
fetched while the last one is worked on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import now_s
from mq.client.consumer.follower_reads import QueuePulls
from mq.client.decode import Page, parse_page
from mq.client.lifecycle import AsyncClient, SyncClient
from mq.client.messages import FilterLike, QueueRef, wire_filter
from mq.errors import Unreachable
from mq.wire.v1 import consumer_pb2 as wire

# A new leader may not know yet that the messages of a range are committed: how long one pull waits
# for them, and all.
_WAIT_MS = 500
_PATIENCE_S = 60.0
# A new leader may say for a moment that messages which another broker has shown are behind the end
# of its queue. It is believed if it still says so after this time.
_BEHIND_END_S, _PAUSE_S = 2.0, 0.1
_MESSAGES_MAX = (1 << 32) - 1


class RangeRead:
    """One range, read page by page."""

    def __init__(
        self,
        connection: Connection,
        reads: QueuePulls[Page],
        ref: QueueRef,
        start: int,
        end: int,
        chosen: FilterLike = None,
    ) -> None:
        self._connection = connection
        self._reads = reads
        self._ref = ref
        self._place, self._end = start, end
        self._filter = wire_filter(chosen)
        # Since when a pull has brought no progress; None while none waits: readers may be slow.
        self._stuck_s: float | None = None

    async def next(self) -> Page | None:
        """The next page; None at the end."""
        if self._place >= self._end:
            return None
        if self._stuck_s is None:
            self._stuck_s = now_s()
        await self._find_set()
        page = await self._pull()
        while page.status == wire.PULL_TOO_LARGE and now_s() < self._stuck_s + _BEHIND_END_S:
            await asyncio.sleep(_PAUSE_S)
            page = await self._pull()
        if page.status in (wire.PULL_TOO_SMALL, wire.PULL_TOO_LARGE):
            self._place = self._end
        elif page.next_offset > self._place:
            self._place, self._stuck_s = page.next_offset, None
        elif now_s() > self._stuck_s + _PATIENCE_S:
            topic, queue_id, broker_set = self._ref
            raise Unreachable(
                f"queue {queue_id} of topic {topic} in broker set {broker_set} had messages before "
                f"{self._end}, and shows none at {self._place}, for {_PATIENCE_S:g} s"
            )
        return page

    async def _find_set(self) -> None:
        """A broker takes every queue for one of its own set: only brokers of the right set may be
        asked.
        """
        broker_set = self._ref.broker_set
        if broker_set not in self._connection.known_sets:
            await self._connection.brokers()
        if broker_set not in self._connection.known_sets:
            raise Unreachable(f"no broker knows broker set {broker_set}")

    async def _pull(self) -> Page:
        request = wire.PullRequest(
            topic=self._ref.topic,
            queue_id=self._ref.queue_id,
            queue_offset=self._place,
            filter=self._filter,
            messages_max=min(self._end - self._place, _MESSAGES_MAX),
            wait_ms=_WAIT_MS,
            any_replica=True,
            zone=self._connection.zone,
        )
        return await self._reads.pull(self._ref, request)


class _Ranges(AsyncClient):
    """The connection of all ranges of a scanner."""

    def __init__(self, servers: str | Sequence[str], zone: str) -> None:
        self._connection = Connection(servers, zone)
        self._reads = QueuePulls(self._connection, parse_page)

    def read(self, ref: QueueRef, start: int, end: int, chosen: FilterLike) -> RangeRead:
        return RangeRead(self._connection, self._reads, ref, start, end, chosen)

    async def close(self) -> None:
        await self._connection.close()


class QueueScanner(SyncClient[_Ranges]):
    """Reads ranges for programs without asyncio, one thread at a time."""

    def __init__(self, servers: str | Sequence[str], *, zone: str = "") -> None:
        super().__init__(_Ranges(servers, zone))

    def scan(
        self,
        ref: QueueRef,
        start: int,
        end: int,
        filter: FilterLike = None,  # noqa: A002
    ) -> Iterator[Page]:
        """Pages of [start, end); with a filter the last one may go beyond, and some have no
        messages. A page with status TOO_SMALL or TOO_LARGE is the last one: messages of the range
        do not exist. Raises Unreachable if messages of the range do not come for a minute.
        """
        read = self._client.read(ref, start, end, filter)
        coming = self._background.submit(read.next())
        try:
            while (page := coming.result()) is not None:
                coming = self._background.submit(read.next())
                yield page
        finally:
            coming.cancel()
