"""What an administrator asks of several broker sets: what breaks off between two of them, answers
that were lost, and how answers are put together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from mq.client.aio import Admin
from mq.errors import (
    GroupNotEmpty,
    GroupNotFound,
    IllegalRequest,
    MqError,
    NotLeader,
    TopicExists,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse, TopicRoute
from mq.wire.v1.consumer_pb2 import MODE_CLUSTERING, MODE_ORDERED

T = TypeVar("T")


class Cluster(Admin):
    """Broker sets as dictionaries. `troubles` are raised once each, by set and method, before or
    after the call was carried out.
    """

    def __init__(self, *sets: str) -> None:
        super().__init__("127.0.0.1:1", timeout_s=1)
        self.topics: dict[str, dict[str, pb.TopicInfo]] = {name: {} for name in sets}
        self.groups: dict[str, dict[str, pb.DescribeGroupResponse]] = {name: {} for name in sets}
        self.letters: dict[str, list[pb.StoredMessage]] = {name: [] for name in sets}
        self.troubles: dict[tuple[str, str], tuple[MqError, bool]] = {}
        self.asked: list[tuple[str, str]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def breaks(self, name: str, method: str, error: MqError, *, is_done: bool = False) -> None:
        self.troubles[name, method] = error, is_done

    async def _directory(self, topics: Any = ()) -> RouteResponse:
        return RouteResponse(
            cluster="mq",
            broker_sets=[BrokerSet(name=name) for name in sorted(self.topics)],
            topics=[
                TopicRoute(topic=topic, broker_set=name)
                for name in sorted(self.topics)
                for topic in topics
                if topic in self.topics[name]
            ],
        )

    async def _until_shown(self, topic: str, parts: Any) -> None:
        pass

    async def _ask(self, broker_set: str, request: Any, timeout_s: float | None = None) -> Any:
        assert timeout_s is None or timeout_s > 0
        method = type(request).__name__.removesuffix("Request")
        self.asked.append((broker_set, method))
        error, is_done = self.troubles.pop((broker_set, method), (None, False))
        if error is not None and not is_done:
            raise error
        answer = getattr(self, f"_{method}")(broker_set, request)
        if error is not None:
            raise error
        return answer

    def _CreateTopic(self, name: str, request: Any) -> pb.TopicInfo:  # noqa: N802 - the method's
        if request.topic in self.topics[name]:
            raise TopicExists(f"topic {request.topic} exists already")
        made = self.topics[name][request.topic] = pb.TopicInfo(
            topic=request.topic,
            type=request.type,
            write_queues=request.queues,
            read_queues=request.queues,
            is_readable=True,
            is_writable=True,
            priorities=request.priorities,
            broker_set=name,
        )
        return made

    def _DescribeTopic(self, name: str, request: Any) -> pb.DescribeTopicResponse:  # noqa: N802
        if request.topic not in self.topics[name]:
            raise TopicNotFound(f"there is no topic {request.topic}")
        info = self.topics[name][request.topic]
        return pb.DescribeTopicResponse(info=info, parts=[info])

    def _DeleteTopic(self, name: str, request: Any) -> None:  # noqa: N802
        if self.topics[name].pop(request.topic, None) is None:
            raise TopicNotFound(f"there is no topic {request.topic}")

    def _ListTopics(self, name: str, _: Any) -> pb.ListTopicsResponse:  # noqa: N802
        topics = [pb.TopicSummary(info=one) for one in self.topics[name].values()]
        return pb.ListTopicsResponse(topics=topics)

    def _DescribeGroup(self, name: str, request: Any) -> pb.DescribeGroupResponse:  # noqa: N802
        if request.group not in self.groups[name]:
            raise GroupNotFound(f"there is no group {request.group}")
        return self.groups[name][request.group]

    def _DeleteGroup(self, name: str, request: Any) -> None:  # noqa: N802
        if self._DescribeGroup(name, request).members:
            raise GroupNotEmpty("it has members")
        del self.groups[name][request.group]

    def _ListDeadLetters(self, name: str, request: Any) -> pb.ListDeadLettersResponse:  # noqa: N802
        if not self.letters[name]:
            raise TopicNotFound("it never had one")
        found = self.letters[name][request.queue_offset :][: request.messages_max or 32]
        at = request.queue_offset + len(found)
        return pb.ListDeadLettersResponse(messages=found, next_offset=at, next_offsets={name: at})


def shares(cluster: Cluster, topic: str) -> dict[str, int]:
    return {
        name: found[topic].write_queues for name, found in cluster.topics.items() if topic in found
    }


# Topics.


def test_a_creation_that_breaks_off_says_where_it_is_and_is_completed_by_the_same_call() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.breaks("c", "CreateTopic", Unreachable("gone"))
    with pytest.raises(
        Unreachable, match=r"broker set c: gone; topic t is in a, b by now, and the"
    ):
        cluster.run(cluster.create_topic("t", 7))
    assert shares(cluster, "t") == {"a": 3, "b": 2}
    made = cluster.run(cluster.create_topic("t", 7))
    assert shares(cluster, "t") == {"a": 3, "b": 2, "c": 2}
    assert (made.write_queues, made.broker_set) == (7, "")
    with pytest.raises(TopicExists, match="a, b, c"):
        cluster.run(cluster.create_topic("t", 7))


def test_a_creation_whose_first_step_fails_has_changed_nothing_and_says_nothing_else() -> None:
    cluster = Cluster("a", "b")
    cluster.breaks("a", "CreateTopic", Unreachable("gone"))
    with pytest.raises(Unreachable, match=r"^gone$"):
        cluster.run(cluster.create_topic("t"))
    assert shares(cluster, "t") == {}


def test_a_part_that_exists_because_an_answer_was_lost_is_the_one_that_was_meant() -> None:
    cluster = Cluster("a", "b")
    cluster.breaks("b", "CreateTopic", TopicExists("t exists already"), is_done=True)
    assert cluster.run(cluster.create_topic("t")).write_queues == 8


def test_a_part_that_another_client_created_differently_is_refused() -> None:
    cluster = Cluster("a", "b")
    other = pb.TopicInfo(topic="t", write_queues=1, read_queues=1, is_readable=True)

    def made(name: str, request: Any) -> pb.TopicInfo:
        cluster.topics["b"]["t"] = other
        return Cluster._CreateTopic(cluster, name, request)

    cluster._CreateTopic = made  # type: ignore[method-assign]
    with pytest.raises(TopicExists, match="topic t is in a by now"):
        cluster.run(cluster.create_topic("t"))


def test_a_set_that_cannot_be_asked_keeps_a_creation_from_beginning() -> None:
    cluster = Cluster("a", "b")
    cluster.breaks("b", "DescribeTopic", NotLeader(None, None))
    with pytest.raises(NotLeader, match=r"broker set b: .*nothing was changed"):
        cluster.run(cluster.create_topic("t"))
    assert ("a", "CreateTopic") not in cluster.asked
    # One that is not to have it does not matter.
    cluster.breaks("b", "DescribeTopic", NotLeader(None, None))
    cluster.run(cluster.create_topic("t", sets=["a"]))
    assert shares(cluster, "t") == {"a": 8}


def test_a_deletion_that_breaks_off_is_completed_by_the_same_call() -> None:
    cluster = Cluster("a", "b")
    cluster.run(cluster.create_topic("t"))
    cluster.breaks("b", "DeleteTopic", Unreachable("gone"))
    with pytest.raises(Unreachable, match="topic t is deleted in a by now"):
        cluster.run(cluster.delete_topic("t"))
    # Carried out, but the answer was lost: the second attempt finds nothing.
    cluster.breaks("b", "DeleteTopic", TopicNotFound("no t"), is_done=True)
    cluster.run(cluster.delete_topic("t"))
    assert shares(cluster, "t") == {}
    with pytest.raises(TopicNotFound, match="there is no topic t"):
        cluster.run(cluster.delete_topic("t"))


def test_a_silent_set_matters_where_the_topic_is_as_far_as_is_known() -> None:
    cluster = Cluster("a", "b")
    cluster.run(cluster.create_topic("only-a", sets=["a"]))
    cluster.run(cluster.create_topic("t"))
    for topic, missing in (("only-a", []), ("t", ["b"])):
        cluster.breaks("b", "DescribeTopic", Unreachable("gone"))
        assert list(cluster.run(cluster.describe_topic(topic)).missing_sets) == missing
    cluster.breaks("b", "DescribeTopic", Unreachable("gone"))
    with pytest.raises(TopicNotFound):
        cluster.run(cluster.describe_topic("nowhere"))


# Groups.


def group(name: str, *members: str, mode: Any = MODE_CLUSTERING, **fields: Any) -> Any:
    return pb.DescribeGroupResponse(
        summary=pb.GroupSummary(
            group="g", members=len(members), member_ids=members, mode=mode, **fields
        ),
        members=[
            pb.MemberInfo(member_id=one, queues=2, broker_sets=[name], last_seen_at_ms=len(name))
            for one in members
        ],
        queues=[pb.GroupQueue(topic=topic, broker_set=name) for topic in ("u", "t")],
    )


def test_a_group_with_members_in_one_set_is_deleted_in_none() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.groups["a"]["g"] = group("a")
    cluster.groups["b"]["g"] = group("b", "m")
    with pytest.raises(GroupNotEmpty):
        cluster.run(cluster.delete_group("g"))
    assert "g" in cluster.groups["a"]
    cluster.groups["b"]["g"] = group("b")
    cluster.run(cluster.delete_group("g"))
    assert cluster.groups == {"a": {}, "b": {}, "c": {}}


def test_a_group_of_several_sets_is_put_together() -> None:
    cluster = Cluster("a", "bb", "c")
    cluster.groups["a"]["g"] = group("a", lag=5, generation=7, topics=["t"])
    cluster.groups["bb"]["g"] = group("bb", "m", "n", mode=MODE_ORDERED, lag=3, topics=["u"])
    cluster.groups["c"]["g"] = group("c", "m", mode=MODE_ORDERED, generation=9)
    found = cluster.run(cluster.describe_group("g"))
    summary = found.summary
    assert (summary.lag, summary.members, summary.generation) == (8, 2, 9)
    assert (summary.mode, list(summary.topics)) == (MODE_ORDERED, ["t", "u"])
    shown = [(one.member_id, one.queues, list(one.broker_sets)) for one in found.members]
    assert shown == [("m", 4, ["bb", "c"]), ("n", 2, ["bb"])]
    places = [(one.topic, one.broker_set) for one in found.queues]
    assert places == [(topic, name) for topic in "tu" for name in ("a", "bb", "c")]


def test_a_set_that_may_know_the_group_and_does_not_answer_is_named() -> None:
    cluster = Cluster("a", "b")
    cluster.breaks("b", "DescribeGroup", Unreachable("gone"))
    with pytest.raises(Unreachable, match="broker set b: gone"):
        cluster.run(cluster.describe_group("g"))


# Dead letters.


def test_letters_come_by_time_and_page_by_page_from_each_set() -> None:
    cluster = Cluster("a", "b", "c")
    # Long enough that a page has none of a.
    owners = "bbbbbbb" + "aab" * 4
    for at, name in enumerate(owners):
        cluster.letters[name].append(
            pb.StoredMessage(
                message_id=f"{name}:{at}", queue_offset=len(cluster.letters[name]), stored_at_ms=at
            )
        )
    seen: list[str] = []
    place: Any = 0
    while True:
        page = cluster.run(cluster.list_dead_letters("g", place, 3))
        if not page.messages:
            break
        seen += [one.message_id for one in page.messages]
        place = dict(page.next_offsets)
    assert seen == [f"{name}:{at}" for at, name in enumerate(owners)]
    only = cluster.run(cluster.list_dead_letters("g", 8, broker_set="b"))
    assert [one.queue_offset for one in only.messages] == [8, 9, 10]
    with pytest.raises(IllegalRequest, match="dead letters in a, b"):
        cluster.run(cluster.list_dead_letters("g", 4))
    cluster.letters["a"].clear()
    assert len(cluster.run(cluster.list_dead_letters("g", 8)).messages) == 3


# Sets.


def test_a_broker_of_another_cluster_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("a", "b")
    theirs = RouteResponse(cluster="other", broker_sets=[BrokerSet(name="c")])

    async def answer(*_: Any, **__: Any) -> RouteResponse:
        return theirs

    monkeypatch.setattr(cluster._connection, "call", answer)
    with pytest.raises(IllegalRequest, match="belongs to cluster other, this is mq"):
        cluster.run(cluster.add_broker_set("10.0.0.1:8081"))
    assert cluster.asked == []


def test_a_broker_that_has_just_started_is_waited_for_until_it_shows_what_was_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = [BrokerSet(name="s", nodes=[NodeRoute(node_id=one, address=f"{one}:1") for one in "ab"])]
    shown = RouteResponse(topics=[TopicRoute(topic="t", broker_set="s", write_queues=2)])
    refusals = [NotLeader(None, None)] * 3

    async def brokers(*_: Any, **__: Any) -> RouteResponse:
        return RouteResponse(broker_sets=sets)

    async def answer(*_: Any, server: str) -> RouteResponse:
        if server == "b:1" and refusals:
            raise refusals.pop()
        return shown

    async def scenario() -> None:
        admin = Admin("a:1")
        monkeypatch.setattr(admin._connection, "brokers", brokers)
        monkeypatch.setattr(admin._connection, "call", answer)
        await admin._until_shown("t", {"s": pb.TopicInfo(topic="t", write_queues=2)})

    asyncio.run(scenario())
    assert not refusals
