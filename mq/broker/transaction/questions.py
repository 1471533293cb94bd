"""Producers that can be asked what became of a transaction: those with a stream, by producer group.

A question is handed over and forgotten: a producer that does not answer delays no other, and is not
the one that is asked next time. What waits for a producer that does not read is bounded; beyond
that a question is dropped, and comes again when it is due again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from mq.broker.state.transactions import Transaction
from mq.errors import MqError
from mq.store.batch import Batch

_WAITING_MAX = 1_000
_WAITING_BYTES_MAX = 8 << 20


class Question(NamedTuple):
    transaction: Transaction
    batch: Batch


class Respondent:
    """A producer's stream, as questions see it. Ends with an error that its owner hears."""

    def __init__(self, group: str, producer_id: str, *, answers_checks: bool) -> None:
        self.group = group
        self.producer_id = producer_id
        self.answers_checks = answers_checks
        self._waiting: deque[Question] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._error: MqError | None = None

    def ask(self, question: Question) -> bool:
        """Never waits. False: too much waits already, or the stream is over."""
        size = len(question.batch.data)
        has_room = not self._waiting or (
            len(self._waiting) < _WAITING_MAX and self._waiting_bytes + size <= _WAITING_BYTES_MAX
        )
        if not has_room or self._error is not None:
            return False
        self._waiting.append(question)
        self._waiting_bytes += size
        self._news.set()
        return True

    async def next(self) -> Question:
        """The next question. Raises what the stream ended with, at once."""
        while self._error is not None or not self._waiting:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        question = self._waiting.popleft()
        self._waiting_bytes -= len(question.batch.data)
        return question

    def end(self, error: MqError) -> None:
        self._error = self._error or error
        self._waiting.clear()
        self._news.set()


class Respondents:
    def __init__(self) -> None:
        self._groups: dict[str, deque[Respondent]] = {}
        self._silent: set[Respondent] = set()

    def __len__(self) -> int:
        return sum(map(len, self._groups.values())) + len(self._silent)

    def join(self, one: Respondent) -> None:
        if one.answers_checks:
            self._groups.setdefault(one.group, deque()).append(one)
        else:
            self._silent.add(one)

    def leave(self, one: Respondent) -> None:
        self._silent.discard(one)
        group = self._groups.get(one.group)
        if group is not None and one in group:
            group.remove(one)
            if not group:
                del self._groups[one.group]

    def count(self, group: str) -> int:
        return len(self._groups.get(group, ()))

    def ask(self, question: Question) -> str | None:
        """Asks a producer of the transaction's group, in turn; the first question goes to the
        producer that began it, if it is alive: it knows whether it is still at work. Returns the
        producer's id; None: no producer is connected.
        """
        group = self._groups.get(question.transaction.producer_group, deque())
        maker = question.batch.producer_id if question.transaction.checks <= 1 else ""
        if maker:
            for one in group:
                if one.producer_id == maker and one.ask(question):
                    return one.producer_id
        for _ in range(len(group)):
            group.rotate(-1)
            if group[-1].ask(question):
                return group[-1].producer_id
        return None

    def end_all(self, error: MqError) -> None:
        """All have to go to another node. Their owners remove them."""
        for group in self._groups.values():
            for one in group:
                one.end(error)
        for one in self._silent:
            one.end(error)
