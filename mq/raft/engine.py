"""How entries get from the leader to the others, and when they count: PySyncObj's replication, with
what it lacks.

Guards, each an override or a step around PySyncObj's own:

    after the sync   a follower answers for what it has synced; the leader counts itself for what it
                     has synced; nothing is applied before both
    trim             entries that a follower has already are taken out of a message, because
                     PySyncObj would truncate the log there, committed or not
    stamped answers  an answer of another term is dropped
    next index       PySyncObj sets it back at each answer and sends everything again
    flow             see `Flow`; a closed flow looks to PySyncObj like a lost connection, which is
                     the only brake it knows
    start over       in place of PySyncObj's snapshots, which commit unverified entries
    catch up first   an answer of a node that has to catch up does not count: see `Election`
    own apply        in batches, from the store's checkpoint on; an error ends the node instead of
                     being tried for ever

Entries move as regions: one `Slot` for many entries, its command the bytes as they are in the log.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, cast

from mq.errors import DiskFull, MalformedEntries
from mq.logging import get_logger
from mq.raft.contracts import Timing
from mq.raft.election import Election, Host
from mq.raft.flow import Flow
from mq.raft.hooks import CALLED, NoSnapshots, Peer, Role, SyncObj, now_s, peer_of, require
from mq.raft.journal import Journal, Slot, Slots
from mq.raft.memory import FIRST_INDEX
from mq.store.format import HEADER_BYTES, decode_header
from mq.wire.v1.raft_pb2 import Append, AppendAnswer, StartOver, TimeoutNow

log = get_logger(__name__)

# Entries of one append, when there are so many. Read from the log in one go, on the loop.
REGION_BYTES_MAX = 1 << 20
# Applied in one tick, so that heartbeats are not late while a long log is applied.
_APPLY_ENTRIES_MAX = 64


class _Answer(NamedTuple):
    """To whom, in which term, and for the log up to where."""

    peer_id: str
    term: int
    raft_index: int


class Engine(Election):
    # PySyncObj's, checked at start.
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftNextIndex: dict[Peer, int]
    _SyncObj__raftMatchIndex: dict[Peer, int]
    _SyncObj__lastResponseTime: dict[Peer, float]
    _SyncObj__connectedNodes: set[Peer]
    _SyncObj__readonlyNodes: set[Peer]

    def __init__(
        self,
        node_id: str,
        members: Collection[str],
        journal: Journal,
        host: Host,
        timing: Timing,
        *,
        applied_index: int,
    ) -> None:
        self._flows: dict[str, Flow] = {}
        # Up to where our log is known to be the leader's, and what of it was said to be durable.
        self._owed: _Answer | None = None
        self._given = _Answer("", 0, 0)
        self._given_s = 0.0
        # What the leader said of itself, in this term.
        self._leader_commit = (0, 0)
        super().__init__(node_id, members, journal, host, timing)
        require(self, Election.__annotations__.keys() | Engine.__annotations__.keys())
        require(SyncObj, [*CALLED, *(name for name in vars(Engine) if name.startswith(_PRIVATE))])
        self._SyncObj__serializer = NoSnapshots()
        self._SyncObj__raftLastApplied = applied_index

    # -- facts -------------------------------------------------------------------------------------

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    @property
    def has_more_to_apply(self) -> bool:
        """Now, or with the next tick, which counts what a leader alone has in its log."""
        journal, commit_index = self.journal, self.commit_index
        is_alone = self.role == Role.LEADER and not self.others
        if is_alone and journal.term_at(journal.durable_index) == self.term:
            commit_index = journal.durable_index
        return self.applied_index < min(commit_index, journal.durable_index)

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
            0 < term == self.term  # nobody leads in term 0, in which a node is born
            and leader_commit_index <= commit_index <= self.journal.durable_index
            and self.journal.has(commit_index, self.term)
        )

    @property
    def has_caught_up(self) -> bool:
        """This node may vote again, if it had to catch up."""
        return self.has_sure_leader and self.has_all_committed

    @property
    def wants_tick(self) -> bool:
        """Somebody waits for what the next tick does: a leader's proposers for the count of
        answers, everybody for an election. A follower applies when it has time.
        """
        if self.role == Role.LEADER:
            return self.commit_index < self.journal.log.last_index or self.has_more_to_apply
        return not self._SyncObj__raftElectionDeadline

    def match_index(self, peer_id: str) -> int:
        """Up to where a follower has said that its log is ours."""
        return self._SyncObj__raftMatchIndex.get(peer_of(peer_id), 0)

    def is_healthy(self, peer_id: str) -> bool:
        """A follower that takes what it gets, and votes: see `Election`."""
        flow = self._flow(peer_id)
        return flow.is_connected and flow.is_voter and not flow.is_probing

    # -- members -----------------------------------------------------------------------------------

    def set_members(self, members: Collection[str]) -> None:
        """From now on these vote and are counted. What is known of learners is kept."""
        matches = dict(self._SyncObj__raftMatchIndex)
        nexts = dict(self._SyncObj__raftNextIndex)
        others = [peer_of(member) for member in sorted(members) if member != self.node_id]
        self._SyncObj__updateClusterConfiguration(others)
        for peer in others:
            self._SyncObj__raftMatchIndex[peer] = matches.get(peer, 0)
            self._SyncObj__raftNextIndex[peer] = nexts.get(peer, self.journal.log.last_index + 1)
            self._SyncObj__lastResponseTime.setdefault(peer, now_s())
        self._SyncObj__readonlyNodes.difference_update(others)
        self.is_voter = self.node_id in members

    def add_learner(self, peer_id: str) -> None:
        """Entries are sent to it, but it is not counted."""
        self._SyncObj__onReadonlyNodeConnected(peer_of(peer_id))

    def remove_learner(self, peer_id: str) -> None:
        if peer_of(peer_id) in self._SyncObj__readonlyNodes:
            self._SyncObj__onReadonlyNodeDisconnected(peer_of(peer_id))

    def is_connected(self, peer_id: str) -> bool:
        return self._flow(peer_id).is_connected

    def transfer_leadership(self, to: str = "") -> bool:
        """Asks the follower that has everything, if there is one, to take over; only this one."""
        last_index = self.journal.log.last_index
        for peer in sorted(self.others, key=lambda peer: str(peer.id)):
            is_able = self.is_connected(peer.id) and self._flow(peer.id).is_voter
            if to in ("", peer.id) and is_able and self.match_index(peer.id) == last_index:
                self.send_frame(peer.id, timeout_now=TimeoutNow())
                return True
        return False

    # -- connections -------------------------------------------------------------------------------

    def on_connected(self, peer_id: str) -> None:
        flow = self._flow(peer_id)
        flow.is_connected = True
        flow.start_probing()
        # It may have come back with less than it had: in async flush mode that is legal.
        if peer_of(peer_id) in self._SyncObj__raftMatchIndex:
            self._SyncObj__raftMatchIndex[peer_of(peer_id)] = 0

    def on_disconnected(self, peer_id: str, *, was_lost: bool) -> None:
        self._flow(peer_id).is_connected = False
        if was_lost and self.role == Role.FOLLOWER and self.leader_id == peer_id:
            self.leader_lost()

    def _flow(self, peer_id: str) -> Flow:
        return self._flows.setdefault(peer_id, Flow())

    def _may_send(self, peer_id: str) -> bool:
        flow, has_room = self._flow(peer_id), self.host.has_room(peer_id)
        return flow.may_send(now_s(), self.timing.heartbeat_s, has_room=has_room)

    # -- leader: sending ---------------------------------------------------------------------------

    def send_appends(self) -> None:
        if self.role == Role.LEADER:
            self._SyncObj__sendAppendEntries()

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        connected = self._SyncObj__connectedNodes
        connected.clear()
        for peer in self.others | self._SyncObj__readonlyNodes:
            if self._may_send(peer.id):
                connected.add(peer)
        super()._SyncObj__sendAppendEntries()

    def send_message(self, peer_id: str, message: dict[str, object]) -> None:
        kind = message["type"]
        if kind == "append_entries":
            if "serialized" in message:
                self._send_start_over(peer_id)
            else:
                self._send_append(peer_id, message)
        elif kind == "next_node_idx":
            next_index, success = cast("int", message["next_node_idx"]), message["success"]
            self._answer(peer_id, next_index, success=bool(success))
        else:
            super().send_message(peer_id, message)

    def _send_append(self, peer_id: str, message: dict[str, object]) -> None:
        entries = cast("list[Slot]", message["entries"])
        prev_index = cast("int", message["prevLogIdx"])
        append = Append(
            prev_index=prev_index,
            prev_term=cast("int", message["prevLogTerm"]),
            commit_index=cast("int", message["commit_index"]),
        )
        self.send_frame(peer_id, entries[0].command if entries else b"", append=append)
        self._sent(peer_id, prev_index + 1)

    def _send_start_over(self, peer_id: str) -> None:
        region = self.journal.region(self.journal.log.first_index, REGION_BYTES_MAX)
        start = StartOver(
            first_index=region.first_index,
            log_offset=self.journal.log.start_offset,
            commit_index=self.commit_index,
        )
        self.send_frame(peer_id, region.data, start_over=start)
        self._SyncObj__raftNextIndex[peer_of(peer_id)] = region.last_index + 1
        self._flow(peer_id).start_probing()
        self._sent(peer_id, FIRST_INDEX)  # which it asks for if it cannot start with this

    def _sent(self, peer_id: str, next_index: int) -> None:
        self._flow(peer_id).sent(next_index, now_s())
        if not self._may_send(peer_id):
            self._SyncObj__connectedNodes.discard(peer_of(peer_id))

    def _SyncObj__getEntries(  # noqa: N802
        self,
        fromIDx: int | None,  # noqa: N803
        count: int | None = None,
        maxSizeBytes: int | None = None,  # noqa: N803
    ) -> list[Slot] | Slots:
        """For sending (with a size): one slot with a region. For the count of the leader (one): the
        entry, unless it is not synced here. For the check of a follower: the rest of the log.
        """
        journal = self.journal
        first_index, last_index = journal.log.first_index, journal.log.last_index
        if fromIDx is None or not first_index <= fromIDx <= last_index:
            return []
        if maxSizeBytes is not None:
            region = journal.region(fromIDx, REGION_BYTES_MAX)
            return [Slot(memoryview(region.data), region.last_index, region.last_term)]
        if count is not None:
            return [journal.slot(fromIDx)] if fromIDx <= journal.durable_index else []
        return Slots(journal, fromIDx, last_index + 1)

    def _SyncObj__getPrevLogIndexTerm(  # noqa: N802
        self,
        nextNodeIndex: int,  # noqa: N803
    ) -> tuple[int, int]:
        return nextNodeIndex - 1, self.journal.term_at(nextNodeIndex - 1)

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        for flow in self._flows.values():
            flow.start_probing()
        try:
            super()._SyncObj__onBecomeLeader()
        except DiskFull as error:
            log.warning("elected, but the disk is full: stepping down", error=str(error))
            self.step_down()
            self._postpone()

    def receive_append_answer(self, peer_id: str, term: int, answer: AppendAnswer) -> None:
        self.adopt_term(term)
        peer = peer_of(peer_id)
        known = self._SyncObj__raftNextIndex
        if self.role != Role.LEADER or not self._is_current(term) or peer not in known:
            return
        next_before = known[peer]
        heard_s = self._SyncObj__lastResponseTime.get(peer, 0.0)
        self._flow(peer_id).is_voter = not answer.must_catch_up
        message = {
            "type": "next_node_idx",
            "next_node_idx": answer.next_index,
            "reset": not answer.success,
            "success": answer.success,
        }
        self.deliver(peer_id, message)
        if answer.success:
            self._keep_next_index(peer, next_before)
            self._flow(peer_id).matched()
        elif self._flow(peer_id).refused(answer.next_index):
            self.journal.verify(answer.next_index)
        if peer in self.others and not self._counts(answer):
            self._SyncObj__raftMatchIndex[peer] = 0
            self._SyncObj__lastResponseTime[peer] = heard_s

    def _counts(self, answer: AppendAnswer) -> bool:
        return not answer.must_catch_up

    def _is_current(self, term: int) -> bool:
        return term == self.term

    def _keep_next_index(self, peer: Peer, next_before: int) -> None:
        known = self._SyncObj__raftNextIndex
        known[peer] = max(known[peer], next_before)

    # -- follower: receiving -----------------------------------------------------------------------

    def receive_append(self, peer_id: str, term: int, append: Append, body: memoryview) -> None:
        if term < self.term:
            self._send_answer(peer_id, append.prev_index + 1, success=False)
            return
        self.leader_seen(peer_id, term)
        self._leader_commit = term, append.commit_index
        try:
            if not self._append_next(peer_id, term, append, body):
                self._deliver_append(peer_id, self._append_message(term, append, body))
        except (DiskFull, MalformedEntries) as error:
            log.warning("cannot follow", leader=peer_id, error=str(error))
            self._answer(peer_id, self.journal.log.last_index + 1, success=False)

    def _append_next(self, peer_id: str, term: int, append: Append, body: memoryview) -> bool:
        """The usual case, without the way through PySyncObj, which would do the same: whom we
        follow sends what comes right behind our last entry. Latency hangs on it.
        """
        commitlog = self.journal.log
        is_next = (append.prev_index, append.prev_term) == (
            commitlog.last_index,
            commitlog.last_term,
        )
        is_usual = self.role == Role.FOLLOWER and not self._SyncObj__transferInProgress
        if not (body and is_next and is_usual) or (peer_id, term) != (self.leader_id, self.term):
            return False
        self.journal.add(body, 0, term)
        self._postpone()
        commit_index = min(append.commit_index, commitlog.last_index)
        self._SyncObj__raftCommitIndex = max(self.commit_index, commit_index)
        self._answer(peer_id, commitlog.last_index + 1, success=True)
        return True

    def _append_message(self, term: int, append: Append, body: memoryview) -> dict[str, object]:
        return {
            "type": "append_entries",
            "term": term,
            "commit_index": append.commit_index,
            "prevLogIdx": append.prev_index,
            "prevLogTerm": append.prev_term,
            "entries": [Slot(body, *self.journal.end_of(body))] if body else [],
        }

    def _deliver_append(self, peer_id: str, message: dict[str, object]) -> None:
        """Trims what is here already. PySyncObj sees either entries that are new behind an entry
        that we have, and truncates rightly what conflicts with them, or an append that does not
        match, or no more than a sign of life.
        """
        prev_index = cast("int", message["prevLogIdx"])
        prev_term = cast("int", message["prevLogTerm"])
        if not self.journal.has(prev_index, prev_term):
            self.deliver(peer_id, message)
            return
        entries = cast("list[Slot]", message["entries"])
        if entries:
            body = cast("memoryview", entries[0].command)
            known, prev_index, prev_term = self.journal.known_part(body, prev_index, prev_term)
            message["prevLogIdx"], message["prevLogTerm"] = prev_index, prev_term
            body = body[known:]
            message["entries"] = entries = [entries[0]._replace(command=body)] if body else []
            if entries and self.journal.log.last_index > prev_index:
                # Before anything is truncated for their sake.
                self.journal.check(body, prev_index, prev_term)
        # Only up to here is our log known to be the leader's.
        verified_index = entries[0].raft_index if entries else prev_index
        commit_index = cast("int", message["commit_index"])
        message["commit_index"] = min(commit_index, verified_index)
        if not entries:
            del message["prevLogIdx"]
        self.deliver(peer_id, message)
        if not entries:
            self._answer(peer_id, verified_index + 1, success=True)

    def receive_start_over(
        self, peer_id: str, term: int, start: StartOver, body: memoryview
    ) -> bool:
        """Whether the log has to start over with this; if not, it is answered here."""
        if term < self.term:
            self._send_answer(peer_id, start.first_index, success=False)
            return False
        self.follow(peer_id, term)
        header = decode_header(body)
        if header is None or not self.journal.has(start.first_index, header.term):
            return True
        # We have the entry that the leader's log opens with: the rest is as in any append.
        append = Append(
            prev_index=start.first_index, prev_term=header.term, commit_index=start.commit_index
        )
        self.receive_append(peer_id, term, append, body[HEADER_BYTES + header.length :])
        return False

    def follow(self, peer_id: str, term: int) -> None:
        """This node leads in this term; nothing is said of the log."""
        self.leader_seen(peer_id, term)
        message = {"type": "append_entries", "term": term, "commit_index": 0}
        self.deliver(peer_id, message)

    def answer_start_over(self, peer_id: str) -> None:
        self._answer(peer_id, self.journal.log.last_index + 1, success=True)

    def receive_timeout_now(self, peer_id: str, term: int) -> None:
        if self._may_stand():
            self.deliver(peer_id, {"type": "timeout_now", "term": term})

    # -- answers, after the sync -------------------------------------------------------------------

    def _answer(self, peer_id: str, next_index: int, *, success: bool) -> None:
        if success:
            self._owed = _Answer(peer_id, self.term, next_index - 1)
            self._pay(is_sign_of_life=True)
        else:
            if self.journal.log.last_index >= next_index:
                # Another entry stands there. What is committed is the same everywhere.
                next_index = min(next_index, self.commit_index + 1)
            self._send_answer(peer_id, next_index, success=False)

    def _send_answer(self, peer_id: str, next_index: int, *, success: bool) -> None:
        # It may have promised a later term to another leader, and have forgotten it: so it counts
        # for the leader that it has elected since, and for no other.
        must_catch_up = self.journal.vote.must_catch_up and not self.has_elected(peer_id)
        answer = AppendAnswer(next_index=next_index, success=success, must_catch_up=must_catch_up)
        self.send_frame(peer_id, append_answer=answer)

    def _pay(self, *, is_sign_of_life: bool) -> None:
        """Answers for what is durable by now. While a sync takes its time, an answer that says
        nothing new tells the leader that we live.
        """
        if self._owed is None:
            return
        peer_id, term, verified_index = self._owed
        if term != self.term:
            self._owed = None
            return
        index = min(verified_index, self.journal.durable_index)
        is_known = self._given[:2] == (peer_id, term) and index <= self._given.raft_index
        is_due = now_s() - self._given_s >= self.timing.heartbeat_s / 2
        if index == verified_index or not is_known or (is_sign_of_life and is_due):
            self._send_answer(peer_id, index + 1, success=True)
            self._given, self._given_s = _Answer(peer_id, term, index), now_s()
        if index == verified_index:
            self._owed = None

    def on_synced(self) -> None:
        self.journal.refresh_durable()
        self._pay(is_sign_of_life=False)

    # -- applying ----------------------------------------------------------------------------------

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        if self.has_more_to_apply:
            target = min(self.commit_index, self.journal.durable_index)
            target = min(target, self.applied_index + _APPLY_ENTRIES_MAX)
            self._SyncObj__raftLastApplied = self.host.apply_through(target)
        return False

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        if self.host.append_queued():
            self.journal.note_growth()
            self.send_appends()

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        """The pre-vote has found a majority."""
        return True

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Retention drops segments."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: ARG002, FBT001, N802, N803
        raise RuntimeError("there are no snapshots")


_PRIVATE = "_SyncObj__"
