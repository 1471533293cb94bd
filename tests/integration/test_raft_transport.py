"""Conversations between nodes over real sockets: connecting, order, large bodies, back-pressure."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mq.errors import IllegalConfig, PortUnavailable
from mq.raft.transport import Transport
from tests.support.raft_peers import (
    NOWHERE,
    Core,
    Event,
    Lines,
    answer,
    append,
    dialed,
    node,
    pair,
    parse,
    run,
    started,
    stream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mq.raft.frames import Frame


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


def transport_socket(transport: Transport, peer: str) -> Any:
    under = transport._established[peer]._transport
    assert under is not None
    return under.get_extra_info("socket")


# -- connecting ------------------------------------------------------------------------------------


def test_frames_arrive_in_order_and_once_in_both_directions(loop: str) -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            for index in range(500):
                assert a.transport.send("b", append(index, bytes(index)))
                assert b.transport.send("a", append(index))
            await a.core.until_frames(500)
            await b.core.until_frames(500)
            assert a.core.indexes() == b.core.indexes() == list(range(500))
            assert [len(frame.body) for _, frame in b.core.frames] == list(range(500))
            assert {peer for peer, _ in a.core.frames} == {"b"}
            assert a.core.events[0] == Event("connected", "b")

    run(scenario(), loop)


def test_each_pair_of_nodes_has_one_connection_dialed_by_the_smaller_id(
    loop: str, lines: Lines
) -> None:
    async def scenario() -> None:
        async with started("n1") as one, started("n10") as ten, started("n2") as two:
            nodes = {"n1": one, "n10": ten, "n2": two}
            for each in nodes.values():
                each.transport.set_peers({name: other.address for name, other in nodes.items()})
            for name, each in nodes.items():
                await each.core.until_connected(*(nodes.keys() - {name}))
                assert each.transport.connected() == nodes.keys() - {name}
            # Each connection is known at both of its ends.
            assert len(lines.of("peer connected")) == 6
            dials = {(name, peer) for name in nodes for peer in nodes[name].transport._dials}
            assert dials == {("n1", "n10"), ("n1", "n2"), ("n10", "n2")}

    run(scenario(), loop)


def test_a_node_that_does_not_listen_still_dials(loop: str) -> None:
    async def scenario() -> None:
        core = Core()
        silent = Transport(node("a"), core, genesis_crc=lambda: 0)
        await silent.start(None)
        assert silent.port == 0
        async with started("b") as b:
            b.transport.set_peers({"a": NOWHERE})
            silent.set_peers({"b": b.address})
            await core.until_connected("b")
            await silent.close()

    run(scenario(), loop)


def test_small_frames_do_not_wait_and_dead_peers_are_noticed_by_the_kernel_too(loop: str) -> None:
    async def scenario() -> None:
        async with pair(send_timeout_ms=7_000) as nodes:
            for each, peer in zip(nodes, "ba", strict=True):
                sock = transport_socket(each.transport, peer)
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7_000
                listening = each.transport._listening
                assert listening is not None
                assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
                assert not listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)

    run(scenario(), loop)


def test_a_port_in_use_is_named_with_what_to_do(loop: str) -> None:
    async def scenario() -> None:
        async with started("a") as a:
            second = Transport(node("b"), Core(), genesis_crc=lambda: 0)
            with pytest.raises(PortUnavailable, match=rf"{a.address}.*in use.*another address"):
                await second.start(a.address)
            with pytest.raises(PortUnavailable, match=r"no\.such\.invalid:1"):
                await second.start("no.such.invalid:1")
            await second.close()

    run(scenario(), loop)


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "host:65536", "host:-1"])
def test_an_address_without_host_and_port_is_illegal(address: str) -> None:
    async def scenario() -> None:
        with pytest.raises(IllegalConfig, match="use host:port"):
            await Transport(node("a"), Core(), genesis_crc=lambda: 0).start(address)

    run(scenario())


def test_ipv6_addresses_stand_in_brackets() -> None:
    async def scenario() -> None:
        core = Core()
        six = Transport(node("a"), core, genesis_crc=lambda: 0)
        async with started("b") as b:
            try:
                await six.start("[::1]:0")
            except PortUnavailable:
                pytest.skip("this machine has no IPv6")
            assert six.port
            six.set_peers({"b": b.address})
            b.transport.set_peers({"a": f"[::1]:{six.port}"})
            await core.until_connected("b")
            await six.close()

    run(scenario())


# -- what is on the wire ---------------------------------------------------------------------------


class Wire:
    """A proxy that keeps every byte of both directions."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._tasks: list[asyncio.Task[None]] = []
        self.address = ""
        self.sent: list[bytearray] = []

    async def _on_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._host, self._port)
        self.sent = [bytearray(), bytearray()]
        await asyncio.gather(
            self._copy(reader, there[1], self.sent[0]), self._copy(there[0], writer, self.sent[1])
        )

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        while data := await reader.read(random.randint(1, 70_000)):
            kept += data
            writer.write(data)
        writer.close()

    @classmethod
    @asynccontextmanager
    async def opened(cls, target: str) -> AsyncIterator[Wire]:
        wire = cls(target)
        server = await asyncio.start_server(wire._on_peer, "127.0.0.1", 0)
        wire.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield wire


