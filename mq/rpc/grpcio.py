"""Handlers on gRPC's own server: `broker.transport = "grpcio"`."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import grpc

from mq.http2.calls import CallAborted, CallEnded
from mq.http2.limits import Limits
from mq.http2.status import Status
from mq.rpc.context import Handlers, StreamHandler, UnaryHandler
from mq.rpc.tls import ListenerTls

_LIMITS = Limits()
_PING_MS_MIN = 5_000
_PINGS_FORGIVEN = 10
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# Of a certificate that gRPC has verified: it asks for no other.
_NAMES = ("peer_uri", "peer_dns")
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))


def _options(request_bytes_max: int, connections_max: int) -> list[tuple[str, int]]:
    """Limits of a connection, as far as gRPC enforces them. It does not cut off floods of resets,
    settings, window updates, priorities and header blocks without an end.
    """
    return [
        # Of each listener. A connection beyond it is closed as soon as it is accepted.
        ("grpc.max_allowed_incoming_connections", connections_max),
        # By default a second broker on the same port would bind silently.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", request_bytes_max),
        ("grpc.max_send_message_length", -1),
        # A soft limit below the hard one would refuse some requests at random.
        ("grpc.max_metadata_size", _LIMITS.header_list_bytes_max),
        ("grpc.absolute_max_metadata_size", _LIMITS.header_list_bytes_max),
        ("grpc.max_concurrent_streams", _LIMITS.streams_max),
        # gRPC enforces these limits only after a client has acknowledged its SETTINGS: a client
        # that does not within this time is disconnected, as is one that never speaks HTTP/2.
        ("grpc.server_handshake_timeout_ms", int(_LIMITS.handshake_s * 1000)),
        ("grpc.http2.settings_timeout", int(_LIMITS.handshake_s * 1000)),
        ("grpc.max_connection_idle_ms", int(_LIMITS.idle_s * 1000)),
        # Dead peers are found, and their streams ended; clients may ping as often, and more often
        # while there is data.
        ("grpc.keepalive_time_ms", int(_LIMITS.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(_LIMITS.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS_MIN),
        ("grpc.http2.max_ping_strikes", _PINGS_FORGIVEN),
    ]


class GrpcioListener:
    """Made on a running loop."""

    def __init__(
        self,
        handlers: Handlers,
        request_bytes_max: int,
        connections_max: int,
        tls: ListenerTls | None = None,
    ) -> None:
        self._tls = tls
        self._server = grpc.aio.server(options=_options(request_bytes_max, connections_max))
        self._server.add_generic_rpc_handlers((_Table(handlers),))
        self._port = 0

    def bind(self, host: str, port: int) -> int:
        _probe(host, port)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self._port = cast(int, self._add_port(address))
        except RuntimeError as error:
            raise OSError(errno.EADDRNOTAVAIL, str(error)) from None
        return self._port

    def _add_port(self, address: str) -> object:
        if self._tls is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._tls.credentials())

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    async def connections(self) -> int:
        """gRPC does not tell: the kernel does."""
        return await asyncio.to_thread(established, self._port)

    def peers(self, after: int, count: int) -> None:
        """gRPC does not tell."""


def _probe(host: str, port: int) -> None:
    """OSError: the address cannot be bound. gRPC writes the reason to stderr only."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, place = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(place)


def established(port: int, tables: Sequence[Path] = _TABLES) -> int:
    """Established connections to this local port; 0 where the system does not tell."""
    # "  12: 0100007F:1F91 0100007F:D2A4 01 ...": local and remote address, state.
    row = re.compile(rb"^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 01 " % port, re.MULTILINE)
    return sum(len(row.findall(table.read_bytes())) for table in tables if table.exists())


class _Table(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio has no types
    def __init__(self, handlers: Handlers) -> None:
        self._handlers = {path: _adapted(one) for path, one in handlers.items()}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(details.method)


def _adapted(handler: UnaryHandler | StreamHandler) -> grpc.RpcMethodHandler:
    if isinstance(handler, UnaryHandler):
        return grpc.unary_unary_rpc_method_handler(_unary(handler))
    return grpc.stream_stream_rpc_method_handler(_stream(handler))


def _unary(handler: UnaryHandler) -> Callable[..., object]:
    async def serve(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        call = _Call(context)
        try:
            answer = handler.serve(data, call)
            if answer is None:
                return await call.answered()
            return answer if isinstance(answer, bytes) else await answer
        except CallAborted as error:
            refusal = error.with_traceback(None)
        # Neither an argument nor an exception that is being handled: gRPC keeps both in a cycle
        # with the call, until the garbage collector runs, which is seldom.
        data = b""
        await _abort(context, refusal)
        raise refusal

    return serve


def _stream(handler: StreamHandler) -> Callable[..., object]:
    async def serve(_: object, context: grpc.aio.ServicerContext) -> None:
        try:
            await handler.serve(_Call(context))
        except CallEnded:
            return
        except CallAborted as error:
            refusal = error.with_traceback(None)
        else:
            return
        await _abort(context, refusal)

    return serve


async def _abort(context: grpc.aio.ServicerContext, refusal: CallAborted) -> None:
    """Does not return."""
    # Control characters cannot be sent as a status text.
    text = "".join(each if each.isprintable() else " " for each in refusal.text)
    await context.abort(_CODES[refusal.code], text, tuple(refusal.metadata))


class _Call:
    """gRPC's context as `Context`."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self._answer: asyncio.Future[bytes] | None = None
        self.caller: Any = None

    def peer(self) -> str:
        return str(self._context.peer())

    def header(self, name: str) -> str | None:
        for key, value in self._context.invocation_metadata() or ():
            if key == name and isinstance(value, str):
                return value
        return None

    def certificate_names(self) -> Sequence[str]:
        shown = self._context.auth_context()
        return tuple(name.decode() for kind in _NAMES for name in shown.get(kind, ()))

    def is_encrypted(self) -> bool:
        return b"ssl" in self._context.auth_context().get("transport_security_type", ())

    def time_remaining(self) -> float | None:
        return cast("float | None", self._context.time_remaining())

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self._context.add_done_callback(lambda _: callback())

    async def read(self, _: Callable[[bytes], bool] | None = None) -> bytes | None:
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except grpc.aio.InternalError:
            raise CallEnded from None

    async def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        await self.write(b"".join(parts))

    def try_write(self, message: bytes) -> bool:
        """gRPC lets no one know whether there is room."""
        return False

    def reply(self, message: bytes) -> None:
        answer = self._future()
        if not answer.done():
            answer.set_result(message)

    def finish(
        self, code: Status, text: str = "", metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> None:
        answer = self._future()
        if not answer.done():
            answer.set_exception(CallAborted(code, text, metadata))

    async def answered(self) -> bytes:
        """The message that `reply` was called with. Raises the status of `finish`."""
        return await self._future()

    def _future(self) -> asyncio.Future[bytes]:
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
        return self._answer
