"""How a broker set is shown to RocketMQ's clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mq.errors import NotLeader
from mq.rpc.access import Rules
from mq.rpc.rocketmq.codes import Refused
from mq.rpc.rocketmq.routes import Routes, accepted_types, brokers_of, check_type, is_listed
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq.service_pb2 import QueryRouteRequest
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, TopicRoute, TopicType
from tests.support.consensus import Node, on_loop


def shown(*addresses: str, leader: str = "n1") -> list[tuple[str, int, list[str]]]:
    nodes = [NodeRoute(node_id=f"n{at}", address=one) for at, one in enumerate(addresses)]
    return [
        (
            one.name,
            one.endpoints.scheme,
            [f"{at.host}:{at.port}" for at in one.endpoints.addresses],
        )
        for one in brokers_of(BrokerSet(name="set-0", leader_id=leader, nodes=nodes))
    ]


def test_a_set_with_ip_addresses_is_one_broker_with_its_leader_first() -> None:
    assert shown("10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3") == [
        ("set-0", pb.IPv4, ["10.0.0.2:2", "10.0.0.1:1", "10.0.0.3:3"])
    ]
    assert shown("[::1]:1", "[::2]:2") == [("set-0", pb.IPv6, ["::2:2", "::1:1"])]


def test_nodes_with_host_names_are_a_broker_each() -> None:
    assert shown("a:1", "b:2") == [
        ("set-0-n0", pb.DOMAIN_NAME, ["a:1"]),
        ("set-0-n1", pb.DOMAIN_NAME, ["b:2"]),
    ]
    assert shown("localhost:1") == [("set-0", pb.DOMAIN_NAME, ["localhost:1"])]


def test_nodes_without_an_address_are_left_out() -> None:
    assert shown("10.0.0.1:1", "") == [("set-0", pb.IPv4, ["10.0.0.1:1"])]
    assert shown("") == []


def test_priorities_are_told_for_topics_that_have_them() -> None:
    assert pb.PRIORITY not in accepted_types(TopicType.TOPIC_NORMAL, 0)
    assert pb.PRIORITY in accepted_types(TopicType.TOPIC_NORMAL, 2)
    assert accepted_types(TopicType.TOPIC_ORDERED, 2) == (pb.FIFO,)


def test_only_topics_with_a_type_refuse_others() -> None:
    check_type("t", TopicType.TOPIC_NORMAL, pb.DELAY)
    check_type("t", TopicType.TOPIC_DELAYED, pb.DELAY)
    with pytest.raises(Refused, match="takes messages of type DELAY, not FIFO"):
        check_type("t", TopicType.TOPIC_DELAYED, pb.FIFO)


def test_message_groups_wait_for_a_set_without_a_leader_and_other_sends_go_around_it() -> None:
    leaderless = BrokerSet(name="b", nodes=[NodeRoute(node_id="b1", address="10.0.0.1:1")])
    normal, ordered = TopicRoute(topic="n"), TopicRoute(topic="o", type=TopicType.TOPIC_ORDERED)
    assert not is_listed(normal, leaderless, "a")
    assert is_listed(normal, leaderless, "b")
    assert is_listed(ordered, leaderless, "a")
    assert is_listed(normal, BrokerSet(name="b", leader_id="b1"), "a")


@on_loop
async def test_a_broker_that_still_reads_its_log_gives_no_route_without_its_own_queues() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.depose()
    calls: Any = None  # for topics that are created
    call: Any = SimpleNamespace(topic=lambda _: "t")
    with pytest.raises(NotLeader):
        await Routes(node.broker, Rules(node.broker), calls).query_route(QueryRouteRequest(), call)
