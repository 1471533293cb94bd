"""`mq cluster`: the nodes of a running cluster, who leads, how they are, and their options.

Each node is asked for itself, at the address that the others know. One that does not answer is
shown as such and does not keep the command from showing the rest.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mq.admin import output
from mq.admin.options import Brokers, trouble_at, with_brokers
from mq.admin.tables import Column, counted, print_pages, print_table, size
from mq.errors import IllegalRequest, MqError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import BrokerStatusResponse, ConfigOption
    from mq.wire.v1.cluster_pb2 import RouteResponse, TopicRoute


class Seen(NamedTuple):
    """One node, and what it said of itself."""

    broker_set: str
    node_id: str
    address: str
    zone: str
    is_leader: bool
    status: BrokerStatusResponse | None
    # Why there is no status.
    trouble: str

    @property
    def role(self) -> str:
        if self.status is not None:
            return self.status.role
        return "leader?" if self.is_leader else "?"

    @property
    def health(self) -> str:
        """Empty when nothing is wrong."""
        if self.status is None:
            return self.trouble
        if not self.status.leader_id:
            return "nobody leads"
        if not self.status.is_ready:
            behind = self.status.last_index - self.status.applied_index
            return f"not ready: {counted(behind, 'entry', 'entries')} to apply"
        return ""


@click.group(short_help="Show the nodes, their health and options.")
def cluster() -> None:
    """The nodes: who leads, how they are, how they are configured."""


@cluster.command("status")
@with_brokers()
def show_status(brokers: Brokers) -> None:
    """Show every node: its role, its log, its memory and disk."""
    with brokers.admin() as admin:
        route = admin.route()
        nodes = _look(admin, route)
    if brokers.as_json:
        output.write_json({"cluster": route.cluster, "nodes": [_document(each) for each in nodes]})
        return
    out = output.console()
    leading = next((each.status for each in nodes if each.status and each.role == "leader"), None)
    fields = [("cluster", route.cluster)]
    for broker_set in route.broker_sets:
        leader = broker_set.leader_id or "nobody"
        fields.append((f"broker set {broker_set.name}", f"{leader} leads, term {broker_set.term}"))
    if leading is not None:
        counts = [(leading.topics, "topic"), (leading.queues, "queue"), (leading.groups, "group")]
        counts.append((leading.members, "consumer"))
        fields.append(("has", ", ".join(counted(number, noun) for number, noun in counts)))
    output.print_fields(out, fields)
    print_table(out, _status_columns(nodes, time.time_ns() // 1_000_000, leading))
    for each in nodes:
        if each.trouble:
            click.echo(f"{each.node_id}: {each.trouble}")


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
        nodes = _look(admin, admin.route())
    is_healthy = not any(each.health for each in nodes)
    if brokers.as_json:
        states = [
            {
                "node_id": each.node_id,
                "address": each.address,
                "role": each.role,
                "is_healthy": not each.health,
                "problem": each.health,
            }
            for each in nodes
        ]
        output.write_json({"is_healthy": is_healthy, "nodes": states})
    else:
        states_shown = [each.health or "healthy" for each in nodes]
        print_table(
            output.console(),
            [
                Column("node", [each.node_id for each in nodes], "left"),
                Column("address", [each.address or "?" for each in nodes], "left"),
                Column("role", [each.role for each in nodes], "left"),
                Column("health", states_shown, "left", is_flexible=True),
            ],
        )
    context.exit(0 if is_healthy else 1)


@cluster.command()
@click.argument("prefix", metavar="[NAME]", default="")
@click.option("--node", "node_id", metavar="NODE", help="Of this node.  [default: the leader]")
@click.option("--changed", is_flag=True, help="Only options that are not at their default.")
@with_brokers()
def config(brokers: Brokers, prefix: str, node_id: str | None, *, changed: bool) -> None:
    """Show the options of a running node.

    All, or those whose name starts with NAME, such as retention. Options
    marked * can be changed by `mq cluster set` while it runs.
    """
    with brokers.admin() as admin:
        server = _address(admin.route(), node_id)
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
@with_brokers()
def set_option(brokers: Brokers, name: str, value: str, node_id: str | None) -> None:
    """Change an option of running nodes, until they stop.

    For good, write it into their configuration as well.
    """
    with brokers.admin() as admin:
        route = admin.route()
        nodes = [
            (node.node_id, node.address)
            for broker_set in route.broker_sets
            for node in broker_set.nodes
            if node_id in (None, node.node_id)
        ]
        if node_id is not None:
            _address(route, node_id)
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


# -- asking ----------------------------------------------------------------------------------------


def _look(admin: Admin, found: RouteResponse) -> list[Seen]:
    """Every node that is known, asked one after the other."""
    seen = []
    for broker_set in found.broker_sets:
        for node in broker_set.nodes:
            status, trouble = None, ""
            if not node.address:
                trouble = "its address is not known: it is down, or was never up"
            elif not (trouble := trouble_at(node.address)):
                try:
                    status = admin.broker_status(node.address)
                except MqError as error:
                    trouble = _trouble(error)
            is_leader = node.node_id == broker_set.leader_id
            seen.append(
                Seen(
                    broker_set.name,
                    node.node_id,
                    node.address,
                    node.zone,
                    is_leader,
                    status,
                    trouble,
                )
            )
    return seen


def _trouble(error: MqError) -> str:
    return "does not answer" if isinstance(error, Unreachable) else str(error)


def _address(found: RouteResponse, node_id: str | None) -> str:
    """Where a node is; without a name, the leader."""
    nodes = {node.node_id: node.address for each in found.broker_sets for node in each.nodes}
    if node_id is None:
        leaders = [each.leader_id for each in found.broker_sets if each.leader_id]
        node_id = leaders[0] if leaders else next(iter(nodes), "")
    if not nodes.get(node_id):
        known = ", ".join(nodes)
        raise IllegalRequest(f"there is no node {node_id!r} with a known address; known: {known}")
    return nodes[node_id]


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


def _status_columns(
    nodes: Sequence[Seen], now_ms: int, leading: BrokerStatusResponse | None
) -> list[Column]:
    def cells(text: Any) -> list[str]:
        return [text(each.status) if each.status is not None else "-" for each in nodes]

    behind = {each.node_id: each.behind for each in leading.followers} if leading else {}
    lags = [f"{behind[each.node_id]:,}" if each.node_id in behind else "-" for each in nodes]
    disk = cells(lambda one: f"{100 * one.disk_used_bytes / max(one.disk_total_bytes, 1):.0f} %")
    return [
        Column("node", [each.node_id for each in nodes], "left"),
        Column("address", [each.address or "?" for each in nodes], "left"),
        Column("role", [each.role for each in nodes], "left"),
        Column("zone", [each.zone or "-" for each in nodes], "left", rank=9),
        Column("applied", cells(lambda one: str(one.applied_index)), rank=4),
        Column("behind", lags, rank=1),
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
