"""What a producer believes of one topic: its part in each broker set.

Routes come from whatever broker answers, and are stale at times. Two things are known better: what
the leader of a set says of its own part counts more than what others say of it for some seconds;
and a set that the one who answers has never heard of is still there, unless it stays unknown: keys
must not change their queues because a broker has just started. Pure: the caller brings the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mq.wire.v1.cluster_pb2 import TopicRoute

# Brokers of other sets hear of a change in about a second.
_CERTAIN_S = 5.0
_UNKNOWN_S_MAX = 30.0


class TopicParts:
    def __init__(self) -> None:
        self._parts: dict[str, TopicRoute] = {}
        self._seen_s: dict[str, float] = {}
        # None: the leader of the set says that it has no such topic.
        self._certain: dict[str, tuple[TopicRoute | None, float]] = {}

    def learn(
        self, parts: Iterable[TopicRoute], known_sets: Collection[str], now_s: float
    ) -> list[TopicRoute]:
        """From a broker, which knows these sets. What is believed now, by the names of the sets."""
        told = {part.broker_set: part for part in parts}
        self._seen_s |= dict.fromkeys(told, now_s)
        for name, part in self._parts.items():
            is_fresh = now_s - self._seen_s[name] <= _UNKNOWN_S_MAX
            if name not in known_sets and is_fresh:
                told.setdefault(name, part)
        for name, (certain, until_s) in list(self._certain.items()):
            if now_s >= until_s:
                del self._certain[name]
            elif certain is None:
                told.pop(name, None)
            else:
                told[name] = certain
                self._seen_s[name] = now_s
        self._parts = told
        return [told[name] for name in sorted(told)]

    def without(self, broker_set: str) -> list[TopicRoute]:
        """What is believed of the other sets."""
        return [part for name, part in sorted(self._parts.items()) if name != broker_set]

    def learn_certain(self, broker_set: str, parts: Iterable[TopicRoute], now_s: float) -> None:
        """What the leader of that set says, of its own part."""
        own = next((part for part in parts if part.broker_set == broker_set), None)
        self._certain[broker_set] = own, now_s + _CERTAIN_S
