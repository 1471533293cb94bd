"""Futures of messages are futures like any other, whoever waits for them and when."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from mq.client.messages import SendResult
from mq.client.producer.outcomes import SendFuture
from mq.errors import DiskFull

RESULT = SendResult("set-0:7", "t", 0, 0, 0)
DEADLINE_S = 10.0


def test_a_result_that_is_there_is_returned_at_once() -> None:
    future = SendFuture()
    assert not future.done()
    future.set_result(RESULT)
    assert future.done()
    assert future.result(0) == RESULT
    assert future.exception(0) is None


def test_an_error_is_raised() -> None:
    future = SendFuture()
    future.set_exception(DiskFull("full"))
    assert future.done()
    with pytest.raises(DiskFull):
        future.result(0)
    assert isinstance(future.exception(0), DiskFull)


def test_a_wait_that_is_too_short_times_out() -> None:
    with pytest.raises(TimeoutError):
        SendFuture().result(0.01)


def test_a_send_future_is_not_cancelled_and_not_set_twice() -> None:
    future = SendFuture()
    assert not future.cancel()
    assert not future.cancelled()
    future.add_done_callback(lambda _: None)
    future.set_result(RESULT)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(RESULT)


def test_a_waiting_thread_is_woken() -> None:
    """Waiting and setting meet at every moment: nobody waits for ever."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(500):
            future = SendFuture()
            waiting = pool.submit(future.result, DEADLINE_S)
            future.set_result(RESULT)
            assert waiting.result(DEADLINE_S) == RESULT


def test_callbacks_run_once_whether_they_come_before_or_after() -> None:
    called: list[str] = []
    future = SendFuture()
    future.add_done_callback(lambda _: called.append("before"))
    future.set_result(RESULT)
    future.add_done_callback(lambda _: called.append("after"))
    assert called == ["before", "after"]
    late = SendFuture()
    late.set_result(RESULT)
    late.add_done_callback(lambda _: called.append("late"))
    assert called == ["before", "after", "late"]


def test_wait_and_as_completed_know_them() -> None:
    futures = [SendFuture() for _ in range(10)]
    for future in futures[:4]:
        future.set_result(RESULT)
    done, pending = concurrent.futures.wait(futures, timeout=0)
    assert (len(done), len(pending)) == (4, 6)
    setters = [threading.Timer(0.01, one.set_result, (RESULT,)) for one in futures[4:]]
    for setter in setters:
        setter.start()
    waited: list[concurrent.futures.Future[SendResult]] = [*futures]
    assert len(list(concurrent.futures.as_completed(waited, DEADLINE_S))) == 10
    for setter in setters:
        setter.join()


def test_a_coroutine_can_wait_for_one() -> None:
    async def scenario() -> SendResult:
        future = SendFuture()
        threading.Timer(0.01, future.set_result, (RESULT,)).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(scenario()) == RESULT
