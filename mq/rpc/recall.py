"""ProducerService.Recall: taking back a message that waits."""

from __future__ import annotations

from mq import names
from mq.broker.broker import Broker
from mq.errors import IllegalRequest, MessageNotFound, PermissionDenied
from mq.rpc.methods import Context
from mq.wire.v1.producer_pb2 import RecallRequest, RecallResponse


class RecallService:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set

    async def recall(self, request: RecallRequest, context: Context) -> RecallResponse:
        await self._broker.leadership.settled()
        broker_set, log_offset = names.parse_message_id(request.message_id)
        names.check_topic(request.topic)
        if names.is_internal_topic(request.topic):
            raise PermissionDenied(f"what waits for topic {request.topic} is the broker's own")
        if request.deliver_at_ms <= 0:
            raise IllegalRequest(
                f"deliver_at_ms = {request.deliver_at_ms}: say when the message is delivered, as "
                "the send returned it"
            )
        if broker_set != self._broker_set:
            raise MessageNotFound(
                f"message {request.message_id} is in broker set {broker_set}, this is "
                f"{self._broker_set}"
            )
        self._broker.state.topics.find(request.topic)
        await self._broker.delays.recall(request.topic, log_offset, request.deliver_at_ms)
        return RecallResponse()