def test_a_conversation_consists_of_raft_frames_and_bodies_only(loop: str) -> None:
    """Parsed without our reader, to the last byte: no pickle, nothing hidden between frames."""
    bodies = [os.urandom(size) for size in (0, 1, 1_000, 16_384, 300_000)]

    async def scenario() -> None:
        async with started("a") as a, started("b") as b, Wire.opened(b.address) as wire:
            b.transport.set_peers({"a": NOWHERE})
            a.transport.set_peers({"b": wire.address})
            await a.core.until_connected("b")
            for index, body in enumerate(bodies):
                a.transport.send("b", append(index, body))
                b.transport.send("a", answer(index))
            await b.core.until_frames(len(bodies))
            await a.core.until_frames(len(bodies))
            there, back = (parse(bytes(sent)) for sent in wire.sent)
        assert there[0].message.hello.node_id == back[0].message.hello.peer_id == "a"
        assert [frame.message for frame in there[1:]] == [append(i).message for i in range(5)]
        assert [frame.body for frame in there[1:]] == bodies
        assert [frame.message for frame in back[1:]] == [answer(i).message for i in range(5)]

    run(scenario(), loop)


@pytest.mark.parametrize("seed", range(5))
def test_frames_arrive_intact_however_the_network_splits_them(loop: str, seed: int) -> None:
    dice = random.Random(seed)
    frames = [append(index, dice.randbytes(dice.choice([0, 9, 20_000]))) for index in range(30)]

    async def scenario() -> None:
        async with started("b") as b, dialed(b.address) as raw:
            b.transport.set_peers({"a": NOWHERE})
            await raw.greet("a", "b")
            data = stream(*frames)
            while data:
                count = dice.choice([1, 3, 8, 100, 10_000])
                raw.send(data[:count])
                data = data[count:]
                await asyncio.sleep(0)
            await b.core.until_frames(len(frames))
            received = [(frame.message, bytes(frame.body)) for _, frame in b.core.frames]
            assert received == [(frame.message, frame.body) for frame in frames]

    run(scenario(), loop)


def test_large_bodies_cross_each_other(loop: str) -> None:
    bodies = [os.urandom(8 << 20) for _ in range(3)]

    async def scenario() -> None:
        async with pair() as (a, b):
            for index, body in enumerate(bodies):
                a.transport.send("b", append(index, memoryview(body)))
                b.transport.send("a", append(index, body))
            await a.core.until_frames(3)
            await b.core.until_frames(3)
            for each in (a, b):
                assert [bytes(frame.body) for _, frame in each.core.frames] == bodies

    run(scenario(), loop)


# -- back-pressure ---------------------------------------------------------------------------------


def test_a_peer_that_does_not_read_stops_the_core_and_not_the_memory(loop: str) -> None:
    limit, body = 1 << 20, bytes(range(256)) * 256

    async def scenario() -> None:
        async with (
            started("b", send_buffer_bytes=limit) as b,
            dialed(b.address, receive_buffer_bytes=4096) as raw,
        ):
            b.transport.set_peers({"a": NOWHERE})
            await raw.greet("a", "b")
            await b.core.until_connected("a")
            assert b.transport.has_room("a")
            sent = 0
            while b.transport.has_room("a"):
                assert b.transport.send("a", append(sent, body))
                sent += 1
                await asyncio.sleep(0)
            connection = b.transport._established["a"]
            waiting = connection._queue.byte_count
            under = connection._transport
            assert under is not None
            assert limit <= waiting < limit + len(body) + 100
            # What the event loop keeps it has copied: one piece at most, whatever waits here.
            assert under.get_write_buffer_limits() == (0, 1)
            assert under.get_write_buffer_size() <= 256 << 10
            # A heartbeat is still taken, and changes nothing.
            assert b.transport.send("a", append(sent))
            assert b.core.count("writable") == 0
            for index in range(sent + 1):
                frame = await raw.read()
                assert frame.message.append.prev_index == index
                assert frame.body == (body if index < sent else b"")
            await b.core.until(lambda: b.core.count("writable") == 1)
            assert b.transport.has_room("a")
            assert connection._queue.byte_count == 0

    run(scenario(), loop)


def test_the_core_can_send_whatever_it_has_whenever_there_is_room(loop: str) -> None:
    total, body = 400, os.urandom(100_000)

    async def scenario() -> None:
        async with pair(send_buffer_bytes=300_000) as (a, b):
            sent = 0

            def pump(_: object = None) -> None:
                nonlocal sent
                while sent < total and a.transport.has_room("b"):
                    a.transport.send("b", append(sent, body))
                    sent += 1

            a.core.on_event = pump
            pump()
            while not a.core.count("writable") and sent < total:
                await asyncio.sleep(0)
                pump()
            await b.core.until_frames(total)
            assert b.core.indexes() == list(range(total))
            assert all(frame.body == body for _, frame in b.core.frames)

    run(scenario(), loop)


def test_an_unsendable_frame_is_dropped_and_logged(loop: str, lines: Lines) -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            assert not a.transport.send("nobody", append(1))
            assert not a.transport.has_room("nobody")
            assert "nobody" not in a.transport.connected()
            huge: Frame = append(1, memoryview(bytearray(1)))
            huge.message.refusal.reason = "x" * (64 << 10)
            assert not a.transport.send("b", huge)
            await lines.until("frame dropped, too large")
            assert a.transport.send("b", append(2))
            await b.core.until_frames(1)
            assert b.core.indexes() == [2]

    run(scenario(), loop)
