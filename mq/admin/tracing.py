"""A trace as it goes out: of what the log says, as much as the caller may see."""

from __future__ import annotations

from collections.abc import Callable

from mq import names
from mq.broker.broker import Broker
from mq.broker.tracing.events import Event, EventKind, GroupSummary
from mq.errors import IllegalRequest, MessageNotFound
from mq.wire.v1 import admin_pb2 as pb

_BUDGET_MS, _BUDGET_MS_MAX = 2_000, 10_000
# Their group is one of producers, and no secret of those who may consume.
_OF_PRODUCERS = frozenset(
    (
        EventKind.HALF,
        EventKind.CHECKED,
        EventKind.COMMITTED,
        EventKind.ROLLED_BACK,
        EventKind.GIVEN_UP,
    )
)


async def trace(
    broker: Broker,
    broker_set: str,
    request: pb.TraceMessageRequest,
    check_topic: Callable[[str], None],
    may_see_group: Callable[[str], bool],
) -> pb.MessageTrace:
    """IllegalRequest, MessageNotFound, and what `check_topic` raises."""
    owner, log_offset = names.parse_message_id(request.message_id)
    if owner != broker_set:
        raise MessageNotFound(
            f"{request.message_id} is of broker set {owner}; this is {broker_set}"
        )
    if request.budget_ms > _BUDGET_MS_MAX:
        raise IllegalRequest(f"budget_ms = {request.budget_ms}: at most {_BUDGET_MS_MAX}")
    budget_s = (request.budget_ms or _BUDGET_MS) / 1000
    found = await broker.traces.trace(log_offset, budget_s, request.continue_token, check_topic)
    birth, message = found.birth, found.birth.message
    return pb.MessageTrace(
        message_id=names.message_id(broker_set, birth.log_offset),
        topic=birth.batch.topic,
        queue_id=birth.batch.queue_id,
        queue_offset=found.queue_offset,
        tag=message.tag,
        keys=message.keys,
        body_bytes=len(message.body),
        events=[
            _event(broker_set, one)
            for one in found.events
            if not one.group or one.kind in _OF_PRODUCERS or may_see_group(one.group)
        ],
        groups=[_group(one) for one in found.groups if may_see_group(one.group)],
        is_complete=found.is_complete,
        continue_token=found.token,
        incomplete_reason=found.missing,
        raft_index=found.raft_index,
        stored_at_ms=found.stored_at_ms,
        broker_set=broker_set,
    )


def _event(broker_set: str, event: Event) -> pb.TraceEvent:
    copy, actor = event.copy, event.actor
    return pb.TraceEvent(
        kind=event.kind.value,  # type: ignore[arg-type]  # an enum is a number on the wire
        at_ms=event.at_ms,
        group=event.group,
        member_id=actor.member_id,
        user=actor.user,
        address=actor.address,
        producer_id=actor.producer_id,
        topic=copy.queue.topic,
        queue_id=copy.queue.queue_id,
        queue_offset=copy.queue_offset,
        message_id=names.message_id(broker_set, copy.log_offset) if copy.log_offset else "",
        raft_index=event.raft_index,
        term=event.term,
        attempt=event.attempt,
        until_ms=event.until_ms,
        filter=event.filter,
        reason=event.reason,
    )


def _group(one: GroupSummary) -> pb.TraceGroup:
    return pb.TraceGroup(
        group=one.group,
        standing=one.standing.value,  # type: ignore[arg-type]  # an enum is a number on the wire
        topic=one.queue.topic,
        queue_id=one.queue.queue_id,
        position=one.position,
        behind=one.behind,
        attempts=one.attempts,
    )
