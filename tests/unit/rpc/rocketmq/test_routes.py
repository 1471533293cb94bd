"""How a broker set is shown to RocketMQ's clients."""

from __future__ import annotations

import pytest

from mq.rpc.rocketmq.codes import Refused
from mq.rpc.rocketmq.routes import accepted_types, brokers_of, check_type
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, TopicType


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
