"""`mq receive`: takes messages for a group one by one, prints them, and acknowledges them.

A message is acknowledged when it was written out: a crash before that, and --no-ack, bring it again
when its invisible time is over.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, BinaryIO, cast

import click

from mq.cli import output
from mq.cli.completion import complete_group, complete_topic
from mq.cli.message_format import with_template
from mq.cli.options import (
    PLACE_METAVAR,
    SECONDS,
    TIME_HELP,
    Brokers,
    Duration,
    Place,
    PlaceInTime,
    filter_of,
    with_brokers,
    with_filters,
)
from mq.cli.sink import Sink
from mq.cli.tables import counted
from mq.errors import IllegalHandle

if TYPE_CHECKING:
    from mq.client import SimpleConsumer

_WAIT_S = 5.0
_BATCH = 32


@click.command(short_help="Take messages for a group, and acknowledge them.")
@click.argument(
    "topics", metavar="TOPIC...", shell_complete=complete_topic, nargs=-1, required=True
)
@click.option(
    "--group", metavar="GROUP", shell_complete=complete_group, required=True, help="For this group."
)
@click.option(
    "--count", "--max", "count", metavar="N", type=click.IntRange(1), help="End after so many."
)
@click.option(
    "--ack/--no-ack",
    "is_acked",
    default=True,
    help="Whether they are done then, or come again.  [default: ack]",
)
@click.option(
    "--invisible",
    "invisible_s",
    metavar="DURATION",
    type=Duration(),
    default="60s",
    show_default=True,
    help="For how long no other member gets them: 10s to 12h.",
)
@click.option("--ordered", "is_ordered", is_flag=True, help="Of an ordering key one at a time.")
@click.option(
    "--from",
    "place",
    metavar=PLACE_METAVAR,
    type=PlaceInTime(),
    default="earliest",
    show_default=True,
    help=f"Where a group starts that is new to a topic. {TIME_HELP}",
)
@click.option(
    "--timeout",
    "idle_s",
    metavar="SECONDS",
    type=SECONDS,
    default=_WAIT_S,
    show_default=True,
    help="End when none came for so long.",
)
@with_filters
@click.option("--meta", is_flag=True, help="Put place, time, tag, keys before each body.")
@with_template
@with_brokers("", "--jsonl")
def receive(  # noqa: PLR0913 - one a flag
    brokers: Brokers,
    *,
    topics: tuple[str, ...],
    group: str,
    count: int | None,
    is_acked: bool,
    invisible_s: float,
    is_ordered: bool,
    place: Place,
    idle_s: float,
    tags: str | None,
    sql: str | None,
    meta: bool,
    template: str | None,
) -> None:
    """Take messages of topics for a group, one body a line.

    Any number of members share every queue. A message is done when it is
    printed; with --no-ack it comes again when its invisible time is over.
    """
    if meta and brokers.as_json:
        raise click.UsageError("JSON has everything: --meta is for text")
    if template is not None and (meta or brokers.as_json):
        raise click.UsageError("-f is a form of its own: leave out --json and --meta")
    wanted = filter_of(tags, sql)
    brokers.check()
    from mq.client import SimpleConsumer  # noqa: PLC0415

    consumer = SimpleConsumer(
        brokers.servers,
        group,
        dict.fromkeys(topics, wanted),
        start=place,
        is_ordered=is_ordered,
        **brokers.security,
    )
    with consumer, click.open_file("-", "wb") as file:
        opened = cast("BinaryIO", file)
        sink = Sink(opened, as_json=brokers.as_json, with_meta=meta, template=template)
        _take(consumer, sink, count, idle_s, invisible_s, is_acked=is_acked)
        unreadable = consumer.unreadable_messages
    if unreadable:
        output.note(f"{counted(unreadable, 'message')} could not be read and passed over")
    if sys.stderr.isatty():
        output.note(counted(sink.written, "message"))


def _take(
    consumer: SimpleConsumer,
    sink: Sink,
    count: int | None,
    idle_s: float,
    invisible_s: float,
    *,
    is_acked: bool,
) -> None:
    last_s = time.monotonic()
    while count is None or sink.written < count:
        wanted = _BATCH if count is None else min(_BATCH, count - sink.written)
        left_s = max(0.0, last_s + idle_s - time.monotonic())
        messages = consumer.receive(wanted, wait_s=left_s, invisible_s=invisible_s)
        if not messages:
            return
        last_s = time.monotonic()
        sink.write(messages)
        if is_acked:
            try:
                consumer.ack(messages)
            except IllegalHandle as error:
                output.note(str(error))
