"""TLS of the listeners of both transports on real sockets: plaintext beside it, certificates of
clients, and files that change.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
import pytest
import uvloop

from mq.config import BrokerConfig
from mq.rpc import tls
from mq.rpc.context import Context, UnaryHandler
from mq.rpc.grpcio import GrpcioListener
from mq.rpc.http2 import Http2Listener
from tests.support.certificates import Authority, Files
from tests.support.http2_frames import PREFACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from mq.rpc.tls import BrokerChannel, BrokerTls

ANSWER_S = 30.0
GOAWAY = 7
INADEQUATE_SECURITY = 12
TRANSPORTS: dict[str, type[Http2Listener | GrpcioListener]] = {
    "mq": Http2Listener,
    "grpcio": GrpcioListener,
}


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["mq", "grpcio"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def run(test: Callable[[], Awaitable[None]], loop: str = "asyncio") -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(limited())


def names(_: bytes, context: Context) -> bytes:
    return " ".join(context.certificate_names()).encode()


def encrypted(_: bytes, context: Context) -> bytes:
    return str(context.is_encrypted()).encode()


@contextlib.asynccontextmanager
async def serving(
    files: Files, transport: str = "mq", **options: Any
) -> AsyncIterator[tuple[BrokerTls, str]]:
    """A listener that answers with the names of the client's certificate; its address."""
    config = BrokerConfig(tls="required", tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca)
    options = {"transport": transport} | options
    found = tls.from_config(msgspec.structs.replace(config, **options))
    handlers = {"/test/Names": UnaryHandler(names), "/test/IsEncrypted": UnaryHandler(encrypted)}
    listener = TRANSPORTS[transport](handlers, 1 << 20, 100, found.main)
    port = listener.bind("127.0.0.1", 0)
    await listener.start()
    try:
        yield found, f"127.0.0.1:{port}"
    finally:
        await listener.stop(0)


