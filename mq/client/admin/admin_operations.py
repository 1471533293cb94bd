"""Administration of single broker sets: their members, who leads them, and the bytes of their log.

Each call is for one set; its name may be left out while the cluster has only one.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from mq.client.admin.admin_calls import AdminCalls, check_count
from mq.errors import IllegalRequest
from mq.wire.v1 import admin_pb2 as pb

# The broker gives the other node ten seconds to catch up, and an election some more.
_TRANSFER_S = 20.0
T = TypeVar("T")


class Operations(AdminCalls):
    async def add_member(
        self, node_id: str, address: str, *, broker_set: str = ""
    ) -> pb.MemberList:
        """A node that runs already, waiting for it (`raft.join`), at the address for other nodes.

        It is a member when it has copied the log. Until then the answer has it as `joining`, after
        a second: call again, with the same, to see how far it is. IllegalMembership.
        """
        request = pb.AddMemberRequest(node_id=node_id, address=address)
        answer: pb.MemberList = await self._ask(
            await self._one_set(broker_set), "AddMember", request
        )
        return answer

    async def remove_member(self, node_id: str, *, broker_set: str = "") -> pb.MemberList:
        """Not the one that leads. One that is being added is called off. IllegalMembership."""
        request = pb.RemoveMemberRequest(node_id=node_id)
        answer: pb.MemberList = await self._ask(
            await self._one_set(broker_set), "RemoveMember", request
        )
        return answer

    async def transfer_leadership(
        self, node_id: str = "", *, broker_set: str = ""
    ) -> pb.TransferLeadershipResponse:
        """To this node, or to the one that has most of the log. Returns when it leads.
        IllegalMembership: it cannot, and the old one leads on.
        """
        request = pb.TransferLeadershipRequest(node_id=node_id)
        name, timeout_s = await self._one_set(broker_set), max(self._timeout_s, _TRANSFER_S)
        answer: pb.TransferLeadershipResponse = await self._ask(
            name, "TransferLeadership", request, timeout_s=timeout_s
        )
        return answer

    async def read_log(self, server: str, log_offset: int = 0, bytes_max: int = 0) -> pb.LogChunk:
        """Of one broker: its log from there on, some bytes of it. See proto/mq/v1/admin.proto."""
        check_count("log_offset", log_offset)
        check_count("bytes_max", bytes_max)
        request = pb.ReadLogRequest(log_offset=log_offset, bytes_max=bytes_max)
        answer: pb.LogChunk = await self._connection.call(
            "AdminService", "ReadLog", request, self._timeout_s, server=server
        )
        return answer

    async def _one_set(self, broker_set: str) -> str:
        known = await self._set_names()
        if broker_set:
            return await self._known_set(broker_set, known)
        if len(known) != 1:
            raise IllegalRequest(f"the cluster has the broker sets {', '.join(known)}: say which")
        return known[0]


class OperationsSync:
    """The same for programs without asyncio."""

    _core: Operations

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def add_member(self, node_id: str, address: str, *, broker_set: str = "") -> pb.MemberList:
        """A node that runs already, waiting for it (`raft.join`), at the address for other nodes.

        It is a member when it has copied the log. Until then the answer has it as `joining`, after
        a second: call again, with the same, to see how far it is. IllegalMembership.
        """
        return self._run(self._core.add_member(node_id, address, broker_set=broker_set))

    def remove_member(self, node_id: str, *, broker_set: str = "") -> pb.MemberList:
        """Not the one that leads. One that is being added is called off. IllegalMembership."""
        return self._run(self._core.remove_member(node_id, broker_set=broker_set))

    def transfer_leadership(
        self, node_id: str = "", *, broker_set: str = ""
    ) -> pb.TransferLeadershipResponse:
        """To this node, or to the one that has most of the log. Returns when it leads.
        IllegalMembership: it cannot, and the old one leads on.
        """
        return self._run(self._core.transfer_leadership(node_id, broker_set=broker_set))

    def read_log(self, server: str, log_offset: int = 0, bytes_max: int = 0) -> pb.LogChunk:
        """Of one broker: its log from there on, some bytes of it. See proto/mq/v1/admin.proto."""
        return self._run(self._core.read_log(server, log_offset, bytes_max))
