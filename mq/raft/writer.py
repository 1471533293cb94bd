"""The leader's writer: proposals become entries of the log, everything that waits in one append.

A full segment, or a change of members, opens a new one. Its checkpoint is the state of exactly that
place, so that no entry may be in flight: the writer waits until all that was written is applied,
which is one round trip, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mq.errors import DiskFull, MqError, SegmentFull
from mq.raft.contracts import Limits, StateMachine
from mq.raft.membership import Membership, checkpoint_entry
from mq.raft.proposals import Proposal, Proposals
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind

_GATHER_BYTES = 64 << 10
# A round that takes longer than this is not waited for.
_GATHER_S = 0.01


class Writer:
    """What it hands out, with `checkpoint` and `take`, comes back to `append` before it is asked
    again.
    """

    def __init__(
        self,
        log: CommitLog,
        machine: StateMachine,
        proposals: Proposals,
        membership: Membership,
        now_ms: Callable[[], int],
        limits: Limits,
    ) -> None:
        self.is_roll_due = False
        self._log = log
        self._machine = machine
        self._proposals = proposals
        self._membership = membership
        self._now_ms = now_ms
        self._limits = limits
        self._taken: Sequence[Proposal] = ()
        self._taken_s = 0.0

    @property
    def has_work(self) -> bool:
        return self._proposals.has_queued or self.is_roll_due

    @property
    def is_settled(self) -> bool:
        """Everything in the log is applied."""
        return self._machine.applied_index == self._log.last_index

    def is_gathering(self, *, is_round_open: bool, now_s: float) -> bool:
        """While small entries are in flight to the followers, more of them gather for one append,
        one frame and one sync; large ones go at once.
        """
        is_small = self._proposals.queued_bytes < _GATHER_BYTES
        return is_round_open and is_small and now_s - self._taken_s < _GATHER_S

    def checkpoint(self, term: int) -> NewEntry | None:
        """Opens a new segment, when that is due and possible."""
        if not self.is_roll_due or not self.is_settled:
            return None
        membership = self._membership
        return checkpoint_entry(
            self._machine.checkpoint_payload(),
            membership.changes.members_after(membership.members),
            membership.restorations,
            term=term,
            stored_at_ms=self._now_ms(),
        )

    def take(self, term: int, now_s: float) -> Sequence[NewEntry]:
        """Entries of what waits, as far as it may be written now. DiskFull: the state machine takes
        no more.
        """
        self._taken_s = now_s
        if self.is_roll_due or not self._proposals.has_queued:
            return ()
        self._machine.check_writable()
        self._taken = self._proposals.take(self._limits.append_bytes_max)
        return self._entries(self._taken, term)

    def append(self, entries: Sequence[NewEntry]) -> None:
        """Writes what was handed out, or the no-op of a new leader. DiskFull: some of it may be
        written, the rest waits.
        """
        taken, self._taken = self._taken, ()
        kind, term, _, payload = entries[0]
        if kind == Kind.CHECKPOINT:
            ref = self._log.roll(entries[0])
            self.is_roll_due = False
            self._membership.changes.written(ref.raft_index, term)
        elif not taken:
            self._log.append([NewEntry(kind, term, self._now_ms(), payload)])
        else:
            try:
                self._append(taken, entries)
            except SegmentFull:
                self._append_what_fits(len(taken), term)
                self.is_roll_due = True

    def _append_what_fits(self, count: int, term: int) -> None:
        for _ in range(count):
            taken = self._proposals.take(0)
            try:
                self._append(taken, self._entries(taken, term))
            except SegmentFull:
                return

    def _entries(self, proposals: Sequence[Proposal], term: int) -> list[NewEntry]:
        now_ms = self._now_ms()
        return [NewEntry(each.kind, term, now_ms, each.payload) for each in proposals]

    def _append(self, proposals: Sequence[Proposal], entries: Sequence[NewEntry]) -> None:
        """Whatever comes of it, no proposal is lost: written, or back in the queue, or, when the
        log has failed, among those whose outcome is unknown.
        """
        try:
            refs = self._log.append(entries)
        except (DiskFull, SegmentFull):
            self._proposals.put_back(proposals)
            raise
        except MqError:
            term = entries[0].term
            for raft_index, proposal in enumerate(proposals, start=self._log.last_index + 1):
                self._proposals.appended(proposal, raft_index, term)
            raise
        for ref, proposal in zip(refs, proposals, strict=True):
            self._proposals.appended(proposal, ref.raft_index, ref.term)
        for ref, proposal in zip(refs, proposals, strict=True):
            self._machine.appended(ref, proposal.context)
