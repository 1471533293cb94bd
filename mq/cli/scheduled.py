"""`mq message scheduled`: messages that wait for their delivery time, and when they are due."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.options import TIME_HELP, Brokers, Moment, with_brokers
from mq.cli.tables import Column, counted, print_pages, size, stored_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import CountScheduledResponse, ScheduledMessage

_PAGE = 500
_BARS_MAX = 20
_BAR = 30


@click.command()
@click.argument("topic", metavar="[TOPIC]", required=False)
@click.option(
    "--from",
    "begin_ms",
    metavar="TIME",
    type=Moment(),
    default=0,
    help=f"Due then or later. {TIME_HELP}",
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="At most so many.",
)
@click.option("--histogram", is_flag=True, help="Count them by time and topic instead.")
@with_brokers()
def scheduled(
    brokers: Brokers, topic: str | None, begin_ms: int, count: int, *, histogram: bool
) -> None:
    """List messages that wait for their delivery time, the next one first.

    Topics %RETRY%GROUP have failed messages that come back to their group.
    `mq message recall` takes one back.
    """
    with brokers.admin() as admin:
        if histogram:
            if topic or begin_ms:
                raise click.UsageError("--histogram is of all topics and times")
            counts = admin.count_scheduled(_BARS_MAX)
            brokers.note_missing(counts)
            _print_counts(brokers, counts)
            return
        found = list(_listed(brokers, admin, topic or "", begin_ms, count))
    if brokers.as_json:
        output.write_json([_document(each) for each in found])
    elif not found:
        click.echo("No message waits for its time there.")
    else:
        print_pages(output.console(), found, _columns)
        click.echo(f"{counted(len(found), 'message')} shown")


def _listed(
    brokers: Brokers, admin: Admin, topic: str, begin_ms: int, count: int
) -> Iterator[ScheduledMessage]:
    """The brokers give some at a time."""
    page = ""
    while count > 0:
        found = admin.list_scheduled(topic, begin_ms, min(count, _PAGE), page=page)
        brokers.note_missing(found)
        yield from found.messages
        count -= len(found.messages)
        page = found.next_page
        if not page:
            return


def _document(one: ScheduledMessage) -> dict[str, Any]:
    document: dict[str, Any] = output.plain(one)
    document.pop("next_page", None)
    return document


def _columns(found: Sequence[ScheduledMessage]) -> list[Column]:
    moments = [stored_at(each.deliver_at_ms) for each in found]
    compact = Column("due (UTC)", [moment.replace(" ", "\n") for moment in moments], "left")
    keys = [", ".join(output.printable(one) for one in each.keys) or "-" for each in found]
    return [
        Column("due (UTC)", moments, "left", compact=compact),
        Column("topic", [each.topic for each in found], "left", is_flexible=True),
        Column("message", [each.message_id for each in found], "left"),
        Column("size", [size(each.size_bytes) for each in found], rank=2),
        Column("tag", [output.printable(each.tag) or "-" for each in found], "left", rank=3),
        Column("keys", keys, "left", is_flexible=True, rank=1),
    ]


def _print_counts(brokers: Brokers, counts: CountScheduledResponse) -> None:
    if brokers.as_json:
        output.write_json(output.plain(counts))
        return
    if not counts.messages:
        click.echo("No message waits for its time.")
        return
    noun = "batch" if counts.counts_batches else "message"
    most = max((each.count for each in counts.buckets), default=1)
    length = dt.timedelta(milliseconds=counts.bucket_ms)
    click.echo(f"Due (UTC), each line {length}, in {noun}{'es' if noun == 'batch' else 's'}:")
    for each in counts.buckets:
        bar = "#" * max(1, round(_BAR * each.count / most))
        click.echo(f"  {stored_at(each.begin_ms)[:19]}  {bar:<{_BAR}} {each.count:,}")
    click.echo()
    print_pages(
        output.console(),
        counts.topics,
        lambda page: [
            Column("topic", [each.topic for each in page], "left", is_flexible=True),
            Column("waiting", [f"{each.messages:,}" for each in page]),
        ],
    )
    click.echo(f"{counted(counts.messages, 'message')} waiting in all")
