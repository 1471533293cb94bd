"""Producers and two broker sets of real processes: balance, keys, a whole set that is killed,
topics that are extended and drained while messages are sent. What is acknowledged is stored once.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from mq.client import HalfMessage, Message, Producer, SendResult, TransactionProducer
from mq.errors import MessageNotFound, MqError, Unreachable
from mq.hashing import text_hash
from mq.wire.v1 import admin_pb2 as pb
from tests.support.broker_cluster import BrokerCluster
from tests.support.topics import call, create_topic, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path_factory.mktemp("sets"), "a", "b") as made:
        yield made


def topic_in(cluster: BrokerCluster, topic: str, *names: str, queues: int = 4) -> None:
    for name in names:
        create_topic(cluster.sets[name].servers, topic, queues)
    if set(names) == set(cluster.sets):
        cluster.wait_known(topic)


def alter(cluster: BrokerCluster, name: str, topic: str, *, is_writable: bool) -> None:
    request = pb.AlterTopicRequest(topic=topic, is_writable=is_writable)
    call(cluster.sets[name].servers, "AdminService/AlterTopic", request, pb.TopicInfo)


def stored(cluster: BrokerCluster, name: str, topic: str, queues: int = 4) -> list[list[str]]:
    """The bodies in each queue."""
    address, found = cluster.sets[name].servers, []
    for queue_id in range(queues):
        bodies: list[str] = []
        while True:
            request = pb.BrowseMessagesRequest(
                topic=topic, queue_id=queue_id, queue_offset=len(bodies), messages_max=1000
            )
            page = call(address, "AdminService/BrowseMessages", request, pb.MessageList)
            if not page.messages:
                break
            bodies += (one.message.body.decode() for one in page.messages)
        found.append(bodies)
    return found


def all_stored(cluster: BrokerCluster, topic: str) -> Counter[str]:
    return Counter(
        body for name in cluster.sets for queue in stored(cluster, name, topic) for body in queue
    )


def key_of(name: str) -> str:
    """A key that leads there, of two sets with four queues each."""
    at = "ab".index(name)
    return next(key for key in map(str, range(999)) if text_hash(key) % 8 // 4 == at)


def test_messages_are_balanced_keys_are_kept_together_and_results_point_there(
    cluster: BrokerCluster,
) -> None:
    topic_in(cluster, "balanced", "a", "b")
    with Producer(cluster.sets["a"].servers, batch_bytes=2000) as producer:
        connected: set[str] = set()
        while connected != {"a", "b"}:
            connected.add(producer.send("balanced", b"first").broker_set)
        free = [producer.send("balanced", f"free {n}") for n in range(40)]
        futures = [
            producer.send_async("balanced", Message(f"{n}".encode(), ordering_key=f"k{n % 9}"))
            for n in range(900)
        ]
        keyed = [future.result(DEADLINE_S) for future in futures]
        fixed = producer.send("balanced", b"fixed", queue_id=2, broker_set="b")
        batch = producer.send_batch("balanced", ["x", "y"], queue_id=1, broker_set="a")
    # 20 each, unless one of them stood still for a moment.
    assert min(Counter(one.broker_set for one in free).values()) >= 10
    assert (fixed.broker_set, fixed.queue_id) == ("b", 2)
    assert {(one.broker_set, one.queue_id) for one in batch} == {("a", 1)}
    found = {name: stored(cluster, name, "balanced") for name in "ab"}
    for n, result in enumerate(keyed):
        at = text_hash(f"k{n % 9}") % 8
        assert (result.broker_set, result.queue_id) == ("ab"[at // 4], at % 4)
        assert found[result.broker_set][result.queue_id][result.queue_offset] == f"{n}"
        assert result.message_id.startswith(f"{result.broker_set}:")
    for queues in found.values():
        for queue in queues:
            for key in range(9):
                mine = [int(one) for one in queue if one.isdecimal() and int(one) % 9 == key]
                assert mine == sorted(mine)


def test_a_missing_topic_is_created_in_one_set_by_all(cluster: BrokerCluster) -> None:
    for n in range(4):
        results = []
        for servers in (cluster.sets["a"].servers, cluster.sets["b"].servers):
            with Producer(servers) as producer:
                results.append(producer.send(f"made-{n}", b"x"))
        assert len({one.broker_set for one in results}) == 1


def test_a_message_is_taken_back_where_it_waits(cluster: BrokerCluster) -> None:
    topic_in(cluster, "later", "a", "b")
    with Producer(cluster.sets["a"].servers) as producer:
        for name in "ab":
            delayed = Message(b"x", ordering_key=key_of(name), delay_s=600)
            result = producer.send("later", delayed)
            assert result.broker_set == name
            producer.recall(result)
            with pytest.raises(MessageNotFound):
                producer.recall(result)


def test_extended_and_drained_while_messages_are_sent(cluster: BrokerCluster) -> None:
    """Nothing fails, nothing is lost or doubled, and keys keep their order through both."""
    create_topic(cluster.sets["a"].servers, "moving", 4)
    futures: list[Future[SendResult]] = []
    must_stop = threading.Event()

    def send() -> None:
        while not must_stop.wait(0.002):
            number = len(futures)
            key = f"k{number % 3}" if number % 2 else ""
            futures.append(
                producer.send_async("moving", Message(f"{number}".encode(), ordering_key=key))
            )

    def last_sets(count: int) -> set[str]:
        done = [one for one in list(futures[-200:]) if one.done()]
        return {one.result().broker_set for one in done[-count:]} if len(done) > count else set()

    with Producer(cluster.servers, timeout_s=30) as producer:
        producer.send("moving", b"first")
        sender = threading.Thread(target=send)
        sender.start()
        try:
            create_topic(cluster.sets["b"].servers, "moving", 4)
            eventually(lambda: last_sets(50) == {"a", "b"}, "the new set is used")
            alter(cluster, "a", "moving", is_writable=False)
            eventually(lambda: last_sets(50) == {"b"}, "the drained set is not used any more")
        finally:
            must_stop.set()
            sender.join()
        results = [one.result(DEADLINE_S) for one in futures]
    found = all_stored(cluster, "moving")
    assert found == {"first": 1} | {f"{n}": 1 for n in range(len(results))}
    for n, result in enumerate(results):
        queue = stored(cluster, result.broker_set, "moving")[result.queue_id] if n < 3 else None
        assert queue is None or queue[result.queue_offset] == f"{n}"
    for name in "ab":
        for queue in stored(cluster, name, "moving"):
            for key in range(3):
                mine = [
                    int(one) for one in queue if one.isdecimal() and int(one) % 6 == 2 * key + 1
                ]
                assert mine == sorted(mine)
    # Gone altogether: what is believed of it does not harm.
    request = pb.DeleteTopicRequest(topic="moving")
    servers = cluster.sets["a"].servers
    call(servers, "AdminService/DeleteTopic", request, pb.DeleteTopicResponse)
    with Producer(cluster.sets["a"].servers) as producer:
        assert {producer.send("moving", f"after {n}").broker_set for n in range(8)} == {"b"}


def test_a_whole_set_is_killed(cluster: BrokerCluster) -> None:
    """Messages without a key go on without an error. Those with one of that set wait, and succeed
    when it is back in time; else they fail and say where. Nothing that was acknowledged is lost or
    doubled.
    """
    topic_in(cluster, "killed", "a", "b")
    sent: dict[str, Future[SendResult]] = {}
    must_stop = threading.Event()

    def send_on(producer: Producer) -> None:
        while not must_stop.wait(0.001):
            body = f"load {len(sent)}"
            sent[body] = producer.send_async("killed", body)

    with (
        Producer(cluster.servers, timeout_s=120) as patient,
        Producer(cluster.servers, timeout_s=1) as hasty,
    ):
        for producer in (patient, hasty):
            for n in range(8):
                assert producer.send("killed", f"{id(producer)} {n}").status == "SEND_OK"
        sender = threading.Thread(target=send_on, args=(patient,))
        sender.start()
        try:
            eventually(lambda: len(sent) > 100)
            cluster.sets["b"].kill_leader()
            free: dict[str, SendResult] = {}
            doubtful: list[str] = []
            for n in range(100):
                try:
                    free[f"hasty {n}"] = hasty.send("killed", f"hasty {n}")
                except Unreachable as error:
                    doubtful.append(str(error))
            # At most the first, if it was written before the end of the stream was seen.
            assert len(doubtful) <= 1
            assert all("may have been stored" in error for error in doubtful)
            assert {one.broker_set for one in free.values()} == {"a"}
            keyed = [
                patient.send_async("killed", Message(b"waits %d" % n, ordering_key=key_of("b")))
                for n in range(20)
            ]
            with pytest.raises(Unreachable, match="broker set b within 1 s; it was not sent"):
                hasty.send("killed", Message(b"hasty and keyed", ordering_key=key_of("b")))
            assert not any(one.done() for one in keyed)
            count = len(sent)
            eventually(lambda: len(sent) > count + 100)
            cluster.sets["b"].start("n0")
            waited = [one.result(DEADLINE_S) for one in keyed]
            assert {one.broker_set for one in waited} == {"b"}
            eventually(
                lambda: hasty.send("killed", b"is it back?").broker_set == "b", "b is used again"
            )
        finally:
            must_stop.set()
            sender.join()
        results = {body: future.result(DEADLINE_S) for body, future in sent.items()}
    found = all_stored(cluster, "killed")
    for body in (*results, *free):
        assert found[body] == 1, body
    assert {one.broker_set for one in results.values()} == {"a", "b"}
    assert found["hasty and keyed"] == 0
    offsets = [(one.queue_id, one.queue_offset) for one in waited]
    assert len({queue for queue, _ in offsets}) == 1
    assert offsets == sorted(offsets)


_DIES = """
import os, sys
from mq.client import TransactionProducer

