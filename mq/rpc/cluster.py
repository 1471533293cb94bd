"""ClusterService: the leaders of all sets of the cluster, and where the queues of a topic are.
Every node answers.
"""

from __future__ import annotations

from mq import names
from mq.broker.broker import Broker
from mq.rpc import listeners
from mq.rpc.access import Rules
from mq.rpc.context import Context
from mq.store.identity import Identity
from mq.wire.v1 import cluster_pb2 as pb

# Missing topics of one request for which similar names are suggested.
_GUESSED_MAX = 4


class ClusterService:
    def __init__(self, broker: Broker, identity: Identity, rules: Rules) -> None:
        self._broker = broker
        self._rules = rules
        self._identity = identity

    async def route(self, request: pb.RouteRequest, context: Context) -> pb.RouteResponse:
        for name in request.topics:
            names.check_topic(name)
        directory = self._broker.directory
        if request.topics and not directory.is_informed:
            # An answer would say that this set has none of them.
            raise self._broker.leadership.refusal()
        if request.create_missing and not all(map(directory.topic, request.topics)):
            await self._broker.leadership.settled()
            await self._broker.create_missing(request.topics)
        # Clients take a set without queues of a topic for one that has none.
        sets = directory.sets(self._broker.steady_ms(), with_topics=bool(request.topics))
        for broker_set in sets:
            for node in broker_set.nodes:
                node.address = listeners.chosen(node.address, node.external_address)
                node.external_address = ""
        found = {name: directory.topic(name) for name in request.topics}
        missing = [name for name in request.topics if not found[name]][:_GUESSED_MAX]
        return pb.RouteResponse(
            cluster=self._identity.cluster,
            broker_sets=sets,
            topics=[one for name in request.topics for one in found[name]],
            missing=[
                pb.MissingTopic(topic=name, similar=self._similar(name, context))
                for name in missing
            ],
        )

    def _similar(self, topic: str, context: Context) -> list[str]:
        """Of those that the caller may see."""
        found, caller = self._broker.missing_topics.similar(topic), context.caller
        return [one for one in found if self._rules.may_describe_topic(caller, one)]

    async def greet(self, request: pb.GreetRequest, context: Context) -> pb.GreetResponse:
        return self._broker.directory.answer(request, self._broker.steady_ms())
