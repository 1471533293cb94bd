"""The outcome of a batch: futures of its messages are futures like any other, at any time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import struct
import threading

import pytest

from mq.client.messages import SendResult
from mq.client.producer.queues import BatchOutcome, SendFuture
from mq.errors import DiskFull
from mq.wire.v1.producer_pb2 import BatchResult

RESULT = SendResult("set-0:7", "t", 0, 0, 0, broker_set="set-0")
DEADLINE_S = 10.0


def pending(count: int = 1) -> tuple[BatchOutcome, list[SendFuture]]:
    outcome, futures = BatchOutcome(), [SendFuture() for _ in range(count)]
    for index, future in enumerate(futures):
        outcome.attach(index, future)
    return outcome, futures


def store(outcome: BatchOutcome, log_offset: int = 7, sizes: tuple[int, ...] = (30,)) -> None:
    packed = struct.pack(f"<{len(sizes)}I", *sizes)
    outcome.succeed("t", "set-0", BatchResult(log_offset=log_offset), "SEND_OK", packed)


def test_a_result_that_is_there_is_returned_at_once() -> None:
    outcome, [future] = pending()
    assert not future.done()
    store(outcome)
    assert future.done()
    assert future.result(0) == RESULT
    assert future.exception(0) is None


def test_each_message_of_a_batch_has_its_own_place() -> None:
    outcome, futures = pending(3)
    store(outcome, sizes=(30, 40, 50))
    assert [one.result().message_id for one in futures] == ["set-0:7", "set-0:37", "set-0:77"]
    assert [one.result().queue_offset for one in futures] == [0, 1, 2]


def test_an_error_is_raised_and_each_future_has_one_of_its_own() -> None:
    outcome, [future, other] = pending(2)
    outcome.fail(DiskFull("full"))
    assert future.done()
    with pytest.raises(DiskFull):
        future.result(0)
    assert isinstance(future.exception(0), DiskFull)
    assert other.exception(0) is not future.exception(0)


def test_a_wait_that_is_too_short_times_out() -> None:
    _, [future] = pending()
    with pytest.raises(TimeoutError):
        future.result(0.01)


def test_a_send_future_is_not_cancelled_and_not_set_twice() -> None:
    outcome, [future] = pending()
    assert not future.cancel()
    assert not future.cancelled()
    future.add_done_callback(lambda _: None)
    store(outcome)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(RESULT)


def test_a_waiting_thread_is_woken() -> None:
    """A wait and the end of the batch meet at every moment: no thread waits for ever."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(500):
            outcome, [future] = pending()
            waiting = pool.submit(future.result, DEADLINE_S)
            store(outcome)
            assert waiting.result(DEADLINE_S) == RESULT


def test_callbacks_run_once_whether_they_come_before_or_after() -> None:
    called: list[str] = []
    outcome, [future] = pending()
    future.add_done_callback(lambda _: called.append("before"))
    store(outcome)
    future.add_done_callback(lambda _: called.append("after"))
    assert called == ["before", "after"]
    outcome, [late] = pending()
    store(outcome)
    late.add_done_callback(lambda _: called.append("late"))
    assert called == ["before", "after", "late"]


def test_wait_and_as_completed_know_them() -> None:
    batches = [pending() for _ in range(10)]
    for outcome, _ in batches[:4]:
        store(outcome)
    futures = [future for _, [future] in batches]
    done, waiting = concurrent.futures.wait(futures, timeout=0)
    assert (len(done), len(waiting)) == (4, 6)
    setters = [threading.Timer(0.01, store, (outcome,)) for outcome, _ in batches[4:]]
    for setter in setters:
        setter.start()
    waited: list[concurrent.futures.Future[SendResult]] = [*futures]
    assert len(list(concurrent.futures.as_completed(waited, DEADLINE_S))) == 10
    for setter in setters:
        setter.join()


def test_a_coroutine_can_wait_for_one() -> None:
    async def scenario() -> SendResult:
        outcome, [future] = pending()
        threading.Timer(0.01, store, (outcome,)).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(scenario()) == RESULT


def test_messages_that_moved_to_other_batches_have_their_results() -> None:
    """Whether a thread waits before the move, after it, or not at all."""
    outcome, futures = pending(4)
    called: list[str] = []
    futures[0].add_done_callback(lambda one: called.append(one.result().message_id))
    first, second = BatchOutcome(), BatchOutcome()
    outcome.attach(4, None)
    outcome.move([(first, 0), (second, 0), (first, 1), (second, 1), (second, 2)])
    assert (first.one_way, second.one_way) == ([], [2])
    futures[3].add_done_callback(lambda one: called.append(one.result().message_id))
    assert not any(future.done() for future in futures)
    store(first, 100, (10, 10))
    assert [future.done() for future in futures] == [True, False, True, False]
    store(second, 200, (10, 10, 10))
    found = [future.result(0).message_id for future in futures]
    assert found == ["set-0:100", "set-0:200", "set-0:110", "set-0:210"]
    assert called == ["set-0:100", "set-0:210"]
