"""`mq cluster members` and its kin: the nodes of a broker set, and its leader.

A node that is added copies the log first, which may take hours. The leader does that by itself:
the command asks again and again how far it is, and may be stopped and started at any time.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from mq.cli import output
from mq.cli.nodes import Seen, checked_set, leaders, look, set_column, with_set
from mq.cli.options import SECONDS, Brokers, confirm, with_brokers, with_yes
from mq.cli.tables import Column, counted, print_table
from mq.errors import IllegalRequest, MqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import FollowerStatus, MemberList
    from mq.wire.v1.cluster_pb2 import RouteResponse

_AGAIN_S = 0.5
_SAY_S = 5.0


class _Member(NamedTuple):
    broker_set: str
    node_id: str
    raft_address: str
    role: str
    state: str
    behind: int | None
    version: str


@click.command(short_help="Show the nodes of each broker set.")
@with_set
@with_brokers()
def members(brokers: Brokers, broker_set: str) -> None:
    """Show the nodes of each broker set, and which of them vote."""
    with brokers.admin() as admin:
        route = admin.route()
        nodes = look(admin, route, checked_set(route, broker_set))
    found = _members(nodes)
    if brokers.as_json:
        output.write_json([each._asdict() for each in found])
        return
    print_table(
        output.console(),
        [
            *set_column([each.broker_set for each in found]),
            Column("node", [each.node_id for each in found], "left"),
            Column("raft address", [each.raft_address for each in found], "left"),
            Column("role", [each.role for each in found], "left"),
            Column("state", [each.state for each in found], "left", is_flexible=True),
            Column(
                "behind", ["-" if each.behind is None else f"{each.behind:,}" for each in found]
            ),
            Column("version", [each.version for each in found], "left", rank=1),
        ],
    )


def _members(nodes: Sequence[Seen]) -> list[_Member]:
    """By the status of the leader, or of any node while there is none."""
    leading = leaders(nodes)
    seen = {(each.broker_set, each.node_id): each for each in nodes}
    found = []
    for name in dict.fromkeys(each.broker_set for each in nodes):
        told = leading.get(name) or next(
            (each.status for each in nodes if each.broker_set == name and each.status), None
        )
        if told is None:
            found += [
                _Member(name, each.node_id, "?", each.role, each.trouble, None, "-")
                for each in nodes
                if each.broker_set == name
            ]
            continue
        behind = {each.node_id: each.behind for each in told.followers}
        for member in told.set_members:
            each = seen.get((name, member.node_id))
            version = each.status.version if each and each.status else "-"
            role, lacks = each.role if each else "?", behind.get(member.node_id)
            state = _state(each)
            found.append(_Member(name, member.node_id, member.address, role, state, lacks, version))
        if told.HasField("joining"):
            one = told.joining
            state = _joining_text(one)
            found.append(_Member(name, one.node_id, one.address, "joining", state, one.behind, "-"))
    return found


def _state(seen: Seen | None) -> str:
    if seen is None or seen.status is None:
        return seen.trouble if seen else "not known"
    return "votes" if seen.status.is_voter else "does not vote: it is catching up"


@click.command("add-member", short_help="Add a node to a broker set.")
@click.argument("node_id", metavar="NODE")
@click.argument("address", metavar="RAFT_ADDRESS")
@with_set
@click.option(
    "--wait-s",
    metavar="SECONDS",
    type=SECONDS,
    default=600.0,
    show_default=True,
    help="How long to watch; the node goes on copying after that.",
)
@with_brokers()
def add_member(
    brokers: Brokers, node_id: str, address: str, broker_set: str, wait_s: float
) -> None:
    """Add a node to a broker set, and wait until it is a member.

    Start it before, with an empty directory, --raft-join yes and the members
    of the set. RAFT_ADDRESS is where the other nodes reach it, host:port. It
    copies the log, and is counted when it has nearly all of it. The leader
    goes on with that when this command is stopped; called again, it shows how
    far it is, and `mq cluster remove-member` calls it off.
    """
    with brokers.admin() as admin:
        name = _one_set(admin.route(), broker_set)
        found = _watch_adding(admin, node_id, address, name, time.monotonic() + wait_s)
    if brokers.as_json:
        output.write_json(output.plain(found))
        return
    names = ", ".join(each.node_id for each in found.members)
    click.echo(f"{node_id} is a member of {name} now, with {names}.")
    click.echo("It votes when it has caught up; see `mq cluster members`.")


def _watch_adding(
    admin: Admin, node_id: str, address: str, broker_set: str, deadline_s: float
) -> MemberList:
    """Returns when it is a member. IllegalRequest when that takes too long."""
    said_s, said = 0.0, ""
    while True:
        error: MqError | None = None
        try:
            found = admin.add_member(node_id, address, broker_set=broker_set)
            if any(each.node_id == node_id for each in found.members):
                return found
            text = _joining_text(found.joining)
        except MqError as failure:
            # A new leader knows nothing of it: it is asked, too.
            if not failure.retryable:
                raise
            error, text = failure, str(failure)
        if time.monotonic() > deadline_s:
            raise error or IllegalRequest(
                f"{node_id} is no member of {broker_set} yet: {text}. The leader goes on with it: "
                "the same command again shows how far it is"
            )
        if text != said and time.monotonic() - said_s > (_SAY_S if sys.stderr.isatty() else 0.0):
            said_s, said = time.monotonic(), text
            output.note(f"{node_id}: {text}")
        if error is not None:
            # An answer takes a second by itself; an error comes at once, such as in an election.
            time.sleep(_AGAIN_S)


def _joining_text(joining: FollowerStatus) -> str:
    if not joining.is_connected:
        return f"not connected: it has to run at {joining.address}, with --raft-join yes"
    return f"copies the log, {counted(joining.behind, 'entry', 'entries')} behind"


@click.command("remove-member", short_help="Remove a node from its broker set.")
@click.argument("node_id", metavar="NODE")
@with_set
@with_yes
@with_brokers()
def remove_member(brokers: Brokers, node_id: str, broker_set: str, *, is_sure: bool) -> None:
    """Remove a node from its broker set, or call off that it is added.

    It no longer counts and gets no entries: stop it then. The leader cannot be
    removed: move the leadership first.
    """
    with brokers.admin() as admin:
        name = _one_set(admin.route(), broker_set)
        confirm(f"Remove node {node_id} from broker set {name}?", is_sure=is_sure)
        found = admin.remove_member(node_id, broker_set=name)
    if brokers.as_json:
        output.write_json(output.plain(found))
        return
    names = ", ".join(each.node_id for each in found.members)
    click.echo(f"{node_id} is no member of {name}; there are {names}. It may be stopped.")


@click.command("transfer-leader", short_help="Let another node lead.")
@click.argument("node_id", metavar="[NODE]", default="")
@click.option(
    "--from",
    "from_id",
    metavar="NODE",
    default="",
    help="Only if this node leads: before it is stopped.",
)
@with_set
@with_brokers()
def transfer_leader(brokers: Brokers, node_id: str, from_id: str, broker_set: str) -> None:
    """Let another node lead: NODE, or the one that has most of the log.

    Producers and consumers with retries notice a pause, and no error.
    """
    with brokers.admin() as admin:
        route = admin.route()
        name = _one_set(route, broker_set)
        (leader_id,) = [one.leader_id for one in route.broker_sets if one.name == name]
        if from_id and leader_id != from_id:
            _say_that_it_does_not_lead(brokers, name, from_id, leader_id)
            return
        found = admin.transfer_leadership(node_id, broker_set=name)
    if brokers.as_json:
        output.write_json({"broker_set": name, **output.plain(found)})
        return
    click.echo(f"{found.leader_id} leads {name} now, term {found.term}.")


def _say_that_it_does_not_lead(brokers: Brokers, name: str, node_id: str, leader_id: str) -> None:
    if brokers.as_json:
        output.write_json({"broker_set": name, "leader_id": leader_id})
    else:
        click.echo(f"{node_id} does not lead {name}: {leader_id or 'no node'} does.")


def _one_set(found: RouteResponse, broker_set: str) -> str:
    """The one that is named, or the only one. IllegalRequest."""
    names = [each.name for each in found.broker_sets]
    if not broker_set and len(names) != 1:
        raise IllegalRequest(
            f"the cluster has the broker sets {', '.join(names)}: say which with --set"
        )
    return checked_set(found, broker_set) or names[0]


COMMANDS = (members, add_member, remove_member, transfer_leader)
