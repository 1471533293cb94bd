"""One broker for all of the suite, for each client on each transport: a test has topics and groups
of its own.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from tests.conformance.calls import CHANNEL_OPTIONS, Calls
from tests.conformance.streams import SubscribeStream
from tests.support.broker_process import BrokerProcess
from tests.support.foreign import ForeignChannel, programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MISTAKE = "a request failed by a mistake of the broker"
# By default Python's channels to one address share a connection.
OWN_CONNECTION = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]


class Ends(NamedTuple):
    """Of a connection: the transport of the broker, and the language of the client."""

    transport: str
    client: str

    def connect(self, address: str) -> grpc.Channel | ForeignChannel:
        if self.client != "python":
            return ForeignChannel(programs.command(self.client), address)
        return grpc.insecure_channel(address, options=OWN_CONNECTION)


ENDS = [
    Ends("grpcio", "python"),
    Ends("mq", "python"),
    *(Ends("mq", language) for language in programs.LANGUAGES),
]


@pytest.fixture(scope="session", params=ENDS, ids="-".join)
def ends(request: pytest.FixtureRequest) -> Ends:
    """Skips the test where the client cannot be built."""
    found: Ends = request.param
    if found.client != "python":
        programs.command(found.client)
    return found


@pytest.fixture(scope="session")
def connect(ends: Ends) -> Callable[[str], grpc.Channel]:
    """Opens a channel to an address, on a connection of its own."""
    return ends.connect


@pytest.fixture(scope="session")
def broker(ends: Ends, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("conformance") / "data"
    with BrokerProcess(data, "--broker-transport", ends.transport) as process:
        yield process
        assert process.is_running, process.output()
        mistakes = [line["exception"] for line in process.log() if line["event"] == MISTAKE]
        assert not mistakes, mistakes[0]
        assert "Traceback" not in process.output(), process.output()


@pytest.fixture(scope="session")
def channel(ends: Ends, broker: BrokerProcess) -> Iterator[grpc.Channel]:
    with ends.connect(broker.address) as opened:
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
