"""The judge of a soak sees what is wrong."""

from __future__ import annotations

import pytest

from tests.soak.ledger import Ledger, Work

WRONG = ("lost", "duplicated", "early", "phantom", "reappeared", "errors")


def good() -> tuple[Ledger, Work]:
    """Two messages, sent, stored and seen once; the second one was due at 1,000."""
    ledger = Ledger()
    work = ledger.work("t")
    work.acked |= {"a", "b"}
    work.stored.update(["a", "b"])
    work.due_ms["b"] = 1_000
    work.see("a", 500)
    work.see("b", 1_000)
    return ledger, work


def test_nothing_is_wrong() -> None:
    ledger, _ = good()
    assert ledger.is_good()
    assert ledger.is_drained
    assert {name: ledger.verdict()[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert ledger.verdict()["acked"] == 2


def test_a_soak_in_which_nothing_happened_is_not_good() -> None:
    assert not Ledger().is_good()


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_counted_and_named(wrong: str) -> None:
    ledger, work = good()
    match wrong:
        case "lost":
            work.acked.add("c")
        case "duplicated":
            work.stored.update(["a"])
        case "early":
            work.see("b", 999)
        case "phantom":
            work.forbidden.add("a")
        case "reappeared":
            work.reappeared.add("a")
        case "errors":
            ledger.errors.append("a client failed")
    verdict = ledger.verdict()
    assert {name: verdict[name] for name in WRONG} == {**dict.fromkeys(WRONG, 0), wrong: 1}
    assert not ledger.is_good()
    assert ledger.details()


def test_what_consumers_are_given_twice_is_not_doubled() -> None:
    ledger, work = good()
    work.see("a", 2_000)
    assert ledger.is_good()
