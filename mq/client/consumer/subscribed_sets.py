"""The broker sets that a consumer joins and leaves, and its start in a set that is new to it.

The topology knows the locations of topics, in sticky parts: a set is left on its own word only. A
set without the topics counts as long as messages of the group wait there for their next attempt. A
group that knows a topic elsewhere starts with the oldest message in a further set of that topic, so
that it misses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import CALL_TIMEOUT_S
from mq.client.cluster.topology import Route, is_readable
from mq.client.consumer.offsets import BroadcastOffsets, find_in, query_in
from mq.client.consumer.options import GroupOptions, Start
from mq.errors import MqError, PermissionDenied, TopicNotFound
from mq.names import did_you_mean, retry_topic
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse

log = logging.getLogger(__name__)

_NONE: frozenset[str] = frozenset()
_ASK_S = 1.0
# The clocks of brokers may be ahead of ours by so much.
_CLOCKS_DIFFER_MS = 60_000
# Producer and consumer of a new topic often start together: no reason to warn.
_WARN_AFTER_S = 1.0


class SubscribedSets:
    """The broker sets that one consumer should join, by what is known of its topics."""

    def __init__(
        self, connection: Connection, options: GroupOptions, kept: BroadcastOffsets | None = None
    ) -> None:
        """`kept`: the offsets of a broadcast consumer."""
        self._connection = connection
        self._topology = connection.topology
        self._options = options
        self._kept = kept
        # Broadcast consumers have no retry topic.
        self._retry_topics = [retry_topic(options.group)] if options.is_clustering else []
        self._asked = [*options.topics, *self._retry_topics]
        # Sets in which topics would be created that no set has.
        self._homes = _NONE
        self._missing = MissingTopics(options.group)
        self._starts: dict[str, Start] | None = None
        self._began_ms = time.time_ns() // 1_000_000
        # By the last answer: all sets, and those that have a readable topic of the consumer.
        self.listed = self.told = _NONE

    @property
    def _routes(self) -> list[Route]:
        return [self._topology.sticky(topic) for topic in self._options.topics]

    @property
    def sets(self) -> frozenset[str]:
        """The sets that the consumer should join."""
        found = set(self._homes)
        for route in self._routes:
            # A topic that is not readable is joined, too: the refusal says why.
            found.update(route.readable_sets or route.sets)
        for topic in self._retry_topics:
            found.update(self._topology.sticky(topic).sets)
        return frozenset(found)

    async def look(self) -> None:
        """Asks any broker. Raises Unreachable if none answers."""
        is_first = self._starts is None
        await self._ask_any_broker()
        missing = [route.topic for route in self._routes if not route.parts]
        if is_first:
            # A topic that is deleted later may be created again in any set.
            homes = [await self._topology.home(topic) for topic in missing]
            self._homes = frozenset(one.name for one in homes)
            if self._kept is not None:
                for route in self._routes:
                    self._kept.adopt(route.topic, route.sets)
            self._starts = await self._first_starts()
        elif not missing:
            self._homes = _NONE

    async def _ask_any_broker(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        response = await self._connection.brokers(self._asked, timeout_s)
        self.listed = frozenset(one.name for one in response.broker_sets)
        self.told = frozenset(one.broker_set for one in response.topics if one.is_readable)
        # A topic that was known is not missing: a broker that has just started knows few.
        missing = [route.topic for route in self._routes if not route.parts]
        self._missing.learn(missing, response, time.monotonic())

    @property
    def is_waiting(self) -> bool:
        """Whether a topic does not exist."""
        return bool(self._missing.missing)

    async def lost(self, names: Iterable[str]) -> list[str]:
        """Returns the sets that have nothing for the consumer, by their own answer, while others
        have.
        """
        answered = [name for name in names if await self._ask(name)]
        return [name for name in answered if self.sets and name not in self.sets]

    async def is_missing(self, refused_by: str) -> bool:
        """Whether a topic is neither in this set nor in any other that is known."""
        try:
            await self._ask_any_broker(_ASK_S)
        except MqError:
            return False
        known = {name for route in self._routes for name in route.sets} - self.told
        for name in sorted(known | {refused_by}):
            await self._ask(name)
        return not all(route.parts for route in self._routes)

    async def _ask(self, name: str) -> bool:
        """Asks a set about itself; its answer replaces what was known. False: it gave none."""
        request = RouteRequest(topics=self._asked)
        try:
            response: RouteResponse = await self._connection.of(name).call(request, _ASK_S)
            said = {
                part.topic
                for part in response.topics
                if part.broker_set == name and is_readable(part)
            }
            for topic in sorted(self._readable_in(name) - said):
                if await self._is_read(name, topic):
                    return False  # the broker that answered lags behind
        except MqError as error:
            log.info("broker set %s cannot be asked for its topics: %s", name, error)
            return False
        self._homes -= {name}
        self._topology.confirm(name, self._asked, response)
        return True

    def _readable_in(self, name: str) -> set[str]:
        """Topics of the set that are known to be readable."""
        found = {route.topic for route in self._routes if name in route.readable_sets}
        retries = [one for one in self._retry_topics if name in self._topology.sticky(one).sets]
        return found.union(retries)

    async def _is_read(self, name: str, topic: str) -> bool:
        """By the answer of the leader, which has applied all of its log."""
        try:
            broker_set = self._connection.of(name)
            return bool(await find_in(broker_set, topic, "earliest", (), _ASK_S))
        except (TopicNotFound, PermissionDenied):
            return False

    def forget(self, name: str) -> None:
        """Forgets all that is known of this set."""
        self._homes -= {name}
        self._topology.forget_set(name)

    # Start positions

    def start_in(self, name: str, topic: str = "") -> Start:
        """The position in queues of a set of which the group has no offset; `topic`: in those of
        this topic only.
        """
        if self._options.start != "latest":
            return self._options.start
        # "latest" is the start of the consumer for sets and topics that are newer than that.
        then_ms = self._began_ms - _CLOCKS_DIFFER_MS
        if self._missing.was_missing(topic):
            return then_ms
        return (self._starts or {}).get(name, then_ms)

    async def _first_starts(self) -> dict[str, Start]:
        starts: dict[str, Start] = dict.fromkeys(self.sets, self._options.start)
        if self._options.start == "latest" and len(starts) > 1:
            topics = await self._topics_of_group(starts)
            for name in starts:
                elsewhere = {one for other in topics.keys() - {name} for one in topics[other]}
                mine = {route.topic for route in self._routes if name in route.sets}
                if (elsewhere & mine) - topics[name]:
                    starts[name] = "earliest"
        return starts

    async def _topics_of_group(self, names: Iterable[str]) -> dict[str, set[str]]:
        """By set: the topics of which the group has offsets there."""
        if self._kept is not None:
            return {name: {ref.topic for ref in self._kept.of(name)} for name in names}
        return dict(zip(names, await asyncio.gather(*map(self._query, names)), strict=True))

    async def _query(self, name: str) -> set[str]:
        try:
            offsets = await query_in(
                self._connection.of(name), self._options.group, timeout_s=_ASK_S
            )
        except MqError as error:
            # As if it had none: it starts with the oldest message, and misses nothing.
            log.info("broker set %s cannot be asked for offsets: %s", name, error)
            return set()
        return {ref.topic for ref in offsets}


class MissingTopics:
    """Topics that a consumer subscribes to before they exist.

    A topic is created by its first message, and the consumer waits for it. A typing mistake would
    keep it waiting for ever: each such topic is warned of once, with topics of similar names. Knows
    neither brokers nor a clock.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        # Since when a topic was missing, also of those that exist by now.
        self._missing_since_s: dict[str, float] = {}
        self._warned: set[str] = set()
        self.missing: set[str] = set()

    def was_missing(self, topic: str) -> bool:
        """Whether the topic is newer than the consumer."""
        return topic in self._missing_since_s

    def learn(self, missing: Iterable[str], response: RouteResponse, now_s: float) -> None:
        """Topics that no known set has, and the answer of a broker about them."""
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
