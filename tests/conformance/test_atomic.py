"""SendAtomically: batches and offsets, or batches and acknowledged handles, all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mq.wire.v1.consumer_pb2 import (
    START_EARLIEST,
    FailedMessage,
    Handle,
    QueueId,
    QueuePosition,
    Subscription,
)
from mq.wire.v1.message_pb2 import Half
from mq.wire.v1.producer_pb2 import DeadLetterBatch, WorkStart
from tests.conformance.calls import Calls, numbers, plain, prepared

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.wire.v1.message_pb2 import Batch


@pytest.fixture
def out(calls: Calls, new_name: Callable[[], str]) -> str:
    return calls.create(new_name())


@pytest.fixture
def member(calls: Calls, topic: str, group: str) -> dict[str, Any]:
    """A member of the group, with all queues of the topic, which are not empty."""
    calls.send(topic, *numbers(10))
    calls("Join", group=group, member_id="m", subscriptions=[Subscription(topic=topic)])
    return {"group": group, "member_id": "m"}


def work(topic: str, start: int, end: int, queue_id: int = 0) -> dict[str, Any]:
    place: dict[str, Any] = {"topic": topic, "queue_id": queue_id}
    return {
        "positions": [QueuePosition(**place, queue_offset=end)],
        "starts": [WorkStart(**place, stood_at=start, first=start)],
    }


def made(out: str, sequence: int, *bodies: bytes, **fields: Any) -> Batch:
    fields = {"producer_id": out, "sequence": sequence, **fields}
    return plain(out, *(bodies or (b"x",)), **fields)


def test_a_message_that_failed_too_often_is_a_dead_letter_and_done_at_once(
    calls: Calls, topic: str, out: str, group: str, member: dict[str, Any]
) -> None:
    failed = FailedMessage(topic=topic, queue_offset=4, attempts=5, reason="poison")
    letters = DeadLetterBatch(producer_id=out, sequence=2, messages=[failed])
    starts = [WorkStart(topic=topic, stood_at=0, first=0)]
    request = {"batches": [made(out, 1)], "starts": starts, "dead_letters": letters, **member}
    answer = calls("SendAtomically", **request)
    assert [one.code for one in answer.results] == [0, 0]
    assert calls.committed(group, topic)[0] == 5
    again = calls("SendAtomically", **request).results
    assert [(one.log_offset, one.is_duplicate) for one in again] == [
        (one.log_offset, True) for one in answer.results
    ]
    (run,) = calls("Pull", topic=f"%DLQ%{group}").runs
    (message,) = run.messages
    assert (message.body, message.origin.attempts) == (numbers(10)[4], 5)
    assert (message.origin.topic, message.origin.reason) == (topic, "poison")


def test_output_and_offsets_come_together_and_once(
    calls: Calls, topic: str, out: str, member: dict[str, Any]
) -> None:
    batches = [
        made(out, 1, b"a", b"b"),
        prepared(out, b"c", queue_id=3, producer_id=out, sequence=2),
    ]
    answer = calls("SendAtomically", batches=batches, **member, **work(topic, 0, 4))
    assert [(one.code, one.queue_id, one.queue_offset) for one in answer.results] == [
        (0, 0, 0),
        (0, 3, 0),
    ]
    assert calls.committed(member["group"], topic)[0] == 4
    again = calls("SendAtomically", batches=batches, **member, **work(topic, 0, 4))
    assert [one.is_duplicate for one in again.results] == [True, True]
    assert [one.log_offset for one in again.results] == [one.log_offset for one in answer.results]
    assert (calls.bodies(out), calls.bodies(out, 3)) == ([b"a", b"b"], [b"c"])


def test_a_batch_whose_hashes_are_wrong_is_refused_with_all_of_it(
    calls: Calls, topic: str, out: str, member: dict[str, Any]
) -> None:
    lie = prepared(out, b"c", producer_id=out, sequence=2)
    lie.tag_hashes[0] = 5
    batches = [made(out, 1, b"a"), lie]
    refusal = calls.refused("SendAtomically", batches=batches, **member, **work(topic, 0, 4))
    assert (refusal.code, calls.bodies(out)) == ("MALFORMED_BATCH", [])


def test_a_member_without_the_queue_or_too_late_is_refused(
    calls: Calls, topic: str, out: str, member: dict[str, Any]
) -> None:
    stranger = {**member, "member_id": "stranger"}
    nobody = {**member, "member_id": ""}
    calls("SendAtomically", batches=[made(out, 1)], **member, **work(topic, 0, 4))
    for who, batches, what, code in (
        (stranger, [made(out, 2)], work(topic, 4, 6), "UNKNOWN_MEMBER"),
        (nobody, [made(out, 2)], work(topic, 4, 6), "GROUP_NOT_EMPTY"),
        (member, [made(out, 2)], work(topic, 0, 6), "ILLEGAL_OFFSET"),
        (member, [made(out, 2)], work(topic, 5, 6), "ILLEGAL_OFFSET"),
        (member, [made(out, 2)], work(topic, 4, 11), "ILLEGAL_OFFSET"),
        (member, [made(out, 2)], {"positions": work(topic, 0, 3)["positions"]}, "ILLEGAL_OFFSET"),
        (member, [made(out, 1), made(out, 2)], work(topic, 4, 6), "ILLEGAL_SEQUENCE"),
        (member, [made(out, 2), made(out, 2)], work(topic, 4, 6), "ILLEGAL_SEQUENCE"),
    ):
        assert calls.refused("SendAtomically", batches=batches, **who, **what).code == code
    assert (calls.ends(out), calls.committed(member["group"], topic)[0]) == ([1, 0, 0, 0], 4)


def test_another_member_has_the_queue(
    calls: Calls, topic: str, out: str, member: dict[str, Any]
) -> None:
    other = {**member, "member_id": "n"}
    calls("Join", subscriptions=[Subscription(topic=topic)], **other)
    mine = [QueueId(topic=topic, queue_id=at) for at in range(4)]
    kept = calls("Heartbeat", owned=mine, **member).assigned
    lost = next(at for at in range(4) if at not in [one.queue_id for one in kept])
    calls.send(topic, b"x", queue_id=lost)
    calls("Heartbeat", owned=kept, **member)
    refused = calls.refused(
        "SendAtomically", batches=[made(out, 1)], **member, **work(topic, 0, 1, lost)
    )
    assert refused.code == "NOT_ASSIGNED"
    assert calls.ends(out) == [0] * 4


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producer_id": ""}, "ILLEGAL_REQUEST"),
        ({"sequence": 0}, "ILLEGAL_REQUEST"),
        ({"delay_ms": 5_000}, "ILLEGAL_REQUEST"),
        ({"half": Half(producer_group="g")}, "ILLEGAL_REQUEST"),
        ({"queue_id": 4}, "QUEUE_NOT_FOUND"),
        ({"messages": []}, "MALFORMED_BATCH"),
        ({"topic": "%RETRY%x"}, "TOPIC_NOT_FOUND"),
        ({"topic": "no/topic"}, "ILLEGAL_TOPIC"),
    ],
)
def test_a_bad_batch_and_nothing_is_done(
    calls: Calls,
    topic: str,
    out: str,
    member: dict[str, Any],
    fields: dict[str, Any],
    code: str,
) -> None:
    bad = made(out, 2)
    for name, value in fields.items():
        bad.ClearField(name)
        bad.MergeFrom(type(bad)(**{name: value}))
    refused = calls.refused(
        "SendAtomically", batches=[made(out, 1), bad], **member, **work(topic, 0, 4)
    )
    assert refused.code in (code, "PERMISSION_DENIED")
    assert calls.ends(out) == [0] * 4
    assert calls.committed(member["group"], topic).get(0, 0) == 0


def test_a_request_that_asks_for_nothing_or_too_much_is_refused(
    calls: Calls, topic: str, out: str, member: dict[str, Any]
) -> None:
    assert calls.refused("SendAtomically").code == "ILLEGAL_REQUEST"
    handle = Handle(lease=b"x", queue_offset=0, count=1)
    both = calls.refused("SendAtomically", handles=[handle], **member, **work(topic, 0, 4))
    assert both.code == "ILLEGAL_REQUEST"
    many = [made(out, n + 1) for n in range(1_001)]
    assert calls.refused("SendAtomically", batches=many).code == "ILLEGAL_REQUEST"
    large = [made(out, n + 1, bytes(1 << 20)) for n in range(5)]
    assert calls.refused("SendAtomically", batches=large).code == "MESSAGE_TOO_LARGE"
    assert calls.refused("SendAtomically", group="a b", positions=[QueuePosition()]).code == (
        "ILLEGAL_GROUP"
    )
    assert calls.ends(out) == [0] * 4


def test_received_messages_are_acknowledged_with_their_output(
    calls: Calls, topic: str, out: str, group: str
) -> None:
    calls.send(topic, *numbers(3))
    received = calls(
        "Receive",
        group=group,
        topic=topic,
        messages_max=10,
        start_position=START_EARLIEST,
    )
    handles = [
        Handle(lease=run.lease, queue_offset=run.run.queue_offset, count=len(run.run.messages))
        for run in received.runs
    ]
    forged = Handle(lease=b"forged", queue_offset=0, count=1)
    refused = calls.refused(
        "SendAtomically", group=group, handles=[*handles, forged], batches=[made(out, 1)]
    )
    assert refused.code == "ILLEGAL_HANDLE"
    assert calls.ends(out) == [0] * 4
    answers = [
        calls("SendAtomically", group=group, handles=handles, batches=[made(out, 1)])
        for _ in range(2)
    ]
    assert [answer.results[0].is_duplicate for answer in answers] == [False, True]
    assert (calls.ends(out), calls.committed(group, topic)[0]) == ([1, 0, 0, 0], 3)
