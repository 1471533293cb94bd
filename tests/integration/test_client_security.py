"""Every kind of client by TLS, and what each says when a broker does not let it in."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.client import (
    Admin,
    Consumer,
    Processor,
    Producer,
    PullConsumer,
    PushConsumer,
    Replier,
    Requester,
    SimpleConsumer,
    TransactionProducer,
    aio,
)
from mq.client.cluster import channels as security
from mq.client.lowlevel import ExactSender, QueueOffsets, QueueScanner, background
from mq.errors import IllegalConfig, MqError, Unauthenticated, Unreachable
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Files
from tests.support.waiting import poll

SECRET = "mqk_abcdefghijkl_" + "s" * 43


def flags(files: Files) -> list[str]:
    return ["--broker-tls", "required", *(x for one in files.flags("broker").items() for x in one)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> Files:
    return authority.files()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tls") / "data", *flags(files)) as process:
        yield process
        assert "Traceback" not in process.output(), process.output()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("plain") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that wants to know its callers, and knows none."""
    data = tmp_path_factory.mktemp("locked") / "data"
    with BrokerProcess(data, "--auth-mode", "required") as process:
        yield process
        assert "sss" not in process.output()


# What each kind of client does first. `given` are the arguments of any client.


def produce(given: dict[str, Any]) -> None:
    with Producer(**given) as producer:
        producer.send("t", b"x")


def produce_in_bulk(given: dict[str, Any]) -> None:
    with Producer(**given) as producer:
        producer.send_many("t", [b"x", b"y"])


def consume(given: dict[str, Any]) -> None:
    with Consumer(group="g", subscriptions="t", start="earliest", **given) as consumer:
        assert consumer.poll(timeout_s=20)


def push(given: dict[str, Any]) -> None:
    seen = threading.Event()
    with PushConsumer(
        group="pushed", subscriptions="t", handler=lambda _: seen.set(), start="earliest", **given
    ):
        assert seen.wait(20)


def pull(given: dict[str, Any]) -> None:
    with PullConsumer(**given) as consumer:
        found = [consumer.pull(*ref[:2], 0).messages for ref in consumer.queues("t")]
        assert any(found)


def receive(given: dict[str, Any]) -> None:
    with SimpleConsumer(group="s", subscriptions="t", start="earliest", **given) as consumer:
        messages = consumer.receive(wait_s=10)
        assert messages
        consumer.ack(messages)


def transact(given: dict[str, Any]) -> None:
    def decide(*_: Any) -> str:
        return "COMMIT"

    with TransactionProducer(producer_group="p", execute=decide, check=decide, **given) as producer:
        assert producer.send_in_transaction("t", b"x").state == "COMMIT"


def process(given: dict[str, Any]) -> None:
    seen = threading.Event()

    def handle(messages: list[Any]) -> list[tuple[str, bytes]]:
        seen.set()
        return [("out", one.body) for one in messages]

    with Processor(group="processed", subscriptions="t", handler=handle, start="earliest", **given):
        assert seen.wait(20)


def ask(given: dict[str, Any]) -> None:
    with (
        Replier(group="repliers", topic="asked", handler=lambda one: one.body * 2, **given),
        Requester(**given) as requester,
    ):
        assert requester.request("asked", b"ab").body == b"abab"


def administer(given: dict[str, Any]) -> None:
    with Admin(**given) as admin:
        assert admin.list_topics() is not None


def scan(given: dict[str, Any]) -> None:
    offsets = QueueOffsets(**given)
    try:
        ends = background().run(offsets.find("t", "latest"))
    finally:
        background().run(offsets.close())
    ref = max(ends, key=lambda one: ends[one])
    with QueueScanner(**given) as scanner:
        assert list(scanner.scan(ref, 0, ends[ref]))
    with ExactSender(**given) as sender:
        assert sender.layout("t")


KINDS: list[Callable[[dict[str, Any]], None]] = [
    produce,
    produce_in_bulk,
    consume,
    push,
    pull,
    receive,
    transact,
    process,
    ask,
    administer,
    scan,
]


@pytest.mark.parametrize("act", KINDS, ids=lambda one: one.__name__)
def test_every_kind_of_client_is_served_by_tls(
    act: Callable[[dict[str, Any]], None], broker: BrokerProcess, files: Files
) -> None:
    given: dict[str, Any] = {"servers": broker.address, "ca": files.ca}
    produce(given)
    act(given)


def test_clients_of_asyncio_are_served_by_tls(broker: BrokerProcess, files: Files) -> None:
    async def main() -> None:
        given: dict[str, Any] = {"servers": broker.address, "tls": True, "ca": Path(files.ca)}
        async with (
            aio.Producer(**given) as producer,
            aio.Consumer(
                group="aio", subscriptions="of-aio", start="earliest", **given
            ) as consumer,
        ):
            await producer.send("of-aio", b"x")
            assert [one.body for one in await consumer.poll(timeout_s=20)] == [b"x"]

    asyncio.run(main())


# Why there is no connection


def refusal(given: dict[str, Any], act: Callable[[dict[str, Any]], None] = produce) -> str:
    with pytest.raises(MqError) as raised:
        act(given)
    return str(raised.value)


