"""The SimpleConsumer against answers that a test writes: handles, refusals, attempts without an
answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mq.client import ReceivedMessage
from mq.client.simple import SimpleConsumer
from mq.errors import IllegalHandle, MqError, OutcomeUnknown, SubscriptionMismatch, TopicNotFound
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.cluster_pb2 import RouteResponse, TopicRoute
from mq.wire.v1.message_pb2 import Batch, Message
from mq.wire.v1.status_pb2 import ILLEGAL_HANDLE, SEND_OK
from tests.support.consensus import on_loop, soon

if TYPE_CHECKING:
    from collections.abc import Callable


class Brokers:
    """In place of the connection: `answer` says what becomes of a call."""

    def __init__(self, answer: Callable[[str, Any], Any]) -> None:
        self._answer = answer
        self.unanswered = 0
        self.calls: list[tuple[str, Any]] = []
        self.topics: list[str] = []
        self.is_closed = False

    async def call(self, _: str, method: str, request: Any, *__: Any, **___: Any) -> Any:
        self.calls.append((method, request))
        await asyncio.sleep(0)
        answer = self._answer(method, request)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else answer.SerializeToString()

    async def brokers(self, topics: list[str]) -> RouteResponse:
        found = [TopicRoute(topic=one) for one in topics if one in self.topics]
        return RouteResponse(topics=found)

    async def route(self, _: str) -> Any:
        class Route:
            topic = TopicRoute(broker_set="set-0")

        return Route

    async def close(self) -> None:
        self.is_closed = True

    def handles(self, method: str = "Ack") -> list[list[tuple[bytes, int, int]]]:
        return [
            [(one.lease, one.queue_offset, one.count) for one in request.handles]
            for name, request in self.calls
            if name == method
        ]


def consumer(
    answer: Callable[[str, Any], Any], topics: str | list[str] = "t"
) -> tuple[SimpleConsumer, Brokers]:
    made = SimpleConsumer("h:1", "g", topics)
    brokers = Brokers(answer)
    made._connection = brokers  # type: ignore[assignment]
    return made, brokers


def message(queue_offset: int, handle: bytes = b"L") -> ReceivedMessage:
    made = ReceivedMessage("t", 0, queue_offset, f"m{queue_offset}", 0, 0, b"", "", (), {}, "")
    made.handle = handle
    return made


def refusing(*bad: int) -> Callable[[str, Any], Any]:
    """Handles with one of these messages are not good."""

    def answer(_: str, request: Any) -> wire.HandleResponse:
        codes = [
            ILLEGAL_HANDLE
            if any(at in bad for at in range(one.queue_offset, one.queue_offset + one.count))
            else SEND_OK
            for one in request.handles
        ]
        return wire.HandleResponse(codes=codes)

    return answer


def received(topic: str, *frames: bytes, attempt: int = 1) -> bytes:
    """One run, of messages as bytes."""
    sizes = [len(Batch(messages=[Message()]).SerializeToString()) + len(one) for one in frames]
    run = wire.RawRun(
        queue_offset=5, log_offset=100, frame_sizes=b"".join(n.to_bytes(4, "little") for n in sizes)
    ).SerializeToString()
    for one in frames:
        run += b"\x7a" + bytes([len(one)]) + one
    head = wire.ReceivedRun(topic=topic, lease=b"L", attempt=attempt).SerializeToString()
    head += b"\x7a" + bytes([len(run)]) + run
    return b"\x7a" + bytes([len(head)]) + head


@on_loop
async def test_neighbours_of_one_lease_are_one_handle() -> None:
    made, brokers = consumer(refusing())
    await made.ack([message(3), message(1), message(2), message(7), message(8, b"M"), message(1)])
    assert brokers.handles() == [[(b"L", 1, 3), (b"L", 7, 1), (b"M", 8, 1)]]
    await made.ack(message(4))
    assert brokers.handles()[1:] == [[(b"L", 4, 1)]]
    await made.ack([])
    assert len(brokers.handles()) == 2


@on_loop
async def test_many_handles_are_several_requests() -> None:
    made, brokers = consumer(refusing())
    await made.nack([message(2 * at) for at in range(2_001)], delay_s=1.5, reason="why")
    assert list(map(len, brokers.handles("Nack"))) == [2_000, 1]
    request = brokers.calls[0][1]
    assert (request.delay_ms, request.reason) == (1_500, "why")


@on_loop
async def test_of_a_handle_that_is_refused_its_messages_are_tried_one_by_one() -> None:
    made, brokers = consumer(refusing(2))
    with pytest.raises(IllegalHandle, match="1 of 5"):
        await made.change_invisible([message(at) for at in (0, 1, 2, 3, 9)], 30)
    shown = brokers.handles("ChangeInvisible")
    assert shown[0] == [(b"L", 0, 4), (b"L", 9, 1)]
    assert shown[1] == [(b"L", at, 1) for at in range(4)]


@on_loop
async def test_what_is_refused_after_an_attempt_without_an_answer_counts_as_done() -> None:
    answers: list[Any] = [OutcomeUnknown("who knows"), refusing(0)]

    def answer(method: str, request: Any) -> Any:
        found = answers.pop(0)
        return found(method, request) if callable(found) else found

    made, brokers = consumer(answer)
    await soon(made.ack(message(0)))
    assert len(brokers.calls) == 2

    def lost(method: str, request: Any) -> Any:
        brokers.unanswered += 1  # the connection tried twice by itself
        return refusing(0)(method, request)

    brokers._answer = lost
    await made.ack(message(0))


@on_loop
async def test_what_cannot_get_better_is_told_at_once() -> None:
    made, brokers = consumer(lambda *_: SubscriptionMismatch("others want something else"))
    with pytest.raises(SubscriptionMismatch):
        await made.receive()
    with pytest.raises(SubscriptionMismatch):
        await made.ack(message(0))
    assert len(brokers.calls) == 2
    with pytest.raises(IllegalHandle, match="m3"):
        await made.ack(message(3, b""))


@on_loop
async def test_messages_have_their_attempt_and_what_cannot_be_read_is_acknowledged() -> None:
    good = Message(body=b"good").SerializeToString()

    def answer(method: str, request: Any) -> Any:
        if method == "Receive":
            return received("t", good, b"\xff\xff", good, attempt=3)
        return refusing()(method, request)

    made, brokers = consumer(answer)
    found = await made.receive()
    assert [(one.queue_offset, one.attempt, one.handle) for one in found] == [
        (5, 3, b"L"),
        (7, 3, b"L"),
    ]
    assert brokers.handles() == [[(b"L", 6, 0)]]
    assert made.unreadable_messages == 1


@on_loop
async def test_several_topics_and_the_groups_retries() -> None:
    good = Message(body=b"x").SerializeToString()

    def answer(_: str, request: Any) -> Any:
        if request.topic == "%RETRY%g" and request.wait_ms:
            return received("%RETRY%g", good)
        return TopicNotFound("no") if request.topic == "b" and request.wait_ms else b""

    made, brokers = consumer(answer, ["a", "b"])
    brokers.topics = ["%RETRY%g"]
    # One of them has failed, another has messages: those come first.
    (found,) = await soon(made.receive(30, wait_s=20))
    assert found.body == b"x"
    asked = [request for _, request in brokers.calls]
    assert {(one.topic, one.messages_max) for one in asked if one.wait_ms} == {
        ("a", 10),
        ("b", 10),
        ("%RETRY%g", 10),
    }
    assert {one.start_position for one in asked if one.topic == "%RETRY%g"} == {1}


@on_loop
async def test_a_failure_of_one_topic_is_told_when_there_is_nothing_else_to_tell() -> None:
    def answer(_: str, request: Any) -> MqError | bytes:
        return TopicNotFound("no") if request.topic == "b" and request.wait_ms else b""

    made, _ = consumer(answer, ["a", "b"])
    with pytest.raises(TopicNotFound):
        await soon(made.receive(wait_s=20))


@on_loop
async def test_a_consumer_that_is_closed_leaves_once_and_does_nothing_more() -> None:
    made, brokers = consumer(lambda *_: b"")
    await made.receive(wait_s=0)
    await made.close()
    await made.close()
    assert brokers.is_closed
    assert [method for method, _ in brokers.calls] == ["Receive", "Leave"]
    with pytest.raises(RuntimeError, match="closed"):
        await made.receive()
    with pytest.raises(RuntimeError, match="closed"):
        await made.ack(message(0))
