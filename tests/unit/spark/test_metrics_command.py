"""`mq spark metrics`: wrong options are told, what was written is shown without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mq_spark.pipelines.measuring.metrics import metrics
from mq_spark.pipelines.measuring.metrics_files import FigureFiles
from tests.unit.spark.figure_rows import row, table


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(metrics, arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "give --topics or --pattern"),
        ("--to DIR", "or --show, --plot to look"),
        ("--topics a --pattern b", "one of them"),
        ("--to-topic f --show", "what is measured"),
        ("--topics a --to-topic f", "needs --checkpoint"),
        ("--topics a,f --to-topic f --checkpoint DIR", "f is measured itself"),
        ("--pattern .* --to-topic f --to DIR", "f is measured itself"),
        ("--pattern ( --to-topic f --to DIR", "--pattern '('"),
        ("--topics a --to s3://bucket/x", "mounted here"),
        ("--topics a --to DIR --checkpoint hdfs://x/y", "mounted here"),
        ("--topics a --plot plot.gif", "ends with .png"),
        ("--topics a --plot DIR/none/plot.png", "no such directory"),
        ("--topics a --window 10ms", "between 1s and 366d"),
        ("--topics a --watermark 999d", "at most 366d"),
        ("--topics a --window ten", "is no duration"),
        ("--topics a --by topic", "queue"),
        ("--to DIR/none --show", "there is no such directory"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, arguments: str, told: str) -> None:
    result = _run(*arguments.replace("DIR", str(tmp_path)).split())
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


def test_written_metrics_are_shown_and_drawn_without_spark(tmp_path: Path) -> None:
    files = FigureFiles(tmp_path)
    files.add(table(*(row(minute) for minute in range(30))), "q", 0)
    files.replace_open(table(row(30, is_complete=False)))
    shown = _run("--to", str(tmp_path), "--show")
    assert shown.exit_code == 0, shown.output
    assert "12:30:00*" in shown.stdout
    assert "12:11:00" in shown.stdout
    assert "12:10:00" not in shown.stdout
    plot = tmp_path / "plot.png"
    drawn = _run("--to", str(tmp_path), "--json", "--last", "2", "--plot", str(plot))
    assert [one["window_start"][11:16] for one in json.loads(drawn.stdout)] == ["12:29", "12:30"]
    assert plot.exists()


def test_an_empty_directory_is_no_error(tmp_path: Path) -> None:
    assert "No messages, so no figures" in _run("--to", str(tmp_path), "--show").stdout
    assert json.loads(_run("--to", str(tmp_path), "--json").stdout) == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "date=2026-11-16").mkdir()
    (tmp_path / "date=2026-11-16" / "figures-00000.parquet").write_bytes(b"not Parquet at all")
    assert "figures-00000.parquet cannot be read" in str(
        _run("--to", str(tmp_path), "--show").exception
    )
