"""Quotas of a real broker: rates that hold, callers that are told to pause or refused, limits of
what is kept, and consumers that get their messages later but keep their place.
"""

from __future__ import annotations

import random
import time
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from mq.access import keys
from mq.client import Admin, Consumer, Message, Producer, SimpleConsumer
from mq.client.cluster.errors import error_of_call
from mq.errors import FlowControl, MqError, QuotaExceeded
from mq.wire.v1 import admin_pb2, message_pb2, producer_pb2
from mq.wire.v1 import security_pb2 as pb
from tests.support.access import namespace, policy, quota, user
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import poll
from tests.support.topics import call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Guarded(NamedTuple):
    """A broker that knows its callers, and the keys of some."""

    broker: BrokerProcess
    keys: dict[str, str]

    @property
    def address(self) -> str:
        return self.broker.address

    def change(self, *changes: pb.AccessChange) -> None:
        request, response = pb.ChangeAccessRequest(changes=changes), pb.ChangeAccessResponse
        call(self.address, "SecurityService/ChangeAccess", request, response, self.keys["root"])

    def is_up(self) -> bool:
        try:
            self.change()
        except grpc.RpcError:
            return False
        return True

    def client(self, who: str) -> dict[str, Any]:
        return {"servers": self.address, "api_key": self.keys[who]}

    def send(self, who: str, topic: str, size: int, **fields: Any) -> producer_pb2.SendResponse:
        """Without a client, which would wait and send again."""
        messages = [message_pb2.Message(body=bytes(size))]
        request = producer_pb2.SendRequest(topic=topic, messages=messages, **fields)
        answer: producer_pb2.SendResponse = self.call(
            who, "ProducerService/Send", request, producer_pb2.SendResponse
        )
        return answer

    def call(self, who: str, method: str, request: Any, answer: Any) -> Any:
        try:
            return call(self.address, method, request, answer, self.keys[who])
        except grpc.RpcError as error:
            raise error_of_call(error, self.address) from None

    def metric(self, name: str, limit: str) -> float:
        url = f"http://127.0.0.1:{self.broker.metrics_port}/metrics"
        text = urllib.request.urlopen(url, timeout=30).read().decode()
        wanted = f'{name}{{quota="{limit}"}} '
        found = (one.removeprefix(wanted) for one in text.splitlines() if one.startswith(wanted))
        return float(next(found, "0"))


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = {name: keys.new() for name in ("root", "ann", "bob")}
    admin = tmp_path / "admin"
    admin.write_text(f"root:{made['root'].text}\n")
    admin.chmod(0o600)
    flags = ("--auth-mode", "required", "--auth-bootstrap-admin-file", str(admin))
    with BrokerProcess(tmp_path / "data", *flags) as broker:
        found = Guarded(broker, {name: key.text for name, key in made.items()})
        poll(found.is_up, "root is known", 60.0)
        found.change(namespace("acme"))
        for name in ("ann", "bob"):
            key = made[name]
            proof = keys.digest(key.secret)
            record = pb.Credential(id=key.id, user=name, type=pb.API_KEY, proof=proof)
            found.change(user(name), pb.AccessChange(put_credential=record))
            for line in ("allow * topic *", "allow * group *"):
                found.change(policy(f"user:{name}", line))
        yield found


RATE = 1_000_000


def incompressible(size: int) -> Message:
    return Message(random.randbytes(size))


def rate_of(moments: list[tuple[float, int]]) -> float:
    """Bytes a second, of pieces and the times at which they were stored or delivered, without the
    first second: what may be used at once is used then. A piece at the end has no pause behind it,
    so the time is that between two pieces, and the first of them does not count.
    """
    began_s = moments[0][0] + 1
    counted = [one for one in moments if one[0] >= began_s]
    took_s = counted[-1][0] - counted[0][0]
    assert took_s > 9
    return sum(size for at_s, size in counted if at_s > counted[0][0]) / took_s