count = [0]

def execute(message, arg):
    print(message.transaction_id, flush=True)
    count[0] += 1
    if count[0] == 6:
        os._exit(1)
    return "UNKNOWN"

with TransactionProducer(sys.argv[1], "shop", execute, lambda message: "UNKNOWN") as producer:
    for n in range(8):
        producer.send_in_transaction("orders", f"left open {n}", first_check_s=1)
"""


def test_transactions_of_a_producer_that_died_are_asked_about_in_all_sets(
    cluster: BrokerCluster,
) -> None:
    topic_in(cluster, "orders", "a", "b")
    died = subprocess.run(
        [sys.executable, "-c", _DIES, cluster.servers],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    left_open = died.stdout.split()
    assert len(left_open) == 6, died.stderr
    assert {one.partition(":")[0] for one in left_open} == {"a", "b"}
    asked: dict[str, int] = {}

    def check(message: HalfMessage) -> str:
        asked[message.transaction_id] = message.check
        return "COMMIT" if int(message.body.split()[-1]) % 2 else "ROLLBACK"

    def execute(message: HalfMessage, arg: Any) -> str:  # noqa: ARG001
        return "COMMIT"

    def in_order(name: str) -> list[str]:
        return [body for queue in stored(cluster, name, "orders") for body in queue]

    # It has sent nothing itself when it is asked.
    with TransactionProducer(cluster.sets["a"].servers, "shop", execute, check) as producer:
        eventually(lambda: set(asked) == set(left_open), "it is asked about all of them")
        eventually(lambda: len(in_order("a")) + len(in_order("b")) == 3, "they are on their topic")
        results = [producer.send_in_transaction("orders", f"new {n}") for n in range(8)]
        assert {one.broker_set for one in results} == {"a", "b"}
        assert {one.state for one in results} == {"COMMIT"}
        cluster.sets["b"].kill_leader()
        deadline_s = time.monotonic() + DEADLINE_S
        later: list[str] = []
        while len(later) < 8:
            # One that was under way may fail; the others go elsewhere.
            try:
                later.append(producer.send_in_transaction("orders", b"later").broker_set)
            except MqError:
                assert time.monotonic() < deadline_s
        cluster.sets["b"].start("n0")
    assert set(later) == {"a"}
    everything = Counter(in_order("a") + in_order("b"))
    expected = {f"left open {n}": 1 for n in (1, 3, 5)} | {f"new {n}": 1 for n in range(8)}
    assert everything == expected | {"later": 8}
