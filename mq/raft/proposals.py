"""Entries that were proposed to the leader, from the queue to their outcome.

Bounded in number and bytes: more are refused with FlowControl. Each proposal ends exactly once: it
is committed and applied here, it was refused before anything was written, or its outcome is
unknown, because this node stopped leading while the entry was in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from mq.errors import FlowControl, MqError, OutcomeUnknown
from mq.store.format import Kind


class Committed(NamedTuple):
    """The entry is committed, durable and applied here."""

    raft_index: int
    term: int


Outcome: TypeAlias = Committed | MqError


class Proposal(NamedTuple):
    kind: Kind
    payload: Sequence[bytes | memoryview]
    size: int
    done: Callable[[Outcome], None]
    # Told to the state machine when the entry is in the log, so that it need not read it again.
    context: Any = ()


class Proposals:
    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.queued_bytes = 0
        self._queued: deque[Proposal] = deque()
        self._appended: deque[tuple[Committed, Proposal]] = deque()

    def __len__(self) -> int:
        """How many have no outcome yet."""
        return len(self._queued) + len(self._appended)

    @property
    def has_queued(self) -> bool:
        return bool(self._queued)

    def put(self, proposal: Proposal) -> None:
        """FlowControl: too much waits already."""
        if len(self) >= self._count_max or self._bytes + proposal.size > self._bytes_max:
            raise FlowControl(
                f"{len(self)} entries of {self._bytes} bytes wait to be replicated, "
                f"at most {self._count_max} of {self._bytes_max} bytes may: try again in a moment"
            )
        self._queued.append(proposal)
        self._bytes += proposal.size
        self.queued_bytes += proposal.size

    def take(self, bytes_max: int) -> list[Proposal]:
        """The next ones to write, so many bytes of them but at least one. Give them back with
        `appended` or `put_back`.
        """
        taken: list[Proposal] = []
        size = 0
        while self._queued and (not taken or size + self._queued[0].size <= bytes_max):
            taken.append(self._queued.popleft())
            size += taken[-1].size
        self.queued_bytes -= size
        return taken

    def put_back(self, proposals: Sequence[Proposal]) -> None:
        self._queued.extendleft(reversed(proposals))
        self.queued_bytes += sum(proposal.size for proposal in proposals)

    def appended(self, proposal: Proposal, raft_index: int, term: int) -> None:
        self._appended.append((Committed(raft_index, term), proposal))

    def applied(self, raft_index: int) -> None:
        while self._appended and self._appended[0][0].raft_index <= raft_index:
            committed, proposal = self._appended.popleft()
            self._end(proposal, committed)

    def refuse_queued(self, error: MqError) -> None:
        """Nothing of them was written."""
        queued, self._queued = self._queued, deque()
        self.queued_bytes = 0
        for proposal in queued:
            self._end(proposal, error)

    def end_leadership(self, error: MqError) -> None:
        """What was not written is refused with this; of the rest the outcome is unknown."""
        appended, self._appended = self._appended, deque()
        for committed, proposal in appended:
            self._end(
                proposal,
                OutcomeUnknown(
                    f"this node stopped leading before entry {committed.raft_index} of term "
                    f"{committed.term} was committed: it may or may not be in the log"
                ),
            )
        self.refuse_queued(error)

    def _end(self, proposal: Proposal, outcome: Outcome) -> None:
        self._bytes -= proposal.size
        proposal.done(outcome)
