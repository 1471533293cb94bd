"""Ranges of queues as record batches: one read of a `PullConsumer`.

Queues are read one after the other, page by page. The next page is on its way while a page is
decoded, on a thread: numpy and pyarrow let other threads run for most of that time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from mq.client.arrow.columns import message_schema, record_batches
from mq.client.arrow.runs import rows_of
from mq.client.cluster.connection import Connection
from mq.client.consumer.options import wanted_tags
from mq.client.consumer.pull import QueuePulls
from mq.client.decode import Page
from mq.client.lifecycle import Background
from mq.client.lowlevel import RangeRead
from mq.client.messages import FilterLike, QueueRef
from mq.wire.v1.consumer_pb2 import PULL_TOO_LARGE, PULL_TOO_SMALL

log = logging.getLogger(__name__)


class QueueRange(NamedTuple):
    """The messages [start, end) of a queue."""

    ref: QueueRef
    start: int
    end: int


class ArrowRead:
    """One read of some ranges. Messages that retention has deleted meanwhile are skipped, with a
    warning in the log.
    """

    def __init__(
        self,
        connection: Connection,
        ranges: Sequence[QueueRange],
        chosen: FilterLike = None,
        *,
        with_properties: bool = False,
        any_replica: bool = True,
    ) -> None:
        self.schema = message_schema(with_properties=with_properties)
        self._connection = connection
        self._pulls = QueuePulls(connection)
        self._ranges = ranges
        self._filter = chosen
        self._tags = wanted_tags({"": chosen}).get("")
        self._with_properties = with_properties
        self._any_replica = any_replica

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """On the loop of the connection."""
        pages = self._pages()
        coming = asyncio.ensure_future(anext(pages, None))
        try:
            while (found := await coming) is not None:
                coming = asyncio.ensure_future(anext(pages, None))
                for batch in await asyncio.to_thread(self._decoded, *found):
                    yield batch
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    def table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, self.schema)

    def reader(self, background: Background) -> pa.RecordBatchReader:
        """The same for a thread that is not the loop's, which decodes."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches(background))

    def _batches(self, background: Background) -> Iterator[pa.RecordBatch]:
        pages = self._pages()

        async def next_page() -> tuple[Page, QueueRange] | None:
            return await anext(pages, None)

        coming = background.submit(next_page())
        try:
            while (found := coming.result()) is not None:
                coming = background.submit(next_page())
                yield from self._decoded(*found)
        finally:
            coming.cancel()

    async def _pages(self) -> AsyncIterator[tuple[Page, QueueRange]]:
        for one in self._ranges:
            place = one.start
            while place < one.end:
                async for page in self._read(one.ref, place, one.end):
                    if page.has_messages:
                        yield page, one
                    if page.status in (PULL_TOO_SMALL, PULL_TOO_LARGE):
                        # Before its start the queue goes on; behind its end there is nothing.
                        is_start = page.status == PULL_TOO_SMALL
                        found = min(page.next_offset, one.end) if is_start else one.end
                        _log_deleted(one.ref, place, found)
                        place = max(place, found)
                    else:
                        place = max(place, page.next_offset)

    async def _read(self, ref: QueueRef, start: int, end: int) -> AsyncIterator[Page]:
        read = RangeRead(
            self._connection,
            self._pulls,
            ref,
            start,
            end,
            self._filter,
            any_replica=self._any_replica,
        )
        while (page := await read.next()) is not None:
            yield page

    def _decoded(self, page: Page, of: QueueRange) -> list[pa.RecordBatch]:
        return list(
            record_batches(
                rows_of(page, of.start, of.end),
                of.ref,
                with_properties=self._with_properties,
                tags=self._tags,
            )
        )


def _log_deleted(ref: QueueRef, start: int, end: int) -> None:
    log.warning(
        "messages [%d, %d) of queue %d of topic %s are deleted", start, end, ref.queue_id, ref.topic
    )
