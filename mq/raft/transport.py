"""Frames between the nodes of a broker set: one TCP connection a pair of nodes.

The node with the smaller id dials, again and again with growing pauses, and looks the other one's
name up each time, which may have moved; the other accepts. A new
connection of a peer that is connected already takes the place of the old one: with TLS at once,
since both have shown a certificate; without, where any process can say Hello in the name of a peer,
only when the old one ends or stays silent while the new one is held. TCP keeps the order; what was
not delivered when a connection ends is lost, and the core sends it again.

The core hears of everything on the event loop, never inside one of its own calls: first
`on_connected`, then frames, then `on_disconnected`, once each and in this order. An exception out
of the core ends the connection that it concerned and goes to `on_failure`, by default the event
loop's exception handler. What the other side does wrong costs it the connection, and a log line
when it is not the same as the last time; strangers cause a bounded number of lines a minute.

Nothing here knows terms, logs or votes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Protocol

from mq.errors import IllegalConfig, PortUnavailable
from mq.logging import RateLimit, get_logger
from mq.raft.connection import Connection
from mq.raft.frames import Frame
from mq.raft.handshake import Expected, Past, Presence, greeting, objection, printable
from mq.raft.lookup import Lookup
from mq.raft.tls import TlsContexts, explain
from mq.store.identity import Identity
from mq.wire.v1.raft_pb2 import Hello

log = get_logger(__name__)

# An idle connection is noticed by silent ticks instead of a clock: when it was this node that
# slept, what arrived meanwhile is read before as many ticks have passed.
_TICKS = 4
_ACCEPT_RETRY_S = 0.1
_TLS_HANDSHAKE = b"\x16"  # the first byte of a TLS connection
_COMPLAINTS_MAX = 256
# About strangers, which can connect at any rate and under any name.
_LINES_MAX, _LINES_S = 30, 60.0
# How often a connection is looked at while a newer one is held.
_LOOKS = 10


class Listener(Protocol):
    """The core."""

    def on_connected(self, peer_id: str) -> None: ...

    def on_disconnected(self, peer_id: str, was_lost: bool) -> None:  # noqa: FBT001
        """`was_lost`: by the other side or the network, not by a decision of this node."""
        ...

    def on_frame(self, peer_id: str, frame: Frame) -> None:
        """The body may be kept: its buffer is not written to again."""
        ...

    def on_writable(self, peer_id: str) -> None:
        """`has_room` was False when a frame was sent, and is True again."""
        ...


class Complaints:
    """The last complaint about each peer, so that the log does not repeat it at each redial."""

    def __init__(self) -> None:
        self._strangers = RateLimit(_LINES_MAX, _LINES_S)
        self._last: OrderedDict[str, str] = OrderedDict()

    def is_new(self, origin: str, reason: str) -> bool:
        is_new = self._last.get(origin) != reason
        self._last[origin] = reason
        self._last.move_to_end(origin)
        while len(self._last) > _COMPLAINTS_MAX:  # strangers choose their names
            self._last.popitem(last=False)
        return is_new

    def forget(self, origin: str) -> None:
        self._last.pop(origin, None)

    def of_stranger(self, *, peer: str, address: str, reason: str) -> None:
        """Logs a bounded number of lines a minute; the next one says how many were left out."""
        if self._strangers.admit():
            omitted = self._strangers.omitted()
            log.warning(
                "connection not accepted", peer=peer, address=address, reason=reason, **omitted
            )


class Transport:
    def __init__(  # noqa: PLR0913 - settings, each with its default
        self,
        identity: Identity,
        listener: Listener,
        *,
        genesis_crc: Callable[[], int],
        past: Callable[[], Past] = Past,
        tls: Callable[[], TlsContexts] | None = None,
        send_buffer_bytes: int = 16 << 20,
        idle_timeout_ms: int = 3_500,
        send_timeout_ms: int = 10_000,
        connect_timeout_ms: int = 2_000,
        handshake_timeout_ms: int = 5_000,
        hold_ms: int = 1_500,
        backoff_ms: tuple[int, int] = (50, 1_000),
        handshakes_max: int = 64,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        """`tls` is asked at each new connection, and returns the newest contexts."""
        self._identity = identity
        self._listener = listener
        self._genesis_crc = genesis_crc
        self._past = past
        self._tls = tls
        self._send_buffer_bytes = send_buffer_bytes
        self._tick_s = idle_timeout_ms / 1000 / _TICKS
        self._idle_timeout_ms = idle_timeout_ms
        self._send_timeout_ms = send_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._handshake_timeout_ms = handshake_timeout_ms
        # A peer sends something about once a second in any case.
        self._hold_ms = hold_ms
        self._backoff_ms = backoff_ms
        self._handshakes_max = handshakes_max
        self._failure_hook = on_failure
        self._addresses: dict[str, str] = {}
        self._established: dict[str, Connection] = {}
        # Every one whose socket may be open.
        self._connections: set[Connection] = set()
        self._dials: dict[str, asyncio.Task[None]] = {}
        # Accepted, and not yet through the handshake; oldest first.
        self._handshakes: dict[Connection, asyncio.Task[None]] = {}
        self._listening: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._farewells: deque[tuple[str, bool]] = deque()
        # Of this node, to be set before the start; and the last one of each other.
        self.presence = Presence()
        self.presences: dict[str, Presence] = {}
        self._complaints = Complaints()
        self._lookup = Lookup()

    # -- calls of the core -------------------------------------------------------------------------

    async def start(self, address: str | None) -> None:
        """Listens on `address`, "host:port", unless it is None; port 0 takes any that is free.

        IllegalConfig, PortUnavailable: nothing was started. Of a name with several addresses the
        first one is taken.
        """
        if address is not None:
            self._listening = await _listen(address)
            self._resume_accepting()
        self._spawn(self._watch())

    @property
    def port(self) -> int:
        """The one it listens on; 0 when it does not."""
        return int(self._listening.getsockname()[1]) if self._listening is not None else 0

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        """From now on these and no others are connected; this node itself may be among them.

        A peer that is gone is disconnected. A new address is used for the next dial: a connection
        that stands is to the right node, wherever that moves.
        """
        if self._is_closed:
            return
        peers = {peer: where for peer, where in addresses.items() if peer != self._identity.node}
        removed = self._addresses.keys() - peers.keys()
        self._addresses = peers
        for peer in removed:
            if peer in self._established:
                self._established[peer].close("it is no longer a peer")
            if peer in self._dials:
                self._dials.pop(peer).cancel()
            self._complaints.forget(peer)
        for peer in peers:
            if peer > self._identity.node and peer not in self._dials:
                self._dials[peer] = self._spawn(self._dial(peer))

    def send(self, peer_id: str, frame: Frame) -> bool:
        """Never blocks and never raises. False: not connected, the frame is dropped.

        The frame is taken even when there is no room, so that small ones need not wait for it. Its
        body must stay as it is until it is sent, for which there is no sign.
        """
        connection = self._established.get(peer_id)
        return connection is not None and connection.send(frame)

    def has_room(self, peer_id: str) -> bool:
        """Returns False if `send_buffer_bytes` wait to be sent to it, or if it is not connected."""
        connection = self._established.get(peer_id)
        return connection is not None and connection.has_room

    def connected(self) -> frozenset[str]:
        return frozenset(self._established)

    async def close(self) -> None:
        """When it returns, all sockets are closed and the core has heard its last."""
        for connection in list(self._established.values()):
            connection.close("this node stops")
        self.set_peers({})
        self._is_closed = True
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connections:
            await asyncio.wait([connection.gone for connection in self._connections], timeout=1)
        self._tell_farewells()

    # -- calls of connections ----------------------------------------------------------------------

    def greeting(self, connection: Connection) -> Frame:
        return greeting(
            self._identity, connection.peer_id, self._genesis_crc(), self.presence, self._past()
        )

    def objection(self, connection: Connection, hello: Hello) -> str | None:
        known = self._addresses.keys()
        expected = Expected(
            self._identity,
            known,
            connection.dialed,
            self._genesis_crc(),
            self._past(),
            connection.certified if self._tls is not None else None,
            self._addresses.get(hello.node_id, ""),
        )
        return objection(hello, expected)

    def is_held(self, connection: Connection, hello: Hello) -> bool:
        """Returns True if a peer that is connected already has to be found silent first."""
        connection.presence = Presence(
            printable(hello.client_address),
            printable(hello.zone),
            printable(hello.external_address),
        )
        if self._tls is not None or hello.node_id not in self._established:
            return False
        self._spawn(self._hold(connection))
        return True

    def on_established(self, connection: Connection) -> None:
        peer = connection.peer_id
        previous = self._established.get(peer)
        if previous is not None:
            previous.close("a newer connection takes its place")
        self._established[peer] = connection
        self.presences[peer] = connection.presence
        self._handshakes.pop(connection, None)
        self._complaints.forget(_origin(connection))
        log.info("peer connected", peer=peer, address=connection.address)
        self._tell_farewells()
        self._listener.on_connected(peer)

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        self._tell_farewells()
        if self._is_current(connection):
            self._listener.on_frame(connection.peer_id, frame)

    def on_writable(self, connection: Connection) -> None:
        self._tell_farewells()
        if self._is_current(connection):
            self._listener.on_writable(connection.peer_id)

    def on_closed(self, connection: Connection, reason: str | None, *, was_lost: bool) -> None:
        peer, address = connection.peer_id, connection.address
        if connection.was_established:
            if self._is_current(connection):
                del self._established[peer]
            log.warning("peer disconnected", peer=peer, address=address, reason=reason)
            # Later, because it may be the core itself whose call closed it.
            self._farewells.append((peer, was_lost))
            asyncio.get_running_loop().call_soon(self._tell_farewells)
        elif reason and self._complaints.is_new(_origin(connection), reason):
            if connection.dialed:
                log.warning("peer not reached", peer=peer, address=address, reason=reason)
            else:
                self._complaints.of_stranger(peer=peer, address=address, reason=reason)

    def _is_current(self, connection: Connection) -> bool:
        """Not closed meanwhile, by what the core did when it heard of the end of another one."""
        return self._established.get(connection.peer_id) is connection

    def on_failure(self, error: Exception) -> None:
        if self._failure_hook is not None:
            self._failure_hook(error)
        else:
            context = {"message": "the Raft core failed on an event", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    # -- dialing -----------------------------------------------------------------------------------

    async def _dial(self, peer_id: str) -> None:
        pause_ms_min, pause_ms_max = self._backoff_ms
        pause_ms = pause_ms_min
        while True:
            # One that does not last is no better than one that failed.
            if await self._converse(peer_id) * 1000 > pause_ms_max:
                pause_ms = pause_ms_min
            jitter = random.uniform(0.5, 1)  # noqa: S311 - not for secrets
            await asyncio.sleep(pause_ms * jitter / 1000)
            pause_ms = min(2 * pause_ms, pause_ms_max)

    async def _converse(self, peer_id: str) -> float:
        """Dials once; returns when the connection is over, for how many seconds it stood."""
        loop = asyncio.get_running_loop()
        address = self._addresses[peer_id]
        connection = self._new_connection(address, dialed=peer_id)
        try:
            await self._connect(connection)
            connection.was_opened = True
            async with asyncio.timeout(self._handshake_timeout_ms / 1000):
                await connection.settled
            began = loop.time()
            await connection.gone
            return loop.time() - began
        except TimeoutError:
            connection.close("it does not answer")
        # RuntimeError: what uvloop makes of sockets that end at the wrong moment.
        except (OSError, RuntimeError, ValueError, IllegalConfig) as error:
            connection.close(_reason_of(error))
        finally:
            connection.close() if connection.was_opened else connection.abandon()
        return 0

    async def _connect(self, connection: Connection) -> None:
        host, port = _split_address(connection.address)
        tls = self._tls().client if self._tls is not None else None
        loop, name = asyncio.get_running_loop(), host if tls else None
        async with asyncio.timeout(self._connect_timeout_ms / 1000):
            *others, last = await self._lookup.addresses(host)
            for address in others:
                with contextlib.suppress(OSError):
                    await loop.create_connection(
                        lambda: connection, address, port, ssl=tls, server_hostname=name
                    )
                    return
            await loop.create_connection(
                lambda: connection, last, port, ssl=tls, server_hostname=name
            )

    # -- accepting ---------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        # Not by loop.sock_accept, which loses a socket when it is cancelled at the wrong moment.
        loop = asyncio.get_running_loop()
        try:
            sock, name = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptors left, or already gone again
            if self._complaints.is_new("", _reason_of(error)):
                log.warning("cannot accept connections", reason=_reason_of(error))
            loop.remove_reader(listening)
            loop.call_later(_ACCEPT_RETRY_S, self._resume_accepting)
            return
        sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
        while len(self._handshakes) >= self._handshakes_max:
            # The oldest, or silent connections could keep the peers out.
            oldest = next(iter(self._handshakes))
            oldest.close(f"more than {self._handshakes_max} connections wait for a handshake")
            self._handshakes.pop(oldest).cancel()
        connection = self._new_connection(f"{name[0]}:{name[1]}", dialed=None)
        task = self._spawn(self._shake_hands(connection, sock))
        # In any case, also when the task is cancelled before its first step.
        task.add_done_callback(lambda _: self._end_handshake(connection, sock))
        self._handshakes[connection] = task

    def _resume_accepting(self) -> None:
        if self._listening is not None:
            loop = asyncio.get_running_loop()
            loop.add_reader(self._listening, self._accept, self._listening)

    async def _shake_hands(self, connection: Connection, sock: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._handshake_timeout_ms / 1000):
                tls = self._tls().server if self._tls is not None else None
                if tls is not None and not await _opens_tls(sock):
                    tls = None
                    connection.refuse_at_once(
                        f"node {self._identity.node} accepts TLS only, and the other side opens "
                        "none: configure TLS on both nodes or on none"
                    )
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, sock, ssl=tls
                )
                connection.was_opened = True
                await connection.settled
        except TimeoutError:
            connection.close(f"no handshake within {self._handshake_timeout_ms} ms")
        except (OSError, RuntimeError) as error:
            connection.close(_reason_of(error))

    async def _hold(self, newer: Connection) -> None:
        """Until the connection that its peer has ends, or is silent for long enough, which makes
        room for the newer one; or until it is heard, and the newer one is refused.
        """
        peer = newer.peer_id
        while (current := self._established.get(peer)) is not None:
            if await self._is_heard(current):
                newer.refuse(
                    f"node {self._identity.node} is connected to {peer} at {current.address} and "
                    "hears from it: if that is another node, give each its own name; if it is a "
                    "stranger, use TLS between the nodes"
                )
                return
            if self._established.get(peer) is current:
                break
        if peer in self._addresses:
            newer.admit()
        else:
            newer.refuse(f"node {peer} is no longer a member")

    async def _is_heard(self, connection: Connection) -> bool:
        """False when it is over, or was silent all the time."""
        count = connection.received_count
        for _ in range(_LOOKS):
            await asyncio.wait([connection.gone], timeout=self._hold_ms / 1000 / _LOOKS)
            if not self._is_current(connection):
                return False
            if connection.received_count != count:
                return True
        return False

    def _end_handshake(self, connection: Connection, sock: socket.socket) -> None:
        self._handshakes.pop(connection, None)
        if not connection.was_opened:
            connection.abandon()
            sock.close()
        elif not connection.was_established:
            connection.close()

    # -- upkeep ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Closes connections on which nothing arrives, or which take nothing."""
        silent: dict[Connection, int] = {}
        stuck: dict[Connection, int] = {}
        stuck_ticks_max = self._send_timeout_ms / 1000 / self._tick_s
        while True:
            await asyncio.sleep(self._tick_s)
            connections = list(self._established.values())
            silent = {
                each: 0 if each.has_received else silent.get(each, 0) + 1 for each in connections
            }
            stuck = {
                each: stuck.get(each, 0) + 1
                for each in connections
                if each.is_paused and not each.has_sent
            }
            for each in connections:
                each.has_received = each.has_sent = False
                if silent[each] >= _TICKS:
                    each.close(
                        f"nothing was received for {self._idle_timeout_ms} ms", was_lost=True
                    )
                elif stuck.get(each, 0) >= stuck_ticks_max:
                    each.close(
                        f"nothing could be sent for {self._send_timeout_ms} ms", was_lost=True
                    )

    def _tell_farewells(self) -> None:
        while self._farewells:
            peer, was_lost = self._farewells.popleft()
            try:
                self._listener.on_disconnected(peer, was_lost)
            except Exception as error:  # noqa: BLE001 - handed on
                self.on_failure(error)

    def _new_connection(self, address: str, *, dialed: str | None) -> Connection:
        connection = Connection(
            self,
            address,
            dialed=dialed,
            send_buffer_bytes=self._send_buffer_bytes,
            user_timeout_ms=self._send_timeout_ms,
        )
        self._connections.add(connection)
        connection.gone.add_done_callback(lambda _: self._connections.discard(connection))
        return connection

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.on_failure(error)


def _split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[IPv6]:port"."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise IllegalConfig(f"{address!r} is no address: use host:port, with a port up to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def _listen(address: str) -> socket.socket:
    host, port = _split_address(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
            # Not SO_REUSEPORT, with which two nodes could share a port without noticing.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen()
        except BaseException:
            sock.close()
            raise
    except (OSError, ValueError) as error:
        raise PortUnavailable(
            f"cannot listen on {address} for other nodes: {_reason_of(error)}; stop the process "
            "that has the port, or set another address"
        ) from error
    return sock


async def _opens_tls(sock: socket.socket) -> bool:
    """Waits for the first byte and leaves it where it is."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    # Nothing: already closed, which is for TLS to find out.
    return sock.recv(1, socket.MSG_PEEK) in {b"", _TLS_HANDSHAKE}


def _reason_of(error: Exception) -> str:
    """The reason of a connection that failed, for an operator."""
    if isinstance(error, ssl.SSLError):
        return explain(error)
    return str(error) or type(error).__name__


def _origin(connection: Connection) -> str:
    """The side to complain about. Ports of dialing sides change each time."""
    if connection.dialed is not None:
        return connection.dialed
    return f"{connection.address.rpartition(':')[0]} {connection.peer_id}"
