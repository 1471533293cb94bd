"""What a producer believes of a topic when brokers say different things."""

from __future__ import annotations

from mq.client.producer.topic_parts import TopicParts
from mq.wire.v1.cluster_pb2 import TopicRoute
from tests.unit.client.accumulators import part


def sets(parts: list[TopicRoute]) -> dict[str, int]:
    return {one.broker_set: one.write_queues if one.is_writable else 0 for one in parts}


def test_the_newest_answer_counts() -> None:
    topic = TopicParts()
    assert sets(topic.learn([part(4, "b"), part(2, "a")], {"a", "b"}, 0.0)) == {"a": 2, "b": 4}
    assert sets(topic.learn([part(4, "b")], {"a", "b"}, 1.0)) == {"b": 4}
    assert sets(topic.learn([part(8, "b")], {"a", "b"}, 2.0)) == {"b": 8}
    assert sets(topic.without("b")) == {}


def test_a_leader_knows_its_own_part_better_than_others_for_some_seconds() -> None:
    topic = TopicParts()
    stale = [part(4, "a"), part(4, "b")]
    topic.learn(stale, {"a", "b"}, 0.0)
    topic.learn_certain("b", [part(9, "a"), part(4, "b", is_writable=False)], 1.0)
    assert sets(topic.learn(stale, {"a", "b"}, 1.1)) == {"a": 4, "b": 0}
    topic.learn_certain("a", [], 1.2)
    assert sets(topic.learn(stale, {"a", "b"}, 5.9)) == {"b": 0}
    assert sets(topic.learn(stale, {"a", "b"}, 6.1)) == {"b": 4}
    assert sets(topic.learn(stale, {"a", "b"}, 6.3)) == {"a": 4, "b": 4}


def test_a_set_that_the_broker_has_not_heard_of_is_still_there_unless_it_stays_unknown() -> None:
    """Keys must not change their queues because a broker has just started."""
    topic = TopicParts()
    topic.learn([part(4, "a"), part(4, "b")], {"a", "b"}, 0.0)
    for now_s in range(1, 31):
        assert sets(topic.learn([part(4, "a")], {"a"}, now_s)) == {"a": 4, "b": 4}
    assert sets(topic.learn([part(4, "a")], {"a"}, 31.0)) == {"a": 4}


def test_a_set_that_is_known_and_has_no_such_topic_has_none() -> None:
    topic = TopicParts()
    topic.learn([part(4, "a"), part(4, "b")], {"a", "b"}, 0.0)
    assert sets(topic.learn([part(4, "a")], {"a", "b"}, 0.1)) == {"a": 4}
