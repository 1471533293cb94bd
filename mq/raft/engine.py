"""PySyncObj 0.3.17: the only module that knows it, with its private names and its globals.

It decides which node leads and what is committed: roles, terms, votes, election timer, next and
match indexes, the count of a majority. Its log, messages, time and randomness are taken over: it
reads `RaftLog` and `Progress`, and a `Listener` hears what it wants done. Its other halves are not
used: the follower's side of an append, snapshots, membership, its queue of commands.

Every private name that `Engine` uses is checked when this is imported; another version is refused.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from pysyncobj import syncobj
from pysyncobj.journal import Journal as PySyncObjJournal
from pysyncobj.node import Node as PySyncObjNode
from pysyncobj.syncobj import SyncObj, SyncObjConf
from pysyncobj.transport import Transport as PySyncObjTransport

from mq.raft.contracts import Role, Timing
from mq.raft.progress import Progress
from mq.raft.raft_log import RaftLog
from mq.raft.vote import VoteFile

# Entries of one append, when there are so many. Read from the log in one go, on the loop.
REGION_BYTES_MAX = 1 << 20
_UNLIMITED = 1 << 60

_VERSION = "0.3.17"
_PREFIX = "_SyncObj__"
_NO_OP = bytes([syncobj._COMMAND_TYPE.NO_OP])  # noqa: SLF001 - what a new leader writes


class _Ambient:
    """Time and randomness, which PySyncObj takes from globals of its module: those of the engine
    that runs.
    """

    now_s = 0.0
    rng = random.Random()  # noqa: S311 - spreads election timeouts

    def random(self) -> float:
        return self.rng.random()


_ambient = _Ambient()
_create_journal = syncobj.createJournal


def _journal(journal_or_path: object) -> object:
    """A journal of ours comes in where PySyncObj expects the path of a file."""
    is_ours = isinstance(journal_or_path, _Journal)
    return journal_or_path if is_ours else _create_journal(journal_or_path)


syncobj.createJournal = _journal
syncobj.monotonicTime = lambda: _ambient.now_s
syncobj.random = _ambient


class Peer(PySyncObjNode):  # type: ignore[misc] # PySyncObj has no types
    """A node by its id, with what is known of it. The hash is the same in every process: PySyncObj
    iterates over sets of these, and a simulation needs the same order each time.
    """

    def __init__(self, id: str) -> None:  # noqa: A002 - PySyncObj's name
        super().__init__(id)
        self.progress = Progress()
        self._hash = crc32(id.encode())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Peer) and self.id == other.id)


class Listener(Protocol):
    """What the engine decides, and the one thing that it has to ask."""

    def may_send(self, peer: Peer) -> bool:
        """Whether an append may be sent to this peer now."""
        ...

    def save_vote(self, term: int, voted_for: str | None) -> None:
        """To be durable before anything is sent."""
        ...

    def append_noop(self, term: int) -> None:
        """The first entry of a new leader."""
        ...

    def send_append(self, peer: Peer, prev: Slot, commit_index: int, region: Slot | None) -> None:
        """Entries behind `prev`, or a heartbeat."""
        ...

    def send_start_over(self, peer: Peer) -> None:
        """The entries that this peer needs next are gone from the log."""
        ...

    def request_vote(self, peer: Peer) -> None: ...

    def grant_vote(self, peer: Peer) -> None: ...


class _Column:
    """A table of PySyncObj's, peer -> number: one field of their `Progress` records."""

    def __init__(self, peers: Collection[Peer], field: str) -> None:
        self._peers = peers
        self._field = field
        self._value = attrgetter(f"progress.{field}")

    def __getitem__(self, peer: Peer) -> float:
        return self._value(peer)  # type: ignore[no-any-return]

    def __setitem__(self, peer: Peer, value: float) -> None:
        setattr(peer.progress, self._field, value)

    def pop(self, peer: Peer, _: object = None) -> None:
        self[peer] = 0

    def clear(self) -> None:
        for peer in self._peers:
            self[peer] = 0


class Slot(NamedTuple):
    """What PySyncObj calls an entry; for a region to be sent, its last one with all the bytes."""

    command: bytes | memoryview
    raft_index: int
    term: int


