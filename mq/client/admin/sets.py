"""Administration of the cluster itself: its broker sets, their members and leaders, single brokers.

Brokers tell each other of their sets, but after a restart of the whole cluster a set knows only the
sets in its own log: adding and removing a set writes it into the log of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from google.protobuf.message import Message as WireMessage

from mq.client.admin.calls import AdminCalls, check_counts
from mq.client.cluster.errors import reworded
from mq.client.cluster.retry import now_s
from mq.client.public import renamed
from mq.errors import IllegalRequest, MqError, Unreachable
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import (
    BrokerSet,
    GreetRequest,
    GreetResponse,
    PeerSet,
    RouteRequest,
    RouteResponse,
    TopicType,
)

_LOOK_AGAIN_S = 0.1
# The broker gives the other node ten seconds to catch up, and an election takes some more.
_TRANSFER_S = 20.0
# Sets greet each other about once a second, and wait up to two for an answer.
_HEARD_S = 10.0


class SetAdmin(AdminCalls):
    async def add_broker_set(self, address: str) -> RouteResponse:
        """Adds the set of the broker at `address` to this cluster: every set stores the names of
        all others, so that it knows them after a restart. Returns when each shows all of them.
        Idempotent. IllegalRequest when the set belongs to another cluster, has the name of another
        set, or has a topic of another type.
        """
        ours = await self._directory()
        theirs: RouteResponse = await self._ask_broker(address, RouteRequest())
        new = _own(theirs, address)
        if theirs.cluster != ours.cluster:
            raise IllegalRequest(
                f"the broker at {address} belongs to cluster {theirs.cluster}, this is "
                f"{ours.cluster}: give its nodes another node.cluster before they have data"
            )
        known = [one.name for one in ours.broker_sets]
        if known == [new.name]:
            raise IllegalRequest(
                f"{address} is of broker set {new.name}, and so is the broker that was asked to "
                "add it: ask a broker of another set of the cluster"
            )
        if new.name in known:
            await self._check_same(ours.cluster, new.name, address)
        # It is not asked for the rest of the cluster as long as it does not belong to it.
        self._connection.of(new.name).learn(new)
        sets = sorted({*known, new.name})
        await self._check_topics(new.name, sets)
        peers = await self._peers(ours.cluster, sets)
        for name in sets:
            for other in sets:
                if other != name:
                    request = pb.AddBrokerSetRequest(broker_set=peers[other])
                    await self._tell(name, request)
        return await self._until_known(sets, lambda shown: shown.issuperset(sets))

    async def remove_broker_set(self, name: str, *, force: bool = False) -> None:
        """Removes a set from the cluster: it forgets the others, and they forget it. Idempotent.
        Unless `force`: IllegalRequest, with numbers, while the set has topics or waiting messages,
        and Unreachable when it does not answer.
        """
        sets = await self._all_heard_of()
        others = [one for one in sets if one != name]
        await self._known_set(name, sets)
        if not others:
            raise IllegalRequest(f"{name} is the only broker set of the cluster")
        # All others must answer before anything is changed.
        (await self._ask_all(dict.fromkeys(others, pb.BrokerStatusRequest()))).all()
        is_there = True
        try:
            reasons = await self._left_in(name)
        except MqError as error:
            if not error.retryable:
                raise
            if not force:
                raise reworded(
                    error,
                    f"broker set {name} does not say what it has ({error}): if it is gone for "
                    "good, remove it by force (--force)",
                ) from None
            reasons, is_there = [], False
        if reasons and not force:
            raise IllegalRequest(
                f"broker set {name} has {', '.join(reasons)}: move them away first (`mq topic "
                "extend`, `drain`, `delete --set`), or remove it by force (--force): nothing is "
                "deleted then, but clients of the others no longer find them"
            )
        # The removed set first: as long as another one knows it, the same call completes this.
        if is_there:
            for other in others:
                await self._tell(name, pb.RemoveBrokerSetRequest(name=other))
        for other in others:
            await self._tell(other, pb.RemoveBrokerSetRequest(name=name))
        left = await self._until_known(others, lambda shown: name not in shown)
        # Its brokers know only themselves now.
        nodes = [node for one in left.broker_sets for node in one.nodes]
        self._connection.servers.keep_only(node.address for node in nodes if node.address)

    # Brokers

    async def broker_status(self, server: str | None = None) -> pb.BrokerStatusResponse:
        """The status of `server`, or of any broker."""
        request = pb.BrokerStatusRequest()
        answer: pb.BrokerStatusResponse = await self._ask_broker(server or "", request)
        return answer

    async def list_clients(
        self, server: str | None = None, max_clients: int = 0, *, page: str = ""
    ) -> pb.ListClientsResponse:
        """The connections of `server`, or of any broker, the oldest first. Go on with `next_page`
        of the answer.
        """
        check_counts(max_clients=max_clients)
        request = pb.ListClientsRequest(clients_max=max_clients, page=page)
        answer: pb.ListClientsResponse = await self._ask_broker(server or "", request)
        return answer

    async def get_config(self, server: str | None = None) -> list[pb.ConfigOption]:
        """The options of `server`, or of any broker."""
        answer: pb.ConfigList = await self._ask_broker(server or "", pb.GetConfigRequest())
        return list(answer.options)

    async def set_config(
        self, name: str, value: str, server: str | None = None
    ) -> list[pb.ConfigOption]:
        """Sets a dynamic option on one broker, until that stops. Returns all options."""
        request = pb.SetConfigRequest(name=name, value=value)
        answer: pb.ConfigList = await self._ask_broker(server or "", request)
        return list(answer.options)

    async def route(self, topics: Sequence[str] = ()) -> RouteResponse:
        """The brokers, the leader of each set, and the parts of these topics; topics that do not
        exist are left out.
        """
        return await self._directory(topics)

    # Members of one broker set. Its name may be left out while the cluster has only one.

    async def add_member(
        self, node_id: str, address: str, *, broker_set: str = ""
    ) -> pb.MemberList:
        """Adds a node that runs with `raft.join`, at its address for other nodes.

        It becomes a member when it has copied the log. Until then the call returns after a second,
        with the node as `joining`: the same call again shows its progress. IllegalMembership.
        """
        request = pb.AddMemberRequest(node_id=node_id, address=address)
        answer: pb.MemberList = await self._ask(await self._one_set(broker_set), request)
        return answer

    async def remove_member(self, node_id: str, *, broker_set: str = "") -> pb.MemberList:
        """Removes a node other than the leader, or gives up adding it. IllegalMembership."""
        request = pb.RemoveMemberRequest(node_id=node_id)
        answer: pb.MemberList = await self._ask(await self._one_set(broker_set), request)
        return answer

    async def transfer_leadership(
        self, node_id: str = "", *, broker_set: str = ""
    ) -> pb.TransferLeadershipResponse:
        """Makes this node the leader, or the one that has most of the log. Returns when it leads.
        IllegalMembership when it cannot; the old leader stays.
        """
        request = pb.TransferLeadershipRequest(node_id=node_id)
        name, timeout_s = await self._one_set(broker_set), max(self._timeout_s, _TRANSFER_S)
        answer: pb.TransferLeadershipResponse = await self._ask(name, request, timeout_s)
        return answer

    @renamed(bytes_max="max_bytes")
    async def read_log(self, server: str, log_offset: int = 0, max_bytes: int = 0) -> pb.LogChunk:
        """Reads bytes of the log of one broker from there on. See proto/mq/v1/admin.proto."""
        check_counts(log_offset=log_offset, max_bytes=max_bytes)
        request = pb.ReadLogRequest(log_offset=log_offset, bytes_max=max_bytes)
        answer: pb.LogChunk = await self._ask_broker(server, request)
        return answer

    async def _one_set(self, broker_set: str) -> str:
        known = await self._set_names()
        if broker_set:
            return await self._known_set(broker_set, known)
        if len(known) != 1:
            raise IllegalRequest(f"the cluster has the broker sets {', '.join(known)}: say which")
        return known[0]

    # Steps

    async def _check_same(self, cluster: str, name: str, address: str) -> None:
        """IllegalRequest unless the known set of this name is that of the broker at `address`."""
        theirs: GreetResponse = await self._ask_broker(address, _greeting(cluster, name))
        try:
            known = (await self._peers(cluster, [name]))[name]
        except Unreachable as error:
            raise Unreachable(
                f"the cluster has a broker set {name} that does not answer: if it is at {address} "
                f"now, remove it by force and add it again ({error})"
            ) from None
        if {node.address for node in theirs.broker_set.nodes}.isdisjoint(known.addresses):
            raise IllegalRequest(
                f"the set of the broker at {address} is called {name}, as one that the cluster "
                "has already: give each a name of its own (node.broker_set)"
            )

    async def _peers(self, cluster: str, sets: Sequence[str]) -> dict[str, PeerSet]:
        """The addresses of each set for other brokers; clients may use others."""
        peers: dict[str, PeerSet] = {}
        for name in sets:
            answer: GreetResponse = await self._ask(name, _greeting(cluster, name))
            addresses = [node.address for node in answer.broker_set.nodes if node.address]
            peers[name] = PeerSet(name=name, addresses=addresses)
        return peers

    async def _check_topics(self, new: str, sets: Sequence[str]) -> None:
        """IllegalRequest if a topic of both is of two kinds: it becomes one topic. Also raises when
        a set does not answer.
        """
        answers = await self._ask_all(dict.fromkeys(sets, pb.ListTopicsRequest()))
        listed = {
            name: {one.info.topic: one.info for one in answer.topics}
            for name, answer in answers.all().items()
        }
        for name in sets:
            for topic, here in listed[name].items():
                there = listed[new].get(topic, here)
                if (here.type, here.priorities) != (there.type, there.priorities):
                    raise IllegalRequest(
                        f"topic {topic} is {_kind(there)} in {new} and {_kind(here)} in {name}: "
                        "delete it in one of them first"
                    )

    async def _left_in(self, name: str) -> list[str]:
        """The topics and messages that clients would no longer find, as text."""
        listed = await self._ask(name, pb.ListTopicsRequest())
        topics = [one.info.topic for one in listed.topics]
        status = await self._ask(name, pb.BrokerStatusRequest())
        reasons = []
        if topics:
            shown = ", ".join(topics[:5]) + (", ..." if len(topics) > 5 else "")
            reasons.append(f"queues of {len(topics):,} topics ({shown})")
        counts = (
            (status.dead_letters, "dead letters"),
            (status.timing_messages, "delayed messages"),
            (status.half_messages, "half messages"),
        )
        return reasons + [f"{count:,} {what}" for count, what in counts if count]

    async def _all_heard_of(self) -> list[str]:
        """The sets that any set knows: one that is being removed is no longer known to all."""
        found = set(await self._set_names())
        for name in sorted(found):
            response = await self._connection.of(name).brokers(self._timeout_s)
            found.update(one.name for one in response.broker_sets)
        return sorted(found)

    async def _tell(self, name: str, request: WireMessage) -> None:
        try:
            await self._ask(name, request)
        except MqError as error:
            raise reworded(
                error, f"broker set {name}: {error}; the same call again completes it"
            ) from None

    async def _until_known(
        self, sets: Sequence[str], is_done: Callable[[set[str]], bool]
    ) -> RouteResponse:
        """Returns when the leader of each set shows it to clients. Unreachable: not in time."""
        deadline_s = now_s() + max(self._timeout_s, _HEARD_S)
        shown: Mapping[str, set[str]] = {}
        while True:
            answers = {name: await self._of_leader(name) for name in sets}
            shown = {
                name: {one.name for one in answer.broker_sets if one.nodes}
                for name, answer in answers.items()
            }
            if all(map(is_done, shown.values())):
                return answers[sets[0]]
            if now_s() >= deadline_s:
                states = "; ".join(f"{one} shows {', '.join(sorted(shown[one]))}" for one in sets)
                raise Unreachable(
                    f"all sets were told, but do not show it yet: {states}. Do their brokers reach "
                    "each other (broker.advertised)?"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _of_leader(self, name: str) -> RouteResponse:
        address = await self._connection.of(name).leader(self._timeout_s)
        try:
            answer: RouteResponse = await self._ask_broker(address, RouteRequest())
        except Unreachable:
            self._connection.of(name).failed(address)
            return RouteResponse()
        return answer


def _own(answer: RouteResponse, address: str) -> BrokerSet:
    """The set of the broker itself: the one that it has not heard of from others."""
    for one in answer.broker_sets:
        if one.age_ms == 0:
            return one
    raise IllegalRequest(f"the broker at {address} does not say of which set it is")


def _greeting(cluster: str, name: str) -> GreetRequest:
    """A greeting in the name of the set that is asked: it learns nothing from it."""
    return GreetRequest(cluster=cluster, sender=PeerSet(name=name))


def _kind(info: pb.TopicInfo) -> str:
    name = TopicType.Name(info.type).removeprefix("TOPIC_").lower()
    return f"{name} with {info.priorities} priorities" if info.priorities else name
