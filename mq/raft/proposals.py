"""Entries that were proposed to the leader, from the queue over the log to their outcome.

`Proposals` is bounded in number and bytes: more are refused with FlowControl. Each proposal ends
exactly once: it is committed and applied here, it was refused before anything was written, or its
outcome is unknown, because this node stopped leading while the entry was in flight.

`Writer` makes entries of them, everything that waits in one append. A full segment, or a change of
members, opens a new one. Its checkpoint is the state of exactly that place, so that no entry may be
in flight: the writer waits until all that was written is applied, which is one round trip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mq.errors import DiskFull, FlowControl, MqError, OutcomeUnknown, SegmentFull
from mq.logging import get_logger
from mq.raft.contracts import Committed, Limits, Outcome, StateMachine
from mq.raft.membership import Membership, checkpoint_entry
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind

log = get_logger(__name__)

_GATHER_BYTES = 64 << 10
# A round that takes longer than this is not waited for.
_GATHER_S = 0.01


class Proposal(NamedTuple):
    kind: Kind
    payload: Sequence[bytes | memoryview]
    size: int
    done: Callable[[Outcome], None]
    # Handed to the state machine when the entry is in the log, so that it need not read it again.
    context: Any = ()


class Proposals:
    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.queued: deque[Proposal] = deque()
        self.queued_bytes = 0
        self._in_flight: deque[tuple[Committed, Proposal]] = deque()
        self._ended: list[tuple[Proposal, Outcome]] = []

    def __len__(self) -> int:
        """The number of proposals without an outcome."""
        return len(self.queued) + len(self._in_flight)

    def put(self, proposal: Proposal) -> None:
        """FlowControl: too much waits already."""
        size, count = proposal.size, len(self.queued) + len(self._in_flight)
        if count >= self._count_max or self._bytes + size > self._bytes_max:
            raise FlowControl(
                f"{count} entries of {self._bytes} bytes wait to be replicated, "
                f"at most {self._count_max} of {self._bytes_max} bytes may: try again in a moment"
            )
        self.queued.append(proposal)
        self._bytes += size
        self.queued_bytes += size

    def take(self, bytes_max: int) -> list[Proposal]:
        """The next ones to write: at least one, then up to `bytes_max` bytes. Give them back with
        `appended` or `put_back`.
        """
        taken: list[Proposal] = []
        size, queued = 0, self.queued
        while queued and (not taken or size + queued[0].size <= bytes_max):
            taken.append(queued.popleft())
            size += taken[-1].size
        self.queued_bytes -= size
        return taken

    def put_back(self, proposals: Sequence[Proposal]) -> None:
        self.queued.extendleft(reversed(proposals))
        self.queued_bytes += sum(proposal.size for proposal in proposals)

    def appended(self, proposals: Sequence[Proposal], first_index: int, term: int) -> None:
        """They are in the log, or may be, from this index on."""
        for raft_index, proposal in enumerate(proposals, start=first_index):
            self._in_flight.append((Committed(raft_index, term), proposal))

    def applied(self, raft_index: int) -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0][0].raft_index <= raft_index:
            committed, proposal = in_flight.popleft()
            self._end(proposal, committed)

    def refuse_queued(self, error: MqError) -> None:
        """They were not written."""
        queued, self.queued = self.queued, deque()
        self.queued_bytes = 0
        for proposal in queued:
            self._end(proposal, error)

    def end_leadership(self, error: MqError) -> None:
        """Queued proposals are refused with this error; the outcome of the rest is unknown."""
        in_flight, self._in_flight = self._in_flight, deque()
        for (raft_index, term), proposal in in_flight:
            unknown = OutcomeUnknown(
                f"this node stopped leading before entry {raft_index} of term {term} was "
                "committed: it may or may not be in the log"
            )
            self._end(proposal, unknown)
        self.refuse_queued(error)

    def _end(self, proposal: Proposal, outcome: Outcome) -> None:
        self._bytes -= proposal.size
        self._ended.append((proposal, outcome))

    def tell(self) -> None:
        """Tells proposers their outcomes: when the log and the other nodes wait for nothing, since
        each of them may have many callers to answer.
        """
        while self._ended:
            ended, self._ended = self._ended, []
            for proposal, outcome in ended:
                try:
                    proposal.done(outcome)
                except Exception:
                    # A mistake of a proposer is none of the log's.
                    log.exception("a proposer failed on its outcome")


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
        self._append_bytes_max = limits.append_bytes_max
        self._written_s = 0.0

    @property
    def is_settled(self) -> bool:
        """Everything in the log is applied."""
        return self._machine.applied_index == self._log.last_index

    def is_gathering(self, now_s: float) -> bool:
        """While small entries are in flight to the followers, more of them gather for one append,
        one frame and one sync; large ones go at once.
        """
        is_small = self._proposals.queued_bytes < _GATHER_BYTES
        return is_small and now_s - self._written_s < _GATHER_S

    def write(self, term: int, now_s: float) -> None:
        """Writes queued proposals, and the checkpoint of a new segment before them, as far as they
        may be written now. DiskFull: some of them may be written, the rest waits.
        """
        self._written_s = now_s
        if self.is_roll_due:
            if not self.is_settled:
                return
            self._roll(term)
        if not self._proposals.queued:
            return
        self._machine.check_writable()
        taken = self._proposals.take(self._append_bytes_max)
        try:
            self._append(taken, term)
        except SegmentFull:
            self.is_roll_due = True
            self._append_what_fits(len(taken), term)

    def _roll(self, term: int) -> None:
        membership, changes = self._membership, self._membership.changes
        entry = checkpoint_entry(
            self._machine.checkpoint_payload(),
            changes.members_after(membership.members),
            membership.restorations,
            term=term,
            stored_at_ms=self._now_ms(),
        )
        ref = self._log.roll(entry)
        self.is_roll_due = False
        membership.wrote(ref.raft_index, entry)
        changes.written(ref.raft_index, term)

    def _append_what_fits(self, count: int, term: int) -> None:
        for _ in range(count):
            try:
                self._append(self._proposals.take(0), term)
            except SegmentFull:
                return

    def _append(self, proposals: Sequence[Proposal], term: int) -> None:
        """No proposal is lost: each is written, or back in the queue, or, when the log has failed,
        among those whose outcome is unknown.
        """
        now_ms = self._now_ms()
        entries = [NewEntry(kind, term, now_ms, payload) for kind, payload, *_ in proposals]
        try:
            refs = self._log.append(entries)
        except (DiskFull, SegmentFull):
            self._proposals.put_back(proposals)
            raise
        except MqError:
            self._proposals.appended(proposals, self._log.last_index + 1, term)
            raise
        self._proposals.appended(proposals, refs[0].raft_index, term)
        for ref, proposal in zip(refs, proposals, strict=True):
            self._machine.appended(ref, proposal.context)
