"""The locations of topics: which broker sets have queues of a topic, by which broker, and when.

The answer of any broker is a place to start, and stale at times. Two things are known better. What
the leader of a set says of its own part counts more than what others say of it, for some seconds.
A set that the broker which answered has never heard of is still there, for two minutes: keys must
not change their queues because a broker has just started. Each answer serves all users of the
connection, and subscribers are told of each change.

Consumers need more: to leave a set and join it again delivers its messages in flight twice. Sticky
parts are added on the answer of any broker, and removed only on the confirmed one of their own set.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mq import names
from mq.client.cluster.retry import CALL_TIMEOUT_S, Retry, now_s
from mq.client.messages import QueueRef
from mq.errors import IllegalRequest, NotLeader, PermissionDenied, TopicNotFound, Unreachable
from mq.hashing import text_hash
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse, TopicRoute

if TYPE_CHECKING:
    from mq.client.cluster.connection import Connection, SetConnection

# A route is used for so long without asking.
ROUTE_AGE_S_MAX = 30.0
# Brokers of other sets hear of a change in about a second.
_LEADER_SAID_S = 5.0
# Since the last word of the set, which is as old as a route at times: sets have the rest of it to
# come back after all brokers were stopped.
_UNHEARD_S_MAX = ROUTE_AGE_S_MAX + 90.0
# The time-out of the leader of a set that has refused something, if others have the topic.
_REFUSAL_S = 1.0


class Route(NamedTuple):
    """The believed location of a topic: a part for each broker set with queues of it, by name."""

    topic: str
    parts: tuple[TopicRoute, ...]

    @property
    def sets(self) -> list[str]:
        return [part.broker_set for part in self.parts]

    @property
    def readable_sets(self) -> list[str]:
        return [part.broker_set for part in self.parts if is_readable(part)]

    @property
    def writable_sets(self) -> list[str]:
        return [part.broker_set for part in self.parts if is_writable(part)]

    @property
    def readable(self) -> list[QueueRef]:
        """The queues to read from, in the order of their sets."""
        return [
            QueueRef(self.topic, queue_id, part.broker_set)
            for part in self.parts
            for queue_id in range(part.read_queues if part.is_readable else 0)
        ]


class TopicParts:
    """The beliefs about one topic. Pure: the caller passes the time."""

    def __init__(self) -> None:
        # When all sets were asked for last, by asking any broker.
        self.asked_s = -math.inf
        # By set: the newest word of any broker, and when that was.
        self._told: dict[str, tuple[TopicRoute, float]] = {}
        # The same of the leader of the set. None: the set does not have the topic.
        self._leader_said: dict[str, tuple[TopicRoute | None, float]] = {}
        # By set. Replaced, never changed: other threads read it.
        self._sticky: Mapping[str, TopicRoute] = {}

    def believed(self) -> tuple[TopicRoute, ...]:
        return tuple(self._told[name][0] for name in sorted(self._told))

    def sticky(self) -> tuple[TopicRoute, ...]:
        """Parts stay, and stay readable, whatever brokers say, until `confirm`."""
        sticky = self._sticky
        return tuple(sticky[name] for name in sorted(sticky))

    def confirm(self, broker_set: str, part: TopicRoute | None) -> None:
        """Replaces the sticky part of that set. None: the set does not have the topic."""
        others = {name: one for name, one in self._sticky.items() if name != broker_set}
        self._sticky = others if part is None else {**others, broker_set: part}

    def learn(
        self, parts: Collection[TopicRoute], known_sets: Collection[str], now_s: float
    ) -> None:
        """From any broker, which has heard of these sets."""
        for part in parts:
            if is_readable(part) or part.broker_set not in self._sticky:
                self.confirm(part.broker_set, part)
        told = {part.broker_set: (part, now_s) for part in parts}
        for name, (part, told_s) in self._told.items():
            if name not in known_sets and now_s - told_s <= _UNHEARD_S_MAX:
                told.setdefault(name, (part, told_s))
        self._told, self.asked_s = told, now_s
        for name, (certain, said_s) in self._leader_said.items():
            if now_s - said_s < _LEADER_SAID_S:
                self._tell(name, certain, now_s)

    def learn_from_leader(self, broker_set: str, part: TopicRoute | None, now_s: float) -> None:
        """From the leader of that set, of its own part."""
        self._leader_said[broker_set] = part, now_s
        self._tell(broker_set, part, now_s)

    def leader_said(self, broker_set: str, now_s: float) -> TopicRoute | None:
        """The part of that set, if its leader has confirmed it not long ago."""
        part, said_s = self._leader_said.get(broker_set, (None, -math.inf))
        return part if now_s - said_s <= ROUTE_AGE_S_MAX else None

    def expire(self) -> None:
        """Is asked for again before it is used again."""
        self.asked_s = -math.inf
        self._leader_said.clear()

    def _tell(self, broker_set: str, part: TopicRoute | None, now_s: float) -> None:
        if part is None:
            self._told.pop(broker_set, None)
        else:
            self._told[broker_set] = part, now_s


class Topology:
    """Of one connection, which feeds it by `learn`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topics: dict[str, TopicParts] = {}
        self._subscribers: list[Callable[[Route], object]] = []
        self._looking: dict[tuple[str, str], asyncio.Task[Route]] = {}

    def subscribe(self, on_change: Callable[[Route], object]) -> None:
        """It is called, on the loop, when something else is believed of a topic than before."""
        self._subscribers.append(on_change)

    def close(self) -> None:
        for task in self._looking.values():
            task.cancel()

    # Without asking

    def known(self, topic: str) -> Route | None:
        """The route that was learnt in the last half minute."""
        known = self._topics.get(topic)
        if known is None or now_s() - known.asked_s > ROUTE_AGE_S_MAX:
            return None
        route = self.believed(topic)
        return route if route.parts else None

    def believed(self, topic: str) -> Route:
        """The last known route, of any age; without parts if none is known."""
        known = self._topics.get(topic)
        return Route(topic, () if known is None else known.believed())

    def sticky(self, topic: str) -> Route:
        """All parts that a broker has told of and that their own set has not denied by `confirm`.
        For consumers. Any thread may call it.
        """
        known = self._topics.get(topic)
        return Route(topic, () if known is None else known.sticky())

    def confirm(self, broker_set: str, topics: Sequence[str], response: RouteResponse) -> None:
        """The answer of a set about its own part of these topics, which its leader has confirmed:
        a broker of the set that answers may lag behind.
        """
        self.learn(topics, response, leader_of=broker_set)
        own = {part.topic: part for part in response.topics if part.broker_set == broker_set}
        for topic in topics:
            self._topics[topic].confirm(broker_set, own.get(topic))

    def forget_set(self, broker_set: str) -> None:
        """The set is gone for good: it has no sticky parts."""
        for known in self._topics.values():
            known.confirm(broker_set, None)

    def forget(self, topic: str) -> None:
        """A broker does not agree with it: the topic has changed, or is gone."""
        if topic in self._topics:
            self._topics[topic].expire()

    def learn(self, topics: Sequence[str], response: RouteResponse, leader_of: str = "") -> None:
        """The answer of a broker that was asked for these topics, and may lead a set."""
        known_sets = {one.name for one in response.broker_sets}
        for topic in topics:
            parts = {part.broker_set: part for part in response.topics if part.topic == topic}
            known, before = self._known_before(topic)
            known.learn(parts.values(), known_sets, now_s())
            if leader_of:
                known.learn_from_leader(leader_of, parts.get(leader_of), now_s())
            self._tell_of_change(topic, before)

    def _known_before(self, topic: str) -> tuple[TopicParts, tuple[TopicRoute, ...]]:
        known = self._topics.setdefault(topic, TopicParts())
        return known, known.believed()

    def _tell_of_change(self, topic: str, before: tuple[TopicRoute, ...]) -> None:
        route = self.believed(topic)
        if route.parts != before:
            for on_change in self._subscribers:
                on_change(route)

    # Asking

    async def locate(
        self, topic: str, *, create: bool = False, timeout_s: float = CALL_TIMEOUT_S
    ) -> Route:
        """The route of a topic. Raises TopicNotFound if it does not exist and is not created."""
        known = self.known(topic)
        if known is not None:
            return known
        names.check_topic(topic)
        retry = Retry(timeout_s)
        response = await self._connection.brokers([topic], timeout_s)
        parts = self._topics[topic].believed()
        if not parts:
            # It does not exist, or the broker that answered lags behind: the leader of the set
            # that would create it knows best.
            home = await self.home(topic, retry.left_s)
            response = await self.ask_leader(home, [topic], retry.left_s, create=create)
            parts = self._topics[topic].believed()
        if not parts:
            raise topic_not_found(topic, response)
        return Route(topic, parts)

    async def locate_writable(self, topic: str, timeout_s: float, refused_by: str = "") -> Route:
        """A route with a part that takes messages. The topic is created if it is missing
        and the brokers allow that. `refused_by`: a set that said that the topic, or a queue of it,
        is gone or closed. Asks once for all callers that want to know at the same time.

        TopicNotFound, PermissionDenied, IllegalTopic; Unreachable.
        """
        names.check_topic(topic)
        if names.is_internal_topic(topic):
            raise PermissionDenied(f"topic {topic} is written by the broker alone")
        key = topic, refused_by
        task = self._looking.get(key)
        if task is None:
            work = (
                self._locate_after_refusal(topic, timeout_s, refused_by)
                if refused_by
                else self.locate(topic, create=True, timeout_s=timeout_s)
            )
            task = self._looking[key] = asyncio.create_task(work)
            task.add_done_callback(lambda _: self._looking.pop(key, None))
        route = await asyncio.shield(task)
        if not any(map(is_writable, route.parts)):
            raise PermissionDenied(f"topic {topic} takes no messages: it is not writable")
        return route

    async def _locate_after_refusal(self, topic: str, timeout_s: float, refused_by: str) -> Route:
        """The leader of that set knows what it has left, while other brokers may not have heard of
        it yet.
        """
        retry = Retry(timeout_s)
        known, before = self._known_before(topic)
        others = [part for part in before if part.broker_set != refused_by]
        has_others = any(map(is_writable, others))
        patience_s = min(timeout_s, _REFUSAL_S) if has_others else timeout_s
        try:
            await self.ask_leader(self._connection.of(refused_by), [topic], patience_s)
        except (NotLeader, Unreachable):
            if not has_others:
                raise
            # It is gone since. The other sets take the messages.
            known.learn_from_leader(refused_by, None, now_s())
            self._tell_of_change(topic, before)
            return Route(topic, known.believed())
        while not known.believed():
            home = await self.home(topic, retry.left_s)
            response = await self.ask_leader(home, [topic], retry.left_s, create=True)
            # No set has it; or the broker that answered believes in a part that is gone, but not
            # for long.
            is_nowhere = not known.believed() and not response.topics
            if is_nowhere or not (known.believed() or await retry.pause()):
                raise topic_not_found(topic, response)
        return Route(topic, known.believed())

    async def ask_leader(
        self,
        broker_set: SetConnection,
        topics: Sequence[str],
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        create: bool = False,
    ) -> RouteResponse:
        """The answer of the leader of a set, which knows its own part. NotLeader; Unreachable."""
        request = RouteRequest(topics=topics, create_missing=create)
        response: RouteResponse = await broker_set.call(request, max(timeout_s, 0.001))
        self._connection.learn(response)
        self.learn(topics, response, leader_of=broker_set.name)
        return response

    def part_in(self, topic: str, broker_set: str) -> TopicRoute | None:
        """The part of a set, if its leader has confirmed it in the last half minute."""
        known = self._topics.get(topic)
        return None if known is None else known.leader_said(broker_set, now_s())

    async def home(self, topic: str, timeout_s: float = CALL_TIMEOUT_S) -> SetConnection:
        """The set in which a missing topic is created: all clients agree on it."""
        # Asked for topics, brokers do not mention sets whose topics they do not know.
        await self._connection.brokers(timeout_s=timeout_s)
        known = await self._connection.sets(timeout_s)
        return known[text_hash(topic) % len(known)]

    async def queue(self, topic: str, queue_id: int, broker_set: str = "") -> QueueRef:
        """A queue as users name it: without the set when only one has the topic. IllegalRequest."""
        if broker_set:
            return QueueRef(topic, queue_id, (await self._connection.named(broker_set)).name)
        sets = (await self.locate(topic)).sets
        if len(sets) > 1:
            raise in_several_sets(topic, queue_id, sets)
        return QueueRef(topic, queue_id, sets[0])