async def ask(
    address: str, credentials: grpc.ChannelCredentials | None, method: str = "/test/Names"
) -> str:
    """Over a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        grpc.aio.insecure_channel(address, options)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options)
    )
    async with channel:
        answer: bytes = await channel.unary_unary(method)(b"", timeout=ANSWER_S)
        return answer.decode()


async def failure(address: str, credentials: grpc.ChannelCredentials | None) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(address, credentials)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(raised.value.details())


# -- plaintext -------------------------------------------------------------------------------------


def test_optional_tls_takes_both_kinds_of_clients_on_one_port(
    loop: str, authority: Authority
) -> None:
    async def test() -> None:
        files = authority.files()
        async with serving(files, tls="optional") as (_, address):
            for credentials in (None, files.credentials()) * 3:
                assert await ask(address, credentials) == ""

    run(test, loop)


@pytest.mark.parametrize("transport", ["mq", "grpcio"])
def test_a_call_knows_whether_it_came_by_tls(transport: str, authority: Authority) -> None:
    async def test() -> None:
        files = authority.files()
        async with serving(files, transport) as (_, address):
            assert await ask(address, files.credentials(), "/test/IsEncrypted") == "True"
        if transport == "mq":
            async with serving(files, tls="optional") as (_, address):
                assert await ask(address, files.credentials(), "/test/IsEncrypted") == "True"
                assert await ask(address, None, "/test/IsEncrypted") == "False"
            return
        listener = TRANSPORTS[transport]({"/test/E": UnaryHandler(encrypted)}, 1 << 20, 100, None)
        port = listener.bind("127.0.0.1", 0)
        await listener.start()
        assert await ask(f"127.0.0.1:{port}", None, "/test/E") == "False"
        await listener.stop(0)

    run(test)


def test_a_client_without_tls_is_told_that_it_is_required(loop: str, authority: Authority) -> None:
    async def test() -> None:
        files = authority.files()
        async with serving(files) as (_, address):
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(PREFACE)
            frame = await reader.read()
            assert frame[3] == GOAWAY
            assert int.from_bytes(frame[13:17], "big") == INADEQUATE_SECURITY
            assert frame[17:] == b"this port requires TLS"
            writer.close()
            # gRPC tells no more of it than this, which our own client recognises.
            assert "got frame type 7)" in await failure(address, None)
            assert await ask(address, files.credentials()) == ""

    run(test, loop)


def test_a_client_with_tls_learns_that_the_port_has_none(authority: Authority) -> None:
    async def test() -> None:
        files = authority.files()
        async with serving(files, tls="off") as (_, address):
            assert "WRONG_VERSION_NUMBER" in await failure(address, files.credentials())

    run(test)


def test_the_buffers_of_a_connection_go_with_it_and_wait_for_no_collector(
    loop: str, authority: Authority
) -> None:
    def transports() -> int:
        return sum(type(one).__name__ == "SSLProtocol" for one in gc.get_objects())

    async def test() -> None:
        files = authority.files()
        async with serving(files) as (_, address):
            for _ in range(5):
                assert await ask(address, files.credentials()) == ""

    gc.collect()
    gc.disable()
    try:
        before = transports()
        run(test, loop)
        assert transports() == before
    finally:
        gc.enable()


def test_silent_and_slow_clients_are_disconnected_when_their_time_is_over(
    loop: str, authority: Authority
) -> None:
    files = authority.files()
    hello = ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=files.ca).wrap_bio(
        ssl.MemoryBIO(), hello, server_hostname="127.0.0.1"
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    opening = hello.read()

    async def test() -> None:
        async with serving(files, tls="optional") as (_, address):
            host, _, port = address.rpartition(":")
            half = [b"", b"P", PREFACE, b"\x16", opening[:100], opening, opening[:-1] + bytes(1)]
            opened = [await asyncio.open_connection(host, int(port)) for _ in half]
            for (_, writer), data in zip(opened, half, strict=True):
                writer.write(data)
            # They hold up no other client.
            assert await ask(address, files.credentials()) == ""
            for reader, writer in opened:
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()

    run(test, loop)


@pytest.mark.parametrize("mode", ["optional", "required"])
def test_handshakes_count_as_connections(mode: str, authority: Authority) -> None:
    async def test() -> None:
        files = authority.files()
        config = BrokerConfig(tls_cert=files.cert, tls_key=files.key)
        config = msgspec.structs.replace(config, tls=mode)
        listener = Http2Listener({}, 1 << 20, 2, tls.from_config(config).main)
        port = listener.bind("127.0.0.1", 0)
        await listener.start()
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                silent = socket.create_connection(("127.0.0.1", port))
                stack.enter_context(contextlib.closing(silent))
            while await listener.connections() < 2:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            await listener.stop(0)
        assert await listener.connections() == 0

    run(test)


# -- certificates of clients -----------------------------------------------------------------------


def test_clients_are_known_by_the_names_of_their_certificates(
    transport: str, authority: Authority
) -> None:
    """URIs and host names, and nothing else: neither addresses nor the subject."""

    async def test() -> None:
        files = authority.files()
        client = authority.files("mq://company/orders", "orders.example", "10.0.0.1")
        async with serving(files, transport, tls_clients="required") as (_, address):
            answer = await ask(address, files.credentials(client))
            assert sorted(answer.split()) == ["mq://company/orders", "orders.example"]

    run(test)


def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    transport: str, authority: Authority, tmp_path: Path
) -> None:
    async def test() -> None:
        files = authority.files()
        foreign = Authority(tmp_path / "foreign").files("orders.example")
        async with serving(files, transport, tls_clients="required") as (_, address):
            await failure(address, files.credentials())
            await failure(address, files.credentials(foreign))
            assert await ask(address, files.credentials(authority.files("a"))) == "a"

    run(test)


def test_a_certificate_that_is_optional_has_to_be_a_good_one(
    loop: str, authority: Authority, tmp_path: Path
) -> None:
    async def test() -> None:
        files = authority.files()
        foreign = Authority(tmp_path / "foreign").files("orders.example")
        for_servers = authority.files("orders.example", is_for_clients=False)
        async with serving(files, tls="optional", tls_clients="optional") as (_, address):
            assert await ask(address, None) == ""
            assert await ask(address, files.credentials()) == ""
            assert await ask(address, files.credentials(authority.files("a"))) == "a"
            await failure(address, files.credentials(foreign))
            await failure(address, files.credentials(for_servers))

    run(test, loop)


def test_a_certificate_that_is_not_asked_for_is_no_identity(
    transport: str, authority: Authority
) -> None:
    async def test() -> None:
        files = authority.files()
        async with serving(files, transport) as (_, address):
            assert await ask(address, files.credentials(authority.files("a"))) == ""

    run(test)


# -- files that change -----------------------------------------------------------------------------


async def shown_by(address: str) -> str:
    """The certificate that a new connection sees, in PEM."""
    host, _, port = address.rpartition(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


def test_new_connections_use_new_files_and_old_ones_stay(
    transport: str, authority: Authority
) -> None:
    async def test() -> None:
        files = authority.files()
        client = files.credentials(authority.files("a"))
        async with serving(files, transport, tls_clients="required") as (found, address):
            assert found.certificates is not None
            async with grpc.aio.secure_channel(address, client) as channel:
                ask_again = channel.unary_unary("/test/Names")
                assert await ask_again(b"", timeout=ANSWER_S) == b"a"
                for _ in range(3):
                    pair = authority.renew(files)
                    assert found.certificates.refresh()
                    assert await shown_by(address) == pair.cert.decode()
                    assert await ask(address, client) == "a"
                    assert await ask_again(b"", timeout=ANSWER_S) == b"a"

    run(test)


def test_a_new_authority_decides_about_the_clients_that_come_after_it(
    transport: str, authority: Authority, tmp_path: Path
) -> None:
    async def test() -> None:
        files = authority.files()
        other = Authority(tmp_path / "other")
        before, after = authority.files("before"), other.files("after")
        async with serving(files, transport, tls_clients="required") as (found, address):
            assert found.certificates is not None
            assert await ask(address, files.credentials(before)) == "before"
            await failure(address, files.credentials(after))
            other.renew(files)
            shutil.copy(after.ca, files.ca)
            assert found.certificates.refresh()
            assert await ask(address, files.credentials(after)) == "after"
            await failure(address, files.credentials(before))

    run(test)


# -- between brokers -------------------------------------------------------------------------------

OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 100))


async def until_answered(channel: BrokerChannel) -> str:
    async with asyncio.timeout(ANSWER_S):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer: bytes = await channel.unary_unary("/test/Names")(b"", timeout=ANSWER_S)
                return answer.decode()


def test_brokers_show_each_other_the_newest_certificate(
    transport: str, authority: Authority, tmp_path: Path
) -> None:
    async def test() -> None:
        files = authority.files("127.0.0.1", "n0")
        async with serving(files, transport, tls_clients="required") as (found, address):
            assert found.certificates is not None
            channel = found.connect(address, OPTIONS)
            assert await until_answered(channel) == "n0"
            other = Authority(tmp_path / "other")
            other.renew(files, "127.0.0.1", "n1")
            shutil.copy(other.files().ca, files.ca)
            # It stays connected until there is something new to connect with.
            assert await until_answered(channel) == "n0"
            assert found.certificates.refresh()
            assert await until_answered(channel) == "n1"
            await channel.close()

    run(test)


@pytest.mark.parametrize("theirs", ["off", "optional", "required"])
def test_a_broker_with_optional_tls_reaches_all_others(theirs: str, authority: Authority) -> None:
    async def test() -> None:
        files = authority.files()
        async with (
            serving(files, tls="optional") as (ours, _),
            serving(files, tls=theirs) as (_, address),
        ):
            channel = ours.connect(address, OPTIONS)
            for _ in range(3):
                assert await until_answered(channel) == ""
            await channel.close()

    run(test)
