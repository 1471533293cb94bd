"""Metrics of other broker sets, and of damage on the disk."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from mq.admin import loop_lag, metrics
from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.pulling import Query
from mq.broker.queue import Queue
from mq.rpc import connections
from mq.store.damage import Damage, DamageKind, DamageLog
from mq.wire.v1.cluster_pb2 import BrokerSet, GreetResponse
from mq.wire.v1.consumer_pb2 import Filter
from tests.support.consensus import Node, eventually, on_loop


@on_loop
async def test_sets_are_counted_and_grow_old() -> None:
    node = Node()
    now_ms = node.broker.steady_ms()
    said = GreetResponse(broker_set=BrokerSet(name="b", term=1))
    node.broker.directory.heard("", "b:1", said, now_ms - 7_000)
    count, ages = metrics._sets(node.broker)
    assert [one.value for one in count.samples] == [2]
    found = {one.labels["broker_set"]: one.value for one in ages.samples}
    assert found["set-0"] == 0
    assert 7 <= found["b"] < 60


@on_loop
async def test_the_bytes_of_the_largest_topics_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    for name in ("small", "empty", "large"):
        await node.topic(name)
    for name, body in (("small", b"x"), ("large", b"x" * 100)):
        await node.send(name, body)
    monkeypatch.setattr(metrics, "_TOPICS_MAX", 2)
    shown = {one.labels["topic"]: one.value for one in metrics._stored(node.broker).samples}
    assert list(shown) == ["large", "small"]
    assert shown["large"] > 100 > shown["small"] > 0


def test_damage_is_counted_by_kind() -> None:
    damage = DamageLog()
    damage.found(Damage(DamageKind.LOG, "a.log", 40, "the checksum does not match"))
    damage.found(Damage(DamageKind.QUEUE, "orders/0", 0, "a bad unit"))
    damage.mended(DamageKind.QUEUE, "orders/0")
    shown = {
        (one.name, one.labels.get("kind")): one.value
        for family in metrics._damage(damage, 7)
        for one in family.samples
    }
    assert shown["mq_storage_damage_found_total", "log"] == 1
    assert shown["mq_storage_damage_open", "log"] == 1
    assert shown["mq_storage_damage_mended_total", "queue"] == 1
    assert shown["mq_storage_damage_open", "queue"] == 0
    assert shown["mq_storage_damage_found_total", "index"] == 0
    assert shown["mq_messages_lost_to_damage_total", None] == 7


@on_loop
async def test_traffic_is_counted_by_topic_and_only_the_busiest_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    for name in ("small", "silent", "large", "gone"):
        await node.topic(name)
    for name, body in (("small", b"x"), ("large", b"x" * 100), ("large", b"y"), ("gone", b"z")):
        await node.send(name, body)
    await node.broker.puller.pull(Query(Queue("large", 0), 0, compile_filter(Filter())), 0)
    await node.broker.catalog.delete("gone")

    def shown() -> dict[tuple[str, str], float]:
        families = metrics._by_topic(node.broker)
        samples = [one for family in families for one in family.samples]
        return {(one.name, one.labels["topic"]): one.value for one in samples}

    found = shown()
    assert found["mq_topic_messages_in_total", "large"] == 2
    assert found["mq_topic_messages_out_total", "large"] == 2
    assert found["mq_topic_bytes_in_total", "large"] > 101
    assert found["mq_topic_bytes_out_total", "large"] > 101
    assert {topic for _, topic in found} == {"small", "large"}
    monkeypatch.setattr(metrics, "_TOPICS_MAX", 1)
    assert {topic for _, topic in shown()} == {"large"}


def test_few_kinds_of_clients_have_a_count_of_their_own() -> None:
    said = Counter({("python", "1.75.1"): 5, ("other", ""): 2})
    said.update({("go", f"1.{minor}"): 1 for minor in range(1_000)})
    shown = connections._bounded(said)
    assert len(shown) <= connections._KINDS_MAX + 1
    assert shown["python", "1.75.1"] == 5
    assert sum(shown.values()) == 1_007


@on_loop
async def test_a_loop_that_is_held_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "_PERIOD_S", 0.001)
    watch = loop_lag.LoopLag()
    watch.start()
    try:
        await eventually(lambda: watch.histogram.buckets()[-1][1] > 3)
        before = dict(watch.histogram.buckets())
        time.sleep(0.3)  # noqa: ASYNC251 - it holds the loop, that is the point
        await eventually(lambda: watch.histogram.buckets()[-1][1] > before["+Inf"])
    finally:
        watch.stop()
    after = dict(watch.histogram.buckets())
    assert after["+Inf"] - after["0.25"] > before["+Inf"] - before["0.25"]
    assert watch.histogram.seconds > 0.29
