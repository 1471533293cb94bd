"""Who leads: PySyncObj's elections, with what they lack.

Guards, each an override or a check before PySyncObj sees the message:

    pre-vote         a node asks whether it could win before it raises its term, so that one that
                     was away does not depose a healthy leader
    one vote a node  PySyncObj counts messages, not nodes
    catch up first   a node that may have lost what it had acknowledged (see `Memory`) neither votes
                     nor stands until it has, from a leader that others keep in office, all
                     that was committed; unless all members are there and none of them has more
                     than the candidate, because somebody else has what such a node has forgotten
    prompt           a connection that the leader's machine reset is a reason to ask at once
    higher terms     any answer of a higher term ends a leadership, not only a request

What is written to the vote file is durable before a message leaves, because PySyncObj writes it
through `Journal.setCurrentTerm` first.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

from mq.raft.contracts import Timing
from mq.raft.frames import Frame
from mq.raft.hooks import (
    Peer,
    PySyncObjTransport,
    Role,
    SyncObj,
    SyncObjConf,
    now_s,
    peer_of,
    random_share,
)
from mq.raft.journal import Journal
from mq.raft.memory import FIRST_INDEX
from mq.wire.v1.raft_pb2 import (
    PreVoteRequest,
    PreVoteResponse,
    RaftFrame,
    VoteRequest,
    VoteResponse,
)

# How long, at most, a node waits before it asks for votes when the leader's connection broke: not
# at once, or all would ask at the same time.
_PROMPT_S = 0.15
_ROLES = tuple(Role)  # a look-up is quicker than Role(number), and it is asked for all the time
_UNLIMITED = 1 << 60


class Host(Protocol):
    """What an engine needs around it."""

    def send(self, peer_id: str, frame: Frame) -> None: ...

    def has_room(self, peer_id: str) -> bool: ...

    def append_queued(self) -> bool:
        """Writes what is waiting to the log. Whether there was any."""
        ...

    def apply_through(self, raft_index: int) -> int:
        """Applies entries, not necessarily all of them: up to which."""
        ...


class _Outbox(PySyncObjTransport):  # type: ignore[misc] # PySyncObj has no types
    """PySyncObj's transport: hands its messages to the engine, which knows the guards."""

    def __init__(self, election: Election) -> None:
        super().__init__(election, None, [])
        self._election = election

    def send(self, node: Peer, message: dict[str, object]) -> None:
        self._election.send_message(node.id, message)

    def deliver(self, node: Peer, message: dict[str, object]) -> None:
        self._onMessageReceived(node, message)

    # Names of PySyncObj's. Connections follow from `Links.set_peers`.

    def addNode(self, node: Peer) -> None:  # noqa: N802
        pass

    def dropNode(self, node: Peer) -> None:  # noqa: N802
        pass

    def destroy(self) -> None:
        pass


class _NoPoller:
    def poll(self, timeout: float) -> None:
        """Sockets are not PySyncObj's here."""