class _Journal(PySyncObjJournal):  # type: ignore[misc]
    """PySyncObj's log: where ours begins and ends."""

    def __init__(
        self, listener: Listener, raft_log: RaftLog, vote: VoteFile, applied_index: int
    ) -> None:
        self._listener = listener
        self._log = raft_log
        self._vote = vote
        self._applied_index = applied_index
        self._first = Slot(b"", 0, 0)

    def __getitem__(self, item: int) -> Slot:
        log = self._log.commitlog
        if item == -1:
            return Slot(b"", log.last_index, log.last_term)
        if item != 0:
            raise RuntimeError("PySyncObj asks only for the ends of the log")
        if self._first.raft_index != log.first_index:
            self._first = Slot(b"", log.first_index, log.term_at(log.first_index))
        return self._first

    def __len__(self) -> int:
        return self._log.last_index - self._log.first_index + 1

    def add(self, command: bytes, idx: int, term: int) -> None:  # noqa: ARG002
        if command != _NO_OP:
            raise RuntimeError("PySyncObj adds only the entry of a new leader")
        self._listener.append_noop(term)

    def clear(self, *_: int) -> None:
        """For a snapshot, or a conflict with the leader's log: neither is PySyncObj's here."""
        raise RuntimeError("PySyncObj never removes entries of the log")

    deleteEntriesFrom = deleteEntriesTo = clear  # noqa: N815 - PySyncObj's names

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        self._listener.save_vote(term, votedForNodeId)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._vote.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self._vote.voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Not kept: what is committed is learned again from the leader, and what was applied is
        known from the store's checkpoint.
        """

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """What was applied is committed, as far as the log still has it."""
        return min(self._applied_index, self._log.last_index)

    def _destroy(self) -> None:
        """The files belong to the store."""


class _Transport(PySyncObjTransport):  # type: ignore[misc]
    def __init__(self, send: Callable[[Peer, dict[str, Any]], None]) -> None:
        super().__init__(None, None, [])
        self.send = send

    def deliver(self, node: Peer, message: dict[str, object]) -> None:
        self._onMessageReceived(node, message)

    def addNode(self, node: Peer) -> None:  # noqa: N802 - connections follow from the members
        pass

    def dropNode(self, node: Peer) -> None:  # noqa: N802
        pass

    def destroy(self) -> None:
        pass


class _NoPoller:
    def poll(self, timeout: float) -> None:
        """PySyncObj has no sockets here."""


class _NoSnapshots:
    """In the place of PySyncObj's serializer."""

    def cancelTransmisstion(self, node: Peer) -> None:  # noqa: N802 - sic
        pass

    def getTransmissionData(self, node: Peer) -> None:  # noqa: ARG002, N802
        return None


_renamed: set[str] = set()


def _private(name: str) -> Any:
    """An attribute of PySyncObj's under a name of ours."""

    def write(engine: SyncObj, value: object) -> None:
        setattr(engine, _PREFIX + name, value)

    _renamed.add(_PREFIX + name)
    return property(attrgetter(_PREFIX + name), write)


def enter(now_s: float, rng: random.Random) -> None:
    """Time and randomness of what engines do next."""
    _ambient.now_s, _ambient.rng = now_s, rng


