"""The transport on real sockets, with gRPC's own client on the other side."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import trustme
import uvloop

from mq.http2 import server as http2_server
from mq.http2.calls import Call, Streaming, Unary
from mq.http2.limits import Limits
from mq.http2.server import Http2Server
from tests.support import http2_frames as http2
from tests.support.http2_frames import Http2Client
from tests.support.interop_service import HANDLERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

ANSWER_S = 30.0
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def run(test: Callable[[], Awaitable[None]], loop: str = "asyncio") -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(limited())


@contextlib.asynccontextmanager
async def serving(
    limits: Limits | None = None, connections_max: int = 100, **options: Any
) -> AsyncIterator[tuple[Http2Server, str]]:
    """And the address."""
    handlers = {**HANDLERS, **options.pop("handlers", {})}
    server = Http2Server(handlers, limits or Limits(), connections_max, **options)
    port = server.bind("127.0.0.1", 0)
    await server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
        assert (server.usage.received_bytes, server.usage.unsent_bytes) == (0, 0)
        assert not server.connections


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("method", ["Echo", "EchoLater"])
def test_unary_calls_of_all_sizes_at_once(loop: str, method: str) -> None:
    async def test() -> None:
        limits = Limits(message_bytes_max=8 << 20)
        async with (
            serving(limits) as (_, address),
            grpc.aio.insecure_channel(address, options=UNLIMITED) as channel,
        ):
            echo = channel.unary_unary(f"/test/{method}")
            sent = [bytes([size % 256]) * size for size in (0, 1, 100, 70_000, 6_000_000) * 20]
            answers = await asyncio.gather(*(echo(one, timeout=ANSWER_S) for one in sent))
            assert answers == sent

    run(test, loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_streams_both_ways(loop: str) -> None:
    async def test() -> None:
        async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
            sent = [bytes(size) for size in (0, 1, 3_000_000, 5, 65_536) * 4]

            async def echoed() -> None:
                call = channel.stream_stream("/test/EchoStream")(iter(sent), timeout=ANSWER_S)
                assert [len(one) async for one in call] == [len(one) for one in sent]

            await asyncio.gather(*(echoed() for _ in range(8)))

    run(test, loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_tls_is_for_clients_that_agree_on_http2(loop: str) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def test() -> None:
        async with serving(tls=lambda: context) as (_, address):
            port = address.rpartition(":")[2]
            credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
            async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
                answer = await channel.unary_unary("/test/Echo")(bytes(3_000_000), timeout=ANSWER_S)
                assert len(answer) == 3_000_000
            trusting.set_alpn_protocols(["http/1.1"])
            reader, writer = await asyncio.open_connection("localhost", int(port), ssl=trusting)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    run(test, loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_handshakes_that_have_begun_are_connections_until_their_time_is_over(loop: str) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.set_alpn_protocols(["h2"])
    refused: list[bool] = []

    async def test() -> None:
        few = serving(
            Limits(handshake_s=2.0), 3, tls=lambda: context, on_refused=lambda: refused.append(True)
        )
        async with few as (_, address):
            host, _, port = address.rpartition(":")
            opened = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
            for _, writer in opened[:3]:
                writer.write(b"\x16\x03\x01")
            with contextlib.suppress(ConnectionError):
                assert await opened[3][0].read() == b""
            assert refused == [True]
            for reader, writer in opened:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
            credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
            async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
                assert await channel.unary_unary("/test/Echo")(b"x", timeout=ANSWER_S) == b"x"
            assert refused == [True]

    run(test, loop)


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    refused: list[bool] = []

    async def test() -> None:
        serving_two = serving(connections_max=2, on_refused=lambda: refused.append(True))
        async with serving_two as (server, address):
            host, _, port = address.rpartition(":")
            writers = []
            for _ in range(2):
                reader, writer = await asyncio.open_connection(host, int(port))
                await reader.readexactly(9)
                writers.append(writer)
            reader, third = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            assert (refused, len(server.connections)) == ([True], 2)
            for writer in (*writers, third):
                writer.close()

    run(test)


def test_a_stop_lets_calls_in_flight_end() -> None:
    release = asyncio.Event()

    async def wait(data: bytes, _: Call) -> bytes:
        await release.wait()
        return data

    async def test() -> None:
        async with serving(handlers={b"/test/Wait": Unary(wait)}) as (server, address):
            async with grpc.aio.insecure_channel(address) as channel:
                call = channel.unary_unary("/test/Wait")(b"x", timeout=ANSWER_S)
                await channel.unary_unary("/test/Echo")(b"x", timeout=ANSWER_S)
                stopping = asyncio.ensure_future(server.stop(60))
                await asyncio.sleep(0)
                release.set()
                assert await call == b"x"
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary("/test/Echo")(b"x", timeout=ANSWER_S)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            await stopping

    run(test)


def test_a_stop_ends_calls_that_do_not() -> None:
    ended: list[bool] = []

    async def wait(call: Call) -> None:
        await call.write(b"began")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def test() -> None:
        handlers = {b"/test/Wait": Streaming(wait)}
        async with (
            serving(handlers=handlers) as (server, address),
            grpc.aio.insecure_channel(address) as channel,
        ):
            call = channel.stream_stream("/test/Wait")(timeout=ANSWER_S)
            assert await call.read() == b"began"
            await server.stop(0.1)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert ended == [True]

    run(test)


def test_a_handler_waits_for_a_client_that_does_not_read() -> None:
    written: list[int] = []

    async def pour(call: Call) -> None:
        for number in range(1_000):
            await call.write(bytes(100_000))
            written.append(number)

    async def test() -> None:
        async with serving(handlers={b"/test/Pour": Streaming(pour)}) as (server, address):
            call_headers = http2.headers(1, http2.call_headers("/test/Pour"))
            windows = http2.settings(initial_window_size=0x7FFFFFFF)
            silent = await asyncio.to_thread(Http2Client, address, http2.PREFACE + windows)
            with silent:
                silent.send(http2.settings_ack() + http2.window_update(0, 0x7000_0000))
                silent.send(call_headers)
                async with grpc.aio.insecure_channel(address) as channel:
                    echo = channel.unary_unary("/test/Echo")
                    while not written:
                        await echo(b"x", timeout=ANSWER_S)
                    before = -1
                    while before != len(written):
                        before = len(written)
                        for _ in range(50):
                            await echo(b"x", timeout=ANSWER_S)
                assert 0 < len(written) < 200, "the buffers of the kernel, and little more"
                assert server.usage.unsent_bytes <= 100_005

    run(test)


def test_one_connection_with_very_much_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libuv reads a socket up to 32 times before it looks at the next one."""
    turn, received = 0, Counter[int]()
    receive = http2_server.ServerProtocol.data_received

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count_turns)

    def counting(self: http2_server.ServerProtocol, data: bytes) -> None:
        received[turn] += len(data)
        receive(self, data)

    async def swallow(call: Call) -> None:
        while await call.read() is not None:
            pass
        await call.write(b"done")

    async def test() -> None:
        limits = Limits(message_bytes_max=8 << 20)
        sink = {b"/test/Sink": Streaming(swallow)}
        async with (
            serving(limits, handlers=sink) as (_, address),
            grpc.aio.insecure_channel(address, options=UNLIMITED) as channel,
        ):
            call = channel.stream_stream("/test/Sink")()
            await call.write(b"the windows are known")
            count_turns()
            for _ in range(20):
                await call.write(bytes(1 << 20))
                # Meanwhile the threads of the client fill the socket.
                time.sleep(0.02)  # noqa: ASYNC251
            await call.done_writing()
            assert await call.read() == b"done"

    monkeypatch.setattr(http2_server.ServerProtocol, "data_received", counting)
    run(test, "uvloop")
    assert sum(received.values()) > 20 << 20
    # One read more than the limit.
    assert max(received.values()) <= http2_server._TURN_BYTES + (256 << 10)
