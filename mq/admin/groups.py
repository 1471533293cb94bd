"""Consumer groups as operators change them: offsets, retries, the end of a group. On the leader."""

from __future__ import annotations

from collections.abc import Mapping

from mq import names
from mq.broker.attribution import Actor
from mq.broker.broker import Broker
from mq.broker.queue import Queue
from mq.errors import GroupNotFound
from mq.wire.v1 import admin_pb2 as pb


class GroupControl:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def reset(
        self,
        group: str,
        offsets: Mapping[Queue, int],
        caller: Actor,
        *,
        may_be_new: bool,
        is_dry_run: bool,
    ) -> dict[Queue, int]:
        """Returns the committed offsets of these queues as they were before. The new ones are
        durable, unless it is a dry run. GroupNotFound.
        """
        broker = self._broker
        if not may_be_new and group not in broker.groups.names():
            raise GroupNotFound(f"there is no group {group}")
        committed = map(broker.state.offsets.positions(group).get, offsets)
        pairs = zip(offsets, committed, strict=True)
        before = {queue: at for queue, at in pairs if at is not None}
        if not is_dry_run:
            await broker.groups.reset(group, offsets, caller)
        return before

    async def delete(self, group: str) -> None:
        """Raises GroupNotEmpty if it has members."""
        broker = self._broker
        live = broker.groups.live(group)
        member_count = len(live.members) if live else 0
        member_count += len(broker.receiving.members(group))
        if not member_count:
            # Commits that are still gathered would create the group again behind its end.
            broker.commits.drop_group(group)
        await broker.catalog.delete_group(group, member_count)

    async def alter(
        self, group: str, retries_max: int | None, *, is_ordered: bool | None = None
    ) -> pb.GroupSettings:
        """Returns the settings in effect; None changes nothing."""
        broker = self._broker
        names.check_group(group)
        if retries_max is not None:
            await broker.dead_letters.set_retries(group, retries_max)
        if is_ordered is not None:
            await broker.dead_letters.set_ordered(group, is_ordered=is_ordered)
        return pb.GroupSettings(
            group=group,
            retries_max=broker.retrying.retries_max(group),
            is_default=broker.state.offsets.retries_max(group) is None,
            is_ordered=broker.state.offsets.is_ordered(group),
        )
