"""The contracts of a replica: settings, its surroundings as protocols, outcomes and status."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from mq.errors import MqError
from mq.raft.frames import Frame
from mq.store.logreader import EntryRef


class Role(enum.IntEnum):
    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


class Committed(NamedTuple):
    """The entry is committed, durable and applied here."""

    raft_index: int
    term: int


Outcome: TypeAlias = Committed | MqError


class Links(Protocol):
    """The connections to the other nodes."""

    def send(self, peer_id: str, frame: Frame) -> object:
        """Never blocks and never raises; what cannot be sent is dropped."""
        ...

    def has_room(self, peer_id: str) -> bool:
        """Returns False while the send buffer is full; `on_writable` says when it is not."""
        ...

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        """The nodes that may connect, and their addresses."""
        ...


class StateMachine(Protocol):
    """The meaning of entries. The broker is one."""

    @property
    def applied_index(self) -> int: ...

    def checkpoint_payload(self) -> list[bytes]:
        """The complete state, as a message whose fields 1 and 2 are the machine's own; in parts,
        because it may be tens of megabytes.
        """
        ...

    def check_writable(self) -> None:
        """Raises DiskFull when no more entries may be proposed."""
        ...

    def appended(self, ref: EntryRef, context: Any, /) -> None:
        """An entry that was proposed here is in the log, not committed."""
        ...

    def apply_through(self, raft_index: int) -> object:
        """Entries up to here are committed and durable. Bad content is no reason to raise."""
        ...

    def forget(self, from_index: int) -> None:
        """These entries will not be committed; they are leaving the log."""
        ...

    def start_over(self) -> None:
        """The log is another one: it opens with a checkpoint that holds all of the state."""
        ...


class Timing(NamedTuple):
    """All in seconds; a leader that hears from no majority for `fallback_s` steps down."""

    heartbeat_s: float = 0.1
    election_min_s: float = 0.5
    election_max_s: float = 1.0
    fallback_s: float = 1.5


class Limits(NamedTuple):
    entry_bytes_max: int = (4 << 20) + (256 << 10)
    append_bytes_max: int = 8 << 20
    proposals_max: int = 10_000
    proposals_bytes_max: int = 64 << 20


class Settings(NamedTuple):
    """`members` are those of a new group, all of which start with the same ones; later the log has
    them. A node that `is_joining` starts with nothing and waits to be added. `counts_unsynced` is
    async flush: what is in the log counts before it is on disk.
    """

    node_id: str
    members: Mapping[str, str]
    is_joining: bool = False
    counts_unsynced: bool = False
    timing: Timing = Timing()
    limits: Limits = Limits()


class Leadership(NamedTuple):
    """The leader and this node's role, as this node knows them."""

    role: Role
    term: int
    leader_id: str | None


class Driver(Protocol):
    """Clocks, syncs of the log, and the listener for leadership."""

    def now_ms(self) -> int:
        """Wall clock, for entries."""
        ...

    def now_s(self) -> float:
        """Monotonic clock, for time-outs."""
        ...

    def request_sync(self) -> None:
        """Sync the log soon, then call `on_synced`. One for many requests is enough."""
        ...

    def on_leadership(self, leadership: Leadership) -> None:
        """Called when a field of it has changed."""
        ...


class Follower(NamedTuple):
    node_id: str
    address: str
    match_index: int
    is_connected: bool = False
    # It takes what it gets, and its answers count.
    is_voter: bool = False


class Status(NamedTuple):
    """For metrics and people; reading it changes nothing."""

    leadership: Leadership
    members: dict[str, str]
    first_index: int
    last_index: int
    durable_index: int
    commit_index: int
    applied_index: int
    waiting: int
    elections_total: int
    must_catch_up: bool
    followers: list[Follower]
    failure: str | None
    # A member that does not have to catch up.
    is_voter: bool = False
    # A node that is being added, and does not count yet.
    joining: Follower | None = None
