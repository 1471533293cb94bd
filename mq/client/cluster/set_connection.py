"""The connection of one client to one broker set: who leads it, and calls to that one.

What is known of the leader may be stale and is only a place to start: a broker that does not lead
says who does, and calls follow. Retries of sends and of streams are not made here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import grpc.aio
from google.protobuf.message import Message as WireMessage

from mq.client.cluster.asking import Question, ask_until, back_off_s, now_s
from mq.client.cluster.attempts import LOG_AFTER_S
from mq.client.cluster.channels import Channels
from mq.client.cluster.servers import Servers
from mq.errors import MqError, NoLeader, Unreachable
from mq.wire.v1.cluster_pb2 import BrokerSet, RouteRequest, RouteResponse

if TYPE_CHECKING:
    from mq.client.cluster.wiring import Connection

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
# For those that are asked when the time is over, to say why: not longer than a producer waits for
# that.
LAST_WORD_S = 0.15


class SetConnection:
    """`call` is for single requests. Streams are opened by `stream`, at the address from `leader`;
    who opens one tells `succeeded`, `failed` and `not_leader` what it saw there.
    """

    def __init__(
        self, name: str, cluster: Connection, channels: Channels, seeds: Iterable[str] = ()
    ) -> None:
        """`seeds`: where to ask as long as the set was not heard of."""
        self.name = name
        self.cluster = cluster
        self.servers = Servers(seeds, cluster.zone)
        self._channels = channels
        self._leader = ""
        # By the last word of a broker, whether it was reached since or not.
        self._named_leader = ""
        self._nodes: dict[str, str] = {}
        self._leaderless_since_s: float | None = None
        self._is_logged = False
        # The newest in which somebody was known to lead.
        self.term = 0

    @property
    def zone(self) -> str:
        return self.cluster.zone

    def learn(self, broker_set: BrokerSet) -> None:
        """What a broker says of the set; what is older than what is known counts for nothing."""
        self._nodes = {node.node_id: node.address for node in broker_set.nodes} or self._nodes
        for node in broker_set.nodes:
            self.servers.learn(node.address, node.zone)
        self.servers.keep_only(node.address for node in broker_set.nodes if node.address)
        leaders = [
            node.address
            for node in broker_set.nodes
            if node.node_id == broker_set.leader_id and broker_set.leader_id and node.address
        ]
        # Without a leader any answer is a place to start, however old.
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
        """The answer of whoever leads the set. Asked again until the time is over, so that a
        request may be carried out twice. Raises what the broker answers; Unreachable.
        """
        question = Question(
            service, method, request, timeout_s, attempt_timeout_s, raw_response=raw_response
        )
        return await ask_until(self, question)

    @property
    def addresses(self) -> Iterable[str]:
        return self.servers

    def next_address(self, tried: list[str]) -> str:
        return self._leader or self.servers.best(now_s(), tried)

    async def ask(self, address: str, question: Question, timeout_s: float) -> Any:
        began_s = now_s()
        answer = await self.cluster.attempt(address, question, timeout_s)
        # Calls that wait for messages say nothing about the way there.
        if question.service != "ConsumerService":
            self.servers.succeeded(address, now_s() - began_s)
        return answer

    async def gave_up(self, failure: MqError, timeout_s: float, server: str = "") -> MqError:  # noqa: ARG002 # as Asked has it
        """Why there is no answer of a leader: none is reached, or there is none."""
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
        """With what each of the nodes answers, or why it does not."""
        await self._ask_unasked()
        return self._no_leader_so_far()

    async def _ask_unasked(self) -> None:
        """Briefly, and all at once: whether they answer is what matters."""
        question = Question("ClusterService", "Route", RouteRequest(), LAST_WORD_S)
        asking = [
            self.cluster.attempt(one, question, LAST_WORD_S)
            for one in {*self.servers, *self._nodes.values()}
            if one and not self.cluster.attempts.is_known(one)
        ]
        await asyncio.gather(*asking, return_exceptions=True)

    def _no_leader_so_far(self) -> NoLeader:
        """With what is known of the nodes."""
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
        """Address of who leads, as far as is known; empty: nobody knows."""
        return self._leader

    async def leader(self, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Address of who leads, as far as is known. NoLeader when nobody does until the end."""
        deadline_s = now_s() + timeout_s
        attempt = 0
        while not self._leader:
            ranking = self.servers.ranking(now_s())
            # Who knows of nobody is not asked again before the others.
            first = attempt % len(ranking) if ranking else 0
            asked = ranking[first:] + ranking[:first]
            await self.cluster.brokers((), deadline_s - now_s(), first=asked)
            if self.known_leader:
                return self.known_leader
            pause_s = back_off_s(attempt)
            attempt += 1
            if now_s() + pause_s >= deadline_s:
                raise await self.no_leader()
            await asyncio.sleep(pause_s)
        return self._leader

    async def brokers(self, timeout_s: float = CALL_TIMEOUT_S, *, last: str = "") -> RouteResponse:
        """What a broker of this set knows, or another one if none of it answers. The one at `last`
        is asked after the others of the set: it may be frozen.
        """
        ranking = self.servers.ranking(now_s(), without=(last,))
        return await self.cluster.brokers((), timeout_s, first=ranking)

    def not_leader(self, address: str, leader: str = "") -> str:
        """`address` said that it does not lead, but `leader` does. Who is believed to lead now."""
        if leader and leader != address:
            self.servers.learn(leader)
            self._leader = leader
            self._name_leader(leader)
        elif self._leader in ("", address):
            self._leader = ""
            self._name_leader("")
        return self._leader

    def _name_leader(self, address: str) -> None:
        """By the word of a broker; empty: it knows of none. What lasts is logged, once."""
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
        """It was not reached, or broke off."""
        self.servers.failed(address, now_s())
        if self._leader == address:
            self._leader = ""

    def succeeded(self, address: str, latency_s: float) -> None:
        self.servers.succeeded(address, latency_s)

    def stream(
        self,
        address: str,
        service: str,
        method: str,
        *,
        raw_requests: bool = False,
        raw_responses: bool = False,
    ) -> grpc.aio.StreamStreamCall:
        """As `Channels.stream`."""
        return self._channels.stream(
            address, service, method, raw_requests=raw_requests, raw_responses=raw_responses
        )
