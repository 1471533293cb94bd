"""The members of the broker set: those in the checkpoint that opens the last segment.

A change of members is a new segment: its checkpoint has the new ones, and they count from the
moment it is in the log. So the members follow from one read, at start and after a truncation, and
they are copied wherever the log is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mq.raft.changes import Changes
from mq.raft.contracts import Links
from mq.raft.handshake import Past, Restored
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind
from mq.wire.v1.log_pb2 import Member, Restoration
from mq.wire.v1.raft_pb2 import CheckpointMembers, Roster


def read_members(log: CommitLog, checkpoint_index: int | None = None) -> dict[str, str]:
    """Node id -> host:port, as of a checkpoint, or of the end of the log."""
    return _by_node(_opening(log, checkpoint_index or log.last_checkpoint_index))


def read_restorations(log: CommitLog) -> tuple[Restored, ...]:
    """As of the end of the log."""
    return _restorations(_opening(log, log.last_checkpoint_index))


def _opening(log: CommitLog, checkpoint_index: int) -> CheckpointMembers:
    payload = log.entry(checkpoint_index).payload
    return CheckpointMembers.FromString(payload)  # type: ignore[arg-type] # a buffer is fine


def _by_node(checkpoint: CheckpointMembers) -> dict[str, str]:
    return {member.node_id: member.address for member in checkpoint.members}


def _restorations(checkpoint: CheckpointMembers) -> tuple[Restored, ...]:
    return tuple(Restored(each.raft_index, each.lineage) for each in checkpoint.restorations)


def checkpoint_entry(
    state: bytes,
    members: Mapping[str, str],
    restorations: Sequence[Restored] = (),
    *,
    term: int,
    stored_at_ms: int,
) -> NewEntry:
    """Opens a segment. Protobuf joins the two parts: they are fields of one message."""
    ours = CheckpointMembers(
        members=_messages(members),
        restorations=[Restoration(**each._asdict()) for each in restorations],
    )
    payload = [state, ours.SerializeToString()]
    return NewEntry(Kind.CHECKPOINT, term, stored_at_ms, payload)


def _messages(members: Mapping[str, str]) -> list[Member]:
    return [Member(node_id=node_id, address=members[node_id]) for node_id in sorted(members)]


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
        self._checkpoint_index = index
        before, self.members = self.members, self.read()
        self._former = self._members_before(index) if commit_index < index else {}
        self.is_stale = bool(self._former)
        self.set_peers()
        return before != self.members

    def forget(self) -> None:
        """The log is not the one that was read: it was truncated, or starts over."""
        self._checkpoint_index = 0
        self.is_stale = True

    def read(self) -> dict[str, str]:
        """Of the end of the log."""
        checkpoint = _opening(self._log, self._log.last_checkpoint_index)
        self.restorations = _restorations(checkpoint)
        return _by_node(checkpoint) or self._contacts

    def past(self) -> Past:
        """Tells this log from one with other restorations."""
        log = self._log
        return Past(log.last_index, self.restorations) if log.last_index else Past()

    def _members_before(self, checkpoint_index: int) -> dict[str, str]:
        """A checkpoint is written when all before it is committed: one step back is enough."""
        older = [index for index in self._log.checkpoint_indexes if index < checkpoint_index]
        return read_members(self._log, older[-1]) if older else {}

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
