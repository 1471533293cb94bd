"""How the log gets from the leader to its followers, and what of it is committed.

A leader keeps a `Progress` of each peer, sends what the peer lacks, and commits what a majority
has. A follower takes entries behind one that both logs have, and answers for what it has synced.
The rules:

    after the sync   a follower answers for what it has synced; the leader counts itself for what it
                     has synced; nothing is applied before both
    own term         a leader commits entries of its term, and by that all before
    trim             entries that a follower has already are taken out of an append
    stamped answers  an answer of another term is dropped
    flow             see `Progress`
    start over       a follower too far behind takes the leader's log from its first entry on

Which node leads, and in which term, is read from `Election`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mq.errors import MalformedEntries, MqError
from mq.logging import get_logger
from mq.raft.contracts import Timing
from mq.raft.election import Election, Step
from mq.raft.engine import Peer
from mq.raft.raft_log import FIRST_INDEX, RaftLog
from mq.raft.ready import ReadyBuilder
from mq.store.commitlog import NewEntry
from mq.store.format import HEADER_BYTES, Kind, decode_header
from mq.wire.v1.raft_pb2 import Append, AppendAnswer, RaftFrame, StartOver

log = get_logger(__name__)

# The most bytes of entries in one append; they are read from the log in one go, on the loop.
REGION_BYTES_MAX = 1 << 20
# Applied in one go, so that heartbeats are not late while a long log is applied.
_APPLY_ENTRIES_MAX = 64


class _Answer(NamedTuple):
    """A statement to a leader: our log equals its log up to `raft_index`."""

    peer_id: str
    term: int
    raft_index: int


class Replication:
    """For one thread. Invariant: what is applied is committed and durable here, and what is
    committed is in the log.
    """

    def __init__(
        self,
        raft_log: RaftLog,
        election: Election,
        timing: Timing,
        applied_index: int,
        has_room: Callable[[str], bool],
        out: ReadyBuilder,
    ) -> None:
        """`has_room` says whether the connection to a peer takes more."""
        self.log = raft_log
        self.applied_index = applied_index
        self.commit_index = min(applied_index, raft_log.last_index)
        self.steps: dict[str, Step] = {
            "append": self._on_append,
            "append_answer": self._on_append_answer,
            "start_over": self._on_start_over,
        }
        self._election = election
        self._timing = timing
        self._has_room = has_room
        self._out = out
        # The append that `appended` or `refused` will answer.
        self._was_truncated = False
        self._append_pending: tuple[Peer, int] | None = None  # leader, its commit index
        # The answer that waits for a sync, and the last one that was sent.
        self._owed: _Answer | None = None
        self._given = _Answer("", 0, 0)
        self._given_s = 0.0
        # Term and commit index that the leader has stated.
        self._leader_commit = (0, 0)
        # When a sync ended last, or was needed after a time in which none was.
        self._synced_s = out.now_s
        self._learners: set[Peer] = set()
        self._receivers: list[Peer] = []
        self._refresh_receivers()

    # -- facts -------------------------------------------------------------------------------------

    @property
    def has_open_round(self) -> bool:
        """Entries of the log are not committed."""
        return self.commit_index < self.log.last_index

    @property
    def has_more_to_apply(self) -> bool:
        """Committed entries that are durable here wait for the next tick."""
        return self.applied_index < min(self.commit_index, self.log.durable_index)

    @property
    def has_all_committed(self) -> bool:
        """This node has, durably, everything that was ever committed: the log up to the commit
        point of the current leader, which lies in that leader's own term.
        """
        commit_index, current_term = self.commit_index, self._election.term
        term, leader_commit_index = self._leader_commit
        if self._election.is_leader:
            term, leader_commit_index = current_term, commit_index
        return (
            0 < term == current_term  # in term 0, that of the bootstrap, no node leads
            and leader_commit_index <= commit_index <= self.log.durable_index
            and self.log.has(commit_index, current_term)
        )

    @property
    def is_overtaken(self) -> bool:
        """This leader's disk stands still, and a majority without it has what it could not sync:
        nothing is committed here, and the others could go on. Where their disks stand still too,
        as shared ones do, it is not.
        """
        durable_index, others = self.log.durable_index, self._election.others
        if not self._election.is_leader or durable_index == self.log.last_index:
            return False
        if self._out.now_s - self._synced_s < self._timing.fallback_s:
            return False
        ahead = [
            peer
            for peer in others
            if peer.progress.is_connected and peer.progress.match_index > durable_index
        ]
        return len(ahead) > (len(others) + 1) / 2

    # -- the log has changed -----------------------------------------------------------------------

    def appended(self) -> None:
        """The log has the entries of the last `Ready`, or more of this leader."""
        if self.log.durable_index == self.log.last_index:
            self._synced_s = self._out.now_s
        self.log.refresh(was_truncated=self._was_truncated)
        self._was_truncated = False
        pending, self._append_pending = self._append_pending, None
        if pending is None:
            self.send_entries()
            self.commit()
        else:
            self._matched(*pending, self.log.last_index)

    def refused(self, error: MqError) -> None:
        """The log has nothing of the entries of the last `Ready`."""
        self.log.refresh(was_truncated=self._was_truncated)
        self._was_truncated = False
        pending, self._append_pending = self._append_pending, None
        if pending is not None:
            self._refuse(pending[0], error)
        else:
            log.warning("elected, but the disk is full: stepping down", error=str(error))
            self._election.step_down()

    def synced(self, raft_index: int) -> None:
        """Entries up to this one are on disk."""
        self._synced_s = self._out.now_s
        self.log.refresh_durable(raft_index)
        self._pay(is_sign_of_life=False)
        self.commit()

    def started_over(self, leader: Peer, term: int) -> None:
        """The log is the beginning of this leader's."""
        self._election.follow(leader, term)
        self._answer(leader, self.log.last_index)

    # -- receivers ---------------------------------------------------------------------------------

    def set_voters(self, before: set[Peer]) -> None:
        """The election has other voters than before. The progress of learners is kept."""
        others = self._election.others
        for peer in before - others:
            peer.progress.next_index = peer.progress.match_index = 0
        for peer in others:
            progress = peer.progress
            progress.next_index = progress.next_index or self.log.last_index + 1
            progress.heard_s = progress.heard_s or self._out.now_s
        self._learners -= others
        self._refresh_receivers()

    def add_learner(self, peer: Peer) -> None:
        """Entries are sent to it, but it is not counted."""
        peer.progress.next_index, peer.progress.match_index = self.log.last_index + 1, 0
        self._learners.add(peer)
        self._refresh_receivers()

    def remove_learner(self, peer: Peer) -> None:
        if peer in self._learners:
            peer.progress.next_index = peer.progress.match_index = 0
            self._learners.discard(peer)
            self._refresh_receivers()

    def _refresh_receivers(self) -> None:
        receivers = self._election.others | self._learners
        self._receivers = sorted(receivers, key=lambda peer: str(peer.id))

    # -- leader: sending ---------------------------------------------------------------------------

    def lead(self) -> None:
        """This node was elected. The node stamps the time of its first entry."""
        for peer in self._election.peers:
            peer.progress.start_probing()
        for peer in self._receivers:
            peer.progress.next_index = self.log.last_index + 1
        self._out.append = NewEntry(Kind.NOOP, self._election.term, 0, [])

    def send_appends(self) -> None:
        """Entries or a heartbeat to each peer that may get one."""
        for peer in self._receivers:
            self._send_append(peer)

    def send_entries(self) -> None:
        """To each peer that lacks some and may get them."""
        if self._receivers and self._election.is_leader:
            last_index = self.log.last_index
            for peer in self._receivers:
                if peer.progress.next_index <= last_index:
                    self._send_append(peer)

    def _has_open_flow(self, peer: Peer) -> bool:
        has_room, period_s = self._has_room(peer.id), self._timing.heartbeat_s
        return peer.progress.may_send(self._out.now_s, period_s, has_room=has_room)

    def _send_append(self, peer: Peer) -> None:
        """Nothing is sent while our own log lacks an entry that is to be sent."""
        out = self._out
        if out.append is not None or not self._has_open_flow(peer):
            return
        raft_log, progress = self.log, peer.progress
        next_index = progress.next_index
        if next_index <= raft_log.first_index:
            self._send_start_over(peer)
            return
        body = b""
        if next_index <= raft_log.last_index:
            region = raft_log.region(next_index, REGION_BYTES_MAX)
            body, progress.next_index = region.data, region.last_index + 1
            out.has_more |= region.last_index < raft_log.last_index
        append = Append(
            prev_index=next_index - 1,
            prev_term=raft_log.term_at(next_index - 1),
            commit_index=self.commit_index,
        )
        out.send(peer.id, self._election.term, body, append=append)
        progress.sent(next_index, out.now_s)

    def _send_start_over(self, peer: Peer) -> None:
        """The entries that this peer needs next are gone from the log."""
        region = self.log.region(self.log.first_index, REGION_BYTES_MAX)
        start = StartOver(
            first_index=region.first_index,
            log_offset=self.log.commitlog.start_offset,
            commit_index=self.commit_index,
        )
        self._out.send(peer.id, self._election.term, region.data, start_over=start)
        progress = peer.progress
        progress.next_index = region.last_index + 1
        progress.start_probing()
        # The index that the peer asks for if it cannot start with this.
        progress.sent(FIRST_INDEX, self._out.now_s)

    # -- leader: answers ---------------------------------------------------------------------------

    def _on_append_answer(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        self._election.adopt_term(message.term)
        answer, progress = message.append_answer, peer.progress
        is_current = self._election.is_leader and self._is_current(message.term)
        if not is_current or not progress.next_index:
            return
        counts = self._counts(answer) or peer not in self._election.others
        progress.is_voter = not answer.must_catch_up
        next_index = max(FIRST_INDEX, min(answer.next_index, self.log.last_index + 1))
        if counts:
            progress.heard_s = self._out.now_s
        if answer.success:
            progress.matched(next_index)
        elif progress.refused(next_index):
            self.log.verify(next_index)
        if not counts:
            progress.match_index = 0
        self.commit()
        if progress.next_index <= self.log.last_index:
            self._send_append(peer)

    def _is_current(self, term: int) -> bool:
        return term == self._election.term

    def _counts(self, answer: AppendAnswer) -> bool:
        return not answer.must_catch_up

    # -- commit ------------------------------------------------------------------------------------

    def commit(self) -> None:
        """A leader commits what a majority has, this node included. Callers wait for it, so that it
        is applied at once; a follower applies with the next tick.
        """
        election = self._election
        if not election.is_leader:
            return
        index = self._own_index()
        others = election.others
        if others:
            matches = sorted([peer.progress.match_index for peer in others])
            index = min(index, matches[len(matches) // 2])
        if index > self.commit_index and self.log.term_at(index) == election.term:
            self.commit_index = index
        self.apply()

    def _own_index(self) -> int:
        """Up to here a leader counts itself."""
        return self.log.durable_index

    def apply(self) -> None:
        """The next entries that may be applied."""
        target = min(self.commit_index, self.log.durable_index)
        applied_index = self.applied_index
        if applied_index < target:
            self._out.commit = min(target, applied_index + _APPLY_ENTRIES_MAX)

    # -- follower: receiving -----------------------------------------------------------------------

    def _on_append(self, leader: Peer, message: RaftFrame, body: memoryview) -> None:
        term, append = message.term, message.append
        if term < self._election.term:
            self._send_answer(leader.id, append.prev_index + 1, success=False)
            return
        self._election.follow(leader, term)
        self._leader_commit = term, append.commit_index
        try:
            self._take_entries(leader, append, body)
        except MalformedEntries as error:
            self._refuse(leader, error)

    def _take_entries(self, leader: Peer, append: Append, body: memoryview) -> None:
        """Entries that are here already are trimmed. What is left is new behind an entry that both
        logs have; what stands there instead conflicts with it and is truncated.
        """
        raft_log, prev_index = self.log, append.prev_index
        if not raft_log.has(prev_index, append.prev_term):
            has_another = raft_log.first_index <= prev_index <= raft_log.last_index
            self._answer_mismatch(leader, prev_index if has_another else raft_log.last_index + 1)
            return
        known, prev_index, prev_term = self._known_part(body, prev_index, append.prev_term)
        body = body[known:]
        if not body:
            self._matched(leader, append.commit_index, prev_index)
            return
        if prev_index < raft_log.last_index:
            raft_log.check(body, prev_index, prev_term)  # before anything is truncated for it
            self._out.truncate = prev_index + 1
            self._was_truncated = True
        self._out.append = body
        self._append_pending = leader, append.commit_index

    def _known_part(self, body: memoryview, index: int, term: int) -> tuple[int, int, int]:
        return self.log.known_part(body, index, term)

    def _matched(self, leader: Peer, commit_index: int, verified_index: int) -> None:
        """Up to `verified_index`, and no further, is our log known to be the leader's."""
        last_index = self.log.last_index
        committed = min(self._committed_here(commit_index, verified_index), last_index)
        self.commit_index = max(min(self.commit_index, last_index), committed)
        self._answer(leader, verified_index)

    def _committed_here(self, commit_index: int, verified_index: int) -> int:
        return min(commit_index, verified_index)

    def _refuse(self, leader: Peer, error: MqError) -> None:
        log.warning("cannot follow", leader=leader.id, error=str(error))
        self._answer_mismatch(leader, self.log.last_index + 1)

    def _on_start_over(self, leader: Peer, message: RaftFrame, body: memoryview) -> None:
        """The entries that this node needs next are gone from the leader's log."""
        term, start = message.term, message.start_over
        if term < self._election.term:
            self._send_answer(leader.id, start.first_index, success=False)
            return
        self._election.follow(leader, term)
        header = decode_header(body)
        if header is None or self._lacks_opening(start, header.term):
            self._out.must_start_over = True
            return
        # We have the entry that the leader's log opens with: the rest is as in any append.
        append = Append(
            prev_index=start.first_index, prev_term=header.term, commit_index=start.commit_index
        )
        rest = body[HEADER_BYTES + header.length :]
        self._on_append(leader, RaftFrame(term=term, append=append), rest)

    def _lacks_opening(self, start: StartOver, term: int) -> bool:
        return not self.log.has(start.first_index, term)

    # -- follower: answers, after the sync ---------------------------------------------------------

    def _answer(self, leader: Peer, verified_index: int) -> None:
        self._owed = _Answer(leader.id, self._election.term, verified_index)
        self._pay(is_sign_of_life=True)

    def _answer_mismatch(self, leader: Peer, next_index: int) -> None:
        if self.log.last_index >= next_index:
            # Another entry stands there. What is committed is the same everywhere.
            next_index = min(next_index, self.commit_index + 1)
        self._send_answer(leader.id, next_index, success=False)

    def _send_answer(self, peer_id: str, next_index: int, *, success: bool) -> None:
        answer = AppendAnswer(
            next_index=next_index,
            success=success,
            must_catch_up=self._election.must_catch_up(peer_id),
        )
        self._out.send(peer_id, self._election.term, append_answer=answer)

    def _pay(self, *, is_sign_of_life: bool) -> None:
        """Answers for what is durable by now. While a sync takes its time, an answer that says
        nothing new tells the leader that this node lives.
        """
        if self._owed is None:
            return
        peer_id, term, verified_index = self._owed
        if term != self._election.term:
            self._owed = None
            return
        index, now_s = min(verified_index, self.log.durable_index), self._out.now_s
        is_known = self._given[:2] == (peer_id, term) and index <= self._given.raft_index
        is_due = now_s - self._given_s >= self._timing.heartbeat_s / 2
        if index == verified_index or not is_known or (is_sign_of_life and is_due):
            self._send_answer(peer_id, index + 1, success=True)
            self._given, self._given_s = _Answer(peer_id, term, index), now_s
        if index == verified_index:
            self._owed = None