def publish(guarded: Guarded, who: str, seconds: float) -> list[tuple[float, int]]:
    """By a producer that always has something to send: when the broker has stored each piece."""
    stored = []
    with Producer(**guarded.client(who), linger_ms=0, buffer_bytes=1 << 20) as producer:
        producer.send("t", b"the stream is open")
        began_s = time.monotonic()
        while time.monotonic() - began_s < seconds:
            results = producer.send_batch("t", [incompressible(10_000) for _ in range(5)])
            stored += [(one.stored_at_ms / 1_000, 10_000) for one in results]
    return stored


def test_a_producer_that_pauses_as_it_is_told_gets_its_rate(guarded: Guarded) -> None:
    with Admin(**guarded.client("ann")) as admin:
        admin.create_topic("t", queues=1)
    guarded.change(quota("user:ann", publish_bytes_per_s=RATE))
    assert rate_of(publish(guarded, "ann", 12.0)) == pytest.approx(RATE, rel=0.05)
    assert guarded.metric("mq_quota_throttled_seconds_total", "publish_bytes_per_s") > 1
    assert guarded.metric("mq_quota_refusals_total", "publish_bytes_per_s") == 0
    # Bob has no quota.
    throttled_s = guarded.metric("mq_quota_throttled_seconds_total", "publish_bytes_per_s")
    publish(guarded, "bob", 1.0)
    assert guarded.metric("mq_quota_throttled_seconds_total", "publish_bytes_per_s") == throttled_s


def test_a_caller_that_does_not_pause_is_refused_with_the_time_to_wait(guarded: Guarded) -> None:
    guarded.send("ann", "t", 10)
    guarded.change(quota("user:ann", publish_bytes_per_s=100_000))
    assert guarded.send("ann", "t", 10_000).throttle_ms == 0
    # Joined with others or not: it is the same bucket.
    answer = guarded.send("ann", "t", 100_000)
    assert 500 < answer.throttle_ms < 1_000
    assert guarded.send("ann", "t", 100_000, producer_id="p", sequence=1).throttle_ms > 1_000
    with pytest.raises(FlowControl, match="publish_bytes_per_s of user:ann is 100000") as refused:
        guarded.send("ann", "t", 10)
    wait_ms = refused.value.retry_after_ms
    assert 0 < wait_ms <= 1_000
    assert guarded.send("bob", "t", 10).throttle_ms == 0
    # What is stored is told all the same, and for nothing.
    assert guarded.send("ann", "t", 100_000, producer_id="p", sequence=1).is_duplicate
    time.sleep(wait_ms / 1_000)
    assert guarded.send("ann", "t", 10).throttle_ms > 0
    assert guarded.metric("mq_quota_refusals_total", "publish_bytes_per_s") == 1


def test_stored_bytes_are_limited_and_not_sent_again(guarded: Guarded) -> None:
    guarded.change(quota("user:ann", stored_bytes=300_000, topics=2))
    with Producer(**guarded.client("ann"), timeout_s=60) as producer:
        for _ in range(2):
            producer.send("mine", incompressible(120_000))
        with pytest.raises(QuotaExceeded, match="stored_bytes of user:ann"):
            producer.send("mine", incompressible(120_000))
    # Not again and again until the time-out.
    assert guarded.metric("mq_quota_refusals_total", "stored_bytes") == 1
    # Whoever sends: the topic is Ann's.
    with pytest.raises(QuotaExceeded):
        guarded.send("bob", "mine", 120_000)
    guarded.send("bob", "others", 120_000)
    with Admin(**guarded.client("ann")) as admin:
        stored = admin.describe_topic("mine").info.stored_bytes
        assert 240_000 < stored < 242_000
        admin.create_topic("second", queues=1)
        with pytest.raises(QuotaExceeded, match="topics of user:ann is 2"):
            admin.create_topic("third", queues=1)
        with pytest.raises(QuotaExceeded, match="topics of user:ann is 2"):
            guarded.send("ann", "by-a-first-message", 10)
        admin.delete_topic("mine")
        admin.create_topic("third", queues=1)
    guarded.send("ann", "third", 120_000)


