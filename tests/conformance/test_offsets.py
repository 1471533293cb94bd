"""CommitOffsets, QueryOffsets, FindOffsets, and ResetOffsets of a group without members."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1.consumer_pb2 import (
    OFFSET_AT_TIME,
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    QueueId,
    QueuePosition,
    Subscription,
)
from tests.conformance.calls import Calls, numbers

if TYPE_CHECKING:
    from collections.abc import Callable

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
OUT_OF_RANGE = grpc.StatusCode.OUT_OF_RANGE


def position(topic: str, queue_id: int, queue_offset: int) -> QueuePosition:
    return QueuePosition(topic=topic, queue_id=queue_id, queue_offset=queue_offset)


def offsets(answer: Any) -> list[tuple[int, int]]:
    return [(one.queue_id, one.queue_offset) for one in answer.positions]


def test_committed_offsets_are_found_and_others_are_left_out(
    calls: Calls, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(5), queue_id=1)
    calls("CommitOffsets", group=group, positions=[position(topic, 1, 3), position(topic, 2, 0)])
    assert calls.committed(group, topic) == {1: 3, 2: 0}
    named = calls(
        "QueryOffsets", group=group, queues=[QueueId(topic=topic, queue_id=q) for q in (0, 1)]
    )
    assert offsets(named) == [(1, 3)]
    assert calls("QueryOffsets", group=f"{group}-other").positions == []


def test_a_commit_may_go_back(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, *numbers(5))
    for queue_offset in (5, 2):
        calls("CommitOffsets", group=group, positions=[position(topic, 0, queue_offset)])
    assert calls.committed(group, topic) == {0: 2}
    assert calls.lag(group) == 3


def test_an_empty_commit_does_nothing(calls: Calls, group: str) -> None:
    calls("CommitOffsets", group=group)
    assert calls.refused("DescribeGroup", group=group).code == "GROUP_NOT_FOUND"


def test_the_first_commit_begins_a_group(calls: Calls, topic: str, group: str) -> None:
    calls("CommitOffsets", group=group, positions=[position(topic, 0, 0)])
    described = calls("DescribeGroup", group=group)
    assert (described.summary.group, described.summary.members) == (group, 0)
    assert list(described.summary.topics) == [topic]


def commits(topic: str) -> list[Any]:
    return [
        (
            {"positions": [position(topic, 0, 6)]},
            "ILLEGAL_OFFSET",
            grpc.StatusCode.OUT_OF_RANGE,
            "6",
        ),
        ({"positions": [position(topic, 4, 0)]}, "QUEUE_NOT_FOUND", NOT_FOUND, "queue 4"),
        ({"positions": [position("gone", 0, 0)]}, "TOPIC_NOT_FOUND", NOT_FOUND, "gone"),
        ({"positions": [position("a b", 0, 0)]}, "ILLEGAL_TOPIC", INVALID, "a b"),
        ({"group": "no good"}, "ILLEGAL_GROUP", INVALID, "no good"),
        ({"group": ""}, "ILLEGAL_GROUP", INVALID, "''"),
        ({"group": "%SYS%"}, "ILLEGAL_GROUP", INVALID, "%SYS%"),
        (
            {"member_id": "stranger"},
            "UNKNOWN_MEMBER",
            grpc.StatusCode.FAILED_PRECONDITION,
            "stranger",
        ),
    ]


@pytest.mark.parametrize("case", range(len(commits(""))))
def test_a_bad_commit_is_refused_as_a_whole(
    calls: Calls, topic: str, group: str, case: int
) -> None:
    calls.send(topic, *numbers(5))
    fields, code, grpc_code, text = commits(topic)[case]
    good = position(topic, 0, 1)
    request = {"group": group, "positions": [good], **fields}
    if "positions" in fields:
        # After one that is good, of another queue.
        request["positions"] = [position(topic, 1, 0), *fields["positions"]]
    refusal = calls.refused("CommitOffsets", **request)
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)
    assert text in refusal.text
    assert calls.committed(group, topic) == {}


def test_a_group_with_members_commits_for_itself(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, *numbers(5))
    wanted = [Subscription(topic=topic)]
    calls("Join", group=group, member_id="m", subscriptions=wanted)
    positions = [position(topic, 0, 2)]
    refusal = calls.refused("CommitOffsets", group=group, positions=positions)
    assert refusal.code == "GROUP_NOT_EMPTY"
    assert group in refusal.text
    calls("CommitOffsets", group=group, member_id="m", positions=positions)
    assert calls.committed(group, topic) == {0: 2}
    calls("Leave", group=group, member_id="m")
    calls("CommitOffsets", group=group, positions=[position(topic, 0, 3)])
    assert calls.committed(group, topic) == {0: 3}


def test_a_member_commits_what_is_its_own(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, *numbers(5))
    wanted = [Subscription(topic=topic)]
    first = calls("Join", group=group, member_id="first", subscriptions=wanted)
    assert len(first.assigned) == 4
    calls("Join", group=group, member_id="second", subscriptions=wanted)
    refusal = calls.refused(
        "CommitOffsets", group=group, member_id="second", positions=[position(topic, 0, 1)]
    )
    assert refusal.code == "NOT_ASSIGNED"
    assert topic in refusal.text
    assert calls.committed(group, topic) == {}


@pytest.mark.parametrize("method", ["QueryOffsets", "CommitOffsets", "DescribeGroup"])
def test_illegal_names_of_groups_are_refused(calls: Calls, method: str) -> None:
    for name in ("", "a b", "%RETRY%x", "x" * 128, "ü"):
        refusal = calls.refused(method, group=name)
        assert (refusal.code, refusal.grpc_code) == ("ILLEGAL_GROUP", INVALID)


def test_too_many_queues_in_one_request_are_refused(calls: Calls, topic: str, group: str) -> None:
    queues = [QueueId(topic=topic, queue_id=at) for at in range(20_001)]
    assert calls.refused("QueryOffsets", group=group, queues=queues).code == "ILLEGAL_REQUEST"
    positions = [position(topic, at, 0) for at in range(20_001)]
    refusal = calls.refused("CommitOffsets", group=group, positions=positions)
    assert refusal.code == "ILLEGAL_REQUEST"
    refusal = calls.refused("FindOffsets", topic=topic, queue_ids=[0] * 70_000)
    assert refusal.code == "ILLEGAL_REQUEST"


# -- finding ---------------------------------------------------------------------------------------


def test_offsets_are_found_by_earliest_latest_and_time(calls: Calls, topic: str) -> None:
    first = calls.send(topic, *numbers(3))
    until_later(first.stored_at_ms)
    second = calls.send(topic, *numbers(2))

    def found(kind: Any, at_ms: int = 0) -> list[tuple[int, int]]:
        return offsets(calls("FindOffsets", topic=topic, kind=kind, at_ms=at_ms))

    assert found(OFFSET_EARLIEST) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert found(OFFSET_LATEST) == [(0, 5), (1, 0), (2, 0), (3, 0)]
    for at_ms, expected in (
        (0, 0),
        (first.stored_at_ms, 0),
        (first.stored_at_ms + 1, 3),
        (second.stored_at_ms, 3),
        (second.stored_at_ms + 1, 5),
        ((1 << 63) - 1, 5),
    ):
        assert found(OFFSET_AT_TIME, at_ms)[0] == (0, expected), at_ms


def until_later(now_ms: int) -> None:
    while time.time() * 1000 < now_ms + 3:
        time.sleep(0.001)


def test_only_the_queues_that_are_named_are_looked_for(calls: Calls, topic: str) -> None:
    answer = calls("FindOffsets", topic=topic, queue_ids=[3, 1])
    assert offsets(answer) == [(1, 0), (3, 0)]


FIND_REFUSALS = [
    ({"topic": "nowhere"}, "TOPIC_NOT_FOUND", NOT_FOUND),
    ({"topic": " "}, "ILLEGAL_TOPIC", INVALID),
    ({"queue_ids": [4]}, "QUEUE_NOT_FOUND", NOT_FOUND),
    ({"kind": 9}, "ILLEGAL_REQUEST", INVALID),
    ({"kind": OFFSET_AT_TIME, "at_ms": -1}, "ILLEGAL_REQUEST", INVALID),
]


@pytest.mark.parametrize(("fields", "code", "grpc_code"), FIND_REFUSALS)
def test_a_bad_search_is_refused(
    calls: Calls, topic: str, fields: dict[str, Any], code: str, grpc_code: Any
) -> None:
    refusal = calls.refused("FindOffsets", **{"topic": topic, **fields})
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)


# -- resetting a group that is not at work ---------------------------------------------------------


def reset(calls: Calls, group: str, topic: str, **fields: Any) -> Any:
    return calls("ResetOffsets", group=group, topic=topic, **fields)


def test_a_reset_says_what_was_and_what_is(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, *numbers(5))
    calls("CommitOffsets", group=group, positions=[position(topic, 0, 2)])
    answer = reset(calls, group, topic, kind=OFFSET_LATEST)
    assert [(one.queue_id, one.queue_offset) for one in answer.before] == [(0, 2)]
    assert [(one.queue_id, one.queue_offset) for one in answer.after] == [
        (0, 5),
        (1, 0),
        (2, 0),
        (3, 0),
    ]
    assert calls.committed(group, topic) == {0: 5, 1: 0, 2: 0, 3: 0}


def test_a_dry_run_changes_nothing(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, *numbers(5))
    calls("CommitOffsets", group=group, positions=[position(topic, 0, 2)])
    answer = reset(calls, group, topic, kind=OFFSET_EARLIEST, queue_ids=[0], is_dry_run=True)
    assert [one.queue_offset for one in answer.after] == [0]
    assert calls.committed(group, topic) == {0: 2}


def test_a_reset_by_time_goes_to_the_first_message_of_that_time(
    calls: Calls, topic: str, group: str
) -> None:
    first = calls.send(topic, *numbers(3))
    until_later(first.stored_at_ms)
    calls.send(topic, *numbers(3))
    calls("CommitOffsets", group=group, positions=[position(topic, 0, 6)])
    reset(calls, group, topic, kind=OFFSET_AT_TIME, at_ms=first.stored_at_ms + 1)
    assert calls.committed(group, topic)[0] == 3


def test_members_that_pull_would_not_hear_of_a_reset(calls: Calls, topic: str, group: str) -> None:
    calls("Join", group=group, member_id="puller", subscriptions=[Subscription(topic=topic)])
    refusal = calls.refused("ResetOffsets", group=group, topic=topic)
    assert refusal.code == "GROUP_NOT_EMPTY"
    assert "puller" in refusal.text


RESET_REFUSALS = [
    ({"group": "never-seen"}, "GROUP_NOT_FOUND", NOT_FOUND),
    ({"group": "a b"}, "ILLEGAL_GROUP", INVALID),
    ({"topic": "nowhere"}, "TOPIC_NOT_FOUND", NOT_FOUND),
    ({"queue_ids": [0, 4]}, "QUEUE_NOT_FOUND", NOT_FOUND),
    ({"kind": 3}, "ILLEGAL_REQUEST", INVALID),
    ({"kind": OFFSET_AT_TIME, "at_ms": -5}, "ILLEGAL_REQUEST", INVALID),
]


@pytest.mark.parametrize(("fields", "code", "grpc_code"), RESET_REFUSALS)
def test_a_bad_reset_changes_nothing(
    calls: Calls, topic: str, group: str, fields: dict[str, Any], code: str, grpc_code: Any
) -> None:
    calls.send(topic, *numbers(5))
    calls("CommitOffsets", group=group, positions=[position(topic, 0, 2)])
    refusal = calls.refused("ResetOffsets", **{"group": group, "topic": topic, **fields})
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)
    assert calls.committed(group, topic) == {0: 2}


def test_offsets_on_a_topic_go_with_it(
    calls: Calls, topic: str, group: str, new_name: Callable[[], str]
) -> None:
    other = calls.create(new_name())
    positions = [position(topic, 0, 0), position(other, 1, 0)]
    calls("CommitOffsets", group=group, positions=positions)
    calls("DeleteTopic", topic=topic)
    assert calls.committed(group, topic) == {}
    assert calls.committed(group, other) == {1: 0}
