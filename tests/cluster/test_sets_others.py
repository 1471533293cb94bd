"""Two broker sets, and consumers that receive, pull, process, and ask over both: every promise
holds for both, also while one of the sets is dead.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from mq.client import (
    Message,
    Processor,
    PullConsumer,
    QueueRef,
    ReceivedMessage,
    Replier,
    Requester,
    SimpleConsumer,
)
from mq.client.simple import consumer as simple
from mq.errors import IllegalRequest, TopicNotFound
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse
from tests.support.broker_cluster import BrokerCluster
from tests.support.raft_cluster import poll
from tests.support.topics import call, committed, create_topic, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 60.0
QUEUES = 2
# Of each test its own, which is also the name of its group: in which sets they are.
TOPICS = {
    "shared": "ab",
    "half-dead": "ab",
    "moved": "b",
    "kept": "ab",
    "pulled": "ab",
    "work": "ab",
    "work-out": "ab",
    "gap": "ab",
    "gap-out": "a",
    "asked": "ab",
    "asked-replies": "ab",
    "lone": "a",
    "lone-replies": "b",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    flags = ("--broker-auto-create-topics", "no")
    with BrokerCluster(tmp_path_factory.mktemp("sets"), "a", "b", flags=flags) as made:
        # All at once: brokers of other sets hear of a topic after a second.
        for topic, sets in TOPICS.items():
            create(made, topic, sets)
        for topic, sets in TOPICS.items():
            wait_known(made, topic, sets)
        yield made


def address(cluster: BrokerCluster, broker_set: str) -> str:
    return cluster.sets[broker_set].address("n0")


def create(cluster: BrokerCluster, topic: str, sets: str) -> None:
    for one in sets:
        create_topic(address(cluster, one), topic, QUEUES)


def wait_known(cluster: BrokerCluster, topic: str, sets: str) -> None:
    """By all brokers."""
    poll(lambda: all(set(sets) <= knows(one, topic) for one in cluster.nodes), f"all know {topic}")


def knows(server: str, topic: str) -> set[str]:
    """Sets that have the topic, by the word of one broker."""
    answer = call(server, "ClusterService/Route", RouteRequest(topics=[topic]), RouteResponse)
    return {part.broker_set for part in answer.topics}


def fill(cluster: BrokerCluster, topic: str, each: int, sets: str = "ab") -> set[bytes]:
    bodies = set()
    for one in sets:
        for queue_id in range(QUEUES):
            own = [b"%s/%d/%d" % (one.encode(), queue_id, at) for at in range(each)]
            send(address(cluster, one), topic, queue_id, own)
            bodies.update(own)
    return bodies


def receive_all(consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"{len(found)} of {count}"
        found += consumer.receive(32, wait_s=1)
    return found


def read_all(cluster: BrokerCluster, topic: str) -> dict[str, list[bytes]]:
    """By broker set."""
    found: dict[str, list[bytes]] = {}
    with PullConsumer(cluster.servers) as puller:
        for _, queue_id, broker_set in puller.queues(topic):
            at = 0
            while messages := puller.pull(
                topic, queue_id, at, max_messages=1_000, broker_set=broker_set
            ).messages:
                found.setdefault(broker_set, []).extend(one.body for one in messages)
                at = messages[-1].queue_offset + 1
    return found


def bodies_of(messages: list[ReceivedMessage]) -> list[bytes]:
    return [one.body for one in messages]


# SimpleConsumer


def test_messages_of_both_sets_are_received_and_done_once(cluster: BrokerCluster) -> None:
    name = "shared"
    expected = fill(cluster, name, 100)
    # Any broker is enough to find the others.
    with SimpleConsumer(address(cluster, "a"), name, name, start="earliest") as consumer:
        first = consumer.receive(32, wait_s=10)
        # What is there is given out, however it is spread; a list may have messages of both sets.
        assert len(first) == 32
        assert {one.broker_set for one in first} == {"a", "b"}
        assert all(one.queue.broker_set == one.broker_set for one in first)
        consumer.nack(first[:8], delay_s=0)
        consumer.change_invisible(first[8:], 600)
        rest = receive_all(consumer, len(expected) - 24)
        assert sorted(bodies_of(first[8:] + rest)) == sorted(expected)
        consumer.ack([*first[8:], *rest])
        assert consumer.receive(wait_s=0) == []
    for one in "ab":
        assert committed(address(cluster, one), name, name) == {0: 100, 1: 100}


def test_a_set_that_is_dead_slows_no_receive_and_its_messages_come_when_it_is_back(
    cluster: BrokerCluster,
) -> None:
    name = "half-dead"
    node = cluster.sets["b"].nodes["n0"]
    with SimpleConsumer(cluster.servers, name, name, start="earliest") as consumer:
        expected = fill(cluster, name, 5)
        first = receive_all(consumer, len(expected))
        node.kill()
        try:
            times: list[float] = []
            for at in range(5):
                body = b"alone %d" % at
                send(address(cluster, "a"), name, 0, [body])
                began_s = time.monotonic()
                (alone,) = consumer.receive(wait_s=20)
                times.append(time.monotonic() - began_s)
                assert alone.body == body
                consumer.ack(alone)
            # One of them may be the one that finds out.
            assert sorted(times)[-2] < 0.9, times
            assert consumer.receive(wait_s=0) == []
            with ThreadPoolExecutor() as pool:
                # What the dead set has is done when it is back, what the other one has at once.
                done = pool.submit(consumer.ack, first)
                poll(
                    lambda: committed(address(cluster, "a"), name, name) == {0: 10, 1: 5},
                    "the set that lives has acknowledged",
                )
                node.start()
                done.result(DEADLINE_S)
        finally:
            if not node.is_running:
                node.start()
        send(address(cluster, "b"), name, 1, [b"back"])
        assert bodies_of(receive_all(consumer, 1)) == [b"back"]
    assert committed(address(cluster, "b"), name, name) == {0: 5, 1: 5}


def test_a_topic_that_only_one_set_has_and_then_another_one_too(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "moved"
    monkeypatch.setattr(simple, "_LOOK_EVERY_S", 0.5)
    with SimpleConsumer(cluster.servers, name, name) as consumer:
        assert consumer.receive(wait_s=0) == []
        # It has begun, and others can see that it has.
        assert committed(address(cluster, "b"), name, name) == {0: 0, 1: 0}
        send(address(cluster, "b"), name, 0, [b"one"])
        (one,) = consumer.receive(wait_s=10)
        assert one.broker_set == "b"
        consumer.ack(one)
        create_topic(address(cluster, "a"), name, QUEUES)
        # Before the consumer hears of it: nothing that is sent there is missed.
        send(address(cluster, "a"), name, 0, [b"two"])
        (two,) = receive_all(consumer, 1)
        assert (two.body, two.broker_set) == (b"two", "a")
        consumer.ack(two)


def test_messages_received_but_not_returned_are_given_back_at_the_end(
    cluster: BrokerCluster,
) -> None:
    name = "kept"
    with SimpleConsumer(cluster.servers, name, name, start="earliest") as first:
        waiting: list[list[ReceivedMessage]] = []
        thread = threading.Thread(target=lambda: waiting.append(first.receive(1, wait_s=30)))
        thread.start()
        # It has looked everywhere, and waits.
        servers = [address(cluster, one) for one in "ab"]
        poll(lambda: all(committed(one, name, name) for one in servers), "waits", DEADLINE_S)
        for one in "ab":
            send(address(cluster, one), name, 0, [one.encode()])
        thread.join(DEADLINE_S)
        (own,) = waiting[0]
        first.ack(own)
        spare = first._client._gatherer
        poll(lambda: any(one.batches for one in spare._spare), "the other one came", DEADLINE_S)
    with SimpleConsumer(cluster.servers, name, name) as second:
        (other,) = second.receive(wait_s=5)
        assert {own.body, other.body} == {b"a", b"b"}
        second.ack(other)


# PullConsumer


def test_queues_of_both_sets_are_pulled_and_committed(cluster: BrokerCluster) -> None:
    name = "pulled"
    expected = fill(cluster, name, 10)
    assert {body for own in read_all(cluster, name).values() for body in own} == expected
    with PullConsumer(cluster.servers, name) as puller:
        queues = puller.queues(name)
        assert queues == [QueueRef(name, at, one) for one in "ab" for at in range(QUEUES)]
        with pytest.raises(IllegalRequest, match="say which broker set"):
            puller.pull(name, 0, 0)
        assert puller.find_offsets(name, "latest") == dict.fromkeys(queues, 10)
        places = {queue: at for at, queue in enumerate(queues, 1)}
        puller.commit(places)
        assert puller.committed() == places
        assert puller.committed(queues[1:3]) == {queue: places[queue] for queue in queues[1:3]}


# Processor


def echo(topic: str) -> Callable[[list[ReceivedMessage]], list[tuple[str, Message]]]:
    def handle(messages: list[ReceivedMessage]) -> list[tuple[str, Message]]:
        return [(topic, Message(one.body)) for one in messages]

    return handle


def done(cluster: BrokerCluster, broker_set: str, group: str, topic: str) -> int:
    return sum(committed(address(cluster, broker_set), group, topic).values())


def test_each_input_has_its_effect_once_in_its_own_set_though_one_dies(
    cluster: BrokerCluster,
) -> None:
    name = "work"
    expected = fill(cluster, name, 60)
    node = cluster.sets["b"].nodes["n0"]
    seen = threading.Event()

    def handle(messages: list[ReceivedMessage]) -> list[tuple[str, Message]]:
        if messages[0].broker_set == "b":
            seen.set()
        time.sleep(0.01)
        return [(f"{name}-out", Message(one.body)) for one in messages]

    options = {"start": "earliest", "batch_messages": 5, "threads": 2}
    with Processor(cluster.servers, name, name, handle, **options):  # type: ignore[arg-type]
        assert seen.wait(DEADLINE_S)
        node.kill()
        try:
            # All workers may be at work for the one that is dead.
            expected |= fill(cluster, name, 20, "a")
            poll(lambda: done(cluster, "a", name, name) == 160, "a is done", DEADLINE_S)
        finally:
            node.start()
        poll(lambda: done(cluster, "b", name, name) == 120, "b is done", DEADLINE_S)
    made = read_all(cluster, f"{name}-out")
    assert Counter(made["b"]) == Counter(body for body in expected if body.startswith(b"b"))
    again = {b"a/%d/%d" % (queue_id, at) for queue_id in range(QUEUES) for at in range(20)}
    effects = Counter(made["a"])
    assert {body: count for body, count in effects.items() if count != 1} == dict.fromkeys(again, 2)
    assert set(effects) == {body for body in expected if body.startswith(b"a")}


def test_an_output_that_the_set_of_its_input_does_not_have_ends_the_processor(
    cluster: BrokerCluster,
) -> None:
    name = "gap"
    fill(cluster, name, 5)
    handler = echo(f"{name}-out")
    processor = Processor(cluster.servers, name, name, handler, start="earliest")
    processor.start()
    with pytest.raises(TopicNotFound, match=f"mq topic extend {name}-out --set b"):
        processor.join()
    processor.close()
    assert done(cluster, "b", name, name) == 0
    create(cluster, f"{name}-out", "b")
    wait_known(cluster, f"{name}-out", "ab")
    with Processor(cluster.servers, name, name, handler, start="earliest"):
        for one in "ab":
            poll(lambda one=one: done(cluster, one, name, name) == 10, f"{one} is done")  # type: ignore[misc]
    made = read_all(cluster, f"{name}-out")
    assert {one: len(own) for one, own in made.items()} == {"a": 10, "b": 10}


# Requests and replies


def test_requests_find_their_replies_over_both_sets_though_one_stands_still(
    cluster: BrokerCluster,
) -> None:
    name = "asked"
    node = cluster.sets["b"].nodes["n0"]
    with (
        Replier(cluster.servers, name, name, lambda request: request.body.upper()),
        Requester(
            cluster.servers, reply_topic=f"{name}-replies", timeout_s=DEADLINE_S
        ) as requester,
        ThreadPoolExecutor(8) as pool,
    ):

        def ask(count: int) -> set[str]:
            asked = {
                b"n%d" % at: pool.submit(requester.request, name, b"n%d" % at)
                for at in range(count)
            }
            replies = {body: reply.result(DEADLINE_S) for body, reply in asked.items()}
            assert all(body.upper() == reply.body for body, reply in replies.items())
            return {reply.broker_set for reply in replies.values()}

        poll(lambda: ask(20) == {"a", "b"}, "replies come from both sets", DEADLINE_S)
        # Worse than dead: what it has stored is unknown.
        os.kill(node.pid, signal.SIGSTOP)
        try:
            assert ask(20) == {"a"}
        finally:
            os.kill(node.pid, signal.SIGCONT)
        poll(lambda: ask(20) == {"a", "b"}, "replies come from both sets again", DEADLINE_S)


def test_a_requester_is_content_with_a_reply_topic_in_one_set(cluster: BrokerCluster) -> None:
    name = "lone"
    with (
        Replier(cluster.servers, name, name, lambda request: request.body),
        Requester(
            cluster.servers, reply_topic=f"{name}-replies", timeout_s=DEADLINE_S
        ) as requester,
    ):
        reply = requester.request(name, b"x")
        assert (reply.body, reply.broker_set) == (b"x", "b")
