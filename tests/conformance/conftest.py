"""One broker for all of the suite, for each client on each transport: a test has topics and groups
of its own.

Python on both transports and Go over TLS run every test. Java and Node.js are here for their
HTTP/2: they run the tests marked `every_client`, each with the property of the transport that it
shows, and the others with `--every-client` (`make conformance`). So does a client in a namespace,
for which nothing may be different but what is of the whole cluster.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from tests.conformance.calls import CHANNEL_OPTIONS, Calls
from tests.conformance.streams import SubscribeStream
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Files
from tests.support.foreign import ForeignChannel, programs
from tests.support.namespaced import in_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _pytest.mark import ParameterSet

MISTAKE = "a request failed by a mistake of the broker"
# By default Python's channels to one address share a connection.
OWN_CONNECTION = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]


class Ends(NamedTuple):
    """Of a connection: the transport of the broker, and the language of the client."""

    transport: str
    client: str
    # plain, tls, or namespace: plain, with local names.
    security: str = "plain"


ENDS = [Ends("grpcio", "python"), Ends("mq", "python"), Ends("mq", "go", "tls")]
NAMESPACE_ENDS = Ends("mq", "python", "namespace")
MORE_ENDS = [Ends("mq", "java"), Ends("mq", "node"), NAMESPACE_ENDS]
# About brokers, their log and topics of their own, or the longest names: not for local names.
OF_THE_CLUSTER = frozenset(
    f"test_{name}"
    for name in (
        "a_bad_batch_fails_alone",
        "a_bad_commit_is_refused_as_a_whole",
        "a_bad_request_is_refused_by_name_and_changes_nothing",
        "a_bad_send_is_refused_by_name_and_changes_nothing",
        "a_bad_start_is_refused_by_name_and_nothing_begins",
        "a_client_that_does_not_read_its_answers_is_not_read_either",
        "a_greeting_is_answered_with_the_set_and_its_topics",
        "an_illegal_greeting_is_refused",
        "bad_requests_are_refused_by_name",
        "behind_the_end_of_the_log_there_is_nothing",
        "delay_lanes_cannot_be_read_or_written",
        "every_legal_name_and_number_of_queues_is_taken",
        "halves_that_make_no_sense_are_refused_and_the_stream_goes_on",
        "sets_are_added_changed_and_removed",
        "sets_that_never_answered_are_in_no_route",
        "the_connections_of_a_node_are_listed",
        "the_log_is_read_in_pieces_that_join",
        "topics_come_again_only_when_they_have_changed",
        "without_an_answer_it_is_kept_in_the_give_up_topic",
    )
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ends" in metafunc.fixturenames:
        marked = metafunc.definition.get_closest_marker("every_client") is not None
        is_for_all = marked or metafunc.config.getoption("every_client")
        chosen = [*ENDS, *MORE_ENDS] if is_for_all else ENDS
        if metafunc.function.__name__ in OF_THE_CLUSTER:
            chosen = [one for one in chosen if one != NAMESPACE_ENDS]
        parameters = [*map(_parameter, chosen)]
        metafunc.parametrize("ends", parameters, indirect=True, scope="session")


def _parameter(ends: Ends) -> ParameterSet:
    """Skipped by a mark, which pytest reports once a file, where a toolchain is not installed."""
    absent = programs.missing(ends.client) if ends.client != "python" else ""
    marks = [pytest.mark.skip(reason=f"{absent} is not installed")] if absent else []
    return pytest.param(ends, id="-".join(ends), marks=marks)


@pytest.fixture(scope="session")
def ends(request: pytest.FixtureRequest) -> Ends:
    """Skips the test where the packages of the client cannot be had."""
    found: Ends = request.param
    if found.client != "python":
        programs.command(found.client)
    return found


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Authority(tmp_path_factory.mktemp("authority")).files()


@pytest.fixture(scope="session")
def connect(ends: Ends, certificate: Files) -> Callable[[str], grpc.Channel]:
    """Opens a channel to an address, on a connection of its own."""
    if ends == NAMESPACE_ENDS:
        return lambda address: in_namespace(
            grpc.insecure_channel(address, options=OWN_CONNECTION), "acme"
        )
    if ends.client == "python":
        return lambda address: grpc.insecure_channel(address, options=OWN_CONNECTION)
    command = programs.command(ends.client)
    authority = [certificate.ca] if ends.security == "tls" else []
    return lambda address: ForeignChannel(command, address, *authority)


@pytest.fixture(scope="session")
def broker_flags(ends: Ends, certificate: Files) -> list[str]:
    flags = {"--broker-transport": ends.transport}
    if ends.security == "tls":
        flags |= {"--broker-tls": "required", **certificate.flags("broker")}
    return [*itertools.chain.from_iterable(flags.items())]


@pytest.fixture(scope="session")
def broker(
    broker_flags: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("conformance") / "data"
    with BrokerProcess(data, *broker_flags) as process:
        yield process
        assert process.is_running, process.output()
        mistakes = [line["exception"] for line in process.log() if line["event"] == MISTAKE]
        assert not mistakes, mistakes[0]
        assert "Traceback" not in process.output(), process.output()


@pytest.fixture(scope="session")
def channel(
    broker: BrokerProcess, connect: Callable[[str], grpc.Channel]
) -> Iterator[grpc.Channel]:
    with connect(broker.address) as opened:
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
