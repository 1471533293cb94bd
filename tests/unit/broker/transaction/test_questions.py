"""The producer that the broker asks about a transaction, and those that are passed over."""

from __future__ import annotations

from typing import Any

from mq.broker.state.transactions import Transaction
from mq.broker.transaction.questions import Question, Respondent, Respondents
from tests.support.consensus import batch, on_loop


def question(checks: int, maker: str = "", size: int = 10) -> Question:
    transaction = Transaction(1, 1, 1, 1, 1, "t", "g", checks, 0, 1, 15)
    fields: dict[str, Any] = {"producer_id": maker, "sequence": 1} if maker else {}
    return Question(transaction, batch("t", b"x" * size, **fields))


@on_loop
async def test_the_maker_is_asked_first_then_each_in_turn() -> None:
    respondents = Respondents()
    members = [Respondent("g", name, answers_checks=True) for name in "abc"]
    members.append(Respondent("g", "silent", answers_checks=False))
    for one in members:
        respondents.join(one)
    assert respondents.count("g") == 3
    assert respondents.ask(question(1, "c")) == "c"
    assert [respondents.ask(question(2, "c")) for _ in range(6)] == list("abcabc")
    assert respondents.ask(question(1, "gone")) == "a"
    respondents.leave(members[1])
    assert [respondents.ask(question(2)) for _ in range(2)] == ["c", "a"]
    for one in members:
        respondents.leave(one)
    assert respondents.ask(question(1)) is None
    assert len(respondents) == 0


@on_loop
async def test_a_producer_that_reads_nothing_is_passed_over() -> None:
    respondents = Respondents()
    slow, quick = (Respondent("g", name, answers_checks=True) for name in ("slow", "quick"))
    respondents.join(slow)
    respondents.join(quick)
    for _ in range(1_000):
        assert slow.ask(question(2))
    assert [respondents.ask(question(2)) for _ in range(3)] == ["quick"] * 3
    big = Respondent("g", "big", answers_checks=True)
    asked = [big.ask(question(2, size=3 << 20)) for _ in range(3)]
    assert asked == [True, True, False]
    await big.next()
    assert big.ask(question(2, size=3 << 20))
