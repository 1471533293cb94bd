"""What the console decides by itself: trends of lags, plans of restarts, bars, times."""

from __future__ import annotations

from typing import Any

import pytest

from mq.console.alarms import Level, alarms
from mq.console.lags import trend
from mq.console.restart_plan import restart_plan
from mq.console.sampler import Node, Sample
from mq.console.screens.scheduled import bars
from mq.console.series import History
from mq.console.times import parse_ms
from mq.errors import IllegalRequest
from mq.wire.v1.admin_pb2 import BrokerStatusResponse, CountScheduledResponse, FollowerStatus
from mq.wire.v1.cluster_pb2 import NodeRoute


@pytest.mark.parametrize(
    ("lags", "word", "level"),
    [
        ([], "no lag", "good"),
        ([None, 5.0, 0.0], "no lag", "good"),
        ([7.0, 7.0], "not known yet", "calm"),
        ([100.0, 100.0, 101.0], "steady", "warn"),
        ([0.0, 50.0, 100.0], "growing 10 /s", "bad"),
        ([None, 100.0, None, 50.0, 40.0], "done in about 10 s", "good"),
    ],
)
def test_a_lag_has_a_trend(lags: list[float | None], word: str, level: str) -> None:
    found = trend(lags, 5.0)
    assert (found.word, found.level) == (word, level)


def node(name: str, *, leads: bool = False, **fields: Any) -> Node:
    told = {"leader_id": "a", "is_voter": True, "role": "leader" if leads else "follower"}
    status = BrokerStatusResponse(**{**told, **fields})
    return Node("s", NodeRoute(node_id=name), leads, status)


def test_followers_restart_first_and_the_leader_when_it_leads_no_more() -> None:
    found = restart_plan([node("c"), node("a", leads=True), node("b")])
    assert not found.troubles
    first, second, third, last = found.steps
    assert "Restart b" in first
    assert "Restart c" in second
    assert "away from a" in third
    assert "Restart a" in last
    assert restart_plan([node("a", leads=True)]).note


def test_disks_of_a_set_that_fill_alike_are_one_alarm() -> None:
    used = {"a": 80, "b": 78, "c": 90, "d": 10}
    disks = [node(one, disk_used_bytes=used[one], disk_total_bytes=100) for one in used]
    found = alarms(Sample(0, nodes=disks), History(10))
    assert [(one.level, one.text) for one in found] == [
        (Level.BAD, "The disk of c of s is 90% full, 10 B are left."),
        (Level.WARN, "The fullest disk of a, b of s is 80% full, 20 B are left."),
    ]


@pytest.mark.parametrize(
    "others",
    [
        [node("b"), Node("s", NodeRoute(node_id="c"), False, error="gone")],
        [node("b"), node("c", is_voter=False)],
        [node("b"), node("c", leader_id="")],
        [node("b"), node("c", last_index=5_000)],
        [node("b"), node("c", leads=True)],
    ],
)
def test_no_node_restarts_while_another_is_not_fit(others: list[Node]) -> None:
    found = restart_plan([node("a", leads=True), *others])
    assert found.troubles
    assert not found.steps
    behind = [FollowerStatus(node_id="b", behind=9_999, is_voter=True)]
    assert restart_plan([node("a", leads=True, followers=behind), node("b"), node("c")]).troubles
    assert restart_plan([node("b")]).troubles == ["no node leads"]


def test_bars_stand_where_their_time_is() -> None:
    counts = CountScheduledResponse(bucket_ms=1_000)
    for at, count in ((0, 5), (1_000, 10), (19_000, 1)):
        counts.buckets.add(begin_ms=at, count=count)
    first, second, last = bars(counts)
    assert (second.y, second.height) == (0.0, 100.0)
    assert first.height == 50.0
    assert 0 < last.height < 20
    assert first.x == 0.0
    assert last.x + last.width <= 600.0
    assert last.x / second.x == pytest.approx(19, rel=0.01)
    assert bars(CountScheduledResponse()) == []


def test_times_are_read_in_utc_or_with_a_zone() -> None:
    assert parse_ms("2026-07-12 09:53:20") == 1_783_850_000_000
    assert parse_ms("2026-07-12T11:53:20+02:00") == 1_783_850_000_000
    assert parse_ms("1783850000000") == 1_783_850_000_000
    for bad in ("", "soon", "2026-13-01", "12"):
        with pytest.raises(IllegalRequest):
            parse_ms(bad)