@pytest.mark.parametrize("act", KINDS, ids=lambda one: one.__name__)
def test_a_client_of_the_wrong_transport_is_told_at_once(
    act: Callable[[dict[str, Any]], None],
    broker: BrokerProcess,
    plain: BrokerProcess,
    files: Files,
) -> None:
    began_s = time.monotonic()
    text = refusal({"servers": broker.address}, act)
    assert f"the broker at {broker.address} speaks TLS: use tls=True, or --tls" in text
    text = refusal({"servers": plain.address, "ca": files.ca}, act)
    assert f"the broker at {plain.address} does not speak TLS: leave out tls" in text
    assert time.monotonic() - began_s < 3.0


def test_an_authority_that_is_not_trusted_is_named(broker: BrokerProcess, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other").files()
    for given in ({"tls": True}, {"ca": other.ca}):
        with Producer(broker.address, timeout_s=0.5, **given) as producer:
            with pytest.raises(Unreachable) as raised:
                producer.send("t", b"x")
            assert "does not come from an authority that this client trusts" in str(raised.value)


def test_a_certificate_for_another_host_is_told(authority: Authority, tmp_path: Path) -> None:
    elsewhere = authority.files("elsewhere.example")
    with (
        BrokerProcess(tmp_path / "data", *flags(elsewhere)) as process,
        Producer(process.address, ca=elsewhere.ca, timeout_s=0.5) as producer,
        pytest.raises(Unreachable, match="is for another host name or address"),
    ):
        producer.send("t", b"x")


def test_a_broker_that_wants_certificates_of_clients_is_shown_one(
    authority: Authority, files: Files, tmp_path: Path
) -> None:
    own = authority.files("client.example")
    foreign = Authority(tmp_path / "foreign").files("client.example")
    mutual = ["--broker-tls-clients", "required"]
    with BrokerProcess(tmp_path / "data", *flags(files), *mutual) as process:
        given: dict[str, Any] = {"servers": process.address, "ca": files.ca}
        produce({**given, "cert": own.cert, "key": own.key})
        text = refusal({**given, "timeout_s": 0.5})
        assert "it wants a certificate of this client: give cert and key" in text
        text = refusal({**given, "cert": foreign.cert, "key": foreign.key, "timeout_s": 0.5})
        assert "it does not accept the certificate of this client" in text


def test_a_missing_file_is_named_when_the_client_is_made(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(IllegalConfig, match=missing):
        Producer("127.0.0.1:1", ca=missing)
    with pytest.raises(IllegalConfig, match="cert is given without key"):
        Consumer("127.0.0.1:1", "g", "t", cert=missing)


# Files that change


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "LOOK_S", 0.05)


@pytest.mark.usefixtures("eager")
def test_a_change_of_the_files_fails_no_send_and_repeats_no_message(
    broker: BrokerProcess,
    files: Files,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mq.client.cluster.channels")
    ca = tmp_path / "ca.pem"
    shutil.copy(files.ca, ca)
    given: dict[str, Any] = {"servers": broker.address, "ca": ca}
    seen: list[bytes] = []
    sent: list[bytes] = []
    with (
        PushConsumer(
            group="rotated",
            subscriptions="rotated",
            handler=lambda one: seen.append(one.body),
            start="earliest",
            **given,
        ),
        Producer(**given) as producer,
    ):
        end_s = time.monotonic() + 6
        rotations = 0
        while time.monotonic() < end_s:
            futures = [producer.send_async("rotated", f"{len(sent) + i}") for i in range(50)]
            sent += [f"{len(sent) + i}".encode() for i in range(50)]
            for future in futures:
                future.result(10)
            if 6 - (end_s - time.monotonic()) > rotations:
                rotations += 1
                fresh = tmp_path / "fresh.pem"
                fresh.write_bytes(Path(files.ca).read_bytes() + b"\n" * rotations)
                fresh.replace(ca)
        poll(lambda: len(seen) >= len(sent), "all messages")
    assert sorted(seen) == sorted(sent)
    assert caplog.text.count("connections are opened anew") >= 4, "of two clients"


@pytest.mark.usefixtures("eager")
def test_a_client_follows_its_brokers_to_another_authority(
    authority: Authority, tmp_path: Path
) -> None:
    first, second = authority.files(), Authority(tmp_path / "second").files()
    ca = tmp_path / "ca.pem"
    shutil.copy(first.ca, ca)
    process = BrokerProcess(tmp_path / "data")
    process.start(*flags(first))
    try:
        with Producer(process.address, ca=ca, timeout_s=60) as producer:
            producer.send("t", b"before")
            process.stop()
            process.start(*flags(second))
            with pytest.raises(MqError):
                producer.send("t", b"between", timeout_s=0.5)
            shutil.copy(second.ca, ca)
            assert producer.send("t", b"after").status == "SEND_OK"
    finally:
        process.kill()


# Brokers that want to know their callers


@pytest.mark.parametrize("act", KINDS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("key", [None, SECRET], ids=["no key", "an unknown key"])
def test_every_kind_of_client_hears_at_once_that_it_is_not_known(
    act: Callable[[dict[str, Any]], None],
    key: str | None,
    locked: BrokerProcess,
    caplog: pytest.LogCaptureFixture,
) -> None:
    began_s = time.monotonic()
    with pytest.raises(Unauthenticated) as raised:
        act({"servers": locked.address, "api_key": key})
    assert time.monotonic() - began_s < 3.0
    assert "sss" not in str(raised.value) + caplog.text
