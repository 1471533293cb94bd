"""One request, asked until somebody answers it or its time is over: the loop that calls to the
leader of a set and calls to whatever broker have in common.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from google.protobuf.message import Message as WireMessage

from mq.errors import MqError, NotLeader, Unreachable

BACK_OFF_S, BACK_OFF_S_MAX = 0.05, 0.5


class Question:
    """What is asked. A raw answer is bytes as they came over the wire."""

    __slots__ = ("attempt_s", "method", "raw_response", "request", "service", "timeout_s")

    def __init__(
        self,
        service: str,
        method: str,
        request: WireMessage,
        timeout_s: float,
        attempt_s: float | None = None,
        *,
        raw_response: bool = False,
    ) -> None:
        self.service = service
        self.method = method
        self.request = request
        self.timeout_s = timeout_s
        self.attempt_s = attempt_s
        self.raw_response = raw_response


class Asked(Protocol):
    """Whom to ask, and what is made of a refusal."""

    @property
    def addresses(self) -> Iterable[str]: ...

    def next_address(self, tried: list[str]) -> str: ...

    async def ask(self, address: str, question: Question, timeout_s: float) -> Any: ...

    def not_leader(self, address: str, leader: str = "") -> str: ...

    def failed(self, address: str) -> None: ...

    async def gave_up(self, failure: MqError, timeout_s: float, server: str = "") -> MqError:
        """Returns the error for a time-out; `failure` is that of the last attempt."""
        ...


def now_s() -> float:
    return asyncio.get_running_loop().time()


def back_off_s(attempt: int) -> float:
    """How long to wait before the next attempt; the first one has the number 0."""
    return min(BACK_OFF_S * float(1 << min(attempt, 10)), BACK_OFF_S_MAX)


async def ask_until(asked: Asked, question: Question, server: str = "") -> Any:
    """The answer; of `server` and no other, if that is given.

    Asks again until the time is over when nobody leads or nobody was reached, so that a request may
    be carried out twice. Raises what the broker answers; Unreachable, or NoLeader, when none does.
    """
    deadline_s = now_s() + question.timeout_s
    tried: list[str] = []
    attempt = 0
    while True:
        address = server or asked.next_address(tried)
        left_s = max(deadline_s - now_s(), 0.001)
        try:
            return await asked.ask(address, question, min(left_s, question.attempt_s or left_s))
        except NotLeader as error:
            failure: MqError = error
            hint = asked.not_leader(address, error.address or "")
            # A hint that was not tried is followed at once, a loop of hints with a pause. Who knows
            # of nobody is not asked again before the others.
            must_wait = hint in (*tried, address) if hint else _are_tried(asked, tried, address)
        except Unreachable as error:
            failure = error
            asked.failed(address)
            must_wait = bool(server) or _are_tried(asked, tried, address)
        tried = [] if must_wait else [*tried, address]
        if must_wait:
            pause_s = back_off_s(attempt)
            attempt += 1
            if now_s() + pause_s >= deadline_s:
                raise await asked.gave_up(failure, question.timeout_s, server) from None
            await asyncio.sleep(pause_s)
        elif now_s() >= deadline_s:
            raise await asked.gave_up(failure, question.timeout_s, server) from None


def _are_tried(asked: Asked, tried: list[str], last: str) -> bool:
    return all(one in (*tried, last) for one in asked.addresses)
