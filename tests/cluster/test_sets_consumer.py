"""Consumers of a group whose topics are in two broker sets: real processes, a node a set.

What is sent goes to the sets by single calls, so that a test says where each message stands.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from mq.client import Admin, Consumer, PushConsumer, QueueRef, ReceivedMessage
from mq.client.consumer.set_stream import FollowerReads
from mq.errors import IllegalRequest, NotAssigned, TopicNotFound
from mq.wire.v1 import admin_pb2
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse
from tests.support.broker_cluster import BrokerCluster
from tests.support.broker_set import BrokerSet
from tests.support.topics import call, committed, create_topic, eventually, send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mq.wire.v1.consumer_pb2 import Redirect

SETS = ("a", "b")
DEADLINE_S = 60.0


class Cluster(BrokerCluster):
    def address(self, broker_set: str) -> str:
        """The address of its only node."""
        return self.sets[broker_set].servers

    def create(self, topic: str, queues: int = 2, sets: tuple[str, ...] = SETS) -> None:
        for name in sets:
            create_topic(self.address(name), topic, queues)
        self.wait_known_in(topic, *sets)

    def wait_known_in(self, topic: str, *sets: str) -> None:
        """By all brokers."""
        eventually(lambda: all(self.known(name, topic) == [*sets] for name in SETS))

    def known(self, broker_set: str, topic: str) -> list[str]:
        """The sets that have a topic, by the word of one."""
        request = RouteRequest(topics=[topic])
        answer = call(self.address(broker_set), "ClusterService/Route", request, RouteResponse)
        return [one.broker_set for one in answer.topics]

    def delete(self, topic: str, broker_set: str) -> None:
        request = admin_pb2.DeleteTopicRequest(topic=topic)
        call(
            self.address(broker_set),
            "AdminService/DeleteTopic",
            request,
            admin_pb2.DeleteTopicResponse,
        )

    def send(self, broker_set: str, topic: str, queue_id: int, numbers: range) -> list[bytes]:
        bodies = [b"%s/%d/%d" % (broker_set.encode(), queue_id, at) for at in numbers]
        send(self.address(broker_set), topic, queue_id, bodies)
        return bodies

    def fill(self, topic: str, each: int, sets: tuple[str, ...] = SETS) -> Counter[bytes]:
        """So many messages in each of two queues of each set."""
        return Counter(
            body
            for name in sets
            for queue_id in range(2)
            for body in self.send(name, topic, queue_id, range(each))
        )

    def restart(self, broker_set: str) -> None:
        brokers = self.sets[broker_set]
        brokers.start(*brokers.nodes)

    def kill(self, broker_set: str) -> None:
        for node in self.sets[broker_set].nodes.values():
            node.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    flags = ("--broker-auto-create-topics", "no")
    with Cluster(tmp_path_factory.mktemp("sets"), *SETS, flags=flags) as running:
        yield running


def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += consumer.poll(count - len(found), 0.5)
    return found


def bodies(messages: list[ReceivedMessage]) -> Counter[bytes]:
    return Counter(one.body for one in messages)


def queues(topic: str, *sets: str) -> set[QueueRef]:
    return {QueueRef(topic, at, name) for name in sets for at in range(2)}


def test_messages_of_both_sets_come_once_and_name_their_set(cluster: Cluster) -> None:
    cluster.create("both")
    sent = cluster.fill("both", 50)
    # One broker is enough to find all.
    with Consumer(cluster.address("b"), "g-both", "both", start="earliest") as consumer:
        found = take(consumer, 200)
        assert bodies(found) == sent
        assert {one.queue for one in found} == queues("both", "a", "b")
        assert all(one.body.startswith(one.broker_set.encode()) for one in found)
        assert {one for one in consumer.assignment if one.topic == "both"} == queues("both", *SETS)
        consumer.commit()
        for name in SETS:
            assert committed(cluster.address(name), "g-both", "both") == {0: 50, 1: 50}
    with Consumer(cluster.servers, "g-both", "both") as consumer:
        assert consumer.poll(timeout_s=0.5) == []


def test_two_members_have_queues_of_both_sets_between_them(cluster: Cluster) -> None:
    cluster.create("shared")
    sent = cluster.fill("shared", 30)
    seen: Counter[bytes] = Counter()
    lock = threading.Lock()

    def handle(message: ReceivedMessage) -> None:
        with lock:
            seen[message.body] += 1

    def members() -> list[set[QueueRef]]:
        return [{ref for ref in one.assignment if ref.topic == "shared"} for one in (first, second)]

    with (
        PushConsumer(cluster.servers, "g-shared", "shared", handle, start="earliest") as first,
        PushConsumer(cluster.servers, "g-shared", "shared", handle, start="earliest") as second,
    ):
        eventually(lambda: sorted(map(len, members())) == [2, 2])
        assert set.union(*members()) == queues("shared", *SETS)
        sent += Counter(cluster.send("a", "shared", 0, range(30, 40)))
        sent += Counter(cluster.send("b", "shared", 1, range(30, 40)))
        eventually(lambda: sum(seen.values()) >= sent.total())
    assert seen == sent


def test_places_are_named_with_their_set(cluster: Cluster) -> None:
    cluster.create("places")
    cluster.fill("places", 10)
    with Consumer(cluster.servers, "g-places", "places", auto_commit=False) as consumer:
        with pytest.raises(IllegalRequest, match="queue 0 of topic places is in a, b: say which"):
            consumer.seek("places", 0, 3)
        with pytest.raises(IllegalRequest, match="say which broker set"):
            consumer.pause(("places", 0))
        with pytest.raises(NotAssigned, match="in broker set c is not assigned"):
            consumer.seek("places", 0, 3, broker_set="c")
        consumer.seek("places", 0, 8, broker_set="b")
        found = take(consumer, 2)
        assert [one.message_id.split(":")[0] for one in found] == ["b", "b"]
        assert [one.body for one in found] == [b"b/0/8", b"b/0/9"]
        consumer.commit(found)
        assert committed(cluster.address("b"), "g-places", "places") == {0: 10, 1: 10}
        consumer.pause(QueueRef("places", 1, "a"))
        consumer.seek_to_earliest()
        assert len(take(consumer, 30)) == 30
        assert consumer.poll(timeout_s=0.2) == []
        consumer.resume(QueueRef("places", 1, "a"))
        assert {one.queue for one in take(consumer, 10)} == {QueueRef("places", 1, "a")}
        consumer.seek_to_latest("places")
        cluster.send("a", "places", 0, range(10, 11))
        assert [one.body for one in take(consumer, 1)] == [b"a/0/10"]


def test_a_topic_that_comes_to_another_set_is_read_there_from_its_first_message(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.client.consumer.group_session.LOOK_S", 0.3)
    cluster.create("grows", sets=("a",))
    with Consumer(cluster.servers, "g-grows", "grows") as consumer:
        # Without a set, where there is one only.
        consumer.seek("grows", 0, 0)
        sent = Counter(cluster.send("a", "grows", 0, range(5)))
        assert bodies(take(consumer, 5)) == sent
        create_topic(cluster.address("b"), "grows", 2)
        later = Counter(cluster.send("b", "grows", 1, range(5)))
        assert bodies(take(consumer, 5)) == later
        assert {one for one in consumer.assignment if one.topic == "grows"} == queues(
            "grows", *SETS
        )
        # And leaves it when it is gone from there.
        consumer.commit()
        cluster.delete("grows", "b")
        eventually(lambda: {one.broker_set for one in consumer.assignment} == {"a"})
        sent = Counter(cluster.send("a", "grows", 1, range(5)))
        assert bodies(take(consumer, 5)) == sent
        consumer.commit()


def test_a_group_misses_nothing_in_a_set_that_got_the_topic_while_it_was_away(
    cluster: Cluster,
) -> None:
    """It begins with the latest message only in a topic that it has never seen."""
    cluster.create("away", sets=("a",))
    with Consumer(cluster.servers, "g-away", "away") as consumer:
        consumer.seek_to_latest()
        consumer.commit([])
    create_topic(cluster.address("b"), "away", 2)
    cluster.wait_known_in("away", *SETS)
    sent = cluster.fill("away", 3)
    with Consumer(cluster.servers, "g-away", "away") as consumer:
        assert bodies(take(consumer, 12)) == sent
    with Consumer(cluster.servers, "g-new-here", "away") as consumer:
        assert consumer.poll(timeout_s=0.5) == []


def test_topics_of_different_sets_are_one_subscription(cluster: Cluster) -> None:
    cluster.create("here", sets=("a",))
    cluster.create("there", sets=("b",))
    sent = cluster.fill("here", 4, ("a",)) + cluster.fill("there", 4, ("b",))
    with Consumer(cluster.servers, "g-apart", ["here", "there"], start="earliest") as consumer:
        assert bodies(take(consumer, 16)) == sent
    with (
        Consumer(cluster.servers, "g-apart", ["here", "nowhere"]) as consumer,
        pytest.raises(TopicNotFound, match="nowhere"),
    ):
        consumer.poll(timeout_s=DEADLINE_S)


def test_a_consumer_waits_for_its_topic_in_whichever_set_it_appears(cluster: Cluster) -> None:
    """In the one where clients would create it, and in the other."""
    with Admin(cluster.servers) as admin:
        set_everywhere(cluster, admin, "broker.auto_create_topics", "yes")
        try:
            for broker_set in SETS:
                topic = f"late-in-{broker_set}"
                with Consumer(cluster.servers, topic, topic) as consumer:
                    assert consumer.poll(timeout_s=0.5) == []
                    assert admin.route([topic]).topics == []
                    sent = cluster.send(broker_set, topic, 0, range(3))
                    assert bodies(take(consumer, 3)) == Counter(sent)
                    # It is consumed where it is, and only there.
                    assert {one.broker_set for one in consumer.assignment} == {broker_set}
        finally:
            set_everywhere(cluster, admin, "broker.auto_create_topics", "no")


def set_everywhere(cluster: Cluster, admin: Admin, name: str, value: str) -> None:
    for broker_set in SETS:
        admin.set_config(name, value, cluster.address(broker_set))


def test_a_set_that_dies_stops_no_other_and_goes_on_when_it_is_back(cluster: Cluster) -> None:
    """In ordered mode: nothing out of order, nothing twice that was committed, nothing lost."""
    cluster.create("mortal")
    sent = cluster.fill("mortal", 20)
    seen: dict[QueueRef, list[int]] = {ref: [] for ref in queues("mortal", *SETS)}

    def read_to(**ends: int) -> None:
        def is_there() -> bool:
            for one in (polled := consumer.poll(32, 0.2)):
                seen[one.queue].append(one.queue_offset)
            consumer.done(*polled)
            return all(len(at) >= ends.get(ref.broker_set, 0) for ref, at in seen.items())

        eventually(is_there)

    with Consumer(
        cluster.servers, "g-mortal", "mortal", start="earliest", mode="ordered", auto_commit=False
    ) as consumer:
        read_to(a=5, b=5)
        consumer.pause(*queues("mortal", "b"))
        consumer.commit()
        before = sum(map(len, seen.values()))
        cluster.kill("b")
        for queue_id in range(2):
            sent += Counter(cluster.send("a", "mortal", queue_id, range(20, 30)))
        read_to(a=30)
        # What is durable there is not asked of the dead one again.
        consumer.commit()
        assert committed(cluster.address("a"), "g-mortal", "mortal") == {0: 30, 1: 30}
        cluster.restart("b")
        consumer.resume(*queues("mortal", "b"))
        for queue_id in range(2):
            sent += Counter(cluster.send("b", "mortal", queue_id, range(20, 30)))
        read_to(b=30)
        consumer.commit()
    assert before < sum(map(len, seen.values())) == sent.total()
    assert all(at == list(range(30)) for at in seen.values())
    for name in SETS:
        assert committed(cluster.address(name), "g-mortal", "mortal") == {0: 30, 1: 30}


def test_a_consumer_that_begins_while_a_set_is_down_gets_it_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.client.consumer.push.JOIN_S", 1.5)
    cluster.create("late")
    cluster.fill("late", 3)
    cluster.kill("b")
    seen: list[ReceivedMessage] = []
    with PushConsumer(cluster.servers, "g-late", "late", seen.append, start="earliest"):
        eventually(lambda: len(seen) == 6)
        cluster.restart("b")
        eventually(lambda: len(seen) == 12)
    assert Counter(one.broker_set for one in seen) == {"a": 6, "b": 6}


def test_a_broadcast_consumer_keeps_its_places_by_set(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create("report_signal")
    path = tmp_path / "offsets.json"

    def read() -> Consumer:
        return Consumer(
            cluster.servers,
            "g-report_signal",
            "report_signal",
            mode="broadcast",
            start="earliest",
            offsets_file=path,
        )

    sent = cluster.fill("report_signal", 5)
    with read() as consumer:
        assert bodies(take(consumer, 20)) == sent
    cluster.send("b", "report_signal", 0, range(5, 6))
    with read() as consumer:
        assert [one.body for one in take(consumer, 1)] == [b"b/0/5"]
        assert consumer.poll(timeout_s=0.3) == []


# One set of three nodes, and a reader far behind


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerSet]:
    with BrokerSet(tmp_path, "--broker-backlog-bytes", "1MiB") as running:
        yield running


class FollowerReadLog:
    """The brokers that a consumer was sent to, and the position it came back with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[str] = []
        self.resumed = 0
        begin, resume = FollowerReads.begin, FollowerReads._resume

        def begun(follower_reads: FollowerReads, redirect: Redirect) -> None:
            self.addresses.append(redirect.address)
            begin(follower_reads, redirect)

        def ended(follower_reads: FollowerReads, *args: Any) -> None:
            self.resumed += 1
            resume(follower_reads, *args)

        monkeypatch.setattr(FollowerReads, "begin", begun)
        monkeypatch.setattr(FollowerReads, "_resume", ended)


def test_a_backlog_comes_from_followers_each_message_once_and_in_order(
    brokers: BrokerSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_log = FollowerReadLog(monkeypatch)
    leader = brokers.leader()
    address = brokers.address(leader)
    create_topic(address, "old", 2)
    for batch in range(30):
        for queue_id in range(2):
            send(address, "old", queue_id, [b"%d" % (batch * 10 + at) * 4_000 for at in range(10)])
    with Consumer(
        brokers.servers, "g-old", "old", start="earliest", mode="ordered", cache_messages=40
    ) as consumer:
        found = take(consumer, 200)
        assert read_log.addresses
        assert address not in read_log.addresses
        serving = {brokers.address(one): one for one in brokers.nodes}[read_log.addresses[-1]]
        brokers.nodes[serving].kill()
        found += take(consumer, 400)
        assert read_log.resumed
        for queue_id in range(2):
            at = [one.queue_offset for one in found if one.queue_id == queue_id]
            assert at == list(range(300))
        # It is back at the leader, and hears of what is new at once.
        send(address, "old", 0, [b"new"])
        assert [one.body for one in take(consumer, 1)] == [b"new"]
        consumer.commit()
    assert committed(address, "g-old", "old") == {0: 301, 1: 300}
