"""The archive's directory: each message once for every reader, whenever the writer dies."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from mq_spark.errors import MqSparkError
from mq_spark.pipelines.archiving.archive_directory import ArchiveDirectory, merged_name
from mq_spark.pipelines.archiving.compact import compact as command
from mq_spark.pipelines.archiving.compaction import compact, exchange, plan
from tests.support import power
from tests.support.waiting import poll

_QUERY = "query-1"


def _writer(
    numbers: Sequence[int], *, files: int = 2, day: str = "topic=a%25b/date=2026-11-15"
) -> Callable[[Path], None]:
    """Puts the numbers into so many files, as Spark would: under names of its own."""

    def write(staged: Path) -> None:
        staged.mkdir(parents=True)
        for at in range(files):
            target = staged / day
            target.mkdir(parents=True, exist_ok=True)
            table = pa.table({"number": pa.array(numbers[at::files], pa.int64())})
            pq.write_table(table, target / f"part-{at:05d}-{id(write)}.c000.snappy.parquet")
        (staged / "_SUCCESS").touch()

    return write


def _numbers(path: Path) -> list[int]:
    """As a plain reader has them."""
    try:
        found = ds.dataset(path, partitioning="hive").to_table()
    except FileNotFoundError:
        return []
    return sorted(found["number"].to_pylist()) if "number" in found.column_names else []


def test_batches_become_files_by_topic_and_day(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)
    with archive.locked():
        stored = archive.store(_QUERY, 0, _writer([1, 2, 3]))
        assert (stored.rows, stored.files) == (3, 2)
        assert archive.bytes_per_row == stored.size_bytes / 3
        archive.store(_QUERY, 1, _writer([4], files=1))
        archive.store(_QUERY, 2, _writer([], files=0))
    (day,) = archive.days()
    assert (day.topic, day.date) == ("a%b", "2026-11-15")
    assert [path.name for path in day.files()] == [
        "part-0000000000-0000.parquet",
        "part-0000000000-0001.parquet",
        "part-0000000001-0000.parquet",
    ]
    assert _numbers(tmp_path) == [1, 2, 3, 4]


def test_a_batch_that_is_done_again_is_not_written_again(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)
    with archive.locked():
        archive.store(_QUERY, 0, _writer([1, 2]))
        # Whatever Spark would make of it now.
        assert archive.store(_QUERY, 0, _writer([1, 2], files=1)).rows == 0
    assert _numbers(tmp_path) == [1, 2]


def test_a_death_at_any_step_leaves_no_message_twice_and_none_out(tmp_path: Path) -> None:
    for steps in itertools.count():
        path = tmp_path / str(steps)
        archive = ArchiveDirectory(path)
        with archive.locked():
            archive.store(_QUERY, 0, _writer([1, 2]))
        with power.lasts(steps) as supply, archive.locked():
            archive.store(_QUERY, 1, _writer([3, 4, 5], files=3))
        seen = _numbers(path)
        assert set(seen) <= {1, 2, 3, 4, 5}
        assert len(seen) == len(set(seen))
        # The next run does the batch again, cut in another way.
        with archive.locked():
            assert _numbers(path) in ([1, 2], [1, 2, 3, 4, 5])
            archive.store(_QUERY, 1, _writer([3, 4, 5], files=1))
        assert _numbers(path) == [1, 2, 3, 4, 5], f"after {steps} steps"
        assert not (path / "_mq_archive" / "staging").exists()
        if not supply.is_out:
            break
    assert steps > 10


def test_what_spark_still_writes_for_an_earlier_try_is_no_part_of_the_batch(tmp_path: Path) -> None:
    archive, tries = ArchiveDirectory(tmp_path), list[Path]()

    def stopped(staged: Path) -> None:
        tries.append(staged)
        raise InterruptedError

    def write(staged: Path) -> None:
        _writer([1, 2])(staged)
        _writer([1, 2])(tries[0])

    with archive.locked():
        with pytest.raises(InterruptedError):
            archive.store(_QUERY, 0, stopped)
        assert archive.store(_QUERY, 0, write).rows == 2
    assert _numbers(tmp_path) == [1, 2]
    assert not (archive.state / "staging").exists()


def test_a_change_waits_for_that_of_another_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive, other = ArchiveDirectory(tmp_path), ArchiveDirectory(tmp_path)

    def change() -> int:
        with other.changing():
            return other.store(_QUERY, 0, _writer([1, 2], files=1)).rows

    with ThreadPoolExecutor(1) as pool, archive.locked():
        with archive.changing():
            waiting = pool.submit(change)
            poll(lambda: "waiting for the process" in caplog.text, "it waits")
            archive.store(_QUERY, 0, _writer([1, 2]))
        assert waiting.result() == 0
    assert _numbers(tmp_path) == [1, 2]


def test_another_checkpoint_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)
    with archive.locked():
        archive.store(_QUERY, 0, _writer([1, 2]))
        with pytest.raises(MqSparkError, match="another checkpoint"):
            archive.store("query-2", 0, _writer([1, 2]))
    assert _numbers(tmp_path) == [1, 2]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)
    with (
        archive.locked(),
        pytest.raises(MqSparkError, match="is being changed by process"),
        ArchiveDirectory(tmp_path).locked(),
    ):
        pass
    with archive.locked():
        pass


def test_a_plan_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)
    with archive.locked():
        archive.store(_QUERY, 0, _writer([1]))
    path = archive.state / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(MqSparkError, match="version 2"), archive.locked():
        pass
    path.write_text("{")
    with pytest.raises(MqSparkError, match=r"plan\.json cannot be read"), archive.locked():
        pass


# Compaction


def _days_of_small_files(path: Path) -> ArchiveDirectory:
    archive = ArchiveDirectory(path)
    with archive.locked():
        for batch_id in range(3):
            numbers = range(batch_id * 10, batch_id * 10 + 10)
            archive.store(_QUERY, batch_id, _writer(numbers))
        today = _writer(range(30, 40), day="topic=a%25b/date=2026-11-16")
        archive.store(_QUERY, 3, today)
    return archive


def test_small_files_of_past_days_become_one(tmp_path: Path) -> None:
    archive = _days_of_small_files(tmp_path)
    old = archive.days()[0].files()[0]
    with archive.locked():
        assert compact(archive, "2026-11-16", 1 << 20, is_dry=True) == (1, 6, 1)
        assert old.exists()
        assert compact(archive, "2026-11-16", 1 << 20) == (1, 6, 1)
        assert compact(archive, "2026-11-16", 1 << 20) == (0, 0, 0)
    yesterday, today = archive.days()
    assert [path.name for path in yesterday.files()] == [
        "part-0000000000-0000-to-0000000002.parquet"
    ]
    assert len(today.files()) == 2
    assert _numbers(tmp_path) == list(range(40))
    # What comes late is merged later.
    with archive.locked():
        archive.store(_QUERY, 4, _writer([40], files=1))
        assert compact(archive, "2026-11-16", 1 << 20) == (1, 2, 1)
    assert archive.days()[0].files()[0].name == "part-0000000000-0000-to-0000000004.parquet"
    assert _numbers(tmp_path) == list(range(41))


def test_a_death_while_compacting_leaves_whole_days(tmp_path: Path) -> None:
    for steps in itertools.count():
        path = tmp_path / str(steps)
        archive = _days_of_small_files(path)
        with power.lasts(steps) as supply, archive.locked():
            compact(archive, "2026-11-16", 1 << 20)
        # At once, before any cleaning up.
        assert _numbers(path) == list(range(40)), f"after {steps} steps"
        with archive.locked():
            compact(archive, "2026-11-16", 1 << 20)
        assert _numbers(path) == list(range(40))
        assert len(archive.days()[0].files()) == 1
        assert not (archive.state / "compaction").exists()
        if not supply.is_out:
            break
    assert steps > 10


def test_large_files_stay_and_foreign_ones_are_not_merged(tmp_path: Path) -> None:
    sizes = [("part-0000000000-0000", 10), ("part-0000000001-0000", 100)]
    sizes += [("part-0000000002-0000", 40), ("part-0000000003-0000", 60)]
    sizes += [("part-0000000004-0000", 1), ("mine", 1), ("part-0000000005-0000", 1)]
    paths = [tmp_path / f"{name}.parquet" for name, _ in sizes]
    for path, (_, size_bytes) in zip(paths, sizes, strict=True):
        path.write_bytes(bytes(size_bytes))
    groups = plan(paths, 100)
    assert [[path.stem[-6:] for path in group] for group in groups] == [
        ["0-0000"],
        ["1-0000"],
        ["2-0000", "3-0000"],
        ["4-0000"],
        ["mine"],
        ["5-0000"],
    ]
    with pytest.raises(MqSparkError, match="no archive wrote"):
        merged_name(paths[0], paths[5])


def test_columns_that_old_files_lack_are_null_in_merged_ones(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)

    def write_more(staged: Path) -> None:
        target = staged / "topic=a%25b/date=2026-11-15"
        target.mkdir(parents=True)
        table = pa.table({"number": [2], "more": ["x"]})
        pq.write_table(table, target / "part-0.parquet")

    with archive.locked():
        archive.store(_QUERY, 0, _writer([1], files=1))
        archive.store(_QUERY, 1, write_more)
        assert compact(archive, "2026-11-16", 1 << 20).days == 1
    found = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert sorted(zip(found["number"].to_pylist(), found["more"].to_pylist(), strict=True)) == [
        (1, None),
        (2, "x"),
    ]


def test_directories_change_places(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of-{name}").touch()
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "of-b").exists()
    assert (tmp_path / "b" / "of-a").exists()
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "c")


def test_the_command_compacts_and_says_what_it_did(tmp_path: Path) -> None:
    _days_of_small_files(tmp_path)
    run = CliRunner().invoke
    assert "1 day, 6 files to 1" in run(command, [str(tmp_path), "--before", "2026-11-16"]).output
    dry = run(command, [str(tmp_path), "--before", "2026-11-17", "--dry-run", "--json"])
    assert json.loads(dry.output) == {"days": 1, "files_before": 2, "files_after": 1}
    assert "is no day" in run(command, [str(tmp_path), "--before", "yesterday"]).output
    (tmp_path / "empty").mkdir()
    assert "is no archive" in str(run(command, [str(tmp_path / "empty")]).exception)
