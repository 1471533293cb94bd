"""EndTransaction and RecallMessage: what becomes of a message that is held back.

Both name a message by the set that has it, which need not be that of the node that is asked: such a
call is passed on.
"""

from __future__ import annotations

import asyncio

from mq import names
from mq.access.policies import Action
from mq.broker.broker import Broker
from mq.errors import IllegalRequest, PermissionDenied, ReplicationTimeout
from mq.rpc.access import Rules
from mq.rpc.rocketmq.calls import Call
from mq.rpc.rocketmq.codes import OK, Refused
from mq.rpc.rocketmq.handles import parse_recall
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code, TransactionResolution


class Transactions:
    def __init__(self, broker: Broker, rules: Rules) -> None:
        self._broker = broker
        self._rules = rules
        self._timeout_s = broker.settings.config.broker.send_timeout_ms / 1000

    async def end(
        self, request: service.EndTransactionRequest, call: Call
    ) -> service.EndTransactionResponse:
        """Without a resolution the producer does not know yet: it is asked again."""
        call.topic(request.topic)
        _, transaction_id = _parsed(request.transaction_id)
        self._rules.check_transaction(call.principal, Action.PUBLISH, request.transaction_id)
        if request.resolution == TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED:
            return service.EndTransactionResponse(status=OK)
        commits = request.resolution == TransactionResolution.COMMIT
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._broker.transacting.end(transaction_id, commits=commits)
        except TimeoutError:
            raise ReplicationTimeout(
                f"no majority of the broker set had the end of transaction "
                f"{request.transaction_id} in time: it may become part of the log or not"
            ) from None
        return service.EndTransactionResponse(status=OK)

    async def recall(
        self, request: service.RecallMessageRequest, call: Call
    ) -> service.RecallMessageResponse:
        topic, recall = call.topic(request.topic), parse_recall(request.recall_handle)
        if recall.topic != topic:
            raise Refused(Code.BAD_REQUEST, f"the recall handle is not of topic {topic}")
        if names.is_internal_topic(topic):
            raise PermissionDenied(f"what waits for topic {topic} is the broker's own")
        self._rules.publish_to(call.principal, topic)
        self._broker.state.topics.find(topic)
        await self._broker.delays.recalls.recall(topic, recall.log_offset, recall.deliver_at_ms)
        return service.RecallMessageResponse(status=OK, message_id=recall.message_id)


def set_of_transaction(request: service.EndTransactionRequest) -> str:
    return _parsed(request.transaction_id)[0]


def set_of_recall(request: service.RecallMessageRequest) -> str:
    return parse_recall(request.recall_handle).broker_set


def _parsed(transaction_id: str) -> tuple[str, int]:
    try:
        return names.parse_message_id(transaction_id)
    except IllegalRequest:
        text = f"{transaction_id[:200]!r} is no transaction id that a send returned"
        raise Refused(Code.INVALID_TRANSACTION_ID, text) from None
