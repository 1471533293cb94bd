"""Group commit: one sync for all that waits, on a thread of its own.

    sync    `wait(log_offset)` is done when the log is durable up to there. While one sync runs,
            everything that is appended gathers for the next.
    async   `wait` is done at once; the log is synced every `async_flush_ms`. A power loss may cost
            that much, the death of the process alone costs nothing.

A failed sync fails everybody who waits, now and later, with StorageFailed: the node has to stop.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

from mq.errors import MqError
from mq.logging import get_logger
from mq.store.commitlog import CommitLog

log = get_logger(__name__)


class Flusher:
    def __init__(self, commitlog: CommitLog, *, async_flush_ms: int | None) -> None:
        """Sync mode unless `async_flush_ms` is given."""
        self._log = commitlog
        self._interval_s = None if async_flush_ms is None else async_flush_ms / 1000
        self._waiters: deque[tuple[int, Future[int]]] = deque()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._failure: MqError | None = None
        self._thread = threading.Thread(target=self._run, name="mq-flush", daemon=True)
        self._thread.start()

    def wait(self, log_offset: int) -> Future[int]:
        """A future of the durable offset, done when that is at least `log_offset`. Call in order of
        offsets.
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
        """Why the node has to stop."""
        return self._failure

    def close(self) -> None:
        """Returns when everything appended before is durable, or has failed."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiters or self._is_stopping, self._interval_s)
                is_stopping = self._is_stopping
            self._sync()
            if is_stopping or self._failure is not None:
                return

    def _sync(self) -> None:
        try:
            durable = self._log.sync()
        except MqError as error:
            log.error("sync failed, the node has to stop", error=str(error))  # noqa: TRY400 - no bug
            with self._wake:
                self._failure = error
                failed, self._waiters = list(self._waiters), deque()
            for _, future in failed:
                future.set_exception(error)
            return
        done = []
        with self._wake:
            while self._waiters and self._waiters[0][0] <= durable:
                done.append(self._waiters.popleft()[1])
        for future in done:
            future.set_result(durable)
