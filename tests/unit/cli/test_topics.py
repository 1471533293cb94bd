"""`mq topic`: what it asks the broker, what it shows, and when it asks the user."""

from __future__ import annotations

import json

import pytest

from mq.cli.topics import topic
from mq.client.admin.calls import Answers
from mq.errors import TopicNotFound
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import TOPIC_TRANSACTIONAL, BrokerSet, RouteResponse, TopicRoute
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

LONG = "t" * 127


def info(name: str = "orders", **fields: object) -> pb.TopicInfo:
    given = {"write_queues": 8, "read_queues": 8, "is_readable": True, "is_writable": True}
    return pb.TopicInfo(topic=name, created_at_ms=1_783_850_000_123, **{**given, **fields})  # type: ignore[arg-type]


def described(groups: int = 2) -> pb.DescribeTopicResponse:
    queues = [
        pb.QueueStats(queue_id=0, start=10, end=1 << 45, last_stored_at_ms=1_783_850_000_123),
        pb.QueueStats(queue_id=1),
    ]
    names = [f"group-{at}" for at in range(groups)]
    return pb.DescribeTopicResponse(info=info(), queues=queues, groups=names)


# Lists and descriptions.


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_list_fits_the_terminal(columns: int) -> None:
    topics = [
        pb.TopicSummary(info=info(stored_bytes=5 << 30), messages=1_234_567),
        pb.TopicSummary(
            info=info(LONG, type=TOPIC_TRANSACTIONAL, read_queues=12, is_writable=False)
        ),
    ]
    result = run(topic, "list", admin=FakeAdmin(list_topics=topics), columns=columns)
    assert result.exit_code == 0
    assert_fits(result.stdout, columns)
    assert "1,234,567" in result.stdout
    assert "8w 12r" in result.stdout
    assert "5.0 GiB" in result.stdout
    assert result.stdout.endswith("2 topics, 1,234,567 messages\n")


def test_a_list_shows_as_many_as_wanted_and_says_how_many_there_are() -> None:
    topics = [pb.TopicSummary(info=info(f"t{at}"), messages=at) for at in range(5)]
    admin = FakeAdmin(list_topics=topics)
    shown = run(topic, "list", "--count", "2", admin=admin).stdout
    assert ("t1" in shown, "t2" in shown) == (True, False)
    assert shown.endswith("5 topics, 10 messages; the first 2 are shown\n")
    assert len(run_json(topic, "list", "--count", "2", admin=admin)) == 2
    all_of_them = run(topic, "list", "--count", "5", admin=admin).stdout
    assert all_of_them.endswith("5 topics, 10 messages\n")


def test_an_empty_list_says_how_to_begin() -> None:
    assert "mq produce" in run(topic, "list", admin=FakeAdmin(list_topics=[])).stdout


def test_the_list_as_json_has_one_object_a_topic() -> None:
    admin = FakeAdmin(list_topics=[pb.TopicSummary(info=info(), messages=5)])
    (found,) = run_json(topic, "list", "--internal", admin=admin)
    assert (found["topic"], found["type"], found["messages"]) == ("orders", "normal", 5)
    assert admin.called("list_topics") == [((), {"include_internal": True})]


def test_a_description_has_queues_and_groups() -> None:
    result = run(topic, "describe", "orders", admin=FakeAdmin(describe_topic=described()))
    assert_fits(result.stdout)
    for part in (str(1 << 45), "2026-07-12 09:53:20.123", "group-0, group-1", "read and write"):
        assert part in result.stdout
    document = run_json(topic, "describe", "orders", admin=FakeAdmin(describe_topic=described()))
    assert document["queues"][0]["end"] == 1 << 45


# Changes.


def test_create_hands_over_queues_and_type() -> None:
    admin = FakeAdmin(create_topic=info())
    result = run(topic, "create", "orders", "--queues", "16", "--type", "ordered", admin=admin)
    assert result.exit_code == 0
    wanted = {"queues": 16, "type": "ordered", "priorities": 0, "sets": None}
    assert admin.called("create_topic") == [(("orders",), wanted)]
    run(topic, "create", "orders", "--priorities", "3", "--set", "a", "--set", "b", admin=admin)
    wanted = {"queues": 0, "type": "normal", "priorities": 3, "sets": ("a", "b")}
    assert admin.called("create_topic")[1] == (("orders",), wanted)


