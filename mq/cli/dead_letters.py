"""`mq dlq`: messages that failed too often, and what to do with them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.completion import complete_group
from mq.cli.messages import opened, print_message
from mq.cli.options import Brokers, confirm, with_brokers, with_set, with_yes
from mq.cli.tables import Column, counted, print_pages, stored_at
from mq.cli.watch import with_watch
from mq.errors import IllegalRequest, MessageNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mq.client import Admin
    from mq.client.admin.groups import LetterActionName
    from mq.wire.v1.admin_pb2 import DeadLetterCount, LetterOutcome, StoredMessage

_BODY_SHOWN = 40
_REASON_SHOWN = 120
_PAGE = 500
_DONE = {"resend": "sent again", "purge": "dropped"}

_with_group = click.argument("group", metavar="GROUP", shell_complete=complete_group)
_with_set = with_set("Of this broker set; needed when several have some of the group.")


@click.group(short_help="List, show, resend, purge dead letters.")
def dlq() -> None:
    """Dead letters: messages that a group has tried too often.

    They stand in the topic %DLQ%GROUP until they are sent again, purged,
    or as old as the broker keeps messages.
    """


@dlq.command("list")
@click.argument("group", metavar="[GROUP]", shell_complete=complete_group, required=False)
@click.option(
    "--from",
    "begin",
    metavar="OFFSET",
    type=click.IntRange(0),
    default=0,
    help="First queue offset.  [default: the oldest]",
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="At most so many.",
)
@with_set("Of this broker set; each counts its own.")
@with_watch
@with_brokers()
def list_letters(
    brokers: Brokers, group: str | None, begin: int, count: int, broker_set: str
) -> None:
    """List the groups with dead letters, or those of one group."""
    with brokers.admin() as admin:
        if group is None:
            groups = admin.count_dead_letters()
            brokers.note_missing(groups)
            _print_groups(brokers, groups)
            return
        found = list(_letters(brokers, admin, group, begin, count, broker_set))
    if brokers.as_json:
        output.write_json([_document(each) for each in found])
    elif not found:
        click.echo(f"Group {group} has no dead letters there.")
    else:
        print_pages(output.console(), found, _letter_columns)
        click.echo(counted(len(found), "dead letter"))


@dlq.command()
@_with_group
@click.argument("queue_offset", metavar="OFFSET", type=click.IntRange(0))
@click.option("--raw", is_flag=True, help="Write the body alone, byte for byte.")
@_with_set
@with_brokers()
def show(brokers: Brokers, group: str, queue_offset: int, *, broker_set: str, raw: bool) -> None:
    """Show a dead letter, where it comes from and why it failed."""
    if raw and brokers.as_json:
        raise click.UsageError("--raw and --json are two forms of output: give one")
    with brokers.admin() as admin:
        page = admin.list_dead_letters(group, queue_offset, 1, broker_set=broker_set)
    brokers.note_missing(page)
    if len(page.next_offsets) > 1:
        sets = ", ".join(sorted(page.next_offsets))
        raise IllegalRequest(f"group {group} has dead letters in {sets}: say which one with --set")
    found = next(iter(page.messages), None)
    if found is None or found.queue_offset != queue_offset:
        raise MessageNotFound(f"group {group} has no dead letter {queue_offset}")
    if raw:
        sys.stdout.buffer.write(opened(found).body)
    elif brokers.as_json:
        output.write_json(_document(found))
    else:
        origin = found.message.origin
        fields = [
            ("group", group),
            ("letter", str(found.queue_offset)),
            ("failed", counted(origin.attempts, "time")),
            ("reason", output.printable(origin.reason) or "not said"),
            ("from", f"{origin.topic}, queue {origin.queue_id}, offset {origin.queue_offset}"),
            ("first id", output.printable(origin.message_id) or "-"),
            ("first stored", f"{stored_at(origin.stored_at_ms)} UTC"),
        ]
        output.print_fields(output.console(), fields)
        print_message(opened(found))


@dlq.command()
@_with_group
@click.argument("queue_offsets", metavar="[OFFSET]...", type=click.IntRange(0), nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All that there are.")
@click.option("--again", is_flag=True, help="Also those that were sent again before.")
@_with_set
@with_brokers()
def resend(
    brokers: Brokers,
    group: str,
    queue_offsets: Sequence[int],
    *,
    broker_set: str,
    is_all: bool,
    again: bool,
) -> None:
    """Send dead letters to their group again.

    They come to it as retries, counted from 0. With --all they are dead
    letters no more; single ones stay on the list, marked, and each has an
    outcome: what fails for one stops no other.
    """
    if is_all == bool(queue_offsets):
        raise click.UsageError("say which: one or more OFFSETs, or --all")
    if is_all and again:
        raise click.UsageError("--again is for OFFSETs: --all sends all there are")
    if queue_offsets:
        _settle(brokers, group, queue_offsets, "resend", again=again, broker_set=broker_set)
        return
    with brokers.admin() as admin:
        count = admin.resend_dead_letters(group, queue_offsets, broker_set=broker_set)
    if brokers.as_json:
        output.write_json({"group": group, "resent": count})
    else:
        click.echo(f"Sent {counted(count, 'dead letter')} to group {group} again.")


@dlq.command()
@_with_group
@click.argument("queue_offsets", metavar="[OFFSET]...", type=click.IntRange(0), nargs=-1)
@click.option(
    "--before",
    "before_offset",
    metavar="OFFSET",
    type=click.IntRange(1),
    help="Only those before this one.",
)
@with_set("Of this broker set; needed with an OFFSET when several have some of the group.")
@with_yes
@with_brokers()
def purge(
    brokers: Brokers,
    group: str,
    queue_offsets: Sequence[int],
    *,
    before_offset: int | None,
    broker_set: str,
    is_sure: bool,
) -> None:
    """Delete dead letters, for good: these, those before one, or all."""
    if queue_offsets:
        if before_offset is not None:
            raise click.UsageError("say which: OFFSETs, or --before")
        letters = counted(len(set(queue_offsets)), "dead letter")
        confirm(f"Drop {letters} of group {group}?", is_sure=is_sure)
        _settle(brokers, group, queue_offsets, "purge", broker_set=broker_set)
        return
    which = "all dead letters" if before_offset is None else f"dead letters before {before_offset}"
    where = f" in broker set {broker_set}" if broker_set else ""
    confirm(f"Drop {which} of group {group}{where}?", is_sure=is_sure)
    with brokers.admin() as admin:
        count = admin.purge_dead_letters(group, before_offset or 0, broker_set=broker_set)
    if brokers.as_json:
        output.write_json({"group": group, "purged": count})
    else:
        click.echo(f"Dropped {counted(count, 'dead letter')} of group {group}.")


def _settle(
    brokers: Brokers,
    group: str,
    queue_offsets: Sequence[int],
    action: LetterActionName,
    *,
    again: bool = False,
    broker_set: str,
) -> None:
    """Ends with 1 unless all was done."""
    outcomes: list[LetterOutcome] = []
    wanted = sorted(set(queue_offsets))
    with brokers.admin() as admin:
        for start in range(0, len(wanted), _PAGE):
            outcomes += admin.settle_dead_letters(
                group, wanted[start : start + _PAGE], action, again=again, broker_set=broker_set
            )
    done = [one for one in outcomes if _result(one) in ("resent", "purged")]
    if brokers.as_json:
        output.write_json([{**output.plain(one), "result": _result(one)} for one in outcomes])
    else:
        print_pages(output.console(), outcomes, _outcome_columns)
        click.echo(f"{counted(len(done), 'dead letter')} of {len(outcomes):,} {_DONE[action]}")
    if len(done) < len(outcomes):
        raise click.exceptions.Exit(1)


def _result(one: LetterOutcome) -> str:
    name = output.enum_name(one.DESCRIPTOR.fields_by_name["result"].enum_type, one.result)
    return name.removeprefix("result_").replace("_", " ")


def _letters(
    brokers: Brokers, admin: Admin, group: str, begin: int, count: int, broker_set: str
) -> Iterator[StoredMessage]:
    """The brokers give some at a time."""
    at: int | Mapping[str, int] = begin
    while count > 0:
        page = admin.list_dead_letters(group, at, min(count, _PAGE), broker_set=broker_set)
        brokers.note_missing(page)
        yield from page.messages
        count -= len(page.messages)
        if not page.messages:
            return
        at = dict(page.next_offsets) if len(page.next_offsets) > 1 else page.next_offset


# -- what is printed -------------------------------------------------------------------------------


def _print_groups(brokers: Brokers, groups: Sequence[DeadLetterCount]) -> None:
    if brokers.as_json:
        output.write_json([output.plain(each) for each in groups])
    elif not groups:
        click.echo("No dead letters.")
    else:
        print_pages(output.console(), groups, _group_columns)
        total = sum(each.messages for each in groups)
        click.echo(f"{counted(total, 'dead letter')} of {counted(len(groups), 'group')}")


def _document(found: StoredMessage) -> dict[str, Any]:
    return {
        **output.message_document(opened(found)),
        "origin": output.plain(found.message.origin),
    }


def _outcome_columns(outcomes: Sequence[LetterOutcome]) -> list[Column]:
    notes = [output.printable(one.text) or one.message_id or "-" for one in outcomes]
    return [
        Column("letter", [str(one.queue_offset) for one in outcomes]),
        Column("result", [_result(one) for one in outcomes], "left"),
        Column("sent as", notes, "left", is_flexible=True),
    ]


def _group_columns(groups: Sequence[DeadLetterCount]) -> list[Column]:
    return [
        Column("group", [each.group for each in groups], "left", is_flexible=True),
        Column("dead letters", [f"{each.messages:,}" for each in groups]),
        Column("last one (UTC)", [stored_at(each.last_stored_at_ms) for each in groups], "left"),
    ]


def _letter_columns(letters: Sequence[StoredMessage]) -> list[Column]:
    origins = [each.message.origin for each in letters]
    moments = [stored_at(each.stored_at_ms) for each in letters]
    compact = Column("given up (UTC)", [moment.replace(" ", "\n") for moment in moments], "left")
    bodies = [output.preview(opened(each).body, _BODY_SHOWN) for each in letters]
    reasons = [output.printable(one.reason)[:_REASON_SHOWN] or "-" for one in origins]
    sets = [each.message_id.rpartition(":")[0] for each in letters]
    has_sets = len(set(sets)) > 1
    return [
        *([Column("set", sets, "left", is_flexible=True)] if has_sets else []),
        Column("letter", [str(each.queue_offset) for each in letters]),
        Column("topic", [one.topic for one in origins], "left", is_flexible=True),
        Column("failed", [str(one.attempts) for one in origins], rank=1),
        Column("given up (UTC)", moments, "left", rank=3, compact=compact),
        Column("reason", reasons, "left", is_flexible=True),
        Column("body", bodies, "left", is_flexible=True, rank=2),
    ]
