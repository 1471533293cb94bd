"""Long work on the loop, cut into pieces so that other requests get their turns in between.

What is worked on must not change meanwhile: give it a copy.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

# The longest time that one request may hold the loop before others get a turn.
TURN_S = 0.01
_PIECE = 500


async def in_turns(work: Iterable[T]) -> list[T]:
    """As `list(work)`, for a generator whose items cost something. Few items take one turn."""
    done: list[T] = []
    turn = TimeSlice()
    items = iter(work)
    while piece := list(itertools.islice(items, _PIECE)):
        done += piece
        await turn.over()
    return done


class TimeSlice:
    """A request's turn on the loop: it is asked now and then whether it is over."""

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s = time.perf_counter() + TURN_S

    async def over(self) -> None:
        """Lets others run, if this turn has lasted long enough."""
        if time.perf_counter() > self._until_s:
            await asyncio.sleep(0)
            self._until_s = time.perf_counter() + TURN_S
