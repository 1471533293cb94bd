"""Asks the brokers for rates and lags every few seconds, and keeps what they said for two hours.

One poll serves all pages and tabs of a user: the brokers keep no statistics for the console, and
pages that list topics, groups and nodes ask for nothing themselves. A poll that takes long is made
more seldom, so that it never costs brokers more than a fiftieth of their time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mq.client.admin.calls import Answers
from mq.console.series import KEPT_S, History, Key
from mq.errors import ClientClosed, MqError, PermissionDenied
from mq.wire.v1.admin_pb2 import BrokerStatusResponse, GroupSummary, TopicSummary
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse

log = logging.getLogger(__name__)

# A poll may take this part of the time.
_SHARE = 1 / 50
_FIRST_WAIT_S = 5.0
# Nodes that are asked at once, and how long one may take: one that is gone holds up no page.
_NODES_AT_ONCE = 16
_NODE_S = 2.0

ALL = ""


class Asked(Protocol):
    """The calls of an Admin that a sampler makes."""

    async def route(self, topics: Sequence[str] = ()) -> RouteResponse: ...
    async def broker_status(self, server: str | None = None) -> BrokerStatusResponse: ...
    async def list_topics(self, *, include_internal: bool = False) -> Answers[TopicSummary]: ...
    async def list_groups(self) -> Answers[GroupSummary]: ...


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster. `status` is None if it did not answer, or may not be asked."""

    broker_set: str
    route: NodeRoute
    is_leader: bool
    status: BrokerStatusResponse | None = None
    error: str = ""

    @property
    def name(self) -> str:
        return self.route.node_id


@dataclass(frozen=True, slots=True)
class Sample:
    """The answers of the brokers to one poll."""

    at_ms: int
    cluster: str = ""
    sets: Sequence[BrokerSet] = ()
    nodes: Sequence[Node] = ()
    topics: Sequence[TopicSummary] = ()
    groups: Sequence[GroupSummary] = ()
    missing_sets: Sequence[str] = ()
    # The user may not see the nodes.
    is_status_denied: bool = False
    error: MqError | None = None
    took_s: float = 0.0
    counters: dict[Key, float] = field(default_factory=dict)

    def topic(self, name: str) -> TopicSummary | None:
        return next((one for one in self.topics if one.info.topic == name), None)

    def group(self, name: str) -> GroupSummary | None:
        return next((one for one in self.groups if one.group == name), None)


class Sampler:
    """Of one user. `run` until it is cancelled."""

    def __init__(
        self,
        admin: Asked,
        period_s: float,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._admin = admin
        self.period_s = period_s
        self._now_ms = now_ms
        self._is_sampled = asyncio.Event()
        self.sample = Sample(0)
        self.history = History(int(KEPT_S / period_s))

    async def run(self) -> None:
        while True:
            try:
                await self.poll()
            except ClientClosed:
                return
            await asyncio.sleep(max(self.period_s, self.sample.took_s / _SHARE))

    async def first(self) -> Sample:
        """The last sample; right after the start, waits for the first one."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_sampled.wait(), _FIRST_WAIT_S)
        return self.sample

    async def poll(self) -> Sample:
        """Takes one sample. Brokers that do not answer are an `error` of it, which keeps what was
        known before.
        """
        began_s = time.monotonic()
        before = self.sample
        try:
            taken = await self._ask()
        except ClientClosed:
            raise
        except MqError as error:
            self.sample = Sample(
                self._now_ms(),
                before.cluster,
                before.sets,
                before.nodes,
                before.topics,
                before.groups,
                before.missing_sets,
                error=error,
                took_s=time.monotonic() - began_s,
            )
        else:
            taken.counters.update(_counters(taken))
            self.history.add(taken.at_ms, _numbers(before, taken))
            self.sample = taken
        self._is_sampled.set()
        return self.sample

    async def _ask(self) -> Sample:
        began_s = time.monotonic()
        route, topics, groups = await asyncio.gather(
            self._admin.route(), self._admin.list_topics(), self._admin.list_groups()
        )
        took_s = time.monotonic() - began_s
        nodes, is_denied = await self._nodes(route)
        return Sample(
            self._now_ms(),
            route.cluster,
            list(route.broker_sets),
            nodes,
            topics,
            groups,
            sorted({*topics.missing_sets, *groups.missing_sets}),
            is_status_denied=is_denied,
            took_s=took_s,
        )

    async def _nodes(self, route: RouteResponse) -> tuple[list[Node], bool]:
        turn = asyncio.Semaphore(_NODES_AT_ONCE)

        async def ask(node: Node) -> Node | None:
            if not node.route.address:
                return Node(node.broker_set, node.route, node.is_leader, error="not known yet")
            try:
                async with turn, asyncio.timeout(_NODE_S):
                    status = await self._admin.broker_status(node.route.address)
            except PermissionDenied:
                return None
            except TimeoutError:
                error = f"no answer within {_NODE_S:g} s"
                return Node(node.broker_set, node.route, node.is_leader, error=error)
            except ClientClosed:
                raise
            except MqError as error:
                return Node(node.broker_set, node.route, node.is_leader, error=str(error))
            return Node(node.broker_set, node.route, node.is_leader, status)

        known = [
            Node(one.name, node, node.node_id == one.leader_id)
            for one in route.broker_sets
            for node in one.nodes
        ]
        answers = await asyncio.gather(*map(ask, known))
        if known and all(one is None for one in answers):
            return known, True
        return [one or node for one, node in zip(answers, known, strict=True)], False


def _counters(sample: Sample) -> dict[Key, float]:
    """Counters: they only grow, and their differences are rates."""
    found: dict[Key, float] = {}
    for one in sample.topics:
        found["in", one.info.topic] = one.messages_written or one.messages
        found["bytes", one.info.topic] = one.info.stored_bytes
    for node in sample.nodes:
        if node.status is not None:
            name = f"{node.broker_set}/{node.name}"
            found["node-in", name] = node.status.messages_in
            found["node-out", name] = node.status.messages_out
            found["cpu", name] = node.status.cpu_seconds
    return found


def _numbers(before: Sample, taken: Sample) -> dict[Key, float]:
    """Rates since the sample before, and lags as they are."""
    numbers: dict[Key, float] = {("lag", one.group): one.lag for one in taken.groups}
    numbers["lag", ALL] = sum(one.lag for one in taken.groups)
    elapsed_s = (taken.at_ms - before.at_ms) / 1000
    if not before.counters or elapsed_s <= 0:
        return numbers
    totals = {"in": 0.0, "bytes": 0.0, "node-in": 0.0, "node-out": 0.0}
    for key, count in taken.counters.items():
        # What is new began at 0. Retention, a restart: one rate is not known, and counts as none.
        grown = max(0.0, count - before.counters.get(key, 0.0 if key[0] in totals else count))
        if key[0] in ("node-in", "node-out") and key not in before.counters:
            grown = 0.0
        numbers[key] = grown / elapsed_s
        if key[0] in totals:
            totals[key[0]] += grown / elapsed_s
    numbers["in", ALL] = totals["in"]
    numbers["bytes", ALL] = totals["bytes"]
    numbers["out", ALL] = totals["node-out"]
    return numbers
