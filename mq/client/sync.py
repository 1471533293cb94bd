"""What the clients without asyncio have in common: each runs its asyncio twin on an event loop in
the background, one for all clients of a process. Its thread starts with the first client and ends
with the process.

gRPC does not survive a fork. In a child process that was forked after the first client was made,
all clients refuse to work, with an error that says so; one that was forked before has a thread of
its own.

The clients themselves are generated, see tools/generate_sync.py.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
C = TypeVar("C")

_STOP_TIMEOUT_S = 1.0
_FORKED = (
    "this process was forked from one that had clients, and gRPC does not survive that: start it "
    "by spawn, or fork before the first client is made"
)


class Background:
    """A thread that runs an event loop. `background()` has the one of this process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_forked = False
        self._thread = threading.Thread(target=self._serve, name="mq-client", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts it on the loop. Any thread may call this."""
        if self.is_forked:
            work.close()
        self.check_not_forked()
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Returns the result. The work is cancelled when the wait is interrupted or times out."""
        self.refuse_own_thread(work.close)
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def check_not_forked(self) -> None:
        if self.is_forked:
            raise RuntimeError(_FORKED)

    def refuse_own_thread(self, clean_up: Callable[[], object] = lambda: None) -> None:
        """Raises RuntimeError on the thread of the loop, where waiting for it would never end."""
        if threading.current_thread() is self._thread:
            clean_up()
            raise RuntimeError("a callback of a client must not wait: hand over to another thread")

    def stop(self) -> None:
        if not self.is_forked:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)


_lock = threading.Lock()
_current: Background | None = None


def background() -> Background:
    """The one of this process, started by the first call."""
    global _current  # noqa: PLW0603
    with _lock:
        if _current is None:
            _current = Background()
        _current.check_not_forked()
        return _current


def _after_fork() -> None:
    global _lock  # noqa: PLW0603
    # Another thread may have held it in the parent.
    _lock = threading.Lock()
    if _current is not None:
        _current.is_forked = True


def _at_exit() -> None:
    if _current is not None:
        _current.stop()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


class SyncClient(Generic[C]):
    """The base of the generated clients."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._background = background()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._background.run(work)

    def _end(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs what closes the client."""
        return self._run(work)

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
