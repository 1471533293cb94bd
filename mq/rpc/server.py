"""The gRPC server of a node: services, health and reflection, on the transport that is chosen."""

from __future__ import annotations

import asyncio

from mq.admin.control import Control
from mq.broker.broker import Broker
from mq.errors import PortUnavailable
from mq.rpc import health, services
from mq.rpc.access import Rules
from mq.rpc.clients import Clients
from mq.rpc.connections import ClientConnections
from mq.rpc.context import Handlers, Listener
from mq.rpc.grpcio import GrpcioListener
from mq.rpc.health import Health
from mq.rpc.http2 import Http2Listener
from mq.rpc.methods import Dispatcher, Observer
from mq.rpc.producer import ProducerService
from mq.rpc.reflection import Reflection
from mq.rpc.rocketmq.service import MessagingService
from mq.rpc.tls import BrokerTls
from mq.store.identity import Identity

# A request beside its batches.
_REQUEST_OVERHEAD_BYTES = 64 << 10
_TRANSPORTS: dict[str, type[GrpcioListener | Http2Listener]] = {
    "grpcio": GrpcioListener,
    "mq": Http2Listener,
}


class RpcServer:
    """Made on a running loop."""

    def __init__(
        self,
        broker: Broker,
        identity: Identity,
        control: Control,
        observe: Observer,
        connections_max: int,
        tls: BrokerTls,
    ) -> None:
        self._broker = broker
        self._tls = tls
        rules = Rules(broker)
        self._producer = ProducerService(broker, identity.broker_set, rules)
        self._listeners: list[Listener] = []
        clients = Clients(broker, self._listeners)
        self._services = services.table(broker, identity, control, rules, self._producer, clients)
        self._rocketmq = MessagingService(broker, identity.broker_set, rules, observe, tls.connect)
        names = [one.descriptor.full_name for one in self._services]
        self._health = Health(names)
        self._reflection = Reflection([*names, health.NAME])
        self._dispatcher = Dispatcher(broker.leadership, broker.gate, observe, rules.explained)
        self.connections = ClientConnections(connections_max, self._listeners)

    def _handlers(self, *, is_external: bool) -> Handlers:
        """Clients of an external listener are told external addresses."""
        handlers = dict(self._health.handlers())
        for path, handler in self._reflection.handlers().items():
            handlers[path] = self._dispatcher.for_callers(handler)
        handlers.update(self._rocketmq.handlers(is_external=is_external))
        for descriptor, methods in self._services:
            for one in methods:
                path = f"/{descriptor.full_name}/{one.name}"
                handlers[path] = self._dispatcher.handler(
                    descriptor.name, one, is_external=is_external
                )
        return handlers

    def bind_external(self, host: str, port: int) -> int:
        """As `bind`, for clients that cannot use the other addresses."""
        remedy = "another one with --broker-external-listen"
        return self._bind(host, port, remedy, is_external=True)

    def bind(self, host: str, port: int) -> int:
        """Returns the port that clients connect to; they are served from `start` on.

        PortUnavailable.
        """
        remedy = "another port with --port, 0 for any, or another host with --broker-host"
        return self._bind(host, port, remedy, is_external=False)

    def _bind(self, host: str, port: int, remedy: str, *, is_external: bool) -> int:
        config = self._broker.settings.config
        # As much as one entry of the log may hold; a batch beyond that gets a typed answer.
        request_bytes_max = 2 * config.store.entry_bytes_max + _REQUEST_OVERHEAD_BYTES
        listener = _TRANSPORTS[config.broker.transport](
            self._handlers(is_external=is_external),
            request_bytes_max,
            self.connections.limit,
            self._tls.external if is_external else self._tls.main,
        )
        try:
            bound = listener.bind(host, port)
        except OSError as error:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise PortUnavailable(
                f"clients cannot connect to {address}: {error.strerror or error}. Is another "
                f"broker running? Choose {remedy}"
            ) from None
        self._listeners.append(listener)
        return bound

    async def start(self) -> None:
        for one in self._listeners:
            await one.start()

    def set_health(self, *, is_serving: bool) -> None:
        self._health.set(is_serving=is_serving)

    async def stop(self, grace_s: float) -> None:
        """Takes no new requests and ends streams; calls in flight have so long to end."""
        self._health.stop()
        self._producer.drain()
        self._rocketmq.drain()
        self._broker.drain()
        await asyncio.gather(*(one.stop(grace_s) for one in self._listeners))
        await self._rocketmq.close()
