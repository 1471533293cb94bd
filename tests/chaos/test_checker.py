"""The checker of a chaos run finds each kind of broken promise, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.checker import WRONG, Ledger, Work

if TYPE_CHECKING:
    from collections.abc import Callable

NOTHING_WRONG = dict.fromkeys(WRONG, 0)


def good() -> tuple[Ledger, Work]:
    """Sent, acknowledged, stored and seen once. "b" was due at 1,000; "red" is a lane; "x" is in
    doubt; "no" was rolled back.
    """
    ledger = Ledger()
    work = ledger.work("t")
    work.sent |= {"a", "b", "red.1", "red.2", "red.4", "x", "no"}
    work.acked |= {"a", "b", "red.1", "red.2", "red.4"}
    work.unknown.add("x")
    work.forbidden.add("no")
    work.due_ms["b"] = 1_000
    for name in ("a", "red.1", "red.2", "red.4"):
        work.take(name, "me")
        work.see(name, 500)
        work.leave(name, "me")
    work.see("b", 1_000)
    work.done.add("a")
    work.holds("t/0", ["a", "red.1", "red.2", "red.4"])
    work.holds("t/1", ["b"])
    return ledger, work


def found(ledger: Ledger) -> dict[str, int]:
    verdict = ledger.verdict()
    return {name: verdict[name] for name in WRONG}


def test_nothing_is_wrong() -> None:
    ledger, _ = good()
    assert found(ledger) == NOTHING_WRONG
    assert ledger.is_good()
    assert ledger.is_drained
    assert ledger.details() == ""
    assert ledger.verdict()["acked"] == 5


def lost_on_the_way(_: Ledger, work: Work) -> None:
    work.sent.add("c")
    work.acked.add("c")
    work.holds("t/1", ["c"])


def lost_from_its_queue(_: Ledger, work: Work) -> None:
    """A consumer saw it, and then it was gone."""
    work.sent.add("c")
    work.acked.add("c")
    work.see("c", 1)


def stored_twice(_: Ledger, work: Work) -> None:
    work.holds("t/1", ["a"])


def stored_twice_in_its_lane(_: Ledger, work: Work) -> None:
    work.holds("t/0", ["red.1"])


def seen_out_of_order(_: Ledger, work: Work) -> None:
    work.sent.add("red.3")
    work.see("red.3", 600)


def stored_out_of_order(_: Ledger, work: Work) -> None:
    work.sent |= {"blue.1", "blue.2"}
    work.holds("t/1", ["blue.2", "blue.1"])


def stored_in_two_queues(_: Ledger, work: Work) -> None:
    work.sent.add("red.5")
    work.holds("t/1", ["red.5"])


def two_members_at_once(_: Ledger, work: Work) -> None:
    work.take("red.4", "me")
    work.take("red.4", "you")


def seen_too_early(_: Ledger, work: Work) -> None:
    work.see("b", 999)


def rolled_back_and_seen(_: Ledger, work: Work) -> None:
    work.see("no", 1)


def rolled_back_and_stored(_: Ledger, work: Work) -> None:
    work.holds("t/1", ["no"])


def never_sent(_: Ledger, work: Work) -> None:
    work.holds("t/1", ["nobody"])


def acknowledged_and_received_again(_: Ledger, work: Work) -> None:
    work.receive("a")


def a_client_failed(ledger: Ledger, _: Work) -> None:
    ledger.errors.append("a client failed")


@pytest.mark.parametrize(
    ("break_it", "kind"),
    [
        (lost_on_the_way, "lost"),
        (lost_from_its_queue, "lost"),
        (stored_twice, "duplicated"),
        (stored_twice_in_its_lane, "duplicated"),
        (seen_out_of_order, "reordered"),
        (stored_out_of_order, "reordered"),
        (stored_in_two_queues, "reordered"),
        (two_members_at_once, "reordered"),
        (seen_too_early, "early"),
        (rolled_back_and_seen, "phantom"),
        (rolled_back_and_stored, "phantom"),
        (never_sent, "phantom"),
        (acknowledged_and_received_again, "reappeared"),
        (a_client_failed, "errors"),
    ],
)
def test_a_broken_promise_is_counted_and_named(
    break_it: Callable[[Ledger, Work], None], kind: str
) -> None:
    ledger, work = good()
    break_it(ledger, work)
    assert found(ledger) == {**NOTHING_WRONG, kind: 1}
    assert not ledger.is_good()
    assert ledger.details()


def test_the_checker_allows_redelivery_and_uncertain_sends() -> None:
    ledger, work = good()
    # Again, and again from an earlier place: at least once.
    for name in ("red.2", "red.4", "a", "a"):
        work.see(name, 2_000)
    # In doubt: stored after all.
    work.see("x", 2_000)
    work.holds("t/1", ["x"])
    # Not acknowledged by its consumer: given out again.
    work.receive("b")
    # Another member, when the first is through.
    work.take("red.4", "you")
    work.leave("red.4", "you")
    assert found(ledger) == NOTHING_WRONG
    assert ledger.is_good()
    assert ledger.verdict()["redelivered"] == 4


def test_a_clock_that_is_wrong_by_less_than_is_allowed_makes_nothing_early() -> None:
    ledger, work = good()
    work.see("b", 700, clock_error_ms=300)
    assert ledger.is_good()
    work.see("b", 699, clock_error_ms=300)
    assert found(ledger)["early"] == 1


def test_a_run_in_which_nothing_happened_is_not_good() -> None:
    assert not Ledger().is_good()


def test_a_run_whose_topics_were_not_read_is_not_good() -> None:
    ledger, work = good()
    work.stored = None
    assert found(ledger) == NOTHING_WRONG
    assert not ledger.is_good()
    assert "not read" in ledger.details()


def test_rot_that_was_not_mended_is_no_good_run() -> None:
    ledger, _ = good()
    ledger.rotted["log"] = ledger.mended["log"] = 2
    assert ledger.is_good()
    ledger.rotted["queue"] += 1
    assert not ledger.is_good()
    assert "{'queue': 1}" in ledger.details()


def test_copies_by_a_client_that_may_repeat_are_counted_and_no_error() -> None:
    ledger, work = good()
    work.may_repeat = True
    work.holds("t/1", ["a"])
    assert ledger.is_good()
    assert ledger.verdict()["repeated"] == 1
