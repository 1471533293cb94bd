"""TLS to clients and to other brokers, from `broker.tls` and its files.

Brokers connect to each other as clients do, to the same ports: what one requires of its clients it
offers to other brokers, so that `broker.tls` has to be the same on all brokers of a cluster, or
`optional` on some of them. If clients are asked for certificates, brokers show theirs, too.

Everything here takes the newest generation of the files whenever a connection is made.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc

from mq import tls
from mq.config import BrokerConfig
from mq.errors import IllegalConfig
from mq.logging import get_logger
from mq.tls import Certificates, Files, Leaf, Pem

log = get_logger(__name__)

# How long calls have to end on a channel that is replaced; each has a deadline, which is shorter.
_GRACE_S = 30.0
# More than the pause of gRPC after its first failure to look a name up.
_UNCONNECTED_S_MAX = 2.0

ChannelOptions = Sequence[tuple[str, int]]


class BrokerCredentials(NamedTuple):
    """One generation of the broker's files, as transports and other brokers need it."""

    # By listener: main, external, metrics; those that have TLS.
    contexts: Mapping[str, ssl.SSLContext]
    server: grpc.ServerCertificateConfiguration
    channel: grpc.ChannelCredentials


class ListenerTls:
    """TLS of one listener, for either transport."""

    def __init__(
        self, listener: str, mode: _Mode, certificates: Certificates[BrokerCredentials]
    ) -> None:
        self._listener = listener
        self._asks_clients = mode.clients == "required"
        self._certificates = certificates
        # Otherwise clients may speak plaintext.
        self.is_required = mode.tls != "optional"

    def context(self) -> ssl.SSLContext:
        return self._certificates.current.contexts[self._listener]

    def credentials(self) -> grpc.ServerCredentials:
        """Also for the generations to come: gRPC asks at each connection."""
        first = shown = self._certificates.current.server

        def newest() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            current = self._certificates.current.server
            if current is shown:
                return None
            shown = current
            return current

        return grpc.dynamic_ssl_server_credentials(
            first, newest, require_client_authentication=self._asks_clients
        )


class BrokerTls(NamedTuple):
    """TLS of all ports but that of Raft; None: without it."""

    main: ListenerTls | None
    external: ListenerTls | None
    metrics: ListenerTls | None
    connect: Connect
    certificates: Certificates[BrokerCredentials] | None


class _Mode(NamedTuple):
    """Of one listener, by the names of its options."""

    tls_option: str
    tls: str
    clients_option: str = ""
    clients: str = "no"


def from_config(config: BrokerConfig, metrics_tls: str = "off") -> BrokerTls:
    """IllegalConfig names the option or the file that is wrong."""
    modes = _modes(config, metrics_tls)
    if not modes:
        if config.tls_cert:
            log.warning("clients connect without TLS: broker.tls is off", cert=config.tls_cert)
        return BrokerTls(None, None, None, BrokerChannel, None)
    certificates = Certificates(
        "broker",
        Files(config.tls_cert, config.tls_key, config.tls_ca),
        lambda *generation: _build(modes, *generation),
    )
    listeners = {name: ListenerTls(name, mode, certificates) for name, mode in modes.items()}

    def connect(address: str, options: ChannelOptions) -> BrokerChannel:
        is_optional = config.tls == "optional"
        return BrokerChannel(address, options, certificates, is_optional=is_optional)

    return BrokerTls(
        listeners.get("main"),
        listeners.get("external"),
        listeners.get("metrics"),
        BrokerChannel if config.tls == "off" else connect,
        certificates,
    )


def _modes(config: BrokerConfig, metrics_tls: str) -> dict[str, _Mode]:
    """Of the listeners that have TLS. IllegalConfig."""
    modes = {"main": _Mode("broker.tls", config.tls, "broker.tls_clients", config.tls_clients)}
    if config.external_listen:
        main = modes["main"]
        is_same = config.external_tls == "same", config.external_tls_clients == "same"
        modes["external"] = _Mode(
            main.tls_option if is_same[0] else "broker.external_tls",
            main.tls if is_same[0] else config.external_tls,
            main.clients_option if is_same[1] else "broker.external_tls_clients",
            main.clients if is_same[1] else config.external_tls_clients,
        )
    modes["metrics"] = _Mode("metrics.tls", metrics_tls)
    for mode in modes.values():
        _check(mode, config)
    return {name: mode for name, mode in modes.items() if mode.tls != "off"}


