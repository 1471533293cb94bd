"""A client that reaches no broker, or no leader, says which addresses it tried, what each answered
and what to do; while it waits it says so once in the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from mq.client.cluster.connection import LOG_AFTER_S, Connection
from mq.errors import Code, NoLeader, NotLeader, Unreachable
from mq.wire.v1.admin_pb2 import TopicInfo
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse
from tests.unit.client.cluster.test_connection import Asked, create
from tests.unit.client.virtual_time import run

LOGGER = "mq.client.cluster"


def down(address: str) -> Unreachable:
    return Unreachable(f"{address}: connection refused")


def three(leader: str = "", *, known: str = "abc", term: int = 1) -> RouteResponse:
    """Nodes a, b, c of set s; those that are not `known` have no address."""
    nodes = [NodeRoute(node_id=one, address=f"{one}:1" if one in known else "") for one in "abc"]
    return RouteResponse(
        broker_sets=[BrokerSet(name="s", leader_id=leader, term=term, nodes=nodes)]
    )


class Cluster:
    """Of three nodes, some up; who is up says who leads, by the others' word."""

    def __init__(self, up: str, leader: str = "", *, known: str = "abc") -> None:
        self.up = up
        self.leader = leader
        self.known = known
        self.is_informed = True

    def __call__(self, address: str, request: Any) -> Any:
        if address[0] not in self.up:
            return down(address)
        if request.DESCRIPTOR.name == "RouteRequest" and (self.is_informed or not request.topics):
            return three(self.leader, known=self.known)
        if address[0] == self.leader:
            return TopicInfo()
        return NotLeader(self.leader or None, f"{self.leader}:1" if self.leader else None)


def trouble(connection: Connection, **options: Any) -> Unreachable:
    """Of a call to the leader of the set."""

    async def scenario() -> Unreachable:
        with pytest.raises(Unreachable) as caught:
            await create(connection.of("s"), 2.0, **options)
        return caught.value

    return run(scenario())


def test_every_address_is_named_with_the_reason_and_what_to_do() -> None:
    reasons = {"a:1": "connection refused", "b:1": "no such host"}
    connection = Asked("a:1,b:1", lambda address, _: Unreachable(f"{address}: {reasons[address]}"))
    error = trouble(connection)
    assert type(error) is Unreachable
    assert error.retryable
    assert str(error) == (
        "no broker answered within 2 s; tried a:1 (connection refused), b:1 (no such host). "
        "Is a broker running there? `mq server` starts one"
    )


def test_a_lost_majority_names_the_nodes_that_are_up_and_those_that_are_not() -> None:
    connection = Asked("c:1", Cluster(up="c"))

    async def learn() -> None:
        await connection.brokers()

    run(learn())
    error = trouble(connection)
    assert isinstance(error, NoLeader)
    assert (error.code, error.retryable) == (Code.NO_LEADER, True)
    assert str(error) == (
        "s has no leader: 1 of 3 nodes up (c); a, b do not answer "
        "(a:1: connection refused; b:1: connection refused). "
        "A leader needs 2 of 3: start 1 more of them"
    )


def test_a_node_whose_address_is_not_known_counts_as_one_that_does_not_answer() -> None:
    """It was not up since the others were started."""
    connection = Asked("c:1", Cluster(up="c", known="c"))

    async def learn() -> None:
        await connection.brokers()

    run(learn())
    assert str(trouble(connection)).startswith(
        "s has no leader: 1 of 3 nodes up (c); a, b do not answer (a: its address is not known; "
    )


def test_a_node_alone_that_has_not_read_its_log_yet_says_the_same() -> None:
    """Started without the others it does not know its topics, and refuses to tell of them."""
    cluster = Cluster(up="c")
    cluster.is_informed = False
    connection = Asked("c:1", cluster)

    async def scenario() -> None:
        with pytest.raises(NoLeader, match=r"s has no leader: 1 of 3 nodes up \(c\); a, b do not"):
            await connection.topology.locate("t", timeout_s=2.0)

    run(scenario())


