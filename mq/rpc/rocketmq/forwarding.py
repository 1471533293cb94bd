"""Calls that another node has to serve: the leader of this set, or of the one that a handle names.

RocketMQ's clients ask for routes every 30 s and do not look for a leader, so every node takes
everything. A call is passed on once, over a kept channel, as the bytes that came, with the metadata
that says who makes it: the leader decides as if it had been asked itself. While there is no leader
the call waits for one, as long as its client does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

import grpc

from mq.broker.broker import Broker
from mq.rpc.context import Context
from mq.rpc.rocketmq.codes import Refused
from mq.rpc.tls import BrokerChannel, Connect
from mq.wire.rocketmq.definition_pb2 import Code

# Says that the call was passed on, and for which connection of its client.
PASSED_ON = "mq-passed-on"
_HEADERS = (
    "authorization",
    "x-mq-client-id",
    "x-mq-client-version",
    "x-mq-date-time",
    "x-mq-language",
    "x-mq-namespace",
    "x-mq-protocol-version",
    "x-mq-session-token",
)
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A leader that died is found, and one that is back is used, soon.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A name may lead to another address when its broker comes back.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
]


# Statuses that the same call would get again, and what they are in RocketMQ's codes. The others are
# of a connection that broke, which gRPC says in several ways.
_FINAL = {
    grpc.StatusCode.INVALID_ARGUMENT: Code.BAD_REQUEST,
    grpc.StatusCode.FAILED_PRECONDITION: Code.BAD_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: Code.BAD_REQUEST,
    grpc.StatusCode.NOT_FOUND: Code.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED: Code.FORBIDDEN,
    grpc.StatusCode.UNAUTHENTICATED: Code.UNAUTHORIZED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Code.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNIMPLEMENTED: Code.UNSUPPORTED,
}


class Gone(Exception):
    """No answer came from there; the call may have been carried out, or not."""


class Forwarder:
    def __init__(self, broker: Broker, connect: Connect) -> None:
        self._broker = broker
        self._connect = connect
        self._channels: dict[str, BrokerChannel] = {}

    def leader(self, broker_set: str = "") -> str:
        """Its address; empty: it is not known, or this node."""
        directory = self._broker.directory
        if broker_set and broker_set != directory.own_name:
            for one in directory.sets(self._broker.steady_ms()):
                if one.name == broker_set:
                    return next((n.address for n in one.nodes if n.node_id == one.leader_id), "")
            return ""
        _, leader_id, address, _ = self._broker.consensus.leading
        return "" if leader_id == self._broker.settings.config.node.id else address or ""

    async def unary(self, address: str, path: str, data: bytes, context: Context) -> bytes:
        """Raises Gone; Refused, if that node refuses the call for good."""
        call = self._channel(address).unary_unary(path)
        try:
            answer: bytes = await call(data, metadata=_metadata(context), timeout=_left_s(context))
        except grpc.aio.AioRpcError as error:
            raise _failed(address, error) from None
        return answer

    async def server_stream(
        self, address: str, path: str, data: bytes, context: Context
    ) -> AsyncGenerator[bytes, None]:
        """As `unary`."""
        call = self._channel(address).unary_stream(path)(
            data, metadata=_metadata(context), timeout=_left_s(context)
        )
        try:
            async for one in call:
                yield one
        except grpc.aio.AioRpcError as error:
            raise _failed(address, error) from None
        finally:
            call.cancel()

    @contextlib.asynccontextmanager
    async def stream(
        self, address: str, path: str, first: Iterable[bytes], context: Context
    ) -> AsyncIterator[Any]:
        """A call in both directions, whose first messages are sent. Raises as `unary`."""
        call = self._channel(address).stream_stream(path)(metadata=_metadata(context))
        try:
            for one in first:
                await call.write(one)
            yield call
        except grpc.aio.AioRpcError as error:
            raise _failed(address, error) from None
        except asyncio.InvalidStateError:
            raise Gone("the stream has ended") from None
        finally:
            call.cancel()

    def _channel(self, address: str) -> BrokerChannel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._connect(address, _OPTIONS)
        return channel

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for one in channels.values():
            await one.close()


def _failed(address: str, error: grpc.aio.AioRpcError) -> Gone | Refused:
    code = _FINAL.get(error.code())
    if code is None:
        return Gone(error.details())
    return Refused(code, f"the leader at {address} refuses the call: {error.details()}")


def _metadata(context: Context) -> list[tuple[str, str]]:
    found = [(name, context.header(name)) for name in _HEADERS]
    known = [(name, value) for name, value in found if value is not None]
    return [(PASSED_ON, context.peer()), *known]


def _left_s(context: Context) -> float | None:
    return context.time_remaining()
