"""The connection of one client to the cluster: the brokers, the broker sets, their leaders.

Any one broker is enough to find the others, of all sets. A known leader may be stale and is only a
place to start: a follower redirects to the leader, and calls go there. Retries of sends and of
streams are not made here. Everything runs on the event loop that uses it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

from google.protobuf.message import Message as WireMessage

from mq.client.cluster.channels import Channels
from mq.client.cluster.retry import CALL_TIMEOUT_S, CallTarget, Retry, cancelled, now_s
from mq.client.cluster.security import Credentials, Security
from mq.client.cluster.servers import LOG_AFTER_S, Attempts, Servers
from mq.client.cluster.topology import Topology
from mq.client.lifecycle import AsyncClient
from mq.errors import (
    ClientClosed,
    IllegalConfig,
    IllegalRequest,
    MqError,
    NoLeader,
    NotLeader,
    Unauthenticated,
    Unreachable,
)
from mq.wire.v1.cluster_pb2 import BrokerSet, RouteRequest, RouteResponse

log = logging.getLogger(__name__)

# The time-out of the questions after a time-out that find its reason; a producer waits no longer.
LAST_WORD_S = 0.15
# A broker that holds a call for longer is frozen or gone; another may answer.
_ROUTE_ATTEMPT_S = 1.0
# Followers wait for news of a key for a second before they refuse it.
_ELSEWHERE_S = 2.0


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """From "host:port,host:port" or a list. Raises IllegalConfig if empty or malformed."""
    given = servers.split(",") if isinstance(servers, str) else servers
    found = tuple(dict.fromkeys(one.strip() for one in given if one.strip()))
    wrong = [one for one in found if not one.rpartition(":")[2].isdecimal() or one[0] == ":"]
    if not found or wrong:
        raise IllegalConfig(f"servers {servers!r}: give one or more of host:port")
    return found


@dataclass(frozen=True)
class ConnectionOptions(Security):
    """The constructor arguments of all clients. `zone`: of brokers that were not tried yet, those
    of this zone are asked first.
    """

    servers: str | Sequence[str]
    _: KW_ONLY
    zone: str = ""

    def connect(self) -> Connection:
        """Raises IllegalConfig, also for a file that is wrong."""
        return Connection(self.servers, self.zone, self)

    @property
    def shared(self) -> dict[str, Any]:
        """The arguments of another client of the same brokers."""
        return {one.name: getattr(self, one.name) for one in fields(ConnectionOptions)}


class Connection(CallTarget):
    """The connection of one producer, consumer or admin; close it on the loop that used it.

    `call` asks any broker; `of(name).call` asks the leader of a set.
    """

    def __init__(
        self, servers: str | Sequence[str], zone: str = "", security: Security | None = None
    ) -> None:
        self.seeds = parse_servers(servers)
        self.zone = zone
        self.servers = Servers(self.seeds, zone)
        self.attempts = Attempts()
        self.channels = Channels(Credentials(security))
        self._sets: dict[str, SetConnection] = {}
        self.topology = Topology(self)

    # Single calls

    async def attempt(
        self, address: str, request: WireMessage, timeout_s: float, *, raw_response: bool = False
    ) -> Any:
        """One attempt, for any set. Its result is kept for errors and the log."""
        began_s = now_s()
        try:
            answer = await self.channels.ask(address, request, timeout_s, raw_response=raw_response)
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

    def _next_address(self, tried: list[str]) -> str:
        return self.servers.best(now_s(), tried)

    def not_leader(self, address: str, leader: str = "") -> str:  # noqa: ARG002 # as of all targets
        """The broker has just started, and has not read its log yet. Any other broker may answer,
        not only its leader, which may be down.
        """
        self.servers.learn(leader)
        return ""

    def failed(self, address: str) -> None:
        self.servers.failed(address, now_s())
        # The next search for the leader of its set starts at another broker.
        for one in self._sets.values():
            if address in set(one.servers):
                one.servers.failed(address, now_s())

    async def _known_elsewhere(
        self, error: Unauthenticated, address: str, request: WireMessage, timeout_s: float
    ) -> Any:
        """Each broker set has users of its own, and a broker of any set tells the routes: those
        that the user named are asked at the same time, and the first answer counts.
        """
        others = [one for one in self.seeds if one != address]
        if not isinstance(request, RouteRequest) or not others:
            raise error
        # Those that refuse come last in the ranking for the next call.
        self.failed(address)

        async def ask(other: str) -> Any:
            try:
                return await self.ask(other, request, min(timeout_s, _ELSEWHERE_S))
            except Unauthenticated:
                self.failed(other)
                raise

        asking = [asyncio.ensure_future(ask(one)) for one in others]
        try:
            for answer in asyncio.as_completed(asking):
                with contextlib.suppress(MqError):
                    return await answer
        finally:
            await cancelled(*asking)
        raise error

    async def _gave_up(self, failure: MqError, timeout_s: float, server: str) -> MqError:
        """Unreachable, unless a broker has answered: then NotLeader."""
        asked = [server] if server else list(self.servers)
        if not any(map(self.attempts.is_up, asked)):
            return self.attempts.unreachable(asked, timeout_s)
        return failure if isinstance(failure, NotLeader) else NotLeader(None, None)

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
        try:
            response: RouteResponse = await self.call(
                RouteRequest(topics=topics), timeout_s, attempt_s=_ROUTE_ATTEMPT_S, first=first
            )
        except NotLeader as error:
            raise await self._without_topics(error) from None
        self.learn(response)
        self.topology.learn(topics, response)
        return response

    async def _without_topics(self, error: NotLeader) -> MqError:
        """The error when the brokers that answer have just started, and their set has no leader:
        they know no topics yet, but they know the nodes of their set.
        """
        up = [one for one in self.servers if self.attempts.is_up(one)]
        try:
            response: RouteResponse = await self.ask(up[0], RouteRequest(), LAST_WORD_S)
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


class SetConnection(CallTarget):
    """The connection to one broker set. `call` is for single requests. Users of streams, which are
    opened by `channels.stream` at the address from `leader`, report `failed` and `not_leader`.
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

    async def attempt(
        self, address: str, request: WireMessage, timeout_s: float, *, raw_response: bool = False
    ) -> Any:
        return await self.cluster.attempt(address, request, timeout_s, raw_response=raw_response)

    def _next_address(self, tried: list[str]) -> str:
        return self._leader or self.servers.best(now_s(), tried)

    async def _gave_up(self, failure: MqError, timeout_s: float, server: str) -> MqError:  # noqa: ARG002
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
        asking = [
            self.cluster.attempt(one, RouteRequest(), LAST_WORD_S)
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
        self.servers.failed(address, now_s())
        if self._leader == address:
            self._leader = ""


class ConnectedClient(AsyncClient):
    """A client that has nothing to end but its connection."""

    _connection: Connection

    async def close(self) -> None:
        await self._connection.close()