def test_priorities_are_shown() -> None:
    admin = FakeAdmin(create_topic=info(priorities=3))
    result = run(topic, "create", "orders", "--priorities", "3", admin=admin)
    assert ", 3 priorities," in result.output
    assert run(topic, "create", "orders", "--priorities", "1", admin=admin).exit_code == 2
    summary = pb.TopicSummary(info=info(priorities=3), messages=1)
    assert " (3p)" in run(topic, "list", admin=FakeAdmin(list_topics=[summary])).output


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        (("--queues", "4"), {"write_queues": 4, "read_queues": 4}),
        (("--write-queues", "0"), {"write_queues": 0}),
        (("--read-queues", "9", "--not-writable"), {"read_queues": 9, "is_writable": False}),
        (("--readable",), {"is_readable": True}),
    ],
)
def test_alter_hands_over_what_was_named(
    flags: tuple[str, ...], changes: dict[str, object]
) -> None:
    empty = pb.DescribeTopicResponse(info=info(), queues=[pb.QueueStats(queue_id=7)])
    admin = FakeAdmin(alter_topic=info(), describe_topic=empty)
    assert run(topic, "alter", "orders", *flags, admin=admin).exit_code == 0
    ((_, given),) = admin.called("alter_topic")
    assert {key: value for key, value in given.items() if value not in (None, "")} == changes


EIGHT = pb.DescribeTopicResponse(
    info=info(),
    queues=[
        pb.QueueStats(queue_id=at, start=10, end=10 + 500 * at, broker_set=name)
        for name in ("a", "b")
        for at in range(8)
    ],
)


@pytest.mark.parametrize("count", ["--queues", "--read-queues"])
def test_alter_asks_before_messages_are_hidden_and_says_how_many(count: str) -> None:
    admin = FakeAdmin(alter_topic=info(), describe_topic=EIGHT)
    arguments = ("alter", "orders", count, "4", "--set", "a")
    result = run(topic, *arguments, admin=admin, stdin="n\n")
    assert result.exit_code == 1
    assert (
        "11,000 messages are in queues 4 to 7 of topic orders, which consumers would no longer "
        "see: they stay stored, and come back with more --read-queues. Go on?"
    ) in result.stderr
    assert admin.called("alter_topic") == []
    assert run(topic, *arguments, admin=admin, stdin="y\n").exit_code == 0
    assert run(topic, *arguments, "--yes", admin=admin).exit_code == 0
    assert len(admin.called("alter_topic")) == 2


def test_alter_without_a_terminal_is_refused_with_a_hint() -> None:
    admin = FakeAdmin(alter_topic=info(), describe_topic=EIGHT)
    result = run(topic, "alter", "orders", "--queues", "7", "--json", admin=admin)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "7,000 messages are in queue 7 of topic orders" in result.stderr
    assert result.stderr.endswith("error: not confirmed, nothing was done: give --yes\n")
    assert admin.called("alter_topic") == []


@pytest.mark.parametrize("flags", [(), ("--queues", "4", "--read-queues", "5"), ("--queues", "0")])
def test_alter_without_sense_is_a_usage_error(flags: tuple[str, ...]) -> None:
    admin = FakeAdmin()
    assert run(topic, "alter", "orders", *flags, admin=admin).exit_code == 2
    assert admin.calls == []


def test_delete_asks_and_says_what_goes() -> None:
    admin = FakeAdmin(describe_topic=described(), delete_topic=None)
    refused = run(topic, "delete", "orders", admin=admin, stdin="n\n")
    assert refused.exit_code == 1
    assert admin.called("delete_topic") == []
    assert "35,184,372,088,822 messages; 2 groups have offsets" in refused.stderr
    assert run(topic, "delete", "orders", admin=admin, stdin="").exit_code == 1
    assert admin.called("delete_topic") == []
    assert run(topic, "delete", "orders", admin=admin, stdin="y\n").exit_code == 0
    assert admin.called("delete_topic") == [(("orders",), {})]


def test_delete_does_not_ask_with_yes() -> None:
    admin = FakeAdmin(describe_topic=described(1), delete_topic=None)
    result = run(topic, "delete", "orders", "--yes", admin=admin)
    assert (result.exit_code, result.stderr) == (0, "")
    document = run_json(topic, "delete", "orders", "-y", admin=admin)
    assert document == {"topic": "orders", "is_deleted": True, "messages": (1 << 45) - 10}


# Several broker sets.

SETS = RouteResponse(
    broker_sets=[BrokerSet(name="set-a"), BrokerSet(name="set-b")],
    topics=[
        TopicRoute(topic="orders", broker_set="set-a", write_queues=5),
        TopicRoute(topic="orders", broker_set="set-b", write_queues=3),
    ],
)


