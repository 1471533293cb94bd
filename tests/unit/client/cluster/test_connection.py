"""Calls find a broker that answers, and the one that leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mq.client.cluster.channels import Channels
from mq.client.cluster.connection import Connection, SetConnection, parse_servers
from mq.client.cluster.retry import back_off_s
from mq.client.messages import QueueRef
from mq.errors import (
    ClientClosed,
    IllegalConfig,
    IllegalRequest,
    NoLeader,
    NotLeader,
    TopicExists,
    Unauthenticated,
    Unreachable,
)
from mq.wire.v1.admin_pb2 import CreateTopicRequest, TopicInfo
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse, TopicRoute
from tests.unit.client.virtual_time import run

Answer = Callable[[str, Any], Any]


class Script(Channels):
    """Brokers that are a function of the address and the request."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.timeouts: list[float] = []
        self._reply = answer

    async def ask(
        self, address: str, request: Any, timeout_s: float, *, raw_response: bool = False
    ) -> Any:
        assert not raw_response
        self.asked.append(address)
        self.timeouts.append(timeout_s)
        result = self._reply(address, request)
        if result is None:
            await asyncio.sleep(timeout_s)
            raise Unreachable(f"{address}: DEADLINE_EXCEEDED")
        if isinstance(result, Exception):
            raise result
        return result


class Asked(Connection):
    """A connection to such brokers."""

    def __init__(self, servers: str, answer: Answer, zone: str = "") -> None:
        super().__init__(servers, zone)
        self.channels = self.script = Script(answer)

    @property
    def asked(self) -> list[str]:
        return self.script.asked


def create(connection: Connection | SetConnection, timeout_s: float = 5.0, **options: Any) -> Any:
    request = CreateTopicRequest(topic="t")
    return connection.call(request, timeout_s, **options)


def routes(
    leader: str, topics: tuple[str, ...] = ("t",), *, term: int = 1, sets: str = "s"
) -> RouteResponse:
    """Of each set: nodes a, b, c, which the others of several sets have with a name in front."""

    def node(name: str, one: str) -> NodeRoute:
        return NodeRoute(node_id=one, address=f"{one}:1" if len(sets) == 1 else f"{name}{one}:1")

    return RouteResponse(
        broker_sets=[
            BrokerSet(name=name, leader_id=leader, term=term, nodes=[node(name, x) for x in "abc"])
            for name in sets
        ],
        topics=[
            TopicRoute(
                topic=topic,
                broker_set=name,
                write_queues=2,
                read_queues=2,
                is_readable=True,
                is_writable=True,
            )
            for topic in topics
            for name in sets
        ],
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a:1", ("a:1",)),
        (" a:1, b:2 ,a:1,", ("a:1", "b:2")),
        (["a:1", "[::1]:2"], ("a:1", "[::1]:2")),
    ],
)
def test_servers_are_given_in_several_ways(given: str | list[str], found: tuple[str, ...]) -> None:
    assert parse_servers(given) == found


@pytest.mark.parametrize("wrong", ["", " , ", "a", "a:", ":1", "a:b", "http://a:1", ["a:1", "b"]])
def test_illegal_servers_are_refused(wrong: str | list[str]) -> None:
    with pytest.raises(IllegalConfig, match="host:port"):
        parse_servers(wrong)


