"""`mq topic`: list, create, describe, alter and delete topics of a running broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mq.admin import output
from mq.admin.options import Brokers, confirm, with_brokers, with_yes
from mq.admin.tables import Column, counted, print_pages, stored_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.wire.v1.admin_pb2 import QueueStats, TopicInfo, TopicSummary

_TYPES = ("normal", "ordered", "delayed", "transactional")
_QUEUES = click.IntRange(1, 65_536)


@click.group(short_help="List, create, describe, alter, delete topics.")
def topic() -> None:
    """Topics: named sets of queues that messages are sent to."""


@topic.command("list")
@click.option("--internal", is_flag=True, help="Also those that the broker uses itself.")
@with_brokers()
def list_topics(brokers: Brokers, *, internal: bool) -> None:
    """List all topics."""
    with brokers.admin() as admin:
        topics = admin.list_topics(include_internal=internal)
    if brokers.as_json:
        output.write_json([_document(each) for each in topics])
        return
    out = output.console()
    if not topics:
        click.echo("No topics yet. A first message creates one: mq produce greetings hello")
        return
    print_pages(out, topics, _topic_columns)
    messages = sum(each.messages for each in topics)
    click.echo(f"{counted(len(topics), 'topic')}, {counted(messages, 'message')}")


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--queues", metavar="N", type=_QUEUES, help="How many.  [default: the broker's]")
@click.option(
    "--type", "kind", type=click.Choice(_TYPES), default="normal", show_default=True, help="Type."
)
@click.option(
    "--priorities",
    metavar="N",
    type=click.IntRange(2, 10),
    help="So many priorities, 0 the lowest; each has its share of the queues.",
)
@with_brokers()
def create(
    brokers: Brokers, name: str, queues: int | None, kind: Any, priorities: int | None
) -> None:
    """Create a topic."""
    with brokers.admin() as admin:
        info = admin.create_topic(name, queues=queues or 0, type=kind, priorities=priorities or 0)
    _print_change(brokers, info, "Created")


@topic.command()
@click.argument("name", metavar="TOPIC")
@with_brokers()
def describe(brokers: Brokers, name: str) -> None:
    """Show a topic, its queues, and the groups that consume it."""
    with brokers.admin() as admin:
        found = admin.describe_topic(name)
    if brokers.as_json:
        output.write_json(output.plain(found))
        return
    out = output.console()
    info = found.info
    fields = [
        ("topic", info.topic + (" (the broker's own)" if info.is_internal else "")),
        ("type", _type(info)),
        ("queues", _queues(info)),
        ("access", _access(info)),
        ("created", _created(info, " UTC")),
        ("groups", ", ".join(found.groups) or "none has an offset on it"),
    ]
    output.print_fields(out, fields)
    print_pages(out, found.queues, _queue_columns)
    messages = sum(queue.end - queue.start for queue in found.queues)
    click.echo(f"{counted(len(found.queues), 'queue')}, {counted(messages, 'message')}")


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--queues", metavar="N", type=_QUEUES, help="Both of the following.")
@click.option(
    "--write-queues", metavar="N", type=click.IntRange(0, 65_536), help="Those that take messages."
)
@click.option("--read-queues", metavar="N", type=_QUEUES, help="Those that are consumed.")
@click.option("--readable/--not-readable", default=None, help="Whether it is consumed.")
@click.option("--writable/--not-writable", default=None, help="Whether it takes messages.")
@with_brokers()
def alter(
    brokers: Brokers,
    name: str,
    *,
    queues: int | None,
    write_queues: int | None,
    read_queues: int | None,
    readable: bool | None,
    writable: bool | None,
) -> None:
    """Change a topic; what is not named stays as it is.

    To have fewer queues without losing sight of messages: lower
    --write-queues, let consumers finish, then lower --read-queues.
    """
    if queues is not None and (write_queues is not None or read_queues is not None):
        raise click.UsageError("--queues stands for --write-queues and --read-queues: give one")
    if {queues, write_queues, read_queues, readable, writable} == {None}:
        raise click.UsageError("nothing to change: give at least one of the options")
    with brokers.admin() as admin:
        info = admin.alter_topic(
            name,
            write_queues=queues if write_queues is None else write_queues,
            read_queues=queues if read_queues is None else read_queues,
            is_readable=readable,
            is_writable=writable,
        )
    _print_change(brokers, info, "Changed")


@topic.command()
@click.argument("name", metavar="TOPIC")
@with_yes
@with_brokers()
def delete(brokers: Brokers, name: str, *, is_sure: bool) -> None:
    """Delete a topic, its messages, and the offsets of groups on it."""
    with brokers.admin() as admin:
        found = admin.describe_topic(name)
        messages = sum(queue.end - queue.start for queue in found.queues)
        if not is_sure:
            groups = counted(len(found.groups), "group has", "groups have")
            what = f"{counted(messages, 'message')}; {groups} offsets on it"
            confirm(f"Topic {name} has {what}. Delete it for good?", is_sure=False)
        admin.delete_topic(name)
    if brokers.as_json:
        output.write_json({"topic": name, "is_deleted": True, "messages": messages})
    else:
        click.echo(f"Deleted topic {name} and its {counted(messages, 'message')}.")


# -- what is printed -------------------------------------------------------------------------------


def _document(summary: TopicSummary) -> dict[str, Any]:
    return {**output.plain(summary.info), "messages": summary.messages}


def _print_change(brokers: Brokers, info: TopicInfo, verb: str) -> None:
    if brokers.as_json:
        output.write_json(output.plain(info))
        return
    click.echo(f"{verb} topic {info.topic}: {_type(info)}, {_queues(info)}, {_access(info)}.")


def _type(info: TopicInfo) -> str:
    return output.enum_name(info.DESCRIPTOR.fields_by_name["type"].enum_type, info.type)


def _queues(info: TopicInfo) -> str:
    text = counted(info.write_queues, "queue")
    if info.write_queues != info.read_queues:
        text += f" to write, {info.read_queues} to read"
    return f"{text}, {info.priorities} priorities" if info.priorities else text


def _access(info: TopicInfo) -> str:
    allowed = [
        word
        for word, is_allowed in (("read", info.is_readable), ("write", info.is_writable))
        if is_allowed
    ]
    return " and ".join(allowed) or "closed"


def _created(info: TopicInfo, zone: str = "") -> str:
    return stored_at(info.created_at_ms) + zone if info.created_at_ms else "-"


def _topic_columns(topics: Sequence[TopicSummary]) -> list[Column]:
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
    return [
        Column("topic", [info.topic for info in infos], "left", is_flexible=True),
        Column("type", [_type(info) for info in infos], "left", rank=1),
        Column("queues", queues),
        Column("messages", [f"{each.messages:,}" for each in topics]),
        Column("access", [_access(info) for info in infos], "left", rank=2),
        Column("created (UTC)", [_created(info) for info in infos], "left", rank=3),
    ]


def _queue_columns(queues: Sequence[QueueStats]) -> list[Column]:
    newest = [
        stored_at(each.last_stored_at_ms) if each.last_stored_at_ms else "-" for each in queues
    ]
    return [
        Column("queue", [str(each.queue_id) for each in queues]),
        Column("start", [str(each.start) for each in queues]),
        Column("end", [str(each.end) for each in queues]),
        Column("messages", [f"{each.end - each.start:,}" for each in queues]),
        Column("newest stored (UTC)", newest, "left"),
    ]
