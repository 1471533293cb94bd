"""AdminService: topics. And ClusterService/Route, which tells clients of them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import cluster_pb2
from mq.wire.v1.consumer_pb2 import QueuePosition
from tests.conformance.calls import Calls, numbers
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
DENIED = grpc.StatusCode.PERMISSION_DENIED


def test_a_topic_is_created_as_it_is_asked_for(calls: Calls, new_name: Callable[[], str]) -> None:
    name = new_name()
    before_ms = time.time() * 1000 - 1
    created = calls("CreateTopic", topic=name, queues=3, type=cluster_pb2.TOPIC_ORDERED)
    assert (created.topic, created.type) == (name, cluster_pb2.TOPIC_ORDERED)
    assert (created.write_queues, created.read_queues) == (3, 3)
    assert created.is_readable
    assert created.is_writable
    assert not created.is_internal
    assert before_ms <= created.created_at_ms <= time.time() * 1000
    described = calls("DescribeTopic", topic=name)
    assert described.info == created
    assert [(one.queue_id, one.start, one.end) for one in described.queues] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]


def test_without_a_number_there_are_eight_queues(calls: Calls, new_name: Callable[[], str]) -> None:
    assert calls("CreateTopic", topic=new_name()).write_queues == 8


def test_every_legal_name_and_number_of_queues_is_taken(calls: Calls) -> None:
    for name, queues in (("x" * 127, 1), ("Az09%|_-", 65_536)):
        assert calls("CreateTopic", topic=name, queues=queues).read_queues == queues
        calls.send(name, b"x", queue_id=queues - 1)
        assert calls.ends(name)[-1] == 1
        calls("DeleteTopic", topic=name)


def test_topics_are_listed_with_what_is_in_them(calls: Calls, topic: str) -> None:
    calls.send(topic, *numbers(3))
    calls.send(topic, *numbers(4), queue_id=1)
    found = calls("ListTopics").topics
    listed = {one.info.topic: (one.messages, one.messages_written) for one in found}
    assert listed[topic] == (7, 7)
    assert list(listed) == sorted(listed)
    everything = calls("ListTopics", include_internal=True).topics
    assert {one.info.topic for one in everything} >= set(listed)


def test_a_topic_is_described_with_its_queues_and_groups(
    calls: Calls, topic: str, group: str
) -> None:
    sent = calls.send(topic, *numbers(3), queue_id=2)
    position = QueuePosition(topic=topic, queue_id=2, queue_offset=1)
    calls("CommitOffsets", group=group, positions=[position])
    described = calls("DescribeTopic", topic=topic)
    assert list(described.groups) == [group]
    queue = described.queues[2]
    assert (queue.start, queue.end, queue.last_stored_at_ms) == (0, 3, sent.stored_at_ms)
    assert described.queues[0].last_stored_at_ms == 0


def test_topics_and_groups_may_have_dots(calls: Calls, new_name: Callable[[], str]) -> None:
    topic, group = f"shop.{new_name()}.v2", f"billing.{new_name()}"
    calls.create(topic)
    sent = calls.send(topic, b"one")
    calls("CommitOffsets", group=group, positions=[QueuePosition(topic=topic, queue_offset=0)])
    assert calls("DescribeTopic", topic=topic).groups == [group]
    assert calls("GetMessage", message_id=sent.message_ids[0]).topic == topic
    calls("DeleteTopic", topic=topic)


# -- changes ---------------------------------------------------------------------------------------


def test_omitted_fields_of_a_change_stay(calls: Calls, topic: str) -> None:
    before = calls("DescribeTopic", topic=topic).info
    assert calls("AlterTopic", topic=topic) == before
    changed = calls("AlterTopic", topic=topic, is_writable=False)
    before.is_writable = False
    assert changed == before
    changed = calls("AlterTopic", topic=topic, read_queues=6)
    before.read_queues = 6
    assert changed == before


def test_queues_beyond_the_number_keep_their_messages_and_are_not_seen(
    calls: Calls, topic: str
) -> None:
    calls.send(topic, b"kept", queue_id=3)
    calls("AlterTopic", topic=topic, write_queues=2)
    assert calls.refused("Send", topic=topic, queue_id=3, messages=[{}]).code == "QUEUE_NOT_FOUND"
    assert calls.bodies(topic, 3) == [b"kept"]
    calls("AlterTopic", topic=topic, read_queues=2)
    assert calls.refused("Pull", topic=topic, queue_id=3).code == "QUEUE_NOT_FOUND"
    assert len(calls.ends(topic)) == 2
    calls("AlterTopic", topic=topic, write_queues=4, read_queues=4)
    assert calls.bodies(topic, 3) == [b"kept"]


def test_a_deleted_topic_is_gone_and_counts_on_when_it_is_created_again(
    calls: Calls, topic: str
) -> None:
    sent = calls.send(topic, *numbers(3))
    calls("DeleteTopic", topic=topic)
    assert calls.refused("DescribeTopic", topic=topic).code == "TOPIC_NOT_FOUND"
    assert calls.refused("Pull", topic=topic).code == "TOPIC_NOT_FOUND"
    assert topic not in {one.info.topic for one in calls("ListTopics").topics}
    refusal = calls.refused("GetMessage", message_id=sent.message_ids[0])
    assert refusal.code == "MESSAGE_NOT_FOUND"
    calls.create(topic)
    described = calls("DescribeTopic", topic=topic)
    assert (described.queues[0].start, described.queues[0].end) == (3, 3)
    (anew,) = (one for one in calls("ListTopics").topics if one.info.topic == topic)
    assert (anew.messages, anew.messages_written) == (0, 3)
    assert list(described.groups) == []
    assert calls.send(topic, b"anew").queue_offset == 3


def test_of_many_that_create_a_topic_one_does(calls: Calls, new_name: Callable[[], str]) -> None:
    name = new_name()

    def create(queues: int) -> Any:
        try:
            return calls("CreateTopic", topic=name, queues=queues)
        except grpc.RpcError as error:
            return error.code()

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(create, range(1, 17)))
    created = [one for one in outcomes if one != grpc.StatusCode.ALREADY_EXISTS]
    assert len(created) == 1
    assert created[0] == calls("DescribeTopic", topic=name).info


def test_changes_at_the_same_time_do_not_undo_each_other(calls: Calls, topic: str) -> None:
    changes: list[dict[str, Any]] = [
        {"write_queues": 2},
        {"read_queues": 9},
        {"is_readable": False},
        {"is_writable": False},
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda change: calls("AlterTopic", topic=topic, **change), changes))
    info = calls("DescribeTopic", topic=topic).info
    assert (info.write_queues, info.read_queues) == (2, 9)
    assert not info.is_readable
    assert not info.is_writable


# -- refusals --------------------------------------------------------------------------------------

REFUSALS = [
    ("CreateTopic", {"topic": ""}, "ILLEGAL_TOPIC", INVALID, "''"),
    ("CreateTopic", {"topic": "..b"}, "ILLEGAL_TOPIC", INVALID, "..b"),
    ("CreateTopic", {"topic": "a."}, "ILLEGAL_TOPIC", INVALID, "no dot first or last"),
    ("CreateTopic", {"topic": "x" * 128}, "ILLEGAL_TOPIC", INVALID, "xxx"),
    ("CreateTopic", {"topic": "%RETRY%g"}, "PERMISSION_DENIED", DENIED, "%RETRY%g"),
    ("CreateTopic", {"topic": "unborn", "queues": 65_537}, "ILLEGAL_REQUEST", INVALID, "65537"),
    ("CreateTopic", {"topic": "unborn", "type": 9}, "ILLEGAL_REQUEST", INVALID, "9"),
    ("AlterTopic", {"topic": "unborn"}, "TOPIC_NOT_FOUND", NOT_FOUND, "unborn"),
    ("AlterTopic", {"topic": "a b"}, "ILLEGAL_TOPIC", INVALID, "a b"),
    ("AlterTopic", {"topic": "%SYS%OP"}, "PERMISSION_DENIED", DENIED, "%SYS%OP"),
    ("DeleteTopic", {"topic": "unborn"}, "TOPIC_NOT_FOUND", NOT_FOUND, "unborn"),
    ("DeleteTopic", {"topic": "a b"}, "ILLEGAL_TOPIC", INVALID, "a b"),
    ("DeleteTopic", {"topic": "%SYS%OP"}, "PERMISSION_DENIED", DENIED, "%SYS%OP"),
    ("DescribeTopic", {"topic": "unborn"}, "TOPIC_NOT_FOUND", NOT_FOUND, "unborn"),
    ("DescribeTopic", {"topic": "a\nb"}, "ILLEGAL_TOPIC", INVALID, "a\\nb"),
    ("Route", {"topics": ["fine", "not fine"]}, "ILLEGAL_TOPIC", INVALID, "not fine"),
    ("Route", {"topics": ["x"] * 10_001}, "ILLEGAL_REQUEST", INVALID, "10001"),
    ("Route", {"topics": ["unborn", "a b"], "create_missing": True}, "ILLEGAL_TOPIC", INVALID, ""),
]


@pytest.mark.parametrize(("method", "fields", "code", "grpc_code", "text"), REFUSALS)
def test_a_bad_request_is_refused_by_name_and_changes_nothing(
    calls: Calls, method: str, fields: dict[str, Any], code: str, grpc_code: Any, text: str
) -> None:
    before = calls("ListTopics", include_internal=True)
    refusal = calls.refused(method, **fields)
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)
    assert text in refusal.text
    assert calls("ListTopics", include_internal=True) == before


def test_a_topic_is_created_once(calls: Calls, topic: str) -> None:
    before = calls("DescribeTopic", topic=topic)
    refusal = calls.refused("CreateTopic", topic=topic, queues=9)
    assert (refusal.code, refusal.grpc_code) == ("TOPIC_EXISTS", grpc.StatusCode.ALREADY_EXISTS)
    assert topic in refusal.text
    assert calls("DescribeTopic", topic=topic) == before


ALTERATIONS = [
    {"write_queues": 0},
    {"read_queues": 0},
    {"write_queues": 65_537},
    {"write_queues": 5},  # more than are read
    {"read_queues": 3},  # fewer than are written
]


@pytest.mark.parametrize("fields", ALTERATIONS)
def test_an_illegal_change_is_refused(calls: Calls, topic: str, fields: dict[str, int]) -> None:
    before = calls("DescribeTopic", topic=topic)
    refusal = calls.refused("AlterTopic", topic=topic, is_writable=False, **fields)
    assert (refusal.code, refusal.grpc_code) == ("ILLEGAL_REQUEST", INVALID)
    assert "queues" in refusal.text
    assert calls("DescribeTopic", topic=topic) == before


# -- routes ----------------------------------------------------------------------------------------


def test_a_route_names_the_nodes_and_the_topics(
    calls: Calls, broker: BrokerProcess, topic: str
) -> None:
    route = calls("Route", topics=[topic, "unborn"])
    assert route.cluster == "mq"
    (broker_set,) = route.broker_sets
    assert (broker_set.name, broker_set.leader_id) == ("set-0", "node-0")
    assert broker_set.term > 0
    assert [(one.node_id, one.address) for one in broker_set.nodes] == [("node-0", broker.address)]
    (found,) = route.topics
    assert (found.topic, found.broker_set) == (topic, "set-0")
    assert (found.write_queues, found.read_queues) == (4, 4)
    assert found.is_readable
    assert found.is_writable
    assert calls("Route").topics == []


def test_a_route_creates_what_is_missing_when_asked_to(
    calls: Calls, topic: str, new_name: Callable[[], str]
) -> None:
    name = new_name()
    route = calls("Route", topics=[topic, name], create_missing=True)
    assert [(one.topic, one.write_queues) for one in route.topics] == [(topic, 4), (name, 8)]


# -- where nothing is created by itself ------------------------------------------------------------


def test_without_auto_creation_only_operators_create_topics(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--broker-auto-create-topics", "no") as broker,
        grpc.insecure_channel(broker.address) as channel,
    ):
        calls = Calls(channel)
        wanted = [{"topic": "t"}]
        for method, fields in (
            ("Send", {"topic": "t", "messages": [{}]}),
            ("Send", {"topic": "t", "queue_id": 0, "messages": [{}]}),
            ("Join", {"group": "g", "member_id": "m", "subscriptions": wanted}),
        ):
            refusal = calls.refused(method, **fields)
            assert (refusal.code, refusal.grpc_code) == ("TOPIC_NOT_FOUND", NOT_FOUND)
            assert "mq topic create t" in refusal.text
        assert calls("Route", topics=["t"], create_missing=True).topics == []
        assert calls("ListTopics").topics == []
        # An operator may change that while the broker runs.
        calls("SetConfig", name="broker.auto_create_topics", value="yes")
        calls.send("t", b"x")
        assert calls.bodies("t") == [b"x"]
