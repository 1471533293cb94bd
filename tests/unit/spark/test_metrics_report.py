"""Figures for people, and as messages."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mq_spark.pipelines.measuring.metrics_lag import with_lags
from mq_spark.pipelines.measuring.metrics_report import latency, plot_figures, print_figures
from mq_spark.pipelines.measuring.metrics_stream import messages_of
from tests.unit.spark.figure_rows import row, table


def _printed(*rows: dict[str, object], width: int = 80) -> list[str]:
    out = io.StringIO()
    print_figures(Console(file=out, width=width, highlight=False), table(*rows))
    return out.getvalue().splitlines()


def test_a_table_fits_eighty_columns_and_says_what_it_left_out() -> None:
    lines = _printed(
        row(0, messages=1_234_567, messages_per_s=20_576.0, lag=[("billing", 12_345)]),
        row(1, "payments-of-the-north", is_complete=False, skewed=2),
    )
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "12:00:00 " in text
    assert "12:01:00*" in text
    assert "1,234,567" in text
    assert "12,345" in text
    assert "Left out here:" in text
    assert "* still open" in text
    assert "2 of the messages were stored before they were born" in text


def test_a_wide_table_has_all_figures() -> None:
    text = "\n".join(_printed(row(0, broker_set="set-0", queue_id=3, tag=""), width=200))
    for cell in ("2026-11-16 12:00:00", "set-0/3", "100 B", "1.5 KiB", "40 ms", "1.25 s"):
        assert cell in text
    assert "Left out" not in text


def test_names_cannot_steer_the_terminal() -> None:
    text = "\n".join(_printed(row(0, "a\x1b[2J", tag="\x07", lag=[("g\x1b", 1)]), width=300))
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize(
    ("latency_ms", "told"),
    [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (90_000, "1.5 min"), (5_400_000, "1.5 h")],
)
def test_latency_is_shown_in_a_suitable_unit(latency_ms: int, told: str) -> None:
    assert latency(latency_ms) == told


def test_plots_are_drawn_of_gaps_missing_latencies_open_windows_and_many_topics(
    tmp_path: Path,
) -> None:
    nothing: dict[str, Any] = {f"latency_{name}_ms": None for name in ("p50", "p95", "p99", "max")}
    rows = [row(0), row(5, **nothing), row(6, is_complete=False, lag=[("_$", 5), ("组", 1)])]
    rows += [row(3, f"topic-{number}", tag="$a_$") for number in range(9)]
    for name in ("plot.png", "plot.svg"):
        plot_figures(table(*rows), tmp_path / name)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "plot.svg").read_text()
    assert "4 more are not shown" in drawn
    plot_figures(table(), tmp_path / "nothing.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "nothing.png",
        "plot.png",
        "plot.svg",
    ]


def test_lags_go_to_the_rows_of_their_topic_or_queue() -> None:
    lags = {"g": {"orders": {"set-0/0": 3, "set-1/0": 4}}, "h": {"orders": {"set-0/0": 1}}}
    rows = [
        row(0),
        row(0, "others"),
        row(0, broker_set="set-1", queue_id=0),
        row(0, broker_set="set-1", queue_id=9),
    ]
    assert with_lags(table(*rows), lags)["lag"].to_pylist() == [
        [("g", 7), ("h", 1)],
        [],
        [("g", 4), ("h", 0)],
        [("g", 0), ("h", 0)],
    ]
    assert with_lags(table(*rows), {})["lag"].to_pylist() == [None] * 4


def test_a_message_of_figures_has_plain_json_and_the_topic_as_key() -> None:
    made = messages_of(table(row(0), row(0, "Zürich", tag="", lag=[("g", 2)]))).to_pylist()
    first, second = (json.loads(each["body"]) for each in made)
    assert first["window_start"] == "2026-11-16T12:00:00.000Z"
    assert first["latency_p99_ms"] == 1_250
    assert first["is_complete"] is True
    assert not first.keys() & {"broker_set", "queue_id", "tag", "lag"}
    assert (second["topic"], second["tag"], second["lag"]) == ("Zürich", "", {"g": 2})
    assert [each["keys"] for each in made] == [["orders"], ["Zürich"]]
    assert [each["topic"] for each in made] == ["orders", "Zürich"]
