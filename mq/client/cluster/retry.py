"""Retries of requests: one loop with a deadline, the retry-after of the broker, and a back-off.

`call_until_answered` sends one request to one broker after the other until one answers; what a
refusal means for the choice of the next broker is known to its `CallTarget`. `repeat` is the loop
for everything else. A request that is sent again may be carried out twice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message as WireMessage

from mq.client.cluster.errors import retry_after_s
from mq.errors import MqError, NotLeader, Unreachable

T = TypeVar("T")

BACK_OFF_S, BACK_OFF_S_MAX = 0.05, 0.5
CALL_TIMEOUT_S = 5.0


def now_s() -> float:
    return asyncio.get_running_loop().time()


def back_off_s(attempt: int) -> float:
    """Pause after the failure of an attempt; attempts are counted from 0."""
    return min(BACK_OFF_S * float(1 << min(attempt, 10)), BACK_OFF_S_MAX)


class Retry:
    """The pauses between the attempts at one piece of work, up to a deadline."""

    def __init__(self, timeout_s: float = math.inf) -> None:
        self._deadline_s = now_s() + timeout_s
        self._attempt = 0

    @property
    def left_s(self) -> float:
        return self._deadline_s - now_s()

    async def pause(self, at_least_s: float = 0.0) -> bool:
        """Waits until the next attempt is due. Returns False, at once, if that is too late."""
        pause_s = max(back_off_s(self._attempt), at_least_s)
        self._attempt += 1
        if pause_s >= self.left_s:
            return False
        await asyncio.sleep(pause_s)
        return True


async def repeat(attempt: Callable[[float], Awaitable[T]], timeout_s: float) -> T:
    """The result of the first attempt that succeeds; each is given the time that is left. Raises
    what is not retryable, and the last error when the time is over.
    """
    retry = Retry(timeout_s)
    while True:
        try:
            return await attempt(retry.left_s)
        except MqError as error:
            if not error.retryable or not await retry.pause(retry_after_s(error)):
                raise


class UnaryCall(NamedTuple):
    """A request that has one response. A raw response is bytes as they came over the wire."""

    service: str
    method: str
    request: WireMessage
    timeout_s: float
    # For one attempt; None: all of the time that is left.
    attempt_s: float | None = None
    raw_response: bool = False


class CallTarget(Protocol):
    """The brokers that may answer a call, and what a refusal says about them."""

    @property
    def addresses(self) -> Iterable[str]: ...

    def next_address(self, tried: list[str]) -> str: ...

    async def ask(self, address: str, call: UnaryCall, timeout_s: float) -> Any: ...

    def not_leader(self, address: str, leader: str = "") -> str: ...

    def failed(self, address: str) -> None: ...

    async def gave_up(self, failure: MqError, timeout_s: float, server: str = "") -> MqError:
        """Returns the error for a time-out; `failure` is that of the last attempt."""
        ...


async def call_until_answered(target: CallTarget, call: UnaryCall, server: str = "") -> Any:
    """The response; of `server` and no other broker, if that is given.

    A broker that does not lead, or is not reached, is followed by the next one until the time is
    over. Raises the error of a broker; Unreachable or NoLeader when no broker answers.
    """
    retry = Retry(call.timeout_s)
    tried: list[str] = []
    while True:
        address = server or target.next_address(tried)
        left_s = max(retry.left_s, 0.001)
        try:
            return await target.ask(address, call, min(left_s, call.attempt_s or left_s))
        except NotLeader as error:
            failure: MqError = error
            hint = target.not_leader(address, error.address or "")
            # A new hint is followed at once, a loop of hints with a pause. Without a hint all
            # other brokers come first.
            must_wait = hint in (*tried, address) if hint else _are_tried(target, tried, address)
        except Unreachable as error:
            failure = error
            target.failed(address)
            must_wait = bool(server) or _are_tried(target, tried, address)
        tried = [] if must_wait else [*tried, address]
        is_over = not await retry.pause() if must_wait else retry.left_s <= 0
        if is_over:
            raise await target.gave_up(failure, call.timeout_s, server) from None


def _are_tried(target: CallTarget, tried: list[str], last: str) -> bool:
    return all(one in (*tried, last) for one in target.addresses)


class Answer(NamedTuple):
    """As it came over the wire. `is_repeated`: an earlier attempt had no answer, and may have been
    carried out.
    """

    data: bytes
    is_repeated: bool


async def call_repeatedly(
    broker_set: CallTarget, service: str, method: str, request: WireMessage, timeout_s: float
) -> Answer:
    """The answer of the leader of a set. Repeated when no broker answers, when the outcome of an
    attempt is unknown, and when the broker is busy, until the time is over; then raises why.
    """
    target = _CountingTarget(broker_set)

    async def attempt(left_s: float) -> bytes:
        call = UnaryCall(service, method, request, left_s, raw_response=True)
        try:
            data: bytes = await call_until_answered(target, call)
        except MqError:
            target.unanswered += 1
            raise
        return data

    return Answer(await repeat(attempt, timeout_s), target.unanswered > 0)


class _CountingTarget:
    """The brokers of a set, and how many attempts of one call had no answer."""

    def __init__(self, broker_set: CallTarget) -> None:
        self._broker_set = broker_set
        self.next_address = broker_set.next_address
        self.not_leader = broker_set.not_leader
        self.gave_up = broker_set.gave_up
        self.ask = broker_set.ask
        self.unanswered = 0

    @property
    def addresses(self) -> Iterable[str]:
        return self._broker_set.addresses

    def failed(self, address: str) -> None:
        self.unanswered += 1
        self._broker_set.failed(address)