class Election(SyncObj):  # type: ignore[misc]
    # PySyncObj's, checked at start.
    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__raftLeader: Peer | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__transferInProgress: bool
    _SyncObj__otherNodes: set[Peer]

    def __init__(
        self, node_id: str, members: Collection[str], journal: Journal, host: Host, timing: Timing
    ) -> None:
        self.node_id = node_id
        self.journal = journal
        self.host = host
        self.timing = timing
        self.is_voter = node_id in members
        self.elections_total = 0
        self._outbox = _Outbox(self)
        self._leader_seen_s = -math.inf
        self._followed = ("", 0, math.inf)  # leader, term, since when
        self._proposed_term = 0
        self._pre_votes: set[str] = set()
        self._supporters: set[str] = set()  # who grants, and who would
        self._unanimous_term = 0
        self._may_stand_in_term = 0
        self._votes: set[tuple[int, str]] = set()
        conf = SyncObjConf(
            autoTick=False,
            journalFile=journal,
            appendEntriesPeriod=timing.heartbeat_s,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            leaderFallbackTimeout=timing.fallback_s,
            connectionTimeout=timing.election_max_s,
            # Its chunked path is broken, its snapshots are not safe: neither is ever taken.
            appendEntriesBatchSizeBytes=_UNLIMITED,
            logCompactionMinEntries=_UNLIMITED,
            logCompactionMinTime=_UNLIMITED,
            fullDumpFile=None,
            dynamicMembershipChange=False,
            pollerType="select",
        )
        others = [peer_of(member) for member in sorted(members) if member != node_id]
        super().__init__(peer_of(node_id), others, conf, nodeClass=Peer, transport=self._outbox)
        self._poller = _NoPoller()

    # -- facts -------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self._SyncObj__raftCurrentTerm

    @property
    def role(self) -> Role:
        return _ROLES[self._SyncObj__raftState]

    @property
    def leader_id(self) -> str | None:
        leader = self._SyncObj__raftLeader
        return leader.id if leader is not None else None

    @property
    def others(self) -> set[Peer]:
        """The members that vote, without this node."""
        return self._SyncObj__otherNodes

    # -- messages ----------------------------------------------------------------------------------

    def deliver(self, peer_id: str, message: dict[str, object]) -> None:
        """To PySyncObj."""
        self._outbox.deliver(peer_of(peer_id), message)

    def send_frame(self, peer_id: str, body: bytes | memoryview = b"", **content: object) -> None:
        """With our term: who has a higher one drops it, who has a lower one learns."""
        message = RaftFrame(term=self.term, **content)  # type: ignore[arg-type]
        self.host.send(peer_id, Frame(message, body))

    def send_message(self, peer_id: str, message: dict[str, object]) -> None:
        """From PySyncObj."""
        kind = message["type"]
        if kind == "request_vote":
            last = self.journal[-1]
            request = VoteRequest(
                last_index=last.raft_index,
                last_term=last.term,
                is_unanimous=self._unanimous_term == self.term,
            )
            self.send_frame(peer_id, vote_request=request)
        elif kind == "response_vote":
            self.send_frame(peer_id, vote_response=VoteResponse())
        else:
            raise RuntimeError(f"PySyncObj sends {kind}, which has no place here")

    def receive_vote_request(self, peer_id: str, term: int, request: VoteRequest) -> None:
        if request.is_unanimous or self._may_vote_for(request.last_index):
            message = {
                "type": "request_vote",
                "term": term,
                "last_log_index": request.last_index,
                "last_log_term": request.last_term,
            }
            self.deliver(peer_id, message)

    def receive_vote_response(self, peer_id: str, term: int) -> None:
        self.adopt_term(term)
        if peer_of(peer_id) in self.others and self._is_first_vote(peer_id, term):
            self.deliver(peer_id, {"type": "response_vote", "term": term})

    def _is_first_vote(self, peer_id: str, term: int) -> bool:
        vote = (term, peer_id)
        if term != self.term or vote in self._votes:
            return False
        self._votes = {seen for seen in self._votes if seen[0] == term} | {vote}
        return True

    def adopt_term(self, term: int) -> None:
        """Somebody is in a higher term: whatever we were is over."""
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
            self.step_down()

    def step_down(self) -> None:
        self._SyncObj__setState(Role.FOLLOWER)
        self._SyncObj__raftLeader = None

    # -- standing for election ---------------------------------------------------------------------

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        self._decide_election()
        was_candidate_in = self.term
        super()._onTick(timeToWait)
        self.elections_total += self.term > was_candidate_in

    def _decide_election(self) -> None:
        """Lets PySyncObj's election timer go off only when the election could be won."""
        if self.role == Role.LEADER or self._SyncObj__raftElectionDeadline >= now_s():
            return
        if not self.is_voter:
            self._postpone()
        elif self._SyncObj__transferInProgress or not self.others:
            pass
        elif self._may_stand_in_term == self.term + 1:
            self._may_stand_in_term = 0
        else:
            self._ask_pre_votes()

    def _may_stand(self) -> bool:
        last_index = self.journal.log.last_index
        return self.is_voter and (not self.journal.vote.must_catch_up or last_index == FIRST_INDEX)

    def _may_vote_for(self, last_index: int) -> bool:
        """A node that has to catch up helps to elect the first leader of a new group, where nobody
        has anything, and no other.
        """
        own_last_index = self.journal.log.last_index
        return not self.journal.vote.must_catch_up or last_index == own_last_index == FIRST_INDEX

    def stand_at_once(self) -> None:
        """Nobody else could lead."""
        self._SyncObj__raftElectionDeadline = 0

    def _postpone(self) -> None:
        timing = self.timing
        spread = (timing.election_max_s - timing.election_min_s) * random_share()
        self._SyncObj__raftElectionDeadline = now_s() + timing.election_min_s + spread

    def _ask_pre_votes(self) -> None:
        self._postpone()
        self._SyncObj__raftLeader = None
        self._proposed_term = self.term + 1
        self._pre_votes = {self.node_id}
        self._supporters = {self.node_id}
        last = self.journal[-1]
        request = PreVoteRequest(
            proposed_term=self._proposed_term, last_index=last.raft_index, last_term=last.term
        )
        for peer in sorted(self.others, key=lambda peer: str(peer.id)):
            self.send_frame(peer.id, pre_vote_request=request)

    def receive_pre_vote_request(self, peer_id: str, request: PreVoteRequest) -> None:
        last = self.journal[-1]
        is_current = (request.last_term, request.last_index) >= (last.term, last.raft_index)
        would_grant = (
            is_current
            and request.proposed_term > self.term
            and self.role != Role.LEADER
            and now_s() - self._leader_seen_s >= self.timing.election_min_s
        )
        granted = would_grant and self._may_vote_for(request.last_index)
        response = PreVoteResponse(
            proposed_term=request.proposed_term, granted=granted, would_grant=would_grant
        )
        self.send_frame(peer_id, pre_vote_response=response)

    def receive_pre_vote_response(self, peer_id: str, term: int, response: PreVoteResponse) -> None:
        self.adopt_term(term)
        if self.role == Role.LEADER or peer_of(peer_id) not in self.others:
            return
        if response.proposed_term == self._proposed_term == self.term + 1:
            if response.granted:
                self._pre_votes.add(peer_id)
            if response.would_grant:
                self._supporters.add(peer_id)
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
            self._SyncObj__raftElectionDeadline = 0

    def leader_seen(self, peer_id: str, term: int) -> None:
        """A current leader spoke: no election is wanted."""
        self._leader_seen_s = now_s()
        if self._followed[:2] != (peer_id, term):
            self._followed = peer_id, term, now_s()
        self._proposed_term = self._may_stand_in_term = 0

    @property
    def has_sure_leader(self) -> bool:
        """One that others have not deposed behind its back, with the help of this node before it
        forgot: this node has elected it, or it would have stepped down by now, because answers of
        who has to catch up do not keep a leader.
        """
        leader_id, term, since_s = self._followed
        lasted_s = self._leader_seen_s - since_s
        is_lasting = term == self.term and lasted_s >= 2 * self.timing.fallback_s
        return self.role == Role.LEADER or is_lasting or self.has_elected(leader_id)

    def has_elected(self, peer_id: str) -> bool:
        """By all that this node remembers."""
        vote = self.journal.vote
        return (vote.term, vote.voted_for) == (self.term, peer_id)

    def leader_lost(self) -> None:
        """The leader's machine says that its process is gone."""
        self._leader_seen_s = -math.inf
        self._SyncObj__raftLeader = None
        prompt = now_s() + _PROMPT_S * random_share()
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, prompt)
