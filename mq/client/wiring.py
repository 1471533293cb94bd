"""The connection of one client to the brokers: channels, calls, who leads, where topics are.

Any one broker is enough to find the others. What is known of leaders and topics may be stale and is
only a place to start: a broker that does not lead says who does, and calls follow. Everything runs
on the event loop that uses it first. Retries of sends and of streams are not made here.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import Message as WireMessage

from mq import names
from mq.client.failures import error_of_call
from mq.client.servers import Servers
from mq.errors import IllegalConfig, MqError, NotLeader, TopicNotFound, Unreachable
from mq.wire.v1 import admin_pb2, cluster_pb2, consumer_pb2, producer_pb2, transaction_pb2
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse, TopicRoute

BACK_OFF_S, BACK_OFF_S_MAX = 0.05, 0.5
CALL_TIMEOUT_S = 5.0
# A broker that holds a call for so long is frozen or gone; another may answer.
_ROUTE_ATTEMPT_S = 1.0
ROUTE_AGE_S_MAX = 30.0
MESSAGE_BYTES_MAX = 64 << 20

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Retries are ours: gRPC's would resend what a broker may have stored.
    ("grpc.enable_retries", 0),
    # After a fail-over the new leader is wanted now, not after gRPC's own pause of up to 20 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also how long a connection may take to come about.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Several clients in a process do not share sockets: one that is closed takes no other along.
    ("grpc.use_local_subchannel_pool", 1),
)

_SERVICES: dict[str, ModuleType] = {
    "AdminService": admin_pb2,
    "ClusterService": cluster_pb2,
    "ConsumerService": consumer_pb2,
    "ProducerService": producer_pb2,
    "TransactionService": transaction_pb2,
}


class Route(NamedTuple):
    """Of one topic, when it was asked for: its queues, and the address of who leads them."""

    topic: TopicRoute
    leader: str


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """From "host:port,host:port" or a list of such. IllegalConfig when there is none."""
    given = servers.split(",") if isinstance(servers, str) else servers
    found = tuple(dict.fromkeys(one.strip() for one in given if one.strip()))
    wrong = [one for one in found if not one.rpartition(":")[2].isdecimal() or one[0] == ":"]
    if not found or wrong:
        raise IllegalConfig(f"servers {servers!r}: give one or more of host:port")
    return found


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def back_off_s(attempt: int) -> float:
    """How long to wait before the next attempt; the first one has the number 0."""
    return min(BACK_OFF_S * float(1 << min(attempt, 10)), BACK_OFF_S_MAX)


class Connection:
    """Of one producer, consumer or admin; close it on the loop on which it was used.

    `call` is for single requests. Streams are opened by `stream`, at the address from `leader` or
    `route`; who opens one tells `succeeded`, `failed` and `not_leader` what it saw there.
    """

    def __init__(self, servers: str | Sequence[str], zone: str = "") -> None:
        self.seeds = parse_servers(servers)
        self.zone = zone
        self.servers = Servers(self.seeds, zone)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._leader = ""
        self._routes: dict[str, tuple[Route, float]] = {}
        self._is_closed = False

    # Single calls

    async def call(  # noqa: PLR0913
        self,
        service: str,
        method: str,
        request: WireMessage,
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        to_leader: bool = True,
        server: str = "",
        attempt_timeout_s: float | None = None,
        raw_response: bool = False,
    ) -> Any:
        """The answer of the leader, of any broker, or of `server` and no other; a raw one is bytes
        as they came over the wire.

        Asks again until the time is over when nobody leads or nobody was reached, so that a request
        may be carried out twice. Raises what the broker answers; Unreachable when none does.
        """
        deadline_s = _now_s() + timeout_s
        tried: list[str] = []
        attempt = 0
        while True:
            now_s = _now_s()
            address = server or (to_leader and self._leader) or self.servers.best(now_s, tried)
            left_s = max(deadline_s - now_s, 0.001)
            try:
                return await self._ask(
                    address,
                    service,
                    method,
                    request,
                    min(left_s, attempt_timeout_s or left_s),
                    raw_response=raw_response,
                )
            except NotLeader as error:
                failure: MqError = error
                # A hint that was not tried is followed at once, a loop of hints with a pause.
                must_wait = self.not_leader(address, error.address or "") in ("", *tried, address)
            except Unreachable as error:
                failure = error
                self.failed(address)
                must_wait = bool(server) or all(one in (*tried, address) for one in self.servers)
            tried = [] if must_wait else [*tried, address]
            if must_wait:
                pause_s = back_off_s(attempt)
                attempt += 1
                if _now_s() + pause_s >= deadline_s:
                    raise self._in_the_end(failure, timeout_s) from None
                await asyncio.sleep(pause_s)
            elif _now_s() >= deadline_s:
                raise self._in_the_end(failure, timeout_s) from None

    async def _ask(
        self,
        address: str,
        service: str,
        method: str,
        request: WireMessage,
        timeout_s: float,
        *,
        raw_response: bool,
    ) -> Any:
        """One attempt."""
        path, response_class = _method(service, method)
        ask = self.channel(address).unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=None if raw_response else response_class.FromString,
        )
        began_s = _now_s()
        try:
            answer = await ask(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise error_of_call(failure, address) from None
        except grpc.aio.UsageError:
            # The channel was closed under the call.
            raise Unreachable(f"{address}: the client is closed") from None
        # Calls that wait for messages say nothing about the way there.
        if service != "ConsumerService":
            self.servers.succeeded(address, _now_s() - began_s)
        return answer

    def _in_the_end(self, failure: MqError, timeout_s: float) -> MqError:
        if isinstance(failure, Unreachable):
            servers = ", ".join(self.servers)
            return Unreachable(
                f"no broker answered within {max(0.0, timeout_s):g} s; tried {servers}; "
                f"the last one: {failure}"
            )
        return failure

    # Leaders and topics

    async def leader(self, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Address of who leads, as far as is known. NotLeader when nobody does until the end."""
        return self._leader or await self._find_leader(timeout_s)

    async def _find_leader(self, timeout_s: float) -> str:
        deadline_s = _now_s() + timeout_s
        attempt = 0
        while True:
            await self._ask_route(RouteRequest(), deadline_s - _now_s())
            if self._leader:
                return self._leader
            pause_s = back_off_s(attempt)
            attempt += 1
            if _now_s() + pause_s >= deadline_s:
                raise NotLeader(None, None)
            await asyncio.sleep(pause_s)

    async def route(
        self, topic: str, *, create: bool = False, timeout_s: float = CALL_TIMEOUT_S
    ) -> Route:
        """Where a topic is. TopicNotFound when it does not exist, and could not be created."""
        known = self.known_route(topic)
        if known is not None:
            return known
        names.check_topic(topic)
        began_s = _now_s()
        request = RouteRequest(topics=[topic], create_missing=create)
        response = await self._ask_route(request, timeout_s, to_leader=create)
        if not response.topics and not create:
            # A broker that lags behind does not know a topic that was created just now.
            response = await self._ask_route(request, timeout_s, to_leader=True)
        found = next((one for one in response.topics if one.topic == topic), None)
        if found is None:
            raise TopicNotFound(f"topic {topic} does not exist: create it first")
        leader = await self.leader(timeout_s - (_now_s() - began_s))
        route = Route(found, leader)
        self._routes[topic] = route, _now_s()
        return route

    def known_route(self, topic: str) -> Route | None:
        """Without asking: what was learnt in the last half minute, with the leader of now."""
        known = self._routes.get(topic)
        if known is None or not self._leader or _now_s() - known[1] > ROUTE_AGE_S_MAX:
            return None
        return known[0]._replace(leader=self._leader)

    async def brokers(
        self, topics: Sequence[str] = (), timeout_s: float = CALL_TIMEOUT_S
    ) -> RouteResponse:
        """All that one broker knows: the broker sets, and of these topics where they are."""
        return await self._ask_route(RouteRequest(topics=topics), timeout_s)

    async def _ask_route(
        self, request: RouteRequest, timeout_s: float, *, to_leader: bool = False
    ) -> RouteResponse:
        # Creating a topic is a write, which waits for the disks of a majority.
        attempt_s = timeout_s if request.create_missing else _ROUTE_ATTEMPT_S
        response: RouteResponse = await self.call(
            "ClusterService",
            "Route",
            request,
            timeout_s,
            to_leader=to_leader,
            attempt_timeout_s=attempt_s,
        )
        self._learn(response)
        return response

    def _learn(self, response: RouteResponse) -> None:
        leader = ""
        for broker_set in response.broker_sets:
            for node in broker_set.nodes:
                self.servers.learn(node.address, node.zone)
                if node.node_id == broker_set.leader_id and broker_set.leader_id and not leader:
                    leader = node.address
        self._leader = leader

    # What streams saw

    def not_leader(self, address: str, leader: str = "") -> str:
        """`address` said that it does not lead, but `leader` does. Who is believed to lead now."""
        if leader and leader != address:
            self.servers.learn(leader)
            self._leader = leader
        elif self._leader == address:
            self._leader = ""
        return self._leader

    def failed(self, address: str) -> None:
        """It was not reached, or broke off."""
        self.servers.failed(address, _now_s())
        if self._leader == address:
            self._leader = ""

    def succeeded(self, address: str, latency_s: float) -> None:
        self.servers.succeeded(address, latency_s)

    def forget_route(self, topic: str) -> None:
        """The broker does not agree with it: the topic has changed, or is gone."""
        self._routes.pop(topic, None)

    # Channels

    def channel(self, address: str) -> grpc.aio.Channel:
        if self._is_closed:
            raise Unreachable(f"{address}: the client is closed")
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            self._channels[address] = channel
        return channel

    def stream(
        self,
        address: str,
        service: str,
        method: str,
        *,
        raw_requests: bool = False,
        raw_responses: bool = False,
    ) -> grpc.aio.StreamStreamCall:
        """Opens a bidirectional stream: `write`, `read`, `done_writing`, `cancel`.

        Raw ones are bytes as they go over the wire. Failures are grpc.aio.AioRpcError, which
        `mq.client.failures.error_of_call` turns into ours.
        """
        path, response_class = _method(service, method)
        return self.channel(address).stream_stream(
            path,
            request_serializer=None if raw_requests else _serialize,
            response_deserializer=None if raw_responses else response_class.FromString,
        )()

    async def close(self) -> None:
        self._is_closed = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()


def _serialize(request: WireMessage) -> bytes:
    return request.SerializeToString()


@functools.cache
def _method(service: str, method: str) -> tuple[str, type[WireMessage]]:
    """Path of a method, and the class of its answers."""
    descriptor = _SERVICES[service].DESCRIPTOR.services_by_name[service]
    answer = descriptor.methods_by_name[method].output_type
    return f"/{descriptor.full_name}/{method}", message_factory.GetMessageClass(answer)
