"""AdminService: groups, single messages, the node and its options."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import consumer_pb2 as pb
from mq.wire.v1.message_pb2 import Message
from tests.conformance.calls import Calls, numbers, until

if TYPE_CHECKING:
    from tests.support.broker_process import BrokerProcess

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND


# -- groups ----------------------------------------------------------------------------------------


def test_groups_are_listed_with_their_lag(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(5), queue_id=1)
    subscribe("m", mode=pb.MODE_ORDERED).messages(5)
    (found,) = [one for one in calls("ListGroups").groups if one.group == group]
    assert (found.mode, found.members, found.lag) == (pb.MODE_ORDERED, 1, 5)
    assert list(found.topics) == [topic]
    assert found.generation > 0


def test_lag_counts_what_a_group_without_an_offset_has_before_it(
    calls: Calls, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(5))
    calls("Join", group=group, member_id="m", subscriptions=[{"topic": topic}])
    described = calls("DescribeGroup", group=group)
    assert {one.committed for one in described.queues} == {-1}
    assert described.summary.lag == 5


def test_a_group_is_described_with_its_subscriptions(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    subscribe("m", filter={"sql": " a = 1 "}).assignment()
    (shown,) = calls("DescribeGroup", group=group).subscriptions
    assert (shown.topic, shown.filter) == (topic, pb.Filter(sql="a = 1"))


def test_a_group_is_deleted_with_its_offsets(calls: Calls, topic: str, group: str) -> None:
    position = pb.QueuePosition(topic=topic, queue_id=0, queue_offset=0)
    calls("CommitOffsets", group=group, positions=[position])
    calls("DeleteGroup", group=group)
    assert calls.refused("DescribeGroup", group=group).code == "GROUP_NOT_FOUND"
    assert group not in {one.group for one in calls("ListGroups").groups}
    assert calls.committed(group, topic) == {}
    refusal = calls.refused("DeleteGroup", group=group)
    assert (refusal.code, refusal.grpc_code) == ("GROUP_NOT_FOUND", NOT_FOUND)
    assert group in refusal.text


def test_a_group_with_members_is_not_deleted(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(5))
    stream = subscribe("m")
    stream.messages(5)
    stream.progress(0, 3)
    refusal = calls.refused("DeleteGroup", group=group)
    assert (refusal.code, refusal.grpc_code) == (
        "GROUP_NOT_EMPTY",
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    assert group in refusal.text
    until(lambda: calls.lag(group) == 2, "its progress is committed all the same")


@pytest.mark.parametrize("mode", [pb.MODE_CLUSTERING, pb.MODE_ORDERED])
def test_a_group_that_is_deleted_right_behind_its_last_member_is_gone(
    calls: Calls, subscribe: Any, topic: str, group: str, mode: int
) -> None:
    """Though its progress was just on its way."""
    calls.send(topic, *numbers(5))
    stream = subscribe("m", mode=mode)
    stream.messages(5)
    until(lambda: calls.committed(group, topic), "it has begun")
    stream.progress(0, 3)
    stream.leave()
    calls("DeleteGroup", group=group)

    def is_gone() -> bool:
        return group not in {one.group for one in calls("ListGroups").groups}

    until(is_gone, "the leader has forgotten its members")
    for _ in range(10):
        assert is_gone()
        time.sleep(0.03)


@pytest.mark.parametrize(
    ("method", "group", "code", "grpc_code"),
    [
        ("DescribeGroup", "never-seen", "GROUP_NOT_FOUND", NOT_FOUND),
        ("DescribeGroup", "a b", "ILLEGAL_GROUP", INVALID),
        ("DeleteGroup", "never-seen", "GROUP_NOT_FOUND", NOT_FOUND),
        ("DeleteGroup", "a b", "ILLEGAL_GROUP", INVALID),
    ],
)
def test_an_illegal_group_is_refused_by_name(
    calls: Calls, method: str, group: str, code: str, grpc_code: Any
) -> None:
    refusal = calls.refused(method, group=group)
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)
    assert group in refusal.text


# -- single messages -------------------------------------------------------------------------------

BAD_IDS = [
    ("", "ILLEGAL_REQUEST", INVALID),
    ("set-0", "ILLEGAL_REQUEST", INVALID),
    ("set-0:", "ILLEGAL_REQUEST", INVALID),
    ("set-0:-1", "ILLEGAL_REQUEST", INVALID),
    ("set-0:\N{ARABIC-INDIC DIGIT ONE}", "ILLEGAL_REQUEST", INVALID),  # a digit, of another script
    ("set-0:" + "9" * 20, "ILLEGAL_REQUEST", INVALID),
    ("x" * 10_000, "ILLEGAL_REQUEST", INVALID),
    ("set-0:" + "9" * 19, "MESSAGE_NOT_FOUND", NOT_FOUND),
    ("set-0:0", "MESSAGE_NOT_FOUND", NOT_FOUND),
    ("set-9:0", "MESSAGE_NOT_FOUND", NOT_FOUND),
]


@pytest.mark.parametrize(("message_id", "code", "grpc_code"), BAD_IDS)
def test_an_id_of_no_message_is_refused(
    calls: Calls, message_id: str, code: str, grpc_code: Any
) -> None:
    refusal = calls.refused("GetMessage", message_id=message_id)
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)


def test_an_offset_in_the_middle_of_a_message_is_not_found(calls: Calls, topic: str) -> None:
    (message_id,) = calls.send(topic, bytes(1_000)).message_ids
    broker_set, _, log_offset = message_id.partition(":")
    for step in (-1, 1, 500):
        refusal = calls.refused("GetMessage", message_id=f"{broker_set}:{int(log_offset) + step}")
        assert refusal.code == "MESSAGE_NOT_FOUND"


def test_messages_are_found_by_key_and_time_newest_first(calls: Calls, topic: str) -> None:
    messages = [
        Message(body=body, keys=["a", "b"] if at % 2 else ["a"])
        for at, body in enumerate(numbers(6))
    ]
    sent = [calls.send(topic, messages=[one], queue_id=at % 4) for at, one in enumerate(messages)]

    def found(key: str, **fields: Any) -> list[bytes]:
        listed = calls("QueryMessages", topic=topic, key=key, **fields).messages
        return [one.message.body for one in listed]

    assert found("a") == numbers(6)[::-1]
    assert found("b") == numbers(6)[5::-2]
    assert found("c") == []
    assert found("a", messages_max=2) == numbers(6)[:-3:-1]
    assert found("a", end_ms=sent[0].stored_at_ms) == []
    assert found("a", begin_ms=sent[5].stored_at_ms + 10_000) == []
    extremes = {"begin_ms": -(1 << 63), "end_ms": (1 << 63) - 1}
    assert len(found("a", messages_max=(1 << 32) - 1, **extremes)) == 6
    listed = calls("QueryMessages", topic=topic, key="b").messages[0]
    assert listed.message_id == sent[5].message_ids[0]
    assert (listed.topic, listed.queue_id, listed.queue_offset) == (topic, 1, 1)


def test_a_query_returns_sixty_four_at_the_most(calls: Calls, topic: str) -> None:
    calls.send(topic, messages=[Message(keys=["k"])] * 100)
    for messages_max in (0, 64, 1_000):
        answer = calls("QueryMessages", topic=topic, key="k", messages_max=messages_max)
        assert len(answer.messages) == 64


def test_a_queue_is_browsed_step_by_step(calls: Calls, topic: str) -> None:
    calls.send(topic, messages=[Message(body=b"%d" % at, tag="ab"[at % 2]) for at in range(100)])
    first = calls("BrowseMessages", topic=topic)
    assert [one.queue_offset for one in first.messages] == list(range(32))
    assert first.next_offset == 32
    rest = calls("BrowseMessages", topic=topic, queue_offset=90, messages_max=5_000)
    assert ([one.message.body for one in rest.messages], rest.next_offset) == (
        [b"%d" % at for at in range(90, 100)],
        100,
    )
    assert calls("GetMessage", message_id=rest.messages[3].message_id) == rest.messages[3]
    filtered = calls("BrowseMessages", topic=topic, filter={"tags": "b"}, messages_max=3)
    assert [one.queue_offset for one in filtered.messages] == [1, 3, 5]
    nothing = calls("BrowseMessages", topic=topic, filter={"tags": "c"})
    assert (list(nothing.messages), nothing.next_offset) == ([], 100)
    beyond = calls("BrowseMessages", topic=topic, queue_offset=1 << 50)
    assert (list(beyond.messages), beyond.next_offset) == ([], 100)
    assert calls("BrowseMessages", topic=topic, queue_id=3).next_offset == 0


def test_browsing_passes_over_what_is_gone(calls: Calls, topic: str) -> None:
    calls.send(topic, *numbers(5))
    calls("DeleteTopic", topic=topic)
    calls.create(topic)
    calls.send(topic, b"new")
    (found,) = calls("BrowseMessages", topic=topic).messages
    assert (found.queue_offset, found.message.body) == (5, b"new")


SEARCHES: list[tuple[str, dict[str, Any], str, Any]] = [
    ("QueryMessages", {"topic": "unborn", "key": "k"}, "TOPIC_NOT_FOUND", NOT_FOUND),
    ("QueryMessages", {"topic": "a b", "key": "k"}, "ILLEGAL_TOPIC", INVALID),
    ("QueryMessages", {"key": ""}, "ILLEGAL_REQUEST", INVALID),
    ("BrowseMessages", {"topic": "unborn"}, "TOPIC_NOT_FOUND", NOT_FOUND),
    ("BrowseMessages", {"topic": "a b"}, "ILLEGAL_TOPIC", INVALID),
    ("BrowseMessages", {"queue_id": 4}, "QUEUE_NOT_FOUND", NOT_FOUND),
    ("BrowseMessages", {"filter": {"sql": "a ="}}, "ILLEGAL_FILTER", INVALID),
    ("BrowseMessages", {"filter": {"tags": "||"}}, "ILLEGAL_FILTER", INVALID),
]


@pytest.mark.parametrize(("method", "fields", "code", "grpc_code"), SEARCHES)
def test_a_bad_search_is_refused(
    calls: Calls, topic: str, method: str, fields: dict[str, Any], code: str, grpc_code: Any
) -> None:
    refusal = calls.refused(method, **{"topic": topic, **fields})
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)


# -- the node --------------------------------------------------------------------------------------


def test_a_node_says_how_it_is(calls: Calls, topic: str) -> None:
    before = calls("BrokerStatus")
    calls.send(topic, *numbers(5))
    calls.bodies(topic)
    after = calls("BrokerStatus")
    assert (after.cluster, after.broker_set, after.node_id) == ("mq", "set-0", "node-0")
    assert (after.role, after.leader_id, after.is_ready) == ("leader", "node-0", True)
    assert after.version
    assert after.messages_in - before.messages_in == 5
    assert after.messages_out - before.messages_out == 5
    assert after.commit_index > before.commit_index
    assert after.applied_index == after.commit_index <= after.last_index
    assert after.log_bytes > before.log_bytes
    assert 0 < after.disk_used_bytes < after.disk_total_bytes
    assert after.topics > 0
    assert 0 < after.started_at_ms <= time.time() * 1000
    assert 0 < after.rss_bytes < 1 << 30
    assert after.cpu_seconds > 0
    assert list(after.followers) == []


def option(calls: Calls, name: str) -> Any:
    (found,) = [one for one in calls("GetConfig").options if one.name == name]
    return found


def test_options_are_shown_with_defaults_and_what_they_are(
    calls: Calls, broker: BrokerProcess
) -> None:
    options = calls("GetConfig").options
    assert len(options) > 30
    assert all(one.name and one.description for one in options)
    port = option(calls, "broker.port")
    assert (port.value, port.default, port.is_dynamic) == ("0", "8081", False)
    assert option(calls, "retention.hours").is_dynamic
    assert broker.is_running


def test_some_options_may_be_changed_while_the_node_runs(calls: Calls) -> None:
    (changed,) = calls("SetConfig", name="retention.hours", value="48").options
    assert (changed.name, changed.value, changed.default) == ("retention.hours", "48", "72")
    assert option(calls, "retention.hours").value == "48"
    calls("SetConfig", name="retention.hours", value="72")


CONFIG = [
    ("retention.hours", "0"),
    ("retention.hours", "often"),
    ("retention.hours", ""),
    ("retention.clean_oldest_ratio", "0.5"),  # below the one before
    ("log.level", "loud"),
    ("broker.port", "1"),  # not while it runs
    ("no.such", "1"),
    ("", ""),
    ("x" * 5_000, "y" * 5_000),
]


@pytest.mark.parametrize(("name", "value"), CONFIG)
def test_an_illegal_option_is_refused_and_nothing_changes(
    calls: Calls, name: str, value: str
) -> None:
    before = calls("GetConfig")
    refusal = calls.refused("SetConfig", name=name, value=value)
    assert (refusal.code, refusal.grpc_code) == ("ILLEGAL_CONFIG", INVALID)
    assert name.rpartition(".")[2][:50] in refusal.text
    assert calls("GetConfig") == before
