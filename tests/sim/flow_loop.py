"""An event loop on virtual time, for whole brokers in one process.

Nothing waits: when nothing is ready, the clock jumps to the next timer. No sockets, no threads:
what would run on a thread runs a moment later on the loop. So a run follows from its seed alone.

Code of one process of the simulation runs in a context that knows its `Life`. When a life ends, as
with kill -9, none of its callbacks, timers and tasks runs again; nothing is cancelled, no `finally`
gets its chance, because a process that is killed has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")

# What a thread would take.
_THREAD_S = 0.000_3
_BEGIN_S = 1_000.0
# No story is as long.
_END_S = _BEGIN_S + 24 * 3_600
_TURNS_MAX = 100_000
_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class Stuck(Exception):
    """Nothing will ever happen again."""


class Life:
    """The life of one process, from its start to its end."""

    def __init__(self) -> None:
        self.is_over = False
        self._context = contextvars.Context()
        self._context.run(_LIFE.set, self)

    def run(self, action: Callable[..., Result], *arguments: Any) -> Result:
        """As the process: whatever is scheduled by it ends with it."""
        return self._context.copy().run(action, *arguments)


class _Clockwork:
    """In place of a selector: waiting for nothing but time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._turns = 0

    def select(self, timeout_s: float | None) -> list[Any]:
        if timeout_s is None:
            raise Stuck("no timer is set, and nobody is there to set one")
        self._turns = 0 if timeout_s else self._turns + 1
        if self._turns > _TURNS_MAX:
            raise Stuck("the loop is busy, and time does not pass")
        self._loop.now_s += timeout_s
        if self._loop.now_s > _END_S:
            raise Stuck("the story has no end")
        return []

    def close(self) -> None:
        """There is nothing to close."""


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = _BEGIN_S
        self._selector = _Clockwork(self)
        # Errors of callbacks, and of tasks that were not awaited.
        self.unhandled: list[str] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.set_exception_handler(self._note)
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self.now_s

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")

    def call_soon(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        life = _life(context)
        if life is None:
            return super().call_soon(callback, *arguments, context=context)
        return super().call_soon(_run_alive, life, callback, arguments, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        life = _life(context)
        if life is None:
            return super().call_at(when, callback, *arguments, context=context)
        return super().call_at(when, _run_alive, life, callback, arguments, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *arguments, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        assert executor is None
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if future.done():
                return
            try:
                future.set_result(func(*arguments))
            except Exception as error:  # noqa: BLE001 - raised to the caller
                future.set_exception(error)

        self.call_later(_THREAD_S, run)
        return future

    def finish(self, main: Coroutine[Any, Any, Result]) -> Result:
        """Runs it to its end; whatever else there is goes nowhere."""
        try:
            return self.run_until_complete(main)
        finally:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    # One that waits in a `finally` says that it ignored its end.
                    with contextlib.suppress(RuntimeError, ValueError):
                        task.get_coro().close()
            self._ready.clear()  # type: ignore[attr-defined]
            self._scheduled.clear()  # type: ignore[attr-defined]
            self.close()

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """It never sleeps."""


def _life(context: contextvars.Context | None) -> Life | None:
    return _LIFE.get() if context is None else context.get(_LIFE)


def _run_alive(life: Life, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if not life.is_over:
        callback(*arguments)


def _make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, context: Any = None
) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, context=context)
    assert isinstance(loop, VirtualLoop)
    loop._tasks.append(task)
    return task
