"""The life of clients: how they begin, run and end, with asyncio and without.

`AsyncClient` is the base of the clients for programs with asyncio. A client without asyncio is
generated (see tools/generate_sync.py) from its asyncio twin, which it runs on an event loop in the
background, one for all clients of a process. The thread of that loop starts with the first client
and ends with the process.

gRPC does not survive a fork. In a child process that was forked after the first client was made,
all clients refuse to work, with an error that says so; one that was forked before has a thread of
its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Self, TypeVar


class AsyncClient(ABC):
    """A client with asyncio. The end of an `async with` block closes it, also after an error."""

    async def _enter(self) -> None:  # noqa: B027 # optional
        """Runs at the beginning of a block. A client without it starts when it is first used."""

    @abstractmethod
    async def close(self) -> None: ...

    async def _exit(self, *, is_orderly: bool) -> None:  # noqa: ARG002 # for those that differ
        """Runs at the end of a block; not orderly: after an exception in it."""
        await self.close()

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._exit(is_orderly=error is None)


T = TypeVar("T")
C = TypeVar("C", bound=AsyncClient)

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


Outcome = tuple[Any, BaseException | None]


class _Call(NamedTuple):
    """A function that another thread runs for the loop, and the loop's future for its outcome."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    # Never set to an exception: asyncio does not take each kind of them.
    future: asyncio.Future[Outcome]

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...]) -> _Call:
        return cls(function, args, asyncio.get_running_loop().create_future())

    def run(self) -> None:
        """Raises a BaseException that is no Exception, such as KeyboardInterrupt."""
        try:
            result = self.function(*self.args)
        except Exception as error:  # noqa: BLE001 # of the user, to be raised in the coroutine
            self.settle(None, error)
        else:
            self.settle(result, None)

    def settle(self, result: Any, error: BaseException | None) -> None:
        def settle() -> None:
            if not self.future.done():
                self.future.set_result((result, error))

        self.future.get_loop().call_soon_threadsafe(settle)

    async def outcome(self) -> Any:
        result, error = await self.future
        if error is None:
            return result
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise error
        raise RuntimeError(f"a handler raised {error!r}") from error


_caller: ContextVar[SimpleQueue[_Call | None]] = ContextVar("caller")


def on_caller(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The function as a coroutine function that runs it on the thread that waits for the coroutine,
    see `SyncClient._serve`.
    """

    async def call(*args: Any) -> Any:
        one = _Call.of(function, args)
        _caller.get().put(one)
        return await one.outcome()

    return call


class HandlerThreads:
    """The threads that run the handlers of one client. They are daemons: a program that ends does
    not wait for them, and its messages come again elsewhere.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def wrap(self, handler: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """The handler as a coroutine function."""

        async def call(*args: Any) -> Any:
            return await self.run(handler, *args)

        return call

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs it on one of the threads, when one is free."""
        if len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        call = _Call.of(function, args)
        self._calls.put(call)
        return await call.outcome()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.run()
            except BaseException as error:  # noqa: BLE001 # it must not end the thread
                call.settle(None, error)

    def refuse_own_threads(self, clean_up: Callable[[], object]) -> None:
        """Raises RuntimeError on one of them, where waiting for all would never end."""
        if threading.current_thread() in self._threads:
            clean_up()
            raise RuntimeError("a handler must not close its own client: it would wait for itself")

    def stop(self) -> None:
        """Each thread ends with what it is doing."""
        for _ in self._threads:
            self._calls.put(None)


class SyncClient(Generic[C]):
    """A client without asyncio: runs its asyncio twin on the background loop."""

    def __init__(self, client: C, handlers: HandlerThreads | None = None) -> None:
        self._client = client
        self._handlers = handlers
        self._background = background()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._background.run(work)

    def _serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it. Functions that it calls by `on_caller` run here meanwhile."""
        self._background.refuse_own_thread(work.close)
        calls: SimpleQueue[_Call | None] = SimpleQueue()
        # The coroutine has a copy of the context in which it is submitted.
        token = _caller.set(calls)
        try:
            future = self._background.submit(work)
        finally:
            _caller.reset(token)
        future.add_done_callback(lambda _: calls.put(None))
        try:
            while (call := calls.get()) is not None:
                call.run()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the coroutine that closes the client."""
        if self._handlers is None:
            self._run(work)
            return
        self._handlers.refuse_own_threads(work.close)
        try:
            self._run(work)
        finally:
            self._handlers.stop()

    def close(self) -> None:
        self._end(self._client.close())

    def __enter__(self) -> Self:
        self._run(self._client.__aenter__())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(self._client.__aexit__(kind, error, trace))


class StartedClient(SyncClient[C]):
    """A client that works from when it is made, and is closed when the program ends."""

    def __init__(self, client: C, handlers: HandlerThreads | None = None) -> None:
        super().__init__(client, handlers)
        self._run(client.__aenter__())
        atexit.register(self.close)

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        atexit.unregister(self.close)
        if self._background.is_forked:
            work.close()
        else:
            super()._end(work)
