"""AdminService, dead letters and how often a group retries."""

from __future__ import annotations

from mq import names
from mq.broker.broker import Broker
from mq.rpc.methods import Context
from mq.store.lookup import StoredMessage
from mq.wire.v1 import admin_pb2 as pb


class DeadLetterAdmin:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set

    async def list_dead_letters(
        self, request: pb.ListDeadLettersRequest, context: Context
    ) -> pb.ListDeadLettersResponse:
        await self._broker.leadership.settled()
        letters = self._broker.dead_letters
        if not request.group:
            counts = [
                pb.DeadLetterCount(
                    group=one.group,
                    messages=one.messages,
                    last_stored_at_ms=one.last_stored_at_ms,
                    broker_sets=[self._broker_set],
                )
                for one in letters.counts()
            ]
            return pb.ListDeadLettersResponse(groups=counts)
        found, next_offset = letters.listed(
            request.group, request.queue_offset, request.messages_max
        )
        return pb.ListDeadLettersResponse(
            messages=map(self._stored, found),
            next_offset=next_offset,
            next_offsets={self._broker_set: next_offset},
        )

    async def resend_dead_letters(
        self, request: pb.ResendDeadLettersRequest, context: Context
    ) -> pb.ResendDeadLettersResponse:
        await self._broker.leadership.settled()
        letters = self._broker.dead_letters
        count = (
            await letters.resend(request.group, request.queue_offsets)
            if request.queue_offsets
            else await letters.resend_all(request.group)
        )
        return pb.ResendDeadLettersResponse(messages=count)

    async def purge_dead_letters(
        self, request: pb.PurgeDeadLettersRequest, context: Context
    ) -> pb.PurgeDeadLettersResponse:
        await self._broker.leadership.settled()
        count = await self._broker.dead_letters.purge(request.group, request.before_offset)
        return pb.PurgeDeadLettersResponse(messages=count)

    async def alter_group(
        self, request: pb.AlterGroupRequest, context: Context
    ) -> pb.GroupSettings:
        """What is so now; also when nothing was to be changed."""
        await self._broker.leadership.settled()
        names.check_group(request.group)
        if request.HasField("retries_max"):
            await self._broker.dead_letters.set_retries(request.group, request.retries_max)
        return pb.GroupSettings(
            group=request.group,
            retries_max=self._broker.retrying.retries_max(request.group),
            is_default=self._broker.state.offsets.retries_max(request.group) is None,
        )

    def _stored(self, found: StoredMessage) -> pb.StoredMessage:
        return pb.StoredMessage(
            message_id=names.message_id(self._broker_set, found.log_offset),
            topic=found.topic,
            queue_id=found.queue_id,
            queue_offset=found.queue_offset,
            log_offset=found.log_offset,
            stored_at_ms=found.stored_at_ms,
            message=found.message,
        )
