"""`mq top`: rates between two looks, and the order of what is shown."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from mq.cli import top as module
from mq.cli.nodes import Seen
from mq.cli.top import Sample, group_lags, top, topic_rates
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import RouteResponse
from tests.support.commands import FakeAdmin, assert_fits, run, run_json


def sample(at_s: float, topics: dict[str, int], groups: dict[str, int]) -> Sample:
    return Sample(
        at_s,
        RouteResponse(),
        [],
        {name: (count, 10 * count) for name, count in topics.items()},
        {name: (lag, 1) for name, lag in groups.items()},
    )


def test_topics_come_by_their_rate() -> None:
    before = sample(10.0, {"slow": 100, "fast": 100, "gone": 5}, {})
    now = sample(12.0, {"slow": 102, "fast": 500, "new": 40, "anew": 0}, {})
    rates = {one.topic: one.per_s for one in topic_rates(before, now)}
    assert rates == {"fast": 200.0, "new": 20.0, "slow": 1.0, "anew": 0.0}
    assert list(rates) == ["fast", "new", "slow", "anew"]


def test_groups_come_by_their_lag_with_its_trend() -> None:
    before = sample(10.0, {}, {"behind": 1000, "growing": 5, "done": 3, "still": 7})
    now = sample(12.0, {}, {"behind": 800, "growing": 25, "done": 0, "still": 7, "new": 2})
    lags = group_lags(before, now)
    assert [(one.group, one.lag, one.change_per_s) for one in lags] == [
        ("behind", 800, -100.0),
        ("growing", 25, 10.0),
        ("still", 7, 0.0),
        ("new", 2, 0.0),
        ("done", 0, -1.5),
    ]
    assert [one.drained_in for one in lags] == ["8 s", "growing", "-", "-", "0 s"]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """A second passes with each look, in which 500 messages come."""
    clock = itertools.count(1.0)
    counts = itertools.count(1_000, 500)
    watched = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)
    monkeypatch.setattr(module, "time", watched)

    def look(_admin: object, _route: object) -> list[Seen]:
        count = next(counts)
        status = pb.BrokerStatusResponse(
            role="leader",
            node_id="n0",
            leader_id="n0",
            is_ready=True,
            is_voter=True,
            messages_in=count,
            cpu_seconds=count / 1000,
            rss_bytes=80 << 20,
            disk_total_bytes=100,
            disk_used_bytes=13,
            started_at_ms=1,
        )
        return [Seen("set-0", "n0", "127.0.0.1:1", "", is_leader=True, status=status, trouble="")]

    def list_topics(**_: Any) -> list[pb.TopicSummary]:
        info = pb.TopicInfo(topic="orders", stored_bytes=2048)
        return [pb.TopicSummary(info=info, messages_written=next(written))]

    written = itertools.count(0, 500)
    monkeypatch.setattr(module, "look", look)
    groups = [pb.GroupSummary(group="billing", lag=70, members=2)]
    return FakeAdmin(list_topics=list_topics, list_groups=groups)


def test_a_picture_has_nodes_topics_and_groups_in_80_columns(admin: FakeAdmin) -> None:
    result = run(top, "--count", "1", admin=admin)
    assert result.exit_code == 0, result.output
    assert_fits(result.stdout)
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["n0", "leader", "500", "0", "50", "%", "80.0", "MiB", "13", "%", "-"] in rows
    assert ["orders", "500", "2.0", "KiB"] in rows
    assert ["billing", "2", "70", "+0", "-"] in rows


def test_json_has_the_same(admin: FakeAdmin) -> None:
    document = run_json(top, "--count", "1", admin=admin)
    assert document["topics"] == [{"topic": "orders", "per_s": 500.0, "stored_bytes": 2048}]
    assert document["groups"][0]["lag"] == 70
    assert document["nodes"][0]["role"] == "leader"
