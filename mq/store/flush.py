"""Group commit: one sync for all that waits, on a thread of its own.

    sync    `wait(log_offset)` is done when the log is durable up to there. While one sync runs,
            everything that is appended gathers for the next.
    async   `wait` is done at once; the log is synced every `async_flush_ms`. A power loss may cost
            that much, the death of the process alone costs nothing.

A failed sync fails everybody who waits, now and later, with StorageFailed: the node has to stop.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Protocol

from mq.errors import MqError, OffsetOutOfRange, StorageFailed
from mq.logging import get_logger

log = get_logger(__name__)


class SyncedLog(Protocol):
    """What is needed of the CommitLog."""

    @property
    def end_offset(self) -> int: ...

    def sync(self) -> int:
        """Returns the durable offset. MqError is final."""
        ...


class Flusher:
    def __init__(self, commitlog: SyncedLog, *, async_flush_ms: int | None) -> None:
        """Sync mode unless `async_flush_ms` is given."""
        self._log = commitlog
        self._interval_s = None if async_flush_ms is None else async_flush_ms / 1000
        self._waiters: list[tuple[int, Future[int]]] = []
        self._wake = threading.Condition()
        self._is_stopping = False
        self._failure: MqError | None = None
        self._thread = threading.Thread(target=self._run, name="mq-flush", daemon=True)
        self._thread.start()

    def wait(self, log_offset: int) -> Future[int]:
        """A future of the durable offset, done when that is at least `log_offset`.

        OffsetOutOfRange when the log was truncated before it. Which entry stands there is not
        looked at: who truncates has to tell those who waited for the old one.
        """
        future: Future[int] = Future()
        # Running, so that a caller who goes away cannot cancel it under the flusher's hands.
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
        """Why nothing is synced any more: the node has to stop, or is stopping."""
        return self._failure

    def close(self) -> None:
        """Returns when everything appended before is durable, or has failed."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join()
        self._fail(StorageFailed("the flusher is closed: nothing is synced any more"))

    def _run(self) -> None:
        while self._failure is None:
            with self._wake:
                self._wake.wait_for(lambda: self._waiters or self._is_stopping, self._interval_s)
                is_stopping = self._is_stopping
            self._sync()
            if is_stopping:
                return

    def _sync(self) -> None:
        try:
            durable = self._log.sync()
        except MqError as error:
            log.error("sync failed, the node has to stop", error=str(error))  # noqa: TRY400 - no bug
            self._fail(error)
        except Exception as error:
            log.exception("sync failed, the node has to stop")
            self._fail(StorageFailed(f"the log could not be synced: {error!r}"))
        else:
            self._answer(durable)

    def _answer(self, durable: int) -> None:
        done, gone = [], []
        with self._wake:
            end = self._log.end_offset
            waiters, self._waiters = self._waiters, []
            for log_offset, future in waiters:
                if log_offset <= durable:
                    done.append(future)
                elif log_offset > end:
                    gone.append(future)
                else:
                    self._waiters.append((log_offset, future))
        for future in done:
            future.set_result(durable)
        for future in gone:
            future.set_exception(OffsetOutOfRange("the log was truncated before this offset"))

    def _fail(self, error: MqError) -> None:
        """For all who wait, now and later. The first reason stays."""
        with self._wake:
            self._failure = self._failure or error
            failed, self._waiters = self._waiters, []
        for _, future in failed:
            future.set_exception(self._failure)
