"""Which broker sets the cluster has, who leads each, and which topics each has: as far as this
broker has heard. Routes are answered from here.

Pure: no clock, no network. What is known of another set comes from greetings (see
`mq.rpc.greeting`) and may be stale, which is harmless: a broker that does not lead says who does.
A set is never forgotten because it is silent; only an operator removes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mq import names
from mq.broker.contracts import Consensus, Peer
from mq.broker.replicated.state import State
from mq.broker.replicated.topics import Topic
from mq.errors import IllegalRequest
from mq.store.identity import Identity
from mq.wire.v1.cluster_pb2 import (
    BrokerSet,
    GreetRequest,
    GreetResponse,
    NodeRoute,
    PeerSet,
    TopicRoute,
)

# Of one set, that others told of.
_ADDRESSES_MAX = 32
_SETS_MAX = 1_000
# What a broker that lags behind says of its set does not replace what is newer than this.
_NEWS_MS_MAX = 10_000


@dataclass(slots=True)
class _Other:
    """Another set. `addresses` are those that were told; the nodes of `broker_set` have theirs."""

    name: str
    addresses: tuple[str, ...] = ()
    broker_set: BrokerSet | None = None
    heard_ms: int = 0
    news_ms: int = 0
    answered_by: str = ""
    topics_version: int = 0
    topics: dict[str, TopicRoute] = field(default_factory=dict)

    def places(self) -> list[str]:
        """Where to ask, in this order: the leader knows best."""
        nodes = self.broker_set.nodes if self.broker_set else ()
        leader_id = self.broker_set.leader_id if self.broker_set else ""
        ranked = sorted(nodes, key=lambda node: node.node_id != leader_id)
        found = [node.address for node in ranked if node.address]
        return list(dict.fromkeys((*found, *self.addresses)))


class Directory:
    def __init__(
        self,
        identity: Identity,
        state: State,
        consensus: Consensus,
        seeds: Sequence[str],
        birth: int,
    ) -> None:
        """`seeds` are brokers of whatever sets. `birth` is a number that no other start of a broker
        has: versions of topics are counted from there.
        """
        self._identity = identity
        self._state = state
        self._consensus = consensus
        self._birth = birth
        self._others: dict[str, _Other] = {}
        # Addresses of the configuration, and the set that answered there: "" is not known yet.
        self._seeds = dict.fromkeys(seeds, "")

    # -- questions --------------------------------------------------------------------------------

    @property
    def own_name(self) -> str:
        return self._identity.broker_set

    def own(self) -> BrokerSet:
        leading = self._consensus.leading
        return BrokerSet(
            name=self.own_name,
            leader_id=leading.leader_id or "",
            term=leading.term,
            nodes=[_node(peer) for peer in self._consensus.peers],
        )

    def sets(self, now_ms: int) -> list[BrokerSet]:
        """All that were heard of, by name. Addresses of both kinds are in the nodes."""
        found = [self.own()]
        for other in self._known():
            if other.broker_set is not None:
                one = BrokerSet()
                one.CopyFrom(other.broker_set)
                one.age_ms = max(1, now_ms - other.heard_ms)
                found.append(one)
        return sorted(found, key=lambda one: one.name)

    def topic(self, name: str) -> list[TopicRoute]:
        """One for each set that has queues of it, by the name of the set."""
        topics = self._state.topics
        found = [self._route(topics.find(name))] if name in topics else []
        found += (one.topics[name] for one in self._known() if name in one.topics)
        return sorted(found, key=lambda one: one.broker_set)

    def is_elsewhere(self, name: str) -> bool:
        """Another set has the topic."""
        return any(name in one.topics for one in self._known())

    def elsewhere(self) -> Mapping[str, Mapping[str, TopicRoute]]:
        """The topics of each other set that was heard of."""
        return {one.name: one.topics for one in self._known() if one.broker_set is not None}

    @property
    def version(self) -> int:
        """Of this broker's topics, for greetings."""
        return self._birth + self._state.topics.version

    # -- greetings --------------------------------------------------------------------------------

    def targets(self) -> Iterator[tuple[str, list[str]]]:
        """Whom to greet: a set, or "" for a seed of which nothing is known, and where to try."""
        self._add_known()
        for other in self._known():
            seeds = [address for address, name in self._seeds.items() if name == other.name]
            yield other.name, list(dict.fromkeys((*other.places(), *seeds)))
        for address, name in self._seeds.items():
            if not name:
                yield "", [address]

    def greeting(self, name: str, address: str) -> GreetRequest:
        other = self._others.get(name)
        is_same = other is not None and other.answered_by == address
        return GreetRequest(
            cluster=self._identity.cluster,
            topics_version=other.topics_version if other is not None and is_same else 0,
            others=self._told(without=name),
            sender=self._own_peers(),
        )

    def answer(self, request: GreetRequest) -> GreetResponse:
        """IllegalRequest: it is none of ours."""
        sender = request.sender
        if request.cluster != self._identity.cluster:
            raise IllegalRequest(
                f"this broker belongs to cluster {self._identity.cluster}, not to "
                f"{request.cluster[:127]!r}: correct broker.seeds or node.cluster"
            )
        if self._state.sets.is_removed(sender.name):
            raise IllegalRequest(
                f"broker set {sender.name[:127]} was removed from this cluster: "
                "add it again with `mq cluster add-set`, or correct its broker.seeds"
            )
        self._introduce((sender, *request.others))
        is_same = request.topics_version == self.version
        return GreetResponse(
            broker_set=self.own(),
            others=self._told(without=sender.name),
            topics_version=self.version,
            topics=() if is_same else self._routes(),
        )

    def heard(self, address: str, response: GreetResponse, now_ms: int) -> None:
        """The answer to a greeting. IllegalRequest: another set has this one's name."""
        broker_set = response.broker_set
        name = broker_set.name
        if address in self._seeds:
            self._seeds[address] = name
        if name == self.own_name:
            self._check_own(address, broker_set)
            return
        if self._state.sets.is_removed(name):
            return
        other = self._others.setdefault(name, _Other(name))
        known = other.broker_set
        # One that was made anew counts its terms from the beginning.
        is_over = now_ms - other.news_ms > _NEWS_MS_MAX
        if known is None or broker_set.term >= known.term or is_over:
            other.broker_set, other.news_ms = broker_set, now_ms
        other.heard_ms = now_ms
        if response.topics_version != other.topics_version or other.answered_by != address:
            other.topics = {one.topic: one for one in response.topics if one.broker_set == name}
        other.topics_version, other.answered_by = response.topics_version, address
        self._introduce(response.others)

    def _check_own(self, address: str, broker_set: BrokerSet) -> None:
        mine = {peer.node_id for peer in self._consensus.peers}
        theirs = {node.node_id for node in broker_set.nodes}
        if mine.isdisjoint(theirs):
            raise IllegalRequest(
                f"{address} is of another broker set that is also called {self.own_name}: "
                "give each set of a cluster a name of its own (node.broker_set)"
            )

    # -- what is known ----------------------------------------------------------------------------

    def _known(self) -> list[_Other]:
        return [one for name, one in self._others.items() if not self._state.sets.is_removed(name)]

    def _add_known(self) -> None:
        """What operators added."""
        for name, addresses in self._state.sets.added().items():
            if name != self.own_name:
                self._others.setdefault(name, _Other(name)).addresses = addresses

    def _introduce(self, sets: Iterable[PeerSet]) -> None:
        for one in sets:
            is_new = one.name not in self._others
            if one.name in ("", self.own_name) or (is_new and len(self._others) >= _SETS_MAX):
                continue
            if self._state.sets.is_removed(one.name):
                continue
            other = self._others.setdefault(one.name, _Other(one.name))
            if other.broker_set is None or not other.addresses:
                other.addresses = tuple(one.addresses[:_ADDRESSES_MAX])

    def _told(self, without: str) -> list[PeerSet]:
        return [
            PeerSet(name=one.name, addresses=one.places()[:_ADDRESSES_MAX])
            for one in self._known()
            if one.name != without
        ]

    def _own_peers(self) -> PeerSet:
        peers = self._consensus.peers
        return PeerSet(name=self.own_name, addresses=[one.address for one in peers if one.address])

    def _routes(self) -> Iterator[TopicRoute]:
        for topic in self._state.topics:
            if not topic.name.startswith(names.SYSTEM_PREFIX):
                yield self._route(topic)

    def _route(self, topic: Topic) -> TopicRoute:
        return TopicRoute(
            topic=topic.name,
            type=topic.type,  # type: ignore[arg-type]  # a number on the wire
            broker_set=self.own_name,
            write_queues=topic.write_queues,
            read_queues=topic.read_queues,
            is_readable=topic.is_readable and names.is_readable_topic(topic.name),
            is_writable=topic.is_writable and not topic.is_internal,
            priorities=topic.priorities,
        )


def _node(peer: Peer) -> NodeRoute:
    return NodeRoute(
        node_id=peer.node_id,
        address=peer.address,
        zone=peer.zone,
        external_address=peer.external_address,
    )
