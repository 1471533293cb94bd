"""The consumer that is asked: when a message counts as done, on both faces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from mq.client import Consumer as SyncConsumer
from mq.client.cluster.connection import ConnectionOptions
from mq.client.consumer.consumer import Consumer
from mq.client.messages import ReceivedMessage
from mq.errors import NotAssigned, SubscriptionMismatch
from tests.unit.client.consumer.deliveries import TOPIC, assignment, delivery, ref
from tests.unit.client.consumer.scripted_broker import DEADLINE_S, ScriptedConnection
from tests.unit.client.consumer.scripted_session import until

QUEUE = ref(0)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> ScriptedConnection:
    """With ten messages in one queue."""
    scripted = ScriptedConnection()
    scripted.prepared = [assignment((0, 0)), delivery(0, range(10))]
    monkeypatch.setattr(ConnectionOptions, "connect", lambda _: scripted)
    return scripted


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE_S * 2))


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [one.queue_offset for one in messages]


def done_to(consumer: Consumer | SyncConsumer) -> int:
    twin = consumer._client if isinstance(consumer, SyncConsumer) else consumer
    return twin._session.buffer.done_offsets()[QUEUE]


# asyncio


def test_polled_messages_are_done_at_the_next_poll(connection: ScriptedConnection) -> None:
    async def story() -> None:
        async with Consumer("s:1", "g", TOPIC) as consumer:
            assert offsets(await consumer.poll(3, DEADLINE_S)) == [0, 1, 2]
            assert consumer.assignment == {QUEUE}
            assert done_to(consumer) == 0
            assert offsets(await consumer.poll(2)) == [3, 4]
            assert done_to(consumer) == 3
        assert connection.committed() == [{QUEUE: 5}]

    run(story())


def test_an_exception_leaves_what_was_polled_last_to_the_group(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        async def fail() -> None:
            async with Consumer("s:1", "g", TOPIC) as consumer:
                await consumer.poll(3, DEADLINE_S)
                await consumer.poll(3)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert connection.committed() == [{QUEUE: 3}]

    run(story())


def test_without_auto_commit_nothing_is_done_by_polling(connection: ScriptedConnection) -> None:
    async def story() -> None:
        async with Consumer("s:1", "g", TOPIC, auto_commit=False) as consumer:
            messages = await consumer.poll(3, DEADLINE_S)
            messages += await consumer.poll(3)
            assert done_to(consumer) == 0
            consumer.done(messages[1], messages[2])
            assert done_to(consumer) == 0
            consumer.done(messages[0])
            consumer.done(messages[0])
            assert done_to(consumer) == 3
        assert connection.committed() == [{QUEUE: 3}]

    run(story())


def test_a_commit_is_of_all_that_was_polled_or_of_what_is_named(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        async with Consumer("s:1", "g", TOPIC, auto_commit=False) as consumer:
            messages = await consumer.poll(3, DEADLINE_S)
            await consumer.commit([])
            await consumer.commit(messages[:1])
            await consumer.poll(2)
            await consumer.commit()
        # What is durable already is not committed again at the end.
        assert connection.committed() == [{QUEUE: 0}, {QUEUE: 1}, {QUEUE: 5}]

    run(story())


def test_iteration_finishes_each_message_with_the_next(connection: ScriptedConnection) -> None:
    async def story() -> None:
        seen: list[int] = []
        async with Consumer("s:1", "g", TOPIC) as consumer:
            async for message in consumer:
                assert done_to(consumer) == message.queue_offset
                seen.append(message.queue_offset)
                if len(seen) == 4:
                    break
        assert seen == [0, 1, 2, 3]
        assert connection.committed() == [{QUEUE: 4}]

    run(story())


def test_iteration_ends_when_the_consumer_is_closed(connection: ScriptedConnection) -> None:
    async def story() -> None:
        consumer = Consumer("s:1", "g", TOPIC)
        has_all = asyncio.Event()

        async def read() -> None:
            async for message in consumer:
                if message.queue_offset == 9:
                    has_all.set()

        reading = asyncio.create_task(read())
        await has_all.wait()
        await consumer.close()
        await reading
        assert connection.committed() == [{QUEUE: 10}]
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.poll()

    run(story())


@pytest.mark.usefixtures("connection")
def test_a_poll_in_vain_is_empty_after_its_time() -> None:
    async def story() -> None:
        async with Consumer("s:1", "g", TOPIC) as consumer:
            await consumer.poll(100, DEADLINE_S)
            assert await consumer.poll(100, 0.01) == []

    run(story())


def test_the_error_that_ended_the_consumer_is_raised_at_least_once_and_by_each_poll(
    connection: ScriptedConnection,
) -> None:
    connection.prepared = []

    async def story(*, polls: bool) -> None:
        connection.opened = asyncio.Queue()
        consumer = Consumer("s:1", "g", TOPIC)
        await consumer._session.start()
        (await connection.next_call()).end(SubscriptionMismatch("a and b"))
        if polls:
            for _ in range(2):
                with pytest.raises(SubscriptionMismatch, match="a and b"):
                    await consumer.poll(timeout_s=DEADLINE_S)
            await consumer.close()
            return
        await until(lambda: consumer._session.buffer.failure is not None)
        with pytest.raises(SubscriptionMismatch, match="a and b"):
            await consumer.close()

    run(story(polls=True))
    run(story(polls=False))


def test_a_seek_makes_old_messages_count_no_more(connection: ScriptedConnection) -> None:
    async def story() -> None:
        async with Consumer("s:1", "g", TOPIC) as consumer:
            await consumer.poll(5, DEADLINE_S)
            call = await connection.next_call()
            await call.started()
            await consumer.seek(TOPIC, 0, 2)
            await call.heard("seek")
            call.send(assignment((0, 2, 1)), delivery(0, [2, 3], epoch=1))
            assert offsets(await consumer.poll(5, DEADLINE_S)) == [2, 3]
            assert done_to(consumer) == 2
            with pytest.raises(NotAssigned):
                await consumer.seek(TOPIC, 7, 0)

    run(story())


def test_seeking_by_name_or_time_moves_all_queues_of_a_topic(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        async with Consumer("s:1", "g", TOPIC) as consumer:
            seeks = [
                (consumer.seek_to_earliest(), 0),
                (consumer.seek_to_latest(TOPIC), connection.end),
                (consumer.seek_to_time(33), 33),
            ]
            call = None
            for epoch, (seek, at) in enumerate(seeks, start=1):
                await seek
                if call is None:
                    call = await connection.next_call()
                    await call.started()
                (place,) = (await call.heard("seek")).seek.positions
                assert place.queue_offset == at
                call.send(assignment((0, at, epoch)))

    run(story())


@pytest.mark.usefixtures("connection")
def test_a_pause_stops_polling_and_not_the_consumer() -> None:
    async def story() -> None:
        async with Consumer("s:1", "g", TOPIC) as consumer:
            await consumer.poll(1, DEADLINE_S)
            consumer.pause((TOPIC, 0))
            assert await consumer.poll(5, 0.01) == []
            consumer.resume(QUEUE)
            assert offsets(await consumer.poll(2)) == [1, 2]
            consumer.pause()
            assert await consumer.poll(5, 0.01) == []
            consumer.resume()
            assert offsets(await consumer.poll(2)) == [3, 4]

    run(story())


# Threads


def test_the_synchronous_face_polls_commits_and_closes_as_the_other(
    connection: ScriptedConnection,
) -> None:
    with SyncConsumer("s:1", "g", TOPIC) as consumer:
        assert offsets(consumer.poll(3, DEADLINE_S)) == [0, 1, 2]
        assert consumer.assignment == {QUEUE}
        assert offsets(consumer.poll(2)) == [3, 4]
        assert done_to(consumer) == 3
        consumer.commit()
        assert offsets([next(consumer), next(consumer)]) == [5, 6]
        assert len(consumer.poll(100)) == 3
    assert connection.committed() == [{QUEUE: 5}, {QUEUE: 10}]
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll()


def test_the_synchronous_face_without_auto_commit_commits_what_is_done_alone(
    connection: ScriptedConnection,
) -> None:
    with SyncConsumer("s:1", "g", TOPIC, auto_commit=False) as consumer:
        first, *_ = consumer.poll(3, DEADLINE_S)
        consumer.done(first)
    assert connection.committed() == [{QUEUE: 1}]


def test_the_synchronous_face_leaves_what_failed_to_the_group(
    connection: ScriptedConnection,
) -> None:
    def fail() -> None:
        with SyncConsumer("s:1", "g", TOPIC, auto_commit=False) as consumer:
            consumer.done(*consumer.poll(2, DEADLINE_S))
            consumer.poll(2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert connection.committed() == [{QUEUE: 2}]


def test_synchronous_iteration_ends_when_another_thread_closes(
    connection: ScriptedConnection,
) -> None:
    consumer = SyncConsumer("s:1", "g", TOPIC)
    seen: list[int] = []
    has_all = threading.Event()

    def read() -> None:
        for message in consumer:
            seen.append(message.queue_offset)
            if len(seen) == 10:
                has_all.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert has_all.wait(DEADLINE_S)
    consumer.close()
    reader.join(DEADLINE_S)
    assert not reader.is_alive()
    assert connection.committed() == [{QUEUE: 10}]
