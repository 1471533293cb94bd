"""Certificates that are replaced under load, half written first: no send fails, and clients that
come later see the new ones. Beside them: garbage, half handshakes and clients that send nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

import grpc
import pytest

from tests.conformance.calls import Calls
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Files
from tests.support.waiting import poll

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
REFUSED = "TLS files cannot be used: those before stay in use"
LOADED = "TLS files are loaded, for new connections"


class Load:
    """Threads that send until the end: on a connection that stays, and on new ones."""

    def __init__(self, address: str, files: Files, client: Files | None) -> None:
        self._address = address
        self._credentials = files.credentials(client)
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,))
            for work in (self._send_on_one, self._send_on_one, self._send_on_new, self._disturb)
        ]
        self.sent = {"one": 0, "new": 0, "noise": 0}
        self.failures: list[Exception] = []

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for one in self._threads:
            one.join()

    def wait_for_more(self) -> None:
        before = dict(self.sent)
        poll(
            lambda: self.failures or all(self.sent[kind] > before[kind] + 2 for kind in before),
            "more of each kind",
        )
        assert not self.failures

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - for the test to see
            self.failures.append(error)

    def _channel(self) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(self._address, self._credentials, options)

    def _send_on_one(self) -> None:
        with self._channel() as channel:
            calls = Calls(channel)
            while not self._is_over.is_set():
                calls.send("rotated", bytes(1_000))
                self.sent["one"] += 1

    def _send_on_new(self) -> None:
        while not self._is_over.is_set():
            with self._channel() as channel:
                Calls(channel).send("rotated", bytes(1_000))
                self.sent["new"] += 1

    def _disturb(self) -> None:
        host, _, port = self._address.rpartition(":")
        noise = random.Random(7)
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                opened = socket.create_connection((host, int(port)), timeout=30)
                stack.enter_context(contextlib.closing(opened))
                opened.sendall(b"\x16\x03\x01\x02")
            while not self._is_over.wait(0.01):
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection((host, int(port)), timeout=30) as opened,
                ):
                    opened.sendall(noise.choice([b"", b"\x16\x03", b"PRI "]) + noise.randbytes(500))
                self.sent["noise"] += 1


def shown_by(broker: BrokerProcess) -> str:
    host, _, port = broker.address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def said(broker: BrokerProcess, event: str) -> int:
    return sum(line.get("event") == event for line in broker.log())


def put(broker: BrokerProcess, path: str, content: bytes, event: str) -> None:
    """Writes the file, and waits for the word of the broker about it."""
    before = said(broker, event)
    Path(path).write_bytes(content)
    os.kill(broker.pid, signal.SIGHUP)
    poll(lambda: said(broker, event) > before, event)


@pytest.mark.parametrize("transport", ["mq", "grpcio"])
def test_certificates_are_replaced_under_load_and_no_send_fails(
    tmp_path: Path, transport: str
) -> None:
    authority = Authority(tmp_path / "authority")
    files, client = authority.files(), authority.files("orders.example")
    flags = [each for one in files.flags("broker").items() for each in one]
    flags += ["--broker-tls", "required", "--broker-tls-clients", "required"]
    with (
        BrokerProcess(tmp_path / "data", "--broker-transport", transport, *flags) as broker,
        Load(broker.address, files, client) as load,
    ):
        for _ in range(ROUNDS):
            load.wait_for_more()
            before, pair = shown_by(broker), authority.issue()
            put(broker, files.cert, pair.cert[: len(pair.cert) // 2], REFUSED)
            put(broker, files.cert, pair.cert, REFUSED)
            assert shown_by(broker) == before
            load.wait_for_more()
            put(broker, files.key, pair.key[: len(pair.key) // 2], REFUSED)
            put(broker, files.key, pair.key, LOADED)
            assert shown_by(broker) == pair.cert.decode()
            load.wait_for_more()
        # Without a word of an operator, too: the files are looked at every ten seconds.
        pair = authority.renew(files)
        poll(lambda: shown_by(broker) == pair.cert.decode(), "the last certificate")
        load.wait_for_more()
        assert not load.failures
        assert "Traceback" not in broker.output(), broker.output()


def test_the_authority_is_replaced_by_way_of_both(tmp_path: Path) -> None:
    """Trust both, then show certificates of the new one, then trust the new one alone."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = old.files()
    clients = {"old": old.files("a"), "new": new.files("a")}
    flags = [each for one in files.flags("broker").items() for each in one]
    flags += ["--broker-tls", "required", "--broker-tls-clients", "required"]

    def is_served(name: str) -> bool:
        options = [("grpc.use_local_subchannel_pool", 1)]
        credentials = both.credentials(clients[name])
        with grpc.secure_channel(broker.address, credentials, options) as channel:
            try:
                Calls(channel)("BrokerStatus")
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
                return False
            return True

    bundle = Path(clients["old"].ca).read_bytes() + Path(clients["new"].ca).read_bytes()
    both = files._replace(ca=str(tmp_path / "both.pem"))
    Path(both.ca).write_bytes(bundle)
    with BrokerProcess(tmp_path / "data", *flags) as broker:
        assert (is_served("old"), is_served("new")) == (True, False)
        put(broker, files.ca, bundle, LOADED)
        assert (is_served("old"), is_served("new")) == (True, True)
        pair = new.issue()
        put(broker, files.cert, pair.cert, REFUSED)
        put(broker, files.key, pair.key, LOADED)
        assert (is_served("old"), is_served("new")) == (True, True)
        put(broker, files.ca, Path(clients["new"].ca).read_bytes(), LOADED)
        assert (is_served("old"), is_served("new")) == (False, True)
