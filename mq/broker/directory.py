"""The broker sets of the cluster, their leaders and their topics, as far as this broker has heard.
Routes are answered from here, and fair shares of groups are made by it.

No network, and the time comes in. What is known of another set comes from greetings (see
`mq.rpc.greeting`) and may be stale, which is harmless: a broker that does not lead names the
leader. A set that has answered is never forgotten because it is silent; only an operator removes
one. A set that was only mentioned by others is not passed on before it has answered here, and is
forgotten if it never does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

from mq import names
from mq.broker.consumer.shares import Surroundings
from mq.broker.contracts import Consensus, Peer
from mq.broker.other_set import (
    ADDRESSES_MAX,
    OtherSet,
    is_set_name,
    legal_addresses,
    may_be_same,
)
from mq.broker.state.state import State
from mq.broker.state.topics import Topic
from mq.errors import IllegalRequest, TopicNotFound
from mq.store.identity import Identity
from mq.wire.v1.cluster_pb2 import (
    BrokerSet,
    GreetRequest,
    GreetResponse,
    NodeRoute,
    PeerSet,
    TopicRoute,
)
from mq.wire.v1.security_pb2 import SetAccess

SETS_MAX = 1_000
# Greetings to a set of which others told, before it counts as a mistake of theirs.
_FAILURES_MAX = 10
_AGE_MS_MAX = (1 << 32) - 1


class Directory:
    def __init__(
        self,
        identity: Identity,
        state: State,
        consensus: Consensus,
        seeds: Sequence[str],
        birth: int,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """`seeds` are brokers of whatever sets. `birth` is a number that no other start of a broker
        has: versions of topics are counted from there. `is_current`: this broker has applied what
        was in the log before the present leader; until then its topics may be those of last year.
        """
        self._identity = identity
        self._state = state
        self._consensus = consensus
        self._birth = birth
        self._is_current = is_current
        self._was_current = False
        self._others: dict[str, OtherSet] = {}
        # Addresses of the configuration, and the set that answered there: "" is not known yet.
        self._seeds = dict.fromkeys(seeds, "")
        # Sets and seeds that were greeted once, whatever came of it.
        self._tried: set[str] = set()
        self._has_greeted = asyncio.Event()
        self._own_zones: frozenset[str] = frozenset()
        # All topics of this set as others hear of them, and the version that they were made of.
        self._routes, self._routes_of = GreetResponse(), 0
        # Goes up when zones, or what can be read in another set, are others than before: what was
        # derived from it asks again then.
        self.changes = 0

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

    def sets(self, now_ms: int, *, with_topics: bool = False) -> list[BrokerSet]:
        """All that were heard of, by name; `with_topics`: those whose topics are known, too.
        Addresses of both kinds are in the nodes.
        """
        found = [self.own()]
        for other in self._known():
            if other.broker_set is not None and (other.topics_version or not with_topics):
                one = BrokerSet()
                one.CopyFrom(other.broker_set)
                one.age_ms = min(max(1, now_ms - other.heard_ms), _AGE_MS_MAX)
                found.append(one)
        return sorted(found, key=lambda one: one.name)

    def topic(self, name: str) -> list[TopicRoute]:
        """One for each set that has queues of it, by the name of the set."""
        topics = self._state.topics
        found = [self._route(topics.find(name))] if name in topics else []
        return sorted([*found, *self.elsewhere(name)], key=lambda one: one.broker_set)

    def topic_names(self) -> Iterator[str]:
        """The topics of the whole cluster, each once, without internal ones."""
        own = {topic.name: None for topic in self._state.topics}
        others = (name for one in self._known() for name in one.topics)
        every = itertools.chain(own, (name for name in others if name not in own))
        return (name for name in dict.fromkeys(every) if not names.is_internal_topic(name))

    def elsewhere(self, name: str) -> list[TopicRoute]:
        """The queues that other sets have of the topic."""
        return [one.topics[name] for one in self._known() if name in one.topics]

    def check_nowhere_else(self, name: str) -> None:
        """Raises TopicNotFound if other sets have it: the caller has a stale route."""
        if found := self.elsewhere(name):
            sets = ", ".join(sorted(one.broker_set for one in found)[:5])
            raise TopicNotFound(
                f"broker set {self.own_name} has no queue of topic {name}, which is in {sets}: "
                "ask for its route again"
            )

    def accesses(self) -> list[SetAccess]:
        """The users and policies of the other sets, as they said when they last greeted."""
        found = sorted((one.name, *one.access) for one in self._known())
        return [
            SetAccess(broker_set=name, version=version, digest=digest)
            for name, version, digest in found
            if digest
        ]

    def is_readable_elsewhere(self, name: str) -> bool:
        return any(name in one.readable for one in self._known())

    def surroundings(self, topics: Collection[str], retry_topic: str | None) -> Surroundings:
        """The surroundings of the queues that this set has of a group's topics."""
        elsewhere = {one.name: one.portion(topics, retry_topic) for one in self._known()}
        return Surroundings(
            self.own_name,
            self._zones_here(),
            {name: portion for name, portion in elsewhere.items() if portion.queues},
        )

    @property
    def is_informed(self) -> bool:
        """This broker has read its own log since it was started: it knows its own topics."""
        return self._was_current or self._is_current()

    @property
    def is_complete(self) -> bool:
        """All sets and seeds that are known of were asked at least once: what this broker does not
        know by now, it will not learn by waiting a moment.
        """
        return self._tried.issuperset(
            name or places[0] for name, places in self.targets() if name != self.own_name
        )

    async def until_complete(self, timeout_s: float) -> None:
        """Returns when `is_complete`, or after this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.is_complete:
                    self._has_greeted.clear()
                    await self._has_greeted.wait()

    # -- greetings --------------------------------------------------------------------------------

    def targets(self) -> Iterator[tuple[str, list[str]]]:
        """Whom to greet: a set, or "" for a seed of which nothing is known, and where to try. The
        others of this broker's own set are among them: they may have heard of more.
        """
        self._update_sets()
        added = self._state.sets.added()
        for other in list(self._others.values()):
            seeds = [address for address, name in self._seeds.items() if name == other.name]
            places = dict.fromkeys((*other.places(), *added.get(other.name, ()), *seeds))
            if places:
                yield other.name, list(places)
        if neighbours := self._neighbours():
            yield self.own_name, neighbours
        for address, name in self._seeds.items():
            if not name:
                yield "", [address]

    def greeting(self, name: str, address: str) -> GreetRequest:
        other = self._others.get(name)
        is_same = other is not None and other.answered_by == address
        peers = self._consensus.peers
        return GreetRequest(
            cluster=self._identity.cluster,
            topics_version=other.topics_version if other is not None and is_same else 0,
            others=self._told(without=name),
            sender=PeerSet(
                name=self.own_name, addresses=legal_addresses(one.address for one in peers)
            ),
        )

    def answer(self, request: GreetRequest, now_ms: int) -> GreetResponse:
        """Raises IllegalRequest if the sender does not belong to this cluster."""
        sender = request.sender
        if request.cluster != self._identity.cluster:
            raise IllegalRequest(
                f"this broker belongs to cluster {self._identity.cluster}, not to "
                f"{request.cluster[:127]!r}: correct broker.seeds or node.cluster"
            )
        if not is_set_name(sender.name):
            raise IllegalRequest(f"{sender.name[:127]!r} is no name of a broker set")
        if self._state.sets.is_removed(sender.name):
            raise IllegalRequest(
                f"broker set {sender.name} was removed from this cluster: "
                "add it again with `mq cluster add-set`, or correct its broker.seeds"
            )
        self._introduce(sender, now_ms, is_own_word=True)
        for one in request.others:
            self._introduce(one, now_ms)
        is_own = sender.name == self.own_name
        version = self._birth + self._state.topics.version if self._is_current() else 0
        is_known = is_own or version in (0, request.topics_version)
        response = GreetResponse()
        if not is_known:
            response.CopyFrom(self._all_routes(version))
        response.broker_set.CopyFrom(self.own())
        response.others.extend(self._told(without=sender.name))
        response.topics_version = version
        if version:
            access = self._state.access
            response.access_version, response.access_digest = access.change_count, access.digest()
        return response

    def heard(
        self,
        name: str,
        address: str,
        response: GreetResponse,
        now_ms: int,
        asked_version: int = 0,
    ) -> None:
        """The answer to a greeting of this set, or of "" for whichever is there. IllegalRequest: it
        is another one, or what it says makes no sense.
        """
        found = response.broker_set.name
        if not is_set_name(found):
            raise IllegalRequest(f"{address} says to be of broker set {found[:127]!r}")
        if found == self.own_name:
            self._check_own(address, response.broker_set)
        elif not self._state.sets.is_removed(found):
            self._introduce(PeerSet(name=found, addresses=[address]), now_ms)
        if name and name != found:
            raise IllegalRequest(f"{address} is of broker set {found}, not of {name}")
        if found in self._others:
            self.changes += self._others[found].hear(address, response, now_ms, asked_version)
        if address in self._seeds:
            self._seeds[address] = found
        for one in response.others:
            self._introduce(one, now_ms)

    def greeted(self, name: str, places: Sequence[str], *, is_answered: bool) -> None:
        """These addresses were tried, all of them unless one answered."""
        self._tried.add(name or places[0])
        self._has_greeted.set()
        other = self._others.get(name)
        if other is None or is_answered:
            return
        other.failures += 1
        is_hearsay = other.broker_set is None and name not in self._state.sets.added()
        if is_hearsay and other.failures >= _FAILURES_MAX:
            del self._others[name]
            self._tried.discard(name)

    def _check_own(self, address: str, broker_set: BrokerSet) -> None:
        if not may_be_same(self.own().nodes, broker_set.nodes):
            raise IllegalRequest(
                f"{address} is of another broker set that is also called {self.own_name}: "
                "give each set of a cluster a name of its own (node.broker_set)"
            )

    # -- what is known ----------------------------------------------------------------------------

    def _known(self) -> list[OtherSet]:
        return [one for name, one in self._others.items() if not self._state.sets.is_removed(name)]

    def _update_sets(self) -> None:
        """Follows the sets that operators added and removed, and the zones of this set."""
        self._was_current = self.is_informed
        sets = self._state.sets
        for name in [one for one in self._others if sets.is_removed(one)]:
            del self._others[name]
            self._tried.discard(name)
            self.changes += 1
        for name in sets.added():
            if name != self.own_name and name not in self._others:
                self._others[name] = OtherSet(name)
        zones = self._zones_here()
        self.changes += zones != self._own_zones
        self._own_zones = zones

    def _zones_here(self) -> frozenset[str]:
        return frozenset(peer.zone for peer in self._consensus.peers if peer.zone)

    def _neighbours(self) -> list[str]:
        """The other nodes of this set: the leader hears of most."""
        leader_id = self._consensus.leading.leader_id
        peers = [one for one in self._consensus.peers if one.node_id != self._identity.node]
        ranked = sorted(peers, key=lambda one: one.node_id != leader_id)
        return [one.address for one in ranked if one.address]

    def _introduce(self, one: PeerSet, now_ms: int, *, is_own_word: bool = False) -> None:
        other = self._others.get(one.name)
        if other is None:
            if (
                one.name == self.own_name
                or len(self._others) >= SETS_MAX
                or not is_set_name(one.name)
                or not legal_addresses(one.addresses)
                or self._state.sets.is_removed(one.name)
            ):
                return
            other = self._others[one.name] = OtherSet(one.name)
        other.introduce(one.addresses, now_ms, is_own_word=is_own_word)

    def _told(self, without: str) -> list[PeerSet]:
        return [
            PeerSet(name=one.name, addresses=one.places()[:ADDRESSES_MAX])
            for one in self._known()
            if one.name != without and one.broker_set is not None
        ]

    def _all_routes(self, version: int) -> GreetResponse:
        """Made once for all requests: there may be many."""
        if self._routes_of != version:
            routes = [
                self._route(topic)
                for topic in self._state.topics
                if names.is_readable_topic(topic.name)
            ]
            self._routes, self._routes_of = GreetResponse(topics=routes), version
        return self._routes

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
