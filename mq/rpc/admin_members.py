"""AdminService, about the nodes of the broker set: who belongs to it, who leads.

To copy the log to a node that is added takes as long as it takes: the leader goes on with it by
itself, and whoever asks gets a look at it after a moment, and may ask again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from mq.broker.broker import Broker
from mq.errors import IllegalRequest, MqError, NotLeader, OutcomeUnknown
from mq.logging import get_logger
from mq.raft.contracts import Leadership
from mq.rpc.methods import Context
from mq.wire.v1 import admin_pb2 as pb

log = get_logger(__name__)

# How long a call waits for what it asked for, when that may take hours.
_LOOK_S = 1.0
_NODE = re.compile(r"[A-Za-z0-9_-]{1,127}")
_ADDRESS = re.compile(r"[^\s,=]{1,253}:[0-9]{1,5}")
T = TypeVar("T")


class MemberControl(Protocol):
    """What replication lets an operator change."""

    def add_member(self, node_id: str, address: str) -> asyncio.Future[Any]: ...

    def remove_member(self, node_id: str) -> asyncio.Future[Any]: ...

    async def move_leadership(self, node_id: str = "") -> Leadership: ...


class NodeOfSet(Protocol):
    """A node, as one of its broker set."""

    @property
    def members(self) -> MemberControl: ...

    def status(self) -> pb.BrokerStatusResponse: ...


class MemberAdmin:
    def __init__(self, broker: Broker, node: NodeOfSet) -> None:
        self._broker = broker
        self._node = node
        self._members = node.members
        # Who is being added, where, and what becomes of it.
        self._adding: tuple[str, str, asyncio.Future[Any]] | None = None

    async def add_member(self, request: pb.AddMemberRequest, context: Context) -> pb.MemberList:
        """The same node at the same address, asked for again, is looked at again."""
        await self._broker.leadership.settled()
        node_id, address = request.node_id, request.address
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
        future = self._known_adding(node_id, address)
        if future is None:
            future = self._members.add_member(node_id, address)
            if not future.done():
                # One that was refused leaves the one that is under way alone.
                future.add_done_callback(_note_end)
                self._adding = node_id, address, future
        # Who gives up does not end it.
        await asyncio.wait([future], timeout=_LOOK_S)
        if future.done():
            await self._or_refused(future)
        return self._list()

    async def remove_member(
        self, request: pb.RemoveMemberRequest, context: Context
    ) -> pb.MemberList:
        """Also one that is being added: that is called off."""
        await self._broker.leadership.settled()
        node_id = request.node_id
        if self._adding is not None and self._list().joining.node_id == node_id != "":
            self._adding[2].cancel()
            # What follows from it happens in the next turn of the loop.
            await asyncio.sleep(0)
            return self._list()
        await self._or_refused(self._members.remove_member(node_id))
        return self._list()

    async def transfer_leadership(
        self, request: pb.TransferLeadershipRequest, context: Context
    ) -> pb.TransferLeadershipResponse:
        """A node that leads already is a success: the answer to the first request may be lost."""
        await self._broker.leadership.settled()
        _, term, leader_id, _ = await self._or_refused(
            self._members.move_leadership(request.node_id)
        )
        if leader_id is None or (request.node_id and leader_id != request.node_id):
            raise OutcomeUnknown(
                f"the leadership has moved, and {leader_id or 'nobody'} leads now: look at "
                "`mq cluster status`, and ask again if need be"
            )
        return pb.TransferLeadershipResponse(leader_id=leader_id, term=term)

    def _known_adding(self, node_id: str, address: str) -> asyncio.Future[Any] | None:
        if self._adding is None or self._adding[:2] != (node_id, address):
            return None
        return None if self._adding[2].done() else self._adding[2]

    async def _or_refused(self, work: Awaitable[T]) -> T:
        """NotLeader with the address for clients, not the one for nodes."""
        try:
            return await work
        except NotLeader:
            raise self._broker.leadership.refusal() from None

    def _list(self) -> pb.MemberList:
        status = self._node.status()
        joining = status.joining if status.HasField("joining") else None
        return pb.MemberList(members=status.set_members, joining=joining)


def _note_end(future: asyncio.Future[Any]) -> None:
    """Nobody may be there to hear it."""
    if future.cancelled():
        log.info("a node was not added: called off")
    elif isinstance(error := future.exception(), MqError):
        log.warning("a node was not added", error=str(error))
