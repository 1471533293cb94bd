"""The connection of one client to the cluster: the brokers, the broker sets, their leaders.

Any one broker is enough to find the others, of all sets. A known leader may be stale and is only a
place to start: a follower redirects to the leader, and calls go there. Retries of sends and of
streams are not made here. Everything runs on the event loop that uses it first; `Servers`,
`Avoidance` and `Attempts` are pure but for the log: the caller passes the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

from google.protobuf.message import Message as WireMessage

from mq.client.cluster.channels import Channels, Credentials, Security
from mq.client.cluster.retry import CALL_TIMEOUT_S, CallTarget, Retry, cancelled, now_s
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
# The weight of the newest latency: a single slow answer does not change the ranking.
_NEWEST_WEIGHT = 0.2
_PENALTY_S, _PENALTY_S_MAX = 0.2, 10.0
# An answer is slow above both: this time, and this multiple of the latency of another set.
SLOW_S = 0.5
_TIMES_SLOWER = 4
_AVOIDED_S, _AVOIDED_S_MAX = 1.0, 30.0
_BUSY_S_MIN = 0.05
# A fail-over takes less; a longer silence is logged.
LOG_AFTER_S = 1.0
_ADVICE = "Is a broker running there? `mq server` starts one"


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """From "host:port,host:port" or a list. Raises IllegalConfig if empty or malformed."""
    given = servers.split(",") if isinstance(servers, str) else servers
    found = tuple(dict.fromkeys(one.strip() for one in given if one.strip()))
    if not found or not all(map(_is_address, found)):
        raise IllegalConfig(
            f"servers {servers!r}: give one or more of host:port, such as 127.0.0.1:8081"
        )
    return found


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and not host.startswith(("http:", "https:")) and port.isdecimal()


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


# The known brokers and broker sets: which one to ask next, and what is told of the others


@dataclass(slots=True)
class Health:
    """A moving average of latencies, and a penalty that doubles with each failure in a row."""

    latency_s: float = 0.0
    is_measured: bool = False
    failures: int = 0
    avoided_until_s: float = 0.0

    def measured(self, latency_s: float) -> None:
        if self.is_measured:
            latency_s = self.latency_s + _NEWEST_WEIGHT * (latency_s - self.latency_s)
        self.latency_s, self.is_measured = latency_s, True

    def recovered(self) -> None:
        self.failures, self.avoided_until_s = 0, 0.0

    def failed(self, now_s: float, penalty_s: float, penalty_s_max: float) -> None:
        self.avoided_until_s = now_s + min(penalty_s * 2**self.failures, penalty_s_max)
        self.failures = min(self.failures + 1, 16)


@dataclass(slots=True)
class _Record(Health):
    zone: str = ""


class Servers:
    """The known brokers, ranked for the next request by a moving average of their latencies; one
    that failed comes last during a penalty. `zone` is the client's: of brokers without a latency,
    those of the same zone come first.
    """

    def __init__(self, addresses: Iterable[str], zone: str = "") -> None:
        self._records = {address: _Record() for address in addresses}
        self._zone = zone

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._records))

    def learn(self, address: str, zone: str = "") -> None:
        """Adds an address that a broker reported."""
        if address:
            self._records.setdefault(address, _Record()).zone = zone

    def keep_only(self, addresses: Iterable[str]) -> None:
        """Drops all others: removed nodes, or seeds that belong to another set."""
        kept = dict.fromkeys(addresses)
        if kept:
            self._records = {one: record for one, record in self._records.items() if one in kept}

    def succeeded(self, address: str, latency_s: float) -> None:
        record = self._records.setdefault(address, _Record())
        record.measured(latency_s)
        record.recovered()

    def failed(self, address: str, now_s: float) -> None:
        record = self._records.setdefault(address, _Record())
        record.failed(now_s, _PENALTY_S, _PENALTY_S_MAX)

    def best(self, now_s: float, without: Container[str] = ()) -> str:
        """The first of the ranking; one of `without` only if there is no other."""
        return self.ranking(now_s, without)[0]

    def ranking(self, now_s: float, without: Container[str] = ()) -> list[str]:
        def rank(address: str) -> tuple[bool, float, bool, float]:
            record = self._records[address]
            avoided_s = max(0.0, record.avoided_until_s - now_s)
            is_far = bool(self._zone) and record.zone != self._zone
            return (
                address in without,
                avoided_s,
                is_far and not record.is_measured,
                record.latency_s,
            )

        # Sorting is stable: equals keep the order in which they were added.
        return sorted(self._records, key=rank)


@dataclass(slots=True)
class _SetRecord(Health):
    busy_until_s: float = 0.0


class Avoidance:
    """The broker sets that a producer avoids. A set that answers much later than the others, or
    refuses messages that it should take, gets no message that may go elsewhere during a penalty,
    which doubles each time; then one batch probes it.
    """

    def __init__(self) -> None:
        self._records: dict[str, _SetRecord] = {}

    def answered(self, broker_set: str, latency_s: float, now_s: float) -> None:
        """The set has stored a request with this latency."""
        record = self._record(broker_set)
        others = [
            one.latency_s
            for one in self._records.values()
            if one is not record and one.is_measured and one.avoided_until_s <= now_s
        ]
        is_slow = bool(others) and latency_s > max(SLOW_S, _TIMES_SLOWER * min(others))
        record.measured(latency_s)
        if is_slow:
            self.refused(broker_set, now_s)
        else:
            record.recovered()

    def refused(self, broker_set: str, now_s: float) -> None:
        """The set cannot store messages. Refusals of requests in flight together count once."""
        record = self._record(broker_set)
        if now_s >= record.avoided_until_s:
            record.failed(now_s, _AVOIDED_S, _AVOIDED_S_MAX)

    def is_busy(self, broker_set: str, now_s: float, pause_s: float) -> None:
        """The set asked to wait for this time."""
        record = self._record(broker_set)
        until_s = now_s + max(pause_s, _BUSY_S_MIN)
        record.busy_until_s = max(record.busy_until_s, until_s)

    def is_avoided(self, broker_set: str, now_s: float) -> bool:
        record = self._records.get(broker_set)
        return record is not None and now_s < max(record.avoided_until_s, record.busy_until_s)

    def _record(self, broker_set: str) -> _SetRecord:
        return self._records.setdefault(broker_set, _SetRecord())


class Attempts:
    """The result of the last attempt at each broker: for the texts of errors, and for one line in
    the log when a program waits for brokers.
    """

    def __init__(self) -> None:
        # By address: the reason of the last failure; None: the last attempt was answered.
        self._reasons: dict[str, str | None] = {}
        # The start of the first attempt since the last answer of any broker.
        self._silent_since_s: float | None = None
        self._is_logged = False

    def answered(self, address: str, now_s: float) -> None:
        self._reasons[address] = None
        if self._is_logged and self._silent_since_s is not None:
            silent_s = now_s - self._silent_since_s
            log.info("%s answers, after %.1f s without a broker", address, silent_s)
        self._silent_since_s, self._is_logged = None, False

    def failed(self, address: str, error: Unreachable, began_s: float, now_s: float) -> None:
        # Without the address in front.
        self._reasons[address] = str(error).removeprefix(address).lstrip(": ")
        if self._silent_since_s is None:
            self._silent_since_s = began_s
        if not self._is_logged and now_s - self._silent_since_s >= LOG_AFTER_S:
            self._is_logged = True
            failed = [one for one, why in self._reasons.items() if why is not None]
            log.warning("no broker answers, still trying: %s", self.told(failed))

    def is_known(self, address: str) -> bool:
        """Whether the address was tried."""
        return address in self._reasons

    def is_up(self, address: str) -> bool:
        """Whether the last attempt was answered; False without an attempt."""
        return address in self._reasons and self._reasons[address] is None

    def reason(self, address: str) -> str:
        """Why the last attempt failed; empty if it was answered, or none was made."""
        return self._reasons.get(address) or ""

    def told(self, addresses: Iterable[str]) -> str:
        """The addresses, each with the reason of its last failure."""
        return ", ".join(
            f"{one} ({why})" if (why := self.reason(one)) else one for one in addresses
        )

    def unreachable(self, addresses: Iterable[str], timeout_s: float) -> Unreachable:
        """The error when none of these answered in that time."""
        # Rounded: the rest of a time-out has many digits.
        within = f"{max(0.0, round(timeout_s, 1)):g} s"
        return Unreachable(
            f"no broker answered within {within}; tried {self.told(addresses)}. {_ADVICE}"
        )
