"""One node's part of the replicated log, without sockets, threads or clocks of its own.

It is driven from outside: `tick` now and then and after everything else, `receive` for each frame,
`on_synced` when a sync of the log has ended. It asks for three things: frames to be sent, a sync to
be started, a listener to be told of roles. So a simulation runs it in virtual time and `Node` on an
asyncio loop, the same code.

Any error that is not a state of the disk or a caller's ends the replica: it stops leading, answers
all who wait, and does nothing more. A node that is not sure of its log is better dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mq.errors import DiskFull, MalformedEntries, MessageTooLarge, MqError, NodeStopped, NotLeader
from mq.logging import get_logger
from mq.raft.contracts import Driver, Leadership, Links, Settings, StateMachine, Status
from mq.raft.engine import Engine
from mq.raft.frames import Frame
from mq.raft.handshake import Past
from mq.raft.hooks import Role, now_s
from mq.raft.journal import Journal
from mq.raft.membership import Membership, checkpoint_entry
from mq.raft.memory import FIRST_INDEX, Memory
from mq.raft.proposals import Outcome, Proposal, Proposals
from mq.raft.status import status_of
from mq.raft.transfer import Transfer
from mq.raft.vote import VoteFile
from mq.raft.writer import Writer
from mq.store.commitlog import CommitLog
from mq.store.format import Kind
from mq.store.scan import check_opening
from mq.wire.v1.raft_pb2 import AppendAnswer, RaftFrame, Roster, StartOver

log = get_logger(__name__)

_KEEP_ALIVE_HEARTBEATS = 10

_TO_ENGINE: dict[str | None, Callable[[Engine, str, RaftFrame, memoryview], None]] = {
    "append": lambda e, peer, m, body: e.receive_append(peer, m.term, m.append, body),
    "append_answer": lambda e, peer, m, _: e.receive_append_answer(peer, m.term, m.append_answer),
    "pre_vote_request": lambda e, peer, m, _: e.receive_pre_vote_request(peer, m.pre_vote_request),
    "pre_vote_response": lambda e, peer, m, _: e.receive_pre_vote_response(
        peer, m.term, m.pre_vote_response
    ),
    "vote_request": lambda e, peer, m, _: e.receive_vote_request(peer, m.term, m.vote_request),
    "vote_response": lambda e, peer, m, _: e.receive_vote_response(peer, m.term),
    "timeout_now": lambda e, peer, m, _: e.receive_timeout_now(peer, m.term),
}


class Replica:
    def __init__(
        self,
        settings: Settings,
        commitlog: CommitLog,
        vote: VoteFile,
        machine: StateMachine,
        links: Links,
        driver: Driver,
        engine_class: type[Engine] = Engine,
    ) -> None:
        """Starts where the log ends."""
        self.node_id = settings.node_id
        self.log = commitlog
        self.vote = vote
        self.engine: Engine | None = None
        self.failure: MqError | None = None
        self.start_overs = 0
        self._settings = settings
        self._machine = machine
        self._links = links
        self._driver = driver
        self._engine_class = engine_class
        limits = settings.limits
        self._proposals = Proposals(
            count_max=limits.proposals_max, bytes_max=limits.proposals_bytes_max
        )
        self._membership = Membership(self.node_id, commitlog, links, settings.members)
        self._changes = self._membership.changes
        self._writer = Writer(
            commitlog, machine, self._proposals, self._membership, driver.now_ms, limits
        )
        self.memory = Memory(self.node_id, commitlog, vote)
        self.transfer = Transfer()
        self._is_stopping = False
        self._connected: set[str] = set()
        self._leadership = Leadership(Role.FOLLOWER, vote.term, None, None)
        self._sync_requested_index = 0
        self._keep_alive_s = 0.0
        is_new = not settings.is_joining and not vote.must_catch_up
        if is_new and self._is_log_empty:
            self._be_born()
        if self._is_log_empty:
            log.info("no log yet: waiting for the leader to send one", node=self.node_id)
            self._membership.set_peers()
        else:
            self._start_engine()

    @property
    def _is_log_empty(self) -> bool:
        return self.log.last_index < self.log.first_index

    # -- start -------------------------------------------------------------------------------------

    def _be_born(self) -> None:
        """The same entry on each member of a new group, byte for byte."""
        state, members = self._machine.checkpoint_payload(), self._membership.members
        self.log.roll(checkpoint_entry(state, members, term=0, stored_at_ms=0))
        self.log.sync()
        self._machine.apply_through(FIRST_INDEX)

    def _start_engine(self) -> None:
        members = self._membership.read()
        self.memory.check(members)
        journal = Journal(
            self.log,
            self.vote,
            applied_index=self._machine.applied_index,
            now_ms=self._driver.now_ms,
            counts_unsynced=self._settings.counts_unsynced,
            on_truncate=self._forget,
        )
        self.engine = self._engine_class(
            self.node_id,
            members,
            journal,
            self,
            self._settings.timing,
            applied_index=self._machine.applied_index,
        )
        self._membership.refresh(self.engine.commit_index)
        if not self.engine.others and self.engine.is_voter:
            self.engine.stand_at_once()
        for peer_id in sorted(self._connected):
            self._greet(peer_id)

    # -- what the driver calls ---------------------------------------------------------------------

    def tick(self) -> None:
        if self.engine is not None:
            self._step(self._tick)

    def _tick(self) -> None:
        engine = self._engine()
        engine.doTick()
        # Two followers have nothing to say to each other, but a connection that is silent for long
        # is taken for dead.
        if now_s() >= self._keep_alive_s:
            pause_s = self._settings.timing.heartbeat_s * _KEEP_ALIVE_HEARTBEATS
            self._keep_alive_s = now_s() + pause_s
            self._send_roster(engine)

    @property
    def wants_tick(self) -> bool:
        """There is something to do at once."""
        engine = self.engine
        return engine is not None and self.failure is None and engine.wants_tick

    @property
    def has_more_to_apply(self) -> bool:
        """Even when nothing else happens."""
        engine = self.engine
        return engine is not None and self.failure is None and engine.has_more_to_apply

    def receive(self, peer_id: str, frame: Frame) -> None:
        self._step(self._receive, peer_id, frame)

    def on_synced(self) -> None:
        if self.engine is not None:
            self._step(self.engine.on_synced)

    def on_connected(self, peer_id: str) -> None:
        self._connected.add(peer_id)
        if self.engine is not None:
            self._step(self._greet, peer_id)

    def on_disconnected(self, peer_id: str, *, was_lost: bool) -> None:
        self._connected.discard(peer_id)
        if (engine := self.engine) is not None:
            self._step(lambda: engine.on_disconnected(peer_id, was_lost=was_lost))

    def on_writable(self) -> None:
        if self.engine is not None:
            self._step(self.engine.send_appends)

    def fail(self, error: MqError) -> None:
        """The disk or the machine is not what it has to be: give up."""
        if self.failure is None:
            self.failure = error
            log.error("the replica stops", node=self.node_id, error=str(error))
            stopped = NodeStopped(f"this node has stopped: {error}")
            self._proposals.end_leadership(stopped)
            self._changes.end(stopped)
            self._set_leadership(Leadership(Role.FOLLOWER, self._leadership.term, None, None))

    def _step(self, action: Callable[..., object], *arguments: object) -> None:
        if self.failure is not None:
            return
        try:
            action(*arguments)
            self._settle()
        except MqError as error:
            self.fail(error)
        except Exception as error:
            log.exception("this is a bug", node=self.node_id)
            self.fail(NodeStopped(f"an error that should not be: {error!r}"))

    def _settle(self) -> None:
        """After each step: whatever follows from where the log and the engine are now."""
        engine = self.engine
        if engine is None:
            return
        self._refresh_members(engine)
        self._trust_again(engine)
        role, term, leader_id = engine.role, engine.term, engine.leader_id
        if self._leadership[:3] != (role, term, leader_id):
            address = self.members.get(leader_id) if leader_id is not None else None
            self._set_leadership(Leadership(role, term, leader_id, address))
        if role == Role.LEADER:
            self._advance_change(engine)
            self.transfer.advance(engine, now_s(), is_settled=self._writer.is_settled)
        last_index = self.log.last_index
        if last_index != self._sync_requested_index and engine.journal.durable_index < last_index:
            self._sync_requested_index = last_index
            self._driver.request_sync()

    def _set_leadership(self, leadership: Leadership) -> None:
        before, self._leadership = self._leadership, leadership
        if before.role == Role.LEADER and leadership[:2] != before[:2]:
            self._writer.is_roll_due = False
            self.transfer.end()
            self._proposals.end_leadership(self._not_leader())
            self._end_change(self._not_leader())
        if before != leadership:
            self._driver.on_leadership(leadership)

    # -- proposing ---------------------------------------------------------------------------------

    def propose(
        self,
        kind: Kind,
        payload: Sequence[bytes | memoryview],
        done: Callable[[Outcome], None],
        context: Any = (),
    ) -> None:
        """Written with the next tick, together with all that waits. `done` is called exactly once.

        Raises NotLeader, FlowControl, MessageTooLarge, NodeStopped: nothing was written.
        """
        self._check_leads()
        size, size_max = sum(map(len, payload)), self._settings.limits.entry_bytes_max
        if size > size_max:
            raise MessageTooLarge(f"an entry of {size} bytes: at most {size_max} are allowed")
        self._proposals.put(Proposal(kind, payload, size, done, context))

    def _check_leads(self) -> None:
        if self.failure is not None:
            raise NodeStopped(f"this node has stopped: {self.failure}") from self.failure
        if self._leadership.role != Role.LEADER:
            raise self._not_leader()
        if self._is_stopping:
            raise NodeStopped("this node is stopping: another one will lead in a moment")

    def _not_leader(self) -> NotLeader:
        # The address that Raft knows is none for clients.
        return NotLeader(self._leadership.leader_id, None)

    # -- Host: what the engine calls ---------------------------------------------------------------

    def send(self, peer_id: str, frame: Frame) -> None:
        self._links.send(peer_id, frame)

    def has_room(self, peer_id: str) -> bool:
        return self._links.has_room(peer_id)

    def append_queued(self) -> bool:
        engine = self._engine()
        if engine.role != Role.LEADER or self.transfer.holds_pen:
            return False
        last_index = self.log.last_index
        is_round_open = engine.commit_index < last_index
        if self._writer.is_gathering(is_round_open=is_round_open, now_s=now_s()):
            return False
        error = self._writer.write(engine.term, now_s())
        if error is not None:
            # Others may have room. What is on its way keeps us from leaving.
            self._end_change(error)
            if self._writer.is_settled:
                engine.transfer_leadership()
        self._refresh_members(engine)
        return self.log.last_index > last_index

    def apply_through(self, raft_index: int) -> int:
        self._machine.apply_through(raft_index)
        applied_index = self._machine.applied_index
        self._proposals.applied(applied_index)
        self._changes.applied(applied_index)
        return applied_index

    def _forget(self, from_index: int) -> None:
        self._machine.forget(from_index)
        self._membership.forget()
        self._sync_requested_index = 0

    # -- frames ------------------------------------------------------------------------------------

    def _receive(self, peer_id: str, frame: Frame) -> None:
        message, body = frame
        term, kind = message.term, message.WhichOneof("content")
        self.memory.notice(message)
        if kind == "roster":
            self._receive_roster(message.roster)
        elif kind == "start_over":
            self._receive_start_over(peer_id, term, message.start_over, memoryview(body))
        elif self.engine is not None:
            if kind in _TO_ENGINE:
                _TO_ENGINE[kind](self.engine, peer_id, message, memoryview(body))
            else:
                log.warning("a frame that has no place here", peer=peer_id, kind=kind)
        elif kind == "append" and term >= self.vote.term:
            answer = AppendAnswer(next_index=FIRST_INDEX)
            self.send(peer_id, Frame(RaftFrame(term=term, append_answer=answer)))

    def _receive_start_over(
        self, peer_id: str, term: int, start: StartOver, body: memoryview
    ) -> None:
        """The entries that this node needs next are gone from the leader's log."""
        if self.engine is not None:
            if not self.engine.receive_start_over(peer_id, term, start, body):
                return
        elif term < self.vote.term:
            return
        try:
            check_opening(body, start.first_index)
        except MalformedEntries as error:
            log.warning("cannot start over with this", leader=peer_id, error=str(error))
            # So that the leader looks at what it sent, if it did.
            answer = AppendAnswer(next_index=FIRST_INDEX, must_catch_up=True)
            self.send(peer_id, Frame(RaftFrame(term=term, append_answer=answer)))
            return
        log.warning(
            "too far behind: starting over with the leader's log",
            leader=peer_id,
            first_index=start.first_index,
            own_last_index=self.log.last_index,
        )
        self.memory.forget(term)
        self.engine = None
        self.start_overs += 1
        self.log.start_over(start.first_index, start.log_offset)
        self._membership.forget()
        self._sync_requested_index = 0
        try:
            self.log.extend(body)
        except DiskFull as error:
            log.warning("cannot start over yet", leader=peer_id, error=str(error))
            return
        self._machine.start_over()
        self._start_engine()
        engine = self._engine()
        engine.follow(peer_id, term)
        engine.answer_start_over(peer_id)

    def _trust_again(self, engine: Engine) -> None:
        if self.vote.must_catch_up and engine.has_caught_up:
            self.memory.restore(engine.term)

    def _greet(self, peer_id: str) -> None:
        engine = self._engine()
        engine.on_connected(peer_id)
        engine.send_frame(peer_id, roster=self._membership.roster())
        if self._changes.learner_id == peer_id:
            engine.add_learner(peer_id)

    # -- members -----------------------------------------------------------------------------------

    @property
    def members(self) -> dict[str, str]:
        return self._membership.members

    @property
    def past(self) -> Past:
        """What tells this log from one that was restored, or was not."""
        return self._membership.past()

    def add_member(self, node_id: str, address: str, done: Callable[[Outcome], None]) -> None:
        """The node gets the log first and is counted when it has nearly all of it."""
        self._check_leads()
        self._changes.begin_add(self.members, node_id, address, done)
        self._membership.set_peers()
        if node_id in self._connected:
            self._engine().add_learner(node_id)

    def remove_member(self, node_id: str, done: Callable[[Outcome], None]) -> None:
        self._check_leads()
        engine, last_index = self._engine(), self.log.last_index
        matches = {
            peer.id: engine.match_index(peer.id) if engine.is_healthy(peer.id) else 0
            for peer in engine.others
        }
        matches[self.node_id] = last_index
        self._changes.begin_remove(matches, node_id, self.node_id, last_index, done)
        self._writer.is_roll_due = True

    def cancel_change(self) -> None:
        """A node that is being added and does not come; not when it is in the log already."""
        if self._changes.may_cancel:
            self._end_change(NodeStopped("the change of members was called off"))

    def _advance_change(self, engine: Engine) -> None:
        learner_id = self._changes.learner_id
        if learner_id is not None:
            # One that has to catch up would not be counted: as a member it would be in the way.
            is_healthy = engine.is_healthy(learner_id)
            match_index = engine.match_index(learner_id) if is_healthy else 0
            if self._changes.follow_learner(match_index, self.log.last_index):
                self._writer.is_roll_due = True

    def _end_change(self, error: MqError) -> None:
        learner_id = self._changes.learner_id
        self._changes.end(error)
        if learner_id is not None and self.engine is not None:
            self.engine.remove_learner(learner_id)
            self._membership.set_peers()

    def _refresh_members(self, engine: Engine) -> None:
        if self._membership.refresh(engine.commit_index):
            engine.set_members(self.members)
            self._send_roster(engine)

    def _send_roster(self, engine: Engine) -> None:
        roster = self._membership.roster()
        for peer_id in sorted(self._connected):
            engine.send_frame(peer_id, roster=roster)

    def _receive_roster(self, told: Roster) -> None:
        if self._membership.receive_roster(told) and self.engine is not None:
            log.warning("the other nodes say that this one is no member", node=self.node_id)

    # -- planned stop, status ----------------------------------------------------------------------

    def begin_stop(self) -> None:
        """Nothing new is taken."""
        self._is_stopping = True

    def hand_over(self) -> bool:
        """Whether another node was asked to lead: one that has all of the log."""
        engine = self.engine
        if self.failure is not None or engine is None or engine.role != Role.LEADER:
            return False
        return engine.transfer_leadership()

    def begin_transfer(self, node_id: str, wait_s: float) -> None:
        """To this node, or to the one that has most of the log; see `Transfer`. NotLeader,
        IllegalMembership: nothing has begun.
        """
        self._check_leads()
        self._changes.check_idle()
        self.transfer.begin(self._engine(), self.members, node_id, now_s(), wait_s)

    def end(self) -> None:
        """Answers all who still wait; the replica is not used any more."""
        if self.failure is None:
            self.failure = NodeStopped("this node has stopped")
            self._proposals.end_leadership(self.failure)
            self._changes.end(self.failure)

    @property
    def leadership(self) -> Leadership:
        return self._leadership

    @property
    def is_ready(self) -> bool:
        """There is a leader, and all of its term's commit point is applied here."""
        engine = self.engine
        return (
            engine is not None
            and engine.leader_id is not None
            and engine.has_all_committed
            and engine.applied_index == engine.commit_index
        )

    @property
    def waiting(self) -> int:
        return len(self._proposals)

    def status(self) -> Status:
        return status_of(self, self._changes, self._machine.applied_index)

    def _engine(self) -> Engine:
        if self.engine is None:
            raise RuntimeError("there is no log yet")
        return self.engine