def test_pauses_grow_up_to_half_a_second() -> None:
    assert [back_off_s(n) for n in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert back_off_s(10_000) == 0.5


def test_a_redirect_to_the_leader_is_remembered() -> None:
    connection = Asked(
        "a:1,b:2", lambda address, _: TopicInfo() if address == "c:3" else NotLeader("c", "c:3")
    )

    async def scenario() -> float:
        await create(connection.of("s"))
        await create(connection.of("s"))
        return asyncio.get_running_loop().time()

    assert run(scenario()) == 1000.0  # without a pause
    assert connection.asked == ["a:1", "c:3", "c:3"]


def test_an_unreachable_broker_is_followed_by_the_next_one() -> None:
    connection = Asked(
        "a:1,b:2,c:3", lambda address, _: TopicInfo() if address == "c:3" else Unreachable(address)
    )
    run(create(connection.of("s")))
    assert connection.asked == ["a:1", "b:2", "c:3"]


def test_all_servers_are_tried_until_the_deadline() -> None:
    connection = Asked("a:1,b:2", lambda address, _: Unreachable(address))

    async def scenario() -> float:
        with pytest.raises(Unreachable, match="within 2 s; tried a:1, b:2"):
            await create(connection.of("s"), 2.0)
        return asyncio.get_running_loop().time() - 1000

    assert 1.4 < run(scenario()) <= 2.0
    assert 8 < len(connection.asked) < 20


def test_a_deadline_without_a_leader_says_so() -> None:
    connection = Asked("a:1,b:2", lambda *_: NotLeader(None, None))

    async def scenario() -> None:
        with pytest.raises(NoLeader):
            await create(connection.of("s"), 1.0)

    run(scenario())


def test_brokers_that_point_at_each_other_are_asked_with_pauses() -> None:
    connection = Asked(
        "a:1,b:2", lambda address, _: NotLeader("x", "b:2" if address == "a:1" else "a:1")
    )

    async def scenario() -> None:
        with pytest.raises(NoLeader):
            await create(connection.of("s"), 2.0)

    run(scenario())
    assert len(connection.asked) < 20


def test_an_answer_is_an_answer_even_if_it_is_an_error() -> None:
    connection = Asked("a:1,b:2", lambda *_: TopicExists("t"))

    async def scenario() -> None:
        with pytest.raises(TopicExists):
            await create(connection.of("s"))

    run(scenario())
    assert connection.asked == ["a:1"]


def test_a_server_that_is_named_is_asked_and_no_other() -> None:
    connection = Asked("a:1,b:2", lambda *_: Unreachable("no"))

    async def scenario() -> None:
        with pytest.raises(Unreachable):
            await create(connection, 1.0, server="z:9")

    run(scenario())
    assert set(connection.asked) == {"z:9"}


def test_a_frozen_broker_is_left_after_one_attempt() -> None:
    connection = Asked("a:1,b:2", lambda address, _: None if address == "a:1" else TopicInfo())
    run(create(connection.of("s"), attempt_s=0.5))
    assert connection.asked == ["a:1", "b:2"]
    assert connection.script.timeouts[0] == 0.5


def test_the_leader_is_found_by_asking_anybody_and_waited_for() -> None:
    leaders = iter(["", "", "b"])
    connection = Asked("a:1", lambda *_: routes(next(leaders)))
    assert run(connection.of("s").leader()) == "b:1"
    assert set(connection.servers) == {"a:1", "b:1", "c:1"}


@pytest.mark.parametrize("hint", [None, "a:1", "b:1"])
def test_a_broker_without_topics_yet_is_followed_by_the_next_one(hint: str | None) -> None:
    """It has just started, and knows of no leader, or only of one that has just started."""

    def answer(address: str, _: Any) -> Any:
        if address != "c:1":
            return NotLeader("n0" if hint else None, hint)
        return routes("c")

    async def scenario() -> None:
        connection = Asked("a:1,b:1,c:1", answer)
        assert (await connection.topology.locate("t")).sets == ["s"]
        assert asyncio.get_running_loop().time() < 1000.1
        assert len(connection.script.asked) <= 4

    run(scenario())


def test_a_leader_that_fails_is_not_believed_again() -> None:
    connection = Asked("a:1", lambda *_: routes("b"))

    async def scenario() -> None:
        line = connection.of("s")
        assert await line.leader() == "b:1"
        line.failed("a:1")
        assert await line.leader() == "b:1"
        assert len(connection.asked) == 1
        line.failed("b:1")
        await line.leader()
        assert len(connection.asked) == 2
        assert connection.asked[1] != "b:1"

    run(scenario())


def test_a_leader_that_denies_its_leadership_is_not_believed_again() -> None:
    connection = Asked("a:1", lambda *_: routes("b"))

    async def scenario() -> None:
        line = connection.of("s")
        assert await line.leader() == "b:1"
        assert line.not_leader("c:1") == "b:1"
        assert line.not_leader("b:1") == ""
        await line.leader()
        assert len(connection.asked) == 2

    run(scenario())


def test_a_report_of_an_older_term_does_not_replace_the_leader() -> None:
    connection = Asked("a:1", lambda *_: routes("b", term=5))

    async def scenario() -> None:
        line = connection.of("s")
        assert await line.leader() == "b:1"
        connection.learn(routes("a", term=4))
        assert line.known_leader == "b:1"
        connection.learn(routes("c", term=6))
        assert line.known_leader == "c:1"
        # Made anew, its terms begin again: without a leader any answer is a place to start.
        line.failed("c:1")
        connection.learn(routes("a", term=1))
        assert line.known_leader == "a:1"

    run(scenario())


def test_one_broker_tells_of_all_sets_and_each_has_its_own_leader() -> None:
    connection = Asked("xa:1", lambda *_: routes("b", sets="xy"))

    async def scenario() -> None:
        assert [one.name for one in await connection.sets()] == ["x", "y"]
        assert [await one.leader() for one in await connection.sets()] == ["xb:1", "yb:1"]
        route = await connection.topology.locate("t")
        assert route.readable == [QueueRef("t", at, name) for name in "xy" for at in (0, 1)]
        assert set(connection.of("y").servers) == {"ya:1", "yb:1", "yc:1"}
        assert (await connection.topology.queue("t", 1, "y")) == QueueRef("t", 1, "y")
        with pytest.raises(IllegalRequest, match="x, y: say which broker set"):
            await connection.topology.queue("t", 1)

    run(scenario())


def test_the_leader_of_a_set_is_asked_of_its_own_brokers_first_then_of_others() -> None:
    def answer(address: str, _: Any) -> Any:
        return Unreachable(address) if address.startswith("y") else routes("b", sets="xy")

    connection = Asked("xa:1", answer)

    async def scenario() -> None:
        await connection.sets()
        line = connection.of("y")
        line.failed("yb:1")
        del connection.asked[:]
        await line.leader(30)
        assert {one[0] for one in connection.asked[:3]} == {"y"}
        assert connection.asked[3][0] == "x"

    run(scenario())


STRANGER = Unauthenticated("key abc is not known")


def test_routes_are_told_by_a_named_broker_that_knows_the_caller() -> None:
    """Each set has users of its own."""

    def answer(address: str, _: Any) -> Any:
        return routes("b", sets="xy") if address == "ya:1" else STRANGER

    connection = Asked("xa:1,xb:1,ya:1", answer)

    async def scenario() -> None:
        assert len(await connection.sets()) == 2
        assert connection.asked == ["xa:1", "xb:1", "ya:1"]
        assert asyncio.get_running_loop().time() == 1000.0
        # Those that refused come last for the next one.
        ranking = connection.servers.ranking(asyncio.get_running_loop().time())
        assert ranking[-2:] == ["xa:1", "xb:1"]

    run(scenario())


def test_a_caller_that_all_named_brokers_refuse_is_told_so_at_once() -> None:
    connection = Asked("a:1,b:1,c:1", lambda *_: STRANGER)

    async def scenario() -> None:
        with pytest.raises(Unauthenticated, match="not known"):
            await connection.sets()
        assert asyncio.get_running_loop().time() == 1000.0

    run(scenario())
    assert sorted(connection.asked) == ["a:1", "b:1", "c:1"]


def test_a_frozen_broker_delays_a_refusal_for_moments_only() -> None:
    connection = Asked("a:1,b:1", lambda address, _: STRANGER if address == "a:1" else None)

    async def scenario() -> None:
        with pytest.raises(Unauthenticated):
            await connection.brokers(timeout_s=60)
        assert asyncio.get_running_loop().time() <= 1002.0

    run(scenario())


def test_what_is_no_question_for_routes_is_refused_by_the_first_broker() -> None:
    """A wrong password is not tried everywhere."""
    connection = Asked("a:1,b:1", lambda *_: STRANGER)

    async def scenario() -> None:
        for target in (connection, connection.of("s")):
            with pytest.raises(Unauthenticated):
                await create(target)

    run(scenario())
    assert connection.asked == ["a:1", "a:1"]


def test_a_closed_connection_opens_no_channels() -> None:
    async def scenario() -> None:
        connection = Connection("127.0.0.1:1")
        await connection.close()
        with pytest.raises(ClientClosed, match="closed"):
            await create(connection, 0.1)

    asyncio.run(scenario())
