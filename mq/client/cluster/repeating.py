"""A call to the leader of a set, made again while nobody knows what came of it. Says whether an
attempt had no answer: the broker may have carried that one out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from google.protobuf.message import Message as WireMessage

from mq.client.cluster.asking import Question, ask_until, back_off_s, now_s
from mq.client.cluster.set_connection import SetConnection
from mq.errors import MqError


class Answer(NamedTuple):
    """As it came over the wire. `is_repeated`: another attempt had no answer."""

    data: bytes
    is_repeated: bool


async def call_repeatedly(
    broker_set: SetConnection, service: str, method: str, request: WireMessage, timeout_s: float
) -> Answer:
    """Made again when nobody answers, when nobody knows the outcome, and when the broker has too
    much to do, until the time is over; then raises why.
    """
    deadline_s = now_s() + timeout_s
    counting = _Counting(broker_set)
    attempt = 0
    while True:
        question = Question(service, method, request, deadline_s - now_s(), raw_response=True)
        try:
            data: bytes = await ask_until(counting, question)
        except MqError as error:
            pause_s = back_off_s(attempt)
            attempt += 1
            if not error.retryable or now_s() + pause_s >= deadline_s:
                raise
            counting.unanswered += 1
            await asyncio.sleep(pause_s)
        else:
            return Answer(data, counting.unanswered > 0)


class _Counting:
    """One call: the brokers of a set, and how many attempts had no answer."""

    def __init__(self, broker_set: SetConnection) -> None:
        self._broker_set = broker_set
        self.next_address = broker_set.next_address
        self.not_leader = broker_set.not_leader
        self.gave_up = broker_set.gave_up
        self.unanswered = 0

    @property
    def addresses(self) -> Iterable[str]:
        return self._broker_set.addresses

    async def ask(self, address: str, question: Question, timeout_s: float) -> Any:
        return await self._broker_set.ask(address, question, timeout_s)

    def failed(self, address: str) -> None:
        self.unanswered += 1
        self._broker_set.failed(address)
