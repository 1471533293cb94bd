"""Broker sets for a producer: they fail over, leave requests without an answer and break streams as
the script of a test says, and keep the messages that they stored.

They keep the promises of real brokers: batches of one stream are stored in order, a sequence that
is stored is not stored again, a follower redirects to the leader. Real brokers are tested in
tests/integration; the moments scripted here cannot be produced with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio

from mq.client.aio import Producer
from mq.client.cluster.errors import error_of
from mq.errors import Unreachable
from mq.wire.v1 import status_pb2 as wire
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteRequest, RouteResponse, TopicRoute
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.producer_pb2 import ACK_NONE, BatchResult, PublishRequest, PublishResponse
from tests.unit.client.scripted_channels import connected

ANSWER_S = 0.001
SET = "set-0"


class Break(Exception):
    """The stream breaks off instead of an answer."""


class Silence(Exception):
    """No answer, and the stream stays."""


class Stored(NamedTuple):
    queue_id: int
    queue_offset: int
    body: str
    ordering_key: str
    frame_log_offset: int
    producer_id: str
    sequence: int


# The result of a batch; None: store it.
Script = Callable[["ScriptedBrokers", Batch], BatchResult | None]


class ScriptedBrokers:
    """A broker set, alone or in a `cluster`. `leading` is the address of its leader."""

    def __init__(
        self,
        addresses: Sequence[str] = ("a:1",),
        script: Script | None = None,
        *,
        name: str = SET,
    ) -> None:
        self.name = name
        self.addresses = tuple(addresses)
        self.leading = self.addresses[0]
        # The sets known to this one, itself included; `stale` has old routes of some.
        self.known: list[ScriptedBrokers] = [self]
        self.stale: dict[str, list[TopicRoute]] = {}
        self.closed: set[str] = set()
        self.priorities = 0
        self.down: set[str] = set()
        self.frozen: set[str] = set()
        # Writes to these block until the event is set, like those to a broker that does not read.
        self.unblocked: dict[str, asyncio.Event] = {}
        self.topics = {"t": 4}
        self.creates_topics = True
        self.script = script
        self.answer_s = ANSWER_S
        # With each answer, and when each request came.
        self.throttle_ms = 0
        self.received_s: list[float] = []
        self.stored: list[Stored] = []
        self.requests: list[PublishRequest] = []
        self.calls: list[PublishCall] = []
        self.asked: list[str] = []
        self.queue_offsets: dict[tuple[str, int], int] = {}
        self._numbers: dict[tuple[str, int], BatchResult] = {}
        self._log_offset = 100

    def bodies(self, queue_id: int | None = None) -> list[str]:
        return [one.body for one in self.stored if queue_id in (None, one.queue_id)]

    def producer(self, **settings: Any) -> Producer:
        made = Producer(
            [address for brokers in self.known for address in brokers.addresses], **settings
        )
        connected(made._connection, self.known)
        return made

    # As channels

    async def answer(self, address: str, method: str, request: Any, timeout_s: float) -> Any:
        self.asked.append(address)
        if address in self.frozen:
            await asyncio.sleep(timeout_s)
        if address in self.down or address in self.frozen:
            raise Unreachable(f"{address}: UNAVAILABLE")
        assert method == "ClusterService/Route"
        return self._route(request)

    def _route(self, request: RouteRequest) -> RouteResponse:
        for topic in request.topics:
            is_known = any(self._parts_of(brokers, topic) for brokers in self.known)
            if request.create_missing and self.creates_topics and not is_known:
                self.topics[topic] = 4
        return RouteResponse(
            broker_sets=[brokers.broker_set() for brokers in self.known],
            topics=[
                part
                for topic in request.topics
                for brokers in self.known
                for part in self._parts_of(brokers, topic)
            ],
        )

    def broker_set(self) -> BrokerSet:
        nodes = [NodeRoute(node_id=one, address=one) for one in self.addresses]
        return BrokerSet(name=self.name, leader_id=self.leading, nodes=nodes)

    def _parts_of(self, brokers: ScriptedBrokers, topic: str) -> list[TopicRoute]:
        parts = self.stale[brokers.name] if brokers.name in self.stale else brokers.parts()
        return [part for part in parts if part.topic == topic]

    def parts(self) -> list[TopicRoute]:
        return [
            TopicRoute(
                topic=topic,
                broker_set=self.name,
                write_queues=write_queues,
                read_queues=write_queues,
                is_writable=topic not in self.closed,
                priorities=self.priorities,
            )
            for topic, write_queues in self.topics.items()
        ]

    def open(self, address: str) -> PublishCall:
        call = PublishCall(self, address)
        self.calls.append(call)
        return call

    # As brokers

    def die(self) -> None:
        """All brokers of the set fail."""
        for address in self.addresses:
            self.fail(address)

    def fail(self, address: str) -> None:
        """The broker fails: its streams break."""
        self.down.add(address)
        for call in self.calls:
            if call.address == address:
                call.break_off()

    def take(self, address: str, batch: Batch) -> BatchResult:
        if address != self.leading:
            return refusal(wire.NOT_LEADER, leader_address=self.leading)
        answer = self.script(self, batch) if self.script is not None else None
        return self.store(batch) if answer is None else answer

    def store(self, batch: Batch) -> BatchResult:
        number = batch.producer_id, batch.sequence
        if batch.producer_id and number in self._numbers:
            again = BatchResult()
            again.CopyFrom(self._numbers[number])
            again.is_duplicate = True
            return again
        write_queues = self.topics.get(batch.topic)
        if write_queues is None:
            return refusal(wire.TOPIC_NOT_FOUND)
        if batch.topic in self.closed:
            return refusal(wire.PERMISSION_DENIED)
        if batch.queue_id >= write_queues:
            return refusal(wire.QUEUE_NOT_FOUND)
        place = batch.topic, batch.queue_id
        queue_offset = self.queue_offsets.get(place, 0)
        result = BatchResult(
            queue_id=batch.queue_id,
            queue_offset=queue_offset,
            log_offset=self._log_offset,
            stored_at_ms=7,
        )
        for at, message in enumerate(batch.messages):
            self.stored.append(
                Stored(
                    batch.queue_id,
                    queue_offset + at,
                    message.body.decode(),
                    message.ordering_key,
                    self._log_offset,
                    *number,
                )
            )
            self._log_offset += batch.frame_sizes[at]
        self.queue_offsets[place] = queue_offset + len(batch.messages)
        if batch.producer_id:
            self._numbers[number] = result
        return result


def cluster(*names: str, nodes: int = 1, script: Script | None = None) -> list[ScriptedBrokers]:
    """Sets that know each other; each has the topic "t" with 4 queues."""
    sets = [
        ScriptedBrokers([f"{name}{at}:1" for at in range(nodes)], script, name=name)
        for name in names
    ]
    for brokers in sets:
        brokers.known = sets
    return sets


class PublishCall:
    """One Publish stream, with the methods of a grpc.aio call."""

    def __init__(self, brokers: ScriptedBrokers, address: str) -> None:
        self.address = address
        self.is_half_closed = False
        self.has_ended = False
        self.unanswered = 0
        self.unanswered_max = 0
        self._brokers = brokers
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[object] = asyncio.Queue()

    async def wait_for_connection(self) -> None:
        if self.address in self._brokers.frozen:
            await asyncio.Event().wait()
        if self.address in self._brokers.down:
            raise rpc_error()

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        if self.address in self._brokers.unblocked:
            await self._brokers.unblocked[self.address].wait()
        if self.has_ended:
            raise asyncio.InvalidStateError("RPC already finished.")
        if self.address in self._brokers.frozen:
            self.unanswered += 1
            return
        request = PublishRequest.FromString(data)
        self._brokers.requests.append(request)
        self._brokers.received_s.append(self._loop.time())
        self.unanswered += request.ack != ACK_NONE
        self.unanswered_max = max(self.unanswered_max, self.unanswered)
        try:
            results = [self._brokers.take(self.address, batch) for batch in request.batches]
        except Break:
            self.break_off()
        except Silence:
            pass
        else:
            if request.ack != ACK_NONE:
                response = PublishResponse(
                    request_id=request.request_id,
                    results=results,
                    throttle_ms=self._brokers.throttle_ms,
                )
                self._loop.call_later(self._brokers.answer_s, self._answer, response)

    def _answer(self, response: PublishResponse) -> None:
        if not self.has_ended and self.address not in self._brokers.frozen:
            self.unanswered -= 1
            self._answers.put_nowait(response.SerializeToString())
            self._end_if_all_is_said()

    async def read(self) -> object:
        answer = await self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def done_writing(self) -> None:
        self.is_half_closed = True
        self._loop.call_later(ANSWER_S, self._end_if_all_is_said)

    def _end_if_all_is_said(self) -> None:
        if self.is_half_closed and not self.unanswered:
            self._end(grpc.aio.EOF)

    def break_off(self, leader_address: str = "") -> None:
        """Like a broken connection, or a broker that redirects to the leader."""
        self._end(rpc_error(leader_address))

    def cancel(self) -> bool:
        self._end(asyncio.CancelledError())
        return True

    def _end(self, last: object) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._answers.put_nowait(last)


def rpc_error(leader_address: str = "") -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata()
    if leader_address:
        status = wire.Status(code=wire.NOT_LEADER, leader_address=leader_address)
        trailing = grpc.aio.Metadata(("mq-status-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailing, "reset")


def refusal(code: int, *, leader_address: str = "", retry_after_ms: int = 0) -> BatchResult:
    return BatchResult(
        code=code,  # type: ignore[arg-type] # a number on the wire
        text=str(error_of(code, "as the test says")),
        queue_offset=-1,
        log_offset=-1,
        leader_address=leader_address,
        retry_after_ms=retry_after_ms,
    )


def answers(*codes: int) -> Script:
    """A script with these refusals, one per batch; later batches are stored."""
    left = list(codes)

    def script(_brokers: ScriptedBrokers, _batch: Batch) -> BatchResult | None:
        return refusal(left.pop(0)) if left else None

    return script
