"""Calls about received messages by their handles: acknowledge, give back, hold longer.

Each handle goes to the broker set of its message, and a call without an answer is repeated. The
first attempt at an acknowledgement may have spent the handle, so a handle that is refused after an
attempt without an answer counts as done. It may also be refused because another member has the
message now; then it was worked on twice, whatever this member is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from itertools import groupby, pairwise
from typing import NamedTuple

from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import call_repeatedly
from mq.client.consumer.offsets import in_sets
from mq.client.messages import ReceivedMessage, shared_of
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.status_pb2 import SEND_OK

_HANDLES_MAX = 2_000
# The time for which a call is repeated while brokers fail over.
RETRY_S = 15.0


# About messages that this member has; their handles are filled in.
HandleRequest = wire.AckRequest | wire.NackRequest | wire.ChangeInvisibleRequest


class Lease(NamedTuple):
    """Messages of one lease; their queue offsets ascend."""

    broker_set: str
    handle: bytes
    queue_offsets: Sequence[int]


# The lease and queue offset of a message.
Held = tuple[bytes, int]


def leases_of(messages: Iterable[ReceivedMessage]) -> list[Lease]:
    """Messages of one receive have the same `Shared`, and are not looked at one by one."""
    offsets: dict[tuple[str, bytes], list[int]] = {}
    for shared, own in groupby(messages, key=shared_of):
        found = offsets.setdefault((shared.queue.broker_set, shared.handle), [])
        found += [one.queue_offset for one in own]
    return [Lease(*lease, sorted(set(found))) for lease, found in offsets.items()]


async def send_handles(
    connection: Connection,
    leases: Iterable[Lease],
    request: HandleRequest,
    timeout_s: float = RETRY_S,
) -> list[Held]:
    """Returns the messages that were refused. Asks all sets even if one fails, and raises the error
    of that one with its name.
    """
    by_set: dict[str, list[wire.Handle]] = {}
    for one in leases:
        by_set.setdefault(one.broker_set, []).extend(handles_of(one))
    refused = await in_sets(
        {
            name: _send_to_set(connection, name, handles, request, timeout_s)
            for name, handles in by_set.items()
        }
    )
    return [one for own in refused.values() for one in own]


async def _send_to_set(
    connection: Connection,
    broker_set: str,
    handles: Sequence[wire.Handle],
    request: HandleRequest,
    timeout_s: float,
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
            refused |= await _send_to_set(connection, broker_set, single, request, timeout_s)
    return refused


def handles_of(lease: Lease) -> list[wire.Handle]:
    """Neighbours share one."""
    offsets = lease.queue_offsets
    if not offsets:
        return []
    gaps: list[int] = []
    if offsets[-1] - offsets[0] >= len(offsets):
        gaps = [at for at, (one, after) in enumerate(pairwise(offsets), 1) if after > one + 1]
    return [
        wire.Handle(lease=lease.handle, queue_offset=offsets[start], count=end - start)
        for start, end in pairwise([0, *gaps, len(offsets)])
    ]


def _singles(handle: wire.Handle) -> list[wire.Handle]:
    return [
        wire.Handle(lease=handle.lease, queue_offset=handle.queue_offset + at, count=1)
        for at in range(handle.count)
    ]