def _check(mode: _Mode, config: BrokerConfig) -> None:
    clients = f"{mode.clients_option} is {mode.clients}"
    if mode.clients == "required" and mode.tls == "optional":
        raise IllegalConfig(
            f"{clients}, but {mode.tls_option} is optional, which admits clients without TLS and "
            f"so without a certificate: set {mode.clients_option} to optional, or "
            f"{mode.tls_option} to required"
        )
    if mode.clients != "no" and mode.tls == "off" and config.tls == "off":
        raise IllegalConfig(f"{clients}, but {mode.tls_option} is off: set it to required")
    if mode.clients != "no" and not config.tls_ca:
        raise IllegalConfig(
            f"{clients}, and needs broker.tls_ca: the authority of the clients' certificates"
        )
    if mode.tls == "off":
        return
    if not config.tls_cert or not config.tls_key:
        raise IllegalConfig(
            f"{mode.tls_option} is {mode.tls}, and needs broker.tls_cert and broker.tls_key: "
            "give both"
        )
    if config.transport == "grpcio" and "optional" in (mode.tls, mode.clients):
        option = mode.tls_option if mode.tls == "optional" else mode.clients_option
        raise IllegalConfig(
            f"{option} is optional, which gRPC's own server cannot do: choose "
            'broker.transport = "mq"'
        )


def _build(modes: Mapping[str, _Mode], files: Files, pem: Pem, leaf: Leaf) -> BrokerCredentials:
    contexts: dict[str, ssl.SSLContext] = {}
    for listener, mode in modes.items():
        context = contexts[listener] = tls.server_context(files, mode.clients)
        # Scrapes are HTTP/1.
        context.set_alpn_protocols(["http/1.1" if listener == "metrics" else "h2"])
    asks_clients = "main" in modes and modes["main"].clients != "no"
    if files.ca:
        tls.load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files.ca)
    own: tuple[bytes, ...] = (pem.key, pem.cert) if asks_clients and leaf.is_for_clients else ()
    if asks_clients and not own:
        log.warning(
            "this broker shows other brokers no certificate: its own is for servers only",
            cert=files.cert,
            advice="issue it with the extended key usages serverAuth and clientAuth",
        )
    return BrokerCredentials(
        contexts,
        grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca),
        grpc.ssl_channel_credentials(pem.ca, *own),
    )


class BrokerChannel:
    """To another broker. It is opened again when the files have changed, and when it stays without
    a connection: gRPC looks a name that it did not find up again after pauses of up to two minutes.

    While TLS is optional, the other broker may have been started with TLS or without: if calls do
    not find a connection of one kind, the next one tries the other.
    """

    def __init__(
        self,
        address: str,
        options: ChannelOptions,
        certificates: Certificates[BrokerCredentials] | None = None,
        *,
        is_optional: bool = False,
    ) -> None:
        """Plaintext without certificates."""
        self._address = address
        self._options = options
        self._certificates = certificates
        self._is_optional = is_optional
        self._is_plain = certificates is None
        self._number = 0
        self._channel: grpc.aio.Channel | None = None
        # As calls have found it; infinite: it has a connection, or tries its first one.
        self._unconnected_since_s = math.inf
        self._closing: set[asyncio.Task[None]] = set()

    def unary_unary(self, method: str, **serializers: Any) -> Any:
        return self._newest().unary_unary(method, **serializers)

    def unary_stream(self, method: str, **serializers: Any) -> Any:
        return self._newest().unary_stream(method, **serializers)

    def stream_stream(self, method: str, **serializers: Any) -> Any:
        return self._newest().stream_stream(method, **serializers)

    def _newest(self) -> grpc.aio.Channel:
        generation = self._certificates.generation if self._certificates else None
        number = generation.number if generation else 0
        channel = self._channel
        if channel is not None and self._has_to_go(channel, number):
            self._close_later(channel)
            channel = None
        if channel is None:
            self._number = number
            self._unconnected_since_s = math.inf
            self._channel = channel = self._open(generation.built if generation else None)
        return channel

    def _has_to_go(self, channel: grpc.aio.Channel, number: int) -> bool:
        state = channel.get_state()
        if self._is_optional and state is not grpc.ChannelConnectivity.READY:
            self._is_plain = not self._is_plain
            return True
        if state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            self._unconnected_since_s = math.inf
            return number != self._number
        now_s = asyncio.get_running_loop().time()
        self._unconnected_since_s = min(self._unconnected_since_s, now_s)
        is_stuck = now_s - self._unconnected_since_s >= _UNCONNECTED_S_MAX
        return is_stuck or number != self._number

    def _open(self, credentials: BrokerCredentials | None) -> grpc.aio.Channel:
        if self._is_plain or credentials is None:
            return grpc.aio.insecure_channel(self._address, options=self._options)
        return grpc.aio.secure_channel(self._address, credentials.channel, options=self._options)

    def _close_later(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.create_task(channel.close(_GRACE_S))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for task in self._closing:
            task.cancel()
        if self._channel is not None:
            await self._channel.close()


# Opens a channel to another broker.
Connect = Callable[[str, ChannelOptions], BrokerChannel]
