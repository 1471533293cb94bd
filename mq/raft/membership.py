"""The members of the broker set: those in the checkpoint that opens the last segment.

A change of members is a new segment: its checkpoint has the new ones, and they count from the
moment it is in the log. So the members follow from one read, at start and after a truncation, and
they are copied wherever the log is.

`Changes` is a change on the leader, one at a time, from the request to its outcome:

    add      learning: the node gets the log, but is not counted
             -> written: when it is close to the end, a checkpoint opens a segment with it
    remove   -> written, as soon as everything before is applied

One node at a time, and only when the one before is applied: then any two majorities, of the old and
of the new members, have a node in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mq.errors import IllegalMembership, MqError, OutcomeUnknown
from mq.raft.contracts import Committed, Links, Outcome
from mq.raft.handshake import Past, Restored
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind
from mq.wire.fields import only
from mq.wire.v1.log_pb2 import Member, Restoration
from mq.wire.v1.raft_pb2 import CheckpointMembers, Roster

# Of a checkpoint. The others are the state machine's.
_OWN_FIELDS = frozenset(CheckpointMembers.DESCRIPTOR.fields_by_number)
# A node that lacks no more entries than this has them in a moment.
_CLOSE_ENTRIES = 64


def read_members(log: CommitLog, checkpoint_index: int | None = None) -> dict[str, str]:
    """Node id -> host:port, as of a checkpoint, or of the end of the log."""
    return _by_node(_opening(log, checkpoint_index or log.last_checkpoint_index))


def read_restorations(log: CommitLog) -> tuple[Restored, ...]:
    """As of the end of the log."""
    return _restorations(_opening(log, log.last_checkpoint_index))


def _opening(log: CommitLog, checkpoint_index: int) -> CheckpointMembers:
    payload = log.entry(checkpoint_index).payload
    return CheckpointMembers.FromString(only(payload, _OWN_FIELDS))


def _by_node(checkpoint: CheckpointMembers) -> dict[str, str]:
    return {member.node_id: member.address for member in checkpoint.members}


def _restorations(checkpoint: CheckpointMembers) -> tuple[Restored, ...]:
    return tuple(Restored(each.raft_index, each.lineage) for each in checkpoint.restorations)


def checkpoint_entry(
    state: Sequence[bytes],
    members: Mapping[str, str],
    restorations: Sequence[Restored] = (),
    *,
    term: int,
    stored_at_ms: int,
) -> NewEntry:
    """Opens a segment. Protobuf joins the parts: they are fields of one message."""
    ours = CheckpointMembers(
        members=_messages(members),
        restorations=[Restoration(**each._asdict()) for each in restorations],
    )
    payload = [*state, ours.SerializeToString()]
    return NewEntry(Kind.CHECKPOINT, term, stored_at_ms, payload)


def _messages(members: Mapping[str, str]) -> list[Member]:
    return [Member(node_id=node_id, address=members[node_id]) for node_id in sorted(members)]


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
        """Returns True if the node that is being added has nearly all of the log now."""
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
    """Returns True if a node that has the log up to `match_index` has the rest in a moment."""
    return match_index > 0 and last_index - match_index <= _CLOSE_ENTRIES


class Membership:
    """Of one node; keeps its links to the members, to those that others tell of, and to one that is
    being added.
    """

    def __init__(
        self, node_id: str, log: CommitLog, links: Links, contacts: Mapping[str, str]
    ) -> None:
        """`contacts` are known before there is a log, and count for one that has no members in it:
        it was written by a store alone.
        """
        self.members = self._contacts = dict(contacts)
        self.restorations: tuple[Restored, ...] = ()
        self.changes = Changes()
        self._node_id = node_id
        self._log = log
        self._links = links
        self._checkpoint_index = 0
        # Before the last checkpoint, while that one is not known to be committed: one of them may
        # be a leader that takes it back.
        self._former: dict[str, str] = {}
        self._told = Roster()
        # The last checkpoint that this node wrote, and its raft index.
        self._written = 0, CheckpointMembers()
        # The log may name other members than `members`, or commit its last checkpoint.
        self.is_stale = True

    def refresh(self, commit_index: int) -> bool:
        """Returns True if the log names other members than before."""
        index = self._log.last_checkpoint_index
        if index == self._checkpoint_index:
            if self._former and commit_index >= index:
                self._former = {}
                self.set_peers()
            self.is_stale = bool(self._former)
            return False
        known = self._checkpoint_index, self.members
        self._checkpoint_index, self.members = index, self.read()
        self._former = self._members_before(index, *known) if commit_index < index else {}
        before = known[1]
        self.is_stale = bool(self._former)
        self.set_peers()
        return before != self.members

    def wrote(self, raft_index: int, checkpoint: NewEntry) -> None:
        """This node has opened a segment with this entry, which need not be read again."""
        self._written = raft_index, CheckpointMembers.FromString(bytes(checkpoint.payload[-1]))
        self.is_stale = True

    def forget(self) -> None:
        """The log is not the one that was read: it was truncated, or starts over."""
        self._checkpoint_index = 0
        self._written = 0, CheckpointMembers()
        self.is_stale = True

    def read(self) -> dict[str, str]:
        """Of the end of the log."""
        index = self._log.last_checkpoint_index
        written_index, checkpoint = self._written
        if index != written_index:
            checkpoint = _opening(self._log, index)
        self.restorations = _restorations(checkpoint)
        return _by_node(checkpoint) or self._contacts

    def past(self) -> Past:
        """Tells this log from one with other restorations."""
        log = self._log
        return Past(log.last_index, self.restorations) if log.last_index else Past()

    def _members_before(
        self, checkpoint_index: int, known_index: int, known: dict[str, str]
    ) -> dict[str, str]:
        """A checkpoint is written when all before it is committed: one step back is enough. What is
        `known` of it is not read again: it may be damaged by now, and just being mended.
        """
        older = [index for index in self._log.checkpoint_indexes if index < checkpoint_index]
        if not older:
            return {}
        return known if older[-1] == known_index else read_members(self._log, older[-1])

    def roster(self) -> Roster:
        return Roster(checkpoint_index=self._checkpoint_index, members=_messages(self.members))

    def receive_roster(self, told: Roster) -> bool:
        """Returns True if it says, from a later log than ours, that this node is no member."""
        if told.checkpoint_index <= max(self._checkpoint_index, self._told.checkpoint_index):
            return False
        self._told = told
        self.set_peers()
        return all(member.node_id != self._node_id for member in told.members)

    def set_peers(self) -> None:
        addresses = self._former | self.members
        if self._told.checkpoint_index > self._checkpoint_index:
            addresses |= {member.node_id: member.address for member in self._told.members}
        addresses |= self.changes.learner_address()
        addresses.pop(self._node_id, None)
        self._links.set_peers(addresses)
