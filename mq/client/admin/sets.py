"""Administration of the cluster itself: its broker sets, their members and leaders, single brokers.

Brokers tell each other of their sets, but only what is in the log of a set is known to it after
everything has stopped: adding and removing a set writes it into the log of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from google.protobuf.message import Message as WireMessage

from mq.client.admin.calls import AdminCalls, check_count, said
from mq.client.cluster.retry import now_s
from mq.client.deprecated import renamed
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
        """The set of the broker at `address` belongs to this cluster from now on: every set is told
        of all others, and knows them again after everything has stopped. Returns when each shows
        all of them. May be said again. IllegalRequest: it belongs to another cluster, has the name
        of another set, or a topic of another type.
        """
        ours = await self._directory()
        theirs: RouteResponse = await self._connection.call(
            "ClusterService", "Route", RouteRequest(), self._timeout_s, server=address
        )
        new = _own(theirs, address)
        if theirs.cluster != ours.cluster:
            raise IllegalRequest(
                f"the broker at {address} belongs to cluster {theirs.cluster}, this is "
                f"{ours.cluster}: give its nodes another node.cluster before they have data"
            )
        known = [one.name for one in ours.broker_sets]
        if known == [new.name]:
            raise IllegalRequest(
                f"{address} is of broker set {new.name}, and so is who was asked to add it: ask a "
                "broker of another set of the cluster"
            )
        if new.name in known:
            await self._check_same(ours.cluster, new.name, address)
        # Nobody is to ask it for the rest of the cluster as long as it does not belong to it.
        self._connection.of(new.name).learn(new)
        sets = sorted({*known, new.name})
        await self._check_topics(new.name, sets)
        peers = await self._peers(ours.cluster, sets)
        for name in sets:
            for other in sets:
                if other != name:
                    request = pb.AddBrokerSetRequest(broker_set=peers[other])
                    await self._tell(name, "AddBrokerSet", request)
        return await self._until_known(sets, lambda shown: shown.issuperset(sets))

    async def remove_broker_set(self, name: str, *, force: bool = False) -> None:
        """Neither set knows the other from now on. IllegalRequest, with numbers, while it has
        topics or messages that wait, and Unreachable when it cannot say; unless with `force`.
        May be said again.
        """
        sets = await self._all_heard_of()
        others = [one for one in sets if one != name]
        await self._known_set(name, sets)
        if not others:
            raise IllegalRequest(f"{name} is the only broker set of the cluster")
        # Before anything is changed: all are there.
        (await self._ask_all("BrokerStatus", dict.fromkeys(others, pb.BrokerStatusRequest()))).all()
        is_there = True
        try:
            reasons = await self._left_in(name)
        except MqError as error:
            if not error.retryable:
                raise
            if not force:
                raise said(
                    error,
                    f"broker set {name} does not say what it has ({error}): if it is gone for "
                    "good, remove it by force (--force)",
                ) from None
            reasons, is_there = [], False
        if reasons and not force:
            raise IllegalRequest(
                f"broker set {name} has {', '.join(reasons)}: move them away first (`mq topic "
                "extend`, `drain`, `delete --set`), or remove it by force (--force): nothing is "
                "deleted then, but clients of the others do not find them any more"
            )
        # It first: as long as one of the others knows it, the same call can complete this.
        if is_there:
            for other in others:
                await self._tell(name, "RemoveBrokerSet", pb.RemoveBrokerSetRequest(name=other))
        for other in others:
            await self._tell(other, "RemoveBrokerSet", pb.RemoveBrokerSetRequest(name=name))
        left = await self._until_known(others, lambda shown: name not in shown)
        # Its brokers would tell of themselves alone.
        nodes = [node for one in left.broker_sets for node in one.nodes]
        self._connection.servers.keep_only(node.address for node in nodes if node.address)

    # Brokers

    async def broker_status(self, server: str | None = None) -> pb.BrokerStatusResponse:
        """Of `server`; of any broker when that is None."""
        answer: pb.BrokerStatusResponse = await self._connection.call(
            "AdminService",
            "BrokerStatus",
            pb.BrokerStatusRequest(),
            self._timeout_s,
            server=server or "",
        )
        return answer

    async def get_config(self, server: str | None = None) -> list[pb.ConfigOption]:
        answer: pb.ConfigList = await self._connection.call(
            "AdminService", "GetConfig", pb.GetConfigRequest(), self._timeout_s, server=server or ""
        )
        return list(answer.options)

    async def set_config(
        self, name: str, value: str, server: str | None = None
    ) -> list[pb.ConfigOption]:
        """On one broker, until it stops; only options that are dynamic."""
        request = pb.SetConfigRequest(name=name, value=value)
        answer: pb.ConfigList = await self._connection.call(
            "AdminService", "SetConfig", request, self._timeout_s, server=server or ""
        )
        return list(answer.options)

    async def route(self, topics: Sequence[str] = ()) -> RouteResponse:
        """The brokers, who leads each set, and where these topics are; those that do not exist are
        left out.
        """
        return await self._directory(topics)

    # Members of one broker set. Its name may be left out while the cluster has only one.

    async def add_member(
        self, node_id: str, address: str, *, broker_set: str = ""
    ) -> pb.MemberList:
        """A node that runs already, waiting for it (`raft.join`), at the address for other nodes.

        It is a member when it has copied the log. Until then the answer has it as `joining`, after
        a second: call again, with the same, to see how far it is. IllegalMembership.
        """
        request = pb.AddMemberRequest(node_id=node_id, address=address)
        answer: pb.MemberList = await self._ask(
            await self._one_set(broker_set), "AddMember", request
        )
        return answer

    async def remove_member(self, node_id: str, *, broker_set: str = "") -> pb.MemberList:
        """Not the one that leads. One that is being added is called off. IllegalMembership."""
        request = pb.RemoveMemberRequest(node_id=node_id)
        answer: pb.MemberList = await self._ask(
            await self._one_set(broker_set), "RemoveMember", request
        )
        return answer

    async def transfer_leadership(
        self, node_id: str = "", *, broker_set: str = ""
    ) -> pb.TransferLeadershipResponse:
        """To this node, or to the one that has most of the log. Returns when it leads.
        IllegalMembership: it cannot, and the old one leads on.
        """
        request = pb.TransferLeadershipRequest(node_id=node_id)
        name, timeout_s = await self._one_set(broker_set), max(self._timeout_s, _TRANSFER_S)
        answer: pb.TransferLeadershipResponse = await self._ask(
            name, "TransferLeadership", request, timeout_s=timeout_s
        )
        return answer

    @renamed(bytes_max="max_bytes")
    async def read_log(self, server: str, log_offset: int = 0, max_bytes: int = 0) -> pb.LogChunk:
        """Of one broker: its log from there on, some bytes of it. See proto/mq/v1/admin.proto."""
        check_count("log_offset", log_offset)
        check_count("max_bytes", max_bytes)
        request = pb.ReadLogRequest(log_offset=log_offset, bytes_max=max_bytes)
        answer: pb.LogChunk = await self._connection.call(
            "AdminService", "ReadLog", request, self._timeout_s, server=server
        )
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
        """The cluster has a set of this name: it must be that of the broker at `address`."""
        theirs: GreetResponse = await self._connection.call(
            "ClusterService", "Greet", _greeting(cluster, name), self._timeout_s, server=address
        )
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
        """Where brokers find each set, which clients may know by other addresses."""
        peers: dict[str, PeerSet] = {}
        for name in sets:
            answer: GreetResponse = await self._ask(
                name, "Greet", _greeting(cluster, name), service="ClusterService"
            )
            addresses = [node.address for node in answer.broker_set.nodes if node.address]
            peers[name] = PeerSet(name=name, addresses=addresses)
        return peers

    async def _check_topics(self, new: str, sets: Sequence[str]) -> None:
        """What both have becomes one topic: it must be of one kind. Also: all sets answer."""
        answers = await self._ask_all("ListTopics", dict.fromkeys(sets, pb.ListTopicsRequest()))
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
        """What clients would not find any more, in words."""
        listed = await self._ask(name, "ListTopics", pb.ListTopicsRequest())
        topics = [one.info.topic for one in listed.topics]
        status = await self._ask(name, "BrokerStatus", pb.BrokerStatusRequest())
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
        """By any set: one that is being removed is not known to all any more."""
        found = set(await self._set_names())
        for name in sorted(found):
            response = await self._connection.of(name).brokers(self._timeout_s)
            found.update(one.name for one in response.broker_sets)
        return sorted(found)

    async def _tell(self, name: str, method: str, request: WireMessage) -> None:
        try:
            await self._ask(name, method, request)
        except MqError as error:
            raise said(
                error, f"broker set {name}: {error}; the same call again completes it"
            ) from None

    async def _until_known(
        self, sets: Sequence[str], is_done: Callable[[set[str]], bool]
    ) -> RouteResponse:
        """A broker of each set shows it to clients. Unreachable: not in time."""
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
            answer: RouteResponse = await self._connection.call(
                "ClusterService", "Route", RouteRequest(), self._timeout_s, server=address
            )
        except Unreachable:
            self._connection.of(name).failed(address)
            return RouteResponse()
        return answer


def _own(answer: RouteResponse, address: str) -> BrokerSet:
    """The set that a broker belongs to: the one that it has not heard of from others."""
    for one in answer.broker_sets:
        if one.age_ms == 0:
            return one
    raise IllegalRequest(f"the broker at {address} does not say of which set it is")


def _greeting(cluster: str, name: str) -> GreetRequest:
    """To a set, as if it asked itself: it learns nothing by it."""
    return GreetRequest(cluster=cluster, sender=PeerSet(name=name))


def _kind(info: pb.TopicInfo) -> str:
    name = TopicType.Name(info.type).removeprefix("TOPIC_").lower()
    return f"{name} with {info.priorities} priorities" if info.priorities else name
