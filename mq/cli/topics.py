"""`mq topic`: list, create, describe, alter and delete topics; extend them to broker sets, and
drain them from there.

A set is shown only where the cluster has several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.completion import complete_topic
from mq.cli.options import Brokers, confirm, with_brokers, with_count, with_set, with_yes
from mq.cli.tables import Column, counted, cut_note, print_pages, size, stored_at
from mq.cli.watch import with_watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import DescribeTopicResponse, QueueStats, TopicInfo, TopicSummary
    from mq.wire.v1.cluster_pb2 import TopicRoute

_TYPES = ("normal", "ordered", "delayed", "transactional")
_QUEUES = click.IntRange(1, 65_536)


@click.group(short_help="List, create, describe, alter, delete topics.")
def topic() -> None:
    """Topics: named sets of queues that messages are sent to."""


@topic.command("list")
@click.option("--internal", is_flag=True, help="Also those that the broker uses itself.")
@with_count
@with_watch
@with_brokers()
def list_topics(brokers: Brokers, *, internal: bool, count: int | None) -> None:
    """List all topics."""
    with brokers.admin() as admin:
        topics = admin.list_topics(include_internal=internal)
        has_sets = _has_sets(admin)
    brokers.note_missing(topics)
    if brokers.as_json:
        output.write_json([_document(each) for each in topics[:count]])
        return
    out = output.console()
    if not topics:
        click.echo("No topics yet. A first message creates one: mq produce greetings hello")
        return
    print_pages(out, topics[:count], lambda page: _topic_columns(page, has_sets=has_sets))
    messages = sum(each.messages for each in topics)
    total = f"{counted(len(topics), 'topic')}, {counted(messages, 'message')}"
    click.echo(f"{total}{cut_note(len(topics), count)}")


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option(
    "--queues", metavar="N", type=_QUEUES, help="How many, in all sets.  [default: the broker's, 8]"
)
@click.option(
    "--type", "kind", type=click.Choice(_TYPES), default="normal", show_default=True, help="Type."
)
@click.option(
    "--priorities",
    metavar="N",
    type=click.IntRange(2, 10),
    help="So many priorities, 0 the lowest; each has its share of the queues.",
)
@click.option(
    "--set", "sets", metavar="SET", multiple=True, help="Only in this broker set; repeatable."
)
@with_brokers()
def create(
    brokers: Brokers,
    name: str,
    *,
    queues: int | None,
    kind: Any,
    priorities: int | None,
    sets: Sequence[str],
) -> None:
    """Create a topic.

    Its queues are spread evenly over all broker sets of the cluster. If that
    breaks off between two sets, the same command completes it.
    """
    with brokers.admin() as admin:
        info = admin.create_topic(
            name,
            queues=queues or 0,
            type=kind,
            priorities=priorities or 0,
            sets=sets or None,
        )
        parts = _parts(admin, name)
    _print_change(brokers, info, "Created", parts)


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@with_set("To this broker set.", required=True)
@click.option(
    "--queues", metavar="N", type=_QUEUES, required=True, help="How many it has there then."
)
@with_brokers()
def extend(brokers: Brokers, name: str, broker_set: str, queues: int) -> None:
    """Give a topic queues in another broker set, or more queues there.

    Producers and consumers that run take them up within seconds. Keys are
    spread anew then: messages of one ordering key may go to another queue.
    """
    with brokers.admin() as admin:
        info = admin.extend_topic(name, broker_set, queues)
        parts = _parts(admin, name)
    _print_change(brokers, info, "Extended", parts)


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@with_set("From this broker set.", required=True)
@with_brokers()
def drain(brokers: Brokers, name: str, broker_set: str) -> None:
    """Send no more messages of a topic to a broker set.

    What is there stays until it is consumed. Then
    `mq topic delete TOPIC --set SET` removes its queues there.
    """
    with brokers.admin() as admin:
        info = admin.drain_topic(name, broker_set)
        left = [one for one in admin.describe_topic(name).queues if one.broker_set == broker_set]
    messages = sum(queue.end - queue.start for queue in left)
    if brokers.as_json:
        output.write_json({**output.plain(info), "messages": messages})
        return
    click.echo(f"Topic {name} takes no more messages in {broker_set}.")
    click.echo(f"When the {counted(messages, 'message')} there are consumed:")
    click.echo(f"  mq topic delete {name} --set {broker_set}")


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@with_watch
@with_brokers()
def describe(brokers: Brokers, name: str) -> None:
    """Show a topic, its queues, and the groups that consume it."""
    with brokers.admin() as admin:
        found = admin.describe_topic(name)
        has_sets = _has_sets(admin)
    brokers.note_missing(found)
    if brokers.as_json:
        output.write_json(output.plain(found))
        return
    out = output.console()
    info = found.info
    fields = [
        ("topic", info.topic + (" (the broker's own)" if info.is_internal else "")),
        ("type", _type(info)),
        ("queues", _queues(info) + (f": {_shares(found.parts)}" if has_sets else "")),
        ("access", _accesses(found)),
        ("created", _created(info, " UTC")),
        ("stored", size(info.stored_bytes)),
        ("groups", ", ".join(found.groups) or "none has an offset on it"),
    ]
    output.print_fields(out, fields)
    print_pages(out, found.queues, lambda page: _queue_columns(page, has_sets=has_sets))
    messages = sum(queue.end - queue.start for queue in found.queues)
    click.echo(f"{counted(len(found.queues), 'queue')}, {counted(messages, 'message')}")


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@click.option("--queues", metavar="N", type=_QUEUES, help="Both of the following.")
@click.option(
    "--write-queues", metavar="N", type=click.IntRange(0, 65_536), help="Those that take messages."
)
@click.option("--read-queues", metavar="N", type=_QUEUES, help="Those that are consumed.")
@click.option("--readable/--not-readable", default=None, help="Whether it is consumed.")
@click.option("--writable/--not-writable", default=None, help="Whether it takes messages.")
@with_set("Only in this broker set, which counts its own queues.")
@with_yes
@with_brokers()
def alter(  # noqa: PLR0913 - one a flag
    brokers: Brokers,
    name: str,
    *,
    broker_set: str,
    queues: int | None,
    write_queues: int | None,
    read_queues: int | None,
    readable: bool | None,
    writable: bool | None,
    is_sure: bool,
) -> None:
    """Change a topic; what is not named stays as it is.

    To have fewer queues without losing sight of messages: lower
    --write-queues, let consumers finish, then lower --read-queues. Asks
    before messages are out of sight.
    """
    if queues is not None and (write_queues is not None or read_queues is not None):
        raise click.UsageError("--queues stands for --write-queues and --read-queues: give one")
    if {queues, write_queues, read_queues, readable, writable} == {None}:
        raise click.UsageError("nothing to change: give at least one of the options")
    with brokers.admin() as admin:
        kept = queues if read_queues is None else read_queues
        if kept is not None and not is_sure:
            _confirm_hidden(admin, name, kept, broker_set)
        info = admin.alter_topic(
            name,
            write_queues=queues if write_queues is None else write_queues,
            read_queues=kept,
            is_readable=readable,
            is_writable=writable,
            broker_set=broker_set,
        )
    _print_change(brokers, info, "Changed")


def _confirm_hidden(admin: Admin, name: str, read_queues: int, broker_set: str) -> None:
    """Asks if messages are in queues that would not be read."""
    hidden = [
        one
        for one in admin.describe_topic(name).queues
        if one.queue_id >= read_queues and one.end > one.start
        if broker_set in ("", one.broker_set)
    ]
    if not hidden:
        return
    messages = sum(one.end - one.start for one in hidden)
    queue_ids = [one.queue_id for one in hidden]
    first, last = min(queue_ids), max(queue_ids)
    where = f"queue {first}" if first == last else f"queues {first} to {last}"
    verb = "is" if messages == 1 else "are"
    confirm(
        f"{counted(messages, 'message')} {verb} in {where} of topic {name}, which consumers would "
        "no longer see: they stay stored, and come back with more --read-queues. Go on?",
        is_sure=False,
    )


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@with_set("Only what it has in this broker set, when it is drained and consumed.")
@click.option("--force", is_flag=True, help="With --set: also when it is not.")
@with_yes
@with_brokers()
def delete(brokers: Brokers, name: str, *, broker_set: str, force: bool, is_sure: bool) -> None:
    """Delete a topic, its messages, and the offsets of groups on it."""
    if force and not broker_set:
        raise click.UsageError("--force is for the part in one broker set: give --set too")
    where = f" in broker set {broker_set}" if broker_set else ""
    with brokers.admin() as admin:
        found = admin.describe_topic(name)
        queues = [one for one in found.queues if broker_set in ("", one.broker_set)]
        messages = sum(queue.end - queue.start for queue in queues)
        if not is_sure:
            groups = counted(len(found.groups), "group has", "groups have")
            what = f"{counted(messages, 'message')}{where}; {groups} offsets on it"
            confirm(f"Topic {name} has {what}. Delete it for good?", is_sure=False)
        if broker_set:
            admin.remove_part(name, broker_set, force=force)
        else:
            admin.delete_topic(name)
    if brokers.as_json:
        document = {"topic": name, "is_deleted": True, "messages": messages}
        output.write_json(document | ({"broker_set": broker_set} if broker_set else {}))
    else:
        click.echo(f"Deleted topic {name}{where} and its {counted(messages, 'message')}.")


# -- what is printed -------------------------------------------------------------------------------


def _has_sets(admin: Admin) -> bool:
    return len(admin.route().broker_sets) > 1


def _parts(admin: Admin, name: str) -> Sequence[TopicRoute]:
    """The parts of a topic in a cluster of several sets."""
    found = admin.route([name])
    return found.topics if len(found.broker_sets) > 1 else ()


def _document(summary: TopicSummary) -> dict[str, Any]:
    sets = list(summary.broker_sets)
    return {**output.plain(summary.info), "messages": summary.messages, "broker_sets": sets}


def _print_change(
    brokers: Brokers, info: TopicInfo, verb: str, parts: Sequence[TopicRoute] = ()
) -> None:
    if brokers.as_json:
        output.write_json(output.plain(info))
        return
    queues = _queues(info) + (f" in {info.broker_set}" if parts and info.broker_set else "")
    if len(parts) > 1:
        queues += f" ({_shares(parts)})" if not info.broker_set else f", {_total(parts)} in all"
    click.echo(f"{verb} topic {info.topic}: {_type(info)}, {queues}, {_access(info)}.")


def _type(info: TopicInfo) -> str:
    return output.enum_name(info.DESCRIPTOR.fields_by_name["type"].enum_type, info.type)


def _queues(info: TopicInfo) -> str:
    text = counted(info.write_queues, "queue")
    if info.write_queues != info.read_queues:
        text += f" to write, {info.read_queues} to read"
    return f"{text}, {info.priorities} priorities" if info.priorities else text


def _shares(parts: Sequence[TopicInfo] | Sequence[TopicRoute]) -> str:
    return ", ".join(f"{one.write_queues} in {one.broker_set}" for one in parts)


def _total(parts: Sequence[TopicRoute]) -> int:
    return sum(one.write_queues for one in parts)


def _accesses(found: DescribeTopicResponse) -> str:
    """The access of all sets together, and where it is different."""
    whole = _access(found.info)
    others = [f"in {one.broker_set} {_access(one)}" for one in found.parts if _access(one) != whole]
    return "; ".join([whole, *others])


def _access(info: TopicInfo) -> str:
    allowed = [
        word
        for word, is_allowed in (("read", info.is_readable), ("write", info.is_writable))
        if is_allowed
    ]
    return " and ".join(allowed) or "closed"


def _created(info: TopicInfo, zone: str = "") -> str:
    return stored_at(info.created_at_ms) + zone if info.created_at_ms else "-"


def _topic_columns(topics: Sequence[TopicSummary], *, has_sets: bool) -> list[Column]:
    infos = [each.info for each in topics]
    queues = [
        (
            str(info.write_queues)
            if info.write_queues == info.read_queues
            else f"{info.write_queues}w {info.read_queues}r"
        )
        + (f" ({info.priorities}p)" if info.priorities else "")
        for info in infos
    ]
    sets = [", ".join(each.broker_sets) for each in topics]
    return [
        Column("topic", [info.topic for info in infos], "left", is_flexible=True),
        Column("type", [_type(info) for info in infos], "left", rank=1),
        Column("queues", queues),
        *([Column("sets", sets, "left", is_flexible=True)] if has_sets else []),
        Column("messages", [f"{each.messages:,}" for each in topics]),
        Column("stored", [size(info.stored_bytes) for info in infos], rank=1),
        Column("access", [_access(info) for info in infos], "left", rank=2),
        Column("created (UTC)", [_created(info) for info in infos], "left", rank=3),
    ]


def _queue_columns(queues: Sequence[QueueStats], *, has_sets: bool) -> list[Column]:
    newest = [
        stored_at(each.last_stored_at_ms) if each.last_stored_at_ms else "-" for each in queues
    ]
    sets = Column("set", [each.broker_set for each in queues], "left", is_flexible=True)
    return [
        *([sets] if has_sets else []),
        Column("queue", [str(each.queue_id) for each in queues]),
        Column("start", [str(each.start) for each in queues]),
        Column("end", [str(each.end) for each in queues]),
        Column("messages", [f"{each.end - each.start:,}" for each in queues]),
        Column("newest stored (UTC)", newest, "left"),
    ]
