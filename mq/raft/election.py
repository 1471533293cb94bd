"""Which node leads: the guards around PySyncObj's elections.

PySyncObj decides, behind `Engine`: roles, terms, votes, election timer. The guards are decided
here:

    pre-vote         a node asks whether it could win before it raises its term, so that one that
                     was away does not depose a healthy leader
    one vote a node  PySyncObj counts messages, not nodes
    catch up first   a node that may have lost what it had acknowledged (see `VoteTrust`) neither
                     votes nor stands nor counts until it has, from a leader that others keep in
                     office, all that was committed; unless all members are there and none of them
                     has more than the candidate: then no other node has what was forgotten
    prompt           a connection that the leader's machine reset is a reason to ask at once
    higher terms     any answer of a higher term ends a leadership, not only a request

Of the log an election sees where it ends, and nothing of how entries get there: `Replication` tells
of leaders that it hears (`follow`) and of terms (`adopt_term`), and reads who leads.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection

from mq.raft.contracts import Role, Timing
from mq.raft.engine import Engine, Peer, enter
from mq.raft.raft_log import FIRST_INDEX, RaftLog
from mq.raft.ready import ReadyBuilder
from mq.raft.vote import VoteFile
from mq.wire.v1.raft_pb2 import (
    PreVoteRequest,
    PreVoteResponse,
    RaftFrame,
    VoteRequest,
    VoteResponse,
)

# The longest wait before a node asks for votes when the leader's connection broke: random, so that
# not all nodes ask at the same time.
_PROMPT_S = 0.15
_ROLES = tuple(Role)  # a look-up is quicker than Role(number)

Step = Callable[[Peer, RaftFrame, memoryview], None]


class Election:
    """For one thread. `enter` comes before any event."""

    def __init__(
        self,
        node_id: str,
        members: Collection[str],
        raft_log: RaftLog,
        vote: VoteFile,
        timing: Timing,
        rng: random.Random,
        out: ReadyBuilder,
    ) -> None:
        """`vote` is only read."""
        self.node_id = node_id
        self.is_voter = node_id in members
        self.elections_total = 0
        # Set by an event, cleared by the core, which lets `Replication` perform it: this node was
        # elected; followers have to hear from this leader.
        self.is_won = False
        self.is_heartbeat_due = False
        self.steps: dict[str, Step] = {
            "pre_vote_request": self._on_pre_vote_request,
            "pre_vote_response": self._on_pre_vote_response,
            "vote_request": self._on_vote_request,
            "vote_response": self._on_vote_response,
            "timeout_now": self._on_timeout_now,
        }
        self._log = raft_log
        self._vote = vote
        self._timing = timing
        self._rng = rng
        self._out = out
        self._leader_seen_s = -math.inf
        self._followed = ("", 0, math.inf)  # leader, term, since when
        self._proposed_term = 0
        self._pre_votes: set[str] = set()
        self._supporters: set[str] = set()  # nodes that grant, or would if they could vote
        self._unanimous_term = 0
        self._may_stand_in_term = 0
        self._votes: set[tuple[int, str]] = set()
        self.enter(out.now_s)
        self._engine = Engine(node_id, members, raft_log, vote, timing, self)

    # -- facts -------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self._engine.term

    @property
    def role(self) -> Role:
        return _ROLES[self._engine.state]

    @property
    def state(self) -> tuple[int, int, Peer | None]:
        """Role, term and leader, to be compared."""
        engine = self._engine
        return engine.state, engine.term, engine.leader

    @property
    def is_leader(self) -> bool:
        return self._engine.state == Role.LEADER

    @property
    def leader(self) -> Peer | None:
        return self._engine.leader

    @property
    def others(self) -> set[Peer]:
        """The members that vote, without this node."""
        return self._engine.others

    @property
    def peers(self) -> Collection[Peer]:
        """All nodes that were ever named, members or not."""
        return self._engine.peers.values()

    def peer(self, peer_id: str) -> Peer:
        return self._engine.peer(peer_id)

    @property
    def wants_tick(self) -> bool:
        """The next tick cannot wait for its time: it begins an election."""
        engine = self._engine
        return engine.state != Role.LEADER and not engine.election_deadline_s

    @property
    def has_sure_leader(self) -> bool:
        """A leader that was not deposed by others, with the help of this node before it forgot:
        this node has elected it, or it would have stepped down by now, because answers of nodes
        that have to catch up do not keep a leader in office.
        """
        leader_id, term, since_s = self._followed
        lasted_s = self._leader_seen_s - since_s
        is_lasting = term == self.term and lasted_s >= 2 * self._timing.fallback_s
        return self.is_leader or is_lasting or self._has_elected(leader_id)

    def must_catch_up(self, leader_id: str) -> bool:
        """A node that has to catch up may have promised a later term to another leader, and have
        forgotten it: its answers count for the leader that it has elected since, and no other.
        """
        return self._vote.must_catch_up and not self._has_elected(leader_id)

    def _has_elected(self, peer_id: str) -> bool:
        """In the current term, by all that this node remembers."""
        return self._engine.voted_for == peer_id

    # -- events ------------------------------------------------------------------------------------

    def enter(self, now_s: float) -> None:
        """Before any call that lets PySyncObj decide something."""
        self._out.now_s = now_s
        enter(now_s, self._rng)

    def tick(self) -> None:
        self._decide_election()
        term = self.term
        self._engine.tick()
        self.elections_total += self.term > term

    def set_members(self, members: Collection[str]) -> None:
        """From now on these vote and are counted."""
        engine = self._engine
        engine.others = {engine.peer(member) for member in members if member != self.node_id}
        self.is_voter = self.node_id in members

    def stand_at_once(self) -> None:
        """No other node could lead."""
        self._engine.election_deadline_s = 0

    def follow(self, peer: Peer, term: int) -> None:
        """This node leads in this term: no election is wanted. Nothing is said of the log."""
        now_s = self._out.now_s
        self._leader_seen_s = now_s
        if self._followed[:2] != (peer.id, term):
            self._followed = peer.id, term, now_s
        self._proposed_term = self._may_stand_in_term = 0
        engine = self._engine
        is_known = engine.leader is peer and engine.term == term
        if is_known and engine.state == Role.FOLLOWER and not engine.is_transferring:
            self._postpone()  # all that PySyncObj would do, and latency depends on it
        else:
            engine.leader_seen(peer, term)

    def leader_lost(self) -> None:
        """The leader's machine says that its process is gone."""
        engine = self._engine
        self._leader_seen_s = -math.inf
        engine.leader = None
        prompt_s = self._out.now_s + _PROMPT_S * self._rng.random()
        engine.election_deadline_s = min(engine.election_deadline_s, prompt_s)

    def adopt_term(self, term: int) -> None:
        """A higher term ends any role of this node."""
        if term > self.term:
            self._engine.set_term(term)
            self._engine.step_down()

    def step_down(self) -> None:
        """This leader cannot lead; others have the first chance to."""
        self._engine.step_down()
        self._postpone()

    # -- pre-votes ---------------------------------------------------------------------------------

    def _decide_election(self) -> None:
        """Lets PySyncObj's election timer go off only when the election could be won."""
        engine = self._engine
        if engine.state == Role.LEADER or engine.election_deadline_s >= self._out.now_s:
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
        is_first = self._log.last_index == FIRST_INDEX
        return self.is_voter and (not self._vote.must_catch_up or is_first)

    def _may_vote_for(self, last_index: int) -> bool:
        """A node that has to catch up helps to elect the first leader of a new group, in which no
        log has anything, and no other.
        """
        return not self._vote.must_catch_up or last_index == self._log.last_index == FIRST_INDEX

    def _postpone(self) -> None:
        timing = self._timing
        spread_s = (timing.election_max_s - timing.election_min_s) * self._rng.random()
        self._engine.election_deadline_s = self._out.now_s + timing.election_min_s + spread_s

    def _ask_pre_votes(self) -> None:
        self._postpone()
        self._engine.leader = None
        self._proposed_term = self.term + 1
        self._pre_votes = {self.node_id}
        self._supporters = {self.node_id}
        request = PreVoteRequest(
            proposed_term=self._proposed_term,
            last_index=self._log.last_index,
            last_term=self._log.last_term,
        )
        for peer_id in sorted(peer.id for peer in self.others):
            self._out.send(peer_id, self.term, pre_vote_request=request)

    def _on_pre_vote_request(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        request = message.pre_vote_request
        last = self._log.last_term, self._log.last_index
        would_grant = (
            (request.last_term, request.last_index) >= last
            and request.proposed_term > self.term
            and not self.is_leader
            and self._out.now_s - self._leader_seen_s >= self._timing.election_min_s
        )
        granted = would_grant and self._may_vote_for(request.last_index)
        response = PreVoteResponse(
            proposed_term=request.proposed_term, granted=granted, would_grant=would_grant
        )
        self._out.send(peer.id, self.term, pre_vote_response=response)

    def _on_pre_vote_response(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        self.adopt_term(message.term)
        if self.is_leader or peer not in self.others:
            return
        response = message.pre_vote_response
        if response.proposed_term == self._proposed_term == self.term + 1:
            if response.granted:
                self._pre_votes.add(peer.id)
            if response.would_grant:
                self._supporters.add(peer.id)
            self._stand_if_winning()

    def _stand_if_winning(self) -> None:
        count, next_term = len(self.others) + 1, self.term + 1
        has_majority = self._may_stand() and len(self._pre_votes) > count / 2
        # In a group of two that becomes one of three, a majority may be without the candidate.
        is_unanimous = len(self._supporters) == count > 2
        if has_majority or is_unanimous:
            self._proposed_term = 0
            self._may_stand_in_term = next_term
            self._unanimous_term = next_term if is_unanimous else 0
            self._engine.election_deadline_s = 0

    # -- votes -------------------------------------------------------------------------------------

    def _on_vote_request(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        request = message.vote_request
        if request.is_unanimous or self._may_vote_for(request.last_index):
            self._engine.vote_requested(peer, message.term, request.last_index, request.last_term)

    def _on_vote_response(self, peer: Peer, message: RaftFrame, _: memoryview) -> None:
        self.adopt_term(message.term)
        if peer in self.others and self._is_first_vote(peer.id, message.term):
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

    # -- decisions of PySyncObj --------------------------------------------------------------------

    def save_vote(self, term: int, voted_for: str | None) -> None:
        self._out.vote = term, voted_for

    def request_vote(self, peer: Peer) -> None:
        request = VoteRequest(
            last_index=self._log.last_index,
            last_term=self._log.last_term,
            is_unanimous=self._unanimous_term == self.term,
        )
        self._out.send(peer.id, self.term, vote_request=request)

    def grant_vote(self, peer: Peer) -> None:
        self._out.send(peer.id, self.term, vote_response=VoteResponse())

    def lead(self) -> None:
        self.is_won = True

    def send_heartbeats(self) -> None:
        self.is_heartbeat_due = True
