"""PySyncObj 0.3.17: the only module that knows it, with its private names and its globals.

It decides which node leads: roles, terms, votes, the election timer, the time-out of a leader that
hears from no majority, and when heartbeats are due. `Listener` hears its decisions and performs
them. Its log, time and randomness are taken over; its other halves are not used: replication, the
count of what is committed, snapshots, membership, its queue of commands.

Every private name that `Engine` uses is checked when this is imported; another version is refused.
"""

from __future__ import annotations

import inspect
import random
from collections import defaultdict
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, Protocol
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
    """A node by its id, with its progress. The hash is the same in every process: PySyncObj
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
    """Hears the decisions of the engine."""

    def save_vote(self, term: int, voted_for: str | None) -> None:
        """To be durable before anything is sent."""
        ...

    def request_vote(self, peer: Peer) -> None: ...

    def grant_vote(self, peer: Peer) -> None: ...

    def lead(self) -> None:
        """The election is won: the log gets the first entry of this term."""
        ...

    def send_heartbeats(self) -> None: ...


class _HeardTable:
    """PySyncObj's table of the last answers: `Progress.heard_s` of each peer."""

    def __init__(self, peers: Collection[Peer]) -> None:
        self._peers = peers

    def __getitem__(self, peer: Peer) -> float:
        return peer.progress.heard_s

    def __setitem__(self, peer: Peer, heard_s: float) -> None:
        peer.progress.heard_s = heard_s

    def clear(self) -> None:
        for peer in self._peers:
            peer.progress.heard_s = 0.0


class _Journal(PySyncObjJournal):  # type: ignore[misc]
    """PySyncObj's log, of which it sees the last entry: index and term decide on votes."""

    def __init__(self, listener: Listener, raft_log: RaftLog, vote: VoteFile) -> None:
        self._listener = listener
        self._log = raft_log
        self._vote = vote

    def __getitem__(self, item: int) -> tuple[bytes, int, int]:
        if item != -1:
            raise RuntimeError("PySyncObj asks only for the end of the log")
        return b"", self._log.last_index, self._log.last_term

    def __len__(self) -> int:
        return self._log.last_index - self._log.first_index + 1

    def add(self, command: bytes, idx: int, term: int) -> None:  # noqa: ARG002
        if command != _NO_OP:
            raise RuntimeError("PySyncObj adds only the entry of a new leader")
        self._listener.lead()

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        self._listener.save_vote(term, votedForNodeId)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._vote.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self._vote.voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Not kept: it is learned again from the leader."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return 0


class _Transport(PySyncObjTransport):  # type: ignore[misc]
    def __init__(self, send: Callable[[Peer, dict[str, Any]], None]) -> None:
        super().__init__(None, None, [])
        self.send = send

    def deliver(self, node: Peer, message: dict[str, object]) -> None:
        self._onMessageReceived(node, message)


class _NoPoller:
    def poll(self, timeout: float) -> None:
        """PySyncObj has no sockets here."""


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

    term: int = _private("raftCurrentTerm")
    state: int = _private("raftState")  # a Role
    leader: Peer | None = _private("raftLeader")
    voted_for: str | None = _private("votedForNodeId")
    election_deadline_s: float = _private("raftElectionDeadline")
    is_transferring: bool = _private("transferInProgress")
    others: set[Peer] = _private("otherNodes")

    def __init__(
        self,
        node_id: str,
        members: Collection[str],
        raft_log: RaftLog,
        vote: VoteFile,
        timing: Timing,
        listener: Listener,
    ) -> None:
        """`vote` is only read."""
        self._listener = listener
        self._log = raft_log
        self._heartbeat_s = timing.heartbeat_s
        self.peers: dict[str, Peer] = {}
        self._transport = _Transport(self._send)
        conf = SyncObjConf(
            autoTick=False,
            journalFile=_Journal(listener, raft_log, vote),
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            leaderFallbackTimeout=timing.fallback_s,
            # Not used, and refused if it is less than the longest election time-out.
            connectionTimeout=timing.election_max_s,
            fullDumpFile=None,
            dynamicMembershipChange=False,
            pollerType="select",
        )
        super().__init__(
            self.peer(node_id),
            [self.peer(member) for member in sorted(members) if member != node_id],
            conf,
            nodeClass=Peer,
            transport=self._transport,
        )
        self._poller = _NoPoller()
        self._SyncObj__lastResponseTime = _HeardTable(self.peers.values())
        self._SyncObj__raftMatchIndex: dict[Peer, int] = defaultdict(int)  # never counted

    def peer(self, peer_id: str) -> Peer:
        """One object an id."""
        found = self.peers.get(peer_id)
        if found is None:
            found = self.peers[peer_id] = Peer(peer_id)
        return found

    # -- events ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Stands for election when the deadline has passed, sends heartbeats, steps down."""
        self._SyncObj__raftCommitIndex = self._log.last_index  # it finds nothing to count
        self.doTick()

    def vote_requested(self, peer: Peer, term: int, last_index: int, last_term: int) -> None:
        message = {
            "type": "request_vote",
            "term": term,
            "last_log_index": last_index,
            "last_log_term": last_term,
        }
        self._transport.deliver(peer, message)

    def vote_granted(self, peer: Peer, term: int) -> None:
        self._transport.deliver(peer, {"type": "response_vote", "term": term})

    def leader_seen(self, peer: Peer, term: int) -> None:
        """A sign of life, without entries and without a commit index."""
        message = {"type": "append_entries", "term": term, "commit_index": 0}
        self._transport.deliver(peer, message)

    def told_to_stand(self, peer: Peer, term: int) -> None:
        self._transport.deliver(peer, {"type": "timeout_now", "term": term})

    def set_term(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)

    def step_down(self) -> None:
        self._SyncObj__setState(Role.FOLLOWER)
        self.leader = None

    # -- calls of PySyncObj ------------------------------------------------------------------------

    def _send(self, peer: Peer, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "request_vote":
            self._listener.request_vote(peer)
        elif kind == "response_vote":
            self._listener.grant_vote(peer)
        else:
            raise RuntimeError(f"PySyncObj sends {kind}, which has no place here")

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self._SyncObj__newAppendEntriesTime = _ambient.now_s + self._heartbeat_s
        self._listener.send_heartbeats()

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
