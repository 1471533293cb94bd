"""The event loop behind the synchronous faces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from mq.client import sync
from mq.client.sync import Background, background

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


def test_clients_in_a_child_process_are_told_that_they_cannot_work(
    one: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_current", one)
    monkeypatch.setattr(sync, "_lock", threading.Lock())
    sync._after_fork()
    with pytest.raises(RuntimeError, match="was forked"):
        background()
    with pytest.raises(RuntimeError, match="was forked"):
        one.run(thread_name())
    with pytest.raises(RuntimeError, match="was forked"):
        one.check_not_forked()


def test_a_process_that_was_forked_before_the_first_client_has_its_own(
    one: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_current", None)
    monkeypatch.setattr(sync, "_lock", threading.Lock())
    sync._after_fork()
    monkeypatch.setattr(sync, "Background", lambda: one)
    assert background() is one
