"""Messages and bytes by topic, since the node's start: what producers sent to it, and what went out
to consumers. One addition a batch. Topics that are gone are dropped when the counts are read.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from mq.broker.state.topics import Topics


class TopicCounts:
    __slots__ = ("_by_topic", "_topics")

    def __init__(self, topics: Topics) -> None:
        self._topics: Final = topics
        self._by_topic: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, topic: str, messages: int, size_bytes: int) -> None:
        counts = self._by_topic[topic]
        counts[0] += messages
        counts[1] += size_bytes

    def read(self) -> dict[str, tuple[int, int]]:
        """Messages and bytes."""
        for topic in [one for one in self._by_topic if one not in self._topics]:
            del self._by_topic[topic]
        return {topic: (counts[0], counts[1]) for topic, counts in self._by_topic.items()}
