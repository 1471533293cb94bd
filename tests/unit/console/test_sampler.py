"""A sample gives rates and lags; brokers that do not answer leave what was known; alarms follow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mq.client.admin.calls import Answers
from mq.console.alarms import Level, alarms, is_growing
from mq.console.sampler import ALL, Sampler
from mq.errors import PermissionDenied, Unreachable
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse


class Cluster:
    """What an administrator would be told."""

    def __init__(self) -> None:
        self.written = 0
        self.lag = 0
        self.members = 1
        self.leader = "n0"
        self.used = 10
        self.error: Exception | None = None
        self.status_error: Exception | None = None

    async def route(self, topics: Sequence[str] = ()) -> RouteResponse:
        assert not topics
        if self.error is not None:
            raise self.error
        nodes = [NodeRoute(node_id=f"n{at}", address=f"h{at}:1") for at in range(2)]
        one = BrokerSet(name="set-0", leader_id=self.leader, nodes=nodes)
        return RouteResponse(cluster="mq", broker_sets=[one])

    async def broker_status(self, server: str | None = None) -> pb.BrokerStatusResponse:
        if self.status_error is not None:
            raise self.status_error
        if server == "h1:1":
            raise Unreachable("it is gone")
        return pb.BrokerStatusResponse(
            messages_in=self.written,
            messages_out=self.written // 2,
            disk_used_bytes=self.used,
            disk_total_bytes=100,
        )

    async def list_topics(self, *, include_internal: bool = False) -> Answers[pb.TopicSummary]:
        assert not include_internal
        info = pb.TopicInfo(topic="orders", stored_bytes=10 * self.written)
        # Retention has deleted most of them: a rate counts what was written.
        return Answers([pb.TopicSummary(info=info, messages=5, messages_written=self.written)])

    async def list_groups(self) -> Answers[pb.GroupSummary]:
        return Answers([pb.GroupSummary(group="billing", lag=self.lag, members=self.members)])


def sampled(cluster: Cluster) -> tuple[Sampler, list[int]]:
    now = [1_000_000]
    return Sampler(cluster, 5.0, lambda: now[0]), now


def test_rates_are_what_was_written_between_two_polls() -> None:
    cluster = Cluster()
    cluster.written = 1_000
    sampler, now = sampled(cluster)
    asyncio.run(sampler.poll())
    now[0] += 5_000
    cluster.written, cluster.lag = 1_500, 70
    asyncio.run(sampler.poll())
    history = sampler.history
    assert history.latest("in", ["orders", ALL]) == {"orders": 100.0, ALL: 100.0}
    assert history.latest("bytes", ["orders"]) == {"orders": 1_000.0}
    assert history.latest("out", [ALL]) == {ALL: 50.0}
    assert history.latest("lag", ["billing", ALL]) == {"billing": 70.0, ALL: 70.0}


def test_brokers_that_do_not_answer_leave_what_was_known() -> None:
    cluster = Cluster()
    sampler, now = sampled(cluster)
    asyncio.run(sampler.poll())
    cluster.error = Unreachable("nobody answers")
    now[0] += 5_000
    sample = asyncio.run(sampler.poll())
    assert [one.info.topic for one in sample.topics] == ["orders"]
    found = alarms(sample, sampler.history)
    assert found[0].level == Level.BAD
    assert "nobody answers" in found[0].text


def test_a_user_who_may_not_see_nodes_is_not_told_that_they_are_gone() -> None:
    cluster = Cluster()
    cluster.status_error = PermissionDenied("no")
    sampler, _ = sampled(cluster)
    sample = asyncio.run(sampler.poll())
    assert sample.is_status_denied
    assert len(sample.nodes) == 2
    assert alarms(sample, sampler.history) == []


def test_alarms_are_worst_first() -> None:
    cluster = Cluster()
    cluster.leader, cluster.used, cluster.lag, cluster.members = "", 80, 12, 0
    sampler, _ = sampled(cluster)
    found = alarms(asyncio.run(sampler.poll()), sampler.history)
    texts = [one.text for one in found]
    assert [one.level for one in found] == sorted(one.level for one in found)
    for part in ("has no leader", "n1 of set-0 does not answer", "80% full", "no member"):
        assert any(part in text for text in texts), part


def test_a_lag_grows_when_it_is_higher_in_the_end_than_in_the_middle() -> None:
    assert is_growing([float(number * 100) for number in range(24)])
    assert not is_growing([float(number) for number in range(24)])
    assert not is_growing([5_000.0] * 24)
    assert not is_growing([2_000.0, 9_000.0, 3_000.0] * 8)
    assert not is_growing([None] * 24)