def spread() -> pb.DescribeTopicResponse:
    parts = [
        info(write_queues=5, read_queues=5, broker_set="set-a"),
        info(write_queues=3, read_queues=3, broker_set="set-b", is_writable=False),
    ]
    queues = [
        pb.QueueStats(broker_set="set-a", end=10),
        pb.QueueStats(broker_set="set-b", end=7),
    ]
    return pb.DescribeTopicResponse(info=info(), queues=queues, parts=parts)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_cluster_of_several_sets_shows_them(columns: int) -> None:
    summary = pb.TopicSummary(info=info(), messages=17, broker_sets=["set-a", "set-b"])
    admin = FakeAdmin(list_topics=[summary], describe_topic=spread(), route=SETS)
    listed = run(topic, "list", admin=admin, columns=columns).stdout
    assert "set-a, set-b" in listed
    text = run(topic, "describe", "orders", admin=admin, columns=columns).stdout
    assert "8 queues: 5 in set-a, 3 in set-b" in text
    assert "read and write; in set-b read" in text
    assert ["set-b", "0", "0", "7", "7", "-"] in [line.split() for line in text.splitlines()]
    assert_fits(listed + text, columns)


def test_one_set_alone_is_not_shown() -> None:
    alone = RouteResponse(broker_sets=[BrokerSet(name="set-0")])
    summary = pb.TopicSummary(info=info(), messages=17, broker_sets=["set-0"])
    admin = FakeAdmin(
        list_topics=[summary], describe_topic=described(), create_topic=info(), route=alone
    )
    for command in (("list",), ("describe", "orders"), ("create", "orders")):
        assert "set-" not in run(topic, *command, admin=admin).stdout


def test_create_and_extend_say_where_the_queues_are() -> None:
    part = info(write_queues=3, read_queues=3, broker_set="set-b")
    admin = FakeAdmin(create_topic=info(), extend_topic=part, route=SETS)
    created = run(topic, "create", "orders", admin=admin).stdout
    assert "8 queues (5 in set-a, 3 in set-b), read and write" in created
    extended = run(topic, "extend", "orders", "--set", "set-b", "--queues", "3", admin=admin)
    assert "3 queues in set-b, 8 in all, read and write" in extended.stdout
    assert admin.called("extend_topic") == [(("orders", "set-b", 3), {})]
    for flags in ((), ("--set", "set-b"), ("--queues", "3")):
        assert run(topic, "extend", "orders", *flags, admin=admin).exit_code == 2


def test_drain_says_what_is_left_and_what_comes_next() -> None:
    admin = FakeAdmin(drain_topic=info(), describe_topic=spread())
    text = run(topic, "drain", "orders", "--set", "set-b", admin=admin).stdout
    assert "When the 7 messages there are consumed" in text
    assert "mq topic delete orders --set set-b" in text
    assert run_json(topic, "drain", "orders", "--set", "set-b", admin=admin)["messages"] == 7


def test_a_part_is_deleted_alone() -> None:
    admin = FakeAdmin(describe_topic=spread(), remove_part=None)
    flags = ("orders", "--set", "set-b", "--yes")
    result = run(topic, "delete", *flags, admin=admin)
    assert result.stdout == "Deleted topic orders in broker set set-b and its 7 messages.\n"
    run(topic, "delete", *flags, "--force", admin=admin)
    assert [given["force"] for _, given in admin.called("remove_part")] == [False, True]
    assert admin.called("delete_topic") == []
    assert run(topic, "delete", "orders", "--yes", "--force", admin=admin).exit_code == 2


def test_a_list_without_an_unreachable_set_is_shown_and_the_command_fails() -> None:
    found = Answers([pb.TopicSummary(info=info(), messages=5)], ["set-b", "set-c"])
    result = run(topic, "list", "--json", admin=FakeAdmin(list_topics=found))
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["messages"] == 5
    assert result.stderr == (
        "error: UNREACHABLE: broker sets set-b, set-c did not answer: what is there is not shown\n"
    )


def test_an_error_of_the_broker_is_one_line() -> None:
    admin = FakeAdmin(describe_topic=TopicNotFound("there is no topic x"))
    result = run(topic, "delete", "x", "--yes", admin=admin)
    assert result.exit_code == 1
    assert result.stderr == "error: TOPIC_NOT_FOUND: there is no topic x\n"
