"""Requests that change the same state, decided one turn after the other.

While the entry of one turn is in flight, requests gather; then all of them are decided together, on
a state without unfinished entries of theirs, and become one entry. So a decision never guesses what
an unfinished entry will do, and a busy service writes few entries, each for many requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from mq.broker.leading import Leadership
from mq.broker.state.machine import ProposedEntry
from mq.broker.writing import EntryWriter
from mq.errors import MqError, NodeStopped, OutcomeUnknown
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
        self._task: asyncio.Task[None] | None = None

    def begin(
        self, request: Request, answer: Callable[[Answer | Exception], None]
    ) -> Submitted[Request, Answer]:
        """`answer` is called once, later, on the loop: with the answer when its entry is applied,
        or with an error as `Consensus.propose` has. It must not raise. Raises NotLeader.
        """
        self._leadership.check()
        submitted: Submitted[Request, Answer] = Submitted(request, answer)
        self._waiting.append(submitted)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
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

    async def _run(self) -> None:
        try:
            while self._waiting:
                submitted = self._waiting[: self._requests_max]
                del self._waiting[: self._requests_max]
                await self._turn(submitted)
        finally:
            self._task = None
            waiting, self._waiting = self._waiting, []
            if waiting:  # only when the loop ends
                _tell(waiting, [NodeStopped("the node is stopping")] * len(waiting))

    async def _turn(self, submitted: list[Submitted[Request, Answer]]) -> None:
        submitted = [one for one in submitted if one.answer is not None]
        if not submitted:
            return
        try:
            self._leadership.check()
            decision = self._decide([one.request for one in submitted])
        except Exception as error:  # noqa: BLE001 - told to the callers
            _tell(submitted, [error] * len(submitted))
            return
        answers: Sequence[Answer | Exception] = decision.answers
        self._waiting[:0] = submitted[len(answers) :]
        submitted = submitted[: len(answers)]
        if decision.entry is not None:
            failure: MqError | None = None
            try:
                await self._writer.propose(decision.entry)
            except MqError as error:
                failure = error
            except Exception:
                log.exception("a mistake of the broker's in an entry of its own")
                failure = OutcomeUnknown("the broker made a mistake; its log says more")
            if failure is not None:
                answers = [one if isinstance(one, MqError) else failure for one in answers]
            if decision.over is not None:
                decision.over(failure)
        _tell(submitted, answers)


def _tell(
    submitted: Sequence[Submitted[Request, Answer]], answers: Sequence[Answer | Exception]
) -> None:
    for one, answer in zip(submitted, answers, strict=True):
        if one.answer is not None:
            one.answer(answer)
