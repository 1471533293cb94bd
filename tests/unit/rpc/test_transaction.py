"""A Transact stream, what it writes: several answers at once, and each question alone."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from google.protobuf.message import DecodeError

from mq.broker.transaction.questions import Respondent
from mq.rpc import framing
from mq.rpc.transaction import _Calls, _Stream
from mq.wire.v1.transaction_pb2 import CheckTransaction, HalfStored, TransactResponse


class _Written:
    def __init__(self) -> None:
        self.messages: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self.messages.append(data)


def question(name: str, frames: bytes) -> bytes:
    return framing.transact_check(CheckTransaction(transaction_id=name).SerializeToString(), frames)


def answer(request_id: int) -> bytes:
    return TransactResponse(request_id=request_id, half=HalfStored()).SerializeToString()


def written(*responses: bytes, reads_more: bool) -> list[bytes]:
    async def write() -> list[bytes]:
        context = _Written()
        respondent = Respondent("g", "p", answers_checks=True)
        calls = cast("_Calls", None)
        stream = _Stream(calls, respondent, cast("Any", context), reads_more=reads_more)
        for one in (*responses, None):
            stream._out.put_nowait(one)
        await stream._write()
        return context.messages

    return asyncio.run(write())


def test_a_malformed_message_spoils_its_own_question_alone() -> None:
    broken, good = question("broken", b"\x7a\x02\xff\xff"), question("good", b"\x7a\x00")
    answers, *questions = written(answer(0), broken, answer(7), good, reads_more=True)
    assert [one.request_id for one in TransactResponse.FromString(answers).more] == [0, 7]
    assert questions == [broken, good]
    with pytest.raises(DecodeError):
        TransactResponse.FromString(broken)
    assert TransactResponse.FromString(good).check.transaction_id == "good"


def test_a_client_that_does_not_read_more_gets_its_answers_one_by_one() -> None:
    responses = [answer(1), question("a", b""), answer(2)]
    assert written(*responses, reads_more=False) == responses
