"""Broker sets for a transaction producer: they fail over, lose answers and freeze as the script of
a test says. They keep the promises of real brokers: a sequence that is stored is not stored again,
and a repeated end is the same end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from mq.client.aio import TransactionProducer
from mq.errors import Unreachable
from mq.wire.v1 import status_pb2 as wire
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteRequest, RouteResponse, TopicRoute
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.status_pb2 import Status
from mq.wire.v1.transaction_pb2 import (
    RESOLUTION_COMMIT,
    CheckTransaction,
    EndTransactionRequest,
    EndTransactionResponse,
    HalfStored,
    TransactRequest,
    TransactResponse,
    TransactStart,
    TransactStarted,
)
from tests.unit.client.producer.scripted_brokers import rpc_error
from tests.unit.client.scripted_channels import connected

SET = "set-0"


class Lost(Exception):
    """The request was carried out, and the stream breaks before the answer."""


class Silence(Exception):
    """No answer, and the stream stays."""


# The refusal of a request; None: carry it out. May raise `Lost` and `Silence`.
Script = Callable[["ScriptedBrokers", TransactRequest], Status | None]


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
        # The sets known to this one, itself included.
        self.known: list[ScriptedBrokers] = [self]
        self.closed: set[str] = set()
        self.term = 1
        self.down: set[str] = set()
        self.frozen: set[str] = set()
        self.topics = {"t": 4}
        self.priorities = 0
        self.script = script
        self.calls: list[TransactCall] = []
        self.starts: list[TransactStart] = []
        self.requests: list[TransactRequest] = []
        self.checked: list[EndTransactionRequest] = []
        # Half batches by transaction id, and how each ended.
        self.halves: dict[str, Batch] = {}
        self.ends: dict[str, int] = {}
        self._numbers: dict[tuple[str, int], str] = {}

    def producer(self, execute: Any, check: Any = None, **settings: Any) -> TransactionProducer:
        servers = [address for brokers in self.known for address in brokers.addresses]
        made = TransactionProducer(servers, "g", execute, check or execute, **settings)
        connected(made._connection, self.known)
        return made

    # As channels

    async def answer(self, address: str, method: str, request: Any, timeout_s: float) -> Any:
        if address in self.frozen:
            await asyncio.sleep(timeout_s)
        if address in self.down or address in self.frozen:
            raise Unreachable(f"{address}: UNAVAILABLE")
        assert method == "ClusterService/Route"
        return self._route(request)

    def _route(self, request: RouteRequest) -> RouteResponse:
        return RouteResponse(
            broker_sets=[brokers.broker_set() for brokers in self.known],
            topics=[
                TopicRoute(
                    topic=topic,
                    broker_set=brokers.name,
                    write_queues=brokers.topics[topic],
                    read_queues=brokers.topics[topic],
                    is_writable=topic not in brokers.closed,
                    priorities=brokers.priorities,
                )
                for topic in request.topics
                for brokers in self.known
                if topic in brokers.topics
            ],
        )

    def broker_set(self) -> BrokerSet:
        nodes = [NodeRoute(node_id=one, address=one) for one in self.addresses]
        leader = "" if self.leading in self.down else self.leading
        return BrokerSet(name=self.name, leader_id=leader, term=self.term, nodes=nodes)

    def open(self, address: str) -> TransactCall:
        call = TransactCall(self, address)
        self.calls.append(call)
        return call

    # As brokers

    def fail_over(self, to: str, *, is_frozen: bool = False) -> None:
        """The leader fails, or freezes; another broker leads."""
        old, self.leading = self.leading, to
        self.term += 1
        if is_frozen:
            self.frozen.add(old)
            return
        self.down.add(old)
        for call in self.calls:
            if call.address == old:
                call.break_off()

    def die(self) -> None:
        """All brokers of the set fail."""
        self.down.update(self.addresses)
        for call in self.calls:
            call.break_off()

    def ask(self, transaction_id: str, check: int = 1) -> None:
        """Sends a check on the open stream."""
        batch = self.halves[transaction_id]
        question = CheckTransaction(
            transaction_id=transaction_id,
            topic=batch.topic,
            queue_id=batch.queue_id,
            check=check,
            messages=batch.messages,
        )
        self.calls[-1].give(TransactResponse(check=question))

    def carry_out(self, address: str, request: TransactRequest) -> TransactResponse:
        """Raises Lost, Silence."""
        self.requests.append(request)
        if address != self.leading:
            refused = Status(code=wire.NOT_LEADER, text="no", leader_address=self.leading)
            return TransactResponse(request_id=request.request_id, failed=refused)
        refusal = self.script(self, request) if self.script is not None else None
        if refusal is not None:
            return TransactResponse(request_id=request.request_id, failed=refusal)
        if request.WhichOneof("kind") == "half":
            return TransactResponse(request_id=request.request_id, half=self.store(request.half))
        return self._end(request)

    def store(self, batch: Batch) -> HalfStored:
        number = batch.producer_id, batch.sequence
        assert number[1] > 0
        is_duplicate = number in self._numbers
        name = self._numbers.setdefault(number, f"{self.name}:{1000 + len(self._numbers)}")
        self.halves.setdefault(name, batch)
        return HalfStored(transaction_id=name, stored_at_ms=7, is_duplicate=is_duplicate)

    def end(self, request: EndTransactionRequest) -> bool:
        """Whether the transaction has this resolution, now or before."""
        assert request.transaction_id in self.halves
        return self.ends.setdefault(request.transaction_id, request.resolution) == (
            request.resolution
        )

    def _end(self, request: TransactRequest) -> TransactResponse:
        if not self.end(request.end):
            over = Status(code=wire.TRANSACTION_NOT_FOUND, text="it was rolled back")
            return TransactResponse(request_id=request.request_id, failed=over)
        is_commit = request.end.resolution == RESOLUTION_COMMIT
        ended = EndTransactionResponse(
            queue_offset=3 if is_commit else -1, log_offset=77 if is_commit else -1
        )
        return TransactResponse(request_id=request.request_id, ended=ended)


def cluster(*names: str) -> list[ScriptedBrokers]:
    """Sets of one node that know each other; each has the topic "t" with 4 queues."""
    sets = [ScriptedBrokers([f"{name}:1"], name=name) for name in names]
    for brokers in sets:
        brokers.known = sets
    return sets


class TransactCall:
    """One Transact stream, with the methods of a grpc.aio call."""

    def __init__(self, brokers: ScriptedBrokers, address: str) -> None:
        self.address = address
        self._brokers = brokers
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self.is_over = False
        if address in brokers.down:
            self.break_off()

    def give(self, response: TransactResponse) -> None:
        if not self.is_over:
            self._answers.put_nowait(response.SerializeToString())

    def break_off(self, error: grpc.aio.AioRpcError | None = None) -> None:
        self._answers.put_nowait(error or rpc_error())
        self.is_over = True

    # What the client calls

    async def wait_for_connection(self) -> None:
        if self.address in self._brokers.down:
            raise rpc_error()

    async def write(self, data: bytes) -> None:
        if self.is_over:
            raise asyncio.InvalidStateError
        if self.address in self._brokers.frozen:
            return
        bundle = TransactRequest.FromString(data)
        for request in bundle.more or (bundle,):
            if not self.is_over:
                self._take(request)

    def _take(self, request: TransactRequest) -> None:
        kind = request.WhichOneof("kind")
        if kind == "start":
            self._brokers.starts.append(request.start)
            self.give(TransactResponse(started=TransactStarted()))
        elif kind == "checked":
            self._brokers.checked.append(request.checked)
        else:
            try:
                self.give(self._brokers.carry_out(self.address, request))
            except Lost:
                self.break_off()
            except Silence:
                pass

    async def read(self) -> Any:
        answer = await self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def done_writing(self) -> None:
        self._answers.put_nowait(grpc.aio.EOF)

    def cancel(self) -> bool:
        self.is_over = True
        self._answers.put_nowait(asyncio.CancelledError())
        return True
