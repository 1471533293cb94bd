"""The asyncio side: listeners, connections on their transports, timers, and the stop.

All frames of one turn of the loop go to the transport in one write. Nothing here needs uvloop, and
everything runs on it.

With TLS the context is asked for at each connection: another one holds for those that come after
it. Clients have to agree on `h2`. The first byte of a connection tells TLS from plaintext, which is
served, or told that TLS is needed. A handshake counts as a connection from the moment when it is
accepted: those that never end take places among `connections_max` for `handshake_s` at most.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from mq.http2 import frames
from mq.http2.calls import Call, CallAcceptor, Handlers
from mq.http2.connection import Connection
from mq.http2.deadlines import TICK_S, Deadlines
from mq.http2.frames import ErrorCode
from mq.http2.limits import Limits, Usage
from mq.http2.requests import Request
from mq.logging import RateLimit, get_logger
from mq.tls import names_of

log = get_logger(__name__)

# What is handed to the transport at once, and from where on it asks for a pause.
_WRITE_BYTES: Final = 1 << 20
_BUFFER_BYTES: Final = 256 << 10
# After so many bytes of a connection the others have their turn.
_TURN_BYTES: Final = 512 << 10
# Of the kernel; and how many connections are accepted in one turn of the loop.
_BACKLOG: Final = 4_096
_ACCEPTED_AT_ONCE: Final = 64
# How long a peer has to read why its connection ends, before it ends for good.
_LINGER_S: Final = 0.5
_CLOSE_S: Final = 5.0
# The pause after an accept that failed, as it does while there are no descriptors.
_ACCEPT_AGAIN_S: Final = 1.0
# How long a stop waits for clients to see that it has begun.
_NOTICE_S: Final = 0.5
# The first byte of a connection with TLS.
_TLS_HANDSHAKE: Final = b"\x16"
# For clients without TLS. No SETTINGS before it: with them gRPC takes the connection for a good
# one, sends its calls with all they carry, and connects again at once, for ever.
_NEEDS_TLS: Final = frames.goaway(0, ErrorCode.INADEQUATE_SECURITY, "this port requires TLS")
# Lines about handshakes that fail, which any client can cause.
_LINES_MAX, _LINES_S = 10, 60.0


class Peer(NamedTuple):
    """A connection as an operator sees it."""

    # In the order in which they connected.
    number: int
    address: str
    age_s: float
    is_encrypted: bool
    # Since it connected.
    calls: int
    # The newest one; None: there was none yet.
    request: Request | None
    # Calls in flight, by path.
    in_flight: Counter[bytes]


class Http2Server:
    """Made on a running loop. `bind`, then `start`; `stop` ends everything."""

    def __init__(
        self,
        handlers: Handlers,
        limits: Limits,
        connections_max: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
        on_refused: Callable[[], None] = lambda: None,
        *,
        takes_plaintext: bool = False,
    ) -> None:
        """`on_refused` is called for every connection beyond the limit, which is closed at once.
        `takes_plaintext`: beside TLS, on the same port.
        """
        self.limits = limits
        self.usage = Usage()
        self.loop = asyncio.get_running_loop()
        self.connections_max = connections_max
        self.connections: set[ServerProtocol] = set()
        self.deadlines = Deadlines()
        self.acceptor = CallAcceptor(handlers, self.deadlines, self.loop, self._on_overload)
        self._tls = tls
        self._takes_plaintext = takes_plaintext
        self._lines = RateLimit(_LINES_MAX, _LINES_S)
        self._on_refused = on_refused
        self._sockets: list[socket.socket] = []
        self._listeners: list[asyncio.Server] = []
        self._acceptors: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._changed: asyncio.Future[None] | None = None

    def bind(self, host: str, port: int) -> int:
        """Returns the port. OSError. Clients are refused until `start`."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setblocking(False)  # noqa: FBT003 - its name is its meaning
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        self._sockets.append(bound)
        return int(bound.getsockname()[1])

    async def start(self) -> None:
        for bound in self._sockets:
            if self._tls is None:
                await self._listen(bound)
            else:
                bound.listen(_BACKLOG)
                self._acceptors.append(self.loop.create_task(self._accept(bound, self._tls)))
        self._sweep()

    async def _listen(self, bound: socket.socket) -> None:
        listener = await self.loop.create_server(
            lambda: ServerProtocol(self), sock=bound, backlog=_ACCEPTED_AT_ONCE
        )
        # asyncio accepts as many connections in a turn as the backlog has.
        bound.listen(_BACKLOG)
        self._listeners.append(listener)

    async def _accept(self, bound: socket.socket, tls: Callable[[], ssl.SSLContext]) -> None:
        """One connection a turn: a handshake takes about a millisecond. A server of the loop would
        tell nothing of handshakes that have begun, nor of those that fail.
        """
        while True:
            try:
                accepted, address = await self.loop.sock_accept(bound)
            except OSError:
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if self.connection_count >= self.connections_max:
                self._on_refused()
                accepted.close()
            else:
                task = self.loop.create_task(self._shake_hands(accepted, address[0], tls))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            await asyncio.sleep(0)

    @property
    def connection_count(self) -> int:
        """With those that have not got further than a handshake."""
        return len(self.connections) + len(self._handshakes)

    def peers(self, after: int, count: int) -> list[Peer]:
        """Connections with a higher number, the lowest first."""
        later = (one for one in self.connections if one.number > after)
        return [one.peer() for one in heapq.nsmallest(count, later, key=lambda one: one.number)]

    async def _shake_hands(
        self, accepted: socket.socket, host: str, tls: Callable[[], ssl.SSLContext]
    ) -> None:
        deadline_s = self.loop.time() + self.limits.handshake_s
        is_handed_over = False
        try:
            async with asyncio.timeout_at(deadline_s):
                first = await self._first_byte(accepted)
            if first == _TLS_HANDSHAKE:
                is_handed_over = True
                await self._serve(accepted, tls(), deadline_s - self.loop.time())
            elif first and self._takes_plaintext:
                is_handed_over = True
                await self._serve(accepted)
            elif first:
                self._tell("a client without TLS is refused", client=host)
                await self._refuse_plaintext(accepted)
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            self._tell("a TLS handshake failed", client=host, reason=reason)
        except OSError:  # such as a handshake that takes too long
            pass
        finally:
            if not is_handed_over:
                accepted.close()

    async def _first_byte(self, accepted: socket.socket) -> bytes:
        """Leaves it where it is; empty: the peer has gone."""
        readable = asyncio.Event()
        self.loop.add_reader(accepted, readable.set)
        try:
            await readable.wait()
        finally:
            self.loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK)

    async def _serve(
        self,
        accepted: socket.socket,
        tls: ssl.SSLContext | None = None,
        handshake_s: float | None = None,
    ) -> None:
        await self.loop.connect_accepted_socket(
            lambda: ServerProtocol(self), accepted, ssl=tls, ssl_handshake_timeout=handshake_s
        )

    async def _refuse_plaintext(self, accepted: socket.socket) -> None:
        accepted.send(_NEEDS_TLS)
        accepted.shutdown(socket.SHUT_WR)
        # See ServerProtocol._close.
        await asyncio.sleep(_LINGER_S)

    def _tell(self, event: str, **fields: str) -> None:
        if self._lines.admit():
            log.info(event, **fields, **self._lines.omitted())

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections; calls in flight have so long to end."""
        for listener in self._listeners:
            listener.close()
        for task in (*self._acceptors, *self._handshakes):
            task.cancel()
        await asyncio.gather(*self._acceptors, *self._handshakes, return_exceptions=True)
        if not self._listeners:
            for bound in self._sockets:
                bound.close()
        for one in [*self.connections]:
            one.drain()
        deadline_s = self.loop.time() + grace_s
        await self._until_empty(min(deadline_s, self.loop.time() + _NOTICE_S))
        for one in [*self.connections]:
            one.refuse_more()
        await self._until_empty(deadline_s)
        for one in [*self.connections]:
            one.cancel_calls()
        await self._until_empty(self.loop.time() + _NOTICE_S)
        for one in [*self.connections]:
            one.abort()
        await self._until_empty(self.loop.time() + _NOTICE_S)
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _until_empty(self, deadline_s: float) -> None:
        while self.connections and self.loop.time() < deadline_s:
            self._changed = self.loop.create_future()
            await asyncio.wait([self._changed], timeout=deadline_s - self.loop.time())

    def admit(self, protocol: ServerProtocol) -> bool:
        """Returns False if there are too many connections."""
        if len(self.connections) >= self.connections_max:
            self._on_refused()
            return False
        self.connections.add(protocol)
        return True

    def forget(self, protocol: ServerProtocol) -> None:
        self.connections.discard(protocol)
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _sweep(self) -> None:
        self.deadlines.sweep(self.loop.time())
        self._sweeper = self.loop.call_later(TICK_S, self._sweep)

    def _on_overload(self) -> None:
        """The connection that costs most has to go: with a limit in all, and none for a client's
        share, one client could use up the memory of all others.
        """
        largest = max(self.connections, key=lambda one: one.held_bytes, default=None)
        if largest is not None:
            largest.fail(ErrorCode.ENHANCE_YOUR_CALM, "too much of this connection is in memory")


# Of all servers of the process: a list of their connections is one list.
_numbers = itertools.count(1)


class ServerProtocol(asyncio.Protocol):
    """One connection on its transport."""

    def __init__(self, server: Http2Server) -> None:
        self.number = next(_numbers)
        self._server = server
        self._loop = server.loop
        self._transport: asyncio.Transport
        self._connection: Connection
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._turn_bytes = 0

    # -- asyncio's callbacks ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        now_s = self._loop.time()
        server = self._server
        self._connection = Connection(
            server.acceptor, server.limits, server.usage, self._wake, now_s
        )
        self._connection.peer = _peer(transport)
        self._connection.is_encrypted = transport.get_extra_info("ssl_object") is not None
        self._connection.certificate_names = _certificate_names(transport)
        if not server.admit(self) or not _speaks_h2(transport):
            self._is_closing = True
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._on_time()
        self._flush()

    def data_received(self, data: bytes) -> None:
        if not self._is_closing:
            self._turn_bytes += len(data)
            if self._turn_bytes - len(data) <= _TURN_BYTES < self._turn_bytes:
                self._transport.pause_reading()
                self._loop.call_soon(self._resume_reading)
            self._connection.receive(data, self._loop.time())
            self._flush()

    def _resume_reading(self) -> None:
        self._turn_bytes = 0
        if not self._is_closing:
            self._transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_closing = True
        self._connection.lost()
        self._server.forget(self)
        # The connection and this refer to each other, and the collector seldom looks: a transport
        # of TLS has buffers of 256 KiB, and of the size of the largest answer.
        del self._transport

    def pause_writing(self) -> None:
        self._connection.pause()

    def resume_writing(self) -> None:
        self._connection.resume()

    # -- the server -------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        return self._connection.received_bytes + self._connection.unsent_bytes

    def peer(self) -> Peer:
        connection = self._connection
        calls = [one for one in connection.streams.values() if isinstance(one, Call)]
        return Peer(
            self.number,
            connection.peer,
            self._loop.time() - connection.began_s,
            connection.is_encrypted,
            connection.opened_streams,
            connection.last_request,
            Counter(one.request.path for one in calls),
        )

    def drain(self) -> None:
        self._connection.drain()

    def refuse_more(self) -> None:
        self._connection.refuse_more()

    def fail(self, code: ErrorCode, text: str) -> None:
        self._connection.fail(code, text)

    def cancel_calls(self) -> None:
        for stream in [*self._connection.streams.values()]:
            if isinstance(stream, Call):
                stream.cancel()

    def abort(self) -> None:
        self._transport.abort()

    # -- sending and time -------------------------------------------------------------------------

    def _wake(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._is_closing:
            return
        connection = self._connection
        while pieces := connection.take_output(_WRITE_BYTES):
            self._transport.writelines(pieces)
        if connection.is_closed:
            self._close()

    def _close(self) -> None:
        """A connection that is closed with unread bytes is reset by the kernel, and the peer would
        never see the last frame: it has a moment to read it.
        """
        self._is_closing = True
        transport = self._transport
        if self._timer is not None:
            self._timer.cancel()
        if self._connection.has_failed and not transport.is_closing():
            transport.pause_reading()
            if transport.can_write_eof():
                transport.write_eof()
            self._timer = self._loop.call_later(_LINGER_S, transport.abort)
        else:
            transport.close()
            self._timer = self._loop.call_later(_CLOSE_S, transport.abort)

    def _on_time(self) -> None:
        due_s = self._connection.on_time(self._loop.time())
        if not self._connection.is_closed:
            self._timer = self._loop.call_at(due_s, self._on_time)


def _speaks_h2(transport: asyncio.Transport) -> bool:
    encrypted = transport.get_extra_info("ssl_object")
    return encrypted is None or encrypted.selected_alpn_protocol() == "h2"


def _certificate_names(transport: asyncio.Transport) -> tuple[str, ...]:
    names = names_of(transport.get_extra_info("ssl_object"))
    return tuple(name for kind, name in names if kind in ("URI", "DNS"))


def _peer(transport: asyncio.Transport) -> str:
    """As gRPC writes it."""
    address = transport.get_extra_info("peername")
    if not address:
        return "unknown"
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