def test_quotas_and_owners_survive_a_kill(guarded: Guarded) -> None:
    guarded.change(quota("user:ann", stored_bytes=100_000, topics=1))
    guarded.send("ann", "mine", 90_000)
    guarded.broker.kill()
    guarded.broker.start()
    poll(guarded.is_up, "root is known", 60.0)
    with pytest.raises(QuotaExceeded, match="stored_bytes of user:ann is 100000, and 90"):
        guarded.send("ann", "mine", 90_000)
    with pytest.raises(QuotaExceeded, match="topics"):
        guarded.send("ann", "another", 10)


def test_a_consumer_gets_its_rate_and_keeps_its_place(guarded: Guarded) -> None:
    with Producer(**guarded.client("bob")) as producer:
        for _ in range(8):
            producer.send_batch("t", [incompressible(5_000) for _ in range(100)])
    guarded.change(quota("user:ann", delivered_bytes_per_s=200_000))
    with Consumer(
        **guarded.client("ann"), group="g", subscriptions="t", start="earliest"
    ) as consumer:
        moments: list[tuple[float, int]] = []
        for message in consumer:
            now_s = time.monotonic()
            # What is delivered together came at one time.
            if moments and now_s - moments[-1][0] < 0.02:
                moments[-1] = now_s, moments[-1][1] + len(message.body)
            else:
                moments.append((now_s, len(message.body)))
            if now_s - moments[0][0] > 12:
                break
    assert rate_of(moments[:-1]) == pytest.approx(200_000, rel=0.05)
    with Admin(**guarded.client("bob")) as admin:
        described = admin.describe_group("g")
    assert described.summary.generation <= 2


def test_pulls_and_receives_wait_for_their_rate(guarded: Guarded) -> None:
    with Producer(**guarded.client("bob")) as producer:
        producer.send_batch("t", [incompressible(5_000) for _ in range(200)])
    guarded.change(quota("user:ann", delivered_bytes_per_s=100_000))
    with SimpleConsumer(
        **guarded.client("ann"), group="g", subscriptions="t", start="earliest"
    ) as simple:
        began_s, count = time.monotonic(), 0
        while time.monotonic() - began_s < 6:
            batch = simple.receive(20, wait_s=5)
            count += sum(len(one.body) for one in batch)
            for one in batch:
                simple.ack(one)
        took_s = time.monotonic() - began_s
    # A second may be owed, and one answer is beyond it.
    assert count <= 100_000 * (took_s + 1.5) + 100_000
    assert count >= 0.5 * 100_000 * (took_s - 2)


def test_groups_streams_and_catalogue_changes_are_limited(guarded: Guarded) -> None:
    for _ in range(3):
        guarded.send("bob", "t", 10, queue_id=0)
    guarded.change(quota("user:ann", groups=1, catalog_changes_per_s=1, streams=1))

    def consume(group: str) -> None:
        with Consumer(
            **guarded.client("ann"), group=group, subscriptions="t", start="earliest"
        ) as one:
            next(iter(one))

    consume("first")
    consume("first")
    with pytest.raises(MqError, match="groups of user:ann is 1") as refused:
        consume("second")
    assert isinstance(refused.value, QuotaExceeded)
    with Producer(**guarded.client("ann")) as producer:
        producer.send("t", b"one stream")
        with pytest.raises(QuotaExceeded, match="streams of user:ann is 1"):
            consume("first")
    request = admin_pb2.CreateTopicRequest(topic="new", queues=1)
    guarded.call("ann", "AdminService/CreateTopic", request, admin_pb2.TopicInfo)
    change = admin_pb2.AlterTopicRequest(topic="new", is_writable=False)
    guarded.call("ann", "AdminService/AlterTopic", change, admin_pb2.TopicInfo)
    with pytest.raises(FlowControl, match="catalog_changes_per_s of user:ann is 1"):
        guarded.call("ann", "AdminService/AlterTopic", change, admin_pb2.TopicInfo)
