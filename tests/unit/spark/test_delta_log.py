"""The log of a Delta table: readers of the table have what readers of the files have."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from click.testing import CliRunner
from deltalake import DeltaTable

from mq_spark.pipelines.archiving.archive_directory import ArchiveDirectory
from mq_spark.pipelines.archiving.compact import compact
from mq_spark.pipelines.archiving.delta_log import DeltaLog

# As it is called, and as its directory is.
_TOPICS = {"orders": "orders", "shop|eu%1": "shop|eu%251"}


class Archive:
    """One to which a test writes a number for each topic and day."""

    def __init__(self, path: Path) -> None:
        self.directory = ArchiveDirectory(path)
        self.log = DeltaLog(path)
        self._batch = -1

    def store(self, numbers: Sequence[int], date: str = "2026-11-15") -> None:
        def write(staged: Path) -> None:
            for name in _TOPICS.values():
                target = staged / f"topic={name}" / f"date={date}"
                target.mkdir(parents=True)
                properties = pa.array([[("n", "1")]] * len(numbers), _PROPERTIES)
                columns = {"number": pa.array(numbers, pa.int64()), "properties": properties}
                pq.write_table(pa.table(columns), target / "part-00000.parquet")

        self._batch += 1
        self.directory.store("query", self._batch, write)

    def follow_newest(self) -> None:
        self.log.follow(self.directory.newest_days())

    def rows_of_files(self) -> list[tuple[str, str, int]]:
        return _rows(ds.dataset(self.directory.path, partitioning="hive").to_table())

    def rows_of_table(self) -> list[tuple[str, str, int]]:
        return _rows(DeltaTable(self.directory.path).to_pyarrow_table())


_PROPERTIES = pa.map_(pa.string(), pa.string())


def _rows(table: pa.Table) -> list[tuple[str, str, int]]:
    columns = (table[name].to_pylist() for name in ("topic", "date", "number"))
    return sorted((topic, str(date), number) for topic, date, number in zip(*columns, strict=True))


def test_every_batch_is_one_commit_and_an_old_archive_becomes_a_table(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.store([1, 2])
    archive.store([3])
    assert not (tmp_path / "_delta_log").exists()
    archive.log.follow(archive.directory.days())
    for number in (4, 5):
        archive.store([number], "2026-11-16")
        archive.follow_newest()
        assert archive.rows_of_table() == archive.rows_of_files()
    archive.follow_newest()  # nothing is new
    assert archive.directory.has_delta_log
    assert len(archive.rows_of_table()) == 5 * len(_TOPICS)
    assert {topic for topic, _, _ in archive.rows_of_table()} == set(_TOPICS)
    assert DeltaTable(tmp_path).version() == 2
    as_others_read = pl.read_delta(str(tmp_path))
    assert sorted(as_others_read["number"]) == sorted(row[2] for row in archive.rows_of_files())


def test_a_batch_that_a_crash_kept_from_the_log_is_in_it_after_the_next_start(
    tmp_path: Path,
) -> None:
    archive = Archive(tmp_path)
    archive.store([1])
    archive.follow_newest()
    archive.store([2])
    assert archive.rows_of_table() != archive.rows_of_files()
    archive.log.follow(archive.directory.days())
    assert archive.rows_of_table() == archive.rows_of_files()


def test_merged_files_replace_those_that_they_were(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for number in range(3):
        archive.store([number])
        archive.follow_newest()
    before = archive.rows_of_table()
    done = CliRunner().invoke(compact, [str(tmp_path), "--before", "2026-11-16"])
    assert done.exit_code == 0, done.output
    assert "Compacted 2 days, 6 files to 2" in done.output
    assert archive.rows_of_table() == archive.rows_of_files() == before
    assert len(DeltaTable(tmp_path).file_uris()) == 2


def test_days_that_were_deleted_leave_the_table(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for date in ("2026-11-15", "2026-11-16"):
        archive.store([1], date)
        archive.follow_newest()
    shutil.rmtree(tmp_path / "topic=orders" / "date=2026-11-15")
    archive.log.follow(archive.directory.days())
    assert archive.rows_of_table() == archive.rows_of_files()
    assert len(archive.rows_of_table()) == 3
