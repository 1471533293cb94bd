"""One broker for all of the suite, on each transport: a test has topics and groups of its own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tests.conformance.calls import CHANNEL_OPTIONS, Calls
from tests.conformance.streams import SubscribeStream
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MISTAKE = "a request failed by a mistake of the broker"


@pytest.fixture(scope="session", params=["grpcio", "mq"])
def broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("conformance") / "data"
    with BrokerProcess(data, "--broker-transport", request.param) as process:
        yield process
        assert process.is_running, process.output()
        mistakes = [line["exception"] for line in process.log() if line["event"] == MISTAKE]
        assert not mistakes, mistakes[0]
        assert "Traceback" not in process.output(), process.output()


@pytest.fixture(scope="session")
def channel(broker: BrokerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(broker.address, options=CHANNEL_OPTIONS) as opened:
        yield opened


@pytest.fixture(scope="session")
def calls(channel: grpc.Channel) -> Calls:
    return Calls(channel)


@pytest.fixture(scope="session")
def new_name() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"name-{next(numbers)}"


@pytest.fixture
def topic(calls: Calls, new_name: Callable[[], str]) -> str:
    """With four queues."""
    return calls.create(new_name())


@pytest.fixture
def group(new_name: Callable[[], str]) -> str:
    """A new group."""
    return new_name()


@pytest.fixture
def subscribe(
    channel: grpc.Channel, group: str, topic: str
) -> Iterator[Callable[..., SubscribeStream]]:
    """Members of the group, on the topic."""
    opened: list[SubscribeStream] = []

    def open_stream(member_id: str = "m", **fields: Any) -> SubscribeStream:
        opened.append(SubscribeStream(channel, group, topic, member_id, **fields))
        return opened[-1]

    yield open_stream
    for stream in opened:
        stream.close()
