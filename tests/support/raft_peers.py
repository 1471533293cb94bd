"""Transports on real sockets, a core that takes notes, and peers made by hand, which can lie."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from mq.raft.frames import PREFIX, Frame, encode
from mq.raft.handshake import greeting
from mq.raft.tls import TlsContexts
from mq.raft.transport import Transport
from mq.store.identity import Identity
from mq.wire.v1.raft_pb2 import Append, AppendAnswer, RaftFrame

# This long because a busy virtual machine may stop a process for many seconds.
DEADLINE_S = 60
ANY_PORT = "127.0.0.1:0"
# A port without a listener: the discard port.
NOWHERE = "127.0.0.1:9"


def node(name: str, cluster: str = "mq", broker_set: str = "set-0") -> Identity:
    return Identity(cluster, broker_set, name)


def append(index: int, body: bytes | memoryview = b"") -> Frame:
    return Frame(RaftFrame(term=7, append=Append(prev_index=index)), body)


def answer(index: int) -> Frame:
    return Frame(RaftFrame(term=7, append_answer=AppendAnswer(next_index=index, success=True)))


def stream(*frames: Frame) -> bytes:
    return b"".join(bytes(part) for frame in frames for part in encode(frame))


def parse(data: bytes) -> list[Frame]:
    """The frames that these bytes are, written anew from the description of the format."""
    frames = []
    while data:
        message_bytes = int.from_bytes(data[:4], "little")
        body_bytes = int.from_bytes(data[4:8], "little")
        end = 8 + message_bytes + body_bytes
        assert len(data) >= end, "the stream ends within a frame"
        message = RaftFrame.FromString(data[8 : 8 + message_bytes])
        frames.append(Frame(message, data[8 + message_bytes : end]))
        data = data[end:]
    return frames


class Event(NamedTuple):
    kind: str
    peer: str
    was_lost: bool | None = None


class Core:
    """A listener that takes notes; `until` waits for a state of them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.frames: list[tuple[str, Frame]] = []
        self.on_event: Callable[[Event], None] = lambda _: None
        self._changed = asyncio.Event()

    def on_connected(self, peer_id: str) -> None:
        self._note(Event("connected", peer_id))

    def on_disconnected(self, peer_id: str, was_lost: bool) -> None:
        self._note(Event("disconnected", peer_id, was_lost))

    def on_frame(self, peer_id: str, frame: Frame) -> None:
        self.frames.append((peer_id, frame))
        self._note(Event("frame", peer_id))

    def on_writable(self, peer_id: str) -> None:
        self._note(Event("writable", peer_id))

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()
        self.on_event(event)

    def count(self, kind: str, peer: str | None = None) -> int:
        return sum(each.kind == kind and peer in {None, each.peer} for each in self.events)

    def lost(self) -> list[bool | None]:
        return [each.was_lost for each in self.events if each.kind == "disconnected"]

    def indexes(self) -> list[int]:
        return [frame.message.append.prev_index for _, frame in self.frames]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def until_connected(self, *peers: str) -> None:
        await self.until(lambda: all(self.count("connected", peer) for peer in peers))

    async def until_frames(self, count: int) -> None:
        await self.until(lambda: len(self.frames) >= count)


async def until(is_so: Callable[[], bool]) -> None:
    """For states without an event, such as log lines."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


class Node(NamedTuple):
    transport: Transport
    core: Core

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.transport.port}"


@asynccontextmanager
async def started(
    name: str, *, identity: Identity | None = None, genesis_crc: Any = 0, **settings: Any
) -> AsyncIterator[Node]:
    core = Core()
    genesis = genesis_crc if callable(genesis_crc) else lambda: genesis_crc
    # The kernel's patience, for the same reason.
    defaults = {"backoff_ms": (2, 20), "genesis_crc": genesis, "send_timeout_ms": DEADLINE_S * 1000}
    settings = defaults | settings
    tls = settings.get("tls")
    if isinstance(tls, TlsContexts):
        settings["tls"] = lambda: tls
    transport = Transport(identity or node(name), core, **settings)
    await transport.start(ANY_PORT)
    try:
        yield Node(transport, core)
    finally:
        await transport.close()


@asynccontextmanager
async def pair(**settings: Any) -> AsyncIterator[tuple[Node, Node]]:
    """a, which dials, and b; connected."""
    async with started("a", **settings) as a, started("b", **settings) as b:
        b.transport.set_peers({"a": NOWHERE})
        a.transport.set_peers({"b": b.address})
        await a.core.until_connected("b")
        await b.core.until_connected("a")
        yield a, b


class RawPeer:
    """A TCP connection that sends what it is told to and keeps what it gets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes | Frame) -> None:
        self.writer.write(data if isinstance(data, bytes) else stream(data))

    async def read(self) -> Frame:
        async with asyncio.timeout(DEADLINE_S):
            message_bytes, body_bytes = PREFIX.unpack(await self.reader.readexactly(PREFIX.size))
            message = RaftFrame.FromString(await self.reader.readexactly(message_bytes))
            return Frame(message, await self.reader.readexactly(body_bytes))

    async def read_refusal(self) -> str:
        return (await self.read()).message.refusal.reason

    async def read_to_end(self) -> bytes:
        """The bytes until the other side closes, in either way."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def greet(self, name: str, peer: str, genesis_crc: int = 0) -> None:
        self.send(greeting(node(name), peer, genesis_crc))
        assert (await self.read()).message.hello.node_id == peer


@asynccontextmanager
async def dialed(address: str, receive_buffer_bytes: int | None = None) -> AsyncIterator[RawPeer]:
    """By hand to a node that listens."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    if receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    except OSError:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.transport.abort()


class Door:
    """Listens by hand, for nodes that dial: each connection becomes a RawPeer."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[RawPeer] = asyncio.Queue()
        self._peers: list[RawPeer] = []
        self.address = ""
        self.count = 0

    async def accept(self) -> RawPeer:
        async with asyncio.timeout(DEADLINE_S):
            return await self._waiting.get()

    def _on_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        self._peers.append(RawPeer(reader, writer))
        self._waiting.put_nowait(self._peers[-1])

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncIterator[Door]:
        door = cls()
        server = await asyncio.start_server(door._on_peer, "127.0.0.1", 0)
        door.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield door
        finally:
            server.close()
            for peer in door._peers:
                peer.writer.transport.abort()
            await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    """To its end, on the loop of that name. Nothing may have reached its exception handler."""
    unhandled: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unhandled.append(what))
        await work

    with asyncio.Runner(loop_factory=_factory(loop)) as runner:
        runner.run(watched())
    assert unhandled == []


def _factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == "asyncio":
        return asyncio.new_event_loop
    uvloop = pytest.importorskip("uvloop")
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Lines:
    """Our log lines, as event and fields."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog

    def of(self, *events: str) -> list[dict[str, Any]]:
        found = [each.msg for each in self._caplog.records if each.name.startswith("mq.raft")]
        lines = [each for each in found if isinstance(each, dict)]
        return [each for each in lines if each["event"] in events]

    def reasons(self, event: str) -> list[str]:
        return [line["reason"] for line in self.of(event)]

    async def until(self, event: str, count: int = 1) -> dict[str, Any]:
        await until(lambda: len(self.of(event)) >= count)
        return self.of(event)[count - 1]
