"""gRPC channels of one client, and how it proves itself to brokers: TLS, API key, namespace.

`Security` has the constructor arguments, checked. `Credentials` reads the files and makes channels
and metadata of them, as one generation: files that change are read again, at most every few
seconds, and the last good generation counts while one of them is half written. A secret is in no
repr, log line or error text. `Channels` are opened by the credentials and closed with the client;
one that was replaced is closed when the last call on it has ended: no call fails by that. A channel
that stays without a connection is replaced, too, since gRPC looks its name up ever more seldom.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import math
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import Message as WireMessage

from mq import tls
from mq.client.cluster.errors import (
    WrongTransport,
    closed_after_handshake,
    closes_at_once,
    error_of_call,
)
from mq.errors import ClientClosed, IllegalConfig, MqError, Unauthenticated

log = logging.getLogger(__name__)

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
    # A broker may come back under its name with another address. gRPC would keep the old one for
    # half a minute.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # Clients of a process do not share sockets: closing one must not affect another.
    ("grpc.use_local_subchannel_pool", 1),
)

_CLOSED = "the client is closed: make another one"
_PROBE_S = 1.0
# The least time between two looks at the files.
LOOK_S = 5.0
# More than the pause of gRPC after its first failure to look a name up, and than a fail-over takes.
UNCONNECTED_S_MAX = 2.0

_AUTHORIZATION, _NAMESPACE = "authorization", "mq-namespace"

FilePath = str | Path


@dataclass(frozen=True, kw_only=True)
class Security:
    """The constructor arguments of all clients about security. Raises IllegalConfig if they
    contradict each other.
    """

    tls: bool = False
    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None
    api_key: str | Callable[[], str] | None = field(default=None, repr=False)
    api_key_file: FilePath | None = None
    namespace: str = ""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            given, missing = ("cert", "key") if self.key is None else ("key", "cert")
            raise IllegalConfig(f"{given} is given without {missing}: give both cert and key")
        if self.api_key is not None and self.api_key_file is not None:
            raise IllegalConfig("api_key and api_key_file are two keys: give one")
        if isinstance(self.api_key, str):
            checked_key(self.api_key, "api_key")
        if not _is_header(self.namespace):
            raise IllegalConfig(f"namespace {self.namespace[:200]!r} is no name")

    @property
    def is_tls(self) -> bool:
        return self.tls or self.ca is not None or self.cert is not None


def checked_key(text: str, origin: str) -> str:
    """The key, without space around it. IllegalConfig names its origin, never the key."""
    # gRPC would refuse it with a text that has the key in it.
    key = text.strip()
    if not key or not _is_header(key):
        raise IllegalConfig(f"{origin} holds no API key: one is a word like mqk_<id>_<secret>")
    return key


def _is_header(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def read_key_file(path: FilePath) -> str:
    """The key in a file. Raises IllegalConfig."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise IllegalConfig(f"API key file {str(path)!r} cannot be read: {reason}") from None
    return checked_key(text, f"API key file {str(path)!r}")


