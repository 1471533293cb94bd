"""The order in which the nodes of a broker set are restarted, and the reasons not to: pure
decisions on the status of the nodes.

A set serves as long as a majority of its nodes is up and has caught up. So one node restarts at a
time, only when all others are fit, and the leader comes last, after its leadership was moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from mq.cli.nodes import Seen
from mq.cli.tables import counted

if TYPE_CHECKING:
    from mq.wire.v1.admin_pb2 import FollowerStatus

# In entries. Under load a fit node is always a little behind.
BEHIND_MAX = 1000


class Step(NamedTuple):
    action: Literal["restart", "transfer"]
    broker_set: str
    node_id: str
    address: str
    why: str


class Plan(NamedTuple):
    """For one set. With troubles there are no steps."""

    broker_set: str
    steps: list[Step]
    troubles: list[str]
    notes: list[str]


def plan(broker_set: str, nodes: Sequence[Seen]) -> Plan:
    troubles = unfit(nodes)
    if troubles:
        return Plan(broker_set, [], troubles, [])
    followers = sorted((each for each in nodes if each.role != "leader"), key=lambda s: s.node_id)
    leading = [each for each in nodes if each.role == "leader"]
    why = "a follower: clients are not affected"
    steps = [Step("restart", broker_set, each.node_id, each.address, why) for each in followers]
    for each in leading:
        if followers:
            why = "the leader, and the others are done: producers go to the next leader first"
            steps.append(Step("transfer", broker_set, each.node_id, each.address, why))
        why = "a follower now" if followers else "the only node"
        steps.append(Step("restart", broker_set, each.node_id, each.address, why))
    notes = []
    if len(nodes) < 3:
        notes.append(
            f"{counted(len(nodes), 'node')} only: clients wait while one restarts; a set of three "
            "goes on without one"
        )
    return Plan(broker_set, steps, [], notes)


def unfit(nodes: Sequence[Seen]) -> list[str]:
    """The reason why no node of the set may be restarted now: nodes that are down or not up to
    date.
    """
    leading = [each for each in nodes if each.role == "leader"]
    told = {
        one.node_id: one
        for each in leading
        for one in (each.status.followers if each.status is not None else ())
    }
    troubles = [
        f"{each.node_id}: {reason}"
        for each in nodes
        if (reason := _unfit(each) or _not_followed(each, told.get(each.node_id)))
    ]
    troubles += [
        f"{each.status.joining.node_id}: it is being added; wait, or remove it"
        for each in leading
        if each.status is not None and each.status.HasField("joining")
    ]
    if not troubles and not leading:
        troubles.append("no node leads")
    elif not troubles and len(leading) > 1:
        troubles.append(f"{' and '.join(each.node_id for each in leading)} lead")
    return troubles


def _unfit(seen: Seen) -> str:
    """By the status of the node itself."""
    status = seen.status
    if status is None or not status.leader_id or not status.is_voter:
        return seen.health or "not ready"
    waiting = status.last_index - status.applied_index
    return f"{counted(waiting, 'entry', 'entries')} to apply" if waiting > BEHIND_MAX else ""


def _not_followed(seen: Seen, told: FollowerStatus | None) -> str:
    """By the status of its leader."""
    if seen.role == "leader" or told is None:
        return ""
    if told.behind > BEHIND_MAX:
        return f"{counted(told.behind, 'entry', 'entries')} behind"
    return "" if told.is_voter else "does not answer its leader"
