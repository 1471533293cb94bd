"""Calls about received messages by their handles: acknowledge, give back, hold longer.

Each handle goes to the broker set of its message, and a call without an answer is repeated. The
first attempt at an acknowledgement may have spent the handle, so a handle that is refused after an
attempt without an answer counts as done. It may also be refused because another member has the
message now; then it was worked on twice, whatever this member is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy

from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import call_repeatedly
from mq.client.consumer.offsets import in_sets
from mq.client.messages import ReceivedMessage
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.status_pb2 import SEND_OK

_HANDLES_MAX = 2_000
# The time for which a call is repeated while brokers fail over.
RETRY_S = 15.0


# About messages that this member has; their handles are filled in.
HandleRequest = wire.AckRequest | wire.NackRequest | wire.ChangeInvisibleRequest


# The lease and queue offset of a message.
Held = tuple[bytes, int]


async def send_handles(
    connection: Connection,
    messages: Iterable[ReceivedMessage],
    request: HandleRequest,
    timeout_s: float = RETRY_S,
) -> list[Held]:
    """Returns the messages that were refused. Asks all sets even if one fails, and raises the error
    of that one with its name.
    """
    by_set: dict[str, list[ReceivedMessage]] = {}
    for one in messages:
        by_set.setdefault(one.broker_set, []).append(one)
    refused = await in_sets(
        {
            name: send_to_set(connection, name, handles_of(own), request, timeout_s)
            for name, own in by_set.items()
        }
    )
    return [one for own in refused.values() for one in own]


async def send_to_set(
    connection: Connection,
    broker_set: str,
    handles: Sequence[wire.Handle],
    request: HandleRequest,
    timeout_s: float = RETRY_S,
) -> set[Held]:
    """Returns the messages that were refused."""
    is_final = not isinstance(request, wire.ChangeInvisibleRequest)
    refused: set[Held] = set()
    asked = await connection.named(broker_set)
    for at in range(0, len(handles), _HANDLES_MAX):
        part = handles[at : at + _HANDLES_MAX]
        filled = deepcopy(request)
        filled.handles.extend(part)
        answer = await call_repeatedly(asked, filled, timeout_s)
        if answer.is_repeated and is_final:
            continue
        codes = wire.HandleResponse.FromString(answer.data).codes
        bad = [handle for handle, code in zip(part, codes, strict=True) if code != SEND_OK]
        refused |= {(one.lease, one.queue_offset) for one in bad if one.count <= 1}
        # Of several messages in one handle perhaps only some belong to another member.
        single = [one for handle in bad if handle.count > 1 for one in _singles(handle)]
        if single:
            refused |= await send_to_set(connection, broker_set, single, request, timeout_s)
    return refused


def handles_of(messages: Iterable[ReceivedMessage]) -> list[wire.Handle]:
    """The handles of the messages; neighbours of one lease share one."""
    handles: list[wire.Handle] = []
    for lease, queue_offset in sorted({(one.handle, one.queue_offset) for one in messages}):
        last = handles[-1] if handles else None
        if last and last.lease == lease and last.queue_offset + last.count == queue_offset:
            last.count += 1
        else:
            handles.append(wire.Handle(lease=lease, queue_offset=queue_offset, count=1))
    return handles


def _singles(handle: wire.Handle) -> list[wire.Handle]:
    return [
        wire.Handle(lease=handle.lease, queue_offset=handle.queue_offset + at, count=1)
        for at in range(handle.count)
    ]
