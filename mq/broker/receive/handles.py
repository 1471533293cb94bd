"""Handles of messages that were received: what a client shows to acknowledge them.

    lease = number 8 | queue id 4 | topic          little-endian; the rest is UTF-8

The number is the lease's: random, new with every time that messages are given out, and never 0. It
is what makes a handle good; topic and queue only say where to look it up. Clients take a lease as
bytes without a meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from mq.broker.queue import Queue
from mq.wire.v1.consumer_pb2 import Handle as WireHandle

_HEAD = struct.Struct("<QI")
# A group's own topics have a prefix before the longest name.
_LEASE_BYTES_MAX = _HEAD.size + 160


class Handle(NamedTuple):
    """Messages [start, end) of one lease."""

    queue: Queue
    lease: int
    start: int
    end: int


def lease_bytes(queue: Queue, number: int) -> bytes:
    return _HEAD.pack(number, queue.queue_id) + queue.topic.encode()


def parse(wire: Iterable[WireHandle]) -> list[Handle | None]:
    """None for each that is none of ours."""
    known: dict[bytes, tuple[Queue, int] | None] = {}
    handles: list[Handle | None] = []
    for one in wire:
        if one.lease not in known:
            known[one.lease] = _parse_lease(one.lease)
        place = known[one.lease]
        end = one.queue_offset + (one.count or 1)
        handles.append(Handle(*place, one.queue_offset, end) if place else None)
    return handles


def _parse_lease(lease: bytes) -> tuple[Queue, int] | None:
    if not _HEAD.size < len(lease) <= _LEASE_BYTES_MAX:
        return None
    number, queue_id = _HEAD.unpack_from(lease)
    try:
        topic = lease[_HEAD.size :].decode()
    except UnicodeDecodeError:
        return None
    # 0 is what messages have that are in nobody's hands.
    return (Queue(topic, queue_id), number) if number else None
