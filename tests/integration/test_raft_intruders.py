"""Strangers, misbehaving peers and silent ones: each costs its connection and one log line, and
nothing else.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from mq.raft.frames import PREFIX, Frame
from mq.raft.handshake import greeting, refusal
from mq.raft.transport import Complaints, Transport
from mq.wire.v1.raft_pb2 import RaftFrame
from tests.support.raft_peers import (
    DEADLINE_S,
    NOWHERE,
    Core,
    Door,
    Event,
    Lines,
    Node,
    RawPeer,
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


async def check_unharmed(b: Node) -> None:
    """A good peer connects and is heard."""
    count = len(b.core.frames)
    async with dialed(b.address) as good:
        await good.greet("a", "b")
        good.send(append(9))
        await b.core.until_frames(count + 1)


# -- refusals --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "version": ({"protocol_version": 2}, ["version 1", "version 2"]),
    "cluster": ({"cluster": "other"}, ["cluster mq", "to other"]),
    "broker set": ({"broker_set": "set-9"}, ["set set-0", "to set-9"]),
    "stranger": ({"node_id": "Z"}, ["Z is not a member"]),
    "other peer": ({"peer_id": "q"}, ["wants to talk to q", "this is node b"]),
    "larger id": ({"node_id": "c"}, ["smaller id dials"]),
    "same id": ({"node_id": "b"}, ["two nodes are called b"]),
    "genesis": ({"birth_crc": 2}, ["other members"]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_stranger_is_told_why_it_is_refused(loop: str, kind: str, lines: Lines) -> None:
    changes, words = REFUSED[kind]

    async def scenario() -> None:
        async with started("b", genesis_crc=1) as b, dialed(b.address) as raw:
            b.transport.set_peers({"a": NOWHERE, "c": NOWHERE})
            hello = greeting(node("a"), "b", 1)
            for field, value in changes.items():
                setattr(hello.message.hello, field, value)
            raw.send(hello)
            reason = await raw.read_refusal()
            # Whatever it sends now is not read.
            raw.send(append(1))
            raw.writer.write_eof()
            assert await raw.read_to_end() == b""
            line = await lines.until("connection not accepted")
            for word in words:
                assert word in reason
                assert word in line["reason"]
            assert line["address"].startswith("127.0.0.1:")
            assert b.core.events == []
            await check_unharmed(b)

    run(scenario(), loop)


@pytest.mark.parametrize("kind", ["cluster", "broker set", "genesis", "stranger"])
def test_neither_core_hears_of_a_refused_connection(loop: str, kind: str, lines: Lines) -> None:
    changes, words = REFUSED[kind]
    identity = node("a", changes.get("cluster", "mq"), changes.get("broker_set", "set-0"))

    async def scenario() -> None:
        async with (
            started("a", identity=identity, genesis_crc=changes.get("birth_crc", 1)) as a,
            started("b", genesis_crc=1) as b,
        ):
            b.transport.set_peers({} if kind == "stranger" else {"a": NOWHERE})
            a.transport.set_peers({"b": b.address})
            line = await lines.until("peer not reached")
            assert "refused by the other side" in line["reason"]
            assert (line["peer"], line["address"]) == ("b", b.address)
            assert (
                "refused by this node" in (await lines.until("connection not accepted"))["reason"]
            )
            if kind != "stranger":
                assert all(word in line["reason"] for word in words)
            assert a.core.events == b.core.events == []

    run(scenario(), loop)


def test_the_same_refusal_is_logged_once_however_often_it_is_dialed(
    loop: str, lines: Lines
) -> None:
    async def scenario() -> None:
        async with started("a") as a, Door.opened() as door:
            a.transport.set_peers({"b": door.address})
            for reason in ["no room"] * 4 + ["no\ntime\x1b[0m"] * 3:
                raw = await door.accept()
                assert (await raw.read()).message.hello.node_id == "a"
                raw.send(
                    refusal("") if not reason else Frame(RaftFrame(refusal={"reason": reason}))
                )
                assert await raw.read_to_end() == b""
            await door.accept()
            assert lines.reasons("peer not reached") == [
                "refused by the other side: no room",
                # Made harmless: it comes from outside.
                "refused by the other side: no?time?[0m",
            ]

    run(scenario(), loop)


def test_the_same_intruder_is_logged_once_and_again_after_a_success(
    loop: str, lines: Lines
) -> None:
    async def scenario() -> None:
        async with started("b") as b:
            b.transport.set_peers({"a": NOWHERE})
            for count in (1, 2):
                for _ in range(3):
                    async with dialed(b.address) as raw:
                        raw.send(greeting(node("a"), "q", 0))
                        await raw.read_refusal()
                    await lines.until("connection not accepted", count)
                await until(lambda: not b.transport._handshakes)
                await check_unharmed(b)
            assert len(lines.of("connection not accepted")) == 2

    run(scenario(), loop)


def test_a_dialed_node_must_have_the_expected_name(loop: str) -> None:
    async def scenario() -> None:
        async with started("a") as a, Door.opened() as door:
            a.transport.set_peers({"b": door.address, "c": NOWHERE})
            raw = await door.accept()
            await raw.read()
            raw.send(greeting(node("c"), "a", 0))
            assert "dialed b, but node c answered" in await raw.read_refusal()
            assert a.core.events == []

    run(scenario(), loop)


def test_complaints_are_forgotten_when_there_are_too_many() -> None:
    complaints = Complaints()
    for number in range(10_000):
        assert complaints.is_new(str(number), "reason")
    assert len(complaints._last) <= 256
    assert not complaints.is_new("9999", "reason")


# -- what is no protocol ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_garbage_costs_its_connection_and_nothing_else(loop: str, seed: int, lines: Lines) -> None:
    dice = random.Random(seed)
    hello = stream(greeting(node("a"), "b", 0))

    async def scenario() -> None:
        async with started("b", handshake_timeout_ms=300) as b:
            b.transport.set_peers({"a": NOWHERE})
            for _ in range(5):
                data = bytearray(dice.choice([dice.randbytes(dice.randint(1, 9000)), hello]))
                data[dice.randrange(len(data))] ^= dice.randint(1, 255)
                async with dialed(b.address) as raw:
                    raw.send(bytes(data) + dice.randbytes(100))
                    await raw.read_to_end()
            assert b.core.frames == []
            assert lines.of("connection not accepted", "peer disconnected") != []
            await check_unharmed(b)

    run(scenario(), loop)


HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BEFORE: dict[str, tuple[bytes, str]] = {
    "another protocol": (HTTP, "a message of more than 4096 bytes"),
    "too long": (PREFIX.pack(4097, 0), "a message of more than 4096 bytes"),
    "a body": (stream(append(1, b"x")), "a body of more than 0 bytes"),
    "no hello": (stream(append(1)), "another frame before its hello"),
    "no content": (stream(Frame(RaftFrame(term=3))), "a frame without content"),
    "empty": (PREFIX.pack(0, 0), "a frame without content"),
    "no protobuf": (PREFIX.pack(3, 0) + b"\xff" * 3, "no RaftFrame"),
    "TLS": (bytes.fromhex("160301020001"), "no handshake within"),
    "more TLS": (bytes.fromhex("1603010200010001fc0303"), "it opens TLS"),
}


@pytest.mark.parametrize("kind", BEFORE)
def test_bad_manners_before_the_handshake_end_it(loop: str, kind: str, lines: Lines) -> None:
    data, reason = BEFORE[kind]

    async def scenario() -> None:
        async with started("b", handshake_timeout_ms=300) as b, dialed(b.address) as raw:
            b.transport.set_peers({"a": NOWHERE})
            raw.send(data)
            await raw.read_to_end()
            line = await lines.until("connection not accepted")
            assert reason in line["reason"]
            assert line["address"].startswith("127.0.0.1:")
            assert b.core.events == []
            await check_unharmed(b)
            assert len(lines.of("connection not accepted")) == 1

    run(scenario(), loop)


AFTER: dict[str, tuple[bytes, str]] = {
    "a second hello": (stream(greeting(node("a"), "b", 0)), "a second hello"),
    "too long": (PREFIX.pack(65_537, 0), "a message of more than 65536 bytes"),
    "too large": (PREFIX.pack(3, 0xFFFFFFFF), "a body of more than"),
    "no content": (stream(Frame(RaftFrame(term=3))), "a frame without content"),
    "no protobuf": (PREFIX.pack(3, 0) + b"\xff" * 3, "no RaftFrame"),
    "a refusal": (stream(refusal("I thought about it")), "I thought about it"),
}


@pytest.mark.parametrize("kind", AFTER)
def test_bad_manners_of_a_peer_end_its_connection(loop: str, kind: str, lines: Lines) -> None:
    data, reason = AFTER[kind]

    async def scenario() -> None:
        async with started("b") as b, dialed(b.address) as raw:
            b.transport.set_peers({"a": NOWHERE})
            await raw.greet("a", "b")
            raw.send(stream(append(1)) + data + stream(append(2)))
            await b.core.until(lambda: b.core.count("disconnected") == 1)
            assert b.core.events == [
                Event("connected", "a"),
                Event("frame", "a"),
                Event("disconnected", "a", was_lost=False),
            ]
            (line,) = lines.of("peer disconnected")
            assert reason in line["reason"]
            assert line["address"].startswith("127.0.0.1:")
            await check_unharmed(b)

    run(scenario(), loop)


# -- silence ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_trickling", [False, True])
def test_a_handshake_that_takes_too_long_is_ended(
    loop: str, is_trickling: bool, lines: Lines
) -> None:
    async def trickle(raw: RawPeer) -> None:
        for byte in stream(greeting(node("a"), "b", 0))[:-1]:
            raw.send(bytes([byte]))
            await asyncio.sleep(0.02)

    async def scenario() -> None:
        async with started("b", handshake_timeout_ms=200) as b, dialed(b.address) as raw:
            b.transport.set_peers({"a": NOWHERE})
            task = asyncio.create_task(trickle(raw)) if is_trickling else None
            await raw.read_to_end()
            if task is not None:
                task.cancel()
            assert (await lines.until("connection not accepted"))["reason"] == (
                "no handshake within 200 ms"
            )
            await check_unharmed(b)

    run(scenario(), loop)


def test_a_peer_that_never_answers_a_dial_is_dialed_again(loop: str, lines: Lines) -> None:
    async def scenario() -> None:
        async with started("a", handshake_timeout_ms=100) as a, Door.opened() as door:
            a.transport.set_peers({"b": door.address})
            for _ in range(3):
                await door.accept()
            assert lines.reasons("peer not reached") == ["it does not answer"]
            assert a.core.events == []

    run(scenario(), loop)


def test_silent_connections_cannot_keep_the_peers_out(loop: str, lines: Lines) -> None:
    async def scenario() -> None:
        patient: dict[str, Any] = {"handshakes_max": 4, "handshake_timeout_ms": 600_000}
        async with started("b", **patient) as b, AsyncExitStack() as stack:
            b.transport.set_peers({"a": NOWHERE})
            silent = [await stack.enter_async_context(dialed(b.address)) for _ in range(10)]
            # A connected peer does not count as waiting, from that moment on.
            waiting: list[str] = []
            b.core.on_event = lambda _: waiting.extend(
                each.peer_id for each in b.transport._handshakes
            )
            await check_unharmed(b)
            assert "a" not in waiting
            assert "more than 4" in (await lines.until("connection not accepted"))["reason"]
            # The oldest went, the newest are still waited for.
            for raw in silent[:6]:
                await raw.read_to_end()
            assert len(b.transport._handshakes) <= 4

    run(scenario(), loop)


@pytest.mark.parametrize("last", [b"", PREFIX.pack(100, 1_000_000) + b"\x08"])
def test_a_silent_peer_is_taken_for_lost_also_in_the_middle_of_a_frame(
    loop: str, last: bytes, lines: Lines
) -> None:
    async def scenario() -> None:
        async with started("b", idle_timeout_ms=200) as b, dialed(b.address) as raw:
            b.transport.set_peers({"a": NOWHERE})
            await raw.greet("a", "b")
            raw.send(last)
            await b.core.until(lambda: b.core.count("disconnected") == 1)
            assert b.core.lost() == [True]
            assert lines.reasons("peer disconnected") == ["nothing was received for 200 ms"]
            await check_unharmed(b)

    run(scenario(), loop)


def test_a_peer_that_is_heard_stays_also_when_this_node_sleeps_for_long(loop: str) -> None:
    async def scenario() -> None:
        async with pair(idle_timeout_ms=200) as (a, b):
            for index in range(40):
                a.transport.send("b", append(index))
                b.transport.send("a", append(index))
                await asyncio.sleep(0.01)
                if index == 20:
                    time.sleep(0.7)  # noqa: ASYNC251 - as a slow disk or a paused machine does
            await a.core.until_frames(40)
            await b.core.until_frames(40)
            assert a.core.count("disconnected") == b.core.count("disconnected") == 0

    run(scenario(), loop)


@pytest.mark.parametrize("is_kernel_watching", [True, False])
def test_a_peer_that_talks_but_never_reads_is_given_up(
    loop: str, is_kernel_watching: bool, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_kernel_watching:
        monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")

    async def scenario() -> None:
        async with (
            started("b", send_timeout_ms=300, idle_timeout_ms=400, send_buffer_bytes=1) as b,
            dialed(b.address, receive_buffer_bytes=4096) as raw,
        ):
            b.transport.set_peers({"a": NOWHERE})
            await raw.greet("a", "b")
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await b.core.until_connected("a")
            b.transport.send("a", append(1, bytes(32 << 20)))
            async with asyncio.timeout(DEADLINE_S):
                while not b.core.count("disconnected"):
                    raw.send(append(1))
                    await asyncio.sleep(0.01)
            assert b.core.lost() == [True]
            (reason,) = lines.reasons("peer disconnected")
            ours = "nothing could be sent for 300 ms" in reason
            assert ours or (is_kernel_watching and "timed out" in reason)

    run(scenario(), loop)


# -- failures of the core --------------------------------------------------------------------------


class Broken(Exception):
    pass


@pytest.mark.parametrize("kind", ["connected", "frame", "disconnected", "writable"])
def test_a_failure_of_the_core_reaches_the_hook(loop: str, kind: str) -> None:
    failures: list[Exception] = []

    def fail(event: Event) -> None:
        if event.kind == kind and not failures:
            raise Broken

    async def scenario() -> None:
        async with (
            started("b", on_failure=failures.append, send_buffer_bytes=1) as b,
            dialed(b.address) as raw,
        ):
            b.core.on_event = fail
            b.transport.set_peers({"a": NOWHERE})
            await raw.greet("a", "b")
            await b.core.until_connected("a")
            b.transport.send("a", append(1, bytes(8 << 20)))
            raw.send(append(1))
            if kind == "disconnected":
                raw.writer.transport.abort()
            else:
                await raw.read_to_end()
            await b.core.until(lambda: b.core.count("disconnected") == 1)
            assert [type(each) for each in failures] == [Broken]
            # It ends the connection, whose state the core did not get right; not by the peer.
            assert b.core.lost() == [kind == "disconnected"]
            await check_unharmed(b)

    run(scenario(), loop)


def test_without_a_hook_a_failure_reaches_the_event_loop(loop: str) -> None:
    async def scenario() -> None:
        handled: list[dict[str, Any]] = []
        running = asyncio.get_running_loop()
        running.set_exception_handler(lambda _, context: handled.append(context))

        def fail(event: Event) -> None:
            if event.kind == "frame":
                raise Broken

        async with pair() as (a, b):
            b.core.on_event = fail
            a.transport.send("b", append(1))
            await b.core.until(lambda: b.core.count("disconnected") == 1)
        assert [type(context["exception"]) for context in handled] == [Broken]

    run(scenario(), loop)


def test_a_genesis_that_cannot_be_read_is_a_failure_too(loop: str) -> None:
    async def scenario() -> None:
        failures: list[Exception] = []

        def genesis() -> int:
            raise Broken

        async with started("b", genesis_crc=genesis, on_failure=failures.append) as b:
            b.transport.set_peers({"a": NOWHERE})
            async with dialed(b.address) as raw:
                raw.send(greeting(node("a"), "b", 0))
                await raw.read_to_end()
            assert [type(each) for each in failures] == [Broken]

    run(scenario(), loop)


def test_a_port_scan_leaves_no_open_descriptors(loop: str) -> None:
    async def scenario() -> None:
        async with started("b", handshake_timeout_ms=200) as b:
            async with dialed(b.address):  # the event loop opens some of its own
                await until(lambda: bool(b.transport._handshakes))
            await until(lambda: not b.transport._connections)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(50):
                async with dialed(b.address):
                    pass
            await until(lambda: len(os.listdir("/proc/self/fd")) <= before)

    run(scenario(), loop)


def test_transports_that_never_started_can_be_closed(loop: str) -> None:
    async def scenario() -> None:
        await Transport(node("a"), Core(), genesis_crc=lambda: 0).close()

    run(scenario(), loop)
