"""Clients without a broker, and with the wrong one: every kind of client tells it by the same
error, with the addresses that were tried and why each failed, in the documented time.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
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
)
from mq.errors import MqError, Unreachable
from tests.support.broker_process import BrokerProcess

# As documented, and as much again for a machine that is busy.
PRODUCER_S, OTHERS_S = 3.0, 5.0
DEADLINE_S = 30.0


def ignore(*_: Any) -> Any:
    """A handler."""


def iterate(server: str) -> object:
    with Consumer(server, "g", "t") as consumer:
        return next(consumer)


def poll(server: str) -> object:
    with Consumer(server, "g", "t") as consumer:
        return consumer.poll(timeout_s=4 * OTHERS_S)


def entered(make: Callable[[str], Any]) -> Callable[[str], object]:
    """One that looks for its broker when its block begins."""

    def use(server: str) -> object:
        with make(server):
            return None

    return use


def used(make: Callable[[str], Any], use: Callable[[Any], object]) -> Callable[[str], object]:
    def made_and_used(server: str) -> object:
        with make(server) as client:
            return use(client)

    return made_and_used


CLIENTS: dict[str, Callable[[str], object]] = {
    "send": used(Producer, lambda one: one.send("t", b"x")),
    "send-async": used(Producer, lambda one: one.send_async("t", b"x").result()),
    "send-batch": used(Producer, lambda one: one.send_batch("t", [b"x"])),
    "transaction": used(
        lambda server: TransactionProducer(server, "g", ignore, ignore),
        lambda one: one.send_in_transaction("t", b"x"),
    ),
    "poll": poll,
    "iterate": iterate,
    "push": entered(lambda server: PushConsumer(server, "g", "t", ignore)),
    "pull": used(PullConsumer, lambda one: one.pull("t", 0, 0)),
    "receive": used(lambda server: SimpleConsumer(server, "g", "t"), lambda one: one.receive()),
    "request": entered(Requester),
    "reply": entered(lambda server: Replier(server, "g", "t", ignore)),
    "process": entered(lambda server: Processor(server, "g", "t", ignore)),
    "admin": used(Admin, lambda one: one.list_topics()),
}


def outcomes(server: str) -> dict[str, tuple[MqError | None, float]]:
    """The error of each kind of client, and the time it took; all at the same time."""

    found: dict[str, tuple[MqError | None, float]] = {}
    began_s = time.monotonic()

    def run(name: str) -> None:
        error: MqError | None = None
        try:
            CLIENTS[name](server)
        except MqError as raised:
            error = raised
        found[name] = error, time.monotonic() - began_s

    # Daemons: a client that waits for ever is a failure, not the end of all tests.
    threads = [threading.Thread(target=run, args=[name], daemon=True) for name in CLIENTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, began_s + DEADLINE_S - time.monotonic()))
    assert found.keys() == CLIENTS.keys(), "some wait for ever"
    return found


@pytest.fixture
def nothing_there() -> Iterator[str]:
    """An address at which connections are refused: it is taken, and nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_without_a_broker_every_client_raises_the_same_in_the_documented_time(
    nothing_there: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mq.client")
    found = outcomes(nothing_there)
    for name, (error, took_s) in found.items():
        assert type(error) is Unreachable, (name, error)
        assert f"; tried {nothing_there} (connection refused). Is a broker" in str(error), name
        is_producer = name.startswith("send") or name == "transaction"
        assert took_s < 2 * (PRODUCER_S if is_producer else OTHERS_S), (name, took_s)
    # Each connection says it once.
    told = [one.getMessage() for one in caplog.records]
    assert set(told) == {f"no broker answers, still trying: {nothing_there} (connection refused)"}
    # A Requester and a Replier have several.
    assert len(CLIENTS) <= len(told) <= len(CLIENTS) + 3


def test_a_port_without_grpc_is_named_in_the_error(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        metrics = f"127.0.0.1:{broker.metrics_port}"
        with Producer(metrics, timeout_s=1) as producer, pytest.raises(Unreachable) as caught:
            producer.send("t", b"x")
    assert f"tried {metrics} (it does not speak gRPC, a metrics port perhaps" in str(caught.value)
    assert "8081" in str(caught.value)
