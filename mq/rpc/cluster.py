"""ClusterService: who leads, and where the queues of a topic are. Every node answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mq import names
from mq.broker.broker import Broker
from mq.errors import IllegalRequest
from mq.rpc.methods import Context
from mq.store.identity import Identity
from mq.wire.v1 import cluster_pb2 as pb

_TOPICS_MAX = 10_000


class ClusterService:
    def __init__(self, broker: Broker, identity: Identity) -> None:
        self._broker = broker
        self._identity = identity

    async def route(self, request: pb.RouteRequest, context: Context) -> pb.RouteResponse:
        if len(request.topics) > _TOPICS_MAX:
            raise IllegalRequest(
                f"{len(request.topics)} topics in one request: at most {_TOPICS_MAX}"
            )
        for name in request.topics:
            names.check_topic(name)
        if request.create_missing and any(
            name not in self._broker.state.topics for name in request.topics
        ):
            await self._broker.leadership.settled()
            await self._broker.create_missing(request.topics)
        leading = self._broker.consensus.leading
        broker_set = pb.BrokerSet(
            name=self._identity.broker_set,
            leader_id=leading.leader_id or "",
            term=leading.term,
            nodes=[
                pb.NodeRoute(node_id=peer.node_id, address=peer.address, zone=peer.zone)
                for peer in self._broker.consensus.peers
            ],
        )
        return pb.RouteResponse(
            cluster=self._identity.cluster,
            broker_sets=[broker_set],
            topics=self._topics(request.topics),
        )

    def _topics(self, wanted: Iterable[str]) -> Iterator[pb.TopicRoute]:
        topics = self._broker.state.topics
        for name in wanted:
            if name in topics:
                topic = topics.find(name)
                yield pb.TopicRoute(
                    topic=name,
                    type=topic.type,  # type: ignore[arg-type]  # a number on the wire
                    broker_set=self._identity.broker_set,
                    write_queues=topic.write_queues,
                    read_queues=topic.read_queues,
                    is_readable=topic.is_readable and names.is_readable_topic(name),
                    is_writable=topic.is_writable and not topic.is_internal,
                    priorities=topic.priorities,
                )
