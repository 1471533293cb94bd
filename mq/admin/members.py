"""The nodes of the broker set, as operators add and remove them, and move the leadership. On the
leader.

Copying the log to a node that is added takes as long as it takes: the leader goes on with it by
itself. A call returns after a moment with how far it is, and may be repeated.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from mq.broker.leading import Leadership
from mq.errors import IllegalRequest, MqError, NotLeader, OutcomeUnknown
from mq.logging import get_logger
from mq.raft.contracts import Leadership as RaftLeadership
from mq.wire.v1 import admin_pb2 as pb

log = get_logger(__name__)

# How long a call waits for an addition that may take hours.
_PROGRESS_S = 1.0
_NODE = re.compile(r"[A-Za-z0-9_-]{1,127}")
_ADDRESS = re.compile(r"[^\s,=]{1,253}:[0-9]{1,5}")
T = TypeVar("T")


class RaftMembers(Protocol):
    """The changes of replication that an operator may make."""

    def add_member(self, node_id: str, address: str) -> asyncio.Future[Any]: ...

    def remove_member(self, node_id: str) -> asyncio.Future[Any]: ...

    async def move_leadership(self, node_id: str = "") -> RaftLeadership: ...


class SetMembers:
    def __init__(
        self,
        leadership: Leadership,
        raft: RaftMembers,
        status: Callable[[], pb.BrokerStatusResponse],
    ) -> None:
        self._leadership = leadership
        self._raft = raft
        self._status = status
        # The addition in flight: the node, its address, and the outcome.
        self._adding: tuple[str, str, asyncio.Future[Any]] | None = None

    async def add(self, node_id: str, address: str) -> pb.MemberList:
        """A repeated call for the same node and address returns the progress of the first."""
        if not _NODE.fullmatch(node_id):
            raise IllegalRequest(
                f"{node_id[:200]!r} is no name of a node: 1 to 127 of letters, digits, _ and -"
            )
        if not _ADDRESS.fullmatch(address):
            raise IllegalRequest(
                f"{address[:200]!r} is no address of {node_id}: give host:port, where the other "
                "nodes reach it"
            )
        known = self._list()
        if pb.SetMember(node_id=node_id, address=address) in known.members:
            return known
        future = self._in_flight(node_id, address)
        if future is None:
            future = self._raft.add_member(node_id, address)
            if not future.done():
                # An addition that is refused leaves the one in flight alone.
                future.add_done_callback(_log_outcome)
                self._adding = node_id, address, future
        # Not wait_for: a client that gives up does not end the addition.
        await asyncio.wait([future], timeout=_PROGRESS_S)
        if future.done():
            await self._or_refused(future)
        return self._list()

    async def remove(self, node_id: str) -> pb.MemberList:
        """Removing a node that is being added calls the addition off."""
        if self._adding is not None and self._list().joining.node_id == node_id != "":
            self._adding[2].cancel()
            # Replication reacts to the cancellation in the next turn of the loop.
            await asyncio.sleep(0)
            return self._list()
        await self._or_refused(self._raft.remove_member(node_id))
        return self._list()

    async def transfer_leadership(self, node_id: str) -> pb.TransferLeadershipResponse:
        """Succeeds if the node leads already: the answer to a first call may be lost. An empty
        name: to any node.
        """
        _, term, leader_id = await self._or_refused(self._raft.move_leadership(node_id))
        if leader_id is None or (node_id and leader_id != node_id):
            raise OutcomeUnknown(
                f"the leadership has moved, and {leader_id or 'no node'} leads now: look at "
                "`mq cluster status`, and ask again if need be"
            )
        return pb.TransferLeadershipResponse(leader_id=leader_id, term=term)

    def _in_flight(self, node_id: str, address: str) -> asyncio.Future[Any] | None:
        if self._adding is None or self._adding[:2] != (node_id, address):
            return None
        return None if self._adding[2].done() else self._adding[2]

    async def _or_refused(self, work: Awaitable[T]) -> T:
        """NotLeader with the address for clients instead of the one for nodes."""
        try:
            return await work
        except NotLeader:
            raise self._leadership.refusal() from None

    def _list(self) -> pb.MemberList:
        status = self._status()
        joining = status.joining if status.HasField("joining") else None
        return pb.MemberList(members=status.set_members, joining=joining)


def _log_outcome(future: asyncio.Future[Any]) -> None:
    """The call that began the addition may be over."""
    if future.cancelled():
        log.info("a node was not added: called off")
    elif isinstance(error := future.exception(), MqError):
        log.warning("a node was not added", error=str(error))