def test_a_wait_for_a_leader_raises_the_same_error() -> None:
    connection = Asked("a:1,b:1,c:1", Cluster(up="bc"))

    async def scenario() -> None:
        with pytest.raises(
            NoLeader, match=r"2 of 3 nodes up \(b, c\); a does not answer"
        ) as caught:
            await connection.of("s").leader(2.0)
        assert "has been elected yet" in str(caught.value)

    run(scenario())


def test_nodes_that_were_not_asked_yet_are_asked_before_the_error_tells_of_them() -> None:
    connection = Asked("c:1", Cluster(up="bc"))

    async def scenario() -> None:
        with pytest.raises(NoLeader) as caught:
            await connection.of("s").leader(0.01)
        assert str(caught.value).startswith(
            "s has no leader: 2 of 3 nodes up (b, c); a does not answer (a:1: connection refused). "
        )

    run(scenario())


def test_a_log_line_counts_no_node_as_down_that_was_not_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = Asked("c:1", Cluster(up="bc"))

    async def scenario() -> None:
        await connection.brokers()
        await asyncio.sleep(LOG_AFTER_S)
        connection.of("s").not_leader("c:1")

    run(scenario())
    assert caplog.messages == [
        (
            "s has no leader: 1 of 3 nodes up (c); a, b were not asked yet. "
            "A leader needs 2 of 3; still trying"
        )
    ]


def test_a_leader_that_does_not_answer_is_named_while_the_others_believe_in_it() -> None:
    connection = Asked("a:1,b:1,c:1", Cluster(up="bc", leader="a"))
    error = trouble(connection)
    assert type(error) is Unreachable
    assert str(error).startswith("the leader of s, at a:1, does not answer (connection refused)")


def test_silence_of_all_brokers_is_logged_once_after_a_second_and_once_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(up="")
    connection = Asked("a:1,b:1", cluster)

    async def scenario() -> None:
        caplog.set_level(logging.INFO, LOGGER)
        with pytest.raises(Unreachable):
            await create(connection, 0.9 * LOG_AFTER_S)
        assert caplog.messages == []
        for _ in range(3):
            with pytest.raises(Unreachable):
                await create(connection, 10.0)
        assert caplog.messages == [
            "no broker answers, still trying: a:1 (connection refused), b:1 (connection refused)"
        ]
        assert caplog.records[0].levelno == logging.WARNING
        cluster.up, cluster.leader = "a", "a"
        await create(connection)
        await create(connection)
        assert len(caplog.messages) == 2
        assert caplog.messages[1].startswith("a:1 answers, after ")

    run(scenario())


def test_a_missing_leader_is_logged_once_after_a_second_and_once_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(up="c")
    connection = Asked("a:1,b:1,c:1", cluster)

    async def scenario() -> None:
        caplog.set_level(logging.INFO, LOGGER)
        line = connection.of("s")
        for _ in range(3):
            with pytest.raises(NoLeader):
                await line.leader(5.0)
        assert [one.levelno for one in caplog.records] == [logging.WARNING]
        assert caplog.messages[0].startswith("s has no leader: 1 of 3 nodes up (c); a, b do not")
        assert caplog.messages[0].endswith("; still trying")
        cluster.up, cluster.leader = "bc", "b"
        assert await line.leader(5.0) == "b:1"
        assert caplog.messages[1:] == ["s has a leader again, at b:1"]

    run(scenario())


def test_a_fail_over_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(up="bc")
    connection = Asked("a:1,b:1,c:1", cluster)

    async def elect() -> None:
        await asyncio.sleep(0.5 * LOG_AFTER_S)
        cluster.leader = "b"

    async def scenario() -> None:
        caplog.set_level(logging.INFO, LOGGER)
        electing = asyncio.create_task(elect())
        assert await connection.of("s").leader(5.0) == "b:1"
        await electing

    run(scenario())
    assert caplog.messages == []
