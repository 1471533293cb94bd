"""TLS to clients: brokers with `broker.tls = required`, on both transports."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import grpc
import pytest

from mq.client import Producer
from mq.errors import Unreachable
from mq.wire.v1.producer_pb2 import SendResponse
from tests.conformance.calls import Calls, prepared
from tests.conformance.streams import PublishStream
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Files
from tests.support.foreign import ForeignChannel, programs
from tests.support.raft_cluster import free_port
from tests.support.waiting import poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)


def flags(files: Files) -> list[str]:
    return [
        "--broker-tls",
        "required",
        *(each for one in files.flags("broker").items() for each in one),
    ]


def trusting(ca: str) -> grpc.ChannelCredentials:
    with open(ca, "rb") as file:
        return grpc.ssl_channel_credentials(file.read())


@contextlib.contextmanager
def calling(broker: BrokerProcess, files: Files) -> Iterator[Calls]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(broker.address, trusting(files.ca), options) as channel:
        yield Calls(channel)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Authority(tmp_path_factory.mktemp("authority")).files()


@pytest.fixture(scope="module", params=["mq", "grpcio"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, files: Files
) -> Iterator[BrokerProcess]:
    transport = ["--broker-transport", request.param]
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, *flags(files), *transport) as process:
        yield process
        assert process.is_running
        assert "Traceback" not in process.output(), process.output()


def failure(channel: grpc.Channel) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        Calls(channel)("Route")
    code: grpc.StatusCode = raised.value.code()
    return code


def test_a_client_that_trusts_the_authority_is_served(broker: BrokerProcess, files: Files) -> None:
    with calling(broker, files) as calls:
        calls.create("trusted")
        calls.send("trusted", bytes(3 << 20))
        with PublishStream(calls.channel) as stream:
            stream.result(prepared("trusted", b"x"))
        assert [len(body) for body in calls.bodies("trusted")] == [3 << 20, 1]


def test_a_client_without_tls_is_not_served(broker: BrokerProcess) -> None:
    with grpc.insecure_channel(broker.address) as channel:
        assert failure(channel) == UNAVAILABLE


def test_our_own_client_without_tls_says_that_the_broker_wants_it(broker: BrokerProcess) -> None:
    with Producer(broker.address) as producer, pytest.raises(Unreachable) as raised:
        producer.send("t", b"x")
    told = f"the broker at {broker.address} speaks TLS: use tls=True, or --tls"
    assert str(raised.value) == told


def test_a_client_that_trusts_another_authority_does_not_call(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other").files()
    with grpc.secure_channel(broker.address, trusting(other.ca)) as channel:
        assert failure(channel) == UNAVAILABLE


@pytest.mark.parametrize(
    "data",
    [PREFACE, b"GET / HTTP/1.1\r\n\r\n", bytes(1_000), b"\x16\x03\x01\xff\xff" + bytes(5_000)],
    ids=["http/2 without TLS", "http/1", "zeros", "a record of noise"],
)
def test_bytes_that_are_no_handshake_end_the_connection_and_nothing_else(
    broker: BrokerProcess, files: Files, data: bytes
) -> None:
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sent:
        sent.sendall(data)
        with contextlib.suppress(ConnectionError):
            while sent.recv(4_096):  # an alert, or nothing
                pass
    with calling(broker, files) as calls:
        assert calls("BrokerStatus").is_ready


def test_unfinished_handshakes_hold_up_no_other_client(broker: BrokerProcess, files: Files) -> None:
    host, _, port = broker.address.rpartition(":")
    hello = ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=files.ca).wrap_bio(
        ssl.MemoryBIO(), hello, server_hostname=host
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    half = hello.read()[:100]
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            opened = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            opened.sendall(half)
        with calling(broker, files) as calls:
            assert calls("BrokerStatus").is_ready


@pytest.mark.parametrize("language", programs.LANGUAGES)
def test_clients_of_other_languages_are_served(
    broker: BrokerProcess, files: Files, language: str
) -> None:
    with ForeignChannel(programs.command(language), broker.address, files.ca) as channel:
        calls = Calls(channel)
        topic = calls.create(f"of-{language}-{time.monotonic_ns()}")
        assert isinstance(calls.send(topic, bytes(100_000)), SendResponse)
        with PublishStream(channel) as stream:
            stream.result(prepared(topic, b"x"))
        assert [len(body) for body in calls.bodies(topic)] == [100_000, 1]


def test_the_health_check_speaks_tls(broker: BrokerProcess, files: Files) -> None:
    def checked(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mq", "health", "--server", broker.address, *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = checked("--ca", files.ca, "--json")
    assert json.loads(done.stdout) == {"is_healthy": True, "status": "SERVING"}
    done = checked()
    assert done.returncode == 1
    assert "does it want TLS (--tls, --ca)?" in done.stderr


def test_broker_sets_greet_each_other(tmp_path: Path, files: Files) -> None:
    ports = {"a": free_port(), "b": free_port()}
    seeds = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    with contextlib.ExitStack() as stack:
        brokers = [
            BrokerProcess(
                tmp_path / name,
                "--node-broker-set",
                name,
                "--broker-seeds",
                seeds,
                *flags(files),
                port=port,
            )
            for name, port in ports.items()
        ]
        for one in brokers:
            stack.enter_context(one)
        calls = stack.enter_context(calling(brokers[0], files))
        poll(lambda: {one.name for one in calls("Route").broker_sets} == {"a", "b"}, "both sets")
