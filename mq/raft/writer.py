"""The leader's pen: proposals become entries of the log, everything that waits in one append.

A full segment, or a change of members, opens a new one. Its checkpoint is the state of exactly that
place, so that nothing may be on its way: the writer waits until all that was written is applied,
which is one round trip, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mq.errors import DiskFull, MqError, SegmentFull
from mq.raft.contracts import Limits, StateMachine
from mq.raft.membership import Membership, checkpoint_entry
from mq.raft.proposals import Proposal, Proposals
from mq.store.commitlog import CommitLog, NewEntry

_GATHER_BYTES = 64 << 10
# A round that takes longer than this is not waited for.
_GATHER_S = 0.01


class Writer:
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
        self._wrote_s = 0.0

    @property
    def is_settled(self) -> bool:
        """Everything in the log is applied."""
        return self._machine.applied_index == self._log.last_index

    def is_gathering(self, *, is_round_open: bool, now_s: float) -> bool:
        """While small entries are on their way to the others, more of them gather for one append,
        one frame and one sync; large ones go at once.
        """
        is_small = self._proposals.queued_bytes < _GATHER_BYTES
        return is_round_open and is_small and now_s - self._wrote_s < _GATHER_S

    def write(self, term: int, now_s: float) -> DiskFull | None:
        """What waits, as far as it may be written now. The error, when the disk is full."""
        self._wrote_s = now_s
        try:
            if self.is_roll_due and not self.is_settled:
                return None
            if self.is_roll_due:
                self._roll(term)
            if self._proposals.has_queued:
                self._machine.check_writable()
                self._write_queued(term)
        except DiskFull as error:
            self._proposals.refuse_queued(error)
            return error
        return None

    def _write_queued(self, term: int) -> None:
        taken = self._proposals.take(self._limits.append_bytes_max)
        try:
            self._append(taken, term)
        except SegmentFull:
            self._write_what_fits(len(taken), term)
            self.is_roll_due = True

    def _write_what_fits(self, count: int, term: int) -> None:
        for _ in range(count):
            try:
                self._append(self._proposals.take(0), term)
            except SegmentFull:
                return

    def _append(self, proposals: Sequence[Proposal], term: int) -> None:
        """Whatever comes of it, no proposal is lost: written, or back in the queue, or, when the
        log has failed, among those of which nobody knows.
        """
        now_ms = self._now_ms()
        entries = [NewEntry(each.kind, term, now_ms, each.payload) for each in proposals]
        try:
            refs = self._log.append(entries)
        except (DiskFull, SegmentFull):
            self._proposals.put_back(proposals)
            raise
        except MqError:
            for raft_index, proposal in enumerate(proposals, start=self._log.last_index + 1):
                self._proposals.appended(proposal, raft_index, term)
            raise
        for ref, proposal in zip(refs, proposals, strict=True):
            self._proposals.appended(proposal, ref.raft_index, ref.term)
        for ref, proposal in zip(refs, proposals, strict=True):
            self._machine.appended(ref, proposal.context)

    def _roll(self, term: int) -> None:
        state = self._machine.checkpoint_payload()
        membership = self._membership
        members = membership.changes.members_after(membership.members)
        entry = checkpoint_entry(
            state, members, membership.restorations, term=term, stored_at_ms=self._now_ms()
        )
        ref = self._log.roll(entry)
        self.is_roll_due = False
        membership.changes.written(ref.raft_index, term)
