"""Where a queue is read: pulls of one client, as the brokers answered them.

What is far behind is read where the leader says, from a follower of the set. A follower is believed
in what it shows only: at any failure, and whenever it has nothing to show, the leader is asked.
Answers stay bytes, but for what stands before their messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from mq.client.cluster.connection import CALL_TIMEOUT_S, Connection
from mq.client.cluster.retry import UnaryCall, now_s
from mq.client.messages import QueueRef
from mq.errors import Internal, MqError
from mq.wire.v1 import consumer_pb2 as wire

_SERVICE = "ConsumerService"
# What a broker that does not lead may take beyond the wait, before the leader is asked.
_FOLLOWER_S = 2.0
# How often an answer without messages may name somebody else.
_HOPS_MAX = 3


class Answer(Protocol):
    """As much of an answer as decides where to read on."""

    @property
    def status(self) -> int: ...
    @property
    def read_from(self) -> str: ...
    @property
    def has_messages(self) -> bool: ...


A = TypeVar("A", bound=Answer)


class QueueReads(Generic[A]):
    def __init__(self, connection: Connection, parse: Callable[[bytes], A]) -> None:
        """`parse` raises DecodeError for what is no answer to a pull."""
        self._connection = connection
        self._parse = parse
        # Where a queue is read, if not at the leader.
        self._addresses: dict[QueueRef, str] = {}

    async def pull(self, ref: QueueRef, request: wire.PullRequest) -> A:
        """Of whoever should be asked; what has no messages is the leader's to say."""
        deadline_s = now_s() + request.wait_ms / 1000
        for _ in range(_HOPS_MAX if request.any_replica else 0):
            address = self._addresses.get(ref, "")
            try:
                answer = await self._ask(ref, request, address)
            except MqError:
                if not address:
                    raise
                # Dead, or of no use any more.
                self._addresses.pop(ref, None)
                continue
            self._remember(ref, answer.read_from or address)
            if answer.has_messages:
                return answer
            if not answer.read_from and (not address or _is_plain(answer)):
                return answer
            if not answer.read_from:
                self._addresses.pop(ref, None)
            request.wait_ms = max(0, round((deadline_s - now_s()) * 1000))
        request.any_replica = False
        return await self._ask(ref, request)

    def _remember(self, ref: QueueRef, address: str) -> None:
        """Where to read from now on."""
        if address and address != self._connection.of(ref.broker_set).known_leader:
            self._addresses[ref] = address
        else:
            self._addresses.pop(ref, None)

    async def _ask(self, ref: QueueRef, request: wire.PullRequest, address: str = "") -> A:
        """One attempt at the address; without one, the leader of the set."""
        broker_set = self._connection.of(ref.broker_set)
        wait_s = request.wait_ms / 1000
        if address:
            call = UnaryCall(_SERVICE, "Pull", request, 0.0, raw_response=True)
            data: bytes = await broker_set.ask(address, call, wait_s + _FOLLOWER_S)
        else:
            data = await broker_set.call(
                _SERVICE, "Pull", request, wait_s + CALL_TIMEOUT_S, raw_response=True
            )
        try:
            return self._parse(data)
        except DecodeError as error:
            raise Internal(f"what the broker sends cannot be read: {error}") from None


def _is_plain(answer: Answer) -> bool:
    """Nothing there, as it should be: what is gone, or not there yet, the leader has to say."""
    return answer.status in (wire.PULL_FOUND, wire.PULL_END)
