"""AdminService/TraceMessage: what became of a message, as any client sees it."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from mq.wire.v1 import admin_pb2
from mq.wire.v1 import consumer_pb2 as pb
from mq.wire.v1.message_pb2 import Message
from tests.conformance.calls import Calls, numbers, until
from tests.conformance.test_retry import failed, join, retry

NOT_FOUND = grpc.StatusCode.NOT_FOUND


def kinds(trace: Any, group: str | None = None) -> list[str]:
    return [
        admin_pb2.TraceKind.Name(one.kind).removeprefix("TRACE_").lower()
        for one in trace.events
        if group is None or one.group == group
    ]


def standings(trace: Any) -> dict[str, str]:
    name = admin_pb2.TraceStanding.Name
    return {one.group: name(one.standing).removeprefix("STANDING_").lower() for one in trace.groups}


def commit(calls: Calls, group: str, topic: str, queue_offset: int, queue_id: int = 0) -> None:
    position = pb.QueuePosition(topic=topic, queue_id=queue_id, queue_offset=queue_offset)
    calls("CommitOffsets", group=group, positions=[position])


def test_a_trace_has_the_birth_the_place_and_the_groups(
    calls: Calls, topic: str, group: str
) -> None:
    fields: dict[str, Any] = {"tag": "paid", "keys": ["order-7"], "born_at_ms": 1_000}
    sent = calls.send(topic, messages=[Message(body=b"7", **fields), Message(body=b"8")])
    first, second = sent.message_ids
    commit(calls, group, topic, 1)
    trace = calls("TraceMessage", message_id=first)
    assert (trace.message_id, trace.topic, trace.queue_id, trace.queue_offset) == (
        *(first, topic, 0),
        sent.queue_offset,
    )
    assert (trace.tag, list(trace.keys), trace.body_bytes) == ("paid", ["order-7"], 1)
    assert (trace.is_complete, trace.continue_token, trace.incomplete_reason) == (True, 0, "")
    assert kinds(trace) == ["born", "stored", "passed"]
    born, stored, passed = trace.events
    assert (born.at_ms, stored.at_ms, stored.queue_offset) == (1_000, sent.stored_at_ms, 0)
    assert stored.raft_index > 0
    assert stored.term > 0
    assert (passed.group, passed.at_ms >= stored.at_ms) == (group, True)
    assert standings(trace) == {group: "passed"}
    behind = calls("TraceMessage", message_id=second)
    assert kinds(behind) == ["stored"]
    (one,) = behind.groups
    assert (standings(behind), one.position, one.behind) == ({group: "not_reached"}, 1, 0)
    assert behind.raft_index >= passed.raft_index


def test_a_group_that_has_not_reached_it_says_how_far_it_is_behind(
    calls: Calls, topic: str, group: str
) -> None:
    sent = calls.send(topic, *numbers(10))
    commit(calls, group, topic, 2)
    (one,) = calls("TraceMessage", message_id=sent.message_ids[9]).groups
    assert (one.position, one.behind) == (2, 7)


def test_a_message_that_was_retried_twice_and_given_up(
    calls: Calls, topic: str, group: str
) -> None:
    sent = calls.send(topic, b"7")
    join(calls, group, topic)
    calls("AlterGroup", group=group, retries_max=2)
    own = f"%RETRY%{group}"
    retry(calls, group, failed(topic, 0, delay_ms=50, reason="no stock"))
    until(lambda: calls("Pull", topic=own).runs, "it came back")
    until(lambda: own in join(calls, group, topic), "the member has the retry topic")
    retry(calls, group, failed(own, 0, delay_ms=0, reason="still none"))
    retry(calls, group, failed(own, 1, reason="never"))
    trace = calls("TraceMessage", message_id=sent.message_ids[0])
    assert kinds(trace, group) == ["retry", "redelivered", "retry", "dead_letter"]
    told = [(one.attempt, one.reason) for one in trace.events if one.reason]
    assert told == [(1, "no stock"), (2, "still none"), (3, "never")]
    assert standings(trace) == {group: "dead_letter"}
    letters = calls("ListDeadLetters", group=group).messages
    # The id of a copy leads to the same life.
    assert calls("TraceMessage", message_id=letters[0].message_id).events == trace.events
    calls("ResendDeadLetters", group=group)
    trace = calls("TraceMessage", message_id=sent.message_ids[0])
    assert kinds(trace, group)[-1] == "resent"
    assert standings(trace) == {group: "not_reached"}


def test_a_message_that_is_received_given_back_and_acknowledged(
    calls: Calls, topic: str, group: str
) -> None:
    sent = calls.send(topic, b"7")
    wanted = {"group": group, "topic": topic, "wait_ms": 5_000, "start_position": pb.START_EARLIEST}

    def received() -> list[pb.Handle]:
        (run,) = calls("Receive", member_id="m", **wanted).runs
        return [pb.Handle(lease=run.lease, queue_offset=run.run.queue_offset)]

    handles = received()
    assert standings(calls("TraceMessage", message_id=sent.message_ids[0])) == {group: "leased"}
    calls("Nack", group=group, handles=handles, delay_ms=10, reason="too hot")
    handles = received()
    calls("ChangeInvisible", group=group, handles=handles, invisible_ms=20_000)
    calls("Ack", group=group, handles=handles)
    trace = calls("TraceMessage", message_id=sent.message_ids[0])
    assert kinds(trace, group) == ["received", "nacked", "received", "extended", "acknowledged"]
    assert [one.attempt for one in trace.events if one.group] == [1, 1, 2, 2, 2]
    assert standings(trace) == {group: "acknowledged"}


def test_a_delayed_message_that_is_delivered_and_one_that_is_taken_back(
    calls: Calls, topic: str
) -> None:
    delayed = calls.send(topic, b"7", delay_ms=100)
    (kept,) = calls.send(topic, b"8", delay_ms=600_000).message_ids
    waiting = calls("TraceMessage", message_id=kept)
    assert kinds(waiting) == ["delayed"]
    assert (waiting.is_complete, waiting.queue_offset) == (True, -1)
    calls("Recall", topic=topic, message_id=kept, deliver_at_ms=waiting.events[-1].until_ms)
    assert kinds(calls("TraceMessage", message_id=kept)) == ["delayed", "recalled"]
    until(lambda: calls.ends(topic)[0] == 1, "it was delivered")
    trace = calls("TraceMessage", message_id=delayed.message_ids[0])
    assert kinds(trace) == ["delayed", "delivered"]
    assert trace.events[1].at_ms >= trace.events[0].until_ms
    assert trace.events[1].message_id != trace.message_id


def test_the_trace_of_a_message_of_a_deleted_topic_ends_with_it(calls: Calls, topic: str) -> None:
    (found,) = calls.send(topic, b"7").message_ids
    calls("DeleteTopic", topic=topic)
    calls.create(topic)
    trace = calls("TraceMessage", message_id=found)
    assert kinds(trace) == ["stored", "topic_deleted"]
    assert not trace.is_complete
    assert "deleted" in trace.incomplete_reason


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"message_id": "set-0:999999999999"}, "MESSAGE_NOT_FOUND"),
        ({"message_id": "set-0:0"}, "MESSAGE_NOT_FOUND"),
        ({"message_id": "another:1"}, "MESSAGE_NOT_FOUND"),
        ({"message_id": "nothing"}, "ILLEGAL_REQUEST"),
        ({"message_id": "set-0:1", "budget_ms": 10_001}, "ILLEGAL_REQUEST"),
    ],
)
def test_what_is_no_message_is_refused(calls: Calls, fields: dict[str, Any], code: str) -> None:
    refusal = calls.refused("TraceMessage", **fields)
    assert refusal.code == code
    assert refusal.text


def test_a_token_that_is_not_known_begins_anew(calls: Calls, topic: str, group: str) -> None:
    (found,) = calls.send(topic, b"7").message_ids
    commit(calls, group, topic, 1)
    whole = calls("TraceMessage", message_id=found, budget_ms=10_000)
    again = calls("TraceMessage", message_id=found, continue_token=1)
    assert (again.is_complete, again.events) == (True, whole.events)
