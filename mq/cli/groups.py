"""`mq group`: consumer groups of a running broker, their members, lag, leases and offsets."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import click

from mq.cli import output
from mq.cli.completion import complete_group, complete_topic
from mq.cli.options import (
    PLACE_METAVAR,
    TIME_HELP,
    Brokers,
    Place,
    PlaceInTime,
    confirm,
    with_brokers,
    with_count,
    with_set,
    with_yes,
)
from mq.cli.tables import Column, counted, cut_note, nonzero, print_pages, print_table, stored_at
from mq.cli.watch import with_watch
from mq.errors import GroupNotEmpty, GroupNotFound
from mq.names import similar_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import (
        DescribeGroupResponse,
        GroupQueue,
        GroupSettings,
        GroupSummary,
        LeaseInfo,
        MemberInfo,
        ResetOffsetsResponse,
    )
    from mq.wire.v1.consumer_pb2 import Filter, QueuePosition

# A member that makes no progress for so long is shown.
_STALLED_MS = 10_000


@click.group(short_help="List, describe, reset, set, evict, delete groups.")
def group() -> None:
    """Groups: consumers that share the messages of their topics."""


@group.command("list")
@with_count
@with_watch
@with_brokers()
def list_groups(brokers: Brokers, count: int | None) -> None:
    """List all groups with members or offsets."""
    with brokers.admin() as admin:
        groups = admin.list_groups()
    brokers.note_missing(groups)
    if brokers.as_json:
        output.write_json([output.plain(each) for each in groups[:count]])
        return
    out = output.console()
    if not groups:
        click.echo("No groups yet. A consumer forms one: mq consume TOPIC --group NAME")
        return
    print_pages(out, groups[:count], _group_columns)
    lag = sum(each.lag for each in groups)
    total = f"{counted(len(groups), 'group')}, {counted(lag, 'message')} behind in all"
    click.echo(f"{total}{cut_note(len(groups), count)}")


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@with_watch
@with_brokers()
def describe(brokers: Brokers, name: str) -> None:
    """Show a group: its members, and how far it is in each queue."""
    with brokers.admin() as admin, _guessing(admin, name):
        found = admin.describe_group(name)
        settings = admin.alter_group(name)
    brokers.note_missing(found)
    brokers.note_missing(settings)
    if brokers.as_json:
        output.write_json({**output.plain(found), "settings": output.plain(settings)})
    else:
        _print_group(found, settings)


@group.command()
@click.argument("name", metavar="GROUP")
@click.option("--topic", metavar="TOPIC", default="", help="Only of this topic.")
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="At most so many.",
)
@with_brokers()
def leases(brokers: Brokers, name: str, topic: str, count: int) -> None:
    """List what members have received and not acknowledged.

    Messages without a member wait to be received again; of others the member
    is not known when another broker led at the time.
    """
    found: list[LeaseInfo] = []
    page = ""
    with brokers.admin() as admin:
        while count > len(found):
            answer = admin.list_leases(name, topic, min(count - len(found), 1_000), page=page)
            brokers.note_missing(answer)
            found += answer.leases
            page = answer.next_page
            if not page:
                break
    if brokers.as_json:
        output.write_json([output.plain(each) for each in found])
        return
    if found:
        print_pages(output.console(), found, _lease_columns)
    waiting = f", {counted(answer.waiting, 'message')} waiting to be received again"
    click.echo(f"{counted(answer.leased, 'message')} leased{waiting * bool(answer.waiting)}")


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.argument("member_id", metavar="MEMBER")
@click.option(
    "--reason",
    metavar="TEXT",
    default="it made no progress",
    show_default=True,
    help="What the consumer is told.",
)
@with_yes
@with_brokers()
def evict(brokers: Brokers, name: str, member_id: str, reason: str, *, is_sure: bool) -> None:
    """Send a member away that lives and does nothing.

    Its queues go to other members at once, also those of an ordered group. A
    handler that hangs in it is not ended: what it does when it goes on may
    happen beside the work of the next member. The consumer ends with the
    reason and does not come back by itself.
    """
    question = f"Send {member_id} away from group {name}, whatever it is working on?"
    confirm(question, is_sure=is_sure)
    with brokers.admin() as admin, _guessing(admin, name):
        admin.evict_member(name, member_id, reason)
    if brokers.as_json:
        output.write_json({"group": name, "member": member_id, "is_evicted": True})
    else:
        click.echo(f"{member_id} is sent away from group {name}.")


@group.command("set")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
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
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.option(
    "--topic", metavar="TOPIC", shell_complete=complete_topic, required=True, help="Of this topic."
)
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
@click.option("--force", is_flag=True, help="Also while members of the group are consuming.")
@click.option("--yes", "-y", is_flag=True, hidden=True, expose_value=False)  # asks nothing now
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
    force: bool,
) -> None:
    """Let a group go on from another place.

    Consumers that run would go on from there at once; messages come to them
    again, or are left out. While there are such, the group is moved with
    --force alone.
    """
    with brokers.admin() as admin, _guessing(admin, name):
        asked = functools.partial(
            admin.reset_offsets,
            name,
            topic,
            to=place,
            queue_ids=queue_ids,
            broker_set=broker_set,
        )
        if not force and not dry_run:
            _check_idle(admin, name, topic, asked(dry_run=True))
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


def _check_idle(admin: Admin, name: str, topic: str, found: ResetOffsetsResponse) -> None:
    """Raises GroupNotEmpty if the group has members, which would be moved while they work."""
    members = {each.member_id for each in admin.describe_group(name).members}
    if not members:
        return
    changes = _changes(found)
    again = -sum(change for change in changes if change and change < 0)
    left_out = sum(change for change in changes if change and change > 0)
    work = "is consuming and would go" if len(members) == 1 else "are consuming and would go"
    raise GroupNotEmpty(
        f"{counted(len(members), 'member')} of group {name} {work} on from there at once: "
        f"{counted(again, 'message')} of {topic} would come again, {left_out:,} would be left out. "
        "Nothing was changed: stop them first, or give --force"
    )


@contextlib.contextmanager
def _guessing(admin: Admin, name: str) -> Iterator[None]:
    """An error that there is no such group names those that may have been meant."""
    try:
        yield
    except GroupNotFound as error:
        similar = similar_names(name, (each.group for each in admin.list_groups()))
        if not similar:
            raise
        raise GroupNotFound(
            f"there is no group {name}: did you mean {' or '.join(similar)}?"
        ) from error


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@with_yes
@with_brokers()
def delete(brokers: Brokers, name: str, *, is_sure: bool) -> None:
    """Delete a group without members, and its offsets."""
    with brokers.admin() as admin, _guessing(admin, name):
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
        Column("behind", [f"{each.lag:,}" for each in groups], style=nonzero),
        Column("generation", [str(each.generation) for each in groups], rank=2),
        Column("topics", topics, "left", is_flexible=True),
    ]


def _stalled_column(members: Sequence[MemberInfo]) -> list[Column]:
    """Where there is such a member: a handler that takes its time is no news."""
    if all(each.stalled_ms < _STALLED_MS for each in members):
        return []
    times = [f"{each.stalled_ms // 1000:,} s" if each.stalled_ms else "-" for each in members]
    return [Column("stalled", times, style=nonzero)]


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
        *_stalled_column(members),
        Column(
            "last seen (UTC)", moments, "left", compact=Column("last seen (UTC)", times, "left")
        ),
    ]


def _set_column(
    rows: Sequence[GroupQueue] | Sequence[LeaseInfo] | Sequence[QueuePosition],
) -> list[Column]:
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
        Column("behind", [f"{each.lag:,}" for each in queues], style=nonzero),
        Column("member", owners, "left", is_flexible=True),
    ]


def _lease_columns(found: Sequence[LeaseInfo]) -> list[Column]:
    moments = [stored_at(each.visible_at_ms) for each in found]
    times = [moment.partition(" ")[2] for moment in moments]
    members = [
        (output.printable(each.member_id) or "not known") if each.is_leased else "-"
        for each in found
    ]
    return [
        Column("topic", [each.topic for each in found], "left", is_flexible=True),
        *_set_column(found),
        Column("queue", [str(each.queue_id) for each in found]),
        Column("from", [str(each.start) for each in found]),
        Column("messages", [f"{each.end - each.start:,}" for each in found]),
        Column("attempt", [str(each.attempts) for each in found]),
        Column("until (UTC)", moments, "left", compact=Column("until (UTC)", times, "left")),
        Column("member", members, "left", is_flexible=True),
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
