"""The SimpleConsumer against answers that a test writes: handles, refusals, attempts without an
answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mq.client import ReceivedMessage
from mq.client.simple.consumer import SimpleConsumer
from mq.errors import (
    IllegalHandle,
    MqError,
    OutcomeUnknown,
    PermissionDenied,
    SubscriptionMismatch,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.message_pb2 import Batch, Message
from mq.wire.v1.status_pb2 import ILLEGAL_HANDLE, SEND_OK
from tests.support.consensus import on_loop, soon
from tests.unit.client.fake_channels import FakeChannels
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from collections.abc import Callable


def consumer(
    answer: Callable[[str, str, Any], Any], topics: str | list[str] = "t", *sets: str
) -> tuple[SimpleConsumer, FakeChannels]:
    """All topics are in all sets."""
    brokers = FakeChannels(answer, *sets)
    for topic in [topics] if isinstance(topics, str) else topics:
        brokers.have(topic, *brokers.sets)
    made = SimpleConsumer(f"{brokers.sets[0]}:1", "g", topics)
    brokers.replace_those_of(made._connection)
    return made, brokers


def handles(
    brokers: FakeChannels, method: str = "Ack", broker_set: str = "set-0"
) -> list[list[tuple[bytes, int, int]]]:
    return [
        [(one.lease, one.queue_offset, one.count) for one in request.handles]
        for name, request in brokers.asked(method)
        if name == broker_set
    ]


def message(queue_offset: int, handle: bytes = b"L", broker_set: str = "set-0") -> ReceivedMessage:
    name = f"{broker_set}:{queue_offset}"
    made = ReceivedMessage("t", 0, queue_offset, name, 0, 0, b"", "", (), {}, "")
    made.handle = handle
    return made


def refusing(*bad: int) -> Callable[[str, str, Any], Any]:
    """Handles with one of these messages are not good."""

    def answer(_: str, __: str, request: Any) -> wire.HandleResponse:
        codes = [
            ILLEGAL_HANDLE
            if any(at in bad for at in range(one.queue_offset, one.queue_offset + one.count))
            else SEND_OK
            for one in request.handles
        ]
        return wire.HandleResponse(codes=codes)

    return answer


def received(topic: str, *frames: bytes, attempt: int = 1, lease: bytes = b"L") -> bytes:
    """One run, of messages as bytes; runs that follow each other are one answer."""
    sizes = [len(Batch(messages=[Message()]).SerializeToString()) + len(one) for one in frames]
    run = wire.RawRun(
        queue_offset=5, log_offset=100, frame_sizes=b"".join(n.to_bytes(4, "little") for n in sizes)
    ).SerializeToString()
    for one in frames:
        run += b"\x7a" + bytes([len(one)]) + one
    head = wire.ReceivedRun(topic=topic, lease=lease, attempt=attempt).SerializeToString()
    head += b"\x7a" + bytes([len(run)]) + run
    return b"\x7a" + bytes([len(head)]) + head


@on_loop
async def test_neighbours_of_one_lease_are_one_handle() -> None:
    made, brokers = consumer(refusing())
    await made.ack([message(3), message(1), message(2), message(7), message(8, b"M"), message(1)])
    assert handles(brokers) == [[(b"L", 1, 3), (b"L", 7, 1), (b"M", 8, 1)]]
    await made.ack(message(4))
    assert handles(brokers)[1:] == [[(b"L", 4, 1)]]
    await made.ack([])
    assert len(handles(brokers)) == 2


@on_loop
async def test_many_handles_are_several_requests() -> None:
    made, brokers = consumer(refusing())
    await made.nack([message(2 * at) for at in range(2_001)], delay_s=1.5, reason="why")
    assert list(map(len, handles(brokers, "Nack"))) == [2_000, 1]
    request = brokers.calls[0][2]
    assert (request.delay_ms, request.reason) == (1_500, "why")


@on_loop
async def test_of_a_handle_that_is_refused_its_messages_are_tried_one_by_one() -> None:
    made, brokers = consumer(refusing(2))
    with pytest.raises(IllegalHandle, match="1 of 5"):
        await made.change_invisible([message(at) for at in (0, 1, 2, 3, 9)], 30)
    shown = handles(brokers, "ChangeInvisible")
    assert shown[0] == [(b"L", 0, 4), (b"L", 9, 1)]
    assert shown[1] == [(b"L", at, 1) for at in range(4)]


@on_loop
async def test_a_handle_that_is_refused_after_an_unanswered_attempt_counts_as_done() -> None:
    answers: list[Any] = [OutcomeUnknown("who knows"), refusing(0)]

    def answer(name: str, method: str, request: Any) -> Any:
        found = answers.pop(0)
        return found(name, method, request) if callable(found) else found

    made, brokers = consumer(answer)
    await soon(made.ack(message(0)))
    assert len(brokers.calls) == 2

    answers += [Unreachable("reset"), refusing(0)]  # the connection tries again by itself
    await made.ack(message(0))
    answers += [Unreachable("reset"), refusing(0)]
    with pytest.raises(IllegalHandle):
        # Nothing is spent by this: what is refused was refused for a reason.
        await made.change_invisible(message(0), 30)


@on_loop
async def test_a_permanent_error_is_raised_at_once() -> None:
    made, brokers = consumer(lambda *_: SubscriptionMismatch("others want something else"))
    with pytest.raises(SubscriptionMismatch):
        await made.receive()
    with pytest.raises(SubscriptionMismatch):
        await made.ack(message(0))
    assert len(brokers.calls) == 2
    with pytest.raises(IllegalHandle, match="set-0:3"):
        await made.ack(message(3, b""))


@on_loop
async def test_messages_have_their_attempt_and_what_cannot_be_read_is_acknowledged() -> None:
    good = Message(body=b"good").SerializeToString()

    def answer(name: str, method: str, request: Any) -> Any:
        if method == "Receive":
            return received("t", good, b"\xff\xff", good, attempt=3)
        return refusing()(name, method, request)

    made, brokers = consumer(answer)
    found = await made.receive()
    assert [(one.queue_offset, one.attempt, one.handle) for one in found] == [
        (5, 3, b"L"),
        (7, 3, b"L"),
    ]
    assert handles(brokers) == [[(b"L", 6, 1)]]
    assert made.unreadable_messages == 1


@on_loop
async def test_a_batch_has_all_messages_of_a_receive_and_one_acknowledgement() -> None:
    one, two, three = (Message(body=body).SerializeToString() for body in (b"1", b"2", b"3"))

    def answer(name: str, method: str, request: Any) -> Any:
        if method == "Receive":
            return received("t", one, two) + received("t", three, lease=b"M")
        return refusing(6)(name, method, request)

    made, brokers = consumer(answer)
    batch = await made.receive_batch()
    assert [request.messages_max for _, request in brokers.asked("Receive")] == [256]
    assert (len(batch), batch.bodies) == (3, [b"1", b"2", b"3"])
    assert [message.handle for message in batch] == [b"L", b"L", b"M"]
    assert [message.body for message in batch[1:]] == [b"2", b"3"]
    with pytest.raises(IllegalHandle, match="1 of 3"):
        await batch.ack()
    # Together, and then one by one what was refused.
    together = [(b"L", 5, 2), (b"M", 5, 1)]
    assert handles(brokers) == [together, [(b"L", 5, 1), (b"L", 6, 1)]]
    brokers.answer = refusing()
    await made.nack(batch)
    await made.ack(batch.messages)
    assert handles(brokers, "Nack") == handles(brokers)[2:] == [together]


@on_loop
async def test_a_batch_leaves_out_messages_that_cannot_be_read() -> None:
    good = Message(body=b"good").SerializeToString()

    def answer(name: str, method: str, request: Any) -> Any:
        if method == "Receive":
            return received("t", good, b"\xff\xff", good) + received("t", b"\xff\xff", lease=b"M")
        return refusing()(name, method, request)

    made, brokers = consumer(answer)
    batch = await made.receive_batch(10)
    assert (len(batch), batch.bodies, len(batch.parts)) == (2, [b"good"] * 2, 1)
    await batch.ack()
    assert handles(brokers) == [[(b"L", 6, 1), (b"M", 5, 1)], [(b"L", 5, 1), (b"L", 7, 1)]]


@on_loop
async def test_a_batch_without_messages_has_nothing_to_acknowledge() -> None:
    made, brokers = consumer(lambda *_: b"")
    batch = await made.receive_batch(wait_s=0)
    assert (not batch, list(batch), batch.bodies) == (True, [], [])
    await batch.ack()
    assert handles(brokers) == []


def test_messages_that_are_kept_for_the_next_receive_are_renewed_and_lost_ones_left_out() -> None:
    async def scenario() -> None:
        good = Message(body=b"x").SerializeToString()
        given: set[str] = set()

        def answer(name: str, method: str, request: Any) -> Any:
            if method == "QueryOffsets":
                return wire.QueryOffsetsResponse()
            if method == "Receive":
                is_first = name not in given
                given.add(name)
                return received("t", good, good, good) if is_first else b""
            return refusing(*[6] * (name == "b"))(name, method, request)

        made, brokers = consumer(answer, "t", "a", "b")
        first = await made.receive_batch(2, wait_s=0)
        await asyncio.sleep(2)
        second = await made.receive_batch(10, wait_s=0)
        assert brokers.asked("ChangeInvisible")
        found = [(one.broker_set, one.queue_offset) for one in [*first, *second]]
        assert sorted(found) == [
            (name, at) for name in "ab" for at in (5, 6, 7) if (name, at) != ("b", 6)
        ]

    run(scenario())


@on_loop
async def test_several_topics_and_the_groups_retries() -> None:
    good = Message(body=b"x").SerializeToString()

    def answer(_: str, __: str, request: Any) -> Any:
        if request.topic == "%RETRY%g" and request.wait_ms:
            return received("%RETRY%g", good)
        return TopicNotFound("no") if request.topic == "b" and request.wait_ms else b""

    made, brokers = consumer(answer, ["a", "b"])
    brokers.have("%RETRY%g", "set-0")
    # One of them has failed, another has messages: those come first.
    (found,) = await soon(made.receive(30, wait_s=20))
    assert found.body == b"x"
    asked = [request for _, request in brokers.asked("Receive")]
    assert {(one.topic, one.messages_max) for one in asked if one.wait_ms} == {
        ("a", 10),
        ("b", 10),
        ("%RETRY%g", 10),
    }
    assert {one.start_position for one in asked if one.topic == "%RETRY%g"} == {1}


@on_loop
async def test_a_failure_of_one_topic_is_raised_when_the_others_have_no_messages() -> None:
    def answer(_: str, __: str, request: Any) -> MqError | bytes:
        return TopicNotFound("no") if request.topic == "b" and request.wait_ms else b""

    made, _ = consumer(answer, ["a", "b"])
    with pytest.raises(TopicNotFound):
        await soon(made.receive(wait_s=20))


@on_loop
async def test_a_consumer_that_is_closed_leaves_once_and_does_nothing_more() -> None:
    def answer(_: str, method: str, __: Any) -> Any:
        return wire.LeaveResponse() if method == "Leave" else b""

    made, brokers = consumer(answer)
    await made.receive(wait_s=0)
    await made.close()
    await made.close()
    assert brokers.is_closed
    assert [method for _, method, _ in brokers.calls] == ["Receive", "Leave"]
    with pytest.raises(RuntimeError, match="closed"):
        await made.receive()
    with pytest.raises(RuntimeError, match="closed"):
        await made.ack(message(0))


@on_loop
async def test_each_message_is_settled_in_its_own_set_and_all_sets_are_asked() -> None:
    def answer(name: str, method: str, request: Any) -> Any:
        if name == "b":
            return SubscriptionMismatch("who are you")
        return refusing(3)(name, method, request)

    made, brokers = consumer(answer, "t", "a", "b", "c")
    mixed = [message(at, broker_set=name) for at in (1, 3) for name in "abc"]
    with pytest.raises(SubscriptionMismatch, match="broker set b: who are you"):
        await made.ack(mixed)
    assert handles(brokers, "Ack", "a") == [[(b"L", 1, 1), (b"L", 3, 1)]]
    assert handles(brokers, "Ack", "c") == handles(brokers, "Ack", "a")
    with pytest.raises(IllegalHandle, match="2 of 4"):
        await made.ack([one for one in mixed if one.broker_set != "b"])


@on_loop
async def test_messages_of_all_sets_come_with_the_name_of_theirs() -> None:
    good = Message(body=b"x").SerializeToString()

    def answer(_: str, method: str, __: Any) -> Any:
        is_query = method == "QueryOffsets"
        return wire.QueryOffsetsResponse() if is_query else received("t", good)

    made, brokers = consumer(answer, "t", "a", "b")
    found = await made.receive(10, wait_s=0)
    # What was asked for was not found everywhere: there is no more.
    assert sorted(one.queue.broker_set for one in found) == ["a", "b"]
    assert {request.messages_max for _, request in brokers.asked("Receive")} == {5}
    assert {request.start_position for _, request in brokers.asked("Receive")} == {0}


@on_loop
async def test_a_set_that_gets_the_topic_later_is_read_from_the_oldest_message() -> None:
    """The group knows it elsewhere."""

    def answer(name: str, method: str, _: Any) -> Any:
        if method == "QueryOffsets":
            places = [wire.QueuePosition(topic="t", queue_offset=7)]
            return wire.QueryOffsetsResponse(positions=places if name == "a" else [])
        return b""

    made, brokers = consumer(answer, "t", "a", "b")
    assert await made.receive(wait_s=0) == []
    starts = {name: request.start_position for name, request in brokers.asked("Receive")}
    assert starts == {"a": wire.START_LATEST, "b": wire.START_EARLIEST}


@on_loop
async def test_a_missing_or_unreadable_topic_is_asked_for_at_its_set() -> None:
    made, brokers = consumer(lambda *_: TopicNotFound("no such topic"), "t", "a", "b")
    brokers.topics = {}
    with pytest.raises(TopicNotFound, match="no such topic"):
        await soon(made.receive(wait_s=20))
    assert len({name for name, _ in brokers.asked("Receive")}) == 1
    made, brokers = consumer(lambda *_: PermissionDenied("not to be read"), "t", "a")
    brokers.have("t", "a", is_readable=False)
    with pytest.raises(PermissionDenied):
        await soon(made.receive(wait_s=20))


async def nothing_for(seconds: float) -> bytes:
    await asyncio.sleep(seconds)
    return b""


def test_a_broker_that_has_just_started_does_not_make_a_set_be_forgotten() -> None:
    async def scenario() -> None:
        def answer(_: str, method: str, request: Any) -> Any:
            if method == "QueryOffsets":
                return wire.QueryOffsetsResponse()
            return nothing_for(request.wait_ms / 1000)

        made, brokers = consumer(answer, "t", "a", "b")
        await made.receive(wait_s=0)

        async def asked_after(wait_s: float) -> set[str]:
            await made.receive(wait_s=wait_s)
            brokers.calls.clear()
            await made.receive(wait_s=0)
            return {name for name, _ in brokers.asked("Receive")}

        assert await asked_after(0) == {"a", "b"}
        brokers.have("t", "a")
        # It knows the set, and that it has the topic no more.
        assert await asked_after(6) == {"a"}
        brokers.have("t", "a", "b")
        assert await asked_after(6) == {"a", "b"}
        brokers.sets = ("a",)
        brokers.have("t", "a")
        assert await asked_after(6) == {"a", "b"}
        brokers.topics = {}
        assert await asked_after(6) == {"b"}
        brokers.have("t", "a")
        # No broker has told of it for longer than a set may be away.
        assert await asked_after(130) == {"a"}

    run(scenario())
