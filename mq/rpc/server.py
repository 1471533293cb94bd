"""The gRPC server of a node: its services, health, reflection, and the limits of a connection."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mq.admin.control import Control
from mq.broker.broker import Broker
from mq.errors import PortUnavailable
from mq.rpc import services
from mq.rpc.connections import ClientConnections
from mq.rpc.methods import Dispatcher, Observer
from mq.rpc.producer import ProducerService
from mq.store.identity import Identity

# A request beside its batches.
_REQUEST_OVERHEAD_BYTES = 64 << 10
_KEEPALIVE_MS = 30_000
# Limits of one connection, as far as gRPC enforces them; `tests/cluster/test_floods.py` has the
# floods that it does not cut off.
METADATA_BYTES_MAX = 16 << 10
CALLS_MAX = 1_024
PING_MS_MIN = 5_000
PINGS_FORGIVEN = 10
# gRPC enforces these limits only after a client has acknowledged its SETTINGS: a client that does
# not within this time is disconnected, as is one that never speaks HTTP/2.
GREETING_MS_MAX = 5_000
# As gRPC's own clients do.
IDLE_MS_MAX = 1_800_000


def _options(request_bytes_max: int, connections_max: int) -> list[tuple[str, int]]:
    return [
        # Of each listener. A connection beyond it is closed as soon as it is accepted.
        ("grpc.max_allowed_incoming_connections", connections_max),
        # By default a second broker on the same port would bind silently.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", request_bytes_max),
        ("grpc.max_send_message_length", -1),
        # A soft limit below the hard one would refuse some requests at random.
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", CALLS_MAX),
        ("grpc.server_handshake_timeout_ms", GREETING_MS_MAX),
        ("grpc.http2.settings_timeout", GREETING_MS_MAX),
        ("grpc.max_connection_idle_ms", IDLE_MS_MAX),
        # Dead peers are found, and their streams ended; clients may ping as often, and more often
        # while there is data.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_MS_MIN),
        ("grpc.http2.max_ping_strikes", PINGS_FORGIVEN),
    ]


class RpcServer:
    """Made on a running loop."""

    def __init__(
        self,
        broker: Broker,
        identity: Identity,
        control: Control,
        observe: Observer,
        connections_max: int,
    ) -> None:
        self._broker = broker
        config = broker.settings.config
        # As much as one entry of the log may hold; a batch beyond that gets a typed answer.
        request_bytes_max = 2 * config.store.entry_bytes_max + _REQUEST_OVERHEAD_BYTES
        self._options = _options(request_bytes_max, connections_max)
        self.connections = ClientConnections(connections_max)
        self._health = health.aio.HealthServicer()
        self._producer = ProducerService(broker, identity.broker_set)
        self._services = services.table(broker, identity, control, self._producer)
        self._dispatcher = Dispatcher(
            broker.leadership.settled, observe, broker.missing_topics.explained
        )
        self._server = self._made(is_external=False)
        self._external: grpc.aio.Server | None = None

    def _made(self, *, is_external: bool) -> grpc.aio.Server:
        """Clients of an external server are told external addresses."""
        server = grpc.aio.server(options=self._options)
        for descriptor, methods in self._services:
            handlers = {
                one.name: self._dispatcher.handler(descriptor.name, one, is_external=is_external)
                for one in methods
            }
            handler = grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
            server.add_generic_rpc_handlers((handler,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection(
            (*self._names, health_name, reflection.SERVICE_NAME), server
        )
        return server

    @property
    def _names(self) -> list[str]:
        return [one.descriptor.full_name for one in self._services]

    def bind_external(self, host: str, port: int) -> int:
        """As `bind`, for clients that cannot use the other addresses."""
        self._external = self._made(is_external=True)
        remedy = "another one with --broker-external-listen"
        return self._bound(self._external, host, port, remedy)

    def bind(self, host: str, port: int) -> int:
        """Returns the port that clients connect to; they are served from `start` on.

        PortUnavailable.
        """
        remedy = "another port with --port, 0 for any, or another host with --broker-host"
        return self._bound(self._server, host, port, remedy)

    def _bound(self, server: grpc.aio.Server, host: str, port: int, remedy: str) -> int:
        bound = _bound(server, host, port, remedy)
        self.connections.ports.append(bound)
        return bound

    async def start(self) -> None:
        for server in self._all:
            await server.start()

    @property
    def _all(self) -> list[grpc.aio.Server]:
        return [self._server, *([self._external] if self._external is not None else [])]

    async def set_health(self, *, is_serving: bool) -> None:
        state = health_pb2.HealthCheckResponse
        status = state.SERVING if is_serving else state.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Takes no new requests and ends streams; calls in flight have so long to end."""
        await self._health.enter_graceful_shutdown()
        self._producer.drain()
        self._broker.drain()
        await asyncio.gather(*(server.stop(grace_s) for server in self._all))


def _bound(server: grpc.aio.Server, host: str, port: int, remedy: str) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    reason = _refusal(host, port)
    if not reason:
        try:
            return cast(int, server.add_insecure_port(address))
        except RuntimeError as error:
            reason = str(error)
    raise PortUnavailable(
        f"clients cannot connect to {address}: {reason}. Is another broker running? Choose {remedy}"
    )


def _refusal(host: str, port: int) -> str:
    """The reason why the address cannot be bound, which gRPC writes to stderr only; empty if it can
    be.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error.strerror or str(error)
    return ""
