"""Routes: which queues a topic has, and where its broker sets are.

A set is one broker to these clients, called by its name, with the addresses of all of its nodes,
the leader first: a client that loses one connects to the next, and every node serves. Only
addresses of IP can be several: nodes that are known by host names are a broker each, so that a
client that retries goes to another one.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator

from mq.access.policies import Action, topic_resource
from mq.broker.broker import Broker
from mq.errors import TopicNotFound
from mq.rpc import listeners
from mq.rpc.access import Rules
from mq.rpc.rocketmq.calls import Call, Calls
from mq.rpc.rocketmq.codes import OK, Refused
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code, MessageType, Permission
from mq.wire.v1.cluster_pb2 import BrokerSet, TopicRoute, TopicType

# How long a node waits for the topic that the leader has created.
_CREATED_S, _LOOK_S = 3.0, 0.02

_UNTYPED = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
_BY_TYPE: dict[int, tuple[MessageType, ...]] = {
    TopicType.TOPIC_ORDERED: (MessageType.FIFO,),
    TopicType.TOPIC_DELAYED: (MessageType.DELAY,),
    TopicType.TOPIC_TRANSACTIONAL: (MessageType.TRANSACTION,),
}


def accepted_types(topic_type: int, priorities: int) -> tuple[MessageType, ...]:
    """The types of messages that a topic takes. Older clients fail at types that they do not know:
    PRIORITY is for topics that have priorities.
    """
    found = _BY_TYPE.get(topic_type, _UNTYPED)
    return (*found, MessageType.PRIORITY) if priorities > 1 and found is _UNTYPED else found


def check_type(topic: str, topic_type: int, message_type: int) -> None:
    """Raises Refused if the topic was created for another type of messages."""
    found = _BY_TYPE.get(topic_type)
    if found is not None and message_type not in found:
        wanted = MessageType.Name(found[0])
        raise Refused(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {topic} takes messages of type {wanted}, not {MessageType.Name(message_type)}",
        )


class Routes:
    def __init__(self, broker: Broker, rules: Rules, calls: Calls) -> None:
        self._broker = broker
        self._rules = rules
        self._calls = calls

    async def query_route(
        self, request: service.QueryRouteRequest, call: Call
    ) -> service.QueryRouteResponse:
        """A topic that is not there is created if the broker does that: a route is what a producer
        asks for before its first message, and it does not say that it is one.
        """
        topic = call.topic(request.topic)
        # Clients choose a queue by the hash of a message group over the queues of the route: one
        # that lacks some of them takes a group to another queue, and its order is lost.
        if not self._broker.directory.is_informed:
            raise self._broker.leadership.refusal()
        await self._broker.until_sets_known()
        routes = self._known(topic, call) or await self._created(topic, request, call)
        queues = [
            pb.MessageQueue(
                topic=request.topic,
                id=queue_id,
                permission=_permission(route, queue_id),
                broker=brokers[queue_id % len(brokers)],
                accept_message_types=accepted_types(route.type, route.priorities),
            )
            for route, brokers in self._located(routes)
            for queue_id in range(max(route.read_queues, route.write_queues))
        ]
        return service.QueryRouteResponse(status=OK, message_queues=queues)

    async def query_assignment(
        self, request: service.QueryAssignmentRequest, call: Call
    ) -> service.QueryAssignmentResponse:
        """Any queue of a set: leases say who gets which message."""
        topic, group = call.topic(request.topic), call.group(request.group)
        self._rules.check_consume_group(call.principal, group)
        self._rules.check_consume_topic(call.principal, topic)
        routes = self._known(topic, call)
        if not routes:
            raise _not_found(topic)
        readable = [one for one in routes if one.is_readable]
        if not readable:
            raise Refused(Code.FORBIDDEN, f"topic {topic} cannot be read")
        assignments = [
            pb.Assignment(
                message_queue=pb.MessageQueue(
                    topic=request.topic,
                    id=-1,
                    permission=Permission.READ_WRITE,
                    broker=broker,
                    accept_message_types=accepted_types(route.type, route.priorities),
                )
            )
            for route, brokers in self._located(readable)
            for broker in brokers
        ]
        return service.QueryAssignmentResponse(status=OK, assignments=assignments)

    def _known(self, topic: str, call: Call) -> list[TopicRoute]:
        self._rules.check_describe_topic(call.principal, topic)
        return self._broker.directory.topic(topic)

    async def _created(
        self, topic: str, request: service.QueryRouteRequest, call: Call
    ) -> list[TopicRoute]:
        broker = self._broker
        if broker.settings.creates_topics and self._rules.is_new(topic):
            broker.gate.check(call.principal, Action.CREATE, topic_resource(topic))
            await self._create(topic, request, call)
        found = broker.directory.topic(topic)
        if not found:
            # Where the leader has a route of it, this node has missed it: it says so.
            raise _not_found(topic)
        return found

    async def _create(self, topic: str, request: service.QueryRouteRequest, call: Call) -> None:
        if self._broker.leadership.is_serving:
            await self._broker.create_missing([topic])
            return
        await self._calls.passed_on("", "QueryRoute", request, call)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _CREATED_S
        # It is on its way to this node.
        while not self._broker.directory.topic(topic) and loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _located(self, routes: list[TopicRoute]) -> Iterator[tuple[TopicRoute, list[pb.Broker]]]:
        directory = self._broker.directory
        sets = {one.name: one for one in directory.sets(self._broker.steady_ms())}
        for route in routes:
            found = sets.get(route.broker_set)
            if found is None or not is_listed(route, found, directory.own_name):
                continue
            brokers = brokers_of(found)
            if brokers:
                yield route, brokers


def is_listed(route: TopicRoute, broker_set: BrokerSet, own_name: str) -> bool:
    """Sends go around a set without a leader; not those of ordered topics, whose message groups
    would change their queue: they wait.
    """
    is_ordered = route.type == TopicType.TOPIC_ORDERED
    return bool(broker_set.leader_id) or broker_set.name == own_name or is_ordered


def _not_found(topic: str) -> TopicNotFound:
    return TopicNotFound(f"there is no topic {topic}: create it with `mq topic create`")


def brokers_of(broker_set: BrokerSet) -> list[pb.Broker]:
    """One with several addresses, or one a node."""
    nodes = sorted(
        (one for one in broker_set.nodes if one.address),
        key=lambda one: (one.node_id != broker_set.leader_id, one.node_id),
    )
    places = [_address(listeners.chosen(one.address, one.external_address)) for one in nodes]
    schemes = {_scheme(one.host) for one in places}
    if len(schemes) == 1 and pb.DOMAIN_NAME not in schemes:
        endpoints = pb.Endpoints(scheme=schemes.pop(), addresses=places)
        return [pb.Broker(name=broker_set.name, id=0, endpoints=endpoints)]
    if len(places) == 1:
        endpoints = pb.Endpoints(scheme=_scheme(places[0].host), addresses=places)
        return [pb.Broker(name=broker_set.name, id=0, endpoints=endpoints)]
    by_node = sorted(zip(nodes, places, strict=True), key=lambda one: one[0].node_id)
    return [
        pb.Broker(
            name=f"{broker_set.name}-{node.node_id}",
            id=0,
            endpoints=pb.Endpoints(scheme=_scheme(place.host), addresses=[place]),
        )
        for node, place in by_node
    ]


def _address(text: str) -> pb.Address:
    host, _, port = text.rpartition(":")
    return pb.Address(host=host.strip("[]"), port=int(port))


def _scheme(host: str) -> pb.AddressScheme:
    try:
        return pb.IPv6 if ipaddress.ip_address(host).version == 6 else pb.IPv4
    except ValueError:
        return pb.DOMAIN_NAME


def _permission(route: TopicRoute, queue_id: int) -> Permission:
    is_read = route.is_readable and queue_id < route.read_queues
    is_written = route.is_writable and queue_id < route.write_queues
    if is_read:
        return Permission.READ_WRITE if is_written else Permission.READ
    return Permission.WRITE if is_written else Permission.NONE
