"""A change of members on the leader, one at a time, from the request to its outcome.

    add      learning: the node gets the log, but is not counted
             -> written: when it is close to the end, a checkpoint opens a segment with it
    remove   -> written, as soon as everything before is applied

One node at a time, and only when the one before is applied: then any two majorities, of the old and
of the new members, have a node in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mq.errors import IllegalMembership, MqError, OutcomeUnknown
from mq.raft.contracts import Committed, Outcome

# A node that lacks no more than so many entries has them in a moment.
_CLOSE_ENTRIES = 64


@dataclass(slots=True)
class _Change:
    node_id: str
    address: str | None  # None: it goes
    done: Callable[[Outcome], None]
    is_ready: bool  # the next segment has it
    written_index: int | None = None
    term: int = 0


class Changes:
    def __init__(self) -> None:
        # The change that is under way.
        self.current: _Change | None = None

    def begin_add(
        self,
        members: Mapping[str, str],
        node_id: str,
        address: str,
        done: Callable[[Outcome], None],
    ) -> None:
        self.check_idle()
        if node_id in members:
            raise IllegalMembership(f"{node_id} is a member already, at {members[node_id]}")
        self.current = _Change(node_id, address, done, is_ready=False)

    def begin_remove(
        self,
        matches: Mapping[str, int],
        node_id: str,
        leader_id: str,
        last_index: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """`matches` says for each member up to where it has the log."""
        self.check_idle()
        if node_id not in matches:
            raise IllegalMembership(f"{node_id} is no member: there are {', '.join(matches)}")
        if node_id == leader_id:
            raise IllegalMembership(
                f"{node_id} leads and cannot remove itself: move the leadership first"
            )
        left = {member: index for member, index in matches.items() if member != node_id}
        behind = sorted(m for m, index in left.items() if not is_close(index, last_index))
        if len(left) - len(behind) <= len(left) / 2:
            raise IllegalMembership(
                f"{', '.join(behind)} would be needed for a majority without {node_id}, but has "
                "not caught up: wait until it has"
            )
        self.current = _Change(node_id, None, done, is_ready=True)

    @property
    def learner_id(self) -> str | None:
        """The node that is not counted yet."""
        change = self.current
        is_learning = change and change.address is not None and change.written_index is None
        return change.node_id if change and is_learning else None

    def learner_address(self) -> dict[str, str]:
        change = self.current
        return {change.node_id: change.address} if change and change.address is not None else {}

    def follow_learner(self, match_index: int, last_index: int) -> bool:
        """Whether the node that is being added has nearly all of the log now."""
        change = self.current
        if change is None or change.is_ready:
            return False
        change.is_ready = is_close(match_index, last_index)
        return change.is_ready

    @property
    def may_cancel(self) -> bool:
        return self.current is not None and self.current.written_index is None

    def members_after(self, members: Mapping[str, str]) -> dict[str, str]:
        """Of the next segment."""
        change, result = self.current, dict(members)
        if change is None or not change.is_ready or change.written_index is not None:
            return result
        if change.address is None:
            result.pop(change.node_id, None)
        else:
            result[change.node_id] = change.address
        return result

    def written(self, raft_index: int, term: int) -> None:
        """The checkpoint of a new segment is in the log, with `members_after`."""
        change = self.current
        if change is not None and change.is_ready and change.written_index is None:
            change.written_index, change.term = raft_index, term

    def applied(self, raft_index: int) -> None:
        change = self.current
        if change and change.written_index is not None and change.written_index <= raft_index:
            self.current = None
            change.done(Committed(change.written_index, change.term))

    def end(self, error: MqError) -> None:
        """This node has stopped leading, or gives the change up."""
        change, self.current = self.current, None
        if change is None:
            return
        if change.written_index is None:
            change.done(error)
        else:
            change.done(
                OutcomeUnknown(f"this node stopped leading while {change.node_id} came or went")
            )

    def check_idle(self) -> None:
        """IllegalMembership while a change is under way."""
        if self.current is not None:
            raise IllegalMembership(
                f"{self.current.node_id} is being added or removed: one change at a time"
            )


def is_close(match_index: int, last_index: int) -> bool:
    """Whether a node that has the log up to `match_index` has the rest in a moment."""
    return match_index > 0 and last_index - match_index <= _CLOSE_ENTRIES
