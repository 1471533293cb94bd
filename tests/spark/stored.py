"""The messages of a topic, read by a plain consumer: for tests of Spark's writes."""

from __future__ import annotations

from mq.client import PullConsumer, QueueRef, ReceivedMessage
from mq.errors import TopicNotFound


def stored(servers: str, topic: str) -> dict[QueueRef, list[ReceivedMessage]]:
    """All messages, by queue."""
    found: dict[QueueRef, list[ReceivedMessage]] = {}
    with PullConsumer(servers) as consumer:
        for ref, end in consumer.find_offsets(topic, "latest").items():
            messages = found[ref] = []
            while len(messages) < end:
                messages += consumer.pull(
                    topic,
                    ref.queue_id,
                    len(messages),
                    max_messages=1_000,
                    broker_set=ref.broker_set,
                ).messages
    return found


def bodies(servers: str, topic: str) -> list[bytes]:
    """The bodies of all messages, sorted."""
    return sorted(one.body for messages in stored(servers, topic).values() for one in messages)


def count(servers: str, topic: str) -> int:
    """0 also while there is no such topic."""
    with PullConsumer(servers) as consumer:
        try:
            return sum(consumer.find_offsets(topic, "latest").values())
        except TopicNotFound:
            return 0
