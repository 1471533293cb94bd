"""One TCP connection to another node: bytes in and frames out, frames in and bytes out.

    opening ──► greeting ──► (held) ──► established ──► closed
                    └──────────┴──────► refusing ─────────┘

Before the handshake a frame is small and has no body. Frames are handed over in the order of their
bytes, each once, and none after `on_closed`. A large body is received straight into a buffer of its
own, which the receiver of the frame may keep, and is sent without being copied into another one.

A connection knows neither which nodes may be its peer nor what frames mean: its owner does.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from mq.logging import get_logger
from mq.raft.frames import (
    BODY_BYTES_MAX,
    GREETING_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Frame,
    FrameReader,
    Malformed,
    OpensTls,
    SendQueue,
)
from mq.raft.handshake import ABSENT, printable, refusal
from mq.tls import names_of
from mq.wire.v1.raft_pb2 import Hello

if TYPE_CHECKING:
    from mq.raft.transport import Transport

log = get_logger(__name__)


class State(enum.Enum):
    OPENING = enum.auto()
    GREETING = enum.auto()
    # The Hello was good, and the owner has still to decide: it calls `admit` or `refuse`.
    HELD = enum.auto()
    # A Refusal is being sent. Closing at once could destroy it, so the other side closes.
    REFUSING = enum.auto()
    ESTABLISHED = enum.auto()
    CLOSED = enum.auto()


class Connection(asyncio.BufferedProtocol):
    """Its owner decides, and is called on the event loop. An exception of the owner ends the
    connection and goes to `Transport.on_failure`.
    """

    def __init__(
        self,
        owner: Transport,
        address: str,
        *,
        dialed: str | None,
        send_buffer_bytes: int,
        user_timeout_ms: int,
    ) -> None:
        """`dialed`: the peer's id; None for one that was accepted. `address` is for people."""
        self.address = address
        self.dialed = dialed
        # Claimed by the other side, and true as soon as the connection is established.
        self.peer_id = dialed or ""
        # Kinds and names of the certificate that the other side has shown.
        self.certified: Sequence[tuple[str, str]] = ()
        # From its hello, for clients.
        self.presence = ABSENT
        self.state = State.OPENING
        # Set by the owner, when the event loop has handed over the socket for good.
        self.was_opened = False
        self.was_established = False
        loop = asyncio.get_running_loop()
        # Done when the handshake is over, one way or the other; and when the socket is closed.
        self.settled: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        # For the owner's watch over idle connections, which resets the first two.
        self.has_received = False
        self.has_sent = False
        # Grows with everything that arrives.
        self.received_count = 0
        self.is_paused = False
        self._owner = owner
        self._reader = FrameReader()
        self._queue = SendQueue()
        self._send_buffer_bytes = send_buffer_bytes
        self._user_timeout_ms = user_timeout_ms
        self._was_full = False
        self._refusal: str | None = None
        self._transport: asyncio.Transport | None = None

    # -- calls of the owner ------------------------------------------------------------------------

    def refuse_at_once(self, reason: str) -> None:
        """Before it opens: the other side gets a Refusal."""
        self._refusal = reason

    def admit(self) -> None:
        """Ends a hold: the peer is answered, and connected."""
        if self.state is State.HELD:
            with self._guarded():
                self._establish()

    def refuse(self, reason: str) -> None:
        """Ends a hold: the peer is told why."""
        if self.state is State.HELD:
            self._refuse(reason)

    def send(self, frame: Frame) -> bool:
        """Never blocks. False: the frame is dropped."""
        if self.state is not State.ESTABLISHED or self._transport is None:
            return False
        if frame.message.ByteSize() > MESSAGE_BYTES_MAX or len(frame.body) > BODY_BYTES_MAX:
            # The other side would close the connection, and be sent the same again.
            log.error("frame dropped, too large", peer=self.peer_id, bytes=frame.size)
            return False
        if self._transport.is_closing():
            return False
        self._queue.push(frame)
        self._pump()
        self._was_full = self._was_full or not self.has_room
        return True

    @property
    def has_room(self) -> bool:
        return self._queue.byte_count < self._send_buffer_bytes

    def close(self, reason: str | None = None, *, was_lost: bool = False) -> None:
        """At once: nothing is sent or delivered after this. The owner is told of the first reason;
        None: there is nothing to tell.
        """
        if self.state is State.CLOSED:
            return
        if self.state is State.REFUSING and self._refusal is not None:
            # How the other side takes it is of no interest.
            reason = f"refused by this node: {self._refusal}"
        self.state = State.CLOSED
        if self._transport is not None:
            self._transport.abort()
        else:
            _resolve(self.gone)
        self._queue.clear()
        _resolve(self.settled)
        self._owner.on_closed(self, reason, was_lost=was_lost)

    def abandon(self) -> None:
        """For one that the event loop failed to open: uvloop ends it without a word."""
        self.close()
        self._transport = None
        _resolve(self.gone)

    # -- calls of the event loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.state is State.CLOSED:
            self._transport.abort()
            return
        self.certified = names_of(transport.get_extra_info("ssl_object"))
        # Anything that the socket does not take is waited for: asyncio copies what it keeps.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._set_socket_options(self._transport)
        self.state = State.GREETING
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self.dialed is not None:
            with self._guarded():
                self._write(self._owner.greeting(self))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - frames know their size
        if self._takes_frames():
            return self._reader.buffer()
        return memoryview(bytearray(GREETING_BYTES_MAX))

    def buffer_updated(self, nbytes: int) -> None:
        self.has_received = True
        self.received_count += 1
        if not self._takes_frames():
            return
        with self._guarded():
            # To its end, while it is held: the reader has to forget what it has handed over.
            for frame in self._reader.received(nbytes):
                if self.state is State.HELD:
                    raise Malformed("it talks before it was answered")
                self._on_frame(frame)
                if not self._takes_frames():
                    return

    def eof_received(self) -> None:
        self._on_end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_end(exc)
        _resolve(self.gone)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.has_sent = True
        # Not here: asyncio ends a connection twice that is closed or breaks within this call.
        asyncio.get_running_loop().call_soon(self._on_resumed)

    # -- inside ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Nothing is raised into the event loop, which would only log it and go on."""
        try:
            yield
        except OpensTls as error:
            self._refuse(f"{error}: configure TLS on both nodes or on none")
        except Malformed as error:
            self.close(f"the other side broke the protocol: {error}")
        except Exception as error:  # noqa: BLE001 - of the owner, and handed to it
            self.close("a failure of this node, which is logged")
            self._owner.on_failure(error)

    def _on_resumed(self) -> None:
        self._pump()
        if self._was_full and self.has_room and self.state is State.ESTABLISHED:
            self._was_full = False
            with self._guarded():
                self._owner.on_writable(self)

    def _takes_frames(self) -> bool:
        return self.state in (State.ESTABLISHED, State.GREETING, State.HELD)

    def _on_end(self, error: Exception | None) -> None:
        reason = f"the connection broke: {error}" if error else "the other side closed it"
        if self.state is State.GREETING and self.dialed is not None:
            reason += " without an answer: its log may say why; TLS has to be on both nodes or none"
        self.close(reason, was_lost=True)

    def _on_frame(self, frame: Frame) -> None:
        content = frame.message.WhichOneof("content")
        if content == "refusal":
            self.close(f"refused by the other side: {printable(frame.message.refusal.reason)}")
        elif self.state is State.GREETING:
            if content != "hello":
                raise Malformed("another frame before its hello")
            self._on_hello(frame.message.hello)
        elif content == "hello":
            raise Malformed("a second hello")
        else:
            self._owner.on_frame(self, frame)

    def _on_hello(self, hello: Hello) -> None:
        self.peer_id = self.dialed or printable(hello.node_id)
        reason = self._owner.objection(self, hello)
        if reason is not None:
            self._refuse(reason)
            return
        self.peer_id = hello.node_id
        if self._owner.is_held(self, hello):
            self.state = State.HELD
        else:
            self._establish()

    def _establish(self) -> None:
        if self.dialed is None:
            self._write(self._owner.greeting(self))
        self.state = State.ESTABLISHED
        self.was_established = True
        self._reader.allow_all()
        _resolve(self.settled)
        self._owner.on_established(self)

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        self.state = State.REFUSING
        self._write(refusal(reason))

    def _write(self, frame: Frame) -> None:
        self._queue.push(frame)
        self._pump()

    def _pump(self) -> None:
        """Feeds the transport until the socket takes no more."""
        transport = self._transport
        while (
            transport is not None
            and self._queue.byte_count
            and not self.is_paused
            and not transport.is_closing()
        ):
            transport.write(self._queue.pop())

    def _set_socket_options(self, transport: asyncio.Transport) -> None:
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # already closed by the other side
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                milliseconds = self._user_timeout_ms
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
