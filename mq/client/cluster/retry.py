"""Retries of requests: one loop with a deadline, the retry-after of the broker, and a back-off.

`CallTarget.call` sends one request to one broker after the other until one answers; `repeat` is the
loop for everything else. A request that is sent again may be carried out twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from google.protobuf.message import Message as WireMessage

from mq.client.cluster.errors import WrongTransport, retry_after_s
from mq.errors import MqError, NotLeader, Unauthenticated, Unreachable

if TYPE_CHECKING:
    from mq.client.cluster.connection import Servers

T = TypeVar("T")

BACK_OFF_S, BACK_OFF_S_MAX = 0.05, 0.5
CALL_TIMEOUT_S = 5.0


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def is_set(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Waits for the event, at most so long. Returns whether it is set."""
    # Not wait_for: it swallows a cancellation that coincides with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancels the tasks, and waits until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def is_being_cancelled() -> bool:
    """Whether this task is cancelled. Otherwise what it waits for was, which looks the same."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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


class Throttle:
    """The pauses that a broker set asks for with `throttle_ms` in its answers, while a rate of the
    caller's quotas is exceeded: what is sent all the same would soon be refused.
    """

    def __init__(self) -> None:
        self._until_s = 0.0

    def asked(self, throttle_ms: int) -> float:
        """An answer has this `throttle_ms`, mostly 0. Returns for how long to send nothing."""
        if throttle_ms:
            self._until_s = max(self._until_s, now_s() + throttle_ms / 1000)
        return throttle_ms / 1000

    @property
    def is_on(self) -> bool:
        return self._until_s > 0.0 and now_s() < self._until_s

    async def wait(self) -> None:
        """Until the next request may be sent."""
        while self.is_on:  # noqa: ASYNC110 # other answers may prolong it
            await asyncio.sleep(self._until_s - now_s())


class CallTarget(ABC):
    """The brokers that may answer a request, and what a refusal says about them. The type of a
    request names its method.
    """

    servers: Servers

    async def call(
        self,
        request: WireMessage,
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        attempt_s: float = math.inf,
        first: Sequence[str] = (),
        server: str = "",
        raw_response: bool = False,
        unanswered: list[MqError] | None = None,
    ) -> Any:
        """The response; a raw one is the bytes of the wire. The brokers in `first` are asked before
        others; `server`, and no other, if that is given. Errors of attempts without an answer,
        which may have been carried out, are added to `unanswered`.

        A broker that does not lead, or is not reached within `attempt_s`, is followed by the next
        one until the time is over: a request may be carried out twice. Raises the error of a
        broker; Unreachable, NotLeader or NoLeader when no broker answers.
        """
        retry = Retry(timeout_s)
        tried: list[str] = []
        while True:
            preferred = [one for one in first if one not in tried]
            address = server or (preferred[0] if preferred else self._next_address(tried))
            left_s = max(retry.left_s, 0.001)
            try:
                return await self.ask(
                    address, request, min(left_s, attempt_s), raw_response=raw_response
                )
            except NotLeader as error:
                failure: MqError = error
                hint = self.not_leader(address, error.address or "")
            except Unreachable as error:
                failure, hint = error, ""
                self.failed(address)
                if unanswered is not None:
                    unanswered.append(error)
            except Unauthenticated as error:
                if server:
                    raise
                return await self._known_elsewhere(error, address, request, left_s)
            # A new hint is followed at once, a loop of hints with a pause. Without a hint all other
            # brokers come first.
            known = {*tried, address}
            must_wait = bool(server) or (hint in known if hint else known.issuperset(self.servers))
            if must_wait and isinstance(failure, WrongTransport):
                raise failure
            tried = [] if must_wait else [*tried, address]
            is_over = not await retry.pause() if must_wait else retry.left_s <= 0
            if is_over:
                raise await self._gave_up(failure, timeout_s, server) from None

    async def _known_elsewhere(
        self,
        error: Unauthenticated,
        address: str,  # noqa: ARG002 # for targets that ask others
        request: WireMessage,  # noqa: ARG002
        timeout_s: float,  # noqa: ARG002
    ) -> Any:
        """The broker at `address` does not know the caller. Returns the answer of another one that
        does, or raises the error.
        """
        raise error

    async def ask(
        self, address: str, request: WireMessage, timeout_s: float, *, raw_response: bool = False
    ) -> Any:
        """One attempt at one broker, which measures its latency."""
        began_s = now_s()
        answer = await self.attempt(address, request, timeout_s, raw_response=raw_response)
        # Requests that wait for messages do not measure the latency of the network.
        if not getattr(request, "wait_ms", 0):
            self.servers.succeeded(address, now_s() - began_s)
        return answer

    @abstractmethod
    async def attempt(
        self, address: str, request: WireMessage, timeout_s: float, *, raw_response: bool = False
    ) -> Any:
        """One attempt at one broker."""

    @abstractmethod
    def _next_address(self, tried: list[str]) -> str: ...

    @abstractmethod
    def not_leader(self, address: str, leader: str = "") -> str:
        """`address` does not lead, and reported `leader`. Returns the broker to ask next; empty:
        any other.
        """

    @abstractmethod
    def failed(self, address: str) -> None:
        """The broker was not reached, or broke off."""

    @abstractmethod
    async def _gave_up(self, failure: MqError, timeout_s: float, server: str) -> MqError:
        """Returns the error for a time-out; `failure` is that of the last attempt."""


class Answer(NamedTuple):
    """As it came over the wire. `is_repeated`: an earlier attempt had no answer, and may have been
    carried out.
    """

    data: bytes
    is_repeated: bool


async def call_repeatedly(target: CallTarget, request: WireMessage, timeout_s: float) -> Answer:
    """Repeated when no broker answers, when the outcome of an attempt is unknown, and when the
    broker is busy, until the time is over; then raises why.
    """
    unanswered: list[MqError] = []

    async def attempt(left_s: float) -> bytes:
        try:
            data: bytes = await target.call(
                request, left_s, raw_response=True, unanswered=unanswered
            )
        except MqError as error:
            unanswered.append(error)
            raise
        return data

    return Answer(await repeat(attempt, timeout_s), bool(unanswered))
