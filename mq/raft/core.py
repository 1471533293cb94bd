"""Raft without disk, network or clock: events go in, a `Ready` says what to do about them.

`tick`, `step`, `propose` and `synced` return a `Ready`. The node performs it in the order of its
fields: a vote is durable before a message tells of it, entries are in the log before anything
counts them. A `Ready` with `append` is answered with `appended` or `refused`.

PySyncObj decides, behind `Engine`, which node leads: roles, terms, votes, election timer.
Replication is decided here: which entries are sent, taken, answered for and committed. So are the
guards around elections:

    pre-vote         a node asks whether it could win before it raises its term, so that one that
                     was away does not depose a healthy leader
    one vote a node  PySyncObj counts messages, not nodes
    catch up first   a node that may have lost what it had acknowledged (see `VoteTrust`) neither
                     votes nor stands nor counts until it has, from a leader that others keep in
                     office, all that was committed; unless all members are there and none of them
                     has more than the candidate: then no other node has what was forgotten
    prompt           a connection that the leader's machine reset is a reason to ask at once
    higher terms     any answer of a higher term ends a leadership, not only a request

and the rules of replication:

    after the sync   a follower answers for what it has synced; the leader counts itself for what it
                     has synced; nothing is applied before both
    own term         a leader commits entries of its term, and by that all before
    trim             entries that a follower has already are taken out of an append
    stamped answers  an answer of another term is dropped
    flow             see `Progress`
    start over       a follower too far behind takes the leader's log from its first entry on
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from mq.errors import MalformedEntries, MqError
from mq.logging import get_logger
from mq.raft.contracts import Leadership, Role, Timing
from mq.raft.engine import Engine, Peer, enter
from mq.raft.frames import Frame
from mq.raft.progress import Progress
from mq.raft.raft_log import FIRST_INDEX, RaftLog
from mq.raft.vote import VoteFile
from mq.store.commitlog import NewEntry
from mq.store.format import HEADER_BYTES, Kind, decode_header
from mq.wire.v1.raft_pb2 import (
    Append,
    AppendAnswer,
    PreVoteRequest,
    PreVoteResponse,
    RaftFrame,
    StartOver,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

log = get_logger(__name__)

# The most bytes of entries in one append; they are read from the log in one go, on the loop.
REGION_BYTES_MAX = 1 << 20
# Applied in one go, so that heartbeats are not late while a long log is applied.
_APPLY_ENTRIES_MAX = 64
# The longest wait before a node asks for votes when the leader's connection broke: random, so that
# not all nodes ask at the same time.
_PROMPT_S = 0.15
_ROLES = tuple(Role)  # a look-up is quicker than Role(number)


class Ready(NamedTuple):
    """Work for the node, in this order. When `append` is refused, the rest is void."""

    # Term and vote, to be made durable.
    vote: tuple[int, str | None] | None = None
    # Entries from this raft index on leave the log.
    truncate: int | None = None
    # A region of the leader's log, or the first entry of a new leader; goes behind the last entry.
    append: memoryview | NewEntry | None = None
    # Entries up to here are committed and durable: apply them and say so with `applied`.
    commit: int = 0
    messages: Sequence[tuple[str, Frame]] = ()
    # The leadership has changed.
    role: Leadership | None = None
    # A follower lacks more entries: call `replicate` when the messages are sent.
    has_more: bool = False
    # The log has to be replaced by the leader's: the message was a StartOver.
    must_start_over: bool = False


NOTHING = Ready()


class _Answer(NamedTuple):
    """A statement to a leader: our log equals its log up to `raft_index`."""

    peer_id: str
    term: int
    raft_index: int


class Core:
    """For one thread. Calls that return a `Ready` take the time of a monotonic clock; the next call
    comes when that `Ready` is performed.
    """

    def __init__(  # noqa: PLR0913 - all that it may see of the world
        self,
        node_id: str,
        members: Collection[str],
        raft_log: RaftLog,
        vote: VoteFile,
        timing: Timing,
        *,
        applied_index: int,
        has_room: Callable[[str], bool],
        rng: random.Random,
        now_s: float,
    ) -> None:
        """`vote` is only read. `has_room` says whether the connection to a peer takes more."""
        self.node_id = node_id
        self.log = raft_log
        self.timing = timing
        self.is_voter = node_id in members
        self.applied_index = applied_index
        self.elections_total = 0
        self._vote = vote
        self._has_room = has_room
        self._rng = rng
        self._now_s = now_s
        # The next Ready.
        self._vote_due: tuple[int, str | None] | None = None
        self._truncate_due: int | None = None
        self._append_due: memoryview | NewEntry | None = None
        self._messages: list[tuple[str, Frame]] = []
        self._commit_due = 0
        self._has_more = False
        self._must_start_over = False
        self._told: tuple[int, int, Peer | None] = Role.FOLLOWER, vote.term, None
        # The append that `appended` or `refused` will answer.
        self._was_truncated = False
        self._append_pending: tuple[Peer, int] | None = None  # leader, its commit index
        # The answer that waits for a sync, and the last one that was sent.
        self._owed: _Answer | None = None
        self._given = _Answer("", 0, 0)
        self._given_s = 0.0
        # Term and commit index that the leader has stated.
        self._leader_commit = (0, 0)
        self._leader_seen_s = -math.inf
        self._followed = ("", 0, math.inf)  # leader, term, since when
        self._proposed_term = 0
        self._pre_votes: set[str] = set()
        self._supporters: set[str] = set()  # nodes that grant, or would if they could vote
        self._unanimous_term = 0
        self._may_stand_in_term = 0
        self._votes: set[tuple[int, str]] = set()
        self._steps: dict[str | None, Callable[[Peer, RaftFrame, memoryview], None]] = {
            "append": self._on_append,
            "append_answer": self._on_append_answer,
            "start_over": self._on_start_over,
            "pre_vote_request": self._on_pre_vote_request,
            "pre_vote_response": self._on_pre_vote_response,
            "vote_request": self._on_vote_request,
            "vote_response": self._on_vote_response,
            "timeout_now": self._on_timeout_now,
        }
        self._enter(now_s)
        self._engine = Engine(node_id, members, raft_log, vote, timing, self)
        self._engine.commit_index = min(applied_index, raft_log.last_index)
        self._learners: set[Peer] = set()
        self._receivers: list[Peer] = []
        self._refresh_receivers()

    # -- events ------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> Ready:
        """Now and then, and when `wants_tick`: elections, heartbeats, entries to apply."""
        self._enter(now_s)
        self._decide_election()
        term = self.term
        self._engine.tick()
        self.elections_total += self.term > term
        self._commit()
        self._commit_due = self._appliable()
        return self._leave()

    def step(self, peer_id: str, frame: Frame, now_s: float) -> Ready:
        """A message of another node."""
        self._enter(now_s)
        message, body = frame
        kind = message.WhichOneof("content")
        receive = self._steps.get(kind)
        if receive is None:
            log.warning("a frame that has no place here", peer=peer_id, kind=kind)
        else:
            receive(self._engine.peer(peer_id), message, memoryview(body))
        return self._leave()

    def propose(self, now_s: float) -> Ready:
        """The log has more entries of this leader, of its term: sends and counts them."""
        if self._engine.state != Role.LEADER:
            raise RuntimeError(f"{self.node_id} does not lead")
        self._now_s = now_s
        self.log.refresh()
        self._send_entries()
        self._commit()
        return self._leave()

    def appended(self, now_s: float) -> Ready:
        """The log has the entries of the last Ready."""
        pending, self._append_pending = self._append_pending, None
        if pending is None:
            return self.propose(now_s)
        self._now_s = now_s
        self.log.refresh(was_truncated=self._was_truncated)
        self._was_truncated = False
        leader, commit_index = pending
        self._matched(leader, commit_index, self.log.last_index)
        return self._leave()

    def refused(self, error: MqError, now_s: float) -> Ready:
        """The disk is full, or the entries are not intact: the log has nothing of them."""
        self._now_s = now_s
        self.log.refresh(was_truncated=self._was_truncated)
        self._was_truncated = False
        pending, self._append_pending = self._append_pending, None
        if pending is not None:
            self._refuse(pending[0], error)
        else:
            log.warning("elected, but the disk is full: stepping down", error=str(error))
            self._engine.step_down()
            self._postpone()
        return self._leave()

    def synced(self, raft_index: int, now_s: float) -> Ready:
        """Entries up to this one are on disk."""
        self._now_s = now_s
        self.log.refresh_durable(raft_index)
        self._pay(is_sign_of_life=False)
        self._commit()
        return self._leave()

    def replicate(self, now_s: float) -> Ready:
        """A connection has room again, or the last Ready had `has_more`."""
        self._now_s = now_s
        self._send_entries()
        return self._leave()

    def connected(self, peer_id: str) -> None:
        progress = self._engine.peer(peer_id).progress
        progress.is_connected = True
        progress.start_probing()

    def disconnected(self, peer_id: str, now_s: float, *, was_lost: bool) -> Ready:
        """`was_lost`: by the other side or the network, not by a decision of this node."""
        self._now_s = now_s
        self._engine.peer(peer_id).progress.is_connected = False
        if was_lost and self.role == Role.FOLLOWER and self.leader_id == peer_id:
            self._leader_lost()
        return self._leave()

    def transfer_leadership(self, now_s: float, to: str = "") -> Ready:
        """Asks the follower that has everything, if there is one, to take over; only this one."""
        self._now_s = now_s
        for peer_id in self.other_ids:
            progress = self._engine.peer(peer_id).progress
            is_able = progress.is_connected and progress.is_voter
            is_complete = progress.match_index == self.log.last_index
            if to in ("", peer_id) and is_able and is_complete and self.role == Role.LEADER:
                self._send_frame(peer_id, timeout_now=TimeoutNow())
                break
        return self._leave()

    def stand_at_once(self) -> None:
        """No other node could lead."""
        self._engine.election_deadline_s = 0

    def started_over(self, leader_id: str, term: int, now_s: float) -> Ready:
        """The first call to a core whose log is the beginning of this leader's."""
        self._enter(now_s)
        leader = self._engine.peer(leader_id)
        self._follow(leader, term)
        self._answer(leader, self.log.last_index)
        return self._leave()

    # -- members -----------------------------------------------------------------------------------

    def set_members(self, members: Collection[str], now_s: float) -> None:
        """From now on these vote and are counted. The progress of learners is kept."""
        engine = self._engine
        others = {engine.peer(member) for member in members if member != self.node_id}
        for peer in engine.others - others:
            peer.progress.next_index = peer.progress.match_index = 0
        for peer in others:
            progress = peer.progress
            progress.next_index = progress.next_index or self.log.last_index + 1
            progress.heard_s = progress.heard_s or now_s
        engine.others = others
        self._learners -= others
        self._refresh_receivers()
        self.is_voter = self.node_id in members

    def add_learner(self, peer_id: str) -> None:
        """Entries are sent to it, but it is not counted."""
        peer = self._engine.peer(peer_id)
        peer.progress.next_index, peer.progress.match_index = self.log.last_index + 1, 0
        self._learners.add(peer)
        self._refresh_receivers()

    def remove_learner(self, peer_id: str) -> None:
        peer = self._engine.peer(peer_id)
        if peer in self._learners:
            peer.progress.next_index = peer.progress.match_index = 0
            self._learners.discard(peer)
            self._refresh_receivers()

    def _refresh_receivers(self) -> None:
        receivers = self._engine.others | self._learners
        self._receivers = sorted(receivers, key=lambda peer: str(peer.id))

    # -- facts -------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self._engine.term

    @property
    def role(self) -> Role:
        return _ROLES[self._engine.state]

    @property
    def leader_id(self) -> str | None:
        leader = self._engine.leader
        return leader.id if leader is not None else None

    @property
    def other_ids(self) -> list[str]:
        """The members that vote, without this node."""
        return sorted(peer.id for peer in self._engine.others)

    @property
    def commit_index(self) -> int:
        return self._engine.commit_index

    def progress(self, peer_id: str) -> Progress:
        """To be read."""
        return self._engine.peer(peer_id).progress

    def match_index(self, peer_id: str) -> int:
        return self._engine.peer(peer_id).progress.match_index

    def is_healthy(self, peer_id: str) -> bool:
        """A follower that takes what it gets, and votes."""
        progress = self._engine.peer(peer_id).progress
        return progress.is_connected and progress.is_voter and not progress.is_probing

    @property
    def has_open_round(self) -> bool:
        """Entries of the log are not committed."""
        return self._engine.commit_index < self.log.last_index

    @property
    def has_more_to_apply(self) -> bool:
        """Committed entries that are durable here wait for the next tick."""
        return self.applied_index < min(self._engine.commit_index, self.log.durable_index)

    @property
    def wants_tick(self) -> bool:
        """The next tick cannot wait for its time: it begins an election."""
        engine = self._engine
        return engine.state != Role.LEADER and not engine.election_deadline_s

    @property
    def has_all_committed(self) -> bool:
        """This node has, durably, everything that was ever committed: the log up to the commit
        point of the current leader, which lies in that leader's own term.
        """
        commit_index = self.commit_index
        term, leader_commit_index = self._leader_commit
        if self.role == Role.LEADER:
            term, leader_commit_index = self.term, commit_index
        return (
            0 < term == self.term  # in term 0, that of the bootstrap, no node leads
            and leader_commit_index <= commit_index <= self.log.durable_index
            and self.log.has(commit_index, self.term)
        )

    @property
    def has_caught_up(self) -> bool:
        """This node may vote again, if it had to catch up."""
        return self.has_sure_leader and self.has_all_committed

    @property
    def has_sure_leader(self) -> bool:
        """A leader that was not deposed by others, with the help of this node before it forgot:
        this node has elected it, or it would have stepped down by now, because answers of nodes
        that have to catch up do not keep a leader in office.
        """
        leader_id, term, since_s = self._followed
        lasted_s = self._leader_seen_s - since_s
        is_lasting = term == self.term and lasted_s >= 2 * self.timing.fallback_s
        return self.role == Role.LEADER or is_lasting or self._has_elected(leader_id)

    # -- elections ---------------------------------------------------------------------------------

    def _decide_election(self) -> None:
        """Lets PySyncObj's election timer go off only when the election could be won."""
        engine = self._engine
        if self.role == Role.LEADER or engine.election_deadline_s >= self._now_s:
            return
        if not self.is_voter:
            self._postpone()
        elif engine.is_transferring or not engine.others:
            pass
        elif self._may_stand_in_term == self.term + 1:
            self._may_stand_in_term = 0
        else:
            self._ask_pre_votes()

    def _may_stand(self) -> bool:
        is_first = self.log.last_index == FIRST_INDEX
        return self.is_voter and (not self._vote.must_catch_up or is_first)

    def _may_vote_for(self, last_index: int) -> bool:
        """A node that has to catch up helps to elect the first leader of a new group, in which no
        log has anything, and no other.
        """
        return not self._vote.must_catch_up or last_index == self.log.last_index == FIRST_INDEX

    def _postpone(self) -> None:
        timing = self.timing
        spread_s = (timing.election_max_s - timing.election_min_s) * self._rng.random()
        self._engine.election_deadline_s = self._now_s + timing.election_min_s + spread_s

    def _ask_pre_votes(self) -> None:
        self._postpone()
        self._engine.leader = None
        self._proposed_term = self.term + 1
        self._pre_votes = {self.node_id}
        self._supporters = {self.node_id}
        request = PreVoteRequest(
            proposed_term=self._proposed_term,
            last_index=self.log.last_index,
            last_term=self.log.last_term,
        )
        for peer_id in self.other_ids:
            self._send_frame(peer_id, pre_vote_request=request)

    def _on_pre_vote_request(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        request = message.pre_vote_request
        last = self.log.last_term, self.log.last_index
        would_grant = (
            (request.last_term, request.last_index) >= last
            and request.proposed_term > self.term
            and self.role != Role.LEADER
            and self._now_s - self._leader_seen_s >= self.timing.election_min_s
        )
        granted = would_grant and self._may_vote_for(request.last_index)
        response = PreVoteResponse(
            proposed_term=request.proposed_term, granted=granted, would_grant=would_grant
        )
        self._send_frame(peer.id, pre_vote_response=response)

    def _on_pre_vote_response(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        self._adopt_term(message.term)
        if self.role == Role.LEADER or peer not in self._engine.others:
            return
        response = message.pre_vote_response
        if response.proposed_term == self._proposed_term == self.term + 1:
            if response.granted:
                self._pre_votes.add(peer.id)
            if response.would_grant:
                self._supporters.add(peer.id)
            self._stand_if_winning()

    def _stand_if_winning(self) -> None:
        count, next_term = len(self._engine.others) + 1, self.term + 1
        has_majority = self._may_stand() and len(self._pre_votes) > count / 2
        # In a group of two that becomes one of three, a majority may be without the candidate.
        is_unanimous = len(self._supporters) == count > 2
        if has_majority or is_unanimous:
            self._proposed_term = 0
            self._may_stand_in_term = next_term
            self._unanimous_term = next_term if is_unanimous else 0
            self._engine.election_deadline_s = 0

    def _on_vote_request(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        request = message.vote_request
        if request.is_unanimous or self._may_vote_for(request.last_index):
            self._engine.vote_requested(peer, message.term, request.last_index, request.last_term)

    def _on_vote_response(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        self._adopt_term(message.term)
        if peer in self._engine.others and self._is_first_vote(peer.id, message.term):
            self._engine.vote_granted(peer, message.term)

    def _is_first_vote(self, peer_id: str, term: int) -> bool:
        vote = (term, peer_id)
        if term != self.term or vote in self._votes:
            return False
        self._votes = {seen for seen in self._votes if seen[0] == term} | {vote}
        return True

    def _on_timeout_now(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        if self._may_stand():
            self._engine.told_to_stand(peer, message.term)

    def _adopt_term(self, term: int) -> None:
        """A higher term ends any role of this node."""
        if term > self.term:
            self._engine.set_term(term)
            self._engine.step_down()

    def _has_elected(self, peer_id: str) -> bool:
        """In the current term, by all that this node remembers."""
        return self._engine.voted_for == peer_id

    def _follow(self, peer: Peer, term: int) -> None:
        """This node leads in this term: no election is wanted. Nothing is said of the log."""
        self._leader_seen_s = self._now_s
        if self._followed[:2] != (peer.id, term):
            self._followed = peer.id, term, self._now_s
        self._proposed_term = self._may_stand_in_term = 0
        engine = self._engine
        is_known = engine.leader is peer and engine.term == term
        if is_known and engine.state == Role.FOLLOWER and not engine.is_transferring:
            self._postpone()  # all that PySyncObj would do, and latency depends on it
        else:
            engine.leader_seen(peer, term)

    def _leader_lost(self) -> None:
        """The leader's machine says that its process is gone."""
        engine = self._engine
        self._leader_seen_s = -math.inf
        engine.leader = None
        prompt_s = self._now_s + _PROMPT_S * self._rng.random()
        engine.election_deadline_s = min(engine.election_deadline_s, prompt_s)

    # -- sending -----------------------------------------------------------------------------------

    def send_appends(self) -> None:
        """Entries or a heartbeat to each peer that may get one."""
        for peer in self._receivers:
            self._send_append(peer)

    def _send_entries(self) -> None:
        """To each peer that lacks some and may get them."""
        if self._receivers and self._engine.state == Role.LEADER:
            last_index = self.log.last_index
            for peer in self._receivers:
                if peer.progress.next_index <= last_index:
                    self._send_append(peer)

    def _has_open_flow(self, peer: Peer) -> bool:
        has_room, period_s = self._has_room(peer.id), self.timing.heartbeat_s
        return peer.progress.may_send(self._now_s, period_s, has_room=has_room)

    def lead(self, term: int) -> None:
        """This node was elected. `Replica` stamps the time of its first entry."""
        for peer in self._engine.peers.values():
            peer.progress.start_probing()
        for peer in self._receivers:
            peer.progress.next_index = self.log.last_index + 1
        self._append_due = NewEntry(Kind.NOOP, term, 0, [])

    def save_vote(self, term: int, voted_for: str | None) -> None:
        self._vote_due = term, voted_for

    def request_vote(self, peer: Peer) -> None:
        request = VoteRequest(
            last_index=self.log.last_index,
            last_term=self.log.last_term,
            is_unanimous=self._unanimous_term == self.term,
        )
        self._send_frame(peer.id, vote_request=request)

    def grant_vote(self, peer: Peer) -> None:
        self._send_frame(peer.id, vote_response=VoteResponse())

    def _send_append(self, peer: Peer) -> None:
        """Nothing is sent while our own log lacks an entry that is to be sent."""
        if self._append_due is not None or not self._has_open_flow(peer):
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
            self._has_more |= region.last_index < raft_log.last_index
        append = Append(
            prev_index=next_index - 1,
            prev_term=raft_log.term_at(next_index - 1),
            commit_index=self._engine.commit_index,
        )
        self._send_frame(peer.id, body, append=append)
        progress.sent(next_index, self._now_s)

    def _send_start_over(self, peer: Peer) -> None:
        """The entries that this peer needs next are gone from the log."""
        region = self.log.region(self.log.first_index, REGION_BYTES_MAX)
        start = StartOver(
            first_index=region.first_index,
            log_offset=self.log.commitlog.start_offset,
            commit_index=self.commit_index,
        )
        self._send_frame(peer.id, region.data, start_over=start)
        progress = peer.progress
        progress.next_index = region.last_index + 1
        progress.start_probing()
        progress.sent(FIRST_INDEX, self._now_s)  # which it asks for if it cannot start with this

    def _send_frame(self, peer_id: str, body: bytes | memoryview = b"", **content: object) -> None:
        """With our term: a node of a higher one drops it, one of a lower one adopts it."""
        message = RaftFrame(term=self.term, **content)  # type: ignore[arg-type]
        self._messages.append((peer_id, Frame(message, body)))

    # -- leader: answers ---------------------------------------------------------------------------

    def _on_append_answer(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        self._adopt_term(message.term)
        answer, progress = message.append_answer, peer.progress
        is_current = self.role == Role.LEADER and self._is_current(message.term)
        if not is_current or not progress.next_index:
            return
        counts = self._counts(answer) or peer not in self._engine.others
        progress.is_voter = not answer.must_catch_up
        next_index = max(FIRST_INDEX, min(answer.next_index, self.log.last_index + 1))
        if counts:
            progress.heard_s = self._now_s
        if answer.success:
            progress.matched(next_index)
        elif progress.refused(next_index):
            self.log.verify(next_index)
        if not counts:
            progress.match_index = 0
        self._commit()
        if progress.next_index <= self.log.last_index:
            self._send_append(peer)

    def _is_current(self, term: int) -> bool:
        return term == self.term

    def _counts(self, answer: AppendAnswer) -> bool:
        return not answer.must_catch_up

    # -- commit ------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """A leader commits what a majority has, this node included. Callers wait for it, so that it
        is applied at once; a follower applies with the next tick.
        """
        engine = self._engine
        if engine.state != Role.LEADER:
            return
        index = self._own_index()
        others = engine.others
        if others:
            matches = sorted([peer.progress.match_index for peer in others])
            index = min(index, matches[len(matches) // 2])
        if index > engine.commit_index and self.log.term_at(index) == engine.term:
            engine.commit_index = index
        self._commit_due = self._appliable()

    def _own_index(self) -> int:
        """Up to here a leader counts itself."""
        return self.log.durable_index

    def _appliable(self) -> int:
        """The last entry to apply next; 0: none."""
        target = min(self._engine.commit_index, self.log.durable_index)
        applied_index = self.applied_index
        return min(target, applied_index + _APPLY_ENTRIES_MAX) if applied_index < target else 0

    # -- follower: receiving -----------------------------------------------------------------------

    def _on_append(self, leader: Peer, message: RaftFrame, body: memoryview) -> None:
        term, append = message.term, message.append
        if term < self.term:
            self._send_answer(leader.id, append.prev_index + 1, success=False)
            return
        self._follow(leader, term)
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
            self._truncate_due = prev_index + 1
        self._append_due = body
        self._append_pending = leader, append.commit_index

    def _known_part(self, body: memoryview, index: int, term: int) -> tuple[int, int, int]:
        return self.log.known_part(body, index, term)

    def _matched(self, leader: Peer, commit_index: int, verified_index: int) -> None:
        """Up to `verified_index`, and no further, is our log known to be the leader's."""
        engine = self._engine
        committed = min(self._committed_here(commit_index, verified_index), self.log.last_index)
        engine.commit_index = max(min(engine.commit_index, self.log.last_index), committed)
        self._answer(leader, verified_index)

    def _committed_here(self, commit_index: int, verified_index: int) -> int:
        return min(commit_index, verified_index)

    def _refuse(self, leader: Peer, error: MqError) -> None:
        log.warning("cannot follow", leader=leader.id, error=str(error))
        self._answer_mismatch(leader, self.log.last_index + 1)

    def _on_start_over(self, leader: Peer, message: RaftFrame, body: memoryview) -> None:
        """The entries that this node needs next are gone from the leader's log."""
        term, start = message.term, message.start_over
        if term < self.term:
            self._send_answer(leader.id, start.first_index, success=False)
            return
        self._follow(leader, term)
        header = decode_header(body)
        if header is None or self._lacks_opening(start, header.term):
            self._must_start_over = True
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
        self._owed = _Answer(leader.id, self.term, verified_index)
        self._pay(is_sign_of_life=True)

    def _answer_mismatch(self, leader: Peer, next_index: int) -> None:
        if self.log.last_index >= next_index:
            # Another entry stands there. What is committed is the same everywhere.
            next_index = min(next_index, self.commit_index + 1)
        self._send_answer(leader.id, next_index, success=False)

    def _send_answer(self, peer_id: str, next_index: int, *, success: bool) -> None:
        # A node that has to catch up may have promised a later term to another leader, and have
        # forgotten it: its answer counts for the leader that it has elected since, and no other.
        must_catch_up = self._vote.must_catch_up and not self._has_elected(peer_id)
        answer = AppendAnswer(next_index=next_index, success=success, must_catch_up=must_catch_up)
        self._send_frame(peer_id, append_answer=answer)

    def _pay(self, *, is_sign_of_life: bool) -> None:
        """Answers for what is durable by now. While a sync takes its time, an answer that says
        nothing new tells the leader that this node lives.
        """
        if self._owed is None:
            return
        peer_id, term, verified_index = self._owed
        if term != self.term:
            self._owed = None
            return
        index = min(verified_index, self.log.durable_index)
        is_known = self._given[:2] == (peer_id, term) and index <= self._given.raft_index
        is_due = self._now_s - self._given_s >= self.timing.heartbeat_s / 2
        if index == verified_index or not is_known or (is_sign_of_life and is_due):
            self._send_answer(peer_id, index + 1, success=True)
            self._given, self._given_s = _Answer(peer_id, term, index), self._now_s
        if index == verified_index:
            self._owed = None

    # -- inside ------------------------------------------------------------------------------------

    def _enter(self, now_s: float) -> None:
        """Before any call that lets PySyncObj decide something."""
        self._now_s = now_s
        enter(now_s, self._rng)

    def _leave(self) -> Ready:
        engine, role = self._engine, None
        state = engine.state, engine.term, engine.leader
        if state != self._told:
            self._told = state
            role = Leadership(self.role, engine.term, self.leader_id)
        elif not (
            self._messages
            or self._commit_due
            or self._append_due is not None
            or self._vote_due is not None
            or self._must_start_over
        ):
            return NOTHING
        ready = Ready(
            self._vote_due,
            self._truncate_due,
            self._append_due,
            self._commit_due,
            self._messages,
            role,
            self._has_more,
            self._must_start_over,
        )
        if self._append_due is not None:
            self._was_truncated = self._truncate_due is not None
        self._vote_due = self._truncate_due = self._append_due = None
        self._messages = []
        self._commit_due = 0
        self._has_more = self._must_start_over = False
        return ready