class Credentials:
    """Those of one client, on its event loop. `generation` grows when something of them changes."""

    def __init__(self, security: Security | None = None) -> None:
        """Raises IllegalConfig for a file that is missing or wrong."""
        self._security = security or Security()
        self.is_tls = self._security.is_tls
        self.has_certificate = self._security.cert is not None
        self.generation = 0
        # For each call; None: there is nothing to say.
        self.metadata: grpc.aio.Metadata | None = None
        security = self._security
        self._tls_files = [one for one in (security.ca, security.cert, security.key) if one]
        self._key_files = [one for one in (security.api_key_file,) if one]
        self._next_look_s = 0.0
        self._tls_seen = _signatures(self._tls_files)
        self._key_seen = _signatures(self._key_files)
        self._trusted = self._read_tls() if self.is_tls else None
        self._key = self._read_key()
        self._use_key()

    def open(self, address: str) -> grpc.aio.Channel:
        if self._trusted is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(address, self._trusted, options=CHANNEL_OPTIONS)

    def renew(self) -> bool:
        """Looks for changes, if that was not done a moment ago. Returns whether channels must be
        opened anew.
        """
        if not (self._tls_files or self._key_files) or time.monotonic() < self._next_look_s:
            return False
        self._next_look_s = time.monotonic() + LOOK_S
        self._renew_key()
        return self._renew_tls()

    def is_replaced(self, metadata: grpc.aio.Metadata | None) -> bool:
        """A broker does not accept the key in this metadata. Returns whether there is another one
        by now.
        """
        self._renew_key(is_refused=True)
        return self.metadata is not metadata

    def _renew_tls(self) -> bool:
        seen = _signatures(self._tls_files)
        if seen == self._tls_seen:
            return False
        try:
            trusted = self._read_tls()
        except IllegalConfig as error:
            log.warning("the files of TLS have changed, the former ones stay in use: %s", error)
            return False
        if _signatures(self._tls_files) != seen:
            return False  # still being written
        self._trusted, self._tls_seen = trusted, seen
        self.generation += 1
        log.info("the files of TLS have changed: connections are opened anew")
        return True

    def _read_tls(self) -> grpc.ChannelCredentials:
        ca, cert, key = self._security.ca, self._security.cert, self._security.key
        # gRPC says of a wrong file only that there is no connection.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority = certificate = own_key = None
        if ca is not None:
            authority = tls.read_file("certificate authority", str(ca))
            tls.load_authority(context, str(ca))
        if cert is not None and key is not None:
            certificate = tls.read_file("certificate", str(cert))
            own_key = tls.read_file("key", str(key))
            tls.load_own(context, str(cert), str(key))
        return grpc.ssl_channel_credentials(authority, own_key, certificate)

    def _renew_key(self, *, is_refused: bool = False) -> None:
        seen = _signatures(self._key_files)
        # A function is asked for another key only when its last one was refused.
        if seen == self._key_seen and not (is_refused and callable(self._security.api_key)):
            return
        try:
            key = self._read_key()
        except IllegalConfig as error:
            log.warning("the API key has changed, the former one stays in use: %s", error)
            return
        self._key_seen = seen
        if key != self._key:
            self._key = key
            self.generation += 1
            self._use_key()

    def _read_key(self) -> str:
        given, file = self._security.api_key, self._security.api_key_file
        if file is not None:
            return read_key_file(file)
        if callable(given):
            return checked_key(given(), "what api_key returns")
        return checked_key(given, "api_key") if given is not None else ""

    def _use_key(self) -> None:
        pairs = []
        if self._key:
            pairs.append((_AUTHORIZATION, f"Bearer {self._key}"))
        if self._security.namespace:
            pairs.append((_NAMESPACE, self._security.namespace))
        self.metadata = grpc.aio.Metadata(*pairs) if pairs else None


