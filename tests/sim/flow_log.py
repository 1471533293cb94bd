"""The log of a simulated broker set, as the broker sees it: written by the leader, copied to the
others as raw bytes, committed by a majority, applied by all.

No Raft is at work here: the world names the leader and counts the terms. What the broker
relies on is kept: entries of a term are written by one leader; what a majority has is never lost;
the rest may be; a proposal ends once, applied, refused, or with an unknown outcome
(`mq.raft.proposals`). The elections themselves are simulated elsewhere, with the real code.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from mq.broker.contracts import Leading, Peer
from mq.errors import MqError, NotLeader, OutcomeUnknown, SegmentFull
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind
from tests.support.stores import roll

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.sim.flow_member import Member, Process
    from tests.sim.flow_world import World

_REGION_BYTES = 1 << 20


class Proposal(NamedTuple):
    kind: Kind
    payload: Sequence[bytes | memoryview]
    context: object
    done: Callable[[MqError | None], None]
    # The leader's clock when it was proposed.
    now_ms: int


class Seat:
    """The log for one process: `mq.broker.contracts.Consensus`."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self.process = process
        self._log = process.log
        self.leading_term = 0
        self.commit_index = 0
        self._queued: deque[Proposal] = deque()
        self._written: deque[tuple[int, Proposal]] = deque()
        self._is_writing = False
        self._is_roll_due = False
        self._sending: set[str] = set()
        self._told: dict[str, tuple[int, int]] = {}  # last index, commit index

    @property
    def leading(self) -> Leading:
        leader = self._world.leader
        if leader is None:
            return Leading(self._world.term, None, None)
        return Leading(self._world.term, leader.name, leader.address)

    @property
    def peers(self) -> Sequence[Peer]:
        return [Peer(one.name, one.address, "") for one in self._world.members]

    # -- proposing ---------------------------------------------------------------------------------

    def propose(
        self,
        kind: Kind,
        payload: Sequence[bytes | memoryview],
        context: object,
        done: Callable[[MqError | None], None],
    ) -> None:
        now_ms = self.process.member.now_ms()
        # The payload may be views of buffers that their owner uses again: it is written later.
        parts = [bytes(part) for part in payload]
        proposal = Proposal(kind, parts, context, done, now_ms)
        if not self.leading_term:
            self.end(proposal, self._not_leader())
            return
        self._queued.append(proposal)
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self.process.life.run(asyncio.get_running_loop().call_soon, self._write)

    def _write(self) -> None:
        self._is_writing = False
        life = self.process.life
        while self._queued and self.leading_term and not life.is_over:
            if self._is_roll_due and not self._roll():
                break
            proposal = self._queued[0]
            try:
                self._world.written_by(self, proposal)
            except SegmentFull:
                self._is_roll_due = True
                continue
            if self._queued and self._queued[0] is proposal:
                self._queued.popleft()
        if not life.is_over:
            self.send()

    def end(self, proposal: Proposal, error: MqError | None) -> None:
        self.process.life.run(asyncio.get_running_loop().call_soon, proposal.done, error)

    def append(self, proposal: Proposal) -> None:
        """On this disk, and nowhere else yet. SegmentFull: nothing was written."""
        entry = NewEntry(
            proposal.kind, self.leading_term, self.process.member.now_ms(), proposal.payload
        )
        (ref,) = self._log.append([entry])
        self._world.note_written(ref, proposal)
        self._written.append((ref.raft_index, proposal))
        self.process.broker.appended(ref, proposal.context)
        self._log.sync()

    def _roll(self) -> bool:
        """A new segment, when all that is in the log is applied."""
        store = self.process.store
        if store.applied_index != self._log.last_index:
            return False
        roll(store, self.process.member.now_ms(), self.leading_term)
        self._log.sync()
        self._is_roll_due = False
        return True

    # -- leading -----------------------------------------------------------------------------------

    def lead(self, term: int) -> None:
        self.leading_term = term
        self._is_roll_due = False
        self._told.clear()
        self._sending.clear()
        entry = NewEntry(Kind.NOOP, term, self.process.member.now_ms(), [])
        (ref,) = self._log.append([entry])
        self.process.broker.appended(ref, None)
        self._log.sync()
        self.send()

    def step_down(self) -> None:
        """The leader lives. The outcome of its proposals is unknown."""
        self.leading_term = 0
        written, self._written = self._written, deque()
        queued, self._queued = self._queued, deque()
        for raft_index, proposal in written:
            text = f"entry {raft_index} may or may not be in the log"
            self.end(proposal, OutcomeUnknown(text))
        for proposal in queued:
            self.end(proposal, self._not_leader())
        self.process.broker.on_leadership()

    def _not_leader(self) -> NotLeader:
        leading = self.leading
        return NotLeader(leading.leader_id, leading.leader_address)

    def send(self) -> None:
        """Gives the others what they lack, each after a while."""
        if not self.leading_term:
            return
        loop = asyncio.get_running_loop()
        for other in self._world.members:
            now = self._log.last_index, self.commit_index
            is_news = self._told.get(other.name) != now
            if other is self.process.member or not is_news or other.name in self._sending:
                continue
            self._sending.add(other.name)
            self.process.life.run(
                loop.call_later, self._world.latency_s(), self._deliver, other, self.leading_term
            )

    def forget_told(self, name: str) -> None:
        """It has started again: it hears everything anew."""
        self._told.pop(name, None)
        self.send()

    def _deliver(self, other: Member, term: int) -> None:
        self._sending.discard(other.name)
        if self.leading_term != term or not other.is_up:
            return
        self.copy_to(other)
        loop = asyncio.get_running_loop()
        self.process.life.run(loop.call_later, self._world.latency_s(), self._acknowledged, term)

    def _acknowledged(self, term: int) -> None:
        if self.leading_term == term:
            self.advance()
            self.send()
            if self._queued:
                self._write_soon()

    def copy_to(self, other: Member) -> None:
        """All of it, at once. The follower reads from its own log what it applies."""
        process = other.running
        seat = process.consensus
        assert isinstance(seat, Seat)
        process.life.run(seat.follow, self._log, self.commit_index)
        self._told[other.name] = process.log.last_index, seat.commit_index

    def advance(self, *, is_silent: bool = False) -> None:
        """Entries of a majority are committed, and applied here; their proposers hear of it, unless
        that comes too late.
        """
        indexes = sorted(
            (one.running.log.last_index for one in self._world.members if self._matches(one)),
            reverse=True,
        )
        majority = self._world.majority
        if len(indexes) < majority:
            return
        index = indexes[majority - 1]
        if index <= self.commit_index or self._log.term_at(index) != self.leading_term:
            return
        self.commit_index = index
        self._world.committed(index, self._log.term_at(index))
        self.process.life.run(self.process.broker.apply_through, index)
        while not is_silent and self._written and self._written[0][0] <= index:
            _, proposal = self._written.popleft()
            self.end(proposal, None)

    def _matches(self, other: Member) -> bool:
        """Its log is a part of this one."""
        if not other.is_up:
            return False
        last = other.running.log.last_index
        log = self._log
        if not log.first_index <= last <= log.last_index:
            return False
        return other.running.log.term_at(last) == log.term_at(last)

    # -- following ---------------------------------------------------------------------------------

    def follow(self, leader: CommitLog, commit_index: int) -> None:
        log, broker = self._log, self.process.broker
        common = self._common(leader)
        if common < leader.first_index:
            # Nothing of the leader's log is known to be here: what it dropped may differ, too.
            start = leader.region(leader.first_index, _REGION_BYTES)
            log.start_over(leader.first_index, leader.start_offset)
            log.extend(start.data)
            broker.start_over()
        elif common < log.last_index:
            broker.forget(common + 1)
            log.truncate(common + 1)
        while log.last_index < leader.last_index:
            log.extend(leader.region(log.last_index + 1, _REGION_BYTES).data)
        log.sync()
        self.commit_index = max(self.commit_index, min(commit_index, log.last_index))
        broker.apply_through(self.commit_index)

    def _common(self, leader: CommitLog) -> int:
        """The last entry that both have."""
        at = min(self._log.last_index, leader.last_index)
        first = max(self._log.first_index, leader.first_index)
        while at >= first and self._log.term_at(at) != leader.term_at(at):
            at -= 1
        return at
