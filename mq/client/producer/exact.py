"""Prepared batches under numbers that the caller gives: for writers that make the same batches
again after a crash, as the sink for Spark does, and want them stored once.

Owns the way to the broker: where a topic takes messages, and a request that is repeated over
fail-overs until its time is over. In a queue one request is under way at a time, so that batches
stand there in the order in which they were handed over. What is in a batch, and what its number
means, is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import repeat
from mq.client.cluster.topology import queues_of
from mq.client.lifecycle import AsyncClient, SyncClient
from mq.client.messages import QueueRef
from mq.wire.v1.producer_pb2 import AtomicResponse, RawAtomicRequest

# Long enough for a fail-over on a busy machine, or a node that is started again.
SEND_S = 120.0
ROUTE_S = 30.0
# A broker that holds a request for longer is frozen, or gone.
_ATTEMPT_S = 15.0


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


class AsyncExactSender(AsyncClient):
    """Used on one event loop."""

    def __init__(self, servers: str | Sequence[str], *, zone: str = "") -> None:
        self._connection = Connection(servers, zone)
        # The newest request to each queue.
        self._newest: dict[QueueRef, asyncio.Task[Stored]] = {}

    async def layout(self, topic: str, timeout_s: float = ROUTE_S) -> list[QueueRef]:
        """The queues that take messages, those of all sets: a key goes to the one that the hash of
        it, modulo their number, names, as with a producer. In a topic with priorities, those of the
        lowest. A missing topic is created if the brokers do that. TopicNotFound, PermissionDenied,
        IllegalTopic; Unreachable.
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
        """Stored behind what was handed over for its queue before; when that fails, this does, too.
        Durable when it returns. Raises what the broker answers, or what kept it from answering
        until the time was over; the same may be sent again.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
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
        # One batch: requests of several would have to be made again in the same company.
        request = RawAtomicRequest(batches=[shipment.data])

        async def attempt(left_s: float) -> AtomicResponse:
            response: AtomicResponse = await broker_set.call(request, left_s, attempt_s=_ATTEMPT_S)
            return response

        (result,) = (await repeat(attempt, timeout_s)).results
        return Stored(shipment.queue, result.queue_offset, result.is_duplicate)

    async def close(self) -> None:
        await self._connection.close()


class ExactSender(SyncClient[AsyncExactSender]):
    """The same for programs without asyncio."""

    def __init__(self, servers: str | Sequence[str], *, zone: str = "") -> None:
        super().__init__(AsyncExactSender(servers, zone=zone))

    def layout(self, topic: str, timeout_s: float = ROUTE_S) -> list[QueueRef]:
        """As `AsyncExactSender.layout`."""
        return self._run(self._client.layout(topic, timeout_s))

    def submit(self, shipment: Shipment, timeout_s: float = SEND_S) -> Future[Stored]:
        """As `AsyncExactSender.send`, of which this is the outcome. For one thread at a time: the
        order of the calls is that in the queues.
        """
        return self._background.submit(self._client.send(shipment, timeout_s))
