"""Ends of connections and new beginnings, over real sockets."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct

import pytest

from mq.raft.handshake import greeting
from mq.raft.transport import Transport
from tests.support.raft_peers import (
    ANY_PORT,
    NOWHERE,
    Core,
    Door,
    Event,
    Lines,
    append,
    dialed,
    node,
    pair,
    run,
    started,
    stream,
    until,
)


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


def test_a_node_that_comes_back_is_dialed_again(loop: str) -> None:
    async def scenario() -> None:
        async with started("a") as a:
            async with started("b") as b:
                address = b.address
                b.transport.set_peers({"a": NOWHERE})
                a.transport.set_peers({"b": address})
                await a.core.until_connected("b")
            await a.core.until(lambda: a.core.count("disconnected") == 1)
            assert a.core.lost() == [True]
            assert b.core.lost() == [False]
            assert not a.transport.send("b", append(1))
            core = Core()
            again = Transport(node("b"), core, genesis_crc=lambda: 0)
            await again.start(address)
            again.set_peers({"a": NOWHERE})
            await core.until_connected("a")
            assert [each.kind for each in a.core.events[:2]] == ["connected", "disconnected"]
            await again.close()

    run(scenario(), loop)


@pytest.mark.parametrize("how", ["reset", "eof"])
def test_the_end_of_a_peer_is_reported_as_a_lost_connection(
    loop: str, how: str, lines: Lines
) -> None:
    async def scenario() -> None:
        async with started("b") as b, dialed(b.address) as raw:
            b.transport.set_peers({"a": NOWHERE})
            await raw.greet("a", "b")
            await b.core.until_connected("a")
            if how == "reset":
                sock = raw.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.writer.transport.abort()
            await b.core.until(lambda: b.core.count("disconnected") == 1)
            assert b.core.lost() == [True]
            assert "a" not in b.transport.connected()
            assert len(lines.of("peer disconnected")) == 1

    run(scenario(), loop)


def test_a_newer_connection_takes_the_place_of_an_older_one_that_is_silent(loop: str) -> None:
    async def scenario() -> None:
        async with (
            started("b", hold_ms=50) as b,
            dialed(b.address) as old,
            dialed(b.address) as new,
        ):
            b.transport.set_peers({"a": NOWHERE})
            await old.greet("a", "b")
            await b.core.until_connected("a")
            await new.greet("a", "b")
            old.send(append(1))
            new.send(append(2))
            await b.core.until_frames(1)
            assert await old.read_to_end() == b""
            assert b.core.indexes() == [2]
            assert b.core.events == [
                Event("connected", "a"),
                # It is no reason for an election: the peer lives.
                Event("disconnected", "a", was_lost=False),
                Event("connected", "a"),
                Event("frame", "a"),
            ]
            assert b.transport.send("a", append(3))
            assert (await new.read()).message.append.prev_index == 3

    run(scenario(), loop)


def test_a_newer_connection_does_not_wait_when_the_older_one_ends(loop: str) -> None:
    """As that of a peer that was started again: its old connection ends in the same moment."""

    async def scenario() -> None:
        patient = 600_000
        async with (
            started("b", hold_ms=patient, handshake_timeout_ms=patient) as b,
            dialed(b.address) as old,
            dialed(b.address) as new,
        ):
            b.transport.set_peers({"a": NOWHERE})
            await old.greet("a", "b")
            await b.core.until_connected("a")
            new.send(greeting(node("a"), "b", 0))
            await until(lambda: any(one.peer_id == "a" for one in b.transport._handshakes))
            old.writer.transport.abort()
            assert (await new.read()).message.hello.node_id == "b"
            new.send(append(2))
            await b.core.until_frames(1)
            kinds = [each.kind for each in b.core.events]
            assert kinds == ["connected", "disconnected", "connected", "frame"]

    run(scenario(), loop)


def test_a_removed_peer_is_disconnected_and_an_added_one_connected(loop: str) -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            b.transport.set_peers({})
            # Not inside of the core's own call.
            assert b.core.count("disconnected") == 0
            assert "a" not in b.transport.connected()
            await b.core.until(lambda: b.core.count("disconnected") == 1)
            await a.core.until(lambda: a.core.count("disconnected") == 1)
            assert (a.core.lost(), b.core.lost()) == ([True], [False])
            b.transport.set_peers({"a": NOWHERE})
            await b.core.until(lambda: b.core.count("connected") == 2)
            await a.core.until(lambda: a.core.count("connected") == 2)
            a.transport.set_peers({})
            await b.core.until(lambda: b.core.count("disconnected") == 2)
            assert (a.core.lost(), b.core.lost()) == ([True, False], [False, True])
            assert a.transport._dials == {}

    run(scenario(), loop)


def test_nothing_of_a_connection_is_delivered_after_its_end(loop: str) -> None:
    async def scenario() -> None:
        async with started("b") as b, dialed(b.address) as raw:
            b.transport.set_peers({"a": NOWHERE})

            def remove(event: Event) -> None:
                if event.kind == "frame":
                    b.transport.set_peers({})

            b.core.on_event = remove
            await raw.greet("a", "b")
            # All of them arrive with one system call.
            raw.send(stream(*(append(index) for index in range(50))))
            assert await raw.read_to_end() == b""
            await b.core.until(lambda: b.core.count("disconnected") == 1)
            assert [each.kind for each in b.core.events] == ["connected", "frame", "disconnected"]

    run(scenario(), loop)


def test_a_new_connection_is_reported_after_the_end_of_the_old_one(loop: str) -> None:
    """Removed and added within one call, while the peer's next hello waits in the socket."""

    async def scenario() -> None:
        async with started("b") as b, dialed(b.address) as old, dialed(b.address) as new:
            b.transport.set_peers({"a": NOWHERE})
            await old.greet("a", "b")
            await b.core.until_connected("a")
            sock = new.writer.get_extra_info("socket")
            hello = b.transport.greeting(b.transport._established["a"])
            hello.message.hello.node_id, hello.message.hello.peer_id = "a", "b"
            os.write(sock.fileno(), stream(hello))
            b.transport.set_peers({})
            b.transport.set_peers({"a": NOWHERE})
            await b.core.until(lambda: b.core.count("connected") == 2)
            kinds = [each.kind for each in b.core.events]
            assert kinds == ["connected", "disconnected", "connected"]

    run(scenario(), loop)


