"""The nodes of a running cluster as they are seen from outside, for commands that look at them.

Each node is asked for itself, at the address that the others know, all at once. One that does not
answer is described as such and does not keep a command from seeing the rest. Names of nodes are
unique in their broker set only.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import click

from mq.cli.options import trouble_at
from mq.cli.tables import Column, counted
from mq.errors import IllegalRequest, MqError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import BrokerStatusResponse
    from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse

# Each has a connection of its own, and brokers are few.
_ASKED_AT_ONCE = 16

with_set = click.option("--set", "broker_set", metavar="SET", default="", help="The broker set.")


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
    def place(self) -> str:
        """Unique in the cluster."""
        return f"{self.broker_set}/{self.node_id}"

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
            return "knows of no leader"
        if not self.status.is_ready:
            behind = self.status.last_index - self.status.applied_index
            return f"not ready: {counted(behind, 'entry', 'entries')} to apply"
        if not self.status.is_voter:
            return "does not vote: it is no member, or has to catch up"
        return _damage(self.status)


def _damage(status: BrokerStatusResponse) -> str:
    """Returns the open damage of the disk in words; empty when there is none."""
    if not status.open_damages:
        return ""
    text = f"{counted(status.open_damages, 'place')} on the disk damaged"
    found = next((one for one in status.damages if not one.mended_at_ms), None)
    if found is None:
        return text
    lost = "messages are lost: " if found.is_lost else ""
    affected = f" ({lost}{found.affected})" if found.affected else ""
    return f"{text}: {found.kind} file {found.file} at byte {found.position}{affected}"


def look(admin: Admin, found: RouteResponse, broker_set: str = "") -> list[Seen]:
    """Every node that is known, of this set or of all."""
    places = [
        (each, node)
        for each in found.broker_sets
        for node in each.nodes
        if broker_set in ("", each.name)
    ]
    with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(places) or 1)) as pool:
        return list(pool.map(lambda place: _seen(admin, *place), places))


def _seen(admin: Admin, broker_set: BrokerSet, node: NodeRoute) -> Seen:
    status, trouble = None, ""
    if not node.address:
        trouble = "its address is not known: it is down, or was never up"
    elif not (trouble := trouble_at(node.address)):
        try:
            status = admin.broker_status(node.address)
        except MqError as error:
            trouble = "does not answer" if isinstance(error, Unreachable) else str(error)
    is_leader = node.node_id == broker_set.leader_id
    return Seen(broker_set.name, node.node_id, node.address, node.zone, is_leader, status, trouble)


def leaders(nodes: Sequence[Seen]) -> dict[str, BrokerStatusResponse]:
    """The status of each node that says it leads, by the name of its set."""
    return {each.broker_set: each.status for each in nodes if each.status and each.role == "leader"}


class Leadership(NamedTuple):
    """The leader of one broker set."""

    name: str
    # By the word of its nodes; empty: none knows of one.
    leader_id: str
    # Why there is none, in words; empty when there is one.
    problem: str


def leadership(found: RouteResponse, nodes: Sequence[Seen]) -> list[Leadership]:
    """The leader of each set, by the nodes' own word and not by the route: its sender may know
    less, or believe in a leader that is gone.
    """
    return [
        _leadership(each.name, [one for one in nodes if one.broker_set == each.name])
        for each in found.broker_sets
    ]


def _leadership(name: str, nodes: Sequence[Seen]) -> Leadership:
    leading = [one.node_id for one in nodes if one.role == "leader"]
    named = [one.status.leader_id for one in nodes if one.status and one.status.leader_id]
    if leading or named:
        return Leadership(name, (*leading, *named)[0], "")
    up = [one.node_id for one in nodes if one.status]
    if not up:
        return Leadership(name, "", f"{name}: none of its {counted(len(nodes), 'node')} answers")
    needed = len(nodes) // 2 + 1
    why = f"a leader needs {needed}" if len(up) < needed else "none is elected yet"
    state = f"{len(up)} of {counted(len(nodes), 'node')} up ({', '.join(up)})"
    return Leadership(name, "", f"{name} has no leader: {state}, {why}")


def behind(nodes: Sequence[Seen]) -> dict[tuple[str, str], int]:
    """Entries that a node does not have, by set and node, as far as a leader says so."""
    return {
        (broker_set, one.node_id): one.behind
        for broker_set, status in leaders(nodes).items()
        for one in status.followers
    }


def checked_set(found: RouteResponse, broker_set: str) -> str:
    """Raises IllegalRequest if the cluster has no such set; an empty name is none."""
    names = [each.name for each in found.broker_sets]
    if broker_set and broker_set not in names:
        raise IllegalRequest(
            f"there is no broker set {broker_set!r}: the cluster has {', '.join(names)}"
        )
    return broker_set


def address_of(found: RouteResponse, node_id: str | None, broker_set: str = "") -> str:
    """The address of a node; without a name, of the leader of the first set. IllegalRequest."""
    sets = [each for each in found.broker_sets if broker_set in ("", each.name)]
    if node_id is None:
        led = [each for each in sets if each.leader_id] or sets
        node_id = next((each.leader_id or each.nodes[0].node_id for each in led if each.nodes), "")
        sets = led[:1]
    known = {
        each.name: node.address for each in sets for node in each.nodes if node.node_id == node_id
    }
    if len(known) > 1:
        raise IllegalRequest(f"node {node_id} is in {', '.join(known)}: say which with --set")
    if not any(known.values()):
        names = ", ".join(node.node_id for each in sets for node in each.nodes)
        raise IllegalRequest(f"there is no node {node_id!r} with a known address; known: {names}")
    return next(iter(known.values()))


def set_column(names: Sequence[str]) -> list[Column]:
    """Only where there are several."""
    return [Column("set", names, "left")] if len(set(names)) > 1 else []
