"""A stand-in for a connection and for the broker's side of Subscribe: a test writes the answers.

No sockets and no group behind it; what the real broker does is tested in tests/integration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from mq.client.cluster.channels import Credentials, method_of
from mq.client.cluster.topology import Topology
from mq.client.messages import QueueRef
from mq.errors import MqError, NotLeader, Unreachable
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1 import status_pb2
from mq.wire.v1.cluster_pb2 import (
    BrokerSet,
    NodeRoute,
    RouteRequest,
    RouteResponse,
    TopicRoute,
)
from mq.wire.v1.consumer_pb2 import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    FindOffsetsRequest,
    FindOffsetsResponse,
    LeaveResponse,
    QueuePosition,
    SubscribeRequest,
    SubscribeStart,
)
from tests.unit.client.consumer.deliveries import SET, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.client.cluster.connection import Connection
    from tests.unit.client.consumer.deliveries import Content

DEADLINE_S = 10.0


def rpc_error(error: MqError | None = None) -> grpc.aio.AioRpcError:
    """What a broker ends a stream with; without an error of ours, a broken connection."""
    if error is None:
        nothing = grpc.aio.Metadata()
        return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "reset")
    status = status_pb2.Status(
        code=error.code.name,
        text=str(error),
        leader_address=error.address or "" if isinstance(error, NotLeader) else "",
    )
    trailing = grpc.aio.Metadata(("mq-status-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(
        grpc.StatusCode.FAILED_PRECONDITION, grpc.aio.Metadata(), trailing, str(error)
    )


def retried(*results: wire.RetryResult) -> wire.RetryResponse:
    return wire.RetryResponse(results=results)


class ScriptedCall:
    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: asyncio.Queue[SubscribeRequest] = asyncio.Queue()
        self.is_half_closed = self.is_cancelled = False
        # Ends the stream by itself after the consumer has.
        self.is_polite = True
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    # What the client calls

    async def wait_for_connection(self) -> None:
        pass

    async def write(self, request: bytes) -> None:
        assert not self.is_half_closed
        self.requests.put_nowait(SubscribeRequest.FromString(request))

    async def read(self) -> Any:
        answer = await self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def done_writing(self) -> None:
        self.is_half_closed = True
        if self.is_polite:
            self._answers.put_nowait(grpc.aio.EOF)

    def cancel(self) -> bool:
        self.is_cancelled = True
        self._answers.put_nowait(asyncio.CancelledError())
        return True

    # What a test does

    def send(self, *contents: Content) -> None:
        for content in contents:
            self._answers.put_nowait(response(content))

    def end(self, error: MqError | None = None) -> None:
        self._answers.put_nowait(rpc_error(error))

    async def heard(self, kind: str) -> SubscribeRequest:
        """The next request; it must be of this kind."""
        request = await asyncio.wait_for(self.requests.get(), DEADLINE_S)
        assert request.WhichOneof("kind") == kind, request
        return request

    async def started(self) -> SubscribeStart:
        return (await self.heard("start")).start

    async def progress(self) -> dict[int, int]:
        positions = (await self.heard("progress")).progress.positions
        return {one.queue_id: one.queue_offset for one in positions}


class ScriptedSet:
    """One broker set, and the client's connection to it."""

    credentials = Credentials()
    generation = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.leaders = [f"{name}:1" if name != SET else "one:1"]
        self.term = 1
        self.opened: asyncio.Queue[ScriptedCall] = asyncio.Queue()
        self.calls: list[tuple[str, Any]] = []
        self.failures: list[str] = []
        # Their numbers of queues.
        self.topics: dict[str, int] = {}
        # By method: raises, or returns the answer.
        self.answers: dict[str, Callable[[Any], Any]] = {
            "CommitOffsets": lambda _: CommitOffsetsResponse(),
            "FindOffsets": self._find_offsets,
            "Leave": lambda _: LeaveResponse(),
            "QueryOffsets": lambda _: wire.QueryOffsetsResponse(),
            "Retry": lambda request: retried(
                *[wire.RetryResult(attempts=1, deliver_at_ms=1)] * len(request.messages)
            ),
            "Route": self.route,
        }
        # What each new stream is answered with at once.
        self.prepared: list[Content] = []
        # Raises, or returns what a Pull is answered with.
        self.pull: Callable[[str, wire.PullRequest], wire.PullResponse] = _no_pull
        self.end = 100
        self.servers: tuple[str, ...] = (self.leaders[0],)

    def _find_offsets(self, request: FindOffsetsRequest) -> FindOffsetsResponse:
        at = {0: 0, 1: self.end, 2: request.at_ms}[request.kind]
        places = [
            QueuePosition(topic=request.topic, queue_id=queue_id, queue_offset=at)
            for queue_id in request.queue_ids
        ]
        return FindOffsetsResponse(positions=places)

    def route(self, request: RouteRequest) -> RouteResponse:
        """What it says of itself."""
        node = NodeRoute(node_id="n", address=self.leaders[-1])
        known = BrokerSet(name=self.name, leader_id="n", term=self.term, nodes=[node])
        parts = [
            TopicRoute(topic=topic, broker_set=self.name, read_queues=count, is_readable=True)
            for topic, count in self.topics.items()
            if topic in request.topics
        ]
        return RouteResponse(broker_sets=[known], topics=parts)

    # What the client calls

    @property
    def channels(self) -> ScriptedSet:
        return self

    async def brokers(self, topics: Any = (), *_: Any, **__: Any) -> RouteResponse:
        assert isinstance(topics, float)  # a time-out
        return self.route(RouteRequest())

    async def leader(self, _: float) -> str:
        return self.leaders[-1]

    def stream(self, address: str, *_: Any) -> ScriptedCall:
        call = ScriptedCall(address)
        call.send(*self.prepared)
        self.opened.put_nowait(call)
        return call

    async def call(self, request: Any, timeout_s: float = 0) -> Any:
        assert timeout_s >= 0
        method = method_of(type(request))[0].rpartition("/")[2]
        if method not in ("Route", "QueryOffsets"):
            self.calls.append((method, request))
        return self.answers[method](request)

    async def ask(
        self, address: str, request: wire.PullRequest, _: float, *, raw_response: bool
    ) -> bytes:
        assert raw_response
        await asyncio.sleep(0)
        return self.pull(address, request).SerializeToString()

    def not_leader(self, _: str, leader: str) -> None:
        self.leaders.append(leader)

    def failed(self, address: str) -> None:
        self.failures.append(address)

    # What a test asks

    async def next_call(self) -> ScriptedCall:
        return await asyncio.wait_for(self.opened.get(), DEADLINE_S)

    def committed(self) -> list[dict[QueueRef, int]]:
        requests: list[CommitOffsetsRequest] = [
            request for method, request in self.calls if method == "CommitOffsets"
        ]
        return [
            {
                QueueRef(one.topic, one.queue_id, self.name): one.queue_offset
                for one in request.positions
            }
            for request in requests
        ]

    def retry_requests(self) -> list[wire.RetryRequest]:
        return [request for method, request in self.calls if method == "Retry"]


