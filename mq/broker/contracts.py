"""The interfaces that the broker needs, declared here so that it knows neither Raft nor gRPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mq.errors import MqError
from mq.store.format import Kind


class Leading(NamedTuple):
    """The leader of the broker set, as this node sees it. The address is the one for clients, the
    other one for clients of the external listener.
    """

    term: int
    leader_id: str | None
    leader_address: str | None
    external_address: str | None = None


class Peer(NamedTuple):
    """A node of the broker set. Address (for clients) and zone are empty as long as it was not
    heard of. What it has of the log is known where this node leads: up to which raft index; 0: it
    does not follow right now.
    """

    node_id: str
    address: str
    zone: str
    external_address: str = ""
    match_index: int = 0


class Consensus(Protocol):
    """The replicated log, for writers."""

    @property
    def leading_term(self) -> int:
        """The term in which this node leads; 0: it does not. Asked for every batch."""
        ...

    @property
    def leading(self) -> Leading: ...

    @property
    def peers(self) -> Sequence[Peer]: ...

    def propose(
        self,
        kind: Kind,
        payload: Sequence[bytes | memoryview],
        context: object,
        done: Callable[[MqError | None], None],
    ) -> None:
        """`done` is called once, later, on the loop: when the entry is committed and applied here,
        or with the error. NotLeader, FlowControl, DiskFull, MessageTooLarge, NodeStopped: nothing
        was written. OutcomeUnknown: it may be written.
        """
        ...
