"""ProducerService.SendAtomically: exactly-once processing. Batches come as the bytes they are, and
are not opened when they are prepared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mq.broker.atoms import Start
from mq.broker.broker import Broker
from mq.broker.long_work import Turn, in_turns
from mq.broker.queue import Queue
from mq.broker.state.dedup import StoredAt
from mq.errors import ReplicationTimeout
from mq.rpc import limits
from mq.rpc.consumer import offsets_of
from mq.rpc.methods import Context
from mq.store.batch import Batch
from mq.wire.v1 import producer_pb2 as pb


class AtomicService:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set
        self._timeout_s = broker.settings.config.broker.send_timeout_ms / 1000
        self._message_bytes_max = broker.settings.config.store.message_bytes_max

    async def send_atomically(
        self, request: pb.RawAtomicRequest, context: Context
    ) -> pb.AtomicResponse:
        await self._broker.leadership.settled()
        try:
            async with asyncio.timeout(self._timeout_s):
                stored = await self._send(request)
        except TimeoutError:
            raise ReplicationTimeout(
                "no majority of the broker set had it in time: it may become part of the log or "
                "not. Send the same again, with the same sequences"
            ) from None
        return pb.AtomicResponse(
            results=[
                pb.BatchResult(
                    queue_id=one.queue_id,
                    queue_offset=one.queue_offset,
                    log_offset=one.log_offset,
                    stored_at_ms=one.stored_at_ms,
                    is_duplicate=one.is_duplicate,
                )
                for one in stored
            ]
        )

    async def _send(self, request: pb.RawAtomicRequest) -> list[StoredAt]:
        return await self._broker.atoms.send(
            await self._accepted(request.batches),
            request.group,
            request.member_id,
            await offsets_of(request.positions),
            request.handles,
            starts=dict(
                await in_turns(
                    (Queue(one.topic, one.queue_id), Start(one.stood_at, one.first))
                    for one in request.starts
                )
            ),
        )

    async def _accepted(self, data: Iterable[bytes]) -> list[Batch]:
        found, turn = [], Turn()
        for one in data:
            found.append(limits.accept_batch(one, self._message_bytes_max))
            await turn.over()
        return found
