"""Waiting for something with a deadline, and saying what it was when it does not come.

    poll(lambda: broker.leader(), "a leader")
    await until(lambda: len(received) == 3, "3 messages received")

Deadlines are generous: a shared machine may stand still for half a minute, and no test is about how
long something takes. They are shorter than the time-out of a test in `pyproject.toml`, which knows
the line that waited and not its purpose.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 90.0
_PAUSE_S = 0.005

Answer = TypeVar("Answer")


def poll(question: Callable[[], Answer], what: str, deadline_s: float = DEADLINE_S) -> Answer:
    """Returns the first true answer."""
    deadline = time.monotonic() + deadline_s
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s:g} s: {what}; last answer: {answer!r}")
        time.sleep(_PAUSE_S)
    return answer


async def until(
    question: Callable[[], Answer], what: str, deadline_s: float = DEADLINE_S
) -> Answer:
    """As `poll`, while the loop runs on."""
    deadline = time.monotonic() + deadline_s
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s:g} s: {what}; last answer: {answer!r}")
        await asyncio.sleep(_PAUSE_S)
    return answer
