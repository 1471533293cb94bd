"""Topics that a consumer asked for before they existed.

A topic is created by its first message, and a consumer may be there before. It waits; but a name
with a slip in it would keep it waiting for ever: each such topic is warned of once, with those that
may have been meant. Knows neither brokers nor time: both are handed in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from mq.names import did_you_mean
from mq.wire.v1.cluster_pb2 import RouteResponse

log = logging.getLogger(__name__)

# Producer and consumer of a new topic often start together: that is no reason to warn.
_WARN_AFTER_S = 1.0


class AwaitedTopics:
    def __init__(self, group: str) -> None:
        self._group = group
        # Since when; those that are there by now are kept.
        self._missing_since_s: dict[str, float] = {}
        self._warned: set[str] = set()
        self.missing: set[str] = set()

    def was_missing(self, topic: str) -> bool:
        """It is newer than the consumer."""
        return topic in self._missing_since_s

    def learn(self, missing: Iterable[str], response: RouteResponse, now_s: float) -> None:
        """Topics that no set has, as far as is known, and a broker's answer about them."""
        self.missing = set(missing)
        similar = {one.topic: one.similar for one in response.missing}
        for topic in sorted(self.missing):
            since_s = self._missing_since_s.setdefault(topic, now_s)
            if now_s - since_s >= _WARN_AFTER_S and topic not in self._warned:
                self._warned.add(topic)
                log.warning(
                    "topic %s does not exist: group %s waits until it is created%s",
                    topic,
                    self._group,
                    did_you_mean(similar.get(topic, ())),
                )
