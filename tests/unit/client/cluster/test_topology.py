"""What is believed of a topic when brokers say different things, and when they are asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq.client.cluster.topology import ROUTE_AGE_S_MAX, Route, TopicParts
from mq.client.messages import QueueRef
from mq.errors import IllegalTopic, TopicNotFound
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse, TopicRoute
from tests.unit.client.cluster.test_connection import Asked, routes
from tests.unit.client.producer.manual_accumulator import part
from tests.unit.client.virtual_time import run


def queues(parts: tuple[TopicRoute, ...]) -> dict[str, int]:
    return {one.broker_set: one.write_queues if one.is_writable else 0 for one in parts}


class Topic(TopicParts):
    def told(self, parts: list[TopicRoute], known_sets: set[str], now_s: float) -> dict[str, int]:
        """What is believed after the answer of any broker: the numbers of writable queues."""
        self.learn(parts, known_sets, now_s)
        return queues(self.believed())


def test_the_newest_answer_counts() -> None:
    topic = Topic()
    assert topic.told([part(4, "b"), part(2, "a")], {"a", "b"}, 0.0) == {"a": 2, "b": 4}
    assert topic.told([part(4, "b")], {"a", "b"}, 1.0) == {"b": 4}
    assert topic.told([part(8, "b")], {"a", "b"}, 2.0) == {"b": 8}


def test_a_leader_knows_its_own_part_better_than_others_for_some_seconds() -> None:
    topic = Topic()
    stale, both = [part(4, "a"), part(4, "b")], {"a", "b"}
    topic.told(stale, both, 0.0)
    topic.learn_from_leader("b", part(4, "b", is_writable=False), 1.0)
    assert queues(topic.believed()) == {"a": 4, "b": 0}
    assert topic.told(stale, both, 1.1) == {"a": 4, "b": 0}
    topic.learn_from_leader("a", None, 1.2)
    assert queues(topic.believed()) == {"b": 0}
    assert topic.told(stale, both, 5.9) == {"b": 0}
    assert topic.told(stale, both, 6.1) == {"b": 4}
    assert topic.told(stale, both, 6.3) == {"a": 4, "b": 4}


def test_the_word_of_a_leader_serves_for_half_a_minute_or_until_it_is_in_doubt() -> None:
    topic = Topic()
    topic.learn_from_leader("a", part(4, "a"), 0.0)
    assert topic.leader_said("a", ROUTE_AGE_S_MAX) == part(4, "a")
    assert topic.leader_said("a", ROUTE_AGE_S_MAX + 1) is None
    assert topic.leader_said("b", 0.0) is None
    topic.expire()
    assert topic.leader_said("a", 1.0) is None
    assert queues(topic.believed()) == {"a": 4}, "until somebody says otherwise"


def test_a_set_that_the_broker_has_not_heard_of_is_still_there_unless_it_stays_unknown() -> None:
    """Keys must not change their queues because a broker has just started."""
    topic = Topic()
    topic.told([part(4, "a"), part(4, "b")], {"a", "b"}, 0.0)
    # All brokers were killed when the route was as old as it may be, and start within a minute.
    for now_s in range(1, int(ROUTE_AGE_S_MAX) + 60):
        assert topic.told([part(4, "a")], {"a"}, now_s) == {"a": 4, "b": 4}
    assert topic.told([part(4, "a")], {"a"}, 121.0) == {"a": 4}


def test_a_part_that_a_known_set_no_longer_has_is_removed() -> None:
    topic = Topic()
    topic.told([part(4, "a"), part(4, "b")], {"a", "b"}, 0.0)
    assert topic.told([part(4, "a")], {"a", "b"}, 0.1) == {"a": 4}


def readable(name: str, count: int = 2, *, is_readable: bool = True) -> TopicRoute:
    return TopicRoute(topic="t", broker_set=name, read_queues=count, is_readable=is_readable)


def test_a_sticky_part_is_added_by_any_broker_and_removed_by_none() -> None:
    """A consumer must not leave a set because a lagging broker does not list its topic."""
    topic = Topic()
    topic.learn([readable("a")], {"a", "b"}, 0.0)
    topic.learn([readable("b")], {"a", "b"}, 1.0)
    assert topic.believed() == (readable("b"),)
    assert topic.sticky() == (readable("a"), readable("b"))
    topic.learn([], {"a", "b"}, 1_000.0)
    topic.learn_from_leader("b", None, 1_000.0)
    assert topic.sticky() == (readable("a"), readable("b")), "not confirmed"
    topic.confirm("b", None)
    assert topic.sticky() == (readable("a"),)
    topic.learn([readable("b")], {"a", "b"}, 1_000.1)
    assert topic.sticky() == (readable("a"), readable("b")), "any broker adds it again, at once"


@pytest.mark.parametrize("less", [readable("a", is_readable=False), readable("a", 0)])
def test_a_sticky_part_stays_readable_until_the_set_itself_says_otherwise(less: TopicRoute) -> None:
    topic = Topic()
    topic.learn([less], {"a"}, 0.0)
    assert topic.sticky() == (less,)
    topic.learn([readable("a")], {"a"}, 1.0)
    topic.learn([less], {"a"}, 2.0)
    assert (topic.believed(), topic.sticky()) == ((less,), (readable("a"),))
    topic.confirm("a", less)
    assert topic.sticky() == (less,)


def test_the_answer_of_a_set_replaces_its_own_sticky_parts_only() -> None:
    async def scenario() -> None:
        topology = Asked("a:1", lambda *_: None).topology
        topology.learn(["t", "u"], routes("a", ("t", "u"), sets="xy"))
        # The set x has lost t, and has not heard of y.
        topology.confirm("x", ["t", "u"], routes("a", ("u",), sets="x"))
        assert [topology.sticky(topic).sets for topic in ("t", "u")] == [["y"], ["x", "y"]]
        assert topology.believed("t").sets == ["y"]
        topology.forget_set("y")
        assert [topology.sticky(topic).sets for topic in ("t", "u")] == [[], ["x"]]
        assert topology.sticky("never asked for") == Route("never asked for", ())

    run(scenario())


def test_subscribers_hear_of_every_change() -> None:
    topics = ["t", "u"]
    connection = Asked("a:1", lambda *_: routes("a", tuple(topics)))
    told: list[Route] = []

    async def scenario() -> None:
        connection.topology.subscribe(told.append)
        await connection.brokers(["t"])
        await connection.brokers(["t", "u"])
        await connection.brokers(["t", "u"])
        topics.remove("t")
        await connection.brokers(["t", "u"])

    run(scenario())
    assert [(route.topic, route.sets) for route in told] == [("t", ["s"]), ("u", ["s"]), ("t", [])]


def test_a_route_is_asked_for_once_in_half_a_minute() -> None:
    connection = Asked("a:1", lambda *_: routes("a"))

    async def scenario() -> None:
        first = await connection.topology.locate("t")
        assert first.readable == [QueueRef("t", 0, "s"), QueueRef("t", 1, "s")]
        assert await connection.topology.locate("t") == first
        assert len(connection.asked) == 1
        await asyncio.sleep(ROUTE_AGE_S_MAX + 1)
        await connection.topology.locate("t")
        assert len(connection.asked) == 2
        connection.topology.forget("t")
        await connection.topology.locate("t")
        assert len(connection.asked) == 3

    run(scenario())


def test_a_route_is_believed_at_any_age_and_known_for_half_a_minute() -> None:
    connection = Asked("a:1", lambda *_: routes("a"))

    async def scenario() -> None:
        topology = connection.topology
        assert topology.believed("t") == Route("t", ())
        found = await topology.locate("t")
        assert (topology.believed("t"), topology.known("t")) == (found, found)
        await asyncio.sleep(ROUTE_AGE_S_MAX + 1)
        assert (topology.believed("t"), topology.known("t")) == (found, None)

    run(scenario())


def test_a_set_is_readable_if_it_has_a_queue_to_read_from() -> None:
    parts = tuple(
        TopicRoute(topic="t", broker_set=name, read_queues=count, is_readable=is_readable)
        for name, count, is_readable in (("a", 2, True), ("b", 2, False), ("c", 0, True))
    )
    route = Route("t", parts)
    assert (route.sets, route.readable_sets) == (["a", "b", "c"], ["a"])


def test_a_topic_that_one_broker_does_not_know_yet_may_be_known_to_the_leader() -> None:
    connection = Asked("a:1", lambda address, _: routes("b", ("t",) if address == "b:1" else ()))
    assert run(connection.topology.locate("t")).sets == ["s"]
    assert connection.asked == ["a:1", "a:1", "b:1"]


def test_the_home_of_a_topic_is_chosen_among_all_sets_though_one_is_not_shown_with_topics() -> None:
    def answer(_: str, request: Any) -> Any:
        return routes("a", (), sets="x" if request.topics else "xy")

    async def scenario() -> None:
        homes = {(await Asked("xa:1", answer).topology.home(f"t{n}")).name for n in range(20)}
        assert homes == {"x", "y"}
        connection = Asked("xa:1", answer)
        await connection.brokers(["t"])
        assert {(await connection.topology.home(f"t{n}")).name for n in range(20)} == homes

    run(scenario())


def test_an_unknown_topic_is_not_found_and_only_producers_create_it() -> None:
    requests: list[RouteRequest] = []

    def answer(_: str, request: RouteRequest) -> RouteResponse:
        requests.append(request)
        return routes("a", ())

    async def scenario() -> None:
        connection = Asked("a:1", answer)
        with pytest.raises(TopicNotFound, match="topic t"):
            await connection.topology.locate("t")
        with pytest.raises(TopicNotFound):
            await connection.topology.locate("t", create=True)
        with pytest.raises(IllegalTopic):
            await connection.topology.locate("no spaces")

    run(scenario())
    asked = [request for request in requests if request.topics]
    assert [request.create_missing for request in asked] == [False, False, False, True]