def _signatures(paths: Sequence[FilePath]) -> list[tuple[int, int, int] | None]:
    """Stamps of the files: they change when one is written or replaced; None for a missing one."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            stat = os.stat(path)
        except (OSError, ValueError):
            found.append(None)
        else:
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return found


@dataclass(slots=True, eq=False)
class _Channel:
    """One channel, and the number of calls on it."""

    address: str
    channel: grpc.aio.Channel
    calls: int = 0
    is_replaced: bool = False
    # As the ends of calls have shown; infinite: it has a connection, or tries its first one.
    _unconnected_since_s: float = math.inf

    def is_stuck(self, now_s: float) -> bool:
        """Whether it was without a connection for so long that its name is to be looked up anew."""
        if not self.is_failing:
            self._unconnected_since_s = math.inf
            return False
        self._unconnected_since_s = min(self._unconnected_since_s, now_s)
        return now_s - self._unconnected_since_s >= UNCONNECTED_S_MAX

    @property
    def is_failing(self) -> bool:
        return bool(self.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE)

    async def settle(self) -> None:
        """Until its first attempt to connect has succeeded or failed, or it is closed."""
        unsettled = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
        with contextlib.suppress(grpc.aio.UsageError):  # it is closed
            while (state := self.channel.get_state(try_to_connect=True)) in unsettled:
                await self.channel.wait_for_state_change(state)


class Channels:
    """Channels by address, used and closed on one event loop."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self.credentials = credentials or Credentials()
        self._channels: dict[str, _Channel] = {}
        # In use by calls that began before another one took their place.
        self._replaced: set[_Channel] = set()
        # By address: about to take the place of one that is stuck.
        self._fresh: dict[str, _Channel] = {}
        # They end by themselves when all channels are closed.
        self._tasks: set[asyncio.Task[None]] = set()
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
            found = self._channels[address] = _Channel(address, self.credentials.open(address))
        return found

    def _renew(self) -> None:
        if not self.credentials.renew():
            return
        replaced, self._channels = self._channels, {}
        for one in replaced.values():
            self._replace(one)

    def _replace(self, one: _Channel) -> None:
        """There is another one in its place: it is closed when the calls on it have ended."""
        one.is_replaced = True
        self._replaced.add(one)
        if not one.calls:
            self._close_replaced(one)

    def _ended(self, used: _Channel) -> None:
        """A call on this channel is over."""
        used.calls -= 1
        if self._is_closed:
            return
        if used.is_replaced:
            if not used.calls:
                self._close_replaced(used)
        elif used.is_stuck(asyncio.get_running_loop().time()) and _has_name(used.address):
            self._look_up_anew(used)

    def _look_up_anew(self, stuck: _Channel) -> None:
        """gRPC looks a name that it did not find up again after a pause of up to two minutes, which
        nothing ends: a broker that comes back with another address would be missed for so long. A
        new channel looks at once.
        """
        if stuck.address not in self._fresh:
            fresh = _Channel(stuck.address, self.credentials.open(stuck.address))
            self._fresh[stuck.address] = fresh
            self._spawn(self._take_place(stuck, fresh))

    async def _take_place(self, stuck: _Channel, fresh: _Channel) -> None:
        """Not before it is known whether it connects: calls on it would wait for that, and on the
        other one they fail at once.
        """
        await fresh.settle()
        if self._is_closed:
            return
        del self._fresh[fresh.address]
        # It may have a connection by now, or was replaced by one with other credentials.
        if self._channels.get(stuck.address) is stuck and stuck.is_failing:
            self._channels[fresh.address] = fresh
            self._replace(stuck)
        else:
            await fresh.channel.close()

    def _close_replaced(self, one: _Channel) -> None:
        if one in self._replaced and not self._is_closed:
            self._replaced.discard(one)
            self._spawn(one.channel.close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self._is_closed = True
        channels = [*self._channels.values(), *self._replaced, *self._fresh.values()]
        self._channels = {}
        for one in channels:
            await one.channel.close()
        await asyncio.gather(*self._tasks)


def _has_name(address: str) -> bool:
    """Whether its host is a name, which may lead elsewhere later."""
    try:
        ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return True
    return False


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


def method_of(request_class: type[WireMessage]) -> tuple[str, type[WireMessage]]:
    """The path of the method that takes the request, and the class of its responses."""
    return _method_of(request_class.DESCRIPTOR)


@functools.cache
def _method_of(request: Any) -> tuple[str, type[WireMessage]]:
    # A raw request is the same on the wire, with some messages as bytes.
    name = request.name.removeprefix("Raw")
    services = request.file.services_by_name.values()
    (method,) = [
        one for service in services for one in service.methods if one.input_type.name == name
    ]
    path = f"/{method.containing_service.full_name}/{method.name}"
    return path, message_factory.GetMessageClass(method.output_type)
