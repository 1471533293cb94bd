"""The consumer that calls: side by side, in-order commits, another attempt for what failed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mq.client import MessageBatch
from mq.client import PushConsumer as SyncPushConsumer
from mq.client.cluster.connection import ConnectionOptions
from mq.client.consumer.push import PushConsumer
from mq.client.consumer.retries import Nack, doubled_s
from mq.client.lifecycle import background
from mq.client.messages import ReceivedMessage
from mq.errors import (
    IllegalConfig,
    NotLeader,
    SubscriptionMismatch,
    TopicNotFound,
    Unauthenticated,
    Unreachable,
)
from tests.unit.client.consumer.deliveries import TOPIC, assignment, delivery, ref
from tests.unit.client.consumer.scripted_broker import DEADLINE_S, ScriptedConnection

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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 # nobody sets an event
            await asyncio.sleep(0.001)


def done_to(consumer: PushConsumer | SyncPushConsumer) -> int:
    twin = consumer._client if isinstance(consumer, SyncPushConsumer) else consumer
    return twin._session.buffer.done_offsets()[QUEUE]


# asyncio


def test_handlers_run_side_by_side_and_the_offset_follows_in_order(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        gates = [asyncio.Event() for _ in range(10)]
        begun: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            begun.append(message.queue_offset)
            await gates[message.queue_offset].wait()

        async with PushConsumer("s:1", "g", TOPIC, handle, tasks=4) as consumer:
            assert consumer.assignment == {QUEUE}
            await until(lambda: len(begun) == 4)
            for at in (1, 2, 3):
                gates[at].set()
            await until(lambda: len(begun) == 7)
            assert done_to(consumer) == 0
            gates[0].set()
            await until(lambda: done_to(consumer) == 4)
            for gate in gates:
                gate.set()
            await until(lambda: done_to(consumer) == 10)
        assert begun == list(range(10))
        assert connection.committed() == [{QUEUE: 10}]

    run(story())


def test_a_failed_message_goes_back_and_nothing_behind_it_is_committed_before(
    connection: ScriptedConnection, caplog: pytest.LogCaptureFixture
) -> None:
    is_mended = False
    answer = connection.answers["Retry"]

    def when_mended(request: Any) -> Any:
        if not is_mended:
            raise NotLeader(None, None)
        return answer(request)

    connection.answers["Retry"] = when_mended

    async def story() -> None:
        nonlocal is_mended
        attempts: Counter[int] = Counter()

        async def handle(message: ReceivedMessage) -> None:
            attempts[message.queue_offset] += 1
            if message.queue_offset == 2:
                raise ValueError("no such customer")

        async with PushConsumer("s:1", "g", TOPIC, handle) as consumer:
            await until(lambda: attempts[9] == 1 and len(connection.retry_requests()) >= 3)
            assert done_to(consumer) == 2
            is_mended = True
            await until(lambda: done_to(consumer) == 10)
        assert set(attempts.values()) == {1}
        assert connection.committed() == [{QUEUE: 10}]

    with caplog.at_level(logging.ERROR):
        run(story())
    requests = connection.retry_requests()
    assert len({one.sequence for one in requests}) == 1
    (failed,) = requests[0].messages
    assert (failed.topic, failed.queue_id, failed.queue_offset) == (TOPIC, 0, 2)
    assert (failed.HasField("delay_ms"), failed.reason) == (False, "ValueError: no such customer")
    assert "message set-0:20, at 2 of queue 0 of topic orders, attempt 1" in caplog.text
    assert "no such customer" in caplog.text


@pytest.mark.parametrize("returns", [False, True])
def test_a_handler_says_when_it_wants_the_message_back(
    connection: ScriptedConnection, *, returns: bool
) -> None:
    async def story() -> None:
        async def handle(message: ReceivedMessage) -> Nack | None:
            if message.queue_offset == 3:
                nack = Nack("closed", delay_s=1.5)
                if returns:
                    return nack
                raise nack
            return None

        async with PushConsumer("s:1", "g", TOPIC, handle) as consumer:
            await until(lambda: done_to(consumer) == 10)

    run(story())
    (request,) = connection.retry_requests()
    assert [(one.queue_offset, one.delay_ms, one.reason) for one in request.messages] == [
        (3, 1_500, "closed")
    ]


def test_in_ordered_mode_one_message_of_a_queue_is_at_work_and_a_failed_one_is_waited_for(
    connection: ScriptedConnection,
) -> None:
    connection.prepared = [assignment((0, 0), (1, 0)), *(delivery(q, range(10)) for q in (0, 1))]

    async def story() -> None:
        working: Counter[int] = Counter()
        seen: dict[int, list[int]] = {0: [], 1: []}

        async def handle(message: ReceivedMessage) -> None:
            working[message.queue_id] += 1
            assert working[message.queue_id] == 1
            await asyncio.sleep(0)
            working[message.queue_id] -= 1
            seen[message.queue_id].append(message.queue_offset)
            if seen[message.queue_id].count(message.queue_offset) < 2:
                raise ValueError

        options: dict[str, Any] = {"mode": "ordered", "retry_delay_s": 0.0}
        async with PushConsumer("s:1", "g", TOPIC, handle, **options):
            await until(lambda: all(len(one) == 20 for one in seen.values()))
        twice = [at for at in range(10) for _ in range(2)]
        assert seen == {0: twice, 1: twice}

    run(story())


def test_a_close_waits_for_handlers_at_work_and_takes_nothing_new(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        gate, begun = asyncio.Event(), list[int]()

        async def handle(message: ReceivedMessage) -> None:
            begun.append(message.queue_offset)
            await gate.wait()

        consumer = PushConsumer("s:1", "g", TOPIC, handle, tasks=3)
        await consumer.start()
        await until(lambda: len(begun) == 3)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        gate.set()
        await closing
        await consumer.join()
        assert begun == [0, 1, 2]
        assert connection.committed() == [{QUEUE: 3}]
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.start()

    run(story())


def test_a_close_with_a_time_limit_leaves_to_the_group_what_is_not_done(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if message.queue_offset == 1:
                begun.set()
                await asyncio.Event().wait()

        consumer = PushConsumer("s:1", "g", TOPIC, handle, tasks=1)
        await consumer.start()
        await begun.wait()
        await consumer.close(timeout_s=0.01)
        assert connection.committed() == [{QUEUE: 1}]

    run(story())


def test_a_message_that_waits_for_its_next_attempt_does_not_hold_up_a_close(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        def handle(message: ReceivedMessage) -> None:
            if message.queue_offset == 3:
                raise ValueError

        options: dict[str, Any] = {"mode": "broadcast", "retry_delay_s": 1_000}
        consumer = PushConsumer("s:1", "g", TOPIC, handle, tasks=1, **options)
        await consumer.start()
        await until(lambda: done_to(consumer) == 3)
        await consumer.close()
        assert done_to(consumer) == 3
        assert connection.retry_requests() == []

    run(story())


def test_a_handler_that_is_cancelled_from_within_has_failed(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        attempts: Counter[int] = Counter()

        async def handle(message: ReceivedMessage) -> None:
            attempts[message.queue_offset] += 1
            if message.queue_offset == 0:
                raise asyncio.CancelledError

        async with PushConsumer("s:1", "g", TOPIC, handle) as consumer:
            await until(lambda: done_to(consumer) == 10)
        assert attempts[0] == 1
        (request,) = connection.retry_requests()
        assert request.messages[0].reason == "CancelledError"

    run(story())


@pytest.mark.usefixtures("connection")
def test_a_handler_cannot_close_its_consumer() -> None:
    async def story() -> None:
        errors: list[Exception] = []

        async def handle(_: ReceivedMessage) -> None:
            try:
                await consumer.close()
            except RuntimeError as error:
                errors.append(error)

        consumer = PushConsumer("s:1", "g", TOPIC, handle)
        async with consumer:
            await until(lambda: len(errors) == 10)
        assert "wait for itself" in str(errors[0])

    run(story())


def test_handlers_that_never_wait_let_others_run(connection: ScriptedConnection) -> None:
    connection.prepared = [assignment((0, 0)), delivery(0, range(100))]

    async def story() -> None:
        turns, at_turn = 0, dict[int, int]()

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def handle(message: ReceivedMessage) -> None:
            at_turn[message.queue_offset] = turns

        counting = asyncio.create_task(count())
        async with PushConsumer("s:1", "g", TOPIC, handle, tasks=1):
            await until(lambda: len(at_turn) == 100)
        counting.cancel()
        assert at_turn[99] - at_turn[0] >= 5

    run(story())


def test_a_handler_that_waits_leaves_the_messages_behind_its_own_to_others(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        gate, begun = asyncio.Event(), list[int]()

        async def handle(message: ReceivedMessage) -> str:
            begun.append(message.queue_offset)
            if message.queue_offset in (3, 6):
                await gate.wait()
            return "done"

        async with PushConsumer("s:1", "g", TOPIC, handle, tasks=3) as consumer:
            await until(lambda: begun == list(range(10)))
            assert done_to(consumer) == 3
            gate.set()
            await until(lambda: done_to(consumer) == 10)
        assert connection.committed() == [{QUEUE: 10}]

    run(story())


def test_in_ordered_mode_a_handler_that_waits_is_waited_for(connection: ScriptedConnection) -> None:
    async def story() -> None:
        gate, begun = asyncio.Event(), list[int]()

        async def handle(message: ReceivedMessage) -> None:
            begun.append(message.queue_offset)
            if message.queue_offset == 3:
                await gate.wait()

        async with PushConsumer("s:1", "g", TOPIC, handle, mode="ordered") as consumer:
            await until(lambda: done_to(consumer) == 3)
            assert begun == [0, 1, 2, 3]
            gate.set()
            await until(lambda: done_to(consumer) == 10)
        assert begun == list(range(10))
        assert connection.committed() == [{QUEUE: 10}]

    run(story())


def test_a_handler_that_waits_sees_its_task_its_result_and_its_cancellation(
    connection: ScriptedConnection,
) -> None:
    async def story() -> None:
        ends: list[str] = []

        async def handle(message: ReceivedMessage) -> Nack | None:
            if message.queue_offset == 1:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await asyncio.Event().wait()
                ends.append("timed out")
                return Nack("too slow", delay_s=1)
            if message.queue_offset == 2:
                try:
                    await asyncio.Event().wait()
                finally:
                    ends.append("cancelled")
            return None

        consumer = PushConsumer("s:1", "g", TOPIC, handle)
        await consumer.start()
        await until(lambda: ends == ["timed out"] and done_to(consumer) == 2)
        await consumer.close(timeout_s=0.01)
        assert ends == ["timed out", "cancelled"]
        assert connection.committed() == [{QUEUE: 2}]

    run(story())
    (request,) = connection.retry_requests()
    assert [(one.queue_offset, one.reason) for one in request.messages] == [(1, "too slow")]


def test_start_says_why_it_could_not_join(connection: ScriptedConnection) -> None:
    connection.prepared = []

    async def story() -> None:
        consumer = PushConsumer("s:1", "g", TOPIC, print)
        starting = asyncio.create_task(consumer.start())
        (await connection.next_call()).end(SubscriptionMismatch("a and b"))
        with pytest.raises(SubscriptionMismatch, match="a and b"):
            await starting
        assert connection.is_closed

    run(story())


def test_join_hears_what_ended_the_consumer(connection: ScriptedConnection) -> None:
    async def story() -> None:
        consumer = PushConsumer("s:1", "g", TOPIC, lambda _: None)
        await consumer.start()
        (await connection.next_call()).end(TopicNotFound("it was deleted"))
        with pytest.raises(TopicNotFound, match="it was deleted"):
            await consumer.join()
        await consumer.close()

    run(story())


def test_leaving_the_block_tells_what_ended_the_consumer_unless_there_is_worse(
    connection: ScriptedConnection,
) -> None:
    async def story(problem: Exception | None) -> None:
        async with PushConsumer("s:1", "g", TOPIC, lambda _: None) as consumer:
            (await connection.next_call()).end(TopicNotFound("it was deleted"))
            await consumer._is_over.wait()
            if problem is not None:
                raise problem

    with pytest.raises(TopicNotFound, match="it was deleted"):
        run(story(None))
    with pytest.raises(ZeroDivisionError):
        run(story(ZeroDivisionError()))


def test_attempts_come_later_and_later() -> None:
    assert [doubled_s(1.0, attempt) for attempt in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert doubled_s(0.0, 1_000) == 0.0
    assert doubled_s(60.0, 4) == 60.0


@pytest.mark.parametrize("options", [{"tasks": 0}, {"retry_delay_s": -1}, {"batch_messages": 0}])
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(IllegalConfig):
        PushConsumer("s:1", "g", TOPIC, print, **options)


# Batches


@pytest.mark.parametrize("waits", [False, True])
def test_a_handler_of_batches_gets_messages_of_a_queue_in_its_order(
    connection: ScriptedConnection, *, waits: bool
) -> None:
    connection.prepared = [assignment((0, 0), (1, 0)), *(delivery(q, range(50)) for q in (0, 1))]

    async def story() -> None:
        batches: list[MessageBatch] = []

        async def handle(batch: MessageBatch) -> None:
            batches.append(batch)
            if waits:
                await asyncio.sleep(0)

        async with PushConsumer("s:1", "g", TOPIC, handle, tasks=1, batch_messages=20) as consumer:
            await until(lambda: done_to(consumer) == 50 and len(batches) == 6)
        for queue_id in (0, 1):
            of_queue = [one for one in batches if one.queue == ref(queue_id)]
            assert [len(one) for one in of_queue] == [20, 20, 10]
            assert [at for one in of_queue for at in one.offsets] == list(range(50))
            bodies = [body for one in of_queue for body in one.bodies]
            assert bodies == [b"%d" % at for at in range(50)]
        assert connection.committed() == [{QUEUE: 50, ref(1): 50}]

    run(story())


@pytest.mark.parametrize("size", [4, 18])
def test_a_batch_that_failed_goes_back_as_single_messages(
    connection: ScriptedConnection, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    connection.prepared = [assignment((0, 0)), delivery(0, range(3 * size))]

    async def story() -> None:
        async def handle(batch: MessageBatch) -> None:
            if batch.offsets[0] == 0:
                raise ValueError("no database")
            if batch.offsets[0] == size:
                raise Nack("closed", delay_s=1.5)

        async with PushConsumer("s:1", "g", TOPIC, handle, batch_messages=size) as consumer:
            await until(lambda: done_to(consumer) == 3 * size)

    with caplog.at_level(logging.INFO):
        run(story())
    failed = [one for request in connection.retry_requests() for one in request.messages]
    assert [(one.queue_offset, one.reason) for one in failed] == [
        *((at, "ValueError: no database") for at in range(size)),
        *((at, "closed") for at in range(size, 2 * size)),
    ]
    assert [one.delay_ms for one in failed if one.HasField("delay_ms")] == [1_500] * size
    assert caplog.text.count("the handler failed on") == 1
    assert f"message set-0:0 and {size - 1} behind it, at 0 of queue 0" in caplog.text


@pytest.mark.parametrize("size", [4, 18])
def test_in_ordered_mode_a_queue_has_one_batch_at_work_which_is_tried_again_as_it_was(
    connection: ScriptedConnection, size: int
) -> None:
    connection.prepared = [assignment((0, 0)), delivery(0, range(3 * size))]

    async def story() -> None:
        seen: list[tuple[list[int], set[int]]] = []
        working = 0

        async def handle(batch: MessageBatch) -> None:
            nonlocal working
            working += 1
            assert working == 1
            await asyncio.sleep(0)
            working -= 1
            attempts = {one.attempt for one in batch}
            seen.append((list(batch.offsets), attempts))
            if batch.offsets[0] == size and attempts != {3}:
                raise ValueError

        options: dict[str, Any] = {"mode": "ordered", "retry_delay_s": 0.0}
        async with PushConsumer(
            "s:1", "g", TOPIC, handle, batch_messages=size, **options
        ) as consumer:
            await until(lambda: done_to(consumer) == 3 * size)
        places = [list(range(at, at + size)) for at in (0, size, size, size, 2 * size)]
        assert seen == list(zip(places, [{1}, {1}, {2}, {3}, {1}], strict=True))
        assert connection.retry_requests() == []

    run(story())


def test_a_close_waits_for_the_batch_at_work(connection: ScriptedConnection) -> None:
    async def story() -> None:
        gate, begun = asyncio.Event(), list[int]()

        async def handle(batch: MessageBatch) -> None:
            begun.extend(batch.offsets)
            await gate.wait()

        consumer = PushConsumer("s:1", "g", TOPIC, handle, tasks=1, batch_messages=6)
        await consumer.start()
        await until(lambda: len(begun) == 6)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        gate.set()
        await closing
        assert begun == list(range(6))
        assert connection.committed() == [{QUEUE: 6}]

    run(story())


def test_threads_take_batches_and_give_back_those_that_fail(
    connection: ScriptedConnection,
) -> None:
    seen: list[list[int]] = []

    def handle(batch: MessageBatch) -> Nack | None:
        seen.append([one.queue_offset for one in batch])
        return Nack("not now", delay_s=0) if batch.offsets[0] == 4 else None

    with SyncPushConsumer("s:1", "g", TOPIC, handle, threads=1, batch_messages=4) as consumer:
        wait_until(lambda: done_to(consumer) == 10)
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    failed = [one for request in connection.retry_requests() for one in request.messages]
    assert [(one.queue_offset, one.reason) for one in failed] == [
        (at, "not now") for at in range(4, 8)
    ]
    assert connection.committed() == [{QUEUE: 10}]


# Threads


def test_threads_run_handlers_side_by_side(connection: ScriptedConnection) -> None:
    together = threading.Barrier(5)
    seen: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        together.wait(DEADLINE_S)
        seen.append(message.queue_offset)

    with SyncPushConsumer("s:1", "g", TOPIC, handle, threads=5) as consumer:
        assert consumer.assignment == {QUEUE}
        wait_until(lambda: len(seen) == 10)
    assert sorted(seen) == list(range(10))
    assert connection.committed() == [{QUEUE: 10}]


def test_threads_give_a_failed_message_back(
    connection: ScriptedConnection, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: Counter[int] = Counter()

    def handle(message: ReceivedMessage) -> Nack | None:
        attempts[message.queue_offset] += 1
        if message.queue_offset == 2:
            raise SystemExit
        return Nack(delay_s=0) if message.queue_offset == 7 else None

    options: dict[str, Any] = {"threads": 2, "retry_delay_s": [0.25, 5]}
    with SyncPushConsumer("s:1", "g", TOPIC, handle, **options) as consumer:
        wait_until(lambda: done_to(consumer) == 10)
    assert set(attempts.values()) == {1}
    assert "set-0:20" in caplog.text
    failed = [one for request in connection.retry_requests() for one in request.messages]
    assert sorted((one.queue_offset, one.delay_ms) for one in failed) == [(2, 250), (7, 0)]
    assert connection.committed() == [{QUEUE: 10}]


def test_threads_try_a_failed_message_again_in_place_when_ordered(
    connection: ScriptedConnection,
) -> None:
    seen: list[tuple[int, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.queue_offset, message.attempt))
        if message.queue_offset == 2 and message.attempt < 4:
            raise ValueError

    options: dict[str, Any] = {"threads": 2, "retry_delay_s": 0.001, "mode": "ordered"}
    with SyncPushConsumer("s:1", "g", TOPIC, handle, **options) as consumer:
        wait_until(lambda: done_to(consumer) == 10)
    assert seen == [
        (0, 1),
        (1, 1),
        (2, 1),
        (2, 2),
        (2, 3),
        (2, 4),
        *((at, 1) for at in range(3, 10)),
    ]
    assert connection.retry_requests() == []


def test_in_ordered_mode_threads_keep_the_order(connection: ScriptedConnection) -> None:
    connection.prepared = [assignment((0, 0), (1, 0)), *(delivery(q, range(10)) for q in (0, 1))]
    seen: dict[int, list[int]] = {0: [], 1: []}

    def handle(message: ReceivedMessage) -> None:
        seen[message.queue_id].append(message.queue_offset)

    with SyncPushConsumer("s:1", "g", TOPIC, handle, mode="ordered"):
        wait_until(lambda: all(len(one) == 10 for one in seen.values()))
    assert seen == {0: list(range(10)), 1: list(range(10))}


def test_a_close_with_a_time_limit_does_not_wait_for_a_thread_that_hangs(
    connection: ScriptedConnection,
) -> None:
    gate, begun = threading.Event(), threading.Event()

    def handle(_: ReceivedMessage) -> None:
        begun.set()
        gate.wait(DEADLINE_S)

    consumer = SyncPushConsumer("s:1", "g", TOPIC, handle, threads=1)
    consumer.start()
    assert begun.wait(DEADLINE_S)
    consumer.close(timeout_s=0.01)
    assert connection.committed() == [{QUEUE: 0}]
    assert consumer.join(0)
    gate.set()


def test_a_consumer_whose_key_was_revoked_ends_with_that_and_says_so(
    connection: ScriptedConnection, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = SyncPushConsumer("s:1", "g", TOPIC, lambda _: None)
    consumer.start()
    call = background().run(connection.next_call())
    background().loop.call_soon_threadsafe(call.end, Unauthenticated("the key was revoked"))
    with pytest.raises(Unauthenticated, match="the key was revoked"):
        consumer.join(DEADLINE_S)
    consumer.close()
    assert connection.opened.empty(), "it does not come again"
    assert "of group g has ended: the key was revoked" in caplog.text


def test_join_on_threads_hears_what_ended_the_consumer(connection: ScriptedConnection) -> None:
    consumer = SyncPushConsumer("s:1", "g", TOPIC, lambda _: None)
    consumer.start()
    call = background().run(connection.next_call())
    background().loop.call_soon_threadsafe(call.end, TopicNotFound("it was deleted"))
    with pytest.raises(TopicNotFound, match="it was deleted"):
        consumer.join(DEADLINE_S)
    consumer.close()


def test_a_start_on_threads_that_fails_leaves_nothing_open(
    connection: ScriptedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.prepared = []
    monkeypatch.setattr("mq.client.consumer.push.JOIN_S", 0.01)
    consumer = SyncPushConsumer("s:1", "g", TOPIC, print)
    with pytest.raises(Unreachable, match="into group g"):
        consumer.start()
    assert connection.is_closed
    with pytest.raises(RuntimeError, match="closed"):
        consumer.start()


@pytest.mark.usefixtures("connection")
def test_a_handler_on_a_thread_cannot_close_its_consumer() -> None:
    errors: list[Exception] = []

    def handle(_: ReceivedMessage) -> None:
        try:
            consumer.close()
        except RuntimeError as error:
            errors.append(error)

    consumer = SyncPushConsumer("s:1", "g", TOPIC, handle, threads=2)
    with consumer:
        wait_until(lambda: len(errors) == 10)
        assert not consumer.join(0)


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S * 1000)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it did not come to pass")
