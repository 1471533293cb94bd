"""Single calls about offsets: find, commit, query. No state, no retries of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mq.client.model import QueueRef
from mq.client.subscription import Start, start_position
from mq.client.wiring import CALL_TIMEOUT_S, Connection
from mq.wire.v1.consumer_pb2 import (
    OFFSET_AT_TIME,
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    START_EARLIEST,
    START_LATEST,
    START_TIMESTAMP,
    CommitOffsetsRequest,
    FindOffsetsRequest,
    FindOffsetsResponse,
    QueryOffsetsRequest,
    QueryOffsetsResponse,
    QueueId,
    QueuePosition,
)

_SERVICE = "ConsumerService"
_KINDS = {
    START_EARLIEST: OFFSET_EARLIEST,
    START_LATEST: OFFSET_LATEST,
    START_TIMESTAMP: OFFSET_AT_TIME,
}


async def find_offsets(
    connection: Connection,
    topic: str,
    to: Start,
    queue_ids: Iterable[int] = (),
    timeout_s: float = CALL_TIMEOUT_S,
) -> dict[QueueRef, int]:
    """Of these queues, or all of the topic."""
    position, at_ms = start_position(to)
    request = FindOffsetsRequest(
        topic=topic, queue_ids=queue_ids, kind=_KINDS[position], at_ms=at_ms
    )
    response: FindOffsetsResponse = await connection.call_first(
        _SERVICE, "FindOffsets", request, timeout_s
    )
    return from_positions(response.positions)


async def commit_offsets(
    connection: Connection,
    group: str,
    offsets: Mapping[QueueRef, int],
    *,
    member_id: str = "",
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Durable and replicated when it returns."""
    request = CommitOffsetsRequest(
        group=group, member_id=member_id, positions=to_positions(offsets)
    )
    await connection.call_first(_SERVICE, "CommitOffsets", request, timeout_s)


async def query_offsets(
    connection: Connection,
    group: str,
    queues: Iterable[QueueRef] = (),
    timeout_s: float = CALL_TIMEOUT_S,
) -> dict[QueueRef, int]:
    """Of these queues, or all that the group has; those without an offset are left out."""
    wanted = [QueueId(topic=topic, queue_id=queue_id) for topic, queue_id, _ in queues]
    request = QueryOffsetsRequest(group=group, queues=wanted)
    response: QueryOffsetsResponse = await connection.call_first(
        _SERVICE, "QueryOffsets", request, timeout_s
    )
    return from_positions(response.positions)


def to_positions(offsets: Mapping[QueueRef, int]) -> list[QueuePosition]:
    return [
        QueuePosition(topic=topic, queue_id=queue_id, queue_offset=queue_offset)
        for (topic, queue_id, _), queue_offset in offsets.items()
    ]


def from_positions(positions: Iterable[QueuePosition]) -> dict[QueueRef, int]:
    return {QueueRef(one.topic, one.queue_id): one.queue_offset for one in positions}
