"""Topics that do not exist: which calls create them, which wait for them, and the errors of the
others.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from mq.wire.v1 import consumer_pb2
from tests.conformance.calls import Calls, until
from tests.conformance.streams import SubscribeStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import grpc


LATEST, EARLIEST = consumer_pb2.START_LATEST, consumer_pb2.START_EARLIEST


def exists(calls: Calls, topic: str) -> bool:
    return bool(calls("Route", topics=[topic]).topics)


@pytest.fixture
def missing(new_name: Callable[[], str]) -> str:
    return new_name()


@pytest.fixture
def waiting(channel: grpc.Channel, group: str, missing: str) -> Iterator[SubscribeStream]:
    """A consumer that was there before its topic."""
    with SubscribeStream(channel, group, missing, start_position=LATEST) as stream:
        assert list(stream.assignment().queues) == []
        yield stream


def test_a_subscription_creates_no_topic_and_gets_all_of_it_when_it_appears(
    calls: Calls, waiting: SubscribeStream, missing: str
) -> None:
    assert not exists(calls, missing)
    calls.send(missing, b"first")
    assert len(waiting.assignment().queues) == 8
    assert waiting.messages(1) == [(0, 0, b"first")]


def test_a_deleted_topic_is_not_brought_back_by_its_consumers(
    calls: Calls, channel: grpc.Channel, topic: str, group: str
) -> None:
    with SubscribeStream(channel, group, topic) as stream:
        assert len(stream.assignment().queues) == 4
        calls("DeleteTopic", topic=topic)
        assert list(stream.assignment().queues) == []
    with SubscribeStream(channel, group, topic) as stream:
        assert list(stream.assignment().queues) == []
        assert not exists(calls, topic)


def test_a_member_that_pulls_joins_before_its_topic(calls: Calls, group: str, missing: str) -> None:
    me = {"group": group, "member_id": "m"}
    assert list(calls("Join", **me, subscriptions=[{"topic": missing}]).assigned) == []
    assert not exists(calls, missing)
    calls.send(missing, b"first")
    assert len(calls("Heartbeat", **me).assigned) == 8


def test_a_receive_waits_for_its_topic(calls: Calls, group: str, missing: str) -> None:
    wanted: dict[str, Any] = {"group": group, "topic": missing, "start_position": EARLIEST}
    assert list(calls("Receive", **wanted).runs) == []
    assert not exists(calls, missing)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(calls, "Receive", **wanted, wait_ms=20_000)
        calls.send(missing, b"first")
        [found] = call.result().runs
    assert [message.body for message in found.run.messages] == [b"first"]


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("Join", {"member_id": "m", "subscriptions": [{"topic": "%RETRY%never-born"}]}),
        ("Receive", {"topic": "%RETRY%never-born"}),
    ],
)
def test_a_topic_of_the_brokers_own_is_not_waited_for(
    calls: Calls, group: str, method: str, fields: dict[str, Any]
) -> None:
    assert calls.refused(method, group=group, **fields).code == "TOPIC_NOT_FOUND"


def test_consumers_create_topics_where_an_operator_wants_that(
    calls: Calls, channel: grpc.Channel, group: str, missing: str
) -> None:
    calls("SetConfig", name="broker.auto_create_by_consumers", value="yes")
    try:
        with SubscribeStream(channel, group, missing) as stream:
            assert len(stream.assignment().queues) == 8
        assert exists(calls, missing)
    finally:
        calls("SetConfig", name="broker.auto_create_by_consumers", value="no")


# -- what may have been meant ----------------------------------------------------------------------


def test_the_error_for_a_missing_topic_suggests_similar_names(calls: Calls) -> None:
    calls.create("invoices-paid")
    calls.create("weather")

    def suggestion() -> bool:
        refusal = calls.refused("DescribeTopic", topic="invoice-paid")
        assert refusal.code == "TOPIC_NOT_FOUND"
        return "did you mean invoices-paid?" in refusal.text

    # The broker compares names a few times a second, for all tests together.
    until(suggestion, "a similar name is suggested")
    route = calls("Route", topics=["invoice-paid", "weather", "unlike-any-other"])
    assert [(one.topic, list(one.similar)) for one in route.missing] == [
        ("invoice-paid", ["invoices-paid"]),
        ("unlike-any-other", []),
    ]
