"""Leadership that an operator moves to another node, while this one goes on as a follower.

    begin      nothing changes while the other node is behind
    -> held    it is close: writes are blocked, proposals wait, what was written is applied
    -> asked   it has all of the log: it stands for election, asked again at each heartbeat
    -> over    it leads, and waiting proposers are sent there; or it did not, and writes go on

Because no entry is in flight when the other node stands, every proposal ends in a known way: what
was written is committed, what waited was not written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mq.errors import IllegalMembership
from mq.raft.core import Core
from mq.raft.membership import is_close

# An absent node is not waited for longer than this; one that is behind may have more time.
_ABSENT_S = 2.0
# How long proposals may wait for the other node to take over: less than a producer does.
_HOLD_S = 1.5


@dataclass(slots=True)
class TransferRequest:
    node_id: str  # empty: the node that has most of the log
    ends_s: float
    absent_s: float  # when it is given up, if the node is not there
    held_until_s: float | None = None
    asked_s: float = -math.inf


class Transfer:
    """On the leader; one at a time."""

    def __init__(self) -> None:
        self.request: TransferRequest | None = None  # the transfer that is under way
        self.failure = ""  # the reason why the last one was given up

    def begin(
        self, core: Core, members: Mapping[str, str], node_id: str, now_s: float, wait_s: float
    ) -> None:
        """To this node, or to the one that has most; it may take `wait_s` to catch up before. The
        same request again changes nothing. IllegalMembership.
        """
        if node_id and node_id not in members:
            raise IllegalMembership(f"{node_id} is no member: there are {', '.join(members)}")
        if not core.other_ids:
            raise IllegalMembership("this node is alone in its set: no other can lead")
        if self.request is not None and self.request.node_id != node_id:
            goal = self.request.node_id or "another node"
            raise IllegalMembership(f"the leadership is on its way to {goal}: wait for that")
        self.failure = ""
        self.request = self.request or TransferRequest(node_id, now_s + wait_s, now_s + _ABSENT_S)

    @property
    def is_under_way(self) -> bool:
        return self.request is not None

    @property
    def blocks_writes(self) -> bool:
        """Proposals have to wait."""
        return self.request is not None and self.request.held_until_s is not None

    def advance(self, core: Core, now_s: float, *, is_settled: bool) -> bool:
        """Returns True when the node has to be asked now. `is_settled`: everything that was written
        is applied.
        """
        request = self.request
        if request is None:
            return False
        last_index = core.log.last_index
        goal, match_index = _goal(core, request.node_id)
        if request.held_until_s is None:
            if is_close(match_index, last_index):
                request.held_until_s = now_s + _HOLD_S
            elif now_s >= (request.ends_s if goal else min(request.absent_s, request.ends_s)):
                self._give_up(_distance(goal or request.node_id, match_index, last_index))
            return False
        if now_s >= request.held_until_s:
            self._give_up(f"{goal or request.node_id or 'no other node'} did not take over")
            return False
        return is_settled and now_s - request.asked_s >= core.timing.heartbeat_s

    def end(self) -> None:
        """This node has stopped leading."""
        self.request = None

    def _give_up(self, reason: str) -> None:
        self.request, self.failure = None, reason


def _goal(core: Core, node_id: str) -> tuple[str, int]:
    """The node that is to lead, and up to where it has the log; empty when none can right now."""
    able = [
        (core.match_index(peer_id), peer_id)
        for peer_id in core.other_ids
        if node_id in ("", peer_id) and core.is_healthy(peer_id)
    ]
    match_index, found = max(able, default=(0, ""))
    return found, match_index


def _distance(node_id: str, match_index: int, last_index: int) -> str:
    if not match_index:
        return f"{node_id or 'no other node'} is not there, or does not vote yet"
    return f"{node_id} is {last_index - match_index} entries behind"
