"""`mq spark compact`: small files of an archive made into few, see `compaction`. Needs no Java."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from mq.cli import output
from mq.cli.tables import counted
from mq_spark.errors import MqSparkError
from mq_spark.pipelines.archiving.archive_directory import ArchiveDirectory
from mq_spark.pipelines.archiving.compaction import FILE_MIB, MIB
from mq_spark.pipelines.archiving.compaction import compact as compact_days
from mq_spark.pipelines.archiving.delta_log import DeltaLog


def today() -> str:
    """In UTC, as the days of an archive are."""
    return dt.datetime.now(dt.UTC).date().isoformat()


@click.command(short_help="Few files of many small ones.")
@click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--before",
    metavar="DATE",
    default=today,
    show_default="today",
    help="Only days before this one, such as 2026-11-16 (UTC).",
)
@click.option(
    "--file-mb",
    "file_mib",
    metavar="N",
    type=click.IntRange(1),
    default=FILE_MIB,
    show_default=True,
    help="How large a file gets, about.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for jq.")
def compact(directory: Path, *, before: str, file_mib: int, is_dry: bool, as_json: bool) -> None:
    """Merge small files of an archive, day by day.

    A day is replaced in one step: readers of the archive see it before or
    after, and a crash leaves it whole. Not while `mq spark archive` runs on it:
    there, use its --compact.
    """
    try:
        date = dt.date.fromisoformat(before).isoformat()
    except ValueError:
        raise click.BadParameter(f"{before!r} is no day such as 2026-11-16") from None
    archive = ArchiveDirectory(directory.absolute())
    if not archive.state.exists():
        raise MqSparkError(f"{directory} is no archive: `mq spark archive` has not written to it")
    with archive.locked(), archive.changing():
        delta_log = DeltaLog(archive.path) if archive.has_delta_log and not is_dry else None
        done = compact_days(archive, date, file_mib * MIB, is_dry=is_dry)
        if delta_log is not None:
            delta_log.follow(archive.days())
    if as_json:
        output.write_json(done._asdict())
        return
    verb = "Would compact" if is_dry else "Compacted"
    files = f"{counted(done.files_before, 'file')} to {done.files_after:,}"
    click.echo(f"{verb} {counted(done.days, 'day')}" + (f", {files}" if done.days else ""))
