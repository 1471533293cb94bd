"""AdminService, about the nodes of the broker set: who belongs to it, who leads."""

from __future__ import annotations

from typing import Protocol

from mq.broker.broker import Broker
from mq.errors import IllegalMembership
from mq.rpc.methods import Context
from mq.wire.v1 import admin_pb2 as pb


class MemberControl(Protocol):
    """What replication lets an operator change."""


class MemberAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def add_member(self, request: pb.AddMemberRequest, context: Context) -> pb.MemberList:
        await self._broker.leadership.settled()
        raise IllegalMembership("not yet")

    async def remove_member(
        self, request: pb.RemoveMemberRequest, context: Context
    ) -> pb.MemberList:
        await self._broker.leadership.settled()
        raise IllegalMembership("not yet")

    async def transfer_leadership(
        self, request: pb.TransferLeadershipRequest, context: Context
    ) -> pb.TransferLeadershipResponse:
        await self._broker.leadership.settled()
        raise IllegalMembership("not yet")
