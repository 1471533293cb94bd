"""The plan of a replay: a snapshot, in steps, the same for every continuation."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mq_spark.errors import MqSparkError
from mq_spark.pipelines.archiving.archive_directory import ArchiveDirectory
from mq_spark.pipelines.archiving.compaction import compact
from mq_spark.pipelines.replaying import replay_plan
from mq_spark.pipelines.replaying.replay_plan import (
    Done,
    Plan,
    ReplayState,
    Wanted,
    check_same,
    checked_id,
)

_ROWS = pa.table(
    {name: [1, 2] for name in ("body", "broker_set", "queue_id", "queue_offset", "stored_at")}
)


def _archive(path: Path) -> ArchiveDirectory:
    """Two topics, two days, three batches."""
    archive = ArchiveDirectory(path)

    def write(staged: Path) -> None:
        for topic in ("a", "b"):
            for date in ("2026-11-15", "2026-11-16"):
                day = staged / f"topic={topic}" / f"date={date}"
                day.mkdir(parents=True)
                pq.write_table(_ROWS, day / "part-0.parquet")

    with archive.locked():
        for batch_id in range(3):
            archive.store("q", batch_id, write)
    return archive


def _begin(
    state: ReplayState, archive: ArchiveDirectory, wanted: Wanted, window_ms: int = 0
) -> Plan:
    return state.begin(archive, wanted, tasks=2, chunk_rows=10, window_ms=window_ms)


def _names(plan: Plan) -> list[str]:
    return [f"{path[6]} {path[13:23]} {path[38]}" for step in plan.steps for path in step.files]


def test_files_come_by_day_then_by_batch(tmp_path: Path) -> None:
    state = ReplayState(tmp_path / "replays" / "one")
    with state.locked():
        plan = _begin(state, _archive(tmp_path / "archive"), Wanted())
        assert _names(plan) == [
            f"{topic} {date} {batch}"
            for date in ("2026-11-15", "2026-11-16")
            for batch in range(3)
            for topic in "ab"
        ]
        assert plan.rows == 24


def test_a_plan_is_the_same_for_every_continuation(tmp_path: Path) -> None:
    archive = _archive(tmp_path)
    wanted = Wanted(
        topics=("a", "b"),
        since="-2d",
        since_ms=1,
        tags=("x",),
        keys=("k",),
        where="true",
        to_topic="again",
        is_plain=True,
        is_paced=True,
    )
    state = ReplayState(archive.state / "replays" / "one")
    with state.locked():
        plan = state.begin(archive, wanted, tasks=3, chunk_rows=7, window_ms=200)
    assert ReplayState(state.path).load() == plan
    assert (plan.tasks, plan.chunk_rows, plan.window_ms) == (3, 7, 200)


def test_replays_of_the_same_name_are_others_to_the_broker(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "archive")
    plans = []
    for place in ("one", "other"):
        state = ReplayState(tmp_path / place / "monday")
        with state.locked():
            plans.append(_begin(state, archive, Wanted()))
    assert all(plan.writer.startswith("replay monday ") for plan in plans)
    assert plans[0].writer != plans[1].writer


def test_topics_and_days_that_are_not_wanted_are_left_out(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "archive")
    state = ReplayState(tmp_path / "replays" / "one")
    day_ms = 86_400_000
    midnight_ms = 20_773 * day_ms  # of 2026-11-16
    with state.locked():
        since = Wanted(topics=("b",), since="x", since_ms=midnight_ms)
        assert {name[:12] for name in _names(_begin(state, archive, since))} == {"b 2026-11-16"}
        until = Wanted(until="x", until_ms=midnight_ms - 1)
        dates = {name[2:12] for name in _names(_begin(state, archive, until))}
        assert dates == {"2026-11-15"}


def test_the_snapshot_outlives_what_happens_to_the_archive(tmp_path: Path) -> None:
    archive = _archive(tmp_path)
    state = ReplayState(archive.state / "replays" / "one")
    with state.locked():
        plan = _begin(state, archive, Wanted())
        with archive.locked():
            assert compact(archive, "2026-11-17", 1 << 20).days == 4
        rows = sum(
            pq.read_metadata(plan.root / name).num_rows
            for step in plan.steps
            for name in step.files
        )
        assert rows == plan.rows == 24
        # A plain reader does not see it.
        assert pq.read_table(tmp_path).num_rows == 24
        state.record(Done(len(plan.steps), 24), plan)
        assert not plan.root.exists()
        assert state.done() == Done(len(plan.steps), 24)


def test_steps_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = _archive(tmp_path / "archive")
    state = ReplayState(tmp_path / "replays" / "one")
    monkeypatch.setattr(replay_plan, "STEP_ROWS", 5)
    with state.locked():
        assert [step.rows for step in _begin(state, archive, Wanted()).steps] == [4] * 6
        monkeypatch.setattr(replay_plan, "STEP_BYTES", 1)
        assert [step.rows for step in _begin(state, archive, Wanted()).steps] == [2] * 12


def test_where_times_matter_batches_are_not_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = _archive(tmp_path / "archive")
    state = ReplayState(tmp_path / "replays" / "one")
    monkeypatch.setattr(replay_plan, "STEP_ROWS", 3)
    with archive.locked(), state.locked():
        assert [step.rows for step in _begin(state, archive, Wanted()).steps] == [2] * 12
        plan = _begin(state, archive, Wanted(), window_ms=1)
        assert [step.rows for step in plan.steps] == [4] * 6
        # One topic of the first day is one file now, which has batches of all files of the other.
        (day,) = (day for day in archive.days() if day[:2] == ("a", "2026-11-15"))
        for file in day.files()[1:]:
            file.unlink()
        day.files()[0].rename(day.path / "part-0000000000-0000-to-0000000001.parquet")
        plan = _begin(state, archive, Wanted(), window_ms=1)
        assert [step.rows for step in plan.steps] == [6, 2, 4, 4, 4]


def test_files_of_no_archive_are_refused(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "archive")
    day = archive.days()[1]
    pq.write_table(_ROWS.drop_columns("queue_offset"), day.path / "more.parquet")
    state = ReplayState(tmp_path / "one")
    told = "topic=a/date=2026-11-16/more.parquet has no column queue_offset"
    with state.locked(), pytest.raises(MqSparkError, match=told):
        _begin(state, archive, Wanted())
    assert state.load() is None


def test_progress_is_that_of_the_tasks_of_this_run(tmp_path: Path) -> None:
    state = ReplayState(tmp_path / "one")
    place = state.progress_of(4)
    for partition in range(3):
        (place / str(partition)).write_text("100")
    assert state.sent_in_step(4) == 300
    assert state.sent_in_step(5) == 0
    state.progress_of(4)
    assert state.sent_in_step(4) == 0


def test_a_replay_is_continued_with_the_same_options_only() -> None:
    before = Wanted(topics=("a",), since="-2d", since_ms=1, where="true")
    check_same("one", before, dataclasses.replace(before, since_ms=2))
    for change, told in (
        ({"where": ""}, "with --where 'true', now it is without --where"),
        ({"topics": ("a", "b")}, "with --topics 'a', now it is with --topics 'a,b'"),
        ({"is_paced": True}, "without --rate or --speed, now it is with --rate or --speed"),
        ({"since": "-1d"}, "with --since '-2d', now it is with --since '-1d'"),
    ):
        with pytest.raises(MqSparkError, match=f"{told}: .*another --id"):
            check_same("one", before, dataclasses.replace(before, **change))


def test_one_process_has_a_replay(tmp_path: Path) -> None:
    state = ReplayState(tmp_path / "one")
    with (
        state.locked(),
        pytest.raises(MqSparkError, match="replay one is running"),
        ReplayState(tmp_path / "one").locked(),
    ):
        pass


def test_plans_of_newer_programs_are_refused(tmp_path: Path) -> None:
    state = ReplayState(tmp_path / "one")
    with state.locked():
        assert state.load() is None
        (state.path / "plan.json").write_text(json.dumps({"version": 7}))
        with pytest.raises(MqSparkError, match="version 7"):
            state.load()


def test_ids_are_names_of_directories() -> None:
    assert checked_id("monday-1.2") == "monday-1.2"
    for bad in ("", "..", "a/b", ".hidden", "x" * 65):
        with pytest.raises(MqSparkError, match="--id"):
            checked_id(bad)
