"""The event loop behind the clients without asyncio, and the threads of their handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from mq.client import lifecycle
from mq.client.lifecycle import (
    AsyncClient,
    Background,
    HandlerThreads,
    SyncClient,
    background,
    on_caller,
)

DEADLINE_S = 10.0


@pytest.fixture
def one() -> Iterator[Background]:
    made = Background()
    yield made
    made.is_forked = False
    made.stop()
    made.loop.close()


async def thread_name() -> str:
    return threading.current_thread().name


async def for_ever(ended: threading.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


def test_work_runs_on_a_thread_of_its_own(one: Background) -> None:
    assert one.run(thread_name()) == "mq-client"


def test_all_clients_of_a_process_share_one() -> None:
    assert background() is background()


def test_work_that_takes_too_long_is_cancelled(one: Background) -> None:
    ended = threading.Event()
    with pytest.raises(TimeoutError):
        one.run(for_ever(ended), timeout_s=0.01)
    assert ended.wait(DEADLINE_S)


def test_work_that_waits_for_its_own_thread_is_refused(one: Background) -> None:
    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="must not wait"):
            one.run(thread_name())

    one.run(scenario())


def test_clients_raise_in_a_child_process(one: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_current", one)
    monkeypatch.setattr(lifecycle, "_lock", threading.Lock())
    lifecycle._after_fork()
    with pytest.raises(RuntimeError, match="was forked"):
        background()
    with pytest.raises(RuntimeError, match="was forked"):
        one.run(thread_name())
    with pytest.raises(RuntimeError, match="was forked"):
        one.check_not_forked()


def test_a_process_that_was_forked_before_the_first_client_has_its_own(
    one: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_current", None)
    monkeypatch.setattr(lifecycle, "_lock", threading.Lock())
    lifecycle._after_fork()
    monkeypatch.setattr(lifecycle, "Background", lambda: one)
    assert background() is one


# Handlers on threads


class Twin(AsyncClient):
    """An asyncio client, by hand."""

    def __init__(self, handler: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.handler = handler
        self.is_left = False

    async def call(self, *args: Any) -> Any:
        try:
            return await self.handler(*args)
        except asyncio.CancelledError:
            self.is_left = True
            raise

    async def close(self) -> None:
        """Nothing to close."""


class Client(SyncClient[Twin]):
    """As one that is generated."""

    def call(self, *args: Any) -> Any:
        return self._run(self._client.call(*args))

    def call_serving(self, *args: Any) -> Any:
        return self._serve(self._client.call(*args))


def client(handler: Callable[..., Any], count: int = 2) -> Client:
    handlers = HandlerThreads(count, "mq-g")
    return Client(Twin(handlers.wrap(handler)), handlers)


def test_a_handler_runs_on_a_thread_of_its_client() -> None:
    with client(lambda text: (text, threading.current_thread())) as one:
        text, thread = one.call("a")
    assert (text, thread.name, thread.daemon) == ("a", "mq-g-0", True)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("raised", [ValueError, StopIteration, SystemExit, asyncio.CancelledError])
def test_any_exception_of_a_handler_is_an_exception_in_the_coroutine(
    raised: type[BaseException],
) -> None:
    def fail() -> None:
        raise raised("of the user")

    with client(fail, 1) as one:
        for _ in range(3):
            with pytest.raises((ValueError, RuntimeError), match="of the user"):
                one.call()


def test_a_handler_that_closes_its_client_raises() -> None:
    with (
        client(Client.close) as made,
        pytest.raises(RuntimeError, match="must not close its own client"),
    ):
        made.call(made)


# Callbacks on the thread of the caller


def test_a_callback_runs_on_the_thread_that_waits() -> None:
    with Client(Twin(on_caller(lambda text: (text, threading.current_thread())))) as one:
        assert one.call_serving("a") == ("a", threading.current_thread())


def test_an_error_of_a_callback_is_one_of_the_coroutine() -> None:
    def fail() -> None:
        raise ValueError("of the user")

    with (
        Client(Twin(on_caller(fail))) as one,
        pytest.raises(ValueError, match="of the user"),
    ):
        one.call_serving()


def test_an_interrupt_of_a_callback_cancels_the_coroutine() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    twin = Twin(on_caller(interrupt))
    with Client(twin) as one, pytest.raises(KeyboardInterrupt):
        one.call_serving()
    assert twin.is_left
