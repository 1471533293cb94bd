"""ConsumerService/Retry and the dead letters, as any client sees them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from mq.wire.v1 import consumer_pb2 as pb
from mq.wire.v1 import status_pb2
from tests.conformance.calls import Calls, until

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def join(calls: Calls, group: str, topic: str, member_id: str = "m", **fields: Any) -> set[str]:
    """Topics of the queues that the member has."""
    wanted = [pb.Subscription(topic=topic)]
    answer = calls("Join", group=group, member_id=member_id, subscriptions=wanted, **fields)
    return {one.topic for one in answer.assigned}


def failed(topic: str, queue_offset: int = 0, queue_id: int = 0, **fields: Any) -> pb.FailedMessage:
    return pb.FailedMessage(topic=topic, queue_id=queue_id, queue_offset=queue_offset, **fields)


def retry(calls: Calls, group: str, *messages: pb.FailedMessage, **fields: Any) -> list[Any]:
    given = {"member_id": "m", **fields}
    return list(calls("Retry", group=group, messages=messages, **given).results)


def copies(calls: Calls, topic: str) -> list[Any]:
    answer = calls("Pull", topic=topic)
    return [message for run in answer.runs for message in run.messages]


def give_up(calls: Calls, group: str, topic: str, count: int) -> None:
    """Dead letters, as many."""
    join(calls, group, topic)
    calls("AlterGroup", group=group, retries_max=0)
    results = retry(calls, group, *[failed(topic, at, reason="no") for at in range(count)])
    assert [one.deliver_at_ms for one in results] == [0] * count


def test_a_failed_message_comes_back_when_it_is_wanted(
    calls: Calls, topic: str, group: str
) -> None:
    calls.send(topic, b"0", b"1")
    assert join(calls, group, topic) == {topic}
    (at_once, later) = retry(
        calls, group, failed(topic, 1, delay_ms=0, reason="x"), failed(topic, 0, delay_ms=300)
    )
    assert (at_once.code, at_once.attempts, at_once.deliver_at_ms > 0) == (0, 1, True)
    assert later.deliver_at_ms == at_once.deliver_at_ms + 300
    own = f"%RETRY%{group}"
    (copy,) = copies(calls, own)
    assert (copy.body, copy.origin.topic, copy.origin.queue_offset) == (b"1", topic, 1)
    assert (copy.origin.attempts, copy.origin.reason) == (1, "x")
    assert calls("GetMessage", message_id=copy.origin.message_id).message.body == b"1"
    # The group has the topic now, and both messages in time.
    until(lambda: join(calls, group, topic) == {topic, own})
    until(lambda: calls.bodies(own) == [b"1", b"0"])
    assert calls("DescribeGroup", group=group).summary.lag >= 2


def test_attempts_count_up_to_the_limit_of_the_group(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, b"m")
    settings = calls("AlterGroup", group=group, retries_max=2)
    assert (settings.retries_max, settings.is_default) == (2, False)
    own = f"%RETRY%{group}"
    join(calls, group, topic)
    (first,) = retry(calls, group, failed(topic, 0, delay_ms=0))
    until(lambda: own in join(calls, group, topic))
    (second,) = retry(calls, group, failed(own, 0, delay_ms=0))
    (third,) = retry(calls, group, failed(own, 1, reason="last"))
    assert [one.attempts for one in (first, second, third)] == [1, 2, 3]
    assert third.deliver_at_ms == 0
    (letter,) = calls("ListDeadLetters", group=group).messages
    assert (letter.message.body, letter.message.origin.attempts) == (b"m", 3)
    assert (letter.message.origin.topic, letter.message.origin.reason) == (topic, "last")
    assert letter.topic == f"%DLQ%{group}"


def test_a_retry_with_the_same_sequence_is_done_once(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, b"m")
    join(calls, group, topic)
    (first,) = retry(calls, group, failed(topic, 0, delay_ms=0), sequence=7)
    (again,) = retry(calls, group, failed(topic, 0, delay_ms=0), sequence=7)
    assert (again.code, again.attempts) == (first.code, first.attempts) == (0, 1)
    assert len(copies(calls, f"%RETRY%{group}")) == 1
    retry(calls, group, failed(topic, 0, delay_ms=0), sequence=8)
    assert len(copies(calls, f"%RETRY%{group}")) == 2


def test_the_largest_message_is_retried(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, b"x" * (4 << 20))
    join(calls, group, topic)
    own = f"%RETRY%{group}"
    (result,) = retry(calls, group, failed(topic, 0, delay_ms=1, reason="ü" * 2_000))
    assert result.code == status_pb2.SEND_OK
    until(lambda: own in join(calls, group, topic) and calls.ends(own) == [1])
    (result,) = retry(calls, group, failed(own, 0, delay_ms=1))
    assert result.attempts == 2
    until(lambda: calls.ends(own) == [2])


def test_missing_and_foreign_messages_are_reported(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, b"m")
    join(calls, group, topic)
    found = retry(calls, group, failed(topic, 9), failed("nowhere"), failed(topic, 0, delay_ms=0))
    names = [status_pb2.Code.Name(one.code) for one in found]
    assert names == ["MESSAGE_NOT_FOUND", "NOT_ASSIGNED", "SEND_OK"]
    assert all(one.text for one in found[:2])
    assert len(copies(calls, f"%RETRY%{group}")) == 1


@pytest.mark.parametrize(
    ("fields", "code", "grpc_code"),
    [
        ({"member_id": "stranger"}, "UNKNOWN_MEMBER", PRECONDITION),
        ({"group": "%bad"}, "ILLEGAL_GROUP", INVALID),
        ({"group": "nobody"}, "UNKNOWN_MEMBER", PRECONDITION),
        ({"sequence": (1 << 64) - 1}, "ILLEGAL_REQUEST", INVALID),
        (
            {"messages": [failed("t", delay_ms=40 * 86_400_000 + 1)]},
            "ILLEGAL_DELAY",
            INVALID,
        ),
        ({"messages": [failed("t")] * 1_001}, "ILLEGAL_REQUEST", INVALID),
    ],
)
def test_bad_requests(
    calls: Calls, topic: str, group: str, fields: dict[str, Any], code: str, grpc_code: Any
) -> None:
    join(calls, group, topic)
    given = {"group": group, "member_id": "m", "messages": [failed(topic)], **fields}
    refusal = calls.refused("Retry", **given)
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)


def test_ordered_groups_retry_in_place(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, b"m")
    join(calls, group, topic, mode=pb.MODE_ORDERED)
    refusal = calls.refused("Retry", group=group, member_id="m", messages=[failed(topic)])
    assert (refusal.code, "in place" in refusal.text) == ("ILLEGAL_REQUEST", True)


def test_streams_get_what_failed(calls: Calls, subscribe: Any, topic: str, group: str) -> None:
    calls.send(topic, b"m")
    member = subscribe("s", start_position=pb.START_EARLIEST)
    member.until_assigned(0, 1, 2, 3)
    calls("Retry", group=group, member_id="s", messages=[failed(topic, delay_ms=0)], sequence=1)

    def came_back() -> bool:
        answer = member.next()
        return bool(answer.delivery.topic == f"%RETRY%{group}" and answer.delivery.runs)

    until(came_back)


# -- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_are_listed_sent_again_and_dropped(
    calls: Calls, topic: str, group: str
) -> None:
    calls.send(topic, b"0", b"1", b"2")
    give_up(calls, group, topic, 3)
    (count,) = [one for one in calls("ListDeadLetters").groups if one.group == group]
    assert (count.messages, count.last_stored_at_ms > 0) == (3, True)
    assert calls("BrokerStatus").dead_letters >= 3
    answer = calls("ListDeadLetters", group=group, queue_offset=1, messages_max=1)
    assert ([one.message.body for one in answer.messages], answer.next_offset) == ([b"1"], 2)
    own = f"%RETRY%{group}"
    assert calls("ResendDeadLetters", group=group, queue_offsets=[1]).messages == 1
    assert len(calls("ListDeadLetters", group=group).messages) == 3
    assert calls("PurgeDeadLetters", group=group, before_offset=1).messages == 1
    assert calls("ResendDeadLetters", group=group).messages == 2
    assert calls.bodies(own) == [b"1", b"1", b"2"]
    assert [one.origin.attempts for one in copies(calls, own)] == [0, 0, 0]
    assert not calls("ListDeadLetters", group=group).messages
    assert group not in [one.group for one in calls("ListDeadLetters").groups]
    assert calls("PurgeDeadLetters", group=group).messages == 0


@pytest.mark.parametrize("method", ["ListDeadLetters", "ResendDeadLetters", "PurgeDeadLetters"])
def test_groups_without_dead_letters(calls: Calls, group: str, method: str) -> None:
    assert calls.refused(method, group=group).code == "TOPIC_NOT_FOUND"
    assert calls.refused(method, group="%x").code == "ILLEGAL_GROUP"


def test_letters_that_are_not_there(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, b"0")
    give_up(calls, group, topic, 1)
    refusal = calls.refused("ResendDeadLetters", group=group, queue_offsets=[0, 5])
    assert refusal.code == "MESSAGE_NOT_FOUND"
    assert calls.refused("Pull", topic=f"%RETRY%{group}").code == "TOPIC_NOT_FOUND"


def test_settings_of_a_group(calls: Calls, group: str) -> None:
    settings = calls("AlterGroup", group=group)
    assert (settings.retries_max, settings.is_default) == (16, True)
    assert group not in [one.group for one in calls("ListGroups").groups]
    assert calls.refused("AlterGroup", group=group, retries_max=1_001).code == "ILLEGAL_REQUEST"
    assert calls("AlterGroup", group=group, retries_max=0).retries_max == 0
    calls("DeleteGroup", group=group)
    assert calls("AlterGroup", group=group).is_default
