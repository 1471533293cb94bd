"""`mq spark metrics`: figures from the messages themselves, by window of time.

Here are the options and what is printed. With a place for the result (--to, --to-topic) it is a
stream with a checkpoint; without one, a look at what is there now; and with --to alone, a look at
what was written before, for which no Spark is started.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.options import PLACE_METAVAR, TIME_HELP, Duration, Place, PlaceInTime
from mq.cli.tables import counted
from mq_spark.pipelines.common import Pipeline, Runs, with_pipeline, with_runs

if TYPE_CHECKING:
    import pyarrow as pa

    from mq_spark.pipelines.measuring.metrics_files import FigureFiles
    from mq_spark.pipelines.measuring.metrics_stream import Measuring, Wanted

_CONF = {
    # Each has a state of its own, which costs about 30 ms a batch; figures are few.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
}
_WINDOW_MIN_S = 1.0
_WINDOW_MAX_S = 366 * 86_400.0
_WINDOWS_IN_TABLE = 20
_WINDOWS_IN_PLOT = 500
_PICTURES = (".png", ".svg", ".pdf")


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """The part of the result that is shown."""

    as_table: bool
    plot: Path | None
    # None: as many as suit a table, or a plot.
    windows_max: int | None
    as_json: bool

    @property
    def windows_read_max(self) -> int:
        return max(self.windows_max or _WINDOWS_IN_TABLE, self.windows_max or _WINDOWS_IN_PLOT)

    def show(self, figures: pa.Table) -> None:
        """The newest windows."""
        from mq_spark.pipelines.measuring.metrics_files import newest_windows
        from mq_spark.pipelines.measuring.metrics_report import print_figures
        from mq_spark.pipelines.measuring.metrics_stream import documents

        newest = newest_windows(figures, self.windows_max or _WINDOWS_IN_TABLE)
        if self.as_json:
            output.write_json(documents(newest))
        elif not len(newest):
            click.echo("No messages, so no figures.")
        elif self.as_table:
            print_figures(output.console(), newest)

    def show_lines(self, figures: pa.Table) -> None:
        """The same while a stream runs: each window when it is complete."""
        from mq_spark.pipelines.measuring.metrics_stream import documents

        if sys.stderr.isatty():
            # The line of progress, which comes again.
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        if self.as_json:
            sys.stdout.writelines(map(output.json_line, documents(figures)))
            sys.stdout.flush()
        else:
            self.show(figures)

    def draw(self, figures: pa.Table) -> None:
        if self.plot is not None and len(figures):
            from mq_spark.pipelines.measuring.metrics_files import newest_windows
            from mq_spark.pipelines.measuring.metrics_report import plot_figures

            plot_figures(newest_windows(figures, self.windows_read_max), self.plot)
            output.note(f"Drawn: {self.plot}")


@click.command(short_help="Rates, sizes, latencies by window.")
@click.option("--topics", metavar="A,B,...", default="", help="These topics.")
@click.option(
    "--pattern", metavar="REGEX", default="", help="All topics of such names, also later."
)
@click.option(
    "--window",
    "window_s",
    metavar="DURATION",
    type=Duration(),
    default="1m",
    show_default=True,
    help="How long a window is.",
)
@click.option(
    "--watermark",
    "watermark_s",
    metavar="DURATION",
    type=Duration(),
    default="2m",
    show_default=True,
    help="How long a window waits for messages that come late.",
)
@click.option(
    "--time",
    "time_of",
    type=click.Choice(["stored", "born"]),
    default="stored",
    show_default=True,
    help="Windows of the broker's time or of the producer's.",
)
@click.option(
    "--by",
    type=click.Choice(["queue", "tag"]),
    multiple=True,
    help="Figures for each of them; may be given twice.",
)
@click.option("--tags", metavar="'A || B'", default="", help="Only messages with such a tag.")
@click.option(
    "--group", "groups", metavar="GROUP", multiple=True, help="With the lag of this group."
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
@click.option(
    "--to",
    "target",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write Parquet files there.",
)
@click.option("--to-topic", metavar="TOPIC", default="", help="Send each row as JSON.")
@click.option("--show", "as_table", is_flag=True, help="Print the newest windows.")
@click.option(
    "--plot",
    metavar="FILE.png",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the newest windows; also .svg, .pdf.",
)
@click.option(
    "--last",
    "windows_max",
    metavar="N",
    type=click.IntRange(1),
    help="So many windows.  [default: 20 in a table, 500 in a plot]",
)
@with_runs
@with_pipeline
def metrics(  # noqa: PLR0913 - one a flag
    pipeline: Pipeline,
    *,
    runs: Runs,
    topics: str,
    pattern: str,
    window_s: float,
    watermark_s: float,
    time_of: Any,
    by: Sequence[Any],
    tags: str,
    groups: Sequence[str],
    starting: Place,
    target: Path | None,
    to_topic: str,
    as_table: bool,
    plot: Path | None,
    windows_max: int | None,
) -> None:
    """Count messages by topic and window: rates, sizes, latency, lag.

    \b
    mq spark metrics --topics orders                     what is there now
    mq spark metrics --topics orders --to /metrics       run, and write windows
    mq spark metrics --pattern '.*' --to-topic figures --checkpoint /cp --once
    mq spark metrics --to /metrics --show --plot now.png what was written

    Latency is from the producer to the broker, and of a delayed message
    includes the delay. A window is written once, when it is complete: when a
    message has come that is newer than its end by the watermark. What comes
    later still is dropped and counted as late. --once writes the windows that
    are complete; the others to open.parquet, anew each time, and to no topic.
    """
    shown = Shown(as_table, plot, windows_max, pipeline.as_json)
    _check_usage(topics, pattern, target, to_topic, runs, shown)
    _check_windows(window_s, watermark_s)
    if not topics and not pattern:
        assert target is not None  # noqa: S101 - checked above
        _show_written(target, shown)
        return
    from mq_spark.pipelines.measuring.metrics_figures import Measure
    from mq_spark.pipelines.measuring.metrics_stream import Wanted

    source = {"subscribe": topics} if topics else {"subscribePattern": pattern}
    source |= {"tags": tags} if tags else {}
    measure = Measure(window_s, watermark_s, time_of, frozenset(by))
    wanted = Wanted(pipeline.connection, source, measure, groups)
    pipeline = dataclasses.replace(pipeline, conf={**_CONF, **pipeline.conf})
    if target is None and not to_topic:
        _show_now(pipeline, wanted, _start(starting), shown)
    else:
        _run(pipeline, runs, wanted, _start(starting), target, to_topic, shown)


# -- what it does ----------------------------------------------------------------------------------


def _show_written(target: Path, shown: Shown) -> None:
    from mq_spark.pipelines.measuring.metrics_files import FigureFiles

    if not target.is_dir():
        raise click.UsageError(f"--to {target}: there is no such directory; --topics makes one")
    found = FigureFiles(target).read(shown.windows_read_max)
    if shown.as_table or shown.as_json:
        shown.show(found)
    shown.draw(found)


def _show_now(
    pipeline: Pipeline, wanted: Wanted, starting: Mapping[str, str], shown: Shown
) -> None:
    from mq_spark.pipelines.measuring.metrics_stream import measured

    with pipeline.session("metrics") as session:
        found = measured(session, wanted, starting)
    if shown.as_table or shown.as_json or shown.plot is None:
        dataclasses.replace(shown, as_table=True).show(found)
    shown.draw(found)


def _run(
    pipeline: Pipeline,
    runs: Runs,
    wanted: Wanted,
    starting: Mapping[str, str],
    target: Path | None,
    to_topic: str,
    shown: Shown,
) -> None:
    from mq_spark.pipelines.measuring.metrics_files import FigureFiles

    if target is None:
        assert runs.checkpoint is not None  # noqa: S101 - checked with the options
        _stream(pipeline, runs, wanted, starting, None, to_topic, shown)
        return
    files = FigureFiles(target)
    pipeline.brokers.check()
    with files.locked():
        runs = dataclasses.replace(runs, checkpoint=runs.checkpoint or str(target / "_checkpoint"))
        _stream(pipeline, runs, wanted, starting, files, to_topic, shown)
        if runs.is_once and (shown.as_table or shown.as_json):
            shown.show(files.read(shown.windows_read_max))
        shown.draw(files.read(shown.windows_read_max))


def _stream(
    pipeline: Pipeline,
    runs: Runs,
    wanted: Wanted,
    starting: Mapping[str, str],
    files: FigureFiles | None,
    to_topic: str,
    shown: Shown,
) -> None:
    from mq_spark.pipelines import progress
    from mq_spark.pipelines.measuring.metrics_stream import Measuring

    checkpoint = Path(runs.checkpoint or "").absolute()
    began_s = time.monotonic()
    measuring = Measuring(wanted, checkpoint, files=files, topic=to_topic)
    with pipeline.session("metrics") as session:
        query = runs.start(
            measuring.writer(session, starting).queryName("metrics"), str(checkpoint)
        )

        def show(figures: pa.Table) -> None:
            if shown.as_table or shown.as_json:
                shown.show_lines(figures)
            if files:
                shown.draw(files.read(shown.windows_read_max))

        def details() -> str:
            for figures in measuring.completed():
                if not runs.is_once:
                    show(figures)
            late = measuring.count_late(query.recentProgress)
            return f"{measuring.windows:,} windows" + (f"  {late:,} late" if late else "")

        seen = progress.follow(query, "metrics", details=details)
        open_rows = measuring.finish(session) if runs.is_once else 0
    _print_result(measuring, seen.rows, open_rows, time.monotonic() - began_s)


def _print_result(measuring: Measuring, messages: int, open_rows: int, took_s: float) -> None:
    """On stderr: the result itself may be read by a program."""
    late = f", {counted(measuring.late, 'message')} late" if measuring.late else ""
    still = f"; {counted(open_rows, 'row')} of windows that are still open" if open_rows else ""
    output.note(
        f"Measured {counted(messages, 'message')}{late} in {took_s:.1f} s: "
        f"{counted(measuring.windows, 'window')}, {counted(measuring.rows, 'row')}{still}"
    )


# -- options ---------------------------------------------------------------------------------------


def _check_usage(
    topics: str, pattern: str, target: Path | None, to_topic: str, runs: Runs, shown: Shown
) -> None:
    if topics and pattern:
        raise click.UsageError("give --topics or --pattern, one of them")
    if not topics and not pattern and (target is None or to_topic):
        raise click.UsageError("give --topics or --pattern: what is measured")
    if not topics and not pattern and not (shown.as_table or shown.plot or shown.as_json):
        raise click.UsageError("give --topics or --pattern to measure, or --show, --plot to look")
    if to_topic and target is None and not runs.checkpoint:
        raise click.UsageError("--to-topic without --to needs --checkpoint DIR")
    for flag, place in (("--to", target), ("--checkpoint", runs.checkpoint)):
        if place is not None and re.match(r"[a-z0-9]+:/", str(place)):
            raise click.UsageError(f"{flag} {place}: give a directory that is mounted here")
    if to_topic and (to_topic in map(str.strip, topics.split(",")) or _matches(pattern, to_topic)):
        raise click.UsageError(f"--to-topic {to_topic} is measured itself: that would never end")
    if shown.plot is not None:
        _check_plot(shown.plot)


def _check_plot(path: Path) -> None:
    if path.suffix.lower() not in _PICTURES:
        raise click.UsageError(f"--plot {path}: the name ends with {', '.join(_PICTURES)}")
    if not path.absolute().parent.is_dir():
        raise click.UsageError(f"--plot {path}: there is no such directory")


def _matches(pattern: str, topic: str) -> bool:
    try:
        return bool(pattern) and re.fullmatch(pattern, topic) is not None
    except re.error as error:
        raise click.UsageError(f"--pattern {pattern!r}: {error}") from error


def _check_windows(window_s: float, watermark_s: float) -> None:
    if not _WINDOW_MIN_S <= window_s <= _WINDOW_MAX_S:
        raise click.UsageError("--window is between 1s and 366d")
    if watermark_s > _WINDOW_MAX_S:
        raise click.UsageError("--watermark is at most 366d")


def _start(starting: Place) -> dict[str, str]:
    if isinstance(starting, int):
        return {"startingTimestamp": str(starting)}
    return {"startingOffsets": starting}
