"""Lookups of host names: one a name, on threads that hold nothing up."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from mq.raft.lookup import Lookup


class SlowNames:
    """The system's lookup, which waits until it is told to go on."""

    def __init__(self, *answers: str | OSError) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self.goes_on = threading.Event()

    def __call__(self, host: str, *_: object, **__: object) -> list[Any]:
        self.asked.append(host)
        assert self.goes_on.wait(60)
        answer = self._answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        return [(*kind, (one, 0)) for one in answer.split()]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> SlowNames:
    slow = SlowNames("10.0.0.1 10.0.0.2 10.0.0.1", "10.0.0.3")
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    return slow


def test_callers_that_give_up_leave_one_lookup_to_the_next(names: SlowNames) -> None:
    async def ask() -> None:
        lookup = Lookup()
        for _ in range(3):
            asking = asyncio.ensure_future(lookup.addresses("n1"))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        names.goes_on.set()
        assert await lookup.addresses("n1") == ["10.0.0.1", "10.0.0.2"]
        assert names.asked == ["n1"]
        # Nothing is remembered: it may have moved.
        assert await lookup.addresses("n1") == ["10.0.0.3"]

    asyncio.run(ask())


def test_a_name_that_does_not_exist_is_an_error_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    names = SlowNames(socket.gaierror(-2, "Name or service not known"), "10.0.0.1")
    names.goes_on.set()
    monkeypatch.setattr(socket, "getaddrinfo", names)

    async def ask() -> None:
        lookup = Lookup()
        with pytest.raises(OSError, match="not known"):
            await lookup.addresses("n1")
        assert await lookup.addresses("n1") == ["10.0.0.1"]

    asyncio.run(ask())


def test_the_end_of_the_loop_does_not_wait_for_a_lookup(names: SlowNames) -> None:
    async def ask() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Lookup().addresses("n1")

    asyncio.run(ask())
    names.goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "mq-lookup":
            assert thread.daemon
            thread.join(60)


def test_addresses_are_not_looked_up(names: SlowNames) -> None:
    async def ask() -> None:
        for one in ("127.0.0.1", "::1"):
            assert await Lookup().addresses(one) == [one]

    asyncio.run(ask())
    assert names.asked == []
