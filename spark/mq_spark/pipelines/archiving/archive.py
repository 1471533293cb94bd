"""`mq spark archive`: topics to Parquet files, by topic and day, each message once.

A stream whose batches are written by Spark and put into place by `ArchiveDirectory`, which makes
them count once for every reader. Few files: a batch is written by as many tasks as its rows are
worth, and a topic and day has one file a task. What is small all the same, because little came in
between two batches, `--compact` merges when the day is over.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.options import PLACE_METAVAR, TIME_HELP, Place, PlaceInTime
from mq.cli.tables import counted, size
from mq_spark.options import connection_options
from mq_spark.pipelines import offset_log, progress
from mq_spark.pipelines.archiving.archive_directory import ArchiveDirectory, Stored
from mq_spark.pipelines.archiving.compact import today
from mq_spark.pipelines.archiving.compaction import FILE_MIB, MIB, Compacted, compact
from mq_spark.pipelines.archiving.delta_log import DeltaLog
from mq_spark.pipelines.common import Pipeline, Runs, with_pipeline, with_runs
from mq_spark.pipelines.reports import Reports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_ROWS_PER_TRIGGER = 500_000
# What one task writes, and a file has at most.
_ROWS_PER_TASK = 250_000
_CONF = {
    # The other form, INT96, is read by few programs and deprecated by Parquet.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Days are those of UTC, wherever this runs.
    "spark.sql.session.timeZone": "UTC",
    # Rows of few topics are written as they come, in the order of their queues, without a sort.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
}


@dataclasses.dataclass(slots=True)
class Archiving:
    """The batches of one run. `take` is for foreachBatch; it may run in another process than the
    rest, see `reports`. The caller holds the directory's lock.
    """

    directory: ArchiveDirectory
    checkpoint: str
    rows_per_trigger: int
    file_bytes: int
    with_compaction: bool = False
    delta_log: DeltaLog | None = None
    today: Callable[[], str] = today
    _stored: Stored = dataclasses.field(default_factory=Stored)
    _compacted: Compacted = dataclasses.field(default_factory=lambda: Compacted(0, 0, 0))
    _compacted_on: str = ""

    def begin(self) -> None:
        """Before the first batch: what the last run has left is done."""
        self._reports.clear()
        with self.directory.changing():
            if self.delta_log is not None:
                self.delta_log.follow(self.directory.days())
            self._compacted = self._compact_once_a_day()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """The batch is part of the archive when this returns; one that is already changes
        nothing.
        """
        from mq_spark.query_id import query_id

        session = frame.sparkSession
        query = query_id(session, self.checkpoint)
        by_topic = offset_log.rows_of_batch(self.checkpoint, batch_id) or {}
        rows = min(sum(by_topic.values()), self.rows_per_trigger) or self.rows_per_trigger

        def write(staged: Path) -> None:
            for key, value in _CONF.items():
                session.conf.set(key, value)
            write_batch(
                frame,
                staged,
                tasks=math.ceil(rows / _ROWS_PER_TASK),
                topics=len(by_topic),
                rows_per_file=self._rows_per_file(),
            )

        with self.directory.changing():
            stored = self.directory.store(query, batch_id, write)
            if self.delta_log is not None:
                self.delta_log.follow(self.directory.newest_days())
            compacted = self._compact_once_a_day()
        self._reports.write(batch_id, json.dumps([stored, compacted]).encode())

    def done(self) -> tuple[Stored, Compacted]:
        """All that this run has done so far."""
        for report in self._reports.take():
            stored, compacted = json.loads(report)
            self._stored = Stored(*map(sum, zip(self._stored, stored, strict=True)))
            self._compacted = Compacted(*map(sum, zip(self._compacted, compacted, strict=True)))
        return self._stored, self._compacted

    def details(self) -> str:
        """For the line of progress."""
        stored, _ = self.done()
        return size(stored.size_bytes + self.directory.staged_bytes())

    @property
    def _reports(self) -> Reports:
        return Reports(self.directory.state / "reports")

    def _compact_once_a_day(self) -> Compacted:
        """Also when the archive runs through midnight."""
        date = self.today()
        if not self.with_compaction or date == self._compacted_on:
            return Compacted(0, 0, 0)
        done = compact(self.directory, date, self.file_bytes)
        self._compacted_on = date
        if self.delta_log is not None:
            self.delta_log.follow(self.directory.days())
        return done

    def _rows_per_file(self) -> int:
        bytes_per_row = self.directory.bytes_per_row
        if bytes_per_row is None:
            return _ROWS_PER_TASK
        return max(1, min(_ROWS_PER_TASK, int(self.file_bytes / bytes_per_row)))


def start(
    session: SparkSession, options: Mapping[str, str], archiving: Archiving, runs: Runs
) -> StreamingQuery:
    """Starts the query with these options of the source."""
    archiving.begin()
    frame = session.readStream.format("mq").options(**options).load()
    writer = frame.writeStream.queryName("archive").foreachBatch(archiving.take)
    return runs.start(writer, archiving.checkpoint)


def write_batch(
    frame: DataFrame, target: Path, *, tasks: int, topics: int, rows_per_file: int
) -> None:
    """Parquet files by topic and day, few of them."""
    from pyspark.sql import functions as f

    # Each task has a file for each of its topics: many topics are better brought together, though
    # it costs a shuffle.
    frame = frame.repartition(tasks, "topic") if topics > tasks > 1 else frame.coalesce(tasks)
    (
        frame.withColumn("date", f.date_format("stored_at", "yyyy-MM-dd"))
        .write.partitionBy("topic", "date")
        .option("maxRecordsPerFile", rows_per_file)
        .parquet(str(target), mode="overwrite")
    )


# -- the command -----------------------------------------------------------------------------------


@click.command(short_help="Topics to Parquet files.")
@click.option("--topics", metavar="A,B,...", default="", help="These topics.")
@click.option(
    "--pattern", metavar="REGEX", default="", help="All topics of such names, also later."
)
@click.option(
    "--to",
    "target",
    metavar="DIR",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the files go.",
)
@click.option(
    "--from",
    "starting",
    metavar=PLACE_METAVAR,
    type=PlaceInTime(),
    default="earliest",
    show_default=True,
    help=f"Where the first run begins; later ones go on. {TIME_HELP}",
)
@click.option("--group", metavar="GROUP", default="", help="Commit progress for this group.")
@click.option("--tags", metavar="'A || B'", default="", help="Only messages with such a tag.")
@click.option(
    "--rows-per-trigger",
    metavar="N",
    type=click.IntRange(1),
    default=_ROWS_PER_TRIGGER,
    show_default=True,
    help="A batch has no more.",
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
@click.option(
    "--compact",
    "with_compaction",
    is_flag=True,
    help="Merge small files of days that are over, at the start and after midnight (UTC).",
)
@click.option(
    "--delta",
    "as_delta",
    is_flag=True,
    help="Be a Delta table, too: keep its log beside the files, from now on.",
)
@with_runs
@with_pipeline
def archive(  # noqa: PLR0913 - one a flag
    pipeline: Pipeline,
    *,
    topics: str,
    pattern: str,
    target: Path,
    starting: Place,
    group: str,
    tags: str,
    rows_per_trigger: int,
    file_mib: int,
    with_compaction: bool,
    as_delta: bool,
    runs: Runs,
) -> None:
    """Write topics to Parquet files, by topic and day (UTC), each message once.

    \b
    mq spark archive --topics orders,payments --to /archive --once
    mq spark archive --pattern 'shop-.*' --to /archive --every 1m --group archive

    The files are DIR/topic=orders/date=2026-11-16/part-*.parquet: any program
    that reads Parquet reads them, at any time. A run that ended, in whatever way,
    is continued by the next one with the same --to.
    """
    if bool(topics) == bool(pattern):
        raise click.UsageError("give --topics or --pattern, one of them")
    options = {"subscribe": topics} if topics else {"subscribePattern": pattern}
    options |= connection_options(pipeline.connection) | {"includeProperties": "true"}
    options |= _start(starting) | {"maxOffsetsPerTrigger": str(rows_per_trigger)}
    options |= {name: text for name, text in (("group", group), ("tags", tags)) if text}
    directory = ArchiveDirectory(target.absolute())
    checkpoint = runs.checkpoint or str(directory.checkpoint)
    delta_log = DeltaLog(directory.path) if as_delta or directory.has_delta_log else None
    pipeline.brokers.check()
    began_s = time.monotonic()
    with directory.locked(), pipeline.session("archive") as session:
        archiving = Archiving(
            directory, checkpoint, rows_per_trigger, file_mib * MIB, with_compaction, delta_log
        )
        total = offset_log.backlog(options, checkpoint) if runs.is_once else None
        query = start(session, options, archiving, runs)
        progress.follow(query, "archive", total=total, details=archiving.details)
    _print_result(archiving, target, time.monotonic() - began_s, as_json=pipeline.as_json)


def _start(starting: Place) -> dict[str, str]:
    if isinstance(starting, int):
        return {"startingTimestamp": str(starting)}
    return {"startingOffsets": starting}


def _print_result(archiving: Archiving, target: Path, took_s: float, *, as_json: bool) -> None:
    stored, compacted = archiving.done()
    if as_json:
        document: dict[str, Any] = {"directory": str(target), **stored._asdict()}
        document |= {"took_s": round(took_s, 3), "compacted": compacted._asdict()}
        output.write_json(json.loads(json.dumps(document)))
        return
    click.echo(
        f"Archived {counted(stored.rows, 'message')} to {target}: "
        f"{counted(stored.files, 'file')}, {size(stored.size_bytes)}, in {took_s:.1f} s"
    )
    if compacted.days:
        click.echo(
            f"Compacted {counted(compacted.days, 'day')}: "
            f"{counted(compacted.files_before, 'file')} became {compacted.files_after:,}"
        )
