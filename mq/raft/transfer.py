"""Leadership that an operator moves to another node, while this one goes on as a follower.

    begin      nothing changes while the other node is behind
    -> held    it is close: the pen rests, what is proposed waits, what was written is applied
    -> asked   it has all of the log: it stands for election, asked again at each heartbeat
    -> over    it leads, and who waits here is sent there; or it did not, and the pen goes on

Because nothing is on its way when the other node stands, every proposal ends in a known way: what
was written is committed, what waited was not written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mq.errors import IllegalMembership
from mq.raft.changes import is_close
from mq.raft.engine import Engine

# A node that is not there for so long is not waited for, however long others might be.
_ABSENT_S = 2.0
# How long proposals may wait for the other node to take over: less than a producer does.
_HOLD_S = 1.5


@dataclass(slots=True)
class _Wish:
    node_id: str  # empty: whoever has most of the log
    ends_s: float
    absent_s: float  # when it is given up, if the node is not there
    held_until_s: float | None = None
    asked_s: float = -math.inf


class Transfer:
    """On the leader; one at a time."""

    def __init__(self) -> None:
        self._wish: _Wish | None = None
        # Why the last one came to nothing.
        self.failure = ""

    def begin(
        self, engine: Engine, members: Mapping[str, str], node_id: str, now_s: float, wait_s: float
    ) -> None:
        """To this node, or to the one that has most; it may take `wait_s` to catch up before. The
        same wish again changes nothing. IllegalMembership.
        """
        if node_id and node_id not in members:
            raise IllegalMembership(f"{node_id} is no member: there are {', '.join(members)}")
        if not engine.others:
            raise IllegalMembership("this node is alone in its set: nobody else can lead")
        if self._wish is not None and self._wish.node_id != node_id:
            goal = self._wish.node_id or "another node"
            raise IllegalMembership(f"the leadership is on its way to {goal}: wait for that")
        self.failure = ""
        self._wish = self._wish or _Wish(node_id, now_s + wait_s, now_s + _ABSENT_S)

    @property
    def is_under_way(self) -> bool:
        return self._wish is not None

    @property
    def holds_pen(self) -> bool:
        """Nothing is to be written now."""
        return self._wish is not None and self._wish.held_until_s is not None

    def advance(self, engine: Engine, now_s: float, *, is_settled: bool) -> None:
        """`is_settled`: everything that was written is applied."""
        wish = self._wish
        if wish is None:
            return
        last_index = engine.journal.log.last_index
        goal, match_index = _goal(engine, wish.node_id)
        if wish.held_until_s is None:
            if is_close(match_index, last_index):
                wish.held_until_s = now_s + _HOLD_S
            elif now_s >= (wish.ends_s if goal else min(wish.absent_s, wish.ends_s)):
                self._give_up(_distance(goal or wish.node_id, match_index, last_index))
            return
        if now_s >= wish.held_until_s:
            self._give_up(f"{goal or wish.node_id or 'nobody'} did not take over")
            return
        is_due = is_settled and now_s - wish.asked_s >= engine.timing.heartbeat_s
        if is_due and engine.transfer_leadership(wish.node_id):
            wish.asked_s = now_s

    def end(self) -> None:
        """This node does not lead any more."""
        self._wish = None

    def _give_up(self, reason: str) -> None:
        self._wish, self.failure = None, reason


def _goal(engine: Engine, node_id: str) -> tuple[str, int]:
    """Who is to lead, and up to where that node has the log; nobody when none can right now."""
    able = [
        (engine.match_index(peer.id), str(peer.id))
        for peer in engine.others
        if node_id in ("", peer.id) and engine.is_healthy(peer.id)
    ]
    match_index, found = max(able, default=(0, ""))
    return found, match_index


def _distance(node_id: str, match_index: int, last_index: int) -> str:
    if not match_index:
        return f"{node_id or 'no other node'} is not there, or does not vote yet"
    return f"{node_id} is {last_index - match_index} entries behind"
