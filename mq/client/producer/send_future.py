"""The future of a message that was sent by a thread.

A plain `Future` takes a lock, a condition, a queue and two lists with it, most of what sending a
message costs. This one makes them when somebody waits, which is late or never: it stands in for the
attributes that `concurrent.futures` has kept since its first version, so that its `wait` and
`as_completed` work as with any other.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from mq.client.messages import SendResult

_PENDING, _FINISHED = "PENDING", "FINISHED"
# Held for a few instructions: between finding that nobody waits and being finished.
_making = threading.Lock()


class SendFuture(Future[SendResult]):
    """A message that was sent cannot be taken back: it is not cancelled."""

    _made: threading.Condition | None = None

    def __init__(self) -> None:
        self._state = _PENDING
        self._result: Any = None
        self._exception: BaseException | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _making:
                if self._made is None:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    self._made = threading.Condition()
        return self._made

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self._state == _FINISHED

    def result(self, timeout: float | None = None) -> SendResult:
        if self._state == _FINISHED and self._exception is None:
            found: SendResult = self._result
            return found
        return super().result(timeout)

    def set_result(self, result: SendResult) -> None:
        with _making:
            if self._made is None:
                self._result = result
                self._state = _FINISHED
                return
        super().set_result(result)
