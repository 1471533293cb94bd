"""Calls find a broker that answers, and the one that leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mq.client.wiring import ROUTE_AGE_S_MAX, Connection, back_off_s, parse_servers
from mq.errors import (
    IllegalConfig,
    IllegalTopic,
    NotLeader,
    TopicExists,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1.admin_pb2 import CreateTopicRequest, TopicInfo
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteRequest, RouteResponse, TopicRoute
from tests.unit.client.virtual_time import run

Answer = Callable[[str, Any], Any]


class Asked(Connection):
    """A connection whose brokers are a function of the address and the request."""

    def __init__(self, servers: str, answer: Answer, zone: str = "") -> None:
        super().__init__(servers, zone)
        self.asked: list[str] = []
        self.timeouts: list[float] = []
        self._reply = answer

    async def _ask(
        self, address: str, service: str, method: str, request: Any, timeout_s: float, **_: Any
    ) -> Any:
        assert service.endswith("Service")
        assert method
        self.asked.append(address)
        self.timeouts.append(timeout_s)
        result = self._reply(address, request)
        if result is None:
            await asyncio.sleep(timeout_s)
            raise Unreachable(f"{address}: DEADLINE_EXCEEDED")
        if isinstance(result, Exception):
            raise result
        return result


def create(connection: Connection, timeout_s: float = 5.0, **options: Any) -> Any:
    request = CreateTopicRequest(topic="t")
    return connection.call("AdminService", "CreateTopic", request, timeout_s, **options)


def routes(leader: str, topics: tuple[str, ...] = ("t",)) -> RouteResponse:
    nodes = [NodeRoute(node_id=one, address=f"{one}:1") for one in "abc"]
    return RouteResponse(
        broker_sets=[BrokerSet(name="set-0", leader_id=leader, nodes=nodes)],
        topics=[TopicRoute(topic=topic, write_queues=8) for topic in topics],
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


@pytest.mark.parametrize("wrong", ["", " , ", "a", "a:", ":1", "a:b", ["a:1", "b"]])
def test_servers_that_are_none_are_refused(wrong: str | list[str]) -> None:
    with pytest.raises(IllegalConfig, match="host:port"):
        parse_servers(wrong)


def test_pauses_grow_up_to_half_a_second() -> None:
    assert [back_off_s(n) for n in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert back_off_s(10_000) == 0.5


def test_who_does_not_lead_says_who_does_and_that_is_remembered() -> None:
    connection = Asked(
        "a:1,b:2", lambda address, _: TopicInfo() if address == "c:3" else NotLeader("c", "c:3")
    )

    async def scenario() -> float:
        await create(connection)
        await create(connection)
        return asyncio.get_running_loop().time()

    assert run(scenario()) == 1000.0  # without a pause
    assert connection.asked == ["a:1", "c:3", "c:3"]


def test_who_is_not_reached_is_followed_by_the_next_one() -> None:
    connection = Asked(
        "a:1,b:2,c:3", lambda address, _: TopicInfo() if address == "c:3" else Unreachable(address)
    )
    run(create(connection))
    assert connection.asked == ["a:1", "b:2", "c:3"]


def test_when_nobody_answers_all_are_tried_until_the_time_is_over() -> None:
    connection = Asked("a:1,b:2", lambda address, _: Unreachable(address))

    async def scenario() -> float:
        with pytest.raises(Unreachable, match="within 2 s; tried a:1, b:2"):
            await create(connection, 2.0)
        return asyncio.get_running_loop().time() - 1000

    assert 1.4 < run(scenario()) <= 2.0
    assert 8 < len(connection.asked) < 20


def test_when_nobody_leads_until_the_time_is_over_the_error_says_so() -> None:
    connection = Asked("a:1,b:2", lambda *_: NotLeader(None, None))

    async def scenario() -> None:
        with pytest.raises(NotLeader):
            await create(connection, 1.0)

    run(scenario())


def test_brokers_that_point_at_each_other_are_asked_with_pauses() -> None:
    connection = Asked(
        "a:1,b:2", lambda address, _: NotLeader("x", "b:2" if address == "a:1" else "a:1")
    )

    async def scenario() -> None:
        with pytest.raises(NotLeader):
            await create(connection, 2.0)

    run(scenario())
    assert len(connection.asked) < 20


def test_an_answer_is_an_answer_even_if_it_is_an_error() -> None:
    connection = Asked("a:1,b:2", lambda *_: TopicExists("t"))

    async def scenario() -> None:
        with pytest.raises(TopicExists):
            await create(connection)

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
    run(create(connection, attempt_timeout_s=0.5))
    assert connection.asked == ["a:1", "b:2"]
    assert connection.timeouts[0] == 0.5


def test_the_leader_is_found_by_asking_anybody_and_waited_for() -> None:
    leaders = iter(["", "", "b"])
    connection = Asked("a:1", lambda *_: routes(next(leaders)))
    assert run(connection.leader()) == "b:1"
    assert set(connection.servers) == {"a:1", "b:1", "c:1"}


def test_a_route_is_asked_for_once_in_half_a_minute() -> None:
    connection = Asked("a:1", lambda *_: routes("a"))

    async def scenario() -> None:
        first = await connection.route("t")
        assert (first.topic.write_queues, first.leader) == (8, "a:1")
        await connection.route("t")
        assert len(connection.asked) == 1
        connection.not_leader("a:1", "b:1")
        assert (await connection.route("t")).leader == "b:1"
        assert len(connection.asked) == 1
        await asyncio.sleep(ROUTE_AGE_S_MAX + 1)
        await connection.route("t")
        assert len(connection.asked) == 2
        connection.forget_route("t")
        await connection.route("t")
        assert len(connection.asked) == 3

    run(scenario())


def test_a_topic_that_one_broker_does_not_know_yet_may_be_known_to_the_leader() -> None:
    connection = Asked("a:1", lambda address, _: routes("b", ("t",) if address == "b:1" else ()))
    assert run(connection.route("t")).topic.topic == "t"
    assert connection.asked == ["a:1", "b:1"]


def test_a_topic_that_nobody_knows_is_not_found_and_only_producers_create_it() -> None:
    requests: list[RouteRequest] = []

    def answer(_: str, request: RouteRequest) -> RouteResponse:
        requests.append(request)
        return routes("a", ())

    async def scenario() -> None:
        connection = Asked("a:1", answer)
        with pytest.raises(TopicNotFound, match="topic t"):
            await connection.route("t")
        with pytest.raises(TopicNotFound):
            await connection.route("t", create=True)
        with pytest.raises(IllegalTopic):
            await connection.route("no spaces")

    run(scenario())
    assert [request.create_missing for request in requests] == [False, False, True]


def test_a_leader_that_fails_is_not_believed_any_more() -> None:
    connection = Asked("a:1", lambda *_: routes("b"))

    async def scenario() -> None:
        assert await connection.leader() == "b:1"
        connection.failed("a:1")
        assert await connection.leader() == "b:1"
        assert len(connection.asked) == 1
        connection.failed("b:1")
        await connection.leader()
        assert len(connection.asked) == 2
        assert connection.asked[1] != "b:1"

    run(scenario())


def test_a_leader_that_says_it_is_none_is_not_believed_any_more() -> None:
    connection = Asked("a:1", lambda *_: routes("b"))

    async def scenario() -> None:
        assert await connection.leader() == "b:1"
        assert connection.not_leader("c:1") == "b:1"
        assert connection.not_leader("b:1") == ""
        await connection.leader()
        assert len(connection.asked) == 2

    run(scenario())


def test_a_closed_connection_opens_no_channels() -> None:
    async def scenario() -> None:
        connection = Connection("127.0.0.1:1")
        await connection.close()
        with pytest.raises(Unreachable, match="closed"):
            await create(connection, 0.1)

    asyncio.run(scenario())
