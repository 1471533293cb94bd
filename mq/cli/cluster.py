"""`mq cluster`: the nodes of a running cluster, their leaders, health and options.

One node that does not answer is shown as such, see `nodes`. What is done to nodes has modules of
its own: `cluster_members`, `restart`; so do `clients`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from mq.cli import clients, cluster_members, cluster_sets, output, restart
from mq.cli.nodes import (
    Leadership,
    Seen,
    address_of,
    behind,
    checked_set,
    leaders,
    leadership,
    look,
    set_column,
    with_set,
)
from mq.cli.options import Brokers, with_brokers
from mq.cli.tables import Column, counted, nonzero, print_pages, print_table, size, state
from mq.cli.watch import with_watch
from mq.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.wire.v1.admin_pb2 import BrokerStatusResponse, ConfigOption
    from mq.wire.v1.cluster_pb2 import RouteResponse, TopicRoute


@click.group(short_help="Show and change the nodes of the cluster.")
def cluster() -> None:
    """The nodes: leaders, health, configuration."""


for _command in (
    *cluster_members.COMMANDS,
    *cluster_sets.COMMANDS,
    restart.restart_plan,
    clients.clients,
):
    cluster.add_command(_command)


@cluster.command("status")
@with_watch
@with_brokers()
def show_status(brokers: Brokers) -> None:
    """Show every node: its role, its log, its memory and disk."""
    with brokers.admin() as admin:
        route = admin.route()
        nodes = look(admin, route)
    sets = leadership(route, nodes)
    if brokers.as_json:
        document = {
            "cluster": route.cluster,
            "broker_sets": [each._asdict() for each in sets],
            "nodes": [_document(each) for each in nodes],
        }
        output.write_json(document)
        return
    out = output.console()
    leading = leaders(nodes)
    fields = [("cluster", route.cluster)]
    for broker_set, each_set in zip(route.broker_sets, sets, strict=True):
        leader = f"{each_set.leader_id} leads" if each_set.leader_id else "no leader"
        fields.append((f"broker set {broker_set.name}", f"{leader}, term {broker_set.term}"))
        if broker_set.name in leading:
            fields.append(("has", _has(leading[broker_set.name])))
    output.print_fields(out, fields)
    print_table(out, _status_columns(nodes, time.time_ns() // 1_000_000))
    _print_problems(sets)
    for each in nodes:
        if each.trouble:
            place = each.node_id if len(route.broker_sets) == 1 else each.place
            click.echo(f"{place}: {each.trouble}")


def _print_problems(sets: Sequence[Leadership]) -> None:
    for each in sets:
        if each.problem:
            click.echo(each.problem)


def _has(leading: BrokerStatusResponse) -> str:
    """As `mq topic list` and `mq group list` count them."""
    topics = counted(leading.topics - leading.internal_topics, "topic")
    text = f"{topics} with {counted(leading.topic_queues, 'queue')}"
    if leading.internal_topics:
        text += f" (and {counted(leading.internal_topics, 'internal topic')})"
    groups, consumers = counted(leading.groups, "group"), counted(leading.members, "consumer")
    return f"{text}, {groups}, {consumers}"


@cluster.command()
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@with_brokers()
def route(brokers: Brokers, topics: Sequence[str]) -> None:
    """Show where clients connect, and where topics are.

    Topics that do not exist are left out.
    """
    with brokers.admin() as admin:
        found = admin.route(topics)
    if brokers.as_json:
        output.write_json(output.plain(found))
        return
    out = output.console()
    print_table(out, _route_columns(found))
    if found.topics:
        print_pages(out, found.topics, _topic_columns)
    missing = sorted(set(topics) - {each.topic for each in found.topics})
    if missing:
        click.echo(f"Not there: {', '.join(missing)}")


@cluster.command()
@with_brokers()
@click.pass_context
def health(context: click.Context, brokers: Brokers) -> None:
    """Say whether every node is up, applied and led; ends with 1 if not."""
    with brokers.admin() as admin:
        route = admin.route()
        nodes = look(admin, route)
    sets = leadership(route, nodes)
    is_healthy = not any(each.health for each in nodes)
    if brokers.as_json:
        states = [
            {
                "broker_set": each.broker_set,
                "node_id": each.node_id,
                "address": each.address,
                "role": each.role,
                "is_healthy": not each.health,
                "problem": each.health,
            }
            for each in nodes
        ]
        document = {
            "is_healthy": is_healthy,
            "broker_sets": [each._asdict() for each in sets],
            "nodes": states,
        }
        output.write_json(document)
    else:
        states_shown = [each.health or "healthy" for each in nodes]
        print_table(
            output.console(),
            [
                *set_column([each.broker_set for each in nodes]),
                Column("node", [each.node_id for each in nodes], "left"),
                Column("address", [each.address or "?" for each in nodes], "left"),
                Column("role", [each.role for each in nodes], "left", style=state),
                Column("health", states_shown, "left", is_flexible=True, style=state),
            ],
        )
        _print_problems(sets)
    context.exit(0 if is_healthy else 1)


@cluster.command()
@click.argument("prefix", metavar="[NAME]", default="")
@click.option("--node", "node_id", metavar="NODE", help="Of this node.  [default: the leader]")
@with_set
@click.option("--changed", is_flag=True, help="Only options that are not at their default.")
@with_brokers()
def config(
    brokers: Brokers, prefix: str, node_id: str | None, broker_set: str, *, changed: bool
) -> None:
    """Show the options of a running node.

    All, or those whose name starts with NAME, such as retention. Options
    marked * can be changed by `mq cluster set` while it runs.
    """
    with brokers.admin() as admin:
        route = admin.route()
        server = address_of(route, node_id, checked_set(route, broker_set))
        found = [
            option
            for option in admin.get_config(server)
            if option.name.startswith(prefix) and not (changed and option.value == option.default)
        ]
    if brokers.as_json:
        output.write_json([output.plain(option) for option in found])
        return
    out = output.console()
    if not found:
        click.echo("No such options.")
        return
    print_pages(out, found, _option_columns)
    click.echo(f"* can be changed while the node runs. This is {server}.")


@cluster.command("set")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="VALUE")
@click.option("--node", "node_id", metavar="NODE", help="Only on this node.  [default: on all]")
@with_set
@with_brokers()
def set_option(
    brokers: Brokers, name: str, value: str, node_id: str | None, broker_set: str
) -> None:
    """Change an option of running nodes, until they stop.

    For good, write it into their configuration as well.
    """
    with brokers.admin() as admin:
        route = admin.route()
        checked_set(route, broker_set)
        nodes = [
            (node.node_id, node.address)
            for each in route.broker_sets
            for node in each.nodes
            if node_id in (None, node.node_id) and broker_set in ("", each.name)
        ]
        if node_id is not None:
            address_of(route, node_id, broker_set)
        changed: list[tuple[str, ConfigOption]] = []
        for each_id, address in nodes:
            if not address:
                raise Unreachable(
                    f"the address of {each_id} is not known: is it up? {_so_far(changed)}"
                )
            try:
                (option,) = admin.set_config(name, value, address)
            except Unreachable as error:
                raise Unreachable(
                    f"{each_id} at {address} does not answer. {_so_far(changed)}"
                ) from error
            changed.append((each_id, option))
    if brokers.as_json:
        output.write_json(
            [{"node_id": each_id, **output.plain(option)} for each_id, option in changed]
        )
        return
    print_table(
        output.console(),
        [
            Column("node", [each_id for each_id, _ in changed], "left"),
            Column("option", [option.name for _, option in changed], "left"),
            Column("value", [option.value for _, option in changed], "left"),
            Column("default", [option.default for _, option in changed], "left"),
        ],
    )


def _so_far(changed: Sequence[tuple[str, ConfigOption]]) -> str:
    if not changed:
        return "Nothing was changed"
    return f"Changed already on {', '.join(node_id for node_id, _ in changed)}"


# -- what is printed -------------------------------------------------------------------------------


def _document(seen: Seen) -> dict[str, Any]:
    place = {
        "broker_set": seen.broker_set,
        "node_id": seen.node_id,
        "address": seen.address,
        "zone": seen.zone,
        "is_healthy": not seen.health,
        "problem": seen.health,
    }
    return place | (output.plain(seen.status) if seen.status is not None else {})


def _status_columns(nodes: Sequence[Seen], now_ms: int) -> list[Column]:
    def cells(text: Any) -> list[str]:
        return [text(each.status) if each.status is not None else "-" for each in nodes]

    lacking = behind(nodes)
    places = [(each.broker_set, each.node_id) for each in nodes]
    lags = [f"{lacking[place]:,}" if place in lacking else "-" for place in places]
    disk = cells(lambda one: f"{100 * one.disk_used_bytes / max(one.disk_total_bytes, 1):.0f} %")
    return [
        *set_column([each.broker_set for each in nodes]),
        Column("node", [each.node_id for each in nodes], "left"),
        Column("address", [each.address or "?" for each in nodes], "left"),
        Column("role", [each.role for each in nodes], "left", style=state),
        Column("zone", [each.zone or "-" for each in nodes], "left", rank=9),
        Column("applied", cells(lambda one: str(one.applied_index)), rank=4),
        Column("behind", lags, rank=1, style=nonzero),
        Column("log", cells(lambda one: size(one.log_bytes))),
        Column("disk used", disk, rank=2),
        Column("memory", cells(lambda one: size(one.rss_bytes)), rank=3),
        Column("CPU s", cells(lambda one: f"{one.cpu_seconds:,.1f}"), rank=5),
        Column("msgs in", cells(lambda one: f"{one.messages_in:,}"), rank=7),
        Column("msgs out", cells(lambda one: f"{one.messages_out:,}"), rank=8),
        Column("up for", cells(lambda one: duration(now_ms - one.started_at_ms)), rank=6),
    ]


def duration(length_ms: int) -> str:
    """In its two largest units: "2d 3h", "5m 12s"."""
    seconds = max(0, length_ms) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {seconds % 60}s" if minutes else f"{seconds}s"


def _route_columns(found: RouteResponse) -> list[Column]:
    rows = [(each, node) for each in found.broker_sets for node in each.nodes]
    roles = ["leader" if node.node_id == each.leader_id else "follower" for each, node in rows]
    return [
        Column("broker set", [each.name for each, _ in rows], "left"),
        Column("node", [node.node_id for _, node in rows], "left"),
        Column("address", [node.address or "not known" for _, node in rows], "left"),
        Column("zone", [node.zone or "-" for _, node in rows], "left"),
        Column("role", roles, "left"),
        Column("term", [str(each.term) for each, _ in rows]),
    ]


def _topic_columns(topics: Sequence[TopicRoute]) -> list[Column]:
    access = [
        "+".join([*["read"] * each.is_readable, *["write"] * each.is_writable]) or "closed"
        for each in topics
    ]
    return [
        Column("topic", [each.topic for each in topics], "left", is_flexible=True),
        Column("broker set", [each.broker_set for each in topics], "left"),
        Column("write queues", [str(each.write_queues) for each in topics]),
        Column("read queues", [str(each.read_queues) for each in topics]),
        Column("access", access, "left"),
    ]


def _option_columns(options: Sequence[ConfigOption]) -> list[Column]:
    names = [f"{each.name} *" if each.is_dynamic else each.name for each in options]
    return [
        Column("option", names, "left"),
        Column("value", [each.value or "-" for each in options], "left", is_flexible=True),
        Column("default", [each.default or "-" for each in options], "left", rank=2),
        Column(
            "description", [each.description for each in options], "left", is_flexible=True, rank=1
        ),
    ]
