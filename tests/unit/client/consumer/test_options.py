"""What a consumer may ask for, and how it goes over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from mq.client.consumer.options import ConsumerOptions, wanted_tags
from mq.client.messages import Sql, Tags
from mq.errors import IllegalConfig, IllegalFilter, IllegalGroup, IllegalTopic, MqError
from mq.wire.v1 import consumer_pb2 as wire


@pytest.mark.parametrize(
    ("subscriptions", "topics"),
    [
        ("orders", ["orders"]),
        (["orders", "returns"], ["orders", "returns"]),
        ({"orders": None, "returns": "*"}, ["orders", "returns"]),
    ],
)
def test_topics_come_in_three_shapes(subscriptions: Any, topics: list[str]) -> None:
    start = ConsumerOptions("s:1", "g", subscriptions).wire_start()
    assert [one.topic for one in start.subscriptions] == topics
    assert not any(one.HasField("filter") for one in start.subscriptions)


def test_filters_go_to_the_broker_and_tags_are_compared_here() -> None:
    options = ConsumerOptions(
        "s:1",
        "g",
        {
            "orders": "paid|| shipped ",
            "returns": Tags("open"),
            "bills": Sql("amount > 100"),
            "all": "*",
        },
    )
    filters = {one.topic: one.filter for one in options.wire_start().subscriptions}
    assert filters["orders"].tags == "paid|| shipped "
    assert filters["returns"].tags == "open"
    assert filters["bills"].sql == "amount > 100"
    assert wanted_tags(options.filters) == {
        "orders": frozenset({"paid", "shipped"}),
        "returns": frozenset({"open"}),
    }


@pytest.mark.parametrize(
    ("start", "position", "at_ms"),
    [
        ("latest", wire.START_LATEST, 0),
        ("earliest", wire.START_EARLIEST, 0),
        (1_700_000_000_000, wire.START_TIMESTAMP, 1_700_000_000_000),
        (0, wire.START_TIMESTAMP, 0),
    ],
)
def test_the_start_is_named_or_a_time(start: Any, position: int, at_ms: int) -> None:
    sent = ConsumerOptions("s:1", "g", "orders", start=start).wire_start()
    assert (sent.start_position, sent.start_at_ms) == (position, at_ms)


def test_modes_limits_and_zone_are_sent_to_the_broker() -> None:
    sent = ConsumerOptions(
        "s:1",
        "g",
        "orders",
        mode="ordered",
        cache_messages=7,
        cache_bytes=900,
        zone="b",
        member_id="me",
    ).wire_start()
    assert (sent.group, sent.member_id, sent.zone) == ("g", "me", "b")
    assert (sent.mode, sent.cache_messages, sent.cache_bytes) == (wire.MODE_ORDERED, 7, 900)


def test_members_that_are_not_named_have_names_of_their_own() -> None:
    names = {ConsumerOptions("s:1", "g", "orders").member for _ in range(10)}
    assert len(names) == 10
    options = ConsumerOptions("s:1", "g", "orders")
    assert options.wire_start().member_id == options.wire_start().member_id != ""


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"group": "%RETRY%g"}, IllegalGroup, "no % at the start"),
        ({"subscriptions": []}, IllegalConfig, "at least one topic"),
        ({"subscriptions": "no topic"}, IllegalTopic, "no topic"),
        ({"subscriptions": {"orders": 5}}, IllegalFilter, "5 is no filter"),
        ({"mode": "queueing"}, IllegalConfig, "clustering, ordered, broadcast"),
        ({"start": "yesterday"}, IllegalConfig, "'yesterday'"),
        ({"start": -1}, IllegalConfig, "-1"),
        ({"start": True}, IllegalConfig, "True"),
        ({"cache_messages": 0}, IllegalConfig, "at least 1"),
        ({"cache_bytes": 0}, IllegalConfig, "at least 1"),
        ({"offsets_file": "offsets.json"}, IllegalConfig, "mode='broadcast'"),
    ],
)
def test_illegal_options_are_refused_before_a_broker_is_asked(
    changes: dict[str, Any], error: type[MqError], text: str
) -> None:
    arguments = {"servers": "s:1", "group": "g", "subscriptions": "orders"} | changes
    with pytest.raises(error, match=text):
        ConsumerOptions(**arguments)
