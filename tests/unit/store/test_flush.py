"""Group commit on a thread: one sync for all waiters, and a failure that reaches each of them."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

import pytest

from mq.errors import MqError, OffsetOutOfRange, StorageFailed
from mq.store.commitlog import CommitLog
from mq.store.flush import Flusher, Pace
from mq.store.vfs import RealVfs
from tests.support.logs import append, checkpoint, payloads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

DEADLINE_S = 20


class SlowLog:
    """Its syncs end when the test lets them, and cover what was appended before they began."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.failure: MqError | None = None
        self.syncs = 0
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def sync(self) -> int:
        end, failure = self.end_offset, self.failure
        self.syncs += 1
        self.began.release()
        assert self.may_end.acquire(timeout=DEADLINE_S)
        if failure is not None:
            raise failure
        return end

    def wait_until_a_sync_began(self) -> None:
        assert self.began.acquire(timeout=DEADLINE_S)

    def let_end(self, count: int = 1) -> None:
        self.may_end.release(count)


@pytest.fixture
def log() -> SlowLog:
    return SlowLog()


def flusher_of(log: SlowLog, async_flush_ms: int | None = None) -> Flusher:
    return Flusher(log, async_flush_ms=async_flush_ms, now_s=time.monotonic)


@pytest.fixture
def flusher(log: SlowLog) -> Iterator[Flusher]:
    flusher = flusher_of(log)
    yield flusher
    log.let_end(1000)
    flusher.close()


def append_and_wait(log: SlowLog, flusher: Flusher, count: int = 1) -> list[Future[int]]:
    futures = []
    for _ in range(count):
        log.end_offset += 10
        futures.append(flusher.wait(log.end_offset))
    return futures


def test_all_that_waits_shares_one_sync(log: SlowLog, flusher: Flusher) -> None:
    first = append_and_wait(log, flusher)
    log.wait_until_a_sync_began()
    rest = append_and_wait(log, flusher, 100)
    log.let_end()
    assert first[0].result(DEADLINE_S) == 10
    log.wait_until_a_sync_began()
    assert not any(future.done() for future in rest)
    log.let_end()
    assert {future.result(DEADLINE_S) for future in rest} == {1010}
    assert log.syncs == 2


def test_no_waiter_is_answered_before_a_sync_that_began_after_the_append(
    log: SlowLog, flusher: Flusher
) -> None:
    append_and_wait(log, flusher)
    log.wait_until_a_sync_began()
    (late,) = append_and_wait(log, flusher)
    log.let_end()
    log.wait_until_a_sync_began()
    assert not late.done()
    log.let_end()
    assert late.result(DEADLINE_S) == 20


def test_waiters_are_answered_in_order(log: SlowLog, flusher: Flusher) -> None:
    answered: list[int] = []
    append_and_wait(log, flusher)
    log.wait_until_a_sync_began()
    futures = append_and_wait(log, flusher, 50)
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: answered.append(number))  # type: ignore[misc]
    log.let_end(2)
    wait(futures, DEADLINE_S)
    assert answered == [*range(50)]


def test_nothing_is_synced_without_a_waiter(log: SlowLog) -> None:
    flusher = flusher_of(log)
    log.end_offset = 10
    assert not log.began.acquire(blocking=False)
    log.let_end()
    flusher.close()
    assert log.syncs == 1  # that of the close


def test_a_failed_sync_fails_all_waiters_now_and_later(log: SlowLog, flusher: Flusher) -> None:
    append_and_wait(log, flusher)
    log.wait_until_a_sync_began()
    log.failure = StorageFailed("broken")
    waiting = append_and_wait(log, flusher, 5)
    log.let_end()
    log.wait_until_a_sync_began()
    waiting += append_and_wait(log, flusher, 5)
    log.let_end()
    for future in waiting:
        assert future.exception(DEADLINE_S) is log.failure
    log.failure = None
    (later,) = append_and_wait(log, flusher)
    assert isinstance(later.exception(DEADLINE_S), StorageFailed)
    assert isinstance(flusher.failure, StorageFailed)


def test_a_cancelled_waiter_does_not_disturb_the_others(log: SlowLog, flusher: Flusher) -> None:
    append_and_wait(log, flusher)
    log.wait_until_a_sync_began()
    gone, stays = append_and_wait(log, flusher, 2)
    gone.cancel()
    log.let_end(2)
    assert stays.result(DEADLINE_S) == 30
    log.let_end()
    assert append_and_wait(log, flusher)[0].result(DEADLINE_S) == 40


def test_close_syncs_what_was_appended(log: SlowLog) -> None:
    flusher = flusher_of(log)
    futures = append_and_wait(log, flusher, 3)
    log.let_end(10)
    flusher.close()
    for future, end in zip(futures, (10, 20, 30), strict=True):
        assert future.result(0) >= end


def test_async_answers_at_once_and_syncs_in_the_background(log: SlowLog) -> None:
    flusher = flusher_of(log, async_flush_ms=1)
    (future,) = append_and_wait(log, flusher)
    assert future.result(0) == 10
    log.wait_until_a_sync_began()  # which was not asked for
    assert append_and_wait(log, flusher)[0].result(0) == 20
    log.let_end(1000)
    flusher.close()


def test_async_close_syncs_without_waiting_for_the_interval(log: SlowLog) -> None:
    flusher = flusher_of(log, async_flush_ms=3_600_000)
    append_and_wait(log, flusher)
    log.let_end()
    flusher.close()
    assert log.syncs == 1


