"""Long work on the loop, cut into pieces so that other requests get their turns in between.

What is worked on must not change meanwhile: give it a copy.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

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


async def encode_in_turns(
    answer: Message, field: str, elements: Iterable[Mapping[str, Any]]
) -> bytes:
    """The bytes of an answer with these elements in a repeated field of messages. Encoded messages
    that follow each other are one message, so very many elements are encoded in pieces.
    """
    turn, left = TimeSlice(), iter(elements)
    parts: list[bytes] = []
    while piece := list(itertools.islice(left, _PIECE)):
        add = getattr(answer, field).add
        for element in piece:
            add(**element)
        parts.append(answer.SerializeToString())
        answer = type(answer)()
        await turn.over()
    return b"".join(parts) or answer.SerializeToString()


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
