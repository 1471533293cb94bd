"""gRPC channels of one client: opened by the credentials of the client, closed with it, and opened
anew when the files of its certificates change.

A channel that was replaced is closed when the last call on it has ended: no call fails by that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import Message as WireMessage

from mq.client.cluster.errors import (
    WrongTransport,
    closed_after_handshake,
    closes_at_once,
    error_of_call,
)
from mq.client.cluster.security import Credentials
from mq.errors import ClientClosed, MqError, Unauthenticated
from mq.wire.v1 import (
    admin_pb2,
    cluster_pb2,
    consumer_pb2,
    producer_pb2,
    security_pb2,
    transaction_pb2,
)

MESSAGE_BYTES_MAX = 64 << 20

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Retries are ours: gRPC's would resend what a broker may have stored.
    ("grpc.enable_retries", 0),
    # After a fail-over the new leader is wanted now, not after gRPC's own pause of up to 20 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also the time-out of a connection attempt.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Clients of a process do not share sockets: closing one must not affect another.
    ("grpc.use_local_subchannel_pool", 1),
)

_CLOSED = "the client is closed: make another one"
_PROBE_S = 1.0


class _Channel:
    """One channel, and the number of calls on it."""

    __slots__ = ("calls", "channel", "is_replaced")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.calls = 0
        self.is_replaced = False


class Channels:
    """Channels by address, used and closed on one event loop."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self.credentials = credentials or Credentials()
        self._channels: dict[str, _Channel] = {}
        # In use by calls that began before another one took their place.
        self._replaced: set[_Channel] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def generation(self) -> int:
        """Of the credentials: what was opened in another one should be opened anew."""
        self._renew()
        return self.credentials.generation

    async def ask(
        self, address: str, request: WireMessage, timeout_s: float, *, raw_response: bool = False
    ) -> Any:
        """One attempt. Raises the error of the broker, Unreachable or ClientClosed."""
        metadata = self.credentials.metadata
        try:
            return await self._ask(address, request, timeout_s, raw_response=raw_response)
        except Unauthenticated:
            # The key in use may just have been revoked, after another one was written to its file.
            if not self.credentials.is_replaced(metadata):
                raise
        return await self._ask(address, request, timeout_s, raw_response=raw_response)

    async def _ask(
        self, address: str, request: WireMessage, timeout_s: float, *, raw_response: bool
    ) -> Any:
        path, response_class = method_of(type(request))
        used = self._channel(address)
        ask = used.channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=None if raw_response else response_class.FromString,
        )
        used.calls += 1
        try:
            return await ask(request, timeout=timeout_s, metadata=self.credentials.metadata)
        except grpc.aio.AioRpcError as failure:
            raise await self._error_of(failure, address) from None
        except grpc.aio.UsageError:
            # The channel was closed during the call.
            raise ClientClosed(_CLOSED) from None
        finally:
            self._ended(used)

    async def _error_of(self, failure: grpc.aio.AioRpcError, address: str) -> MqError:
        credentials = self.credentials
        if closes_at_once(failure):
            if credentials.is_tls:
                return closed_after_handshake(address, has_certificate=credentials.has_certificate)
            if await speaks_tls(address):
                return WrongTransport(f"the broker at {address} speaks TLS: use tls=True, or --tls")
        return error_of_call(failure, address)

    def stream(self, address: str, request_class: type[WireMessage]) -> grpc.aio.StreamStreamCall:
        """Opens a bidirectional stream of bytes. Failures are grpc.aio.AioRpcError."""
        path, _ = method_of(request_class)
        used = self._channel(address)
        call = used.channel.stream_stream(path)(metadata=self.credentials.metadata)
        used.calls += 1
        call.add_done_callback(lambda _: self._ended(used))
        return call

    def _channel(self, address: str) -> _Channel:
        if self._is_closed:
            raise ClientClosed(_CLOSED)
        self._renew()
        found = self._channels.get(address)
        if found is None:
            found = _Channel(self.credentials.open(address, CHANNEL_OPTIONS))
            self._channels[address] = found
        return found

    def _renew(self) -> None:
        if not self.credentials.renew():
            return
        replaced, self._channels = self._channels, {}
        for one in replaced.values():
            one.is_replaced = True
            self._replaced.add(one)
            if not one.calls:
                self._close_replaced(one)

    def _ended(self, used: _Channel) -> None:
        """A call on this channel is over."""
        used.calls -= 1
        if used.is_replaced and not used.calls:
            self._close_replaced(used)

    def _close_replaced(self, one: _Channel) -> None:
        if one in self._replaced and not self._is_closed:
            self._replaced.discard(one)
            task = asyncio.get_running_loop().create_task(one.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        self._is_closed = True
        channels, self._channels = [*self._channels.values(), *self._replaced], {}
        for one in channels:
            await one.channel.close()
        await asyncio.gather(*self._closing)


async def speaks_tls(address: str) -> bool:
    """Whether gRPC over TLS is spoken there, by whatever certificate."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    # Any failure means no; one of the connection itself is told by the caller.
    with contextlib.suppress(OSError, ValueError):
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
            chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
            writer.close()
            return bool(chosen == "h2")
    return False


# By the name of the request: the path of the method that takes it, and the class of its responses.
_METHODS = {
    method.input_type.name: (
        f"/{service.full_name}/{method.name}",
        message_factory.GetMessageClass(method.output_type),
    )
    for module in (
        admin_pb2,
        cluster_pb2,
        consumer_pb2,
        producer_pb2,
        security_pb2,
        transaction_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def method_of(request_class: type[WireMessage]) -> tuple[str, type[WireMessage]]:
    # A raw request is the same on the wire, with some messages as bytes.
    return _METHODS[request_class.DESCRIPTOR.name.removeprefix("Raw")]
