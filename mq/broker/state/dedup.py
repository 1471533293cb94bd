"""The stored batches of each producer: the table that makes a repeated send idempotent.

Of each producer it knows every stored sequence, as ranges, and where the newest are. It is part of
the replicated state: changed only by applying entries, in the order of the log, so that every
replica has the same, and bounded, so that producers that come and go cost nothing in the end: the
one that was not heard of for longest is forgotten first.

A leader asks before it writes. That is enough, because it serves only when everything that was in
the log before its term is applied, and remembers itself what it has on its way.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from typing_extensions import Buffer

from mq.errors import IllegalSequence
from mq.names import RETRY_PREFIX, SINK_PREFIX
from mq.wire import varint
from mq.wire.v1.state_pb2 import BrokerState, ProducerState

PRODUCERS_MAX = 10_000
# More than the batches that a producer has in flight ...
NEWEST_MIN = 64
# ... and the gaps that it may leave, to be filled later or never.
RANGES_MAX = 256
# Producers whose numbers only grow leave gaps for ever: their oldest ranges are forgotten.
# A sink may send again whatever it made of one part of its input.
SINK_RANGES_MAX = 1_024
_GROWING = (RETRY_PREFIX, SINK_PREFIX)
_FIELDS = 5
_PRODUCERS = BrokerState.PRODUCERS_FIELD_NUMBER
_NEWEST = ProducerState.NEWEST_FIELD_NUMBER


# In place of a queue offset: the batch is held back, until the time in the other bits if any.
_HELD = 1 << 63


class StoredAt(NamedTuple):
    """The first message of a stored batch. -1: the place is not known, or the batch is held back
    and has no queue offset yet.
    """

    queue_id: int
    queue_offset: int
    log_offset: int
    stored_at_ms: int
    is_duplicate: bool = False
    # When it is delivered, if that is later.
    deliver_at_ms: int = 0


class _Producer:
    __slots__ = ("newest", "ranges")

    def __init__(self) -> None:
        self.ranges: list[int] = []  # start, end, start, end, ... ascending, not touching
        self.newest = array("Q")

    def has(self, sequence: int) -> bool:
        return bisect_right(self.ranges, sequence) % 2 == 1

    def add(self, sequence: int) -> None:
        ranges = self.ranges
        if ranges and ranges[-1] == sequence:  # the usual case: the next one
            ranges[-1] = sequence + 1
            return
        at = bisect_right(ranges, sequence)
        if at % 2:
            return
        ranges[at:at] = [sequence, sequence + 1]
        # Ranges that touch now become one.
        if at + 2 < len(ranges) and ranges[at + 2] == sequence + 1:
            del ranges[at + 1 : at + 3]
        if at and ranges[at - 1] == sequence:
            del ranges[at - 1 : at + 1]

    def place(self, sequence: int) -> StoredAt:
        newest = self.newest
        for at in range(len(newest) - _FIELDS, -1, -_FIELDS):
            if newest[at] == sequence:
                queue_id, place, log_offset, stored_at_ms = newest[at + 1 : at + _FIELDS]
                if place >= _HELD:
                    return StoredAt(
                        queue_id,
                        -1,
                        log_offset,
                        stored_at_ms,
                        is_duplicate=True,
                        deliver_at_ms=place - _HELD,
                    )
                return StoredAt(queue_id, place, log_offset, stored_at_ms, is_duplicate=True)
        return StoredAt(0, -1, -1, 0, is_duplicate=True)


class Producers:
    def __init__(self) -> None:
        self._producers: dict[str, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def find(self, producer_id: str, sequence: int) -> StoredAt | None:
        """The place of the batch; None: it is not stored."""
        producer = self._producers.get(producer_id)
        if producer is None or not producer.has(sequence):
            return None
        return producer.place(sequence)

    def check(self, producer_id: str, sequence: int) -> None:
        """Raises IllegalSequence if one more gap would be too many."""
        producer = self._producers.get(producer_id)
        if producer is None or len(producer.ranges) < 2 * RANGES_MAX:
            return
        if producer_id.startswith(_GROWING):
            return
        if sequence not in producer.ranges[1::2]:
            raise IllegalSequence(
                f"producer {producer_id} left {RANGES_MAX} gaps in its sequences: number batches "
                "1, 2, 3, ... and send what failed again, with the number it had"
            )

    def record(self, producer_id: str, sequence: int, stored: StoredAt) -> None:
        """Part of applying an entry."""
        producer = self._producers.pop(producer_id, None) or _Producer()
        self._producers[producer_id] = producer  # behind all others: heard of last
        producer.add(sequence)
        if producer_id.startswith(_GROWING):
            is_sink = producer_id.startswith(SINK_PREFIX)
            del producer.ranges[: -2 * (SINK_RANGES_MAX if is_sink else RANGES_MAX)]
        newest = producer.newest
        queue_id, queue_offset, log_offset, stored_at_ms, _, deliver_at_ms = stored
        place = queue_offset if queue_offset >= 0 else _HELD | deliver_at_ms
        newest.extend((sequence, queue_id, place, log_offset, stored_at_ms))
        if len(newest) >= 2 * NEWEST_MIN * _FIELDS:
            del newest[: NEWEST_MIN * _FIELDS]
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]

    def encode(self) -> Iterator[ProducerState]:
        for producer_id, producer in self._producers.items():
            yield ProducerState(
                producer_id=producer_id, stored=producer.ranges, newest=producer.newest.tobytes()
            )

    def encode_fields(self) -> list[Buffer]:
        """The same as the field `producers` of BrokerState, in parts that are valid until the next
        change. It is most of a checkpoint when there are many producers, and is encoded on the
        loop: protobuf would copy the places of the newest batches several times.
        """
        parts: list[Buffer] = []
        for producer_id, producer in self._producers.items():
            head = ProducerState(producer_id=producer_id, stored=producer.ranges)
            newest_bytes = len(producer.newest) * producer.newest.itemsize
            begin = head.SerializeToString() + varint.field_head(_NEWEST, newest_bytes)
            parts.append(varint.field_head(_PRODUCERS, len(begin) + newest_bytes) + begin)
            parts.append(producer.newest)
        return parts

    def restore(self, states: Iterator[ProducerState]) -> None:
        self._producers.clear()
        for state in states:
            producer = self._producers[state.producer_id] = _Producer()
            producer.ranges = list(state.stored)
            producer.newest.frombytes(state.newest)
