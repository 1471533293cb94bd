"""Requests that change the same state, decided one turn after the other.

While the entry of one turn is in flight, requests gather; then all of them are decided together, on
a state without unfinished entries of theirs, and become one entry. So a decision never guesses what
an unfinished entry will do, and a busy service writes few entries, each for many requests.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from mq.broker.leading import Leadership
from mq.broker.state.machine import ProposedEntry
from mq.broker.writing import EntryWriter
from mq.errors import MqError
from mq.logging import get_logger

log = get_logger(__name__)

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class TurnDecision(NamedTuple, Generic[Answer]):
    """An answer for each request, or the error that refuses it. Answers are given when `entry` is
    applied, or at once if there is none. With fewer answers than requests the other requests come
    again in the next turn; the first request is always answered.
    """

    answers: Sequence[Answer | MqError]
    entry: ProposedEntry | None = None
    # Called when `entry` is applied or has failed, before the answers are given.
    over: Callable[[MqError | None], None] | None = None


class Submitted(Generic[Request, Answer]):
    """A request that waits for its answer."""

    __slots__ = ("answer", "request")

    def __init__(self, request: Request, answer: Callable[[Answer | Exception], None]) -> None:
        self.request = request
        self.answer: Callable[[Answer | Exception], None] | None = answer

    def cancel(self) -> None:
        """No answer is wanted; a request that is not decided yet is dropped."""
        self.answer = None


class BatchedDecider(Generic[Request, Answer]):
    def __init__(
        self,
        writer: EntryWriter,
        leadership: Leadership,
        decide: Callable[[list[Request]], TurnDecision[Answer]],
        *,
        requests_max: int = 1_000,
    ) -> None:
        """`decide` must not wait. An exception of it is the answer to all requests of the turn, so
        an error of one request has to be an answer instead.
        """
        self._writer = writer
        self._leadership = leadership
        self._decide = decide
        self._requests_max = requests_max
        self._waiting: list[Submitted[Request, Answer]] = []
        # A turn is scheduled, or its entry is in flight.
        self._is_busy = False

    def begin(
        self, request: Request, answer: Callable[[Answer | Exception], None]
    ) -> Submitted[Request, Answer]:
        """`answer` is called once, later, on the loop: with the answer when its entry is applied,
        or with an error as `Consensus.propose` has, also NotLeader.
        """
        submitted: Submitted[Request, Answer] = Submitted(request, answer)
        self._waiting.append(submitted)
        if not self._is_busy:
            self._is_busy = True
            asyncio.get_running_loop().call_soon(self._run)
        return submitted

    async def submit(self, request: Request) -> Answer:
        """The answer, when its entry is applied. Raises NotLeader; as `Consensus.propose`."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def fulfil(answer: Answer | Exception) -> None:
            if future.done():
                return
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        submitted = self.begin(request, fulfil)
        try:
            return await future
        finally:
            submitted.cancel()

    def _run(self) -> None:
        """One turn after the other, until an entry is in flight or no request waits."""
        while self._waiting:
            submitted = self._waiting[: self._requests_max]
            del self._waiting[: self._requests_max]
            if self._turn([one for one in submitted if one.answer is not None]):
                return
        self._is_busy = False

    def _turn(self, submitted: list[Submitted[Request, Answer]]) -> bool:
        """Returns whether an entry is in flight: `_over` goes on when it is applied."""
        if not submitted:
            return False
        try:
            self._leadership.check()
            decision = self._decide([one.request for one in submitted])
        except Exception as error:  # noqa: BLE001 - told to the callers
            _tell(submitted, [error] * len(submitted))
            return False
        decided = len(decision.answers)
        if decided < len(submitted):
            self._waiting[:0] = submitted[decided:]
            del submitted[decided:]
        if decision.entry is None:
            _tell(submitted, decision.answers)
            return False
        self._writer.propose(decision.entry, functools.partial(self._over, submitted, decision))
        return True

    def _over(
        self,
        submitted: list[Submitted[Request, Answer]],
        decision: TurnDecision[Answer],
        failure: MqError | None,
    ) -> None:
        answers: Sequence[Answer | Exception] = decision.answers
        if failure is not None:
            answers = [one if isinstance(one, MqError) else failure for one in answers]
        if decision.over is not None:
            decision.over(failure)
        _tell(submitted, answers)
        self._run()


def _tell(
    submitted: Sequence[Submitted[Request, Answer]], answers: Sequence[Answer | Exception]
) -> None:
    for one, answer in zip(submitted, answers, strict=True):
        if one.answer is None:
            continue
        try:
            one.answer(answer)
        except Exception:
            # One mistake must not leave the other callers without an answer.
            log.exception("a caller failed on its answer")
