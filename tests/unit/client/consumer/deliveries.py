"""What a broker sends, made by hand: assignments and deliveries with small messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq.client.decode import Runs, parse_subscribe_response
from mq.client.messages import QueueRef
from mq.wire.v1.consumer_pb2 import (
    AssignedQueue,
    Assignment,
    Delivery,
    Redirect,
    Run,
    SubscribeResponse,
)
from mq.wire.v1.message_pb2 import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mq.client.consumer.prefetch import PrefetchBuffer

TOPIC = "orders"
# Of a small message, and between two of them in the log.
FRAME_BYTES = 10
SET = "set-0"

Content = Assignment | Delivery | Redirect


def assignment(
    *queues: tuple[int, int] | tuple[int, int, int],
    generation: int = 1,
    heartbeat_ms: int = 10_000,
) -> Assignment:
    """Of (queue id, queue offset) or (queue id, queue offset, epoch)."""
    assigned = [
        AssignedQueue(
            topic=TOPIC,
            queue_id=one[0],
            queue_offset=one[1],
            epoch=one[2] if len(one) == 3 else 0,
        )
        for one in queues
    ]
    return Assignment(
        generation=generation, queues=assigned, heartbeat_ms=heartbeat_ms, expires_ms=30_000
    )


def delivery(
    queue_id: int,
    queue_offsets: Iterable[int],
    *,
    next_offset: int | None = None,
    epoch: int = 0,
    tag: str = "",
) -> Delivery:
    """Each message is a run of its own; its body is its queue offset."""
    offsets = list(queue_offsets)
    runs = [
        run([_message(str(at).encode(), tag)], at, log_offset=at * FRAME_BYTES) for at in offsets
    ]
    return Delivery(
        topic=TOPIC,
        queue_id=queue_id,
        epoch=epoch,
        next_offset=offsets[-1] + 1 if next_offset is None else next_offset,
        runs=runs,
    )


def _message(body: bytes, tag: str) -> Message:
    """Of FRAME_BYTES, if they are enough for it."""
    made = Message(body=body, tag=tag)
    made.ordering_key = "k" * (FRAME_BYTES - Run(messages=[made]).ByteSize() - 2)
    return made


def run(
    messages: Sequence[Message], queue_offset: int, log_offset: int, stored_at_ms: int = 0
) -> Run:
    """With the sizes that the frames of its messages have."""
    return Run(
        queue_offset=queue_offset,
        log_offset=log_offset,
        stored_at_ms=stored_at_ms,
        frame_sizes=[Run(messages=[one]).ByteSize() for one in messages],
        messages=messages,
    )


def response(content: Content) -> bytes:
    if isinstance(content, Assignment):
        return SubscribeResponse(assignment=content).SerializeToString()
    if isinstance(content, Redirect):
        return SubscribeResponse(redirect=content).SerializeToString()
    return SubscribeResponse(delivery=content).SerializeToString()


def deliver(buffer: PrefetchBuffer, content: Delivery, broker_set: str = SET) -> bool:
    parsed, runs = parse_subscribe_response(response(content))
    return buffer.deliver(parsed.delivery, runs, broker_set)


def ref(queue_id: int, broker_set: str = SET) -> QueueRef:
    return QueueRef(TOPIC, queue_id, broker_set)


def frames(content: Delivery) -> Runs:
    return parse_subscribe_response(response(content))[1]
