"""Topics with priorities: how they are made and told of, and where a Send goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.wire.v1.message_pb2 import Message
from tests.conformance.calls import Calls
from tests.conformance.streams import SubscribeStream

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc


@pytest.fixture
def ranked(calls: Calls, new_name: Callable[[], str]) -> str:
    return calls.create(new_name(), 6, priorities=3)


def test_topics_show_their_priorities(calls: Calls, ranked: str, topic: str) -> None:
    assert calls("DescribeTopic", topic=ranked).info.priorities == 3
    assert calls("DescribeTopic", topic=topic).info.priorities == 0
    routes = calls("Route", topics=[ranked, topic]).topics
    assert [route.priorities for route in routes] == [3, 0]


@pytest.mark.parametrize(("queues", "priorities"), [(2, 3), (8, 1), (20, 11)])
def test_bad_priorities_are_refused(
    calls: Calls, new_name: Callable[[], str], queues: int, priorities: int
) -> None:
    refused = calls.refused("CreateTopic", topic=new_name(), queues=queues, priorities=priorities)
    assert refused.code == "ILLEGAL_REQUEST"


def test_each_priority_keeps_a_queue(calls: Calls, ranked: str) -> None:
    refused = calls.refused("AlterTopic", topic=ranked, write_queues=2)
    assert refused.code == "ILLEGAL_REQUEST"
    assert calls("AlterTopic", topic=ranked, write_queues=3).priorities == 3


def test_a_send_without_a_queue_goes_by_its_priority(calls: Calls, ranked: str) -> None:
    for priority in range(3):
        for key in ("", "", "", "k", "k"):
            message = Message(body=b"x", priority=priority, ordering_key=key)
            answer = calls("Send", topic=ranked, messages=[message])
            assert answer.queue_id % 3 == priority
    assert sum(calls.ends(ranked)) == 15
    refused = calls.refused("Send", topic=ranked, messages=[Message(body=b"x", priority=3)])
    assert refused.code == "ILLEGAL_REQUEST"


def test_elsewhere_a_priority_means_nothing(calls: Calls, topic: str) -> None:
    calls("Send", topic=topic, messages=[Message(body=b"x", priority=9)])
    assert sum(calls.ends(topic)) == 1


def test_assignments_carry_the_ranks_of_queues(
    channel: grpc.Channel, ranked: str, group: str
) -> None:
    with SubscribeStream(channel, group, ranked, "m") as stream:
        ranks = {one.queue_id: one.rank for one in stream.assignment().queues}
    assert ranks == {at: 2 - at % 3 for at in range(6)}
