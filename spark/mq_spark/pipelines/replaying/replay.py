"""`mq spark replay`: an archive, or what a filter leaves of it, back to topics; each message once.

A replay has an id and a plan, see `replay_plan`. Its steps are Spark jobs, one after the other:
rows are brought together by the queue they come from, sorted, and sent by `replay_sending`. A step
that was cut off is done again under the same numbers, of which the broker stores each once; so a
replay that was killed is continued with its id. With a pace there is one task at a time, which
keeps the schedule: a rate is that of the whole replay, whatever Spark runs on.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import logging
import re
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.options import TIME_HELP, Moment
from mq.cli.tables import Column, counted, print_table, stored_at
from mq.client.lowlevel import ConnectionOptions, split_tags
from mq.names import check_topic
from mq_spark.errors import MqSparkError, explain
from mq_spark.pipelines.archiving.archive_directory import ArchiveDirectory
from mq_spark.pipelines.common import Pipeline, with_pipeline
from mq_spark.pipelines.progress import ProgressLine, sigterm_as_interrupt
from mq_spark.pipelines.replaying.pacing import Pace
from mq_spark.pipelines.replaying.replay_plan import (
    Done,
    Plan,
    ReplayState,
    Wanted,
    check_same,
    checked_id,
    rows_in,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PROPERTIES = ("mq.replayed.message_id", "mq.replayed.topic", "mq.replayed.stored_at_ms")

_CHUNK_ROWS = 1_000
# A paced chunk has at most so many rows, and what is due in a tenth of a second.
_PACED_ROWS = 500
_CHUNK_S = 0.1
_QUEUE = ("topic", "broker_set", "queue_id")
_TASKS_MAX = 10_000
_SHOW_EVERY_S, _STOP_AGAIN_S = 0.5, 0.2


# -- rows ------------------------------------------------------------------------------------------


def archive_schema() -> StructType:
    """The schema of the files and their directories, so that nothing is guessed: a topic may be
    called 12.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    from mq_spark.schema import spark_schema

    fields = [field for field in spark_schema(with_properties=True) if field.name != "topic"]
    parts = [StructField("topic", StringType()), StructField("date", StringType())]
    return StructType([*fields, *parts])


def wanted_rows(session: SparkSession, root: Path, files: list[str], wanted: Wanted) -> DataFrame:
    """The rows of the files that pass the filters, with the columns of the archive."""
    from pyspark.sql import functions as f

    paths = [str(root / file) for file in files]
    frame = session.read.schema(archive_schema()).option("basePath", str(root)).parquet(*paths)
    if wanted.topics:
        frame = frame.where(f.col("topic").isin(*wanted.topics))
    if wanted.since_ms is not None:
        frame = frame.where(f.col("stored_at") >= f.timestamp_millis(f.lit(wanted.since_ms)))
    if wanted.until_ms is not None:
        frame = frame.where(f.col("stored_at") < f.timestamp_millis(f.lit(wanted.until_ms)))
    if wanted.tags:
        frame = frame.where(f.col("tag").isin(*wanted.tags))
    if wanted.keys:
        frame = frame.where(f.arrays_overlap("keys", f.array(*map(f.lit, wanted.keys))))
    return frame.where(f.expr(wanted.where)) if wanted.where else frame


def messages(frame: DataFrame, wanted: Wanted, tasks: int) -> DataFrame:
    """The rows to send, in the order of sending, and the task that sends each."""
    from pyspark.sql import functions as f

    if wanted.is_paced:
        frame = frame.coalesce(1)
        order = ("stored_at", *_QUEUE, "queue_offset")
    else:
        frame = frame.repartition(tasks, *_QUEUE)
        # In a queue a message was never stored before the one in front of it; and if the topic was
        # created anew, its offsets begin again.
        order = (*_QUEUE, "stored_at", "queue_offset")
    frame = frame.sortWithinPartitions(*order)
    properties = f.coalesce("properties", f.create_map().cast("map<string,string>"))
    if not wanted.is_plain:
        message_id = f.coalesce("message_id", f.lit(""))
        values = [message_id, f.col("topic"), f.unix_millis("stored_at").cast("string")]
        pairs = [part for pair in zip(map(f.lit, PROPERTIES), values, strict=True) for part in pair]
        # Those of an earlier replay are replaced.
        others = f.map_filter(properties, lambda name, _: ~name.isin(*PROPERTIES))
        properties = f.map_concat(others, f.create_map(*pairs))
    topic = f.lit(wanted.to_topic) if wanted.to_topic else f.col("topic")
    names = ("keys", "body", "broker_set", "queue_id", "tag", "ordering_key", "born_at")
    return frame.select(topic.alias("topic"), properties.alias("properties"), "stored_at", *names)


