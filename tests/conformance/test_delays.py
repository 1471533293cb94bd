"""Delayed messages and their recall, as any client sees them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1.message_pb2 import Message
from mq.wire.v1.producer_pb2 import ACK_LEADER, ACK_NONE
from tests.conformance.calls import Calls, code_of, frame_size, plain, prepared, until
from tests.conformance.streams import PublishStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mq.wire.v1.message_pb2 import Batch

INVALID = grpc.StatusCode.INVALID_ARGUMENT
DAY_MS = 86_400_000
LEVELS_S = (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)


@pytest.fixture
def stream(channel: grpc.Channel) -> Iterator[PublishStream]:
    with PublishStream(channel) as opened:
        yield opened


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def recall(calls: Calls, topic: str, message_id: str, deliver_at_ms: int) -> None:
    calls("Recall", topic=topic, message_id=message_id, deliver_at_ms=deliver_at_ms)


def test_a_send_is_delivered_when_its_time_has_come(calls: Calls, topic: str) -> None:
    wanted_ms = now_ms() + 1_000
    answer = calls.send(topic, b"a", b"b", queue_id=2, deliver_at_ms=wanted_ms)
    assert (answer.queue_id, answer.queue_offset) == (2, -1)
    assert answer.deliver_at_ms == wanted_ms
    assert len(answer.message_ids) == 2
    until(lambda: calls.ends(topic)[2] == 2)
    assert now_ms() >= wanted_ms
    run = calls("Pull", topic=topic, queue_id=2).runs[0]
    assert [message.body for message in run.messages] == [b"a", b"b"]
    assert run.stored_at_ms >= wanted_ms


def test_a_delay_counts_from_when_the_broker_has_it(calls: Calls, topic: str) -> None:
    began_ms = now_ms()
    answer = calls.send(topic, b"x", delay_ms=300)
    assert began_ms + 300 <= answer.deliver_at_ms <= now_ms() + 300
    until(lambda: calls.bodies(topic) == [b"x"])
    assert now_ms() >= answer.deliver_at_ms


@pytest.mark.parametrize("level", range(1, 19))
def test_delay_levels_are_the_usual_ones(calls: Calls, topic: str, level: int) -> None:
    began_ms = now_ms()
    answer = calls.send(topic, b"x", delay_level=level)
    wanted_ms = LEVELS_S[level - 1] * 1_000
    assert began_ms + wanted_ms <= answer.deliver_at_ms <= now_ms() + wanted_ms
    recall(calls, topic, answer.message_ids[0], answer.deliver_at_ms)


@pytest.mark.parametrize("make", [plain, prepared])
def test_batches_of_a_stream_are_delayed_each_by_its_own_time(
    calls: Calls, stream: PublishStream, topic: str, make: Callable[..., Batch]
) -> None:
    at_ms = now_ms() + 1_000
    stream.publish(make(topic, b"c", delay_ms=1_200), make(topic, b"a"))
    stream.publish(make(topic, b"b", deliver_at_ms=at_ms))
    late, now = stream.next().results
    (soon,) = stream.next().results
    assert (late.queue_offset, now.queue_offset, soon.queue_offset) == (-1, 0, -1)
    assert late.log_offset > 0
    assert (now.deliver_at_ms, soon.deliver_at_ms) == (0, at_ms)
    assert late.deliver_at_ms > at_ms
    until(lambda: len(calls.bodies(topic)) == 3)
    assert calls.bodies(topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("ack", [ACK_LEADER, ACK_NONE])
def test_messages_without_a_quorum_are_delayed_as_well(calls: Calls, topic: str, ack: Any) -> None:
    answer = calls.send(topic, b"x", delay_ms=200, ack=ack)
    sent_ms = now_ms()
    if ack == ACK_LEADER:
        assert answer.deliver_at_ms <= sent_ms + 200
    until(lambda: calls.bodies(topic) == [b"x"])
    assert calls("Pull", topic=topic).runs[0].stored_at_ms >= answer.deliver_at_ms


def test_a_repeated_delayed_batch_is_a_duplicate(calls: Calls, topic: str, group: str) -> None:
    first = calls.send(topic, b"x", delay_ms=300, producer_id=group, sequence=1)
    again = calls.send(topic, b"x", delay_ms=300, producer_id=group, sequence=1)
    assert (again.is_duplicate, first.is_duplicate) == (True, False)
    assert again.deliver_at_ms == first.deliver_at_ms
    assert list(again.message_ids) == list(first.message_ids)
    until(lambda: calls.bodies(topic) == [b"x"])
    after = calls.send(topic, b"x", delay_ms=300, producer_id=group, sequence=1)
    assert after.is_duplicate
    calls.send(topic, b"y")
    assert calls.bodies(topic) == [b"x", b"y"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_ms": 40 * DAY_MS + 60_000},
        {"delay_ms": (1 << 64) - 1},
        {"deliver_at_ms": -1},
        {"deliver_at_ms": 1 << 62},
        {"delay_level": 19},
        {"delay_level": (1 << 32) - 1},
        {"delay_level": 1, "delay_ms": 1},
        {"delay_level": 1, "deliver_at_ms": 1 << 41},
        {"delay_ms": 1, "deliver_at_ms": 1 << 41},
    ],
)
def test_an_illegal_delay_is_refused(
    calls: Calls, stream: PublishStream, topic: str, wrong: dict[str, int]
) -> None:
    refused = calls.refused("Send", topic=topic, messages=[Message(body=b"x")], **wrong)
    assert (refused.code, refused.grpc_code) == ("ILLEGAL_DELAY", INVALID)
    if "delay_level" not in wrong:
        assert code_of(stream.result(plain(topic, b"x", **wrong))) == "ILLEGAL_DELAY"
    assert calls.ends(topic) == [0, 0, 0, 0]


def test_forty_days_are_allowed_and_a_time_that_is_over_is_now(calls: Calls, topic: str) -> None:
    answer = calls.send(topic, b"x", delay_ms=40 * DAY_MS)
    recall(calls, topic, answer.message_ids[0], answer.deliver_at_ms)
    answer = calls.send(topic, b"y", deliver_at_ms=now_ms() - 5_000)
    assert (answer.queue_offset, answer.deliver_at_ms) == (0, 0)


def test_a_message_is_taken_back_alone(calls: Calls, stream: PublishStream, topic: str) -> None:
    answer = calls.send(topic, b"a", b"bb", b"c", delay_ms=2_000)
    recall(calls, topic, answer.message_ids[1], answer.deliver_at_ms)
    # Of a stream the id is broker set and log offset.
    result = stream.result(plain(topic, b"dddd", b"e", delay_ms=2_000))
    broker_set = answer.message_ids[0].rpartition(":")[0]
    second = result.log_offset + frame_size(Message(body=b"dddd"))
    recall(calls, topic, f"{broker_set}:{second}", result.deliver_at_ms)
    until(lambda: len(calls.bodies(topic)) == 3)
    assert calls.bodies(topic) == [b"a", b"c", b"dddd"]
    for message_id in answer.message_ids:
        refused = calls.refused(
            "Recall", topic=topic, message_id=message_id, deliver_at_ms=answer.deliver_at_ms
        )
        assert refused.code == "MESSAGE_NOT_FOUND"


def test_a_recall_that_is_impossible_says_why(
    calls: Calls, topic: str, new_name: Callable[[], str]
) -> None:
    other = calls.create(new_name())
    answer = calls.send(topic, b"abc", delay_ms=60_000)
    message_id, at_ms = answer.message_ids[0], answer.deliver_at_ms
    broker_set, _, log_offset = message_id.rpartition(":")
    plain_id = calls.send(topic, b"now").message_ids[0]
    next_byte = f"{broker_set}:{int(log_offset) + 1}"
    for wrong, code in (
        ({"topic": other}, "MESSAGE_NOT_FOUND"),
        ({"topic": "missing"}, "TOPIC_NOT_FOUND"),
        ({"topic": "not legal"}, "ILLEGAL_TOPIC"),
        ({"topic": "%RETRY%g"}, "PERMISSION_DENIED"),
        ({"deliver_at_ms": at_ms + 1}, "MESSAGE_NOT_FOUND"),
        ({"deliver_at_ms": 0}, "ILLEGAL_REQUEST"),
        ({"deliver_at_ms": -1}, "ILLEGAL_REQUEST"),
        ({"deliver_at_ms": (1 << 63) - 1}, "MESSAGE_NOT_FOUND"),
        ({"message_id": plain_id}, "MESSAGE_NOT_FOUND"),
        ({"message_id": next_byte}, "MESSAGE_NOT_FOUND"),
        ({"message_id": f"{broker_set}:{(1 << 63) - 1}"}, "MESSAGE_NOT_FOUND"),
        ({"message_id": f"another-set:{log_offset}"}, "MESSAGE_NOT_FOUND"),
        ({"message_id": "what?"}, "ILLEGAL_REQUEST"),
        ({"message_id": f"{broker_set}:9999999999999999999"}, "MESSAGE_NOT_FOUND"),
    ):
        fields: dict[str, Any] = {"topic": topic, "message_id": message_id, "deliver_at_ms": at_ms}
        assert calls.refused("Recall", **{**fields, **wrong}).code == code, wrong
    recall(calls, topic, message_id, at_ms)


def test_delay_lanes_cannot_be_read_or_written(calls: Calls) -> None:
    for name, fields in (
        ("Pull", {}),
        ("Send", {"messages": [Message(body=b"x")]}),
    ):
        refused = calls.refused(name, topic="%SYS%SCHEDULE", **fields)
        assert refused.code in ("PERMISSION_DENIED", "TOPIC_NOT_FOUND")
