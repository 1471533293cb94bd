"""Taking back a message that waits for its delivery time: one call, no state."""

from __future__ import annotations

from mq import names
from mq.client.cluster.connection import Connection
from mq.client.messages import SendResult
from mq.errors import IllegalRequest
from mq.wire.v1.producer_pb2 import RecallRequest


def recall_request(
    result: SendResult | None, topic: str, message_id: str, deliver_at_ms: int
) -> RecallRequest:
    """For what a send returned, or the same in parts. IllegalRequest: it was not delayed, or not
    enough is known of it.
    """
    if result is not None:
        topic, message_id, deliver_at_ms = result.topic, result.message_id, result.deliver_at_ms
    if not (topic and message_id and deliver_at_ms):
        raise IllegalRequest(
            "to take a message back, its topic, id and deliver_at_ms must be known, as the send "
            "returned them; a message without a delay, or sent with ack other than quorum, cannot "
            "be taken back"
        )
    return RecallRequest(topic=topic, message_id=message_id, deliver_at_ms=deliver_at_ms)


async def recall(connection: Connection, request: RecallRequest, timeout_s: float) -> None:
    """Asks the set in the message id. Raises IllegalRequest for a malformed id or unknown set."""
    broker_set, _ = names.parse_message_id(request.message_id)
    owner = await connection.named(broker_set)
    await owner.call("ProducerService", "Recall", request, timeout_s)
