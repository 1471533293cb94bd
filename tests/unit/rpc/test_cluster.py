"""Routes, as clients ask for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mq.broker.security.gate import EVERYBODY
from mq.errors import NotLeader
from mq.rpc.access import Rules
from mq.rpc.cluster import ClusterService
from mq.store.identity import Identity
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse
from tests.support.consensus import Node, on_loop


async def route(node: Node, *topics: str) -> RouteResponse:
    context: Any = SimpleNamespace(caller=EVERYBODY)
    service = ClusterService(node.broker, Identity("mq", "a", "node-0"), Rules(node.broker))
    return await service.route(RouteRequest(topics=topics), context)


@on_loop
async def test_a_broker_that_is_still_reading_its_log_denies_no_topic_of_its_set() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.depose()
    with pytest.raises(NotLeader, match="other:8081"):
        await route(node, "t")
    # A follower names the leader all the same.
    [own] = (await route(node)).broker_sets
    assert own.leader_id == "other"
    node.consensus.elect()
    assert [one.topic for one in (await route(node, "t")).topics] == ["t"]