class Engine(SyncObj):  # type: ignore[misc]
    """For one thread. `enter` comes before any call."""

    commit_index: int = _private("raftCommitIndex")
    applied_index: int = _private("raftLastApplied")
    term: int = _private("raftCurrentTerm")
    state: int = _private("raftState")  # a Role
    leader: Peer | None = _private("raftLeader")
    voted_for: str | None = _private("votedForNodeId")
    election_deadline_s: float = _private("raftElectionDeadline")
    is_transferring: bool = _private("transferInProgress")
    others: set[Peer] = _private("otherNodes")
    learners: set[Peer] = _private("readonlyNodes")

    def __init__(
        self,
        node_id: str,
        members: Collection[str],
        raft_log: RaftLog,
        vote: VoteFile,
        timing: Timing,
        listener: Listener,
        *,
        applied_index: int,
    ) -> None:
        """`vote` is only read."""
        self._log = raft_log
        self._listener = listener
        self._peers: dict[str, Peer] = {}
        self._transport = _Transport(self._send)
        conf = SyncObjConf(
            autoTick=False,
            journalFile=_Journal(listener, raft_log, vote, applied_index),
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
        others = [self.peer(member) for member in sorted(members) if member != node_id]
        super().__init__(
            self.peer(node_id), others, conf, nodeClass=Peer, transport=self._transport
        )
        self._poller = _NoPoller()
        self._SyncObj__serializer = _NoSnapshots()
        peers = self._peers.values()
        self._SyncObj__raftNextIndex = _Column(peers, "next_index")
        self._SyncObj__raftMatchIndex = _Column(peers, "match_index")
        self._SyncObj__lastResponseTime = _Column(peers, "heard_s")
        self.applied_index = applied_index

    def peer(self, peer_id: str) -> Peer:
        """One object an id."""
        found = self._peers.get(peer_id)
        if found is None:
            found = self._peers[peer_id] = Peer(peer_id)
        return found

    # -- what happened -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Counts answers, stands for election when the deadline has passed, sends heartbeats."""
        self.doTick()

    def vote_requested(self, peer: Peer, term: int, last_index: int, last_term: int) -> None:
        message = {
            "type": "request_vote",
            "term": term,
            "last_log_index": last_index,
            "last_log_term": last_term,
        }
        self.deliver(peer, message)

    def vote_granted(self, peer: Peer, term: int) -> None:
        self.deliver(peer, {"type": "response_vote", "term": term})

    def leader_seen(self, peer: Peer, term: int) -> None:
        """A sign of life, without entries and without a commit index."""
        self.deliver(peer, {"type": "append_entries", "term": term, "commit_index": 0})

    def answered(self, peer: Peer, next_index: int, *, success: bool) -> None:
        message = {
            "type": "next_node_idx",
            "next_node_idx": next_index,
            "reset": not success,
            "success": success,
        }
        self.deliver(peer, message)

    def told_to_stand(self, peer: Peer, term: int) -> None:
        self.deliver(peer, {"type": "timeout_now", "term": term})

    def deliver(self, peer: Peer, message: dict[str, object]) -> None:
        """A message as PySyncObj has it."""
        self._transport.deliver(peer, message)

    def set_term(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)

    def step_down(self) -> None:
        self._SyncObj__setState(Role.FOLLOWER)
        self.leader = None

    def send_appends(self) -> None:
        """One append or heartbeat to each peer that may get one."""
        self._SyncObj__sendAppendEntries()

    def set_others(self, others: Collection[Peer]) -> None:
        self._SyncObj__updateClusterConfiguration(others)
        self.learners.difference_update(others)

    def add_learner(self, peer: Peer) -> None:
        self._SyncObj__onReadonlyNodeConnected(peer)

    def remove_learner(self, peer: Peer) -> None:
        self._SyncObj__onReadonlyNodeDisconnected(peer)

    # -- what PySyncObj calls ----------------------------------------------------------------------

    def _send(self, peer: Peer, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "append_entries":
            # A peer that is not connected gets no more: one message a peer.
            self._SyncObj__connectedNodes.discard(peer)
            if "serialized" in message:
                self._listener.send_start_over(peer)
            else:
                prev = Slot(b"", message["prevLogIdx"], message["prevLogTerm"])
                region = message["entries"][0] if message["entries"] else None
                self._listener.send_append(peer, prev, message["commit_index"], region)
        elif kind == "request_vote":
            self._listener.request_vote(peer)
        elif kind == "response_vote":
            self._listener.grant_vote(peer)
        else:
            raise RuntimeError(f"PySyncObj sends {kind}, which has no place here")

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        connected, may_send = self._SyncObj__connectedNodes, self._listener.may_send
        connected.clear()
        connected.update(filter(may_send, self.others | self.learners))
        super()._SyncObj__sendAppendEntries()

    def _SyncObj__getEntries(  # noqa: N802
        self,
        fromIDx: int,  # noqa: N803
        count: int | None = None,
        maxSizeBytes: int | None = None,  # noqa: N803
    ) -> list[Slot]:
        """With a size: what to send. Otherwise the entry that the leader is about to count, unless
        it does not count itself.
        """
        if maxSizeBytes is not None:
            return [self._to_send(fromIDx)]
        if count != 1:
            raise RuntimeError("PySyncObj reads entries only to send and to count them")
        if not self._counts_itself(fromIDx):
            return []
        return [Slot(b"", fromIDx, self._log.term_at(fromIDx))]

    def _to_send(self, raft_index: int) -> Slot:
        region = self._log.region(raft_index, REGION_BYTES_MAX)
        return Slot(memoryview(region.data), region.last_index, region.last_term)

    def _counts_itself(self, raft_index: int) -> bool:
        return self._log.first_index <= raft_index <= self._log.durable_index

    def _SyncObj__getPrevLogIndexTerm(  # noqa: N802
        self,
        nextNodeIndex: int,  # noqa: N803
    ) -> tuple[int, int]:
        return nextNodeIndex - 1, self._log.term_at(nextNodeIndex - 1)

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        for peer in self._peers.values():
            peer.progress.start_probing()
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        """The pre-vote has found a majority."""
        return True

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """The node applies what is committed."""
        return False

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """The node writes what is proposed."""

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Retention drops segments."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: ARG002, FBT001, N802, N803
        raise RuntimeError("there are no snapshots")


def _private_names(engine_class: type[Engine]) -> set[str]:
    """Every private name of PySyncObj that the class replaces, calls, reads or sets."""
    functions = [each for each in vars(engine_class).values() if inspect.isfunction(each)]
    used = set(vars(engine_class)).union(*(each.__code__.co_names for each in functions))
    return _renamed | {name for name in used if name.startswith(_PREFIX)}


def check_pysyncobj(version: str, private_names: Collection[str]) -> None:
    """RuntimeError when PySyncObj is another one than this module was written for."""
    known = {*SyncObj.__init__.__code__.co_names, *vars(SyncObj)}
    missing = sorted(set(private_names) - known)
    roles = {role.name: getattr(syncobj._RAFT_STATE, role.name, None) for role in Role}  # noqa: SLF001
    if missing or version != _VERSION or roles != dict(Role.__members__):
        raise RuntimeError(
            f"mq.raft needs PySyncObj {_VERSION}, and this is {version}; "
            f"it lacks: {', '.join(missing) or 'no name, but it may differ elsewhere'}"
        )


check_pysyncobj(syncobj.VERSION, _private_names(Engine))