def _no_pull(address: str, _: wire.PullRequest) -> wire.PullResponse:
    raise Unreachable(f"{address} does not answer")


class ScriptedConnection(ScriptedSet):
    """A cluster, with one set, which is the connection itself, and perhaps others."""

    def __init__(self, *others: str) -> None:
        super().__init__(SET)
        self.is_closed = False
        # By name.
        self.all: dict[str, ScriptedSet] = {SET: self, **{one: ScriptedSet(one) for one in others}}
        # Those of which nobody tells.
        self.unheard: set[str] = set()
        self.topology = Topology(self.as_connection)

    @property
    def as_connection(self) -> Connection:
        return cast("Connection", self)

    def of(self, name: str) -> ScriptedSet:
        return self.all[name]

    async def sets(self, _: float) -> list[ScriptedSet]:
        """Topics that are missing would be created in the first one."""
        return [self]

    async def brokers(self, topics: Any = (), *_: Any, **__: Any) -> RouteResponse:
        """Topics are asked for as of a cluster; of a set the first argument is a time-out."""
        topics = topics if isinstance(topics, Sequence) else ()
        answer = RouteResponse()
        for name, one in self.all.items():
            if name not in self.unheard:
                answer.MergeFrom(one.route(RouteRequest(topics=topics)))
        self.topology.learn(topics, answer)
        return answer

    async def close(self) -> None:
        self.is_closed = True
