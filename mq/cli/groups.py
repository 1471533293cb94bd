"""`mq group`: consumer groups of a running broker, their members, exact lag, and offsets."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click

from mq.cli import output
from mq.cli.options import (
    PLACE_METAVAR,
    TIME_HELP,
    Brokers,
    Place,
    PlaceInTime,
    confirm,
    with_brokers,
    with_set,
    with_yes,
)
from mq.cli.tables import Column, counted, print_pages, print_table, stored_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import (
        DescribeGroupResponse,
        GroupQueue,
        GroupSettings,
        GroupSummary,
        MemberInfo,
        ResetOffsetsResponse,
    )
    from mq.wire.v1.consumer_pb2 import Filter, QueuePosition


@click.group(short_help="List, describe, reset, set, delete groups.")
def group() -> None:
    """Groups: consumers that share the messages of their topics."""


@group.command("list")
@with_brokers()
def list_groups(brokers: Brokers) -> None:
    """List all groups with members or offsets."""
    with brokers.admin() as admin:
        groups = admin.list_groups()
    brokers.note_missing(groups)
    if brokers.as_json:
        output.write_json([output.plain(each) for each in groups])
        return
    out = output.console()
    if not groups:
        click.echo("No groups yet. A consumer forms one: mq consume TOPIC --group NAME")
        return
    print_pages(out, groups, _group_columns)
    lag = sum(each.lag for each in groups)
    click.echo(f"{counted(len(groups), 'group')}, {counted(lag, 'message')} behind in all")


@group.command()
@click.argument("name", metavar="GROUP")
@with_brokers()
def describe(brokers: Brokers, name: str) -> None:
    """Show a group: its members, and how far it is in each queue."""
    with brokers.admin() as admin:
        found = admin.describe_group(name)
        settings = admin.alter_group(name)
    brokers.note_missing(found)
    brokers.note_missing(settings)
    if brokers.as_json:
        output.write_json({**output.plain(found), "settings": output.plain(settings)})
    else:
        _print_group(found, settings)


@group.command("set")
@click.argument("name", metavar="GROUP")
@click.option(
    "--retries",
    "retries_max",
    metavar="N",
    type=click.IntRange(0, 1_000),
    help="Retries of a message before it is a dead letter.",
)
@click.option(
    "--ordered/--any-order",
    "is_ordered",
    default=None,
    help="Whether RocketMQ's clients get the messages of a message group in order, one at a time. "
    "By default as the type of the topic says.",
)
@with_brokers()
def set_options(
    brokers: Brokers, *, name: str, retries_max: int | None, is_ordered: bool | None
) -> None:
    """Set how a group consumes; it need not exist yet."""
    if retries_max is None and is_ordered is None:
        raise click.UsageError("Say what to set: --retries, --ordered or --any-order.")
    with brokers.admin() as admin:
        settings = admin.alter_group(name, retries_max=retries_max, is_ordered=is_ordered)
    if brokers.as_json:
        output.write_json(output.plain(settings))
        return
    click.echo(f"Group {name} retries a message {_times(settings.retries_max)}.")
    if settings.HasField("is_ordered"):
        order = "in order" if settings.is_ordered else "in any order"
        click.echo(f"RocketMQ's clients get its messages {order}.")


@group.command()
@click.argument("name", metavar="GROUP")
@click.option("--topic", metavar="TOPIC", required=True, help="Of this topic.")
@click.option(
    "--to",
    "place",
    metavar=PLACE_METAVAR,
    type=PlaceInTime(),
    required=True,
    help=f"Where to go on. {TIME_HELP}",
)
@click.option(
    "--queue",
    "queue_ids",
    metavar="N",
    type=click.IntRange(0, 65_535),
    multiple=True,
    help="Only this queue; may be repeated.",
)
@with_set("Only there; needed with --queue when several have the topic.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@with_yes
@with_brokers()
def reset(  # noqa: PLR0913 - one a flag
    brokers: Brokers,
    name: str,
    topic: str,
    place: Place,
    queue_ids: Sequence[int],
    *,
    broker_set: str,
    dry_run: bool,
    is_sure: bool,
) -> None:
    """Let a group go on from another place.

    Consumers that run go on from there at once; messages may come to them
    again, or be left out. Asks if there are such.
    """
    with brokers.admin() as admin:
        asked = functools.partial(
            admin.reset_offsets,
            name,
            topic,
            to=place,
            queue_ids=queue_ids,
            broker_set=broker_set,
        )
        if not is_sure and not dry_run:
            _confirm_moving(admin, name, topic, asked(dry_run=True))
        found = asked(dry_run=dry_run)
    if brokers.as_json:
        output.write_json({"is_dry_run": dry_run, **output.plain(found)})
        return
    out = output.console()
    print_table(out, _reset_columns(found))
    queues = counted(len(found.after), "queue")
    if dry_run:
        click.echo(f"Nothing was changed; without --dry-run {queues} would be.")
    else:
        click.echo(f"Group {name} goes on from there in {queues} of {topic}.")


def _confirm_moving(admin: Admin, name: str, topic: str, found: ResetOffsetsResponse) -> None:
    """Asks if the group has members, which would be moved while they work."""
    members = {each.member_id for each in admin.describe_group(name).members}
    if not members:
        return
    changes = _changes(found)
    again = -sum(change for change in changes if change and change < 0)
    left_out = sum(change for change in changes if change and change > 0)
    who = counted(len(members), "member")
    work = "is consuming and goes" if len(members) == 1 else "are consuming and go"
    confirm(
        f"{who} of group {name} {work} on from there at once: "
        f"{counted(again, 'message')} of {topic} {'comes' if again == 1 else 'come'} again, "
        f"{left_out:,} {'is' if left_out == 1 else 'are'} left out. Go on?",
        is_sure=False,
    )


@group.command()
@click.argument("name", metavar="GROUP")
@with_yes
@with_brokers()
def delete(brokers: Brokers, name: str, *, is_sure: bool) -> None:
    """Delete a group without members, and its offsets."""
    with brokers.admin() as admin:
        if not is_sure:
            lag = admin.describe_group(name).summary.lag
            where = f"it is {counted(lag, 'message')} behind"
            confirm(f"Forget where group {name} is ({where})?", is_sure=False)
        admin.delete_group(name)
    if brokers.as_json:
        output.write_json({"group": name, "is_deleted": True})
    else:
        click.echo(f"Deleted group {name} and its offsets.")


# -- what is printed -------------------------------------------------------------------------------


def _mode(summary: GroupSummary) -> str:
    return output.enum_name(summary.DESCRIPTOR.fields_by_name["mode"].enum_type, summary.mode)


def _filter(chosen: Filter) -> str:
    if chosen.WhichOneof("kind") == "sql":
        return f"SQL {chosen.sql}"
    return f"tags {chosen.tags}" if chosen.tags not in ("", "*") else "all"


def _times(count: int) -> str:
    return f"{count:,} times" if count != 1 else "once"


def _print_group(found: DescribeGroupResponse, settings: GroupSettings) -> None:
    out = output.console()
    summary = found.summary
    wanted = "; ".join(
        f"{each.topic} ({output.printable(_filter(each.filter))})" for each in found.subscriptions
    )
    fields = [
        ("group", summary.group),
        ("mode", f"{_mode(summary)}, generation {summary.generation}"),
        ("subscribed", wanted or f"to {', '.join(summary.topics) or 'nothing'} when last seen"),
        ("behind", counted(summary.lag, "message")),
        ("retries", _times(settings.retries_max) + ", by default" * settings.is_default),
    ]
    output.print_fields(out, fields)
    if found.members:
        print_pages(out, found.members, _member_columns)
    else:
        click.echo("No members.\n")
    if found.queues:
        print_pages(out, found.queues, _queue_columns)
    queues = counted(len(found.queues), "queue")
    click.echo(f"{counted(len(found.members), 'member')}, {queues}")


def _group_columns(groups: Sequence[GroupSummary]) -> list[Column]:
    topics = [", ".join(each.topics) or "-" for each in groups]
    return [
        Column("group", [each.group for each in groups], "left", is_flexible=True),
        Column("mode", [_mode(each) for each in groups], "left", rank=1),
        Column("members", [str(each.members) for each in groups]),
        Column("behind", [f"{each.lag:,}" for each in groups]),
        Column("generation", [str(each.generation) for each in groups], rank=2),
        Column("topics", topics, "left", is_flexible=True),
    ]


def _member_columns(members: Sequence[MemberInfo]) -> list[Column]:
    moments = [stored_at(each.last_seen_at_ms) for each in members]
    times = [moment.partition(" ")[2] for moment in moments]
    ways = [
        "receive" if each.is_receiving else "stream" if each.is_streaming else "pull"
        for each in members
    ]
    return [
        Column(
            "member",
            [output.printable(each.member_id) for each in members],
            "left",
            is_flexible=True,
        ),
        Column(
            "address",
            [output.printable(each.address.removeprefix("ipv4:")) for each in members],
            "left",
            rank=2,
            is_flexible=True,
        ),
        Column("zone", [output.printable(each.zone) or "-" for each in members], "left", rank=3),
        Column("by", ways, "left", rank=1),
        Column("queues", [str(each.queues) for each in members]),
        Column(
            "last seen (UTC)", moments, "left", compact=Column("last seen (UTC)", times, "left")
        ),
    ]


def _set_column(rows: Sequence[GroupQueue] | Sequence[QueuePosition]) -> list[Column]:
    """Only where there are several."""
    sets = [each.broker_set for each in rows]
    return [Column("set", sets, "left", is_flexible=True)] if len(set(sets)) > 1 else []


def _queue_columns(queues: Sequence[GroupQueue]) -> list[Column]:
    committed = [str(each.committed) if each.committed >= 0 else "none" for each in queues]
    owners = [output.printable(each.member_id) or "-" for each in queues]
    return [
        Column("topic", [each.topic for each in queues], "left", is_flexible=True),
        *_set_column(queues),
        Column("queue", [str(each.queue_id) for each in queues]),
        Column("start", [str(each.start) for each in queues], rank=1),
        Column("committed", committed),
        Column("end", [str(each.end) for each in queues]),
        Column("behind", [f"{each.lag:,}" for each in queues]),
        Column("member", owners, "left", is_flexible=True),
    ]


def _before(found: ResetOffsetsResponse) -> list[int | None]:
    """The former position of the group in each queue of `after`; None: it had none."""
    places = {(each.broker_set, each.queue_id): each.queue_offset for each in found.before}
    return [places.get((each.broker_set, each.queue_id)) for each in found.after]


def _changes(found: ResetOffsetsResponse) -> list[int | None]:
    pairs = zip(found.after, _before(found), strict=True)
    return [each.queue_offset - at if at is not None else None for each, at in pairs]


def _reset_columns(found: ResetOffsetsResponse) -> list[Column]:
    after, before = found.after, _before(found)
    changes = [f"{each:+,}" if each is not None else "new" for each in _changes(found)]
    return [
        Column("topic", [each.topic for each in after], "left", is_flexible=True),
        *_set_column(after),
        Column("queue", [str(each.queue_id) for each in after]),
        Column("before", [str(at) if at is not None else "none" for at in before]),
        Column("after", [str(each.queue_offset) for each in after]),
        Column("change", changes),
    ]
