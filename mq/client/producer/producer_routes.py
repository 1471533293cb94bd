"""Where the topics of a producer are: asked for when one is used first, from time to time, and when
a broker set refuses what it was sent. What is believed of the answers is in `topic_parts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mq import names
from mq.client.cluster.connection import CALL_TIMEOUT_S, Connection, SetConnection, topic_not_found
from mq.client.cluster.retry import back_off_s
from mq.client.producer.topic_parts import TopicParts
from mq.errors import NotLeader, PermissionDenied, Unreachable
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse, TopicRoute

# How long the leader of a set that refused something may take to say why.
_LEADER_S = 1.0


class ProducerRoutes:
    """All answers have a part that takes messages. Used on the loop of the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._topics: dict[str, TopicParts] = {}

    async def find(self, topic: str, timeout_s: float) -> list[TopicRoute]:
        """Of a topic that was not used before; it is created where the brokers allow that.
        TopicNotFound, PermissionDenied, IllegalTopic; Unreachable.
        """
        names.check_topic(topic)
        if names.is_internal_topic(topic):
            raise PermissionDenied(f"topic {topic} is written by the broker alone")
        route = await self._connection.route(topic, create=True, timeout_s=timeout_s)
        known_sets = self._connection.known_sets
        return _taking(topic, self._of(topic).learn(route.parts, known_sets, self._loop.time()))

    async def ask_again(self, topic: str, timeout_s: float, refused_by: str) -> list[TopicRoute]:
        """That set says that the topic, or a queue of it, is gone or closed: its own leader knows
        what it has left, while other brokers may not have heard of it. When nobody has the topic
        any more, it is created where the brokers allow that. Errors as of `find`.
        """
        deadline_s = self._loop.time() + timeout_s
        self._connection.forget_route(topic)
        refusing, known = self._connection.of(refused_by), self._of(topic)
        has_others = any(map(_takes, known.without(refused_by)))
        patience_s = min(timeout_s, _LEADER_S) if has_others else timeout_s
        try:
            response = await self._ask_leader(refusing, topic, patience_s)
        except (NotLeader, Unreachable):
            if not has_others:
                raise
            # It has gone since. Others take what it did not.
            known.learn_certain(refused_by, (), self._loop.time())
            return known.without(refused_by)
        parts = self._learn(topic, response)
        attempt = 0
        while not parts:
            left_s = deadline_s - self._loop.time()
            home = await self._connection.home(topic, left_s)
            response = await self._ask_leader(home, topic, left_s, create=True)
            parts = self._learn(topic, response)
            if not parts:
                # Nobody has it; or who answered believes in what is gone, but not for long.
                if not response.topics or left_s <= 0:
                    raise topic_not_found(topic, response)
                await asyncio.sleep(back_off_s(attempt))
                attempt += 1
        return _taking(topic, parts)

    async def refresh(
        self, topics: Sequence[str], timeout_s: float = CALL_TIMEOUT_S
    ) -> tuple[RouteResponse, dict[str, list[TopicRoute]]]:
        """What a broker says, and the parts of those topics, which are in use, that it knows.
        Unreachable.
        """
        response = await self._connection.brokers(topics, timeout_s)
        found = {topic: self._learn(topic, response) for topic in topics}
        return response, {topic: parts for topic, parts in found.items() if any(map(_takes, parts))}

    async def _ask_leader(
        self, asked: SetConnection, topic: str, timeout_s: float, *, create: bool = False
    ) -> RouteResponse:
        request = RouteRequest(topics=[topic], create_missing=create)
        response: RouteResponse = await asked.call(
            "ClusterService", "Route", request, max(timeout_s, 0.001)
        )
        self._connection.learn(response)
        self._of(topic).learn_certain(asked.name, response.topics, self._loop.time())
        return response

    def _learn(self, topic: str, response: RouteResponse) -> list[TopicRoute]:
        parts = [part for part in response.topics if part.topic == topic]
        known_sets = {one.name for one in response.broker_sets}
        return self._of(topic).learn(parts, known_sets, self._loop.time())

    def _of(self, topic: str) -> TopicParts:
        return self._topics.setdefault(topic, TopicParts())


def _takes(part: TopicRoute) -> bool:
    return part.is_writable and part.write_queues > 0


def _taking(topic: str, parts: list[TopicRoute]) -> list[TopicRoute]:
    if not any(map(_takes, parts)):
        raise PermissionDenied(f"topic {topic} takes no messages: it is not writable")
    return parts
