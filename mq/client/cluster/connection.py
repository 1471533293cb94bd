"""The connection of one client to the cluster: channels to brokers, the broker sets, their leaders.

Any one broker is enough to find the others, of all sets. A known leader may be stale and is only a
place to start: a follower redirects to the leader, and calls go there. Retries of sends and of
streams are not made here. Everything runs on the event loop that uses it first.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import Message as WireMessage

from mq.client.cluster.errors import error_of_call
from mq.client.cluster.retry import CALL_TIMEOUT_S, Retry, UnaryCall, call_until_answered, now_s
from mq.client.cluster.servers import LOG_AFTER_S, Attempts, Servers
from mq.client.cluster.topology import Topology
from mq.errors import (
    ClientClosed,
    IllegalConfig,
    IllegalRequest,
    MqError,
    NoLeader,
    NotLeader,
    Unreachable,
)
from mq.wire.v1 import admin_pb2, cluster_pb2, consumer_pb2, producer_pb2, transaction_pb2
from mq.wire.v1.cluster_pb2 import BrokerSet, RouteRequest, RouteResponse

log = logging.getLogger(__name__)

# The time-out of the questions after a time-out that find its reason; a producer waits no longer.
LAST_WORD_S = 0.15
# A broker that holds a call for longer is frozen or gone; another may answer.
_ROUTE_ATTEMPT_S = 1.0
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
    # Also the time-out of a connection attempt.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Clients of a process do not share sockets: closing one must not affect another.
    ("grpc.use_local_subchannel_pool", 1),
)

_CLOSED = "the client is closed: make another one"

_SERVICES: dict[str, ModuleType] = {
    "AdminService": admin_pb2,
    "ClusterService": cluster_pb2,
    "ConsumerService": consumer_pb2,
    "ProducerService": producer_pb2,
    "TransactionService": transaction_pb2,
}


class Channels:
    """gRPC channels by address, used and closed on one event loop."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._is_closed = False

    def channel(self, address: str) -> grpc.aio.Channel:
        if self._is_closed:
            raise ClientClosed(_CLOSED)
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            self._channels[address] = channel
        return channel

    async def ask(
        self,
        address: str,
        service: str,
        method: str,
        request: WireMessage,
        timeout_s: float,
        *,
        raw_response: bool = False,
    ) -> Any:
        """One attempt. Raises the error of the broker, Unreachable or ClientClosed."""
        path, response_class = _method(service, method)
        ask = self.channel(address).unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=None if raw_response else response_class.FromString,
        )
        try:
            return await ask(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise error_of_call(failure, address) from None
        except grpc.aio.UsageError:
            # The channel was closed during the call.
            raise ClientClosed(_CLOSED) from None

    def stream(self, address: str, service: str, method: str) -> grpc.aio.StreamStreamCall:
        """Opens a bidirectional stream of bytes: `write`, `read`, `done_writing`, `cancel`.

        Failures are grpc.aio.AioRpcError, which `mq.client.cluster.errors.error_of_call` turns into
        an MqError.
        """
        path, _ = _method(service, method)
        return self.channel(address).stream_stream(path)()

    async def close(self) -> None:
        self._is_closed = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()


@functools.cache
def _method(service: str, method: str) -> tuple[str, type[WireMessage]]:
    """The path of a method, and the class of its responses."""
    descriptor = _SERVICES[service].DESCRIPTOR.services_by_name[service]
    answer = descriptor.methods_by_name[method].output_type
    return f"/{descriptor.full_name}/{method}", message_factory.GetMessageClass(answer)


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """From "host:port,host:port" or a list. Raises IllegalConfig if empty or malformed."""
    given = servers.split(",") if isinstance(servers, str) else servers
    found = tuple(dict.fromkeys(one.strip() for one in given if one.strip()))
    wrong = [one for one in found if not one.rpartition(":")[2].isdecimal() or one[0] == ":"]
    if not found or wrong:
        raise IllegalConfig(f"servers {servers!r}: give one or more of host:port")
    return found


@dataclass(frozen=True)
class ConnectionOptions:
    """The constructor arguments of all clients. `zone`: of brokers that were not tried yet, those
    of this zone are asked first.
    """

    servers: str | Sequence[str]
    _: KW_ONLY
    zone: str = ""


class Connection:
    """The connection of one producer, consumer or admin; close it on the loop that used it.

    `call` asks any broker; `of(name).call` asks the leader of a set.
    """

    def __init__(self, servers: str | Sequence[str], zone: str = "") -> None:
        self.seeds = parse_servers(servers)
        self.zone = zone
        self.servers = Servers(self.seeds, zone)
        self.attempts = Attempts()
        self.channels = Channels()
        self._sets: dict[str, SetConnection] = {}
        self.topology = Topology(self)

    # Single calls

    async def call(
        self,
        service: str,
        method: str,
        request: WireMessage,
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        server: str = "",
        attempt_timeout_s: float | None = None,
        raw_response: bool = False,
    ) -> Any:
        """The response of any broker, or of `server` and no other; a raw one is the bytes of the
        wire. Raises the error of the broker; Unreachable without an answer.
        """
        call = UnaryCall(
            service, method, request, timeout_s, attempt_timeout_s, raw_response=raw_response
        )
        return await call_until_answered(self, call, server)

    @property
    def addresses(self) -> Iterable[str]:
        return self.servers

    def next_address(self, tried: list[str]) -> str:
        return self.servers.best(now_s(), tried)

    async def ask(self, address: str, call: UnaryCall, timeout_s: float) -> Any:
        began_s = now_s()
        answer = await self.attempt(address, call, timeout_s)
        if call.service != "ConsumerService":
            self.servers.succeeded(address, now_s() - began_s)
        return answer

    async def attempt(self, address: str, call: UnaryCall, timeout_s: float) -> Any:
        """One attempt, for any set. Its result is kept for errors and the log."""
        began_s = now_s()
        try:
            answer = await self.channels.ask(
                address,
                call.service,
                call.method,
                call.request,
                timeout_s,
                raw_response=call.raw_response,
            )
        except Unreachable as error:
            self.attempts.failed(address, error, began_s, now_s())
            raise
        except ClientClosed:
            raise
        except MqError:
            self.attempts.answered(address, now_s())
            raise
        self.attempts.answered(address, now_s())
        return answer

    async def gave_up(self, failure: MqError, timeout_s: float, server: str = "") -> MqError:
        """Unreachable, unless a broker has answered: then NotLeader."""
        asked = [server] if server else list(self.servers)
        if not any(map(self.attempts.is_up, asked)):
            return self.attempts.unreachable(asked, timeout_s)
        return failure if isinstance(failure, NotLeader) else NotLeader(None, None)

    def not_leader(self, address: str, leader: str = "") -> str:
        """For a call to one broker that only a leader answers: the redirect is learnt."""
        if leader:
            self.servers.learn(leader)
        return leader if leader != address else ""

    def failed(self, address: str) -> None:
        """The broker was not reached, or broke off."""
        self.servers.failed(address, now_s())
        # The next search for the leader of its set starts at another broker.
        for one in self._sets.values():
            if address in set(one.servers):
                one.servers.failed(address, now_s())

    # Broker sets

    @property
    def known_sets(self) -> list[str]:
        """The names of the known sets, sorted, without a request."""
        return sorted(self._sets)

    async def sets(self, timeout_s: float = CALL_TIMEOUT_S) -> list[SetConnection]:
        """All sets of the cluster, by name; makes a request if none is known."""
        if not self._sets:
            await self.brokers(timeout_s=timeout_s)
        if not self._sets:
            raise Unreachable(f"{', '.join(self.servers)}: no broker set is known there")
        return [self._sets[name] for name in sorted(self._sets)]

    def of(self, broker_set: str) -> SetConnection:
        """The connection to a set, which need not be known yet."""
        found = self._sets.get(broker_set)
        if found is None:
            found = SetConnection(broker_set, self, self.seeds)
            self._sets[broker_set] = found
        return found

    async def named(self, broker_set: str) -> SetConnection:
        """The set that a user named. Raises IllegalRequest if the cluster does not have it."""
        if broker_set not in self._sets:
            await self.brokers()
        if broker_set not in self._sets:
            known = ", ".join(self.known_sets)
            raise IllegalRequest(f"there is no broker set {broker_set!r}; there are: {known}")
        return self._sets[broker_set]

    async def brokers(
        self,
        topics: Sequence[str] = (),
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        first: Sequence[str] = (),
    ) -> RouteResponse:
        """The view of one broker: the broker sets, and the routes of these topics. The brokers in
        `first` are asked before others.
        """
        request = RouteRequest(topics=topics)
        call = UnaryCall("ClusterService", "Route", request, timeout_s, _ROUTE_ATTEMPT_S)
        try:
            response: RouteResponse = await call_until_answered(_InOrder(self, first), call)
        except NotLeader as error:
            raise await self._without_topics(error) from None
        self.learn(response)
        self.topology.learn(topics, response)
        return response

    async def _without_topics(self, error: NotLeader) -> MqError:
        """The error when the brokers that answer have just started, and their set has no leader:
        they know no topics yet, but they know the nodes of their set.
        """
        call = UnaryCall("ClusterService", "Route", RouteRequest(), LAST_WORD_S)
        up = [one for one in self.servers if self.attempts.is_up(one)]
        try:
            response: RouteResponse = await self.ask(up[0], call, LAST_WORD_S)
        except (MqError, IndexError):
            return error
        self.learn(response)
        led = [one.name for one in response.broker_sets if one.leader_id or one.age_ms]
        missing = [self.of(one.name) for one in response.broker_sets if one.name not in led]
        if not missing:
            return error
        return await missing[0].no_leader()

    def learn(self, response: RouteResponse) -> None:
        for broker_set in response.broker_sets:
            for node in broker_set.nodes:
                self.servers.learn(node.address, node.zone)
            self.of(broker_set.name).learn(broker_set)

    async def close(self) -> None:
        self.topology.close()
        await self.channels.close()


class _InOrder:
    """A call target: any broker, those of a list before others."""

    def __init__(self, connection: Connection, first: Sequence[str]) -> None:
        self._connection = connection
        self._first = first
        self._tried: list[str] = []
        self.failed = connection.failed
        self.ask = connection.ask
        self.gave_up = connection.gave_up

    @property
    def addresses(self) -> Iterable[str]:
        return self._connection.servers

    def next_address(self, tried: list[str]) -> str:
        self._tried = tried
        left = [one for one in self._first if one not in tried]
        return left[0] if left else self._connection.next_address(tried)

    def not_leader(self, address: str, leader: str = "") -> str:
        """The broker has just started, and has not read its log yet. Any other broker may answer,
        not only its leader, which may be down.
        """
        self._connection.not_leader(address, leader)
        others = [one for one in self.addresses if one not in (*self._tried, address)]
        return others[0] if others else ""


class SetConnection:
    """The connection to one broker set. `call` is for single requests. Users of streams, which are
    opened by `channels.stream` at the address from `leader`, report `succeeded`, `failed` and
    `not_leader`.
    """

    def __init__(self, name: str, cluster: Connection, seeds: Iterable[str] = ()) -> None:
        """`seeds`: the brokers to ask as long as the set is unknown."""
        self.name = name
        self.cluster = cluster
        self.servers = Servers(seeds, cluster.zone)
        self.channels = cluster.channels
        self._leader = ""
        # As a broker reported last, whether it was reached since or not.
        self._named_leader = ""
        self._nodes: dict[str, str] = {}
        self._leaderless_since_s: float | None = None
        self._is_logged = False
        # The newest term in which the set was known to have a leader.
        self.term = 0

    @property
    def zone(self) -> str:
        return self.cluster.zone

    def learn(self, broker_set: BrokerSet) -> None:
        """Takes over the view of a broker; a leader of an older term is ignored."""
        self._nodes = {node.node_id: node.address for node in broker_set.nodes} or self._nodes
        for node in broker_set.nodes:
            self.servers.learn(node.address, node.zone)
        self.servers.keep_only(node.address for node in broker_set.nodes if node.address)
        leaders = [
            node.address
            for node in broker_set.nodes
            if node.node_id == broker_set.leader_id and broker_set.leader_id and node.address
        ]
        # Without a known leader any report is a place to start, however old.
        if broker_set.term > self.term or not self._leader:
            self._leader = leaders[0] if leaders else ""
            self.term = broker_set.term
            self._name_leader(self._leader)

    # Single calls

    async def call(
        self,
        service: str,
        method: str,
        request: WireMessage,
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        attempt_timeout_s: float | None = None,
        raw_response: bool = False,
    ) -> Any:
        """The response of the leader of the set. Repeated until the time is over, so that a
        request may be carried out twice. Raises the error of the broker; Unreachable.
        """
        call = UnaryCall(
            service, method, request, timeout_s, attempt_timeout_s, raw_response=raw_response
        )
        return await call_until_answered(self, call)

    @property
    def addresses(self) -> Iterable[str]:
        return self.servers

    def next_address(self, tried: list[str]) -> str:
        return self._leader or self.servers.best(now_s(), tried)

    async def ask(self, address: str, call: UnaryCall, timeout_s: float) -> Any:
        began_s = now_s()
        answer = await self.cluster.attempt(address, call, timeout_s)
        # Calls that wait for messages do not measure the latency of the network.
        if call.service != "ConsumerService":
            self.servers.succeeded(address, now_s() - began_s)
        return answer

    async def gave_up(self, failure: MqError, timeout_s: float, server: str = "") -> MqError:  # noqa: ARG002 # as CallTarget has it
        """Unreachable if the leader, or every broker, is down; NoLeader if the set has none."""
        await self._ask_unasked()
        attempts = self.cluster.attempts
        up = [one for one in self.servers if attempts.is_up(one)]
        if not up:
            return attempts.unreachable(self.servers, timeout_s)
        if reason := attempts.reason(self._named_leader):
            return Unreachable(
                f"the leader of {self.name}, at {self._named_leader}, does not answer ({reason}); "
                f"{', '.join(up)} answered last, and have not elected another one yet: try again "
                "in a moment"
            )
        return self._no_leader_so_far()

    async def no_leader(self) -> NoLeader:
        """The error with the state of each node; nodes that were not tried are asked."""
        await self._ask_unasked()
        return self._no_leader_so_far()

    async def _ask_unasked(self) -> None:
        """Asks them briefly and at the same time, only to see whether they answer."""
        call = UnaryCall("ClusterService", "Route", RouteRequest(), LAST_WORD_S)
        asking = [
            self.cluster.attempt(one, call, LAST_WORD_S)
            for one in {*self.servers, *self._nodes.values()}
            if one and not self.cluster.attempts.is_known(one)
        ]
        await asyncio.gather(*asking, return_exceptions=True)

    def _no_leader_so_far(self) -> NoLeader:
        """The error with the known state of each node."""
        attempts = self.cluster.attempts
        nodes = self._nodes or {one: one for one in self.servers}
        up = [one for one, address in nodes.items() if attempts.is_up(address)]
        unasked = [
            one for one, address in nodes.items() if address and not attempts.is_known(address)
        ]
        down = {
            one: f"{address}: {attempts.reason(address)}"
            if address
            else f"{one}: its address is not known"
            for one, address in nodes.items()
            if one not in (*up, *unasked)
        }
        return NoLeader(self.name, up, down, unasked)

    # Leaders

    @property
    def known_leader(self) -> str:
        """The address of the leader; empty if unknown. May be stale."""
        return self._leader

    async def leader(self, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """The address of the leader, which may be stale. Raises NoLeader after the time-out."""
        retry, rotation = Retry(timeout_s), 0
        while not self._leader:
            ranking = self.servers.ranking(now_s())
            # A broker that knows of no leader is not asked again before the others.
            first = rotation % len(ranking) if ranking else 0
            rotation += 1
            asked = ranking[first:] + ranking[:first]
            await self.cluster.brokers((), retry.left_s, first=asked)
            if not self.known_leader and not await retry.pause():
                raise await self.no_leader()
        return self._leader

    async def brokers(self, timeout_s: float = CALL_TIMEOUT_S, *, last: str = "") -> RouteResponse:
        """The view of a broker of this set, or of another one if none of it answers. The one at
        `last` is asked after the others of the set: it may be frozen.
        """
        ranking = self.servers.ranking(now_s(), without=(last,))
        return await self.cluster.brokers((), timeout_s, first=ranking)

    def not_leader(self, address: str, leader: str = "") -> str:
        """`address` does not lead, and reported `leader`. Returns the presumed leader."""
        if leader and leader != address:
            self.servers.learn(leader)
            self._leader = leader
            self._name_leader(leader)
        elif self._leader in ("", address):
            self._leader = ""
            self._name_leader("")
        return self._leader

    def _name_leader(self, address: str) -> None:
        """As a broker reported; empty: none. A lasting lack of a leader is logged once."""
        self._named_leader = address
        if address:
            if self._is_logged:
                log.info("%s has a leader again, at %s", self.name, address)
            self._leaderless_since_s, self._is_logged = None, False
            return
        if self._leaderless_since_s is None:
            self._leaderless_since_s = now_s()
        if not self._is_logged and now_s() - self._leaderless_since_s >= LOG_AFTER_S:
            self._is_logged = True
            log.warning("%s; still trying", self._no_leader_so_far())

    def failed(self, address: str) -> None:
        """The broker was not reached, or broke off."""
        self.servers.failed(address, now_s())
        if self._leader == address:
            self._leader = ""

    def succeeded(self, address: str, latency_s: float) -> None:
        self.servers.succeeded(address, latency_s)
