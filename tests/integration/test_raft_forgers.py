"""Strangers that say Hello in the name of a member, on a port without TLS."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from mq.raft.handshake import Presence, greeting
from tests.support.raft_peers import (
    NOWHERE,
    Lines,
    RawPeer,
    append,
    dialed,
    node,
    run,
    started,
    until,
)


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


async def talk(peer: RawPeer) -> None:
    """As a peer that lives: something every now and then."""
    for index in itertools.count(1):
        peer.send(append(index))
        await asyncio.sleep(0.02)


def test_a_forged_hello_does_not_take_the_place_of_a_peer_that_is_heard(
    loop: str, lines: Lines
) -> None:
    async def scenario() -> None:
        async with (
            started("b", hold_ms=2_000) as b,
            dialed(b.address) as peer,
            dialed(b.address) as forger,
        ):
            b.transport.set_peers({"a": NOWHERE})
            await peer.greet("a", "b")
            talking = asyncio.create_task(talk(peer))
            await b.core.until_frames(1)
            known = Presence("10.0.0.66:1", "", "")
            forger.send(greeting(node("a"), "b", 0, known))
            assert "hears from it" in await forger.read_refusal()
            count = len(b.core.frames)
            await b.core.until_frames(count + 3)
            talking.cancel()
            assert b.core.count("connected") == 1
            assert b.core.count("disconnected") == 0
            # Nor does it tell clients where to go.
            assert b.transport.presences["a"] == Presence()
            forger.writer.transport.abort()
            line = await lines.until("connection not accepted")
            assert "hears from it" in line["reason"]

    run(scenario(), loop)


def test_a_peer_that_talks_while_it_is_held_is_disconnected(loop: str, lines: Lines) -> None:
    async def scenario() -> None:
        async with (
            started("b", hold_ms=60_000) as b,
            dialed(b.address) as peer,
            dialed(b.address) as forger,
        ):
            b.transport.set_peers({"a": NOWHERE})
            await peer.greet("a", "b")
            await b.core.until_connected("a")
            forger.send(greeting(node("a"), "b", 0))
            await until(lambda: any(one.peer_id == "a" for one in b.transport._handshakes))
            forger.send(append(1))
            assert await forger.read_to_end() == b""
            assert (
                "before it was answered" in (await lines.until("connection not accepted"))["reason"]
            )
            assert b.core.frames == []

    run(scenario(), loop)


def test_strangers_cause_few_log_lines_under_any_name(loop: str, lines: Lines) -> None:
    async def scenario() -> None:
        async with started("b") as b:
            b.transport.set_peers({"a": NOWHERE})
            for number in range(50):
                async with dialed(b.address) as raw:
                    raw.send(greeting(node(f"stranger-{number}"), "b", 0))
                    await raw.read_refusal()
            await until(lambda: not b.transport._handshakes)
            assert len(lines.of("connection not accepted")) == 30

    run(scenario(), loop)
