"""What batches tell their command, by files."""

from __future__ import annotations

from pathlib import Path

from mq_spark.pipelines.reports import LEFT_MAX, Reports


def test_reports_come_once_in_the_order_of_batches(tmp_path: Path) -> None:
    reports = Reports(tmp_path / "reports")
    reports.clear()
    assert reports.take() == []
    # Another process has another object.
    others = Reports(tmp_path / "reports")
    for batch_id in (9, 10, 8):
        others.write(batch_id, b"of %d" % batch_id)
    others.write(9, b"of 9 again")
    assert reports.take() == [b"of 8", b"of 9 again", b"of 10"]
    assert reports.take() == []


def test_a_run_does_not_hear_of_an_earlier_one(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    reports.write(3, b"before")
    reports.clear()
    assert reports.take() == []


def test_a_query_without_a_command_does_not_fill_the_disk(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    for batch_id in range(LEFT_MAX + 10):
        reports.write(batch_id, b"")
    assert len(reports.take()) == LEFT_MAX
    reports.write(LEFT_MAX + 10, b"heard")
    assert reports.take() == [b"heard"]
