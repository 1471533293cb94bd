"""Ranges of queues, read as pages: for readers that take whole columns, as the one for Spark.

No membership and no position: a range is named by whoever reads it, and may be read again. The next
page is on its way while one is worked on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Self

from mq.client.connecting.wiring import Connection
from mq.client.consuming.pages import Page, parse_page
from mq.client.consuming.queue_reads import QueueReads
from mq.client.model import FilterLike, QueueRef, wire_filter
from mq.client.sync import background
from mq.errors import Unreachable
from mq.wire.v1 import consumer_pb2 as wire

# While something that should be there is not: a new leader has still to learn that it is committed.
_WAIT_MS = 500
_PATIENCE_S = 60.0


class AsyncQueueScanner:
    def __init__(self, servers: str | Sequence[str], *, zone: str = "") -> None:
        self._connection = Connection(servers, zone)
        self._reads = QueueReads(self._connection, parse_page)

    async def scan(
        self,
        ref: QueueRef,
        start: int,
        end: int,
        filter: FilterLike = None,  # noqa: A002
    ) -> AsyncIterator[Page]:
        """Pages of [start, end), the last of which may go beyond. A page that says TOO_SMALL or
        TOO_LARGE is the last one: messages of the range are not there. Unreachable when what was
        there at the beginning does not come, for a minute.
        """
        queue_offset, since_s = start, asyncio.get_running_loop().time()
        while queue_offset < end:
            page = await self._pull(ref, queue_offset, filter)
            yield page
            if page.status in (wire.PULL_TOO_SMALL, wire.PULL_TOO_LARGE):
                return
            now_s = asyncio.get_running_loop().time()
            if page.next_offset > queue_offset:
                queue_offset, since_s = page.next_offset, now_s
            elif now_s > since_s + _PATIENCE_S:
                raise Unreachable(
                    f"queue {ref.queue_id} of topic {ref.topic} in broker set {ref.broker_set} had "
                    f"messages before {end}, and shows none at {queue_offset}, for "
                    f"{_PATIENCE_S:g} s"
                )

    async def _pull(self, ref: QueueRef, queue_offset: int, chosen: FilterLike) -> Page:
        request = wire.PullRequest(
            topic=ref.topic,
            queue_id=ref.queue_id,
            queue_offset=queue_offset,
            filter=wire_filter(chosen),
            wait_ms=_WAIT_MS,
            any_replica=True,
            zone=self._connection.zone,
        )
        return await self._reads.pull(ref, request)

    async def close(self) -> None:
        await self._connection.close()


class QueueScanner:
    """The same for programs without asyncio. For one thread at a time."""

    def __init__(self, servers: str | Sequence[str], *, zone: str = "") -> None:
        self._background = background()
        self._core = AsyncQueueScanner(servers, zone=zone)

    def scan(
        self,
        ref: QueueRef,
        start: int,
        end: int,
        filter: FilterLike = None,  # noqa: A002
    ) -> Iterator[Page]:
        """As `AsyncQueueScanner.scan`."""
        pages = self._core.scan(ref, start, end, filter)
        coming = self._background.submit(_next(pages))
        try:
            while (page := coming.result()) is not None:
                coming = self._background.submit(_next(pages))
                yield page
        finally:
            coming.cancel()

    def close(self) -> None:
        self._background.run(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _next(pages: AsyncIterator[Page]) -> Page | None:
    return await anext(pages, None)
