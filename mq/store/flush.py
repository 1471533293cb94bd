"""Group commit: one sync for all that waits, on a thread of its own.

    sync    `wait(log_offset)` is done when the log is durable up to there. While one sync runs,
            everything that is appended gathers for the next.
    async   `wait` is done at once; syncs begin early enough for everything to be durable
            `async_flush_ms` after it was appended, as long as a sync takes no longer than those
            before it. A power loss may cost that much, the death of the process alone nothing.

A failed sync fails all waiters, now and later, with StorageFailed: the node has to stop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from mq.errors import MqError, OffsetOutOfRange, StorageFailed
from mq.logging import get_logger

log = get_logger(__name__)

# Syncs of which the slowest counts.
_REMEMBERED = 8


class SyncedLog(Protocol):
    """The part of CommitLog that the flusher needs."""

    @property
    def end_offset(self) -> int: ...

    def sync(self) -> int:
        """Returns the durable offset. MqError is final."""
        ...


class Pace:
    """The start of the next sync in async mode.

    The oldest bytes that a sync makes durable were appended when the one before it had just begun.
    So the time is counted from there, and the next one begins as much earlier as syncs take. Where
    they take longer than half of the interval, they follow each other without a pause.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._took_s: deque[float] = deque(maxlen=_REMEMBERED)

    def pause_s(self, began_s: float, ended_s: float) -> float:
        """From the end of a sync to the beginning of the next."""
        self._took_s.append(ended_s - began_s)
        return max(0.0, began_s + self._interval_s - max(self._took_s) - ended_s)


class Flusher:
    def __init__(
        self, commitlog: SyncedLog, *, async_flush_ms: int | None, now_s: Callable[[], float]
    ) -> None:
        """Sync mode unless `async_flush_ms` is given. `now_s` is monotonic, for any thread."""
        self._log = commitlog
        self._interval_s = None if async_flush_ms is None else async_flush_ms / 1000
        self._pace = None if self._interval_s is None else Pace(self._interval_s)
        self._now_s = now_s
        self._waiters: list[tuple[int, Future[int]]] = []
        self._wake = threading.Condition()
        self._is_stopping = False
        self._failure: MqError | None = None
        self._thread = threading.Thread(target=self._run, name="mq-flush", daemon=True)
        self._thread.start()

    def wait(self, log_offset: int) -> Future[int]:
        """A future of the durable offset, done when that is at least `log_offset`.

        OffsetOutOfRange when the log was truncated before it. The entry that stands there is not
        looked at: the truncating caller has to tell waiters for the old one. A wait that
        begins after a truncation is never completed by the bytes that stood there before.

        Callbacks of the future run on the flusher's thread, or at once when it is done already: one
        that has to act on an event loop hands over with `call_soon_threadsafe`.
        """
        future: Future[int] = Future()
        # Running, so that a caller that goes away cannot cancel it while the flusher works on it.
        future.set_running_or_notify_cancel()
        with self._wake:
            if self._failure is not None:
                future.set_exception(self._failure)
            elif self._interval_s is not None:
                future.set_result(log_offset)
            else:
                self._waiters.append((log_offset, future))
                self._wake.notify()
        return future

    @property
    def failure(self) -> MqError | None:
        """The error that ended all syncs: the node has to stop, or is stopping."""
        return self._failure

    def close(self) -> None:
        """Returns when everything appended before is durable, or has failed."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join()
        self._fail(StorageFailed("the flusher is closed: nothing is synced"))

    def _run(self) -> None:
        pause_s = self._interval_s
        while self._failure is None:
            with self._wake:
                self._wake.wait_for(lambda: self._waiters or self._is_stopping, pause_s)
                is_stopping = self._is_stopping
                # Waiters that come while the sync runs may wait for bytes that it did not see, at
                # an offset that it did: the log may have been truncated and written again.
                count = len(self._waiters)
            began_s = self._now_s()
            self._sync(count)
            if is_stopping:
                return
            if self._pace is not None:
                pause_s = self._pace.pause_s(began_s, self._now_s())

    def _sync(self, count: int) -> None:
        """Answers the first `count` waiters."""
        try:
            durable = self._log.sync()
        except MqError as error:
            log.error("sync failed, the node has to stop", error=str(error))  # noqa: TRY400 - no bug
            self._fail(error)
        except Exception as error:
            log.exception("sync failed, the node has to stop")
            self._fail(StorageFailed(f"the log could not be synced: {error!r}"))
        else:
            self._answer(durable, count)

    def _answer(self, durable: int, count: int) -> None:
        done, gone = [], []
        with self._wake:
            end = self._log.end_offset
            later = self._waiters[count:]
            kept = []
            for log_offset, future in self._waiters[:count]:
                if log_offset <= durable:
                    done.append(future)
                elif log_offset > end:
                    gone.append(future)
                else:
                    kept.append((log_offset, future))
            self._waiters = kept + later
        for future in done:
            future.set_result(durable)
        for future in gone:
            future.set_exception(OffsetOutOfRange("the log was truncated before this offset"))

    def _fail(self, error: MqError) -> None:
        """For all waiters, now and later. The first reason stays."""
        with self._wake:
            self._failure = self._failure or error
            failed, self._waiters = self._waiters, []
        for _, future in failed:
            future.set_exception(self._failure)