# -- steps -----------------------------------------------------------------------------------------


class Replaying:
    """One run."""

    def __init__(
        self,
        session: SparkSession,
        connection: ConnectionOptions,
        state: ReplayState,
        plan: Plan,
        pace: Pace | None,
    ) -> None:
        self._session, self._connection = session, connection
        self._state, self._plan, self._pace = state, plan, pace
        self._paced_at_s = 0.0
        self.done = self._before = state.done()
        self.repeated = 0

    @property
    def rows(self) -> int:
        """The rows that the steps of this run have sent, with those that an earlier run had
        stored.
        """
        return self.done.sent - self._before.sent

    def run(self) -> None:
        """All steps that are left; each is stored, and that is written down, before the next."""
        while self.done.steps < len(self._plan.steps):
            rows = self._step(self.done.steps)
            done = Done(self.done.steps + 1, self.done.sent + rows)
            self._state.record(done, self._plan)
            self.done = done

    def text(self, began_s: float) -> str:
        """For the line of progress. Another thread asks."""
        done, steps = self.done, self._plan.steps
        sent = done.sent - self._before.sent + self._state.sent_in_step(done.steps)
        rate = sent / max(time.monotonic() - began_s, 0.001)
        # How many rows a filter leaves is known when they are sent.
        total = sum(step.rows for step in steps[self._before.steps :])
        count = f"{sent:,} of {total:,}" if self._plan.wanted.is_all else f"{sent:,}"
        return (
            f"replay  {count} messages  {rate:,.{1 if 0 < rate < 10 else 0}f}/s  "
            f"step {min(done.steps + 1, len(steps)):,} of {len(steps):,}"
        )

    def _step(self, number: int) -> int:
        from mq_spark.pipelines.replaying.replay_sending import RESULT, Job
        from mq_spark.writing.whole_input import check_pyspark

        check_pyspark()
        plan = self._plan
        files = list(plan.steps[number].files)
        _check_there(plan.root, files)
        job = Job(
            connection=self._connection,
            writer=plan.writer,
            step=number,
            chunk_rows=plan.chunk_rows,
            window_ms=plan.window_ms,
            pace=self._pace_now(),
            progress=str(self._state.progress_of(number)),
        )
        frame = wanted_rows(self._session, plan.root, files, plan.wanted)
        sending = messages(frame, plan.wanted, plan.tasks).mapInArrow(job, RESULT)
        results = sending.collect()
        self.repeated += sum(result["repeated"] for result in results)
        if self._pace is not None and results:
            (last,) = results
            due = {name: last[name] for name in ("due_in_s", "base_ms")}
            self._pace = dataclasses.replace(self._pace, **due)
            self._paced_at_s = time.monotonic()
        rows: int = sum(result["rows"] for result in results)
        return rows

    def _pace_now(self) -> Pace | None:
        """As the step before has left it, some time ago."""
        if self._pace is None or self._pace.due_in_s is None:
            return self._pace
        due_in_s = self._pace.due_in_s - (time.monotonic() - self._paced_at_s)
        return dataclasses.replace(self._pace, due_in_s=due_in_s)


def _check_there(root: Path, files: list[str]) -> None:
    for name in files:
        if not (root / name).exists():
            raise MqSparkError(
                f"{root / name} is gone: the archive was compacted or changed since the replay "
                "began, and its file system has no hard links that would have kept the file. What "
                "is left has to be replayed by another one, with --since"
            )


def counts(session: SparkSession, archive: ArchiveDirectory, wanted: Wanted) -> list[Any]:
    """By topic: how many messages a replay would send, and from when to when they were stored."""
    from pyspark.sql import functions as f

    files = [
        str(file.relative_to(archive.path))
        for day in archive.days()
        if wanted.has_day(day)
        for file in day.files()
    ]
    for file in files:
        rows_in(archive.path / file)
    if not files:
        return []
    found = wanted_rows(session, archive.path, files, wanted).groupBy("topic")
    sums = (
        f.count("*").alias("messages"),
        f.sum(f.octet_length("body")).alias("body_bytes"),
        f.unix_millis(f.min("stored_at")).alias("first_ms"),
        f.unix_millis(f.max("stored_at")).alias("last_ms"),
    )
    return found.agg(*sums).orderBy("topic").collect()


# -- the command -----------------------------------------------------------------------------------


class Speed(click.ParamType[float]):
    """2x, 0.5x or just 2."""

    name = "speed"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)x?", value)
        if not found or not float(found[1]):
            self.fail(f"{value!r} is no speed: use 1x, 2x or 0.5x", param, ctx)
        return float(found[1])


