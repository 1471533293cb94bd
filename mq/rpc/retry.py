"""ConsumerService.Retry: messages that failed."""

from __future__ import annotations

from mq.broker.broker import Broker
from mq.broker.queue import Queue
from mq.broker.retry.retrying import Failed, Place, RetryResult
from mq.rpc.methods import Context
from mq.rpc.status import wire_status
from mq.wire.v1 import consumer_pb2 as pb


class RetryService:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set

    async def retry(self, request: pb.RetryRequest, context: Context) -> pb.RetryResponse:
        await self._broker.leadership.settled()
        results = await self._broker.retrying.retry(
            request.group,
            request.member_id,
            request.sequence,
            [_failed(one) for one in request.messages],
        )
        return pb.RetryResponse(results=map(_result, results))


def _failed(wire: pb.FailedMessage) -> Failed:
    return Failed(
        Place(Queue(wire.topic, wire.queue_id), wire.queue_offset),
        wire.delay_ms if wire.HasField("delay_ms") else None,
        wire.reason,
    )


def _result(result: RetryResult) -> pb.RetryResult:
    if result.error is not None:
        status = wire_status(result.error)
        return pb.RetryResult(code=status.code, text=status.text)
    return pb.RetryResult(attempts=result.attempts, deliver_at_ms=result.deliver_at_ms)
