"""The connection of one client to the cluster: its broker sets, and where topics are.

Any one broker is enough to find the others, of all sets. What is known of leaders and topics may be
stale and is only a place to start. Everything runs on the event loop that uses it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import grpc.aio
from google.protobuf.message import Message as WireMessage

from mq import names
from mq.client.cluster.asking import Question, ask_until, back_off_s, now_s
from mq.client.cluster.attempts import Attempts
from mq.client.cluster.channels import Channels
from mq.client.cluster.servers import Servers
from mq.client.cluster.set_connection import CALL_TIMEOUT_S, LAST_WORD_S, SetConnection
from mq.client.messages import QueueRef
from mq.errors import (
    ClientClosed,
    IllegalConfig,
    IllegalRequest,
    MqError,
    NotLeader,
    TopicNotFound,
    Unreachable,
)
from mq.hashing import text_hash
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse, TopicRoute

__all__ = [
    "CALL_TIMEOUT_S",
    "ROUTE_AGE_S_MAX",
    "Connection",
    "Route",
    "back_off_s",
    "parse_servers",
    "topic_not_found",
]

# A broker that holds a call for so long is frozen or gone; another may answer.
_ROUTE_ATTEMPT_S = 1.0
ROUTE_AGE_S_MAX = 30.0


class Route(NamedTuple):
    """Where a topic is, when it was asked for: one part for each broker set that has queues of it,
    by the name of the set.
    """

    topic: str
    parts: tuple[TopicRoute, ...]

    @property
    def sets(self) -> list[str]:
        return [part.broker_set for part in self.parts]

    @property
    def readable(self) -> list[QueueRef]:
        """Its queues that are read, in the order of their sets."""
        return [
            QueueRef(self.topic, queue_id, part.broker_set)
            for part in self.parts
            for queue_id in range(part.read_queues if part.is_readable else 0)
        ]

    @property
    def writable(self) -> list[QueueRef]:
        """Its queues that take messages, in the order of their sets."""
        return [
            QueueRef(self.topic, queue_id, part.broker_set)
            for part in self.parts
            for queue_id in range(part.write_queues if part.is_writable else 0)
        ]


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """From "host:port,host:port" or a list of such. IllegalConfig when there is none."""
    given = servers.split(",") if isinstance(servers, str) else servers
    found = tuple(dict.fromkeys(one.strip() for one in given if one.strip()))
    wrong = [one for one in found if not one.rpartition(":")[2].isdecimal() or one[0] == ":"]
    if not found or wrong:
        raise IllegalConfig(f"servers {servers!r}: give one or more of host:port")
    return found


class Connection:
    """Of one producer, consumer or admin; close it on the loop on which it was used.

    `call` asks any broker; who leads a set is asked by `of(name).call`.
    """

    def __init__(self, servers: str | Sequence[str], zone: str = "") -> None:
        self.seeds = parse_servers(servers)
        self.zone = zone
        self.servers = Servers(self.seeds, zone)
        self.attempts = Attempts()
        self._channels = Channels()
        self._sets: dict[str, SetConnection] = {}
        self._routes: dict[str, tuple[Route, float]] = {}

    # Single calls

    async def call(
        self,
        service: str,
        method: str,
        request: WireMessage,
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        server: str = "",
        attempt_timeout_s: float | None = None,
        raw_response: bool = False,
    ) -> Any:
        """The answer of any broker, or of `server` and no other; a raw one is bytes as they came
        over the wire. Raises what the broker answers; Unreachable when none does.
        """
        question = Question(
            service, method, request, timeout_s, attempt_timeout_s, raw_response=raw_response
        )
        return await ask_until(self, question, server)

    @property
    def addresses(self) -> Iterable[str]:
        return self.servers

    def next_address(self, tried: list[str]) -> str:
        return self.servers.best(now_s(), tried)

    async def ask(self, address: str, question: Question, timeout_s: float) -> Any:
        began_s = now_s()
        answer = await self.attempt(address, question, timeout_s)
        if question.service != "ConsumerService":
            self.servers.succeeded(address, now_s() - began_s)
        return answer

    async def attempt(self, address: str, question: Question, timeout_s: float) -> Any:
        """One attempt, of any set. What comes of it is kept for errors and the log."""
        began_s = now_s()
        try:
            answer = await self._channels.ask(
                address,
                question.service,
                question.method,
                question.request,
                timeout_s,
                raw_response=question.raw_response,
            )
        except Unreachable as error:
            self.attempts.failed(address, error, began_s, now_s())
            raise
        except ClientClosed:
            raise
        except MqError:
            self.attempts.answered(address, now_s())
            raise
        self.attempts.answered(address, now_s())
        return answer

    async def gave_up(self, failure: MqError, timeout_s: float, server: str = "") -> MqError:
        """Unreachable, unless a broker has answered: then what that said."""
        asked = [server] if server else list(self.servers)
        if not any(map(self.attempts.is_up, asked)):
            return self.attempts.unreachable(asked, timeout_s)
        return failure if isinstance(failure, NotLeader) else NotLeader(None, None)

    def not_leader(self, address: str, leader: str = "") -> str:
        """Of a question that only a leader answers, asked of one broker: there is no other."""
        if leader:
            self.servers.learn(leader)
        return leader if leader != address else ""

    def failed(self, address: str) -> None:
        """It was not reached, or broke off."""
        self.servers.failed(address, now_s())
        # Who asks for the leader of its set asks another one first, the next time.
        for one in self._sets.values():
            if address in set(one.servers):
                one.servers.failed(address, now_s())

    # Broker sets

    @property
    def known_sets(self) -> list[str]:
        """Without asking: those that were heard of, by name."""
        return sorted(self._sets)

    async def sets(self, timeout_s: float = CALL_TIMEOUT_S) -> list[SetConnection]:
        """All of the cluster, by name; asks when none is known."""
        if not self._sets:
            await self.brokers(timeout_s=timeout_s)
        if not self._sets:
            raise Unreachable(f"{', '.join(self.servers)}: no broker set is known there")
        return [self._sets[name] for name in sorted(self._sets)]

    def of(self, broker_set: str) -> SetConnection:
        """One of them; also one that was not heard of yet."""
        found = self._sets.get(broker_set)
        if found is None:
            found = SetConnection(broker_set, self, self._channels, self.seeds)
            self._sets[broker_set] = found
        return found

    async def named(self, broker_set: str) -> SetConnection:
        """One of them, as a user calls it. IllegalRequest when the cluster has none of the name."""
        if broker_set not in self._sets:
            await self.brokers()
        if broker_set not in self._sets:
            known = ", ".join(self.known_sets)
            raise IllegalRequest(f"there is no broker set {broker_set!r}; there are: {known}")
        return self._sets[broker_set]

    async def home(self, topic: str, timeout_s: float = CALL_TIMEOUT_S) -> SetConnection:
        """The set in which a topic is created that nobody has: all clients agree on it."""
        # Asked for topics, brokers tell of no set whose topics they do not know.
        await self.brokers(timeout_s=timeout_s)
        known = await self.sets(timeout_s)
        return known[text_hash(topic) % len(known)]

    # Topics

    async def route(
        self, topic: str, *, create: bool = False, timeout_s: float = CALL_TIMEOUT_S
    ) -> Route:
        """Where a topic is. TopicNotFound when it does not exist, and could not be created."""
        known = self.known_route(topic)
        if known is not None:
            return known
        names.check_topic(topic)
        deadline_s = now_s() + timeout_s
        response = await self.brokers([topic], timeout_s)
        parts = _parts(topic, response)
        if not parts:
            # Nobody has it, or who answered lags behind: whoever would create it knows best.
            home = await self.home(topic, deadline_s - now_s())
            request = RouteRequest(topics=[topic], create_missing=create)
            response = await home.call("ClusterService", "Route", request, deadline_s - now_s())
            self.learn(response)
            parts = _parts(topic, response)
        if not parts:
            raise topic_not_found(topic, response)
        route = Route(topic, parts)
        self._routes[topic] = route, now_s()
        return route

    def known_route(self, topic: str) -> Route | None:
        """Without asking: what was learnt in the last half minute."""
        known = self._routes.get(topic)
        return known[0] if known and now_s() - known[1] <= ROUTE_AGE_S_MAX else None

    def forget_route(self, topic: str) -> None:
        """The broker does not agree with it: the topic has changed, or is gone."""
        self._routes.pop(topic, None)

    async def queue(self, topic: str, queue_id: int, broker_set: str = "") -> QueueRef:
        """A queue as users name it: without the set when only one has the topic. IllegalRequest."""
        if broker_set:
            return QueueRef(topic, queue_id, (await self.named(broker_set)).name)
        sets = (await self.route(topic)).sets
        if len(sets) > 1:
            raise IllegalRequest(
                f"queue {queue_id} of topic {topic} is in {', '.join(sets)}: say which broker set "
                "(broker_set, --set)"
            )
        return QueueRef(topic, queue_id, sets[0])

    async def brokers(
        self,
        topics: Sequence[str] = (),
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        first: Sequence[str] = (),
    ) -> RouteResponse:
        """All that one broker knows: the broker sets, and of these topics where they are. Those in
        `first` are asked before others.
        """
        request = RouteRequest(topics=topics)
        question = Question("ClusterService", "Route", request, timeout_s, _ROUTE_ATTEMPT_S)
        try:
            response: RouteResponse = await ask_until(_InOrder(self, first), question)
        except NotLeader as error:
            raise await self._without_topics(error) from None
        self.learn(response)
        return response

    async def _without_topics(self, error: NotLeader) -> MqError:
        """Those that answer have not read their logs since they were started, and tell no topics,
        because their set has no leader. Who is missing they know all the same.
        """
        question = Question("ClusterService", "Route", RouteRequest(), LAST_WORD_S)
        up = [one for one in self.servers if self.attempts.is_up(one)]
        try:
            response: RouteResponse = await self.ask(up[0], question, LAST_WORD_S)
        except (MqError, IndexError):
            return error
        self.learn(response)
        led = [one.name for one in response.broker_sets if one.leader_id or one.age_ms]
        missing = [self.of(one.name) for one in response.broker_sets if one.name not in led]
        if not missing:
            return error
        return await missing[0].no_leader()

    def learn(self, response: RouteResponse) -> None:
        for broker_set in response.broker_sets:
            for node in broker_set.nodes:
                self.servers.learn(node.address, node.zone)
            self.of(broker_set.name).learn(broker_set)

    # Streams

    def stream(
        self,
        address: str,
        service: str,
        method: str,
        *,
        raw_requests: bool = False,
        raw_responses: bool = False,
    ) -> grpc.aio.StreamStreamCall:
        """As `Channels.stream`."""
        return self._channels.stream(
            address, service, method, raw_requests=raw_requests, raw_responses=raw_responses
        )

    async def close(self) -> None:
        await self._channels.close()


class _InOrder:
    """Any broker, those of a list before others."""

    def __init__(self, connection: Connection, first: Sequence[str]) -> None:
        self._connection = connection
        self._first = first
        self._tried: list[str] = []
        self.failed = connection.failed
        self.ask = connection.ask
        self.gave_up = connection.gave_up

    @property
    def addresses(self) -> Iterable[str]:
        return self._connection.servers

    def next_address(self, tried: list[str]) -> str:
        self._tried = tried
        left = [one for one in self._first if one not in tried]
        return left[0] if left else self._connection.next_address(tried)

    def not_leader(self, address: str, leader: str = "") -> str:
        """It has just been started, and has not read its log yet. Whoever else is there may know
        more: not only its leader, which may be gone.
        """
        self._connection.not_leader(address, leader)
        others = [one for one in self.addresses if one not in (*self._tried, address)]
        return others[0] if others else ""


def _parts(topic: str, response: RouteResponse) -> tuple[TopicRoute, ...]:
    return tuple(one for one in response.topics if one.topic == topic)


def topic_not_found(topic: str, response: RouteResponse) -> TopicNotFound:
    """By a broker's answer, which knows of topics with such names."""
    similar = [name for one in response.missing if one.topic == topic for name in one.similar]
    return TopicNotFound(
        f"topic {topic} does not exist: create it first{names.did_you_mean(similar)}"
    )
