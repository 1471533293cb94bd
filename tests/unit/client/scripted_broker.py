"""A stand-in for a connection and for the broker's side of Subscribe: a test writes the answers.

No sockets and no group behind it; what the real broker does is tested in tests/integration.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from mq.client.model import QueueRef
from mq.errors import MqError, NotLeader
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1 import status_pb2
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse
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
from tests.unit.client.deliveries import response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mq.client.wiring import Connection
    from mq.wire.v1.consumer_pb2 import Assignment, Delivery

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

    async def write(self, request: SubscribeRequest) -> None:
        assert not self.is_half_closed
        self.requests.put_nowait(request)

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
        return True

    # What a test does

    def send(self, *contents: Assignment | Delivery) -> None:
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


class ScriptedConnection:
    def __init__(self) -> None:
        self.leaders = ["one:1"]
        self.term = 1
        self.opened: asyncio.Queue[ScriptedCall] = asyncio.Queue()
        self.calls: list[tuple[str, Any]] = []
        self.failures: list[str] = []
        # By method: raises, or returns the answer.
        self.answers: dict[str, Callable[[Any], Any]] = {
            "CommitOffsets": lambda _: CommitOffsetsResponse(),
            "FindOffsets": self._find_offsets,
            "Leave": lambda _: LeaveResponse(),
            "Retry": lambda request: retried(
                *[wire.RetryResult(attempts=1, deliver_at_ms=1)] * len(request.messages)
            ),
        }
        # What each new stream is answered with at once.
        self.prepared: list[Assignment | Delivery] = []
        self.end = 100
        self.servers = ("one:1",)
        self.is_closed = False

    @property
    def as_connection(self) -> Connection:
        return cast("Connection", self)

    def _find_offsets(self, request: FindOffsetsRequest) -> FindOffsetsResponse:
        at = {0: 0, 1: self.end, 2: request.at_ms}[request.kind]
        places = [
            QueuePosition(topic=request.topic, queue_id=queue_id, queue_offset=at)
            for queue_id in request.queue_ids
        ]
        return FindOffsetsResponse(positions=places)

    async def brokers(self, _: Sequence[str] = ()) -> RouteResponse:
        node = NodeRoute(node_id="n", address=self.leaders[-1])
        known = BrokerSet(name="set-0", leader_id="n", term=self.term, nodes=[node])
        return RouteResponse(broker_sets=[known])

    async def leader(self) -> str:
        return self.leaders[-1]

    def stream(self, address: str, *_: str, raw_responses: bool) -> ScriptedCall:
        assert raw_responses
        call = ScriptedCall(address)
        call.send(*self.prepared)
        self.opened.put_nowait(call)
        return call

    async def next_call(self) -> ScriptedCall:
        return await asyncio.wait_for(self.opened.get(), DEADLINE_S)

    async def call(self, _: str, method: str, request: Any, timeout_s: float = 0) -> Any:
        assert timeout_s >= 0
        self.calls.append((method, request))
        return self.answers[method](request)

    def committed(self) -> list[dict[QueueRef, int]]:
        requests: list[CommitOffsetsRequest] = [
            request for method, request in self.calls if method == "CommitOffsets"
        ]
        return [
            {QueueRef(one.topic, one.queue_id): one.queue_offset for one in request.positions}
            for request in requests
        ]

    def retry_requests(self) -> list[wire.RetryRequest]:
        return [request for method, request in self.calls if method == "Retry"]

    def not_leader(self, _: str, leader: str) -> None:
        self.leaders.append(leader)

    def failed(self, address: str) -> None:
        self.failures.append(address)

    async def close(self) -> None:
        self.is_closed = True
