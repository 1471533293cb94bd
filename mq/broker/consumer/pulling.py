"""Reading a queue for a consumer: filters, the long poll, and by whom it should be read.

A node that does not lead shows what it has applied, which is committed. It never judges by what it
does not have: whatever would be an error or a gap here is the leader's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from mq.broker.consumer.arrivals import Arrivals
from mq.broker.consumer.cold_reads import ColdReads
from mq.broker.consumer.filters import CompiledFilter, select
from mq.broker.consumer.replicas import Reader, Replicas
from mq.broker.consumer.unsent import Unsent
from mq.broker.contracts import Peer
from mq.broker.queue import Queue
from mq.broker.state.topics import Topics
from mq.errors import MessagesDamaged, MqError
from mq.store.reading import Found, ReadResult, Status
from mq.store.store import Store

# Also for a reader that wants more: it shares the loop with all others, and with its headers an
# answer stays below the 4 MiB that gRPC clients take by default.
READ_BYTES_MAX = 3 << 20
READ_MESSAGES_MAX = 1 << 16
# With a predicate each message is opened, in Python.
_OPENED_MAX = 512
_WAIT_S_MAX = 60.0
# Before a reader is sent to another node because of damage, so that two damaged ones do not keep it
# running between them.
_DAMAGED_S = 0.1
# Another node may show a moment before this one what is committed.
_AHEAD_S = 0.3


class Query(NamedTuple):
    queue: Queue
    queue_offset: int
    filter: CompiledFilter
    bytes_max: int = READ_BYTES_MAX
    messages_max: int = READ_MESSAGES_MAX


class Pulled(NamedTuple):
    result: ReadResult
    # Who should be asked from now on; None: the node that answered.
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
        # Of all that is read here: the caller holds what it hands to the transport.
        self.unsent = unsent
        self._cold = ColdReads(store.log)
        self.messages_total = self.bytes_total = 0
        # Passed over: damaged, and no node has them.
        self.lost_total = 0
        # Answers with messages while another node led.
        self.follower_reads_total = 0
        self._is_draining = False

    def rank(self, queue: Queue) -> int:
        """How far it is below the highest priority of its topic."""
        return self._topics.rank(*queue)

    def end(self, queue: Queue) -> int:
        """Queue offset of the next message."""
        found = self._store.queues.get(*queue)
        return found.end if found else 0

    async def until_applied(self, positions: Mapping[Queue, int]) -> None:
        """For positions of a reader that may have them from another node. Returns when all of them
        are in the queues of this one, or when they ought to be: then they are wrong.
        """
        deadline = asyncio.get_running_loop().time() + _AHEAD_S
        for queue, queue_offset in positions.items():
            while 0 < self.end(queue) < queue_offset:
                left_s = deadline - asyncio.get_running_loop().time()
                if left_s <= 0 or not await self._arrivals.wait(queue, left_s):
                    return

    def drain(self) -> None:
        """The node stops: whoever waits here goes to the leader."""
        self._is_draining = True
        self._arrivals.stir()

    # -- one step ---------------------------------------------------------------------------------

    def read(self, query: Query) -> ReadResult:
        """What is there now: one bounded step. NOTHING_MATCHED: go on at `next_offset`."""
        return self.take(query, self.find(query))

    def find(self, query: Query) -> ReadResult | Found:
        """Where it is, less of it while much is unsent; nothing of the log is read."""
        topic, queue_id = query.queue
        messages_max = min(query.messages_max or READ_MESSAGES_MAX, READ_MESSAGES_MAX)
        return self._store.find(
            topic,
            queue_id,
            query.queue_offset,
            bytes_max=self.unsent.share(min(query.bytes_max or READ_BYTES_MAX, READ_BYTES_MAX)),
            messages_max=min(messages_max, _OPENED_MAX) if query.filter.predicate else messages_max,
            tag_hashes=query.filter.tag_hashes,
        )

    def take(self, query: Query, found: ReadResult | Found) -> ReadResult:
        """What was found, at once."""
        if isinstance(found, Found):
            found = found.read(self._store.log.read_ranges)
        return self._taken(query, found)

    def behind_bytes(self, found: ReadResult | Found) -> int:
        """How much of the log stands between the first message and the end; 0: there is none."""
        if not isinstance(found, Found):
            return 0
        return self._store.log.end_offset - found.log_range[0]

    def is_cold(self, found: ReadResult | Found) -> bool:
        """Whether it is to be taken with `take_cold`: it stands far behind, and on the disk alone;
        or this node follows, and its readers are to be gentle.
        """
        if self.behind_bytes(found) <= self._replicas.backlog_bytes or not isinstance(found, Found):
            return False
        return not self._replicas.is_serving or not found.is_in_memory(self._store.log)

    async def take_cold(self, query: Query) -> ReadResult:
        """As `read`, without haste; it may be less."""

        def find(bytes_max: int) -> ReadResult | Found:
            return self.find(query._replace(bytes_max=min(query.bytes_max or bytes_max, bytes_max)))

        is_paced = not self._replicas.is_serving
        return self._taken(query, await self._cold.read(find, is_paced=is_paced))

    async def _fetch(self, query: Query) -> ReadResult:
        return await self._took(query, self.find(query))

    async def _took(self, query: Query, found: ReadResult | Found) -> ReadResult:
        return await self.take_cold(query) if self.is_cold(found) else self.take(query, found)

    def _taken(self, query: Query, result: ReadResult) -> ReadResult:
        if result.status == Status.NO_QUEUE:
            # There was no message for it yet.
            status = Status.TOO_LARGE if query.queue_offset else Status.END
            return ReadResult(status, [], 0, 0, 0)
        self.lost_total += result.lost
        predicate = query.filter.predicate
        if predicate and result.status == Status.FOUND:
            runs = select(result.runs, predicate)
            status = Status.FOUND if runs else Status.NOTHING_MATCHED
            result = result._replace(status=status, runs=runs)
        for run in result.runs:
            self.messages_total += run.message_count
            self.bytes_total += len(run.frames)
        return result

    # -- the long poll ----------------------------------------------------------------------------

    async def pull(self, query: Query, wait_s: float) -> ReadResult:
        """Waits for messages that the filter lets through, so long; then END says where to go on.
        TopicNotFound, QueueNotFound, PermissionDenied, NotLeader, MessagesDamaged.
        """

        async def step(query: Query) -> Pulled:
            self._replicas.check_serving()
            self._topics.readable(*query.queue)
            return Pulled(await self._fetch(query))

        return (await self._poll(query, wait_s, step)).result

    async def pull_anywhere(self, query: Query, wait_s: float, zone: str) -> Pulled:
        """As `pull`, by whatever node. NotLeader: one that follows nobody."""

        async def step(query: Query) -> Pulled:
            if self._replicas.is_serving:
                return await self._leading(query, zone)
            return await self._following(query, zone, self._replicas.leader())

        return await self._poll(query, wait_s, step)

    async def _leading(self, query: Query, zone: str) -> Pulled:
        """Who is sent elsewhere has got something: so two nodes that disagree on where a reader
        belongs cannot keep it running between them.
        """
        self._topics.readable(*query.queue)
        found = self.find(query)
        if not isinstance(found, Found):
            return Pulled(self.take(query, found))
        place = self._replicas.better_place(Reader(zone, self.behind_bytes(found)))
        try:
            return Pulled(await self._took(query, found), place)
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
            result = await self._fetch(query)
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
                # Whoever waited may find that it was deleted meanwhile, or that another one leads.
                return pulled
