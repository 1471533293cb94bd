"""The order in which the nodes of a broker set may be restarted, and the reasons not to, as `mq
cluster restart-plan` has it: one node at a time, only while all others are fit, the leader last and
after its leadership has moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mq.console.sampler import Node

# In entries. Under load a fit node is always a little behind.
BEHIND_MAX = 1_000


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """With troubles there are no steps."""

    steps: list[str]
    troubles: list[str]
    note: str = ""


def restart_plan(nodes: Sequence[Node]) -> RestartPlan:
    leaders = [one for one in nodes if one.status is not None and one.status.role == "leader"]
    troubles = [f"{one.name}: {reason}" for one in nodes if (reason := _unfit(one, leaders))]
    if not troubles and len(leaders) != 1:
        troubles.append("no node leads" if not leaders else "two nodes say that they lead")
    if troubles:
        return RestartPlan([], troubles)
    (leader,) = leaders
    followers = sorted(one.name for one in nodes if one is not leader)
    steps = [f"Restart {name}, a follower: clients are not affected" for name in followers]
    if followers:
        steps.append(f"Move the leadership away from {leader.name}")
    after = "a follower now" if followers else "the only node: clients wait"
    steps.append(f"Restart {leader.name}, {after}")
    note = "" if len(nodes) > 2 else "Clients wait while a node of this set restarts."
    return RestartPlan(steps, [], note)


def _unfit(node: Node, leaders: Sequence[Node]) -> str:
    status = node.status
    if status is None:
        return node.error or "it does not say how it is"
    if not status.leader_id:
        return "knows of no leader"
    if not status.is_voter:
        return "does not vote: it has to catch up"
    waiting = status.last_index - status.applied_index
    if waiting > BEHIND_MAX:
        return f"{waiting:,} entries to apply"
    for leader in leaders:
        told = leader.status.followers if leader.status is not None else ()
        for one in told:
            if one.node_id == node.name and one.behind > BEHIND_MAX:
                return f"{one.behind:,} entries behind"
            if one.node_id == node.name and not one.is_voter:
                return "does not answer its leader"
    return ""
