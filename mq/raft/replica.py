"""One node's part of the replicated log: performs what the `Core` decides.

Three layers, by what they may touch:

    Core      nothing: each event returns a `Ready`, what there is to do
    Replica   the log, the vote file, the state machine, the links: performs a `Ready` in the order
              of its fields, and tells the core. Owns what outlives a core, which is made anew when
              the log starts over: proposals and their outcomes, members, transfers, connections
    Node      asyncio: real time, sockets, the thread that syncs. A simulation takes its place, so
              that everything below runs in virtual time, with its own disk and network

The driver, a `Node` or the simulation, is asked for two things: to sync the log, and to tell of the
leadership.

Any error that is not a state of the disk or a caller's ends the replica: it stops leading, answers
all pending proposals, and does nothing more. A node that is not sure of its log is better dead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

from mq import memory
from mq.errors import DiskFull, MalformedEntries, MessageTooLarge, MqError, NodeStopped, NotLeader
from mq.logging import get_logger
from mq.raft.contracts import (
    Driver,
    Follower,
    Leadership,
    Links,
    Outcome,
    Role,
    Settings,
    StateMachine,
    Status,
)
from mq.raft.core import Core
from mq.raft.frames import Frame
from mq.raft.membership import Membership, checkpoint_entry
from mq.raft.proposals import Proposal, Proposals, Writer
from mq.raft.raft_log import FIRST_INDEX, RaftLog
from mq.raft.ready import NOTHING, Ready
from mq.raft.transfer import Transfer, TransferRequest
from mq.raft.vote import VoteFile, VoteTrust
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind
from mq.store.scan import check_opening
from mq.wire.v1.raft_pb2 import AppendAnswer, RaftFrame, Roster, StartOver

log = get_logger(__name__)

_KEEP_ALIVE_HEARTBEATS = 10


class Replica:
    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        settings: Settings,
        commitlog: CommitLog,
        vote: VoteFile,
        machine: StateMachine,
        links: Links,
        driver: Driver,
        *,
        core_class: Callable[..., Core] = Core,
        rng: random.Random | None = None,
    ) -> None:
        """Starts where the log ends. `rng` spreads election time-outs."""
        self.node_id = settings.node_id
        self.log = commitlog
        self.vote = vote
        self.core: Core | None = None
        self.failure: MqError | None = None
        self.start_overs = 0
        self._settings = settings
        self._machine = machine
        self._links = links
        self._driver = driver
        self._now_s = driver.now_s
        self._core_class = core_class
        self._rng = rng or random.Random()  # noqa: S311
        limits = settings.limits
        self._proposals = Proposals(
            count_max=limits.proposals_max, bytes_max=limits.proposals_bytes_max
        )
        self.membership = Membership(self.node_id, commitlog, links, settings.members)
        self._changes = self.membership.changes
        self._writer = Writer(
            commitlog, machine, self._proposals, self.membership, driver.now_ms, limits
        )
        self.trust = VoteTrust(self.node_id, commitlog, vote)
        self.transfer = Transfer()
        self._is_stopping = False
        self._connected: set[str] = set()
        self.leadership = Leadership(Role.FOLLOWER, vote.term, None)
        # Committed entries wait for a tick: one tick applies a bounded number of them.
        self.has_more_to_apply = False
        self._sync_requested_index = 0
        self._keep_alive_s = 0.0
        is_new = not settings.is_joining and not vote.must_catch_up
        if is_new and self._is_log_empty:
            self._bootstrap()
        if self._is_log_empty:
            log.info("no log yet: waiting for the leader to send one", node=self.node_id)
            self.membership.set_peers()
        else:
            self._start_core()

    @property
    def _is_log_empty(self) -> bool:
        return self.log.last_index < self.log.first_index

    # -- start -------------------------------------------------------------------------------------

    def _bootstrap(self) -> None:
        """Writes the first entry, the same on each member of a new group, byte for byte."""
        state, members = self._machine.checkpoint_payload(), self.membership.members
        self.log.roll(checkpoint_entry(state, members, term=0, stored_at_ms=0))
        self.log.sync()
        self._machine.apply_through(FIRST_INDEX)

    def _start_core(self) -> Core:
        members = self.membership.read()
        self.trust.check(members)
        core = self.core = self._core_class(
            self.node_id,
            members,
            RaftLog(self.log, counts_unsynced=self._settings.counts_unsynced),
            self.vote,
            self._settings.timing,
            applied_index=self._machine.applied_index,
            has_room=self._links.has_room,
            rng=self._rng,
            now_s=self._now_s(),
        )
        self.membership.refresh(core.commit_index)
        if not core.other_ids and core.election.is_voter:
            core.election.stand_at_once()
        for peer_id in sorted(self._connected):
            self._greet(core, peer_id)
        return core

    # -- calls of the driver -----------------------------------------------------------------------

    def tick(self) -> None:
        """Now and then: time has passed. And when `has_more_to_apply`."""
        self._with_core(self._tick)

    def write(self) -> None:
        """Soon after a proposal: everything that is queued by then is one append."""
        if self.core is not None:
            self._guarded(self._write, self.core)

    def _tick(self, core: Core) -> None:
        self._perform(core, core.tick(self._now_s()))
        self._write(core)
        # Two followers have nothing to say to each other, but a connection that is silent for long
        # is taken for dead.
        now_s = self._now_s()
        if now_s >= self._keep_alive_s:
            self._keep_alive_s = now_s + self._settings.timing.heartbeat_s * _KEEP_ALIVE_HEARTBEATS
            self._send_roster(core)

    def receive(self, peer_id: str, frame: Frame) -> None:
        self._guarded(self._receive, peer_id, frame)

    def on_synced(self) -> None:
        """The log is durable up to its `durable_index`."""
        self._with_core(self._on_synced)

    def _on_synced(self, core: Core) -> None:
        self._step(core, core.synced(self.log.durable_index, self._now_s()))

    def on_connected(self, peer_id: str) -> None:
        self._connected.add(peer_id)
        self._with_core(self._greet, peer_id)

    def on_disconnected(self, peer_id: str, *, was_lost: bool) -> None:
        self._connected.discard(peer_id)
        now_s = self._now_s()
        self._with_core(
            lambda core: self._step(core, core.disconnected(peer_id, now_s, was_lost=was_lost))
        )

    def on_writable(self) -> None:
        self._with_core(lambda core: self._perform(core, core.replicate(self._now_s())))

    def fail(self, error: MqError) -> None:
        """The disk or the state machine has failed: the replica gives up."""
        if self.failure is None:
            self.failure = error
            self.has_more_to_apply = False
            log.error("the replica stops", node=self.node_id, error=str(error))
            stopped = NodeStopped(f"this node has stopped: {error}")
            self._proposals.end_leadership(stopped)
            self._changes.end(stopped)
            self._set_leadership(Leadership(Role.FOLLOWER, self.leadership.term, None))
            self._proposals.tell()

    def _with_core(self, action: Callable[..., object], *arguments: object) -> None:
        if self.core is not None:
            self._guarded(action, self.core, *arguments)

    def _guarded(self, action: Callable[..., object], *arguments: object) -> None:
        if self.failure is not None:
            return
        try:
            action(*arguments)
            self._settle()
        except MqError as error:
            self.fail(error)
        except Exception as error:
            if memory.is_exhausted(error):
                # What was half done is done by the next start.
                self.fail(NodeStopped(memory.EXHAUSTED))
            else:
                log.exception("this is a bug", node=self.node_id)
                self.fail(NodeStopped(f"an error that should not be: {error!r}"))
        self._proposals.tell()

    def _settle(self) -> None:
        """After each step: everything beside the core follows the log and the core."""
        core = self.core
        if core is None:
            return
        if self.membership.is_stale:
            self._refresh_members(core)
        if self.vote.must_catch_up and core.has_caught_up:
            self.trust.restore(core.term)
        self.has_more_to_apply = core.replication.has_more_to_apply
        if self.leadership.role == Role.LEADER:
            if self._changes.current is not None:
                self._follow_learner(core)
            if self.transfer.request is not None:
                self._advance_transfer(core, self.transfer.request)
        last_index = core.log.last_index
        if last_index != self._sync_requested_index and core.log.durable_index < last_index:
            self._sync_requested_index = last_index
            self._driver.request_sync()

    # -- performing --------------------------------------------------------------------------------

    def _step(self, core: Core, ready: Ready) -> None:
        self._perform(core, ready)
        if core.election.wants_tick:
            self._tick(core)
        else:
            self._write(core)

    def _perform(self, core: Core, ready: Ready) -> None:
        if ready is NOTHING:
            return
        if ready.vote is not None:
            term, voted_for = ready.vote
            self.vote.save(term, voted_for, must_catch_up=self.vote.must_catch_up)
        if ready.truncate is not None:
            self._truncate(ready.truncate)
        if ready.append is not None and not self._append(core, ready.append):
            return
        if ready.commit:
            self._apply(core, ready.commit)
        if ready.messages:
            self._send(core, ready)
        if ready.append is not None:
            self._perform(core, core.appended(self._now_s()))
        if ready.role is not None:
            self._set_leadership(ready.role)

    def _send(self, core: Core, ready: Ready) -> None:
        """Also entries that followers still lack, until their connections are full; but the loop
        waits no longer than for a heartbeat.
        """
        for peer_id, frame in ready.messages:
            self._links.send(peer_id, frame)
        if not ready.has_more:
            return
        now_s = self._now_s()
        end_s = now_s + self._settings.timing.heartbeat_s
        while now_s < end_s:
            ready = core.replicate(now_s)
            for peer_id, frame in ready.messages:
                self._links.send(peer_id, frame)
            if not ready.has_more:
                return
            now_s = self._now_s()

    def _truncate(self, from_index: int) -> None:
        self._machine.forget(from_index)
        self.membership.forget()
        self._sync_requested_index = 0
        self.log.truncate(from_index)

    def _append(self, core: Core, append: memoryview | NewEntry) -> bool:
        """Returns False if the log does not take the entries, and the core has been told so."""
        try:
            if isinstance(append, memoryview):
                self.log.extend(append)
            else:
                self.log.append([append._replace(stored_at_ms=self._driver.now_ms())])
        except (DiskFull, MalformedEntries) as error:
            self._perform(core, core.refused(error, self._now_s()))
            return False
        self._refresh_members(core)  # they count from here on
        return True

    def _apply(self, core: Core, raft_index: int) -> None:
        self._machine.apply_through(raft_index)
        applied_index = self._machine.applied_index
        self._proposals.applied(applied_index)
        if self._changes.current is not None:
            self._changes.applied(applied_index)
        core.applied(applied_index)

    def _set_leadership(self, leadership: Leadership) -> None:
        before, self.leadership = self.leadership, leadership
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
        if self.leadership.role != Role.LEADER:
            raise self._not_leader()
        if self._is_stopping:
            raise NodeStopped("this node is stopping: another one will lead in a moment")

    def _not_leader(self) -> NotLeader:
        # The address that Raft knows is none for clients.
        return NotLeader(self.leadership.leader_id, None)

    def _write(self, core: Core) -> None:
        """Queued proposals, as far as they may be written now."""
        writer = self._writer
        if not self._proposals.queued and not writer.is_roll_due:
            return
        if not core.election.is_leader or self.transfer.blocks_writes:
            return
        now_s, last_index = self._now_s(), core.log.last_index
        if core.replication.has_open_round and writer.is_gathering(now_s):
            return
        failure = None
        try:
            writer.write(core.term, now_s)
        except DiskFull as error:
            failure = error
        if self.log.last_index > last_index:
            if self.membership.is_stale:
                self._refresh_members(core)  # they count from here on
            self._perform(core, core.propose(now_s))
        if failure is not None:
            self._refuse_writes(core, failure)

    def _refuse_writes(self, core: Core, error: MqError) -> None:
        """The disk is full. Others may have room; entries in flight keep this node from leaving."""
        self._proposals.refuse_queued(error)
        self._end_change(error)
        if self._writer.is_settled:
            self._ask_to_lead(core)

    # -- frames ------------------------------------------------------------------------------------

    def _receive(self, peer_id: str, frame: Frame) -> None:
        message, body = frame
        kind, core = message.WhichOneof("content"), self.core
        self.trust.notice(message)
        if kind == "roster":
            self._receive_roster(message.roster)
        elif core is not None:
            ready = core.step(peer_id, frame, self._now_s())
            if ready.truncate is not None and ready.truncate <= self._machine.applied_index:
                core = self._apply_anew(peer_id, ready.truncate)
                # It takes the entries, and says so, as if it had just been started.
                ready = core.step(peer_id, frame, self._now_s())
            self._step(core, ready)
            if ready.must_start_over:
                self._start_over(peer_id, message.term, message.start_over, memoryview(body))
        elif message.term < self.vote.term:
            pass
        elif kind == "start_over":
            self._start_over(peer_id, message.term, message.start_over, memoryview(body))
        elif kind == "append":
            answer = AppendAnswer(next_index=FIRST_INDEX)
            self._links.send(peer_id, Frame(RaftFrame(term=message.term, append_answer=answer)))

    def _start_over(self, peer_id: str, term: int, start: StartOver, body: memoryview) -> None:
        """The log is replaced by the beginning of the leader's."""
        try:
            check_opening(body, start.first_index)
        except MalformedEntries as error:
            log.warning("cannot start over with this", leader=peer_id, error=str(error))
            # A refusal makes the leader verify what it has sent.
            answer = AppendAnswer(next_index=FIRST_INDEX, must_catch_up=True)
            self._links.send(peer_id, Frame(RaftFrame(term=term, append_answer=answer)))
            return
        log.warning(
            "too far behind: starting over with the leader's log",
            leader=peer_id,
            first_index=start.first_index,
            own_last_index=self.log.last_index,
        )
        self.trust.revoke(term)
        self.core = None
        self.start_overs += 1
        self.log.start_over(start.first_index, start.log_offset)
        self.membership.forget()
        self._sync_requested_index = 0
        try:
            self.log.extend(body)
        except DiskFull as error:
            log.warning("cannot start over yet", leader=peer_id, error=str(error))
            return
        self._machine.start_over()
        core = self._start_core()
        self._perform(core, core.started_over(peer_id, term, self._now_s()))

    def _apply_anew(self, leader_id: str, from_index: int) -> Core:
        """The leader has other entries than those that are applied here: a majority has lost what
        was committed. With async flush a loss of power can do that: they are taken back by the
        checkpoint that opens the log, from which all that is left is applied again. With sync flush
        it takes disks of the past, and somebody who decides what is to be kept: NodeStopped.
        Nothing of the decision to cut the log has been performed yet.
        """
        if not self._settings.counts_unsynced:
            raise NodeStopped(
                f"entry {from_index}, which is applied here, is another one on {leader_id}, which "
                "leads: a majority of this set has lost what was committed, as when disks are put "
                "back to an earlier state. Nothing was changed here: to follow the others, start "
                'this node with an empty directory and raft.join = "yes"; to keep what only it '
                'has, see docs/OPERATIONS.md, "What fails"'
            )
        log.warning(
            "a majority has lost entries that were committed: they are taken back here, too",
            node=self.node_id,
            from_index=from_index,
            applied_index=self._machine.applied_index,
        )
        self.core = None
        self.start_overs += 1
        self.membership.forget()
        self._sync_requested_index = 0
        self.log.truncate(from_index)
        self._machine.start_over()
        return self._start_core()

    def _greet(self, core: Core, peer_id: str) -> None:
        core.connected(peer_id)
        self._send_roster(core, [peer_id])
        if self._changes.learner_id == peer_id:
            core.add_learner(peer_id)

    # -- members -----------------------------------------------------------------------------------

    def add_member(self, node_id: str, address: str, done: Callable[[Outcome], None]) -> None:
        """The node gets the log first and is counted when it has nearly all of it."""
        self._check_leads()
        self._changes.begin_add(self.membership.members, node_id, address, done)
        self.membership.set_peers()
        if node_id in self._connected:
            self._started_core().add_learner(node_id)

    def remove_member(self, node_id: str, done: Callable[[Outcome], None]) -> None:
        self._check_leads()
        core, last_index = self._started_core(), self.log.last_index
        matches = {
            peer_id: core.match_index(peer_id) if core.is_healthy(peer_id) else 0
            for peer_id in core.other_ids
        }
        matches[self.node_id] = last_index
        self._changes.begin_remove(matches, node_id, self.node_id, last_index, done)
        self._writer.is_roll_due = True

    def cancel_change(self) -> None:
        """Gives up a node that is being added and does not come; not when the log has it."""
        if self._changes.may_cancel:
            self._end_change(NodeStopped("the change of members was called off"))

    def _follow_learner(self, core: Core) -> None:
        learner_id = self._changes.learner_id
        if learner_id is None:
            return
        # One that has to catch up would not be counted: as a member it would be in the way.
        is_healthy = core.is_healthy(learner_id)
        match_index = core.match_index(learner_id) if is_healthy else 0
        if self._changes.follow_learner(match_index, self.log.last_index):
            self._writer.is_roll_due = True

    def _end_change(self, error: MqError) -> None:
        learner_id = self._changes.learner_id
        self._changes.end(error)
        if learner_id is not None and self.core is not None:
            self.core.remove_learner(learner_id)
            self.membership.set_peers()

    def _refresh_members(self, core: Core) -> None:
        if self.membership.refresh(core.commit_index):
            core.set_members(self.membership.members, self._now_s())
            self._send_roster(core)

    def _send_roster(self, core: Core, peer_ids: Collection[str] | None = None) -> None:
        """To all nodes that are connected, or to these."""
        frame = Frame(RaftFrame(term=core.term, roster=self.membership.roster()))
        for peer_id in sorted(self._connected) if peer_ids is None else peer_ids:
            self._links.send(peer_id, frame)

    def _receive_roster(self, told: Roster) -> None:
        if self.membership.receive_roster(told) and self.core is not None:
            log.warning("the other nodes say that this one is no member", node=self.node_id)

    # -- planned stop, status ----------------------------------------------------------------------

    def begin_stop(self) -> None:
        """Nothing new is taken."""
        self._is_stopping = True

    def hand_over(self) -> bool:
        """Asks a node that has all of the log to lead. Returns False if there is none."""
        core = self.core
        return (
            self.failure is None
            and core is not None
            and core.role == Role.LEADER
            and self._ask_to_lead(core)
        )

    def begin_transfer(self, node_id: str, wait_s: float) -> None:
        """To this node, or to the one that has most of the log; see `Transfer`. NotLeader,
        IllegalMembership: nothing has begun.
        """
        self._check_leads()
        self._changes.check_idle()
        core, now_s = self._started_core(), self._now_s()
        self.transfer.begin(core, self.membership.members, node_id, now_s, wait_s)

    def _advance_transfer(self, core: Core, request: TransferRequest) -> None:
        now_s = self._now_s()
        is_due = self.transfer.advance(core, now_s, is_settled=self._writer.is_settled)
        if is_due and self._ask_to_lead(core, request.node_id):
            request.asked_s = now_s

    def _ask_to_lead(self, core: Core, node_id: str = "") -> bool:
        """Returns False if this node, or any, does not have all of the log."""
        ready = core.transfer_leadership(self._now_s(), node_id)
        self._perform(core, ready)
        return bool(ready.messages)

    def end(self) -> None:
        """Answers all pending proposals; the replica is not used after this."""
        if self.failure is None:
            self.failure = NodeStopped("this node has stopped")
            self._proposals.end_leadership(self.failure)
            self._changes.end(self.failure)
            self._proposals.tell()

    @property
    def is_ready(self) -> bool:
        """There is a leader, and all of its term's commit point is applied here."""
        core = self.core
        return (
            core is not None
            and core.leader_id is not None
            and core.replication.has_all_committed
            and core.replication.applied_index == core.commit_index
        )

    @property
    def waiting(self) -> int:
        return len(self._proposals)

    def status(self) -> Status:
        """For metrics and people. Reading it changes nothing."""
        core, members, must_catch_up = self.core, self.membership.members, self.vote.must_catch_up
        leads = core is not None and core.role == Role.LEADER
        learner_id = self._changes.learner_id
        learners = {learner_id: self._changes.learner_address()[learner_id]} if learner_id else {}
        followers, joining = (
            [
                self._follower(core, node_id, address)
                for node_id, address in sorted(nodes.items())
                if core is not None and leads and node_id != self.node_id
            ]
            for nodes in (members, learners)
        )
        return Status(
            leadership=self.leadership,
            members=dict(members),
            first_index=self.log.first_index,
            last_index=self.log.last_index,
            durable_index=core.log.durable_index if core else 0,
            commit_index=core.commit_index if core else 0,
            applied_index=self._machine.applied_index,
            waiting=self.waiting,
            elections_total=core.election.elections_total if core else 0,
            must_catch_up=must_catch_up,
            followers=followers,
            failure=str(self.failure) if self.failure else None,
            is_voter=core is not None and self.node_id in members and not must_catch_up,
            joining=joining[0] if joining else None,
        )

    def _follower(self, core: Core, node_id: str, address: str) -> Follower:
        progress = core.progress(node_id)
        return Follower(
            node_id,
            address,
            progress.match_index,
            is_connected=progress.is_connected,
            is_voter=core.is_healthy(node_id),
        )

    def _started_core(self) -> Core:
        if self.core is None:
            raise RuntimeError("there is no log yet")
        return self.core
