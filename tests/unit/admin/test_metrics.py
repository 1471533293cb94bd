"""What a scrape shows of other broker sets."""

from __future__ import annotations

from mq.admin import metrics
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
