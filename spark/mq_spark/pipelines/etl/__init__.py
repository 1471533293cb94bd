"""`mq spark etl`: the worked tutorial of docs/SPARK.md. Clicks, orders and payments of a shop are
counted and joined by Spark.

    shop.py     what happens on a day, and the right answer
    traffic.py  sends it
    queries.py  the two streaming queries: the part to read and to copy
    results.py  figures and plots from their results

This module has the commands. Modules of Spark's and of matplotlib's are loaded by those that need
them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.options import Brokers, Duration, with_brokers
from mq.cli.tables import Column, print_table
from mq.names import check_topic
from mq_spark.pipelines.common import Pipeline, Runs, connection_to, with_pipeline, with_runs
from mq_spark.pipelines.progress import ProgressLine, Seen, sigterm_as_interrupt

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.5
# Spark's own default is 200, made for clusters: here each would be a task, for nothing.
_CONF = {"spark.sql.shuffle.partitions": "2"}
# The queries ask for the hour of an event, and the hours of the shop are in UTC.
_FIXED_CONF = {"spark.sql.session.timeZone": "UTC"}
_TITLES = {
    "day": "day",
    "clicks": "clicks",
    "sessions": "sessions",
    "sessions_with_cart": "with cart",
    "sessions_with_checkout": "with checkout",
    "orders": "orders",
    "rolled_back": "rolled back",
    "paid": "paid",
    "unpaid": "unpaid",
    "revenue_cents": "revenue",
}


def _check_shop(_context: click.Context, _option: click.Parameter, shop: str) -> str:
    check_topic(f"{shop}-payments")
    return shop


with_shop = click.option(
    "--shop",
    metavar="NAME",
    default="shop",
    show_default=True,
    callback=_check_shop,
    help="What the names of its topics begin with.",
)
with_folder = click.option(
    "--dir",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default="shop",
    show_default=True,
    help="Where the results and the checkpoints are.",
)


@click.group()
def etl() -> None:
    """The tutorial of docs/SPARK.md: a shop's clicks, orders and payments.

    \b
      mq spark etl produce       a day of the shop, sent to topics
      mq spark etl run --once    sessions and sales, to topics and Parquet
      mq spark etl report        figures and plots
    """


@etl.command()
@with_brokers("")
@with_shop
@click.option(
    "--users",
    metavar="N",
    type=click.IntRange(1, 1_000_000),
    default=500,
    show_default=True,
    help="How many visit the shop on this day; each makes about 12 clicks.",
)
@click.option("--seed", metavar="N", default=1, show_default=True, help="Another one: other days.")
@click.option(
    "--over",
    "over_s",
    metavar="DURATION",
    type=Duration(),
    help="Spread the day over so long, for a query to follow.  [default: as fast as it goes]",
)
def produce(brokers: Brokers, *, shop: str, users: int, seed: int, over_s: float | None) -> None:
    """Send a day of the shop to its topics.

    Orders are transactional messages: some are rolled back, and no consumer sees them. Each call
    is the next day. What is printed is what Spark has to find out.
    """
    brokers.check()
    # Here, so that help does not wait for gRPC.
    from mq_spark.pipelines.etl.shop import make_day
    from mq_spark.pipelines.etl.traffic import (
        Topics,
        create_topics,
        last_day,
        send_day,
    )

    topics = Topics.of(shop)
    connection = connection_to(brokers)
    create_topics(connection, topics)
    day = make_day(last_day(connection, topics) + 1, users, seed)
    total = len(day.clicks) + len(day.orders) + len(day.payments)
    with output.meter(f"day {day.number}", "message", total) as show:
        send_day(connection, topics, day, over_s or 0.0, show)
    answer = {"day": day.date, **day.answer._asdict()}
    if brokers.as_json:
        output.write_json(answer)
    else:
        _print_days([answer])


@etl.command()
@with_pipeline
@with_runs
@with_shop
@with_folder
def run(pipeline: Pipeline, *, runs: Runs, shop: str, folder: Path) -> None:
    """Find sessions in the clicks, and join orders with payments.

    The results go to the topics NAME-sessions and NAME-sales, and to Parquet in DIR. It may be
    stopped or killed at any time: started again it goes on, and nothing is lost or doubled.
    """
    pipeline = dataclasses.replace(pipeline, conf={**_CONF, **pipeline.conf, **_FIXED_CONF})
    with pipeline.session("etl") as session:
        # Here, because they need PySpark.
        from mq_spark.pipelines.etl.queries import start
        from mq_spark.pipelines.etl.traffic import Topics, create_topics

        topics = Topics.of(shop)
        create_topics(pipeline.connection, topics)
        _follow(start(session, pipeline.connection, topics, str(folder.absolute()), runs))


def _follow(queries: Mapping[str, StreamingQuery]) -> None:
    """Until all have ended, or one fails: that is raised, and the others are stopped."""
    line, seen = ProgressLine(), {name: Seen() for name in queries}

    def text() -> str:
        now_s = time.monotonic()
        for name, query in queries.items():
            for record in query.recentProgress:
                seen[name].take(record, now_s)
        return "   ".join(one.text(name, "message", None, now_s) for name, one in seen.items())

    with sigterm_as_interrupt():
        try:
            while any(query.isActive for query in queries.values()):
                _raise_failure(queries.values())
                line.show(text())
                time.sleep(_LOOK_S)
            _raise_failure(queries.values())
        except BaseException:
            line.end()
            for query in queries.values():
                query.stop()
            raise
    line.end(text())


def _raise_failure(queries: Iterable[StreamingQuery]) -> None:
    for query in queries:
        if not query.isActive:
            # It has ended, so this does not wait: it raises if the end was a failure.
            query.awaitTermination()


@etl.command()
@with_folder
@click.option(
    "--plot",
    metavar="FILE.png",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the plots go.  [default: DIR/report.png]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for jq.")
def report(folder: Path, plot: Path | None, *, as_json: bool) -> None:
    """Print what was found, day by day, and draw it."""
    # Here, because it needs matplotlib.
    from mq_spark.pipelines.etl.results import days, draw, read_results

    results = read_results(folder)
    plot = plot or folder / "report.png"
    draw(results, plot)
    found = [day._asdict() for day in days(results)]
    if as_json:
        output.write_json(found)
    else:
        _print_days(found)
    output.note(f"Plots are in {plot}.")


def _print_days(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = [
        Column(title, [_cell(name, row[name]) for row in rows])
        for name, title in _TITLES.items()
        if name in rows[0]
    ]
    print_table(output.console(), columns)


def _cell(name: str, value: Any) -> str:
    if name == "revenue_cents":
        return f"{value / 100:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
