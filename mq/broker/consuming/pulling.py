"""Reading a queue for a consumer: filters, and the long poll."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from mq.broker.consuming.arrivals import Arrivals
from mq.broker.consuming.assignment import Queue
from mq.broker.consuming.filters import CompiledFilter, select
from mq.broker.replicated.topics import Topics
from mq.store.reading import ReadResult, Status
from mq.store.store import Store

# Also for a reader that wants more: it shares the loop with all others, and with its headers an
# answer stays below the 4 MiB that gRPC clients take by default.
READ_BYTES_MAX = 3 << 20
READ_MESSAGES_MAX = 1 << 16
# With a predicate each message is opened, in Python.
_OPENED_MAX = 512
_WAIT_S_MAX = 60.0


class Query(NamedTuple):
    queue: Queue
    queue_offset: int
    filter: CompiledFilter
    bytes_max: int = READ_BYTES_MAX
    messages_max: int = READ_MESSAGES_MAX


class Puller:
    def __init__(self, topics: Topics, store: Store, arrivals: Arrivals) -> None:
        self._topics = topics
        self._store = store
        self._arrivals = arrivals
        self.messages_total = self.bytes_total = 0

    def rank(self, queue: Queue) -> int:
        """How far it is below the highest priority of its topic."""
        return self._topics.rank(*queue)

    def read(self, query: Query) -> ReadResult:
        """What is there now: one bounded step. NOTHING_MATCHED: go on at `next_offset`."""
        topic, queue_id = query.queue
        predicate = query.filter.predicate
        messages_max = min(query.messages_max or READ_MESSAGES_MAX, READ_MESSAGES_MAX)
        result = self._store.read(
            topic,
            queue_id,
            query.queue_offset,
            bytes_max=min(query.bytes_max or READ_BYTES_MAX, READ_BYTES_MAX),
            messages_max=min(messages_max, _OPENED_MAX) if predicate else messages_max,
            tag_hashes=query.filter.tag_hashes,
        )
        if result.status == Status.NO_QUEUE:
            # Nobody has written to it yet.
            status = Status.TOO_LARGE if query.queue_offset else Status.END
            return ReadResult(status, [], 0, 0, 0)
        if predicate and result.status == Status.FOUND:
            runs = select(result.runs, predicate)
            status = Status.FOUND if runs else Status.NOTHING_MATCHED
            result = result._replace(status=status, runs=runs)
        for run in result.runs:
            self.messages_total += run.message_count
            self.bytes_total += len(run.frames)
        return result

    async def pull(self, query: Query, wait_s: float) -> ReadResult:
        """Waits for messages that the filter lets through, so long; then END says where to go on.
        TopicNotFound, QueueNotFound, PermissionDenied.
        """
        self._topics.readable(*query.queue)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_s, _WAIT_S_MAX)
        while True:
            result = self.read(query)
            left_s = deadline - loop.time()
            if result.status == Status.NOTHING_MATCHED:
                query = query._replace(queue_offset=result.next_offset)
                if left_s <= 0:
                    return result._replace(status=Status.END)
                await asyncio.sleep(0)
            elif (
                result.status != Status.END
                or left_s <= 0
                or not await self._arrivals.wait(query.queue, left_s)
            ):
                return result
            else:
                # It may have been deleted meanwhile.
                self._topics.readable(*query.queue)
