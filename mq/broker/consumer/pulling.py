"""Reading a queue for a consumer: filters, the long poll, and the node that should be asked next.

A read has two steps: `locate` finds the messages by the queue alone, `load` reads them from the
log. A node that does not lead shows what it has applied, which is committed. An error or a gap
there is for the leader to tell: the follower may only be behind.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from mq.broker.consumer.arrivals import Arrivals
from mq.broker.consumer.cold_reads import ColdReads
from mq.broker.consumer.filters import CompiledFilter, select
from mq.broker.consumer.replicas import Reader, Replicas
from mq.broker.consumer.unsent import Unsent
from mq.broker.contracts import Peer
from mq.broker.long_work import in_turns
from mq.broker.queue import Queue
from mq.broker.state.topics import Topics
from mq.broker.topic_counts import TopicCounts
from mq.errors import MessagesDamaged, MqError
from mq.store.reading import Found, ReadResult, Status
from mq.store.store import Store

# The limit of one read: all readers share the loop, and with its headers an answer stays below the
# 4 MiB that gRPC clients accept by default.
READ_BYTES_MAX = 3 << 20
READ_MESSAGES_MAX = 1 << 16
# With a predicate each message is parsed, in Python.
_PARSED_MAX = 512
_WAIT_S_MAX = 60.0
# Pause before a reader is sent to another node because of damage, so that two damaged nodes do not
# send it back and forth without end.
_DAMAGED_S = 0.1
# Another node may apply an entry this much earlier.
_AHEAD_S = 0.3


class Query(NamedTuple):
    queue: Queue
    queue_offset: int
    filter: CompiledFilter
    bytes_max: int = READ_BYTES_MAX
    messages_max: int = READ_MESSAGES_MAX


class Pulled(NamedTuple):
    result: ReadResult
    # The node to ask from now on; None: the node that answered.
    read_from: Peer | None = None


class Puller:
    def __init__(
        self,
        topics: Topics,
        store: Store,
        arrivals: Arrivals,
        replicas: Replicas,
        unsent: Unsent,
    ) -> None:
        self._topics = topics
        self._store = store
        self._arrivals = arrivals
        self._replicas = replicas
        # Bytes that were read here and wait in the transport; the callers count them.
        self.unsent = unsent
        self._cold = ColdReads(store.log)
        self.messages_total = self.bytes_total = 0
        self.by_topic = TopicCounts(topics)
        # Skipped messages: damaged on all nodes.
        self.lost_total = 0
        # Answers with messages while another node led.
        self.follower_reads_total = 0
        self._is_draining = False

    def rank(self, queue: Queue) -> int:
        """The number of priorities of its topic above the one of the queue."""
        return self._topics.rank(*queue)

    def end(self, queue: Queue) -> int:
        """Queue offset of the next message."""
        found = self._store.queues.get(*queue)
        return found.end if found else 0

    async def until_applied(self, positions: Mapping[Queue, int]) -> None:
        """For positions that a reader may have from another node. Returns when the queues of this
        node reach them, or after the time in which they should.
        """
        deadline = asyncio.get_running_loop().time() + _AHEAD_S
        are_ahead = await in_turns(0 < self.end(queue) < at for queue, at in positions.items())
        for queue, queue_offset in itertools.compress(positions.items(), are_ahead):
            while 0 < self.end(queue) < queue_offset:
                left_s = deadline - asyncio.get_running_loop().time()
                if left_s <= 0 or not await self._arrivals.wait(queue, left_s):
                    return

    def drain(self) -> None:
        """The node stops: waiting readers are sent to the leader."""
        self._is_draining = True
        self._arrivals.stir()

    # -- one step ---------------------------------------------------------------------------------

    def read(self, query: Query) -> ReadResult:
        """One bounded step, without waiting. NOTHING_MATCHED: go on at `next_offset`."""
        return self.load(query, self.locate(query))

    def locate(self, query: Query) -> ReadResult | Found:
        """Finds messages by the queue alone; fewer of them while much is unsent. Returns a
        `ReadResult` if there are none.
        """
        topic, queue_id = query.queue
        messages_max = min(query.messages_max or READ_MESSAGES_MAX, READ_MESSAGES_MAX)
        return self._store.find(
            topic,
            queue_id,
            query.queue_offset,
            bytes_max=self.unsent.share(min(query.bytes_max or READ_BYTES_MAX, READ_BYTES_MAX)),
            messages_max=min(messages_max, _PARSED_MAX) if query.filter.predicate else messages_max,
            tag_hashes=query.filter.tag_hashes,
        )

    def load(self, query: Query, found: ReadResult | Found) -> ReadResult:
        """Reads located messages on the loop, and applies the predicate of the filter."""
        if isinstance(found, Found):
            found = found.read(self._store.log.read_ranges)
        return self._filtered(query, found)

    async def load_cold(self, query: Query) -> ReadResult:
        """As `read`, in turn with other cold reads and on a thread; it may return less."""

        def locate(bytes_max: int) -> ReadResult | Found:
            bytes_max = min(query.bytes_max or bytes_max, bytes_max)
            return self.locate(query._replace(bytes_max=bytes_max))

        is_paced = not self._replicas.is_serving
        return self._filtered(query, await self._cold.read(locate, is_paced=is_paced))

    def load_warm(self, query: Query, found: ReadResult | Found) -> ReadResult | None:
        """As `load`. None when `load_cold` has to do it: the messages are far behind, and not in
        memory or on a node that follows.
        """
        if isinstance(found, Found) and self.behind_bytes(found) > self._replicas.backlog_bytes:
            result = found.read_in_memory(self._store.log) if self._replicas.is_serving else None
            return result and self._filtered(query, result)
        return self.load(query, found)

    async def read_anywhere(self, query: Query) -> ReadResult:
        """As `read`; what is far behind and not in memory, on a thread."""
        return await self._load_any(query, self.locate(query))

    async def _load_any(self, query: Query, found: ReadResult | Found) -> ReadResult:
        return self.load_warm(query, found) or await self.load_cold(query)

    def behind_bytes(self, found: ReadResult | Found) -> int:
        """Bytes of the log from the first message to the end; 0 without a message."""
        if not isinstance(found, Found):
            return 0
        return self._store.log.end_offset - found.log_range[0]

    def _filtered(self, query: Query, result: ReadResult) -> ReadResult:
        result = _known(query, result)
        self.lost_total += result.lost
        predicate = query.filter.predicate
        if predicate and result.status == Status.FOUND:
            runs = select(result.runs, predicate)
            status = Status.FOUND if runs else Status.NOTHING_MATCHED
            result = result._replace(status=status, runs=runs)
        for run in result.runs:
            size = len(run.frames)
            self.messages_total += run.message_count
            self.bytes_total += size
            self.by_topic.add(query.queue.topic, run.message_count, size)
        return result

    # -- the long poll ----------------------------------------------------------------------------

    async def pull(self, query: Query, wait_s: float) -> ReadResult:
        """Waits so long for messages that the filter lets through; then END says where to go on.
        Raises TopicNotFound, QueueNotFound, PermissionDenied, NotLeader, MessagesDamaged.
        """

        async def step(query: Query) -> Pulled:
            self._replicas.check_serving()
            self._topics.readable(*query.queue)
            return Pulled(await self._load_any(query, self.locate(query)))

        return (await self._poll(query, wait_s, step)).result

    async def pull_anywhere(self, query: Query, wait_s: float, zone: str) -> Pulled:
        """As `pull`, on any node. Raises NotLeader on a node without a leader."""

        async def step(query: Query) -> Pulled:
            if self._replicas.is_serving:
                return await self._leading(query, zone)
            return await self._following(query, zone, self._replicas.leader())

        return await self._poll(query, wait_s, step)

    async def _leading(self, query: Query, zone: str) -> Pulled:
        """A reader that is sent elsewhere gets messages as well: so two nodes that disagree on its
        place cannot send it back and forth without end.
        """
        self._topics.readable(*query.queue)
        found = self.locate(query)
        if not isinstance(found, Found):
            return Pulled(self.load(query, found))
        place = self._replicas.better_place(Reader(zone, self.behind_bytes(found)))
        try:
            return Pulled(await self._load_any(query, found), place)
        except MessagesDamaged:
            place = self._replicas.other_place()
            if place is None:
                raise
        await asyncio.sleep(_DAMAGED_S)
        at = query.queue_offset
        return Pulled(ReadResult(Status.END, [], at, found.start, found.end), place)

    async def _following(self, query: Query, zone: str, leader: Peer) -> Pulled:
        unknown = ReadResult(Status.END, [], query.queue_offset, 0, query.queue_offset)
        if self._is_draining:
            return Pulled(unknown, leader)
        try:
            self._topics.readable(*query.queue)
        except MqError:
            return Pulled(unknown, leader)
        try:
            result = await self._load_any(query, self.locate(query))
        except MessagesDamaged:
            await asyncio.sleep(_DAMAGED_S)
            return Pulled(unknown, leader)
        if result.status in (Status.TOO_SMALL, Status.TOO_LARGE):
            # Not applied yet, or dropped from this disk alone.
            return Pulled(unknown, leader)
        if result.status == Status.NOTHING_MATCHED:
            return Pulled(result)
        self.follower_reads_total += bool(result.runs)
        end = self._store.log.end_offset
        at = result.runs[-1].log_offset + len(result.runs[-1].frames) if result.runs else end
        return Pulled(result, self._replicas.way_back(Reader(zone, end - at), leader))

    async def _poll(
        self, query: Query, wait_s: float, step: Callable[[Query], Awaitable[Pulled]]
    ) -> Pulled:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_s, _WAIT_S_MAX)
        while True:
            pulled = await step(query)
            result, read_from = pulled
            left_s = deadline - loop.time()
            if result.status == Status.NOTHING_MATCHED:
                query = query._replace(queue_offset=result.next_offset)
                if left_s <= 0 or read_from is not None:
                    return Pulled(result._replace(status=Status.END), read_from)
                await asyncio.sleep(0)
            elif (
                result.status != Status.END
                or read_from is not None
                or left_s <= 0
                or not await self._arrivals.wait(query.queue, left_s)
            ):
                return pulled


def _known(query: Query, result: ReadResult) -> ReadResult:
    """A queue that has had no message yet is an empty one."""
    if result.status != Status.NO_QUEUE:
        return result
    status = Status.TOO_LARGE if query.queue_offset else Status.END
    return ReadResult(status, [], 0, 0, 0)
