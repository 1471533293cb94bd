"""The reports of one other broker set, and the part of them that this broker believes.

Whatever comes from another broker is checked here before it is kept: it goes on to clients and to
other brokers, and shares of consumer groups are made by it. Pure: `now_ms` comes in.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from mq import names
from mq.broker.consumer.shares import Portion
from mq.errors import IllegalRequest
from mq.wire.v1.cluster_pb2 import BrokerSet, GreetResponse, NodeRoute, TopicRoute

ADDRESSES_MAX = 32
_NODES_MAX = 64
_DIGEST_BYTES = 32
_QUEUES_MAX = names.QUEUE_ID_MAX + 1
# The longest name of a topic is that of a group behind a prefix.
_TOPIC_CHARACTERS_MAX = names.NAME_CHARACTERS_MAX + len(names.RETRY_PREFIX)
# A report of a lagging broker does not replace one that is newer than this. An older one may: the
# set was replaced by a new one, which counts its terms from the beginning.
_NEWS_MS_MAX = 10_000
# As long as a set answers, another one cannot have its name.
_ALIVE_MS_MAX = 3_000

_NAME = re.compile(r"[A-Za-z0-9_-]{1,127}")
_ADDRESS = re.compile(r"[^\s,=]{1,253}:([0-9]{1,5})")


def is_set_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_address(text: str) -> bool:
    """host:port"""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) < 1 << 16 and text.isprintable()


def legal_addresses(texts: Iterable[str]) -> tuple[str, ...]:
    """Each once; as many as one set may have."""
    return tuple(dict.fromkeys(filter(is_address, texts)))[:ADDRESSES_MAX]


def may_be_same(nodes: Collection[NodeRoute], others: Collection[NodeRoute]) -> bool:
    """Whether they are of one set: a node of both is at one address, as far as that is known."""
    known = {node.node_id: node.address for node in nodes}
    return (
        not nodes
        or not others
        or any(
            not node.address or known[node.node_id] in ("", node.address)
            for node in others
            if node.node_id in known
        )
    )


@dataclass(slots=True)
class OtherSet:
    name: str
    # Addresses of its brokers as it says itself; as others say until it has answered.
    told: tuple[str, ...] = ()
    # None: no broker of it has answered yet.
    broker_set: BrokerSet | None = None
    heard_ms: int = 0
    # The topics, the broker that reported them, and their version there, so that they are not sent
    # again.
    topics: dict[str, TopicRoute] = field(default_factory=dict)
    topics_version: int = 0
    answered_by: str = ""
    # Greetings in a row without an answer.
    failures: int = 0
    zones: frozenset[str] = frozenset()
    # Version and digest of its users and policies; empty: not known.
    access: tuple[int, bytes] = (0, b"")
    # Queues by topic, of those that can be read.
    readable: dict[str, int] = field(default_factory=dict)
    _news_ms: int = 0

    def places(self) -> list[str]:
        """The addresses to ask, in this order: the leader knows best."""
        nodes = self.broker_set.nodes if self.broker_set else ()
        leader_id = self.broker_set.leader_id if self.broker_set else ""
        ranked = sorted(nodes, key=lambda node: node.node_id != leader_id)
        found = [node.address for node in ranked if node.address]
        return list(dict.fromkeys((*found, *self.told)))

    def introduce(self, addresses: Iterable[str], now_ms: int, *, is_own_word: bool) -> None:
        """Another broker, or the set itself, says where it is."""
        found = legal_addresses(addresses)
        if is_own_word and found:
            self.told = found
        elif self.broker_set is None or now_ms - self.heard_ms > _NEWS_MS_MAX:
            self.told = legal_addresses((*found, *self.told))

    def portion(self, topics: Iterable[str], retry_topic: str | None) -> Portion:
        """The queues that a group has in this set. Members connect to sets that have topics of
        theirs, and get the retry queues of these sets beside them.
        """
        queues = sum(self.readable.get(topic, 0) for topic in topics)
        if queues and retry_topic is not None:
            queues += self.readable.get(retry_topic, 0)
        return Portion(queues, self.zones)

    def hear(
        self, address: str, response: GreetResponse, now_ms: int, asked_version: int = 0
    ) -> bool:
        """Returns whether zones or readable queues have changed. Raises IllegalRequest if the
        response makes no sense or is of another set; nothing changed then. `asked_version`: version
        of the topics that were known when it was greeted; topics of that version are not sent
        again.
        """
        broker_set = response.broker_set
        self._check(address, broker_set, now_ms)
        before = self.zones, self.readable
        known, is_over = self.broker_set, now_ms - self._news_ms > _NEWS_MS_MAX
        if known is None or broker_set.term >= known.term or is_over:
            self.broker_set, self._news_ms = broker_set, now_ms
            self.zones = frozenset(node.zone for node in broker_set.nodes if node.zone)
        self.heard_ms, self.failures = now_ms, 0
        if len(response.access_digest) == _DIGEST_BYTES:
            self.access = response.access_version, response.access_digest
        version = response.topics_version
        # 0: it has not read its own log yet. Another answer may have come since it was greeted.
        if version not in (0, self.topics_version, asked_version):
            self.topics = {one.topic: one for one in response.topics if self._is_possible(one)}
            self.readable = {
                one.topic: one.read_queues for one in self.topics.values() if one.is_readable
            }
            self.topics_version, self.answered_by = version, address
        return before != (self.zones, self.readable)

    def _check(self, address: str, broker_set: BrokerSet, now_ms: int) -> None:
        if len(broker_set.nodes) > _NODES_MAX or not all(map(_is_node, broker_set.nodes)):
            raise IllegalRequest(
                f"{address} says of broker set {self.name} what cannot be: is it of this version?"
            )
        known = self.broker_set
        is_alive = known is not None and now_ms - self.heard_ms <= _ALIVE_MS_MAX
        if known is not None and is_alive and not may_be_same(known.nodes, broker_set.nodes):
            raise IllegalRequest(
                f"{address} is of another broker set that is also called {self.name}: "
                "give each set of a cluster a name of its own (node.broker_set)"
            )

    def _is_possible(self, one: TopicRoute) -> bool:
        return (
            one.broker_set == self.name
            and 0 < len(one.topic) <= _TOPIC_CHARACTERS_MAX
            and one.read_queues <= _QUEUES_MAX
            and one.write_queues <= _QUEUES_MAX
        )


def _is_node(node: NodeRoute) -> bool:
    addresses = [one for one in (node.address, node.external_address) if one]
    is_short = len(node.zone) <= names.NAME_CHARACTERS_MAX
    return is_short and is_set_name(node.node_id) and all(map(is_address, addresses))
