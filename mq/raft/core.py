"""Raft without disk, network or clock: events go in, a `Ready` says what to do about them.

`tick`, `step`, `propose` and `synced` return a `Ready`. The node performs it in the order of its
fields: a vote is durable before a message tells of it, entries are in the log before anything
counts them. A `Ready` with `append` is answered with `appended` or `refused`.

`Election` decides which node leads, with PySyncObj behind it; `Replication` decides which entries
are sent, taken, answered for and committed. This is the door to both: it hands each event to one of
them, and an election that is won to the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from mq.errors import MqError
from mq.logging import get_logger
from mq.raft.contracts import Leadership, Role, Timing
from mq.raft.election import Election
from mq.raft.engine import Peer
from mq.raft.frames import Frame
from mq.raft.progress import Progress
from mq.raft.raft_log import RaftLog
from mq.raft.ready import Ready, ReadyBuilder
from mq.raft.replication import Replication
from mq.raft.vote import VoteFile
from mq.wire.v1.raft_pb2 import TimeoutNow

log = get_logger(__name__)


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
        election_class: type[Election] = Election,
        replication_class: type[Replication] = Replication,
    ) -> None:
        """`vote` is only read. `has_room` says whether the connection to a peer takes more."""
        self.node_id = node_id
        self.log = raft_log
        self.timing = timing
        out = self._out = ReadyBuilder(now_s)
        self.election = election_class(node_id, members, raft_log, vote, timing, rng, out)
        self.replication = replication_class(
            raft_log, self.election, timing, applied_index, has_room, out
        )
        self._steps = self.election.steps | self.replication.steps
        self._told: tuple[int, int, Peer | None] = Role.FOLLOWER, vote.term, None

    # -- events ------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> Ready:
        """Now and then, and when `wants_tick`: elections, heartbeats, entries to apply."""
        self.election.enter(now_s)
        if self.replication.is_overtaken:
            self._resign()
        self.election.tick()
        self._lead()
        self.replication.commit()
        self.replication.apply()
        return self._leave()

    def step(self, peer_id: str, frame: Frame, now_s: float) -> Ready:
        """A message of another node."""
        self.election.enter(now_s)
        message, body = frame
        kind = message.WhichOneof("content")
        receive = self._steps.get(kind or "")
        if receive is None:
            log.warning("a frame that has no place here", peer=peer_id, kind=kind)
        else:
            receive(self.election.peer(peer_id), message, memoryview(body))
            self._lead()
        return self._leave()

    def propose(self, now_s: float) -> Ready:
        """The log has more entries of this leader, of its term: sends and counts them."""
        if not self.election.is_leader:
            raise RuntimeError(f"{self.node_id} does not lead")
        return self.appended(now_s)

    def appended(self, now_s: float) -> Ready:
        """The log has the entries of the last Ready."""
        self._out.now_s = now_s
        self.replication.appended()
        return self._leave()

    def refused(self, error: MqError, now_s: float) -> Ready:
        """The disk is full, or the entries are not intact: the log has nothing of them."""
        self.election.enter(now_s)
        self.replication.refused(error)
        return self._leave()

    def synced(self, raft_index: int, now_s: float) -> Ready:
        """Entries up to this one are on disk."""
        self._out.now_s = now_s
        self.replication.synced(raft_index)
        return self._leave()

    def applied(self, raft_index: int) -> None:
        """The state machine has applied entries up to this one."""
        self.replication.applied_index = raft_index

    def replicate(self, now_s: float) -> Ready:
        """A connection has room again, or the last Ready had `has_more`."""
        self._out.now_s = now_s
        self.replication.send_entries()
        return self._leave()

    def connected(self, peer_id: str) -> None:
        progress = self.progress(peer_id)
        progress.is_connected = True
        progress.start_probing()

    def disconnected(self, peer_id: str, now_s: float, *, was_lost: bool) -> Ready:
        """`was_lost`: by the other side or the network, not by a decision of this node."""
        self.election.enter(now_s)
        self.progress(peer_id).is_connected = False
        if was_lost and self.role == Role.FOLLOWER and self.leader_id == peer_id:
            self.election.leader_lost()
        return self._leave()

    def transfer_leadership(self, now_s: float, to: str = "") -> Ready:
        """Asks the follower that has everything, if there is one, to take over; only this one."""
        self._out.now_s = now_s
        self._ask_to_lead(to)
        return self._leave()

    def _ask_to_lead(self, to: str = "") -> None:
        for peer_id in self.other_ids:
            progress = self.progress(peer_id)
            is_able = progress.is_connected and progress.is_voter
            is_complete = progress.match_index == self.log.last_index
            if to in ("", peer_id) and is_able and is_complete and self.election.is_leader:
                self._out.send(peer_id, self.term, timeout_now=TimeoutNow())
                break

    def started_over(self, leader_id: str, term: int, now_s: float) -> Ready:
        """The first call to a core whose log is the beginning of this leader's."""
        self.election.enter(now_s)
        self.replication.started_over(self.election.peer(leader_id), term)
        return self._leave()

    # -- members -----------------------------------------------------------------------------------

    def set_members(self, members: Collection[str], now_s: float) -> None:
        """From now on these vote and are counted. The progress of learners is kept."""
        self._out.now_s = now_s
        before = self.election.others
        self.election.set_members(members)
        self.replication.set_voters(before)

    def add_learner(self, peer_id: str) -> None:
        """Entries are sent to it, but it is not counted."""
        self.replication.add_learner(self.election.peer(peer_id))

    def remove_learner(self, peer_id: str) -> None:
        self.replication.remove_learner(self.election.peer(peer_id))

    # -- facts -------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self.election.term

    @property
    def role(self) -> Role:
        return self.election.role

    @property
    def leader_id(self) -> str | None:
        leader = self.election.leader
        return leader.id if leader is not None else None

    @property
    def other_ids(self) -> list[str]:
        """The members that vote, without this node."""
        return sorted(peer.id for peer in self.election.others)

    @property
    def commit_index(self) -> int:
        return self.replication.commit_index

    def progress(self, peer_id: str) -> Progress:
        """To be read."""
        return self.election.peer(peer_id).progress

    def match_index(self, peer_id: str) -> int:
        return self.progress(peer_id).match_index

    def is_healthy(self, peer_id: str) -> bool:
        """A follower that takes what it gets, and votes."""
        progress = self.progress(peer_id)
        return progress.is_connected and progress.is_voter and not progress.is_probing

    @property
    def has_caught_up(self) -> bool:
        """This node may vote again, if it had to catch up."""
        return self.election.has_sure_leader and self.replication.has_all_committed

    # -- inside ------------------------------------------------------------------------------------

    def _resign(self) -> None:
        """Steps down before it could be asked for its vote, which it could not save: callers that
        wait are told now, not when the disk moves again.
        """
        log.warning(
            "the disk of this leader stands still while the others go on: stepping down",
            node=self.node_id,
            durable_index=self.log.durable_index,
            last_index=self.log.last_index,
        )
        self._ask_to_lead()
        self.election.step_down()

    def _lead(self) -> None:
        """Hands an election that is won, and a heartbeat that is due, to the replication."""
        election = self.election
        if election.is_won:
            election.is_won = False
            self.replication.lead()
        if election.is_heartbeat_due:
            election.is_heartbeat_due = False
            self.replication.send_appends()

    def _leave(self) -> Ready:
        state, role = self.election.state, None
        if state != self._told:
            self._told = state
            role = Leadership(self.role, self.term, self.leader_id)
        return self._out.take(role)
