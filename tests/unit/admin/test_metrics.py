"""Metrics of other broker sets, and of damage on the disk."""

from __future__ import annotations

import pytest

from mq.admin import metrics
from mq.store.damage import Damage, DamageKind, DamageLog
from mq.wire.v1.cluster_pb2 import BrokerSet, GreetResponse
from tests.support.consensus import Node, on_loop


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
