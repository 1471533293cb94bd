"""`mq message trace`: what became of a message, as a timeline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from mq import trace_text
from mq.cli import output
from mq.cli.options import Brokers, with_brokers
from mq.cli.tables import Column, counted, print_table, stored_at
from mq.errors import MessageNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import MessageTrace, TraceEvent


@click.command()
@click.argument("message_id", metavar="[ID]", required=False)
@click.option("--topic", metavar="TOPIC", help="With --key: of this topic.")
@click.option("--key", metavar="KEY", help="The newest message with this key.")
@click.option(
    "--budget",
    "budget_s",
    metavar="SECONDS",
    type=click.FloatRange(0.001, 3600),
    default=10.0,
    show_default=True,
    help="How long the log may be read.",
)
@with_brokers(taken=["--key"])
def trace(
    brokers: Brokers, message_id: str | None, topic: str | None, key: str | None, budget_s: float
) -> None:
    """Show what became of a message, by the log of its broker set.

    ID is that of the message or of any copy of it: a retry, a dead letter. Nothing has to be
    switched on before.
    """
    if (message_id is None) == (key is None) or (topic is None) != (key is None):
        raise click.UsageError("give the ID of a message, or --topic and --key")
    with brokers.admin() as admin:
        if message_id is None:
            message_id = _newest(admin, brokers, str(topic), str(key))
        found = _traced(admin, message_id, budget_s)
    if brokers.as_json:
        output.write_json(output.plain(found))
    else:
        _print_trace(found)


def _newest(admin: Admin, brokers: Brokers, topic: str, key: str) -> str:
    stored = admin.query_messages(topic, key)
    brokers.note_missing(stored)
    if not stored:
        raise MessageNotFound(f"no message of {topic} has the key {key}")
    if len(stored) > 1:
        others = ", ".join(one.message_id for one in stored[1:4])
        more = f", and {len(stored) - 4} more" if len(stored) > 4 else ""
        output.note(f"This is the newest one with the key; there are also {others}{more}.")
    return stored[0].message_id


def _traced(admin: Admin, message_id: str, budget_s: float) -> MessageTrace:
    """Goes on until it is complete, or the time is over."""
    end_s = time.monotonic() + budget_s
    found = admin.trace_message(message_id, budget_s=min(budget_s, 2.0))
    while found.continue_token and (left_s := end_s - time.monotonic()) > 0:
        found = admin.trace_message(
            message_id,
            budget_s=max(0.001, min(left_s, 2.0)),
            continue_token=found.continue_token,
        )
    return found


# -- what is printed -------------------------------------------------------------------------------


def _print_trace(found: MessageTrace) -> None:
    out = output.console()
    place = f"{found.topic}, queue {found.queue_id}"
    if found.queue_offset >= 0:
        place += f", queue offset {found.queue_offset}"
    fields = [
        ("message", found.message_id),
        ("topic", place),
        ("tag", output.printable(found.tag)),
        ("keys", output.printable(", ".join(found.keys))),
        ("body", counted(found.body_bytes, "byte")),
    ]
    output.print_fields(out, [(name, value) for name, value in fields if value])
    has_groups = any(one.group for one in found.events)
    columns = [
        Column("time (UTC)", _times(found.events), "left"),
        Column("group", [one.group for one in found.events], "left", is_flexible=True),
        Column("what", [_told(one) for one in found.events], "left", is_flexible=True),
    ]
    print_table(out, columns if has_groups else [columns[0], columns[2]])
    if found.groups:
        columns = [
            Column("group", [one.group for one in found.groups], "left", is_flexible=True),
            Column(
                "now", [trace_text.standing(one) for one in found.groups], "left", is_flexible=True
            ),
        ]
        print_table(out, columns)
    until = f"entry {found.raft_index} of {found.broker_set}, {stored_at(found.stored_at_ms)}"
    if found.is_complete:
        click.echo(f"Complete up to {until}.")
    else:
        click.echo(f"Not complete, up to {until}:\n{found.incomplete_reason}.")
        if found.continue_token:
            click.echo("A larger --budget reads on.")


def _times(events: Sequence[TraceEvent]) -> list[str]:
    """With the date where it changes."""
    cells, last = [], ""
    for event in events:
        date, _, moment = stored_at(event.at_ms).partition(" ")
        cells.append(moment if date == last else f"{date}\n{moment}")
        last = date
    return cells


def _told(event: TraceEvent) -> str:
    date = stored_at(event.at_ms).partition(" ")[0]

    def moment(until_ms: int) -> str:
        """Without the date if that is the event's own."""
        return stored_at(until_ms).removeprefix(f"{date} ")

    text, reason = trace_text.told(event, output.printable, moment)
    return f"{text}\nreason: {reason}" if reason else text
