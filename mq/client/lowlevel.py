"""The low-level face of the client library, for programs that move whole batches as bytes, such as
the Spark connector: ranges of queues as pages, prepared batches under the caller's own numbers, and
offsets of queues.

These names do not change without notice, but ask for more care than those of `mq.client`: frames
are as proto/mq/v1 describes them. Everything runs on the `background` loop of the process.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from mq.client.cluster.connection import (
    ConnectedClient,
    Connection,
    ConnectionOptions,
    parse_servers,
)
from mq.client.cluster.retry import Throttle, now_s, repeat
from mq.client.cluster.topology import queues_of
from mq.client.consumer.offsets import find_offsets
from mq.client.consumer.options import Start, split_tags
from mq.client.consumer.pull import QueuePulls
from mq.client.decode import Page
from mq.client.lifecycle import SyncClient, background
from mq.client.messages import FilterLike, QueueRef, wire_filter
from mq.client.public import arguments_of
from mq.errors import Unreachable
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.producer_pb2 import AtomicResponse, RawAtomicRequest

__all__ = [
    "ConnectionOptions",
    "ExactSender",
    "Page",
    "QueueOffsets",
    "QueueScanner",
    "Shipment",
    "Start",
    "Stored",
    "background",
    "parse_servers",
    "split_tags",
]

# A new leader may not know yet that the messages of a range are committed: how long one pull waits
# for them, and all.
_WAIT_MS = 500
_PATIENCE_S = 60.0
# A new leader may say for a moment that messages which another broker has shown are behind the end
# of its queue. It is believed if it still says so after this time.
_BEHIND_END_S, _PAUSE_S = 2.0, 0.1
_MESSAGES_MAX = (1 << 32) - 1

# Long enough for a fail-over on a busy machine, or a node that is started again.
SEND_S = 120.0
ROUTE_S = 30.0
# A broker that holds a request for longer is frozen, or gone.
_ATTEMPT_S = 15.0


class QueueOffsets(ConnectedClient):
    """The first and last offsets of queues. For one event loop, that of `background`."""

    @arguments_of(ConnectionOptions)
    def __init__(self, options: ConnectionOptions) -> None:
        self._connection = options.connect()

    async def check(self) -> None:
        """Returns when a broker has answered. Unreachable."""
        await self._connection.brokers()

    async def find(self, topic: str, to: Start) -> dict[QueueRef, int]:
        """As `PullConsumer.find_offsets`, of the queues that are known: see `forget`."""
        return await find_offsets(self._connection, topic, to)

    def forget(self, topic: str) -> None:
        """The next `find` asks the brokers again which queues the topic has."""
        self._connection.topology.forget(topic)


# Ranges of queues, as pages of raw responses


class RangeRead:
    """One range, read page by page. It may be read again: there is no membership and no offset."""

    def __init__(
        self,
        connection: Connection,
        reads: QueuePulls,
        ref: QueueRef,
        start: int,
        end: int,
        chosen: FilterLike = None,
        *,
        any_replica: bool = True,
    ) -> None:
        self._connection = connection
        self._reads = reads
        self._ref = ref
        self._place, self._end = start, end
        self._filter = wire_filter(chosen)
        self._any_replica = any_replica
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
            any_replica=self._any_replica,
            zone=self._connection.zone,
        )
        return await self._reads.pull(self._ref, request)


class _RawClient(ConnectedClient):
    """The asyncio twin of a `QueueScanner` or an `ExactSender`."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._connection = options.connect()
        self._reads = QueuePulls(self._connection)
        self.sender = BatchSender(self._connection)

    def read(self, ref: QueueRef, start: int, end: int, chosen: FilterLike) -> RangeRead:
        return RangeRead(self._connection, self._reads, ref, start, end, chosen)


class QueueScanner(SyncClient[_RawClient]):
    """Reads ranges for programs without asyncio, one thread at a time. The next page is fetched
    while the last one is worked on.
    """

    @arguments_of(ConnectionOptions)
    def __init__(self, options: ConnectionOptions) -> None:
        super().__init__(_RawClient(options))

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


# Prepared batches under numbers of the caller


class Shipment(NamedTuple):
    """One batch for one queue, as `mq.client.encode` makes them."""

    queue: QueueRef
    data: bytes


class Stored(NamedTuple):
    queue: QueueRef
    # Of its first message; -1: stored so long ago that the broker has forgotten it.
    queue_offset: int
    # By an earlier attempt.
    is_duplicate: bool


class BatchSender:
    """Sends prepared batches to queues. The caller numbers them: a batch that it makes and sends
    again, also after a crash, is stored once. Used on the loop of the connection.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # The newest request to each queue: the next one waits for it, so that order holds.
        self._newest: dict[QueueRef, asyncio.Task[Stored]] = {}
        self._throttles: defaultdict[str, Throttle] = defaultdict(Throttle)

    async def layout(self, topic: str, timeout_s: float = ROUTE_S) -> list[QueueRef]:
        """The writable queues of all sets. The hash of an ordering key modulo their number is the
        position of its queue, as with a producer. In a topic with priorities, the queues of the
        lowest. A missing topic is created if the brokers allow it. Raises TopicNotFound,
        PermissionDenied, IllegalTopic or Unreachable.
        """
        topology = self._connection.topology
        topology.forget(topic)
        route = await topology.locate_writable(topic, timeout_s)
        return [
            QueueRef(topic, queue_id, part.broker_set)
            for part in route.parts
            if part.is_writable
            for queue_id in queues_of(part, 0)
        ]

    async def send(self, shipment: Shipment, timeout_s: float = SEND_S) -> Stored:
        """Stores the batch behind the earlier ones of its queue, and fails if one of those fails.
        Durable when it returns. Raises the error of the broker, or Unreachable after the time-out;
        the same batch may be sent again.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 # a coroutine runs in one
        before = self._newest.get(shipment.queue)
        self._newest[shipment.queue] = task
        try:
            if before is not None:
                await asyncio.shield(before)
            return await self._send(shipment, timeout_s)
        finally:
            if self._newest.get(shipment.queue) is task:
                del self._newest[shipment.queue]

    async def _send(self, shipment: Shipment, timeout_s: float) -> Stored:
        broker_set = self._connection.of(shipment.queue.broker_set)
        # One batch per request: several would have to be sent again together.
        request = RawAtomicRequest(batches=[shipment.data])

        throttle = self._throttles[broker_set.name]

        async def attempt(left_s: float) -> AtomicResponse:
            response: AtomicResponse = await broker_set.call(request, left_s, attempt_s=_ATTEMPT_S)
            return response

        await throttle.wait()
        response = await repeat(attempt, timeout_s)
        throttle.asked(response.throttle_ms)
        (result,) = response.results
        return Stored(shipment.queue, result.queue_offset, result.is_duplicate)


class ExactSender(SyncClient[_RawClient]):
    """A `BatchSender` for programs without asyncio."""

    @arguments_of(ConnectionOptions)
    def __init__(self, options: ConnectionOptions) -> None:
        super().__init__(_RawClient(options))

    def layout(self, topic: str, timeout_s: float = ROUTE_S) -> list[QueueRef]:
        """As `BatchSender.layout`."""
        return self._run(self._client.sender.layout(topic, timeout_s))

    def submit(self, shipment: Shipment, timeout_s: float = SEND_S) -> Future[Stored]:
        """As `BatchSender.send`, of which this is the outcome. For one thread at a time: the order
        of the calls is that in the queues.
        """
        return self._background.submit(self._client.sender.send(shipment, timeout_s))