def test_async_shows_a_failed_sync_to_the_next_waiter(log: SlowLog) -> None:
    log.failure = StorageFailed("broken")
    flusher = flusher_of(log, async_flush_ms=1)
    log.wait_until_a_sync_began()
    log.let_end()
    flusher.close()
    assert isinstance(flusher.failure, StorageFailed)
    assert isinstance(append_and_wait(log, flusher)[0].exception(0), StorageFailed)


@pytest.mark.parametrize("async_flush_ms", [None, 1])
def test_many_threads_wait_on_a_real_log(tmp_path: Path, async_flush_ms: int | None) -> None:
    log = CommitLog(RealVfs(), f"{tmp_path}/log", segment_bytes=1 << 20, verify_bytes=0)
    log.roll(checkpoint())
    flusher = Flusher(log, async_flush_ms=async_flush_ms, now_s=time.monotonic)
    order, failures = threading.Lock(), list[BaseException]()

    def produce() -> None:
        try:
            for _ in range(20):
                with order:
                    append(log, b"x" * 100)
                    end = log.end_offset
                    future = flusher.wait(end)
                durable = future.result(DEADLINE_S)
                assert durable >= end
                assert async_flush_ms is not None or log.durable_offset >= end
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    flusher.close()
    assert failures == []
    assert log.durable_offset == log.end_offset
    assert payloads(log) == [b"x" * 100] * 160
    log.close()


def test_waiters_for_truncated_bytes_fail_and_others_go_on(log: SlowLog, flusher: Flusher) -> None:
    (first,) = append_and_wait(log, flusher)
    log.wait_until_a_sync_began()
    (gone,) = append_and_wait(log, flusher)
    log.end_offset = 10
    log.let_end(3)
    assert first.result(DEADLINE_S) == 10
    with pytest.raises(OffsetOutOfRange):
        gone.result(DEADLINE_S)
    log.end_offset = 15
    assert flusher.wait(15).result(DEADLINE_S) == 15


def test_a_sync_answers_no_waiter_that_came_after_it_began(log: SlowLog, flusher: Flusher) -> None:
    """The log may have been truncated and written again: then the bytes at the same log offset are
    others, and not durable.
    """
    log.end_offset = 100
    flusher.wait(100)
    log.wait_until_a_sync_began()
    log.end_offset = 50
    log.end_offset = 80
    other = flusher.wait(80)
    log.let_end()
    log.wait_until_a_sync_began()
    assert not other.done()
    log.let_end()
    assert other.result(DEADLINE_S) == 80


def test_an_event_loop_hears_of_a_sync(log: SlowLog, flusher: Flusher) -> None:
    async def wait_for_it() -> int:
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[int] = loop.create_future()
        (future,) = append_and_wait(log, flusher)
        future.add_done_callback(
            lambda done: loop.call_soon_threadsafe(heard.set_result, done.result())
        )
        log.let_end()
        return await asyncio.wait_for(heard, DEADLINE_S)

    assert asyncio.run(wait_for_it()) == 10


def test_a_failing_callback_disturbs_no_waiter(log: SlowLog, flusher: Flusher) -> None:
    """Such as one for an event loop that is closed by now."""
    loop = asyncio.new_event_loop()
    loop.close()
    (first,) = append_and_wait(log, flusher)
    first.add_done_callback(lambda _: loop.call_soon_threadsafe(print))
    log.let_end(2)
    assert append_and_wait(log, flusher)[0].result(DEADLINE_S) == 20


def test_waiters_after_close_fail(log: SlowLog) -> None:
    log.let_end(1000)
    flusher = flusher_of(log)
    flusher.close()
    with pytest.raises(StorageFailed, match="closed"):
        flusher.wait(1).result(DEADLINE_S)


def test_an_unexpected_error_leaves_no_waiter(log: SlowLog) -> None:
    def broken() -> int:
        raise RuntimeError("a bug")

    log.sync = broken  # type: ignore[method-assign]
    flusher = flusher_of(log)
    with pytest.raises(StorageFailed, match="a bug"):
        flusher.wait(1).result(DEADLINE_S)
    flusher.close()


def ages_s(interval_s: float, took_s: Sequence[float]) -> list[float]:
    """The age of the oldest bytes of each sync when it is done, if they were appended when the one
    before had just begun; on a clock that is moved by hand.
    """
    pace, now_s, found = Pace(interval_s), 0.0, []
    previous_s = now_s
    for each_s in took_s:
        began_s, now_s = now_s, now_s + each_s
        found.append(round(now_s - previous_s, 6))
        previous_s = began_s
        now_s += pace.pause_s(began_s, now_s)
    return found[1:]


def test_async_appends_are_durable_after_the_interval_however_long_a_sync_takes() -> None:
    assert ages_s(0.5, [0.0] * 5) == [0.5] * 4
    # Counted from the end of a sync to the beginning of the next, it was 0.9.
    assert ages_s(0.5, [0.2] * 5) == [0.5] * 4


def test_async_only_a_longer_sync_than_before_delays_durability() -> None:
    assert ages_s(0.5, [0.0, 0.2, 0.2, 0.0, 0.2]) == [0.7, 0.5, 0.3, 0.5]


def test_async_slow_syncs_follow_each_other_without_a_pause() -> None:
    assert ages_s(0.5, [0.4] * 4) == [0.8] * 3
