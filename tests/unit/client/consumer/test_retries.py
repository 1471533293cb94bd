"""Failed messages on their way to the broker: once, and in hand until it has them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq.client import Consumer as SyncConsumer
from mq.client.cluster.connection import ConnectionOptions
from mq.client.consumer import retries as retries_module
from mq.client.consumer.consumer import Consumer
from mq.client.consumer.prefetch_queue import InFlight
from mq.client.consumer.retries import Failure
from mq.errors import (
    IllegalRequest,
    MessageTooLarge,
    MqError,
    NotLeader,
    OutcomeUnknown,
    SubscriptionMismatch,
    UnknownMember,
    Unreachable,
)
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1 import status_pb2
from tests.unit.client.consumer.deliveries import SET, TOPIC, assignment, delivery, ref
from tests.unit.client.consumer.scripted_broker import (
    DEADLINE_S,
    ScriptedCall,
    ScriptedConnection,
    retried,
)
from tests.unit.client.consumer.scripted_session import ScriptedSession, run, shorten_waits, until

QUEUE = ref(0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)


async def session_with(
    count: int = 5, **options: Any
) -> tuple[ScriptedSession, ScriptedCall, list[InFlight]]:
    scripted = ScriptedSession(**options)
    call = await scripted.join((0, 0))
    call.send(delivery(0, range(count)))
    return scripted, call, await scripted.take(count)


def done_to(scripted: ScriptedSession) -> int:
    return scripted.buffer.done_offsets()[QUEUE]


def fail(scripted: ScriptedSession, *taken: InFlight, delay_ms: int | None = None) -> None:
    for one in taken:
        scripted.session.retries.add(Failure(one, delay_ms, "why"))


def offsets(scripted: ScriptedSession) -> list[list[int]]:
    return [[m.queue_offset for m in one.messages] for one in scripted.connection.retry_requests()]


@pytest.mark.parametrize(
    "error", [NotLeader(None, None), OutcomeUnknown(""), Unreachable(""), UnknownMember("")]
)
def test_the_same_request_is_sent_until_it_is_answered(error: MqError) -> None:
    async def story() -> None:
        scripted, _, taken = await session_with()
        answer, left = scripted.connection.answers["Retry"], [error] * 4

        def at_last(request: Any) -> Any:
            if left:
                raise left.pop()
            return answer(request)

        scripted.connection.answers["Retry"] = at_last
        fail(scripted, taken[0])
        await scripted.session.retries.flush(SET, 10)
        assert offsets(scripted) == [[0]] * 5
        assert len({one.sequence for one in scripted.connection.retry_requests()}) == 1
        assert done_to(scripted) == 1
        await scripted.session.close()

    run(story())


def test_messages_that_fail_during_a_request_go_with_the_next() -> None:
    async def story() -> None:
        scripted, _, taken = await session_with()
        fail(scripted, *taken[:2])
        await scripted.session.retries.flush(SET, 10)
        fail(scripted, *taken[2:])
        await scripted.session.commit()
        assert offsets(scripted) == [[0, 1], [2, 3, 4]]
        first, second = (one.sequence for one in scripted.connection.retry_requests())
        assert second == first + 1
        assert scripted.connection.committed() == [{QUEUE: 5}]
        await scripted.session.close()

    run(story())


def test_numbers_go_on_when_a_member_is_started_again() -> None:
    async def story() -> None:
        numbers = []
        for _ in range(2):
            scripted, _, taken = await session_with()
            fail(scripted, taken[0])
            await scripted.session.close()
            numbers.append(scripted.connection.retry_requests()[0].sequence)
        assert numbers[0] < numbers[1] < 1 << 63

    run(story())


def test_large_messages_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries_module, "_BYTES_MAX", 2 * retries_module._COPY_BYTES + 100)

    async def story() -> None:
        scripted, _, taken = await session_with()
        fail(scripted, *taken)
        await scripted.session.retries.flush(SET, 10)
        assert offsets(scripted) == [[0, 1], [2, 3], [4]]
        await scripted.session.close()

    run(story())


def test_failures_that_exceed_one_request_go_in_several() -> None:
    async def story() -> None:
        scripted, _, taken = await session_with(3)
        answer = scripted.connection.answers["Retry"]

        def refuse(request: Any) -> Any:
            if len(request.messages) > 1 or request.messages[0].queue_offset == 2:
                raise MessageTooLarge("")
            return answer(request)

        scripted.connection.answers["Retry"] = refuse
        fail(scripted, *taken, delay_ms=0)
        await scripted.session.retries.flush(SET, 10)
        assert offsets(scripted) == [[0, 1, 2], [0], [1], [2]]
        assert done_to(scripted) == 2
        # What the broker will not take is tried again in place.
        (again,) = await scripted.take(1)
        assert (again.message.queue_offset, again.message.attempt) == (2, 2)
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize("error", [IllegalRequest(""), KeyError("a mistake")])
def test_refused_messages_are_retried_in_place(error: Exception) -> None:
    async def story() -> None:
        scripted, _, taken = await session_with(1)

        def refuse(_: Any) -> Any:
            raise error

        scripted.connection.answers["Retry"] = refuse
        # Who waits already has to hear that there is a time to wait for.
        waiting = asyncio.create_task(scripted.session.take(1, None))
        await asyncio.sleep(0)
        fail(scripted, taken[0], delay_ms=1)
        (again,) = await waiting
        assert again.message.queue_offset == 0
        scripted.buffer.done([again])
        assert done_to(scripted) == 1
        await scripted.session.close()

    run(story())


def test_a_retry_missing_from_the_answer_is_delivered_again() -> None:
    async def story() -> None:
        scripted, _, taken = await session_with(1)
        scripted.connection.answers["Retry"] = lambda _: retried()
        fail(scripted, taken[0], delay_ms=1)
        assert (await scripted.take(1))[0].message.queue_offset == 0
        await scripted.session.close()

    run(story())


def test_each_message_has_its_own_answer() -> None:
    async def story() -> None:
        scripted, _, taken = await session_with(4)
        scripted.connection.answers["Retry"] = lambda _: retried(
            wire.RetryResult(attempts=1, deliver_at_ms=1),
            wire.RetryResult(code=status_pb2.MESSAGE_NOT_FOUND),
            wire.RetryResult(attempts=17),
            wire.RetryResult(code=status_pb2.NOT_ASSIGNED),
        )
        fail(scripted, *taken)
        await scripted.session.retries.flush(SET, 10)
        # The last one is somebody else's: it is not done here, and not in hand.
        assert done_to(scripted) == 3
        assert taken[0].queue.running == 0
        await scripted.session.close()

    run(story())


def test_messages_that_a_seek_made_void_are_not_sent() -> None:
    async def story() -> None:
        scripted, _, taken = await session_with(2)
        scripted.buffer.seek({QUEUE: 0})
        fail(scripted, *taken)
        await scripted.session.retries.flush(SET, 10)
        assert offsets(scripted) == []
        assert taken[0].queue.running == 0
        await scripted.session.close()

    run(story())


def test_a_close_without_a_broker_leaves_the_message_to_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq.client.consumer.group_session._GOODBYE_S_MAX", 0.05)

    async def story() -> None:
        scripted, _, taken = await session_with(3)

        def never(_: Any) -> Any:
            raise Unreachable("")

        scripted.connection.answers["Retry"] = never
        scripted.buffer.done([taken[0], taken[2]])
        fail(scripted, taken[1])
        await scripted.session.close()
        assert scripted.connection.committed() in ([], [{QUEUE: 1}])
        assert scripted.session.retries._tasks[SET].done()

    run(story())


def test_a_consumer_that_has_ended_asks_no_more() -> None:
    async def story() -> None:
        scripted, call, taken = await session_with(1)

        def unknown(_: Any) -> Any:
            raise UnknownMember("")

        scripted.connection.answers["Retry"] = unknown
        fail(scripted, taken[0])
        await until(lambda: len(scripted.connection.retry_requests()) > 1)
        call.end(SubscriptionMismatch("another"))
        await until(scripted.session.retries._tasks[SET].done)
        assert done_to(scripted) == 0
        await scripted.session.close()

    run(story())


def test_a_queue_that_leaves_is_released_when_the_broker_has_what_failed() -> None:
    async def story() -> None:
        scripted, call, taken = await session_with(1)
        answer, is_mended = scripted.connection.answers["Retry"], False

        def when_mended(request: Any) -> Any:
            if not is_mended:
                raise NotLeader(None, None)
            return answer(request)

        scripted.connection.answers["Retry"] = when_mended
        fail(scripted, taken[0])
        call.send(assignment())
        await until(lambda: scripted.buffer.assignment == set())
        assert QUEUE in scripted.buffer.positions(SET)
        is_mended = True
        assert await call.progress() == {0: 1}
        await call.heard("released")
        await scripted.session.close()

    run(story())


def test_a_polled_message_is_given_back_and_counts_as_done_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = ScriptedConnection()
    connection.prepared = [assignment((0, 0)), delivery(0, range(3))]
    monkeypatch.setattr(ConnectionOptions, "connect", lambda _: connection)

    async def story() -> None:
        async with Consumer("s:1", "g", TOPIC) as consumer:
            found: list[Any] = []
            while len(found) < 3:
                found += await consumer.poll(1, DEADLINE_S)
                consumer.nack(found[-1], 2.5, "later")
                consumer.nack(found[-1])  # it is not in hand any more
            await consumer.commit()
        assert connection.committed()[0] == {QUEUE: 3}
        sent = [one for request in connection.retry_requests() for one in request.messages]
        assert [(one.queue_offset, one.delay_ms, one.reason) for one in sent] == [
            (at, 2_500, "later") for at in range(3)
        ]

    run(story())


def test_a_polled_message_of_an_ordered_group_comes_again_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = ScriptedConnection()
    connection.prepared = [assignment((0, 0)), delivery(0, range(2))]
    monkeypatch.setattr(ConnectionOptions, "connect", lambda _: connection)
    with SyncConsumer("s:1", "g", TOPIC, mode="ordered") as consumer:
        (first,) = consumer.poll(2, DEADLINE_S)
        consumer.nack(first, 0)
        (again,) = consumer.poll(2, DEADLINE_S)
        assert (again.queue_offset, first.attempt, again.attempt) == (0, 1, 2)
        (last,) = consumer.poll(2, DEADLINE_S)
        assert last.queue_offset == 1
    assert connection.retry_requests() == []
