"""`mq message`: single stored messages, by id, by key, or by their place in a queue; what became of
one; and taking back one that waits.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from mq.cli import output
from mq.cli.completion import complete_topic
from mq.cli.options import (
    TIME_HELP,
    Brokers,
    Moment,
    Place,
    PlaceInTime,
    filter_of,
    with_brokers,
    with_filters,
    with_set,
)
from mq.cli.scheduled import scheduled
from mq.cli.tables import Column, counted, print_pages, size, stored_at
from mq.cli.trace import trace
from mq.errors import QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mq.client import Admin, ReceivedMessage
    from mq.client.messages import FilterLike
    from mq.wire.v1.admin_pb2 import StoredMessage

# Its broker set, and its number there.
_Queue = tuple[str, int]

_BODY_SHOWN = 60
_HEX_SHOWN = 256


@click.group(short_help="Look up stored messages.")
def message() -> None:
    """Look up stored messages."""


message.add_command(trace)


@message.command()
@click.argument("message_id", metavar="ID")
@click.option("--raw", is_flag=True, help="Write the body alone, byte for byte.")
@with_brokers()
def get(brokers: Brokers, message_id: str, *, raw: bool) -> None:
    """Show the message with this id, such as set-0:12345."""
    if raw and brokers.as_json:
        raise click.UsageError("--raw and --json are two forms of output: give one")
    with brokers.admin() as admin:
        found = opened(admin.get_message(message_id))
    if raw:
        sys.stdout.buffer.write(found.body)
    elif brokers.as_json:
        output.write_json(output.message_document(found))
    else:
        print_message(found)


message.add_command(scheduled)


@message.command()
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topic)
@click.argument("message_id", metavar="ID")
@click.option(
    "--deliver-at",
    "deliver_at_ms",
    metavar="TIME",
    type=Moment(),
    required=True,
    help="When it is to be delivered, to the millisecond, as its send returned it.",
)
@click.option(
    "--operator",
    is_flag=True,
    help="By the right to alter the topic, in place of the right to publish to it; recorded.",
)
@with_brokers()
def recall(
    brokers: Brokers, topic: str, message_id: str, deliver_at_ms: int, *, operator: bool
) -> None:
    """Take back a message that waits for its delivery time."""
    if operator:
        with brokers.admin() as admin:
            admin.recall_scheduled(topic, message_id, deliver_at_ms)
    else:
        _recall_as_producer(brokers, topic, message_id, deliver_at_ms)
    if brokers.as_json:
        output.write_json({"topic": topic, "message_id": message_id, "recalled": True})
    else:
        click.echo(f"Took back {message_id}: it will not be delivered.")


def _recall_as_producer(brokers: Brokers, topic: str, message_id: str, deliver_at_ms: int) -> None:
    brokers.check()
    from mq.client import Producer  # noqa: PLC0415

    with Producer(brokers.servers, timeout_s=brokers.timeout_s, **brokers.security) as producer:
        producer.recall(topic=topic, message_id=message_id, deliver_at_ms=deliver_at_ms)


@message.command()
@click.option(
    "--topic", metavar="TOPIC", shell_complete=complete_topic, required=True, help="Of this topic."
)
@click.option("--key", metavar="KEY", required=True, help="With this key.")
@click.option(
    "--from",
    "begin",
    metavar="TIME",
    type=PlaceInTime(),
    help=f"Stored then or later. {TIME_HELP}",
)
@click.option("--until", "end", metavar="TIME", type=PlaceInTime(), help="Stored before that.")
@with_brokers(taken=["--key"])
def query(brokers: Brokers, topic: str, key: str, begin: Place | None, end: Place | None) -> None:
    """Find messages by a key: the newest 64 at most."""
    if begin == "latest" or end == "earliest":
        raise click.UsageError("no message is stored after the latest or before the earliest")
    begin_ms = begin if isinstance(begin, int) else 0
    end_ms = end if isinstance(end, int) else 0
    with brokers.admin() as admin:
        stored = admin.query_messages(topic, key, begin_ms=begin_ms, end_ms=end_ms)
    brokers.note_missing(stored)
    found = [opened(each) for each in stored]
    _print_messages(brokers, found, f"No message of {topic} has the key {key}.")


@message.command()
@click.option(
    "--topic", metavar="TOPIC", shell_complete=complete_topic, required=True, help="Of this topic."
)
@click.option(
    "--queue",
    "queue_id",
    metavar="N",
    type=click.IntRange(0, 65_535),
    help="Of this queue.  [default: each of them]",
)
@click.option(
    "--from",
    "begin",
    metavar="OFFSET|earliest|latest|TIME",
    default="earliest",
    show_default=True,
    help=f"First queue offset, or place; latest: the last ones. {TIME_HELP}",
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="At most so many of each queue.",
)
@with_set("Of this broker set.  [default: all that have the topic]")
@with_filters
@with_brokers()
def browse(  # noqa: PLR0913 - one a flag
    brokers: Brokers,
    *,
    topic: str,
    queue_id: int | None,
    broker_set: str,
    begin: str,
    count: int,
    tags: str | None,
    sql: str | None,
) -> None:
    """Show messages of queues as they stand, without consuming them."""
    wanted = filter_of(tags, sql)
    place: Place | None = None if re.fullmatch("[0-9]{1,18}", begin) else _place(begin)
    with brokers.admin() as admin:
        described = admin.describe_topic(topic)
        brokers.note_missing(described)
        stats = {(each.broker_set, each.queue_id): each for each in described.queues}
        if place is None:
            starts = dict.fromkeys(stats, int(begin))
        elif place == "earliest":
            starts = {queue: each.start for queue, each in stats.items()}
        elif place == "latest":
            starts = {queue: max(each.start, each.end - count) for queue, each in stats.items()}
        else:
            starts = _found_starts(brokers, topic, place)
        found = [
            each
            for queue in _chosen(topic, stats, broker_set, queue_id)
            for each in _browsed(admin, topic, queue, starts.get(queue, 0), count, wanted)
        ]
    _print_messages(brokers, found, f"No such messages in {topic}.")


def _place(begin: str) -> Place:
    return PlaceInTime().convert(begin, None, None)


def _chosen(
    topic: str, queues: Iterable[_Queue], broker_set: str, queue_id: int | None
) -> list[_Queue]:
    """Raises QueueNotFound if a named one is missing."""
    found = [each for each in queues if broker_set in ("", each[0]) and queue_id in (None, each[1])]
    if not found and (broker_set or queue_id is not None):
        what = "no queues" if queue_id is None else f"no queue {queue_id}"
        where = f" in broker set {broker_set}" if broker_set else ""
        raise QueueNotFound(f"topic {topic} has {what}{where}: `mq topic describe {topic}`")
    return found


def _found_starts(brokers: Brokers, topic: str, place: Place) -> dict[_Queue, int]:
    from mq.client import PullConsumer  # noqa: PLC0415

    with PullConsumer(brokers.servers, **brokers.security) as consumer:
        found = consumer.find_offsets(topic, place)
    return {(queue.broker_set, queue.queue_id): at for queue, at in found.items()}


def _browsed(
    admin: Admin, topic: str, queue: _Queue, start: int, count: int, wanted: FilterLike
) -> Iterator[ReceivedMessage]:
    """The broker gives some at a time, and may look through many to find none."""
    at = start
    broker_set, queue_id = queue
    while count > 0:
        page = admin.browse_messages(
            topic,
            queue_id,
            at,
            max_messages=min(count, 1_000),
            filter=wanted,
            broker_set=broker_set,
        )
        yield from map(opened, page.messages)
        count -= len(page.messages)
        if page.next_offset <= at:
            return
        at = page.next_offset


# -- what is printed -------------------------------------------------------------------------------


def opened(stored: StoredMessage) -> ReceivedMessage:
    """With its body as it was sent."""
    # With the client, when the command runs.
    from mq.client import ReceivedMessage  # noqa: PLC0415
    from mq.client.decode import decompressed  # noqa: PLC0415

    found = stored.message
    # What cannot be decompressed is shown as it stands.
    unpacked = decompressed(found.body, found.compression)
    body = unpacked if isinstance(unpacked, bytes) else found.body
    return ReceivedMessage(
        stored.topic,
        stored.queue_id,
        stored.queue_offset,
        stored.message_id,
        stored.stored_at_ms,
        found.born_at_ms,
        body,
        found.tag,
        tuple(found.keys),
        dict(found.properties),
        found.ordering_key,
    )


def _print_messages(brokers: Brokers, found: Sequence[ReceivedMessage], otherwise: str) -> None:
    if brokers.as_json:
        output.write_json([output.message_document(each) for each in found])
        return
    out = output.console()
    if not found:
        click.echo(otherwise)
        return
    print_pages(out, found, _message_columns)
    click.echo(counted(len(found), "message"))


def print_message(found: ReceivedMessage) -> None:
    out = output.console()
    fields = [
        ("id", found.message_id),
        ("topic", found.topic),
        ("queue", f"{found.queue_id}, queue offset {found.queue_offset}"),
        ("stored", f"{stored_at(found.stored_at_ms)} UTC"),
        ("born", f"{stored_at(found.born_at_ms)} UTC" if found.born_at_ms else "not known"),
        ("tag", output.printable(found.tag) or "-"),
        ("keys", output.printable(", ".join(found.keys)) or "-"),
        ("ordering key", output.printable(found.ordering_key) or "-"),
        ("properties", output.printable(output.pairs(found.properties)) or "-"),
        ("body", _size(found.body)),
    ]
    output.print_fields(out, fields)
    click.echo(_whole_body(found.body))


def _size(body: bytes) -> str:
    exact = counted(len(body), "byte")
    return exact if len(body) < 1024 else f"{exact} ({size(len(body))})"


def _whole_body(body: bytes) -> str:
    """Text as it is, line by line; anything else as a dump of its start."""
    try:
        return output.printable_lines(body.decode())
    except UnicodeDecodeError:
        shown = body[:_HEX_SHOWN]
        rows = [shown[at : at + 16] for at in range(0, len(shown), 16)]
        lines = [
            f"{at * 16:08x}  {row.hex(' '):<47}  "
            + "".join(chr(one) if 32 <= one < 127 else "." for one in row)
            for at, row in enumerate(rows)
        ]
        if len(body) > _HEX_SHOWN:
            lines.append(f"... {counted(len(body) - _HEX_SHOWN, 'more byte')}; --raw writes all")
        return "\n".join(lines)


def _message_columns(messages: Sequence[ReceivedMessage]) -> list[Column]:
    moments = [stored_at(each.stored_at_ms) for each in messages]
    tags = [output.printable(each.tag) or "-" for each in messages]
    keys = [output.printable(", ".join(each.keys)) or "-" for each in messages]
    compact = Column("stored (UTC)", [moment.replace(" ", "\n") for moment in moments], "left")
    return [
        Column("queue", [str(each.queue_id) for each in messages]),
        Column("queue offset", [str(each.queue_offset) for each in messages]),
        Column("id", [each.message_id for each in messages], "left"),
        Column("stored (UTC)", moments, "left", rank=3, compact=compact),
        Column("tag", tags, "left", is_flexible=True, rank=2),
        Column("keys", keys, "left", is_flexible=True, rank=1),
        Column(
            "body",
            [output.preview(each.body, _BODY_SHOWN) for each in messages],
            "left",
            is_flexible=True,
        ),
    ]
