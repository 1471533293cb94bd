"""Requests that change the same state, decided one turn after the other.

While the entry of one turn is on its way, requests gather; then all of them are decided together,
on a state in which nothing of theirs is under way, and become one entry. So decisions never guess
what an unfinished entry will do, and a busy service writes few entries, each for many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from mq.broker.leading import Leadership
from mq.broker.state.machine import ProposedEntry
from mq.broker.writing import EntryWriter
from mq.errors import MqError, OutcomeUnknown
from mq.logging import get_logger

log = get_logger(__name__)

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Verdict(NamedTuple, Generic[Answer]):
    """An answer for each request, or why it is refused. Given when `entry` is applied; nothing to
    write: at once. Fewer answers than requests: the others are asked again in the next turn; the
    first request is always answered.
    """

    answers: Sequence[Answer | MqError]
    entry: ProposedEntry | None = None
    # Called when `entry` is applied, or has failed with this, before the answers are given.
    over: Callable[[MqError | None], None] | None = None


class Turns(Generic[Request, Answer]):
    def __init__(
        self,
        writer: EntryWriter,
        leadership: Leadership,
        decide: Callable[[list[Request]], Verdict[Answer]],
        *,
        requests_max: int = 1_000,
    ) -> None:
        """`decide` must not wait. What it raises is the answer to all requests of the turn, so that
        what is wrong with one request is an answer, and is not raised.
        """
        self._writer = writer
        self._leadership = leadership
        self._decide = decide
        self._requests_max = requests_max
        self._waiting: list[tuple[Request, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, request: Request) -> Answer:
        """The answer, when what it needed is applied. NotLeader; as `Consensus.propose`."""
        self._leadership.check()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((request, future))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                asked = self._waiting[: self._requests_max]
                del self._waiting[: self._requests_max]
                await self._turn(asked)
        finally:
            self._task = None
            waiting, self._waiting = self._waiting, []
            for _, future in waiting:  # only when the loop ends
                future.cancel()

    async def _turn(self, asked: list[tuple[Request, asyncio.Future[Answer]]]) -> None:
        # Whoever does not wait any more wants nothing.
        asked = [one for one in asked if not one[1].done()]
        if not asked:
            return
        try:
            self._leadership.check()
            verdict = self._decide([request for request, _ in asked])
        except Exception as error:  # noqa: BLE001 - told to those who asked
            _tell([future for _, future in asked], [error] * len(asked))
            return
        answers: Sequence[Answer | Exception] = verdict.answers
        self._waiting[:0] = asked[len(answers) :]
        asked = asked[: len(answers)]
        if verdict.entry is not None:
            failure: MqError | None = None
            try:
                await self._writer.propose(verdict.entry)
            except MqError as error:
                failure = error
            except Exception:
                log.exception("a mistake of the broker's in an entry of its own")
                failure = OutcomeUnknown("the broker made a mistake; its log says more")
            if failure is not None:
                answers = [one if isinstance(one, MqError) else failure for one in answers]
            if verdict.over is not None:
                verdict.over(failure)
        _tell([future for _, future in asked], answers)


def _tell(futures: Sequence[asyncio.Future[Answer]], answers: Sequence[Answer | Exception]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
