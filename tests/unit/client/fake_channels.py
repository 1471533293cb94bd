"""Brokers that are a function, in place of the channels of a connection: one a broker set, which
leads it, at the address SET:1. What a client makes of their answers is real.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mq.client.cluster.channels import method_of
from mq.errors import Unreachable
from mq.wire.v1 import cluster_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.client.cluster.connection import Connection

Answer = Any


class FakeChannels:
    """`answer` is given the broker set, the method and the request: what it returns is the answer,
    raised if it is an error; None: there is no answer, until the caller's time is over.
    """

    def __init__(self, answer: Callable[[str, str, Any], Answer], *sets: str) -> None:
        self.answer = answer
        self.sets = sets or ("set-0",)
        self.topics: dict[str, list[pb.TopicRoute]] = {}
        # Of all but routes: the broker set, the method, the request.
        self.calls: list[tuple[str, str, Any]] = []
        self.routes: list[tuple[str, pb.RouteRequest]] = []
        self.creates_topics = False
        self.is_closed = False

    def have(
        self, topic: str, *sets: str, is_readable: bool = True, is_writable: bool = True
    ) -> None:
        """These sets have the topic, and no other."""
        self.topics[topic] = [
            pb.TopicRoute(
                topic=topic,
                broker_set=name,
                write_queues=2,
                read_queues=2,
                is_readable=is_readable,
                is_writable=is_writable,
            )
            for name in sets
        ]

    def replace_those_of(self, connection: Connection) -> None:
        connection.channels = self  # type: ignore[assignment]

    def asked(self, method: str) -> list[tuple[str, Any]]:
        return [(name, request) for name, what, request in self.calls if what == method]

    # What a connection calls

    async def ask(
        self, address: str, request: Any, timeout_s: float, *, raw_response: bool = False
    ) -> Any:
        method = method_of(type(request))[0].rpartition("/")[2]
        name = address.partition(":")[0]
        if method == "Route":
            return self._route(name, request)
        self.calls.append((name, method, request))
        await asyncio.sleep(0)
        answer = self.answer(name, method, request)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer is None:
            await asyncio.sleep(timeout_s)
            answer = Unreachable(f"{address}: DEADLINE_EXCEEDED")
        if isinstance(answer, Exception):
            raise answer
        if raw_response and not isinstance(answer, bytes):
            return answer.SerializeToString()
        return answer

    def _route(self, name: str, request: pb.RouteRequest) -> pb.RouteResponse:
        self.routes.append((name, request))
        if self.creates_topics and request.create_missing:
            for topic in request.topics:
                if topic not in self.topics:
                    self.have(topic, name)
        return pb.RouteResponse(
            broker_sets=[
                pb.BrokerSet(
                    name=name,
                    leader_id="n",
                    term=1,
                    nodes=[pb.NodeRoute(node_id="n", address=f"{name}:1")],
                )
                for name in self.sets
            ],
            topics=[part for topic in request.topics for part in self.topics.get(topic, [])],
        )

    async def close(self) -> None:
        self.is_closed = True
