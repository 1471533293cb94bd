"""Channels to brokers, one an address, and what is asked by them: single calls and streams. Knows
addresses only, neither leaders nor retries.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import Message as WireMessage

from mq.client.cluster.failures import error_of_call
from mq.errors import ClientClosed
from mq.wire.v1 import admin_pb2, cluster_pb2, consumer_pb2, producer_pb2, transaction_pb2

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
    # Also how long a connection may take to come about.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Several clients in a process do not share sockets: one that is closed takes no other along.
    ("grpc.use_local_subchannel_pool", 1),
)

_CLOSED = "the client is closed: make another one"

_SERVICES: dict[str, ModuleType] = {
    "AdminService": admin_pb2,
    "ClusterService": cluster_pb2,
    "ConsumerService": consumer_pb2,
    "ProducerService": producer_pb2,
    "TransactionService": transaction_pb2,
}


class Channels:
    """Used and closed on one event loop."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._is_closed = False

    def channel(self, address: str) -> grpc.aio.Channel:
        if self._is_closed:
            raise ClientClosed(_CLOSED)
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            self._channels[address] = channel
        return channel

    async def ask(
        self,
        address: str,
        service: str,
        method: str,
        request: WireMessage,
        timeout_s: float,
        *,
        raw_response: bool = False,
    ) -> Any:
        """One attempt. Raises what the broker answers; Unreachable if it does not; ClientClosed."""
        path, response_class = _method(service, method)
        ask = self.channel(address).unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=None if raw_response else response_class.FromString,
        )
        try:
            return await ask(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise error_of_call(failure, address) from None
        except grpc.aio.UsageError:
            # The channel was closed under the call.
            raise ClientClosed(_CLOSED) from None

    def stream(
        self,
        address: str,
        service: str,
        method: str,
        *,
        raw_requests: bool = False,
        raw_responses: bool = False,
    ) -> grpc.aio.StreamStreamCall:
        """Opens a bidirectional stream: `write`, `read`, `done_writing`, `cancel`.

        Raw ones are bytes as they go over the wire. Failures are grpc.aio.AioRpcError, which
        `mq.client.cluster.failures.error_of_call` turns into ours.
        """
        path, response_class = _method(service, method)
        return self.channel(address).stream_stream(
            path,
            request_serializer=None if raw_requests else _serialize,
            response_deserializer=None if raw_responses else response_class.FromString,
        )()

    async def close(self) -> None:
        self._is_closed = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()


def _serialize(request: WireMessage) -> bytes:
    return request.SerializeToString()


@functools.cache
def _method(service: str, method: str) -> tuple[str, type[WireMessage]]:
    """Path of a method, and the class of its answers."""
    descriptor = _SERVICES[service].DESCRIPTOR.services_by_name[service]
    answer = descriptor.methods_by_name[method].output_type
    return f"/{descriptor.full_name}/{method}", message_factory.GetMessageClass(answer)
