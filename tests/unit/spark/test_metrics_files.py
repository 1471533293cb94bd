"""Figures in files: each row once, whatever is repeated, for every reader."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds
import pytest

from mq_spark.errors import MqSparkError
from mq_spark.pipelines.measuring.metrics_files import FigureFiles
from tests.unit.spark.figure_rows import row, table

_MIDNIGHT = 12 * 60


def test_a_batch_that_is_repeated_replaces_its_rows(tmp_path: Path) -> None:
    files = FigureFiles(tmp_path)
    files.add(table(row(0), row(1)), "q", 1)
    files.add(table(row(2), row(3, messages=1)), "q", 4)
    files.add(table(row(2), row(3, messages=2)), "q", 4)
    assert files.read()["messages"].to_pylist() == [120, 120, 120, 2]
    # One that came before: a process that was left behind does it again.
    files.add(table(row(0), row(1)), "q", 1)
    assert len(files.read()) == 4
    # The same number, but of another query.
    files.add(table(row(4)), "other", 4)
    assert len(files.read()) == 5
    assert len(list(tmp_path.glob("date=*/*"))) == 1


def test_a_day_has_a_file_and_more_only_when_it_is_large(tmp_path: Path) -> None:
    files = FigureFiles(tmp_path, file_bytes_max=1)
    for batch_id, minute in enumerate((0, 1, _MIDNIGHT)):
        files.add(table(row(minute)), "q", batch_id)
        files.add(table(row(minute)), "q", batch_id)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("date=*/*")) == [
        "date=2026-11-16/figures-00000.parquet",
        "date=2026-11-16/figures-00001.parquet",
        "date=2026-11-17/figures-00000.parquet",
    ]
    assert len(files.read()) == 3


def test_a_batch_over_midnight_that_stopped_halfway_is_whole_when_repeated(tmp_path: Path) -> None:
    files = FigureFiles(tmp_path)
    before, behind = row(_MIDNIGHT - 1), row(_MIDNIGHT)
    files.add(table(row(0)), "q", 0)
    files.add(table(before), "q", 1)
    files.add(table(before, behind), "q", 1)
    assert files.read().to_pylist() == [row(0), before, behind]


def test_plain_readers_see_all_rows_and_nothing_else(tmp_path: Path) -> None:
    files = FigureFiles(tmp_path)
    with files.locked():
        files.add(table(row(0), row(1, lag=[("g", 7)])), "q", 0)
        (tmp_path / "_checkpoint").mkdir()
        (tmp_path / "_checkpoint" / "state").write_text("no Parquet")
        (tmp_path / "date=2026-11-16" / ".figures-00000.parquet.fresh").write_text("half")
    found = pd.read_parquet(tmp_path)
    assert list(found.messages) == [120, 120]
    assert set(found.date.astype(str)) == {"2026-11-16"}
    assert dict(found.lag[1]) == {"g": 7}
    assert ds.dataset(tmp_path, partitioning="hive").count_rows() == 2
    assert len(files.read()) == 2


def test_open_windows_are_replaced_as_a_whole(tmp_path: Path) -> None:
    files = FigureFiles(tmp_path)
    files.add(table(row(0)), "q", 0)
    files.replace_open(table(row(1, is_complete=False), row(_MIDNIGHT, is_complete=False)))
    assert files.read()["is_complete"].to_pylist() == [True, False, False]
    files.add(table(row(1)), "q", 1)
    files.replace_open(table(row(_MIDNIGHT, messages=5, is_complete=False)))
    assert files.read()["messages"].to_pylist() == [120, 120, 5]
    files.replace_open(table())
    assert files.read()["is_complete"].to_pylist() == [True, True]


def test_the_newest_windows_are_read_over_days_with_all_their_topics(tmp_path: Path) -> None:
    files = FigureFiles(tmp_path)
    assert FigureFiles(tmp_path).is_empty
    assert len(files.read(3)) == 0
    rows = [row(0), row(_MIDNIGHT - 1), row(_MIDNIGHT, "a"), row(_MIDNIGHT, "b")]
    files.add(table(*rows), "q", 0)
    assert not files.is_empty
    assert files.read(2).to_pylist() == rows[1:]
    assert files.read(1).to_pylist() == rows[2:]
    assert files.read(9).to_pylist() == rows


def test_one_program_writes_at_a_time(tmp_path: Path) -> None:
    files = FigureFiles(tmp_path / "new")
    with (
        files.locked(),
        pytest.raises(MqSparkError, match="another `mq spark metrics` writes there"),
        FigureFiles(tmp_path / "new").locked(),
    ):
        pass
    with files.locked():
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(MqSparkError, match=r"--to .*file"), FigureFiles(tmp_path / "file").locked():
        pass