def is_readable(part: TopicRoute) -> bool:
    return part.is_readable and part.read_queues > 0


def is_writable(part: TopicRoute) -> bool:
    return part.is_writable and part.write_queues > 0


def queues_of(part: TopicRoute, priority: int) -> range:
    """The queues of a priority that take messages. Queue i of a topic with priorities has priority
    i modulo their number, 0 the lowest. Raises IllegalRequest if the topic does not have it.
    """
    if part.priorities <= 1:
        return range(part.write_queues)
    if not 0 <= priority < part.priorities:
        raise unknown_priority(priority, part.priorities)
    return range(priority, part.write_queues, part.priorities)


def unknown_priority(priority: int, priorities: int) -> IllegalRequest:
    return IllegalRequest(
        f"priority {priority}: the topic has {priorities}, 0 (the lowest) to {priorities - 1}"
    )


def in_several_sets(topic: str, queue_id: int, sets: Iterable[str]) -> IllegalRequest:
    return IllegalRequest(
        f"queue {queue_id} of topic {topic} is in {', '.join(sets)}: say which broker set "
        "(broker_set, --set)"
    )


def topic_not_found(topic: str, response: RouteResponse) -> TopicNotFound:
    """From the answer of a broker, which names topics with similar names."""
    similar = [name for one in response.missing if one.topic == topic for name in one.similar]
    return TopicNotFound(
        f"topic {topic} does not exist: create it first{names.did_you_mean(similar)}"
    )