@click.command(short_help="Parquet files back to a topic.")
@click.option(
    "--from",
    "source",
    metavar="DIR",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="What `mq spark archive` wrote.",
)
@click.option("--to-topic", metavar="TOPIC", default="", help="All messages to this topic.")
@click.option("--same-topics", is_flag=True, help="Each message to the topic that it was on.")
@click.option("--topics", metavar="A,B,...", default="", help="Only messages of these topics.")
@click.option("--since", metavar="TIME", default="", help="Only messages stored then or later.")
@click.option("--until", metavar="TIME", default="", help=f"Only those before. {TIME_HELP}")
@click.option("--tags", metavar="'A || B'", default="", help="Only messages with such a tag.")
@click.option("--key", "keys", metavar="KEY", multiple=True, help="With this key; repeatable.")
@click.option("--where", metavar="SQL", default="", help="Spark's SQL over the archive's columns.")
@click.option(
    "--rate",
    metavar="N",
    type=click.FloatRange(0, min_open=True),
    help="Messages a second, of the whole replay.  [default: as fast as possible]",
)
@click.option(
    "--speed", metavar="2x", type=Speed(), help="As fast as they were stored, times this."
)
@click.option(
    "--id",
    "replay_id",
    metavar="NAME",
    default="",
    help="Continues the replay of this name, if there is one.  [default: a new one]",
)
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it is written how far replays got.  [default: in --from]",
)
@click.option(
    "--plain", "is_plain", is_flag=True, help=f"Without the properties {PROPERTIES[0]}, ..."
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Count what would be sent.")
@functools.partial(with_pipeline, taken=["--key"])
def replay(  # noqa: PLR0913 - one a flag
    pipeline: Pipeline,
    *,
    source: Path,
    to_topic: str,
    same_topics: bool,
    rate: float | None,
    speed: float | None,
    replay_id: str,
    state: Path | None,
    is_dry: bool,
    **filters: Any,
) -> None:
    """Send messages of an archive to a topic again, each once.

    \b
    mq spark replay --from /archive --to-topic orders-again --rate 500
    mq spark replay --from /archive --same-topics --topics orders --since -2d
    mq spark replay --from /archive --to-topic t --where "tag = 'paid'" --dry-run

    What the archive has at the start is replayed, in the order of its queues.
    A replay that was interrupted goes on with its --id and the same options; only
    its pace, --rate or --speed, may be another one.
    """
    if bool(to_topic) == same_topics:
        raise click.UsageError("give --to-topic or --same-topics, one of them")
    if rate and speed:
        raise click.UsageError("--rate and --speed are two paces: give one")
    if to_topic:
        check_topic(to_topic)
    wanted = _wanted(to_topic, filters, is_paced=bool(rate or speed))
    archive = ArchiveDirectory(source.absolute())
    _check_archive(archive, source, wanted)
    if is_dry:
        with pipeline.session("replay", needs_broker=False) as session:
            if wanted.where:
                _check_condition(session, wanted.where)
            _print_counts(counts(session, archive, wanted), as_json=pipeline.as_json)
        return
    pipeline.brokers.check()
    name = checked_id(replay_id) if replay_id else _new_id()
    home = ReplayState((state or archive.state / "replays").absolute() / name)
    pace = Pace(rate or 0.0, speed or 0.0) if wanted.is_paced else None
    with home.locked():
        _run(pipeline, home, archive, wanted, pace)


def _run(
    pipeline: Pipeline,
    state: ReplayState,
    archive: ArchiveDirectory,
    wanted: Wanted,
    pace: Pace | None,
) -> None:
    plan = state.load()
    if plan is not None:
        check_same(state.replay_id, plan.wanted, wanted)
    with pipeline.session("replay") as session:
        if plan is None:
            if wanted.where:
                _check_condition(session, wanted.where)
            plan = state.begin(archive, wanted, tasks=_tasks(session), **_cuts(pace))
            output.note(f"Replay {state.replay_id}: if it is cut off, add --id {state.replay_id}")
        began_s = time.monotonic()
        replaying = Replaying(session, pipeline.connection, state, plan, pace)
        _follow(replaying, session.interruptAll)
    _print_result(state, replaying, time.monotonic() - began_s, as_json=pipeline.as_json)


def _tasks(session: SparkSession) -> int:
    """As many as Spark makes of something that has no parts of its own: one a core."""
    from pyspark.sql import functions as f

    parts = session.range(_TASKS_MAX).select(f.spark_partition_id().alias("part"))
    ((last,),) = parts.agg(f.max("part")).collect()
    return max(2, int(last) + 1)


def _follow(replaying: Replaying, stop: Callable[[], object]) -> None:
    """Shows how far it is while it runs. Ctrl-C and SIGTERM stop it, at any moment."""
    line, began_s = ProgressLine(), time.monotonic()
    # In a thread of its own: Spark's answer to Ctrl-C needs the line to Java that a job waits at.
    with ThreadPoolExecutor(1, "replay") as pool, sigterm_as_interrupt():
        running = pool.submit(replaying.run)
        try:
            while not wait([running], _SHOW_EVERY_S).done:
                line.show(replaying.text(began_s))
        except BaseException:
            # Between two steps nothing runs that could be stopped.
            while not wait([running], _STOP_AGAIN_S).done:
                stop()
            raise
        finally:
            line.end()
        running.result()


def _check_archive(archive: ArchiveDirectory, source: Path, wanted: Wanted) -> None:
    there = sorted({day.topic for day in archive.days()})
    if not there:
        raise MqSparkError(f"{source} has no topic=.../date=.../*.parquet: give an archive's --to")
    unknown = [topic for topic in wanted.topics if topic not in there]
    if unknown:
        raise MqSparkError(f"{source} has no topic {unknown[0]}, it has {', '.join(there)}")


def _check_condition(session: SparkSession, where: str) -> None:
    """Before anything is fixed. MqSparkError: what is wrong with it."""
    from pyspark.errors import PySparkException

    # It would print the stacks of both languages.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        session.createDataFrame([], archive_schema()).where(where)
    except PySparkException as error:
        text = re.sub(r"\s*SQLSTATE: .*", "", explain(error))
        raise MqSparkError(f"--where {where!r}: {text}") from None


def _wanted(to_topic: str, filters: dict[str, Any], *, is_paced: bool) -> Wanted:
    tags, topics = filters["tags"], filters["topics"]
    times = {
        f"{name}_ms": _moment_ms(name, filters[name])
        for name in ("since", "until")
        if filters[name]
    }
    chosen = {
        "topics": tuple(sorted({name.strip() for name in topics.split(",") if name.strip()})),
        "tags": tuple(sorted(split_tags(tags))) if tags else (),
        "keys": tuple(sorted(set(filters["keys"]))),
    }
    return Wanted(to_topic=to_topic, is_paced=is_paced, **{**filters, **times, **chosen})


def _moment_ms(name: str, text: str) -> int:
    """Not by the option itself: a plan has both, what was said and what it meant."""
    try:
        return Moment().convert(text, None, None)
    except click.BadParameter as error:
        error.param_hint = f"'--{name}'"
        raise


def _cuts(pace: Pace | None) -> dict[str, int]:
    if pace is None:
        return {"chunk_rows": _CHUNK_ROWS, "window_ms": 0}
    if pace.rate:
        rows = min(_PACED_ROWS, int(pace.rate * _CHUNK_S))
        return {"chunk_rows": max(1, rows), "window_ms": 0}
    window_ms = int(pace.speed * _CHUNK_S * 1000)
    return {"chunk_rows": _PACED_ROWS, "window_ms": max(1, window_ms)}


def _new_id() -> str:
    return f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


# -- what is printed -------------------------------------------------------------------------------


def _print_counts(found: list[Any], *, as_json: bool) -> None:
    if as_json:
        output.write_json([row.asDict() for row in found])
        return
    if not found:
        click.echo("Nothing would be replayed.")
        return
    numbers = [row["messages"] for row in found]
    print_table(
        output.console(),
        [
            Column("TOPIC", [row["topic"] for row in found], "left", is_flexible=True),
            Column("MESSAGES", [f"{number:,}" for number in numbers]),
            Column("BODY BYTES", [f"{row['body_bytes']:,}" for row in found], rank=1),
            Column("FIRST STORED AT", [stored_at(row["first_ms"]) for row in found], rank=2),
            Column("LAST STORED AT", [stored_at(row["last_ms"]) for row in found], rank=3),
        ],
    )
    click.echo(f"{counted(sum(numbers), 'message')} would be replayed.")


def _print_result(
    state: ReplayState, replaying: Replaying, took_s: float, *, as_json: bool
) -> None:
    if as_json:
        output.write_json(
            {
                "id": state.replay_id,
                "rows": replaying.rows,
                "repeated": replaying.repeated,
                "rows_of_all_runs": replaying.done.sent,
                "took_s": round(took_s, 3),
            }
        )
        return
    text = f"Replayed {counted(replaying.rows, 'message')} in {took_s:.1f} s"
    if replaying.repeated:
        text += f", {replaying.repeated:,} of them stored before"
    if replaying.done.sent != replaying.rows:
        text += f"; {replaying.done.sent:,} in all runs of {state.replay_id}"
    click.echo(text)
