"""Pauses of sends are those that the steady producer saw; the report shows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.chaos import report
from tests.chaos.checker import Ledger
from tests.chaos.timeline import Timeline, longest_gap_s

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("start_s", "end_s", "gap_s"),
    [
        (2.5, 2.6, 3.0),  # between two of them
        (1.5, 2.5, 3.0),  # begins before the pause
        (4.5, 5.5, 3.0),  # begins in it
        (5.5, 6.5, 1.0),  # behind it
        (8.0, 9.0, 0.0),  # no more acknowledgements
    ],
)
def test_the_longest_gap_is_of_the_neighbours_around(
    start_s: float, end_s: float, gap_s: float
) -> None:
    beats = [0.0, 1.0, 2.0, 5.0, 6.0, 7.0]
    assert longest_gap_s(beats, start_s, end_s) == gap_s


def test_without_a_beat_there_is_no_gap() -> None:
    assert longest_gap_s([], 0.0, 1.0) == 0.0


def torn_timeline() -> Timeline:
    """Ten seconds, a beat each tenth; in the fifth and sixth second set a has none."""
    now_s = 0.0
    timeline = Timeline(lambda: now_s)
    timeline.phase("sending")
    for tenth in range(100):
        now_s = tenth / 10
        if tenth == 40:
            fault = timeline.begin("kill leader", ["a1 <&>"], ["a"])
        if tenth == 62:
            timeline.end(fault)
        timeline.beat("b")
        if not 40 <= tenth < 60:
            timeline.beat("a")
            timeline.acknowledge(0.004)
            timeline.see()
    timeline.begin("freeze follower", ["b2"])
    timeline.judge()
    return timeline


def test_the_pause_of_a_fail_over_is_that_of_its_set() -> None:
    timeline = torn_timeline()
    assert timeline.pause_s_median() == pytest.approx(2.1)
    assert timeline.pause_s_max() == pytest.approx(2.1)
    assert [list(fault.pauses_s) for fault in timeline.faults] == [["a"], []]


def test_the_report_is_one_page_that_needs_nothing_else(tmp_path: Path) -> None:
    ledger = Ledger()
    work = ledger.work("t <b>")
    work.sent.add("a")
    work.acked.add("a")
    page = report.write(tmp_path, ledger, torn_timeline(), {"seed": 7}, ledger.details())
    text = page.read_text()
    assert "src=" not in text
    assert "href=" not in text
    drawing = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])  # noqa: S314
    words = {"".join(one.itertext()) for one in drawing.iter() if one.tag.endswith("text")}
    assert {"kill leader", "freeze follower", "sending"} <= words
    assert "a1 &lt;&amp;&gt;" in text
    assert "t &lt;b&gt;: 1 lost" in text
    document = json.loads((tmp_path / "ledger.json").read_text())
    assert document["topics"]["t <b>"]["lost"] == 1
    assert document["faults"][0]["pauses_s"] == {"a": pytest.approx(2.1)}
    kept = (tmp_path / "summary.md").read_text()
    assert "| lost | 1 |" in kept
    assert "| kill leader | 1 |" in kept
    # The next one with this seed is good.
    report.write(tmp_path, Ledger(), torn_timeline(), {"seed": 7}, "")
    assert not (tmp_path / "details.txt").exists()
