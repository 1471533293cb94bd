"""Checks of a topic for every request, and the topics of a checkpoint."""

from __future__ import annotations

import pytest

from mq.broker.state.topics import Topics
from mq.errors import IllegalTopic, MqError, PermissionDenied, QueueNotFound, TopicNotFound
from mq.wire.v1.cluster_pb2 import TOPIC_ORDERED
from mq.wire.v1.state_pb2 import PutTopic


def put(topics: Topics, name: str, now_ms: int = 1_000, **fields: object) -> None:
    values = {
        "write_queues": 2,
        "read_queues": 4,
        "is_readable": True,
        "is_writable": True,
        **fields,
    }
    topics.put(PutTopic(topic=name, **values), now_ms)  # type: ignore[arg-type]


@pytest.fixture
def topics() -> Topics:
    found = Topics()
    put(found, "t")
    put(found, "deaf", is_writable=False)
    put(found, "mute", is_readable=False)
    put(found, "%RETRY%g")
    put(found, "%DLQ%g")
    put(found, "%SYS%OP")
    return found


WRITES = [
    ("t", 1, None),
    ("t", 2, QueueNotFound),
    ("mute", 0, None),
    ("deaf", 0, PermissionDenied),
    ("%RETRY%g", 0, PermissionDenied),
    ("%SYS%OP", 0, PermissionDenied),
    ("gone", 0, TopicNotFound),
    ("not legal", 0, IllegalTopic),
]
READS = [
    ("t", 3, None),
    ("t", 4, QueueNotFound),
    ("deaf", 0, None),
    ("mute", 0, PermissionDenied),
    ("%RETRY%g", 0, None),
    ("%DLQ%g", 0, None),
    ("%SYS%OP", 0, PermissionDenied),
    ("gone", 0, TopicNotFound),
    ("not legal", 0, IllegalTopic),
]


@pytest.mark.parametrize(("name", "queue_id", "error"), WRITES)
def test_writable_queues(
    topics: Topics, name: str, queue_id: int, error: type[MqError] | None
) -> None:
    if error is None:
        assert topics.writable(name, queue_id).name == name
        return
    with pytest.raises(error) as raised:
        topics.writable(name, queue_id)
    assert name in str(raised.value)


@pytest.mark.parametrize(("name", "queue_id", "error"), READS)
def test_readable_queues(
    topics: Topics, name: str, queue_id: int, error: type[MqError] | None
) -> None:
    if error is None:
        assert topics.readable(name, queue_id).name == name
        return
    with pytest.raises(error) as raised:
        topics.readable(name, queue_id)
    assert name in str(raised.value)


def test_a_refusal_says_why(topics: Topics) -> None:
    for ask, name, why in (
        (topics.writable, "deaf", "switched off"),
        (topics.writable, "%SYS%OP", "the broker's own"),
        (topics.readable, "mute", "switched off"),
        (topics.readable, "%SYS%OP", "the broker's own"),
    ):
        with pytest.raises(PermissionDenied, match=why):
            ask(name, 0)


def test_a_change_keeps_the_time_of_creation(topics: Topics) -> None:
    put(topics, "t", now_ms=9_999, read_queues=8, type=TOPIC_ORDERED)
    found = topics.find("t")
    assert (found.created_at_ms, found.read_queues, found.type) == (1_000, 8, TOPIC_ORDERED)
    topics.drop("t")
    put(topics, "t", now_ms=9_999)
    assert topics.find("t").created_at_ms == 9_999


def test_every_change_is_noticed(topics: Topics) -> None:
    versions = [topics.version]
    put(topics, "new")
    versions.append(topics.version)
    assert topics.drop("new")
    versions.append(topics.version)
    topics.restore(list(topics.encode()), counts_stored_bytes=True)
    versions.append(topics.version)
    assert versions == sorted(set(versions))


def test_a_dropped_topic_is_gone(topics: Topics) -> None:
    assert len(topics) == 6
    assert topics.drop("t")
    assert not topics.drop("t")
    assert "t" not in topics
    assert len(topics) == 5


def test_a_checkpoint_has_all_topics_in_one_order(topics: Topics) -> None:
    other = Topics()
    for name in reversed([topic.name for topic in topics]):
        topic = topics.find(name)
        other.put(topic.command(), topic.created_at_ms)
    assert list(other.encode()) == list(topics.encode())
    restored = Topics()
    restored.restore(list(topics.encode()), counts_stored_bytes=False)
    assert list(restored) == list(topics)