def test_a_corrected_address_is_used_for_the_next_dial(loop: str, lines: Lines) -> None:
    async def scenario() -> None:
        async with started("a") as a, started("b") as b:
            b.transport.set_peers({"a": NOWHERE})
            for wrong in ("nonsense", "no.such.invalid:1", "a..b:1", NOWHERE):
                count = len(lines.of("peer not reached"))
                a.transport.set_peers({"b": wrong})
                assert (await lines.until("peer not reached", count + 1))["peer"] == "b"
            a.transport.set_peers({"b": b.address})
            await a.core.until_connected("b")
            # A connection that stands is kept.
            a.transport.set_peers({"b": NOWHERE})
            assert a.transport.send("b", append(1))
            await b.core.until_frames(1)

    run(scenario(), loop)


def test_a_closed_transport_is_silent_and_listens_no_more(loop: str) -> None:
    async def scenario() -> None:
        async with pair() as (a, b), dialed(b.address):
            address = b.address
            await b.transport.close()
            assert b.core.lost() == [False]
            events = list(b.core.events)
            await b.transport.close()
            b.transport.set_peers({"a": NOWHERE, "z": NOWHERE})
            with pytest.raises(ConnectionRefusedError):
                async with dialed(address):
                    pass
            await a.core.until(lambda: a.core.lost() == [True])
            assert b.core.events == events
            assert not b.transport.send("a", append(1))
            assert b.transport._tasks == set()
            await until(lambda: b.transport._connections == set())

    run(scenario(), loop)


def test_pauses_between_dials_grow_and_start_over_after_a_connection_that_lasted() -> None:
    async def scenario() -> None:
        clock = asyncio.get_running_loop()
        async with Door.opened() as door:
            core = Core()
            a = Transport(node("a"), core, genesis_crc=lambda: 0, backoff_ms=(20, 160))
            await a.start(ANY_PORT)
            a.set_peers({"b": door.address})
            times = []
            for _ in range(7):
                raw = await door.accept()
                times.append(clock.time())
                raw.writer.transport.abort()
            pauses = [after - before for before, after in itertools.pairwise(times)]
            # Never shorter than half of 20, 40, 80, 160, 160, 160 ms.
            for pause, least in zip(pauses, (10, 20, 40, 80, 80, 80), strict=True):
                assert pause * 1000 >= least
            await a.close()

    run(scenario())
