"""What the verdict of a leg excuses: with asynchronous flush the last moments before a cut of all
nodes, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.power_loss.cuts import Round
from tests.power_loss.disks import Cut
from tests.power_loss.engine import PoweredSet
from tests.power_loss.leg import ASYNC_LOSS_S, Leg, Stamped
from tests.power_loss.table import Table

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "plain"
CUT = Round("all", Cut.DROP, cut_s=100.0, restored_s=101.0, may_lose=True)


@pytest.fixture
def leg(tmp_path: Path) -> Leg:
    return Leg(PoweredSet(tmp_path, 1, "async"), 1, 0.01, print, is_async=True)


def acknowledge(leg: Leg, name: str, at_s: float) -> None:
    work = leg.ledger.work(TOPIC)
    work.sent.add(name)
    work.acked.add(name)
    assert isinstance(work.acked, Stamped)
    work.acked.at_s[name] = at_s


def finish(leg: Leg, *stored: str) -> None:
    """Read and seen, after what is excused was taken out."""
    leg.excuse_lost(set(stored))
    leg.excuse_reappeared()
    work = leg.ledger.work(TOPIC)
    work.holds("a/0", stored)
    for name in stored:
        work.see(name, 0)


def test_the_last_moments_before_a_cut_are_excused_and_counted(leg: Leg) -> None:
    leg.rounds.append(CUT)
    acknowledge(leg, "kept", 90.0)
    acknowledge(leg, "gone", 99.6)
    acknowledge(leg, "answered", 100.3)  # an answer that was on its way
    finish(leg, "kept")
    assert leg.ledger.is_good()
    assert leg.excused[0] == 2
    assert leg.oldest_excused_s[0] == pytest.approx(0.4)


@pytest.mark.parametrize("at_s", [100.0 - ASYNC_LOSS_S - 0.1, 101.1])
def test_what_was_acknowledged_earlier_or_after_the_restart_is_lost(leg: Leg, at_s: float) -> None:
    leg.rounds.append(CUT)
    acknowledge(leg, "gone", at_s)
    finish(leg)
    assert leg.ledger.verdict()["lost"] == 1
    assert not leg.ledger.is_good()


def test_a_cut_that_may_not_lose_excuses_nothing(leg: Leg) -> None:
    leg.rounds.append(Round("leader", Cut.COPY, 100.0, 101.0, may_lose=False))
    acknowledge(leg, "gone", 99.9)
    finish(leg)
    assert leg.ledger.verdict()["lost"] == 1


def test_a_consumer_s_word_that_a_cut_cost_may_be_asked_for_again(leg: Leg) -> None:
    leg.rounds.append(CUT)
    work = leg.ledger.work(TOPIC)
    assert isinstance(work.done, Stamped)
    for name, at_s in (("old", 90.0), ("new", 99.9)):
        acknowledge(leg, name, 80.0)
        work.done.add(name)
        work.done.at_s[name] = at_s
        work.receive(name)
    finish(leg, "old", "new")
    assert work.reappeared == {"old"}


def test_the_table_has_a_row_for_each_kind_of_cut(leg: Leg) -> None:
    leg.rounds.extend([CUT, Round("all", Cut.COPY, 200.0, 201.0, may_lose=True)])
    acknowledge(leg, "first", 50.0)
    acknowledge(leg, "gone", 99.5)
    acknowledge(leg, "second", 150.0)
    finish(leg, "first", "second")
    table = Table()
    table.add("alone-async", leg)
    assert table.broken_legs == 0
    assert table.verdict()["cuts"] == 2
    assert "| alone-async | all | drop | 1 | 2 | 1 | 0.50 s |" in table.markdown()
    assert "| alone-async | all | copy | 1 | 1 | 0 | - |" in table.markdown()
