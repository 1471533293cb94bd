"""Encoded rows of one partition and topic, cut into numbered batches for the queues of the topic.

The ends of batches, their queues and their numbers depend on the rows, their order, the partition
and the queues only, not on the portions in which rows arrive. So a partition that is written again
makes the same batches, and the broker stores them once.

    producer id = %SINK%, hash of (writer, topic, queues), partition
    sequence    = batch id | number in the partition | check of the content     30, 14, 19 bits

The upper bits of a larger batch id, such as a time, become part of the writer. Rows with an
ordering key go to the queue to which a producer sends them. The others fill one batch after the
other, each for the next queue. The check distinguishes batches of a plan whose rows differ when it
runs again: they are stored again, where a batch taken for an earlier one would be lost. Pure: no
network, no clock.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mq.client.arrow.encoding import Encoded, Int64s, by_queue, joined, stamp, weights
from mq.client.encode import place
from mq.client.messages import QueueRef
from mq.errors import IllegalRequest
from mq.hashing import text_hash
from mq.names import SINK_PREFIX

# The first batches of a queue are small, so that sending begins early. Later ones grow: the broker
# remembers the newest thousand, which should be all of a large partition.
_BYTES_MIN, _DOUBLINGS, _DOUBLES_AFTER = 256 << 10, 3, 32
_BATCH_BITS, _NUMBER_BITS, _CHECK_BITS = 30, 14, 19
_NUMBER_MAX = (1 << _NUMBER_BITS) - 1


class Cut(NamedTuple):
    """A complete batch. `row`: the first row of the partition that did not fit."""

    row: int
    at: int
    parts: tuple[Encoded, ...]

    @property
    def row_count(self) -> int:
        return sum(len(part.frame_sizes) for part in self.parts)


class NumberedBatch(NamedTuple):
    queue: QueueRef
    sequence: int
    row_count: int
    data: bytes


def producer_id(writer: str, topic: str, queues: Sequence[QueueRef], partition: int) -> str:
    """`writer` names the source of the rows: a query, or one run of a job. With other queues it is
    another producer: rows may be stored twice then, but none is taken for another one.
    """
    places = ",".join(f"{ref.broker_set}/{ref.queue_id}" for ref in queues)
    whole = f"{writer}\n{topic}\n{places}"
    return f"{SINK_PREFIX}{hashlib.sha256(whole.encode()).hexdigest()[:40]}-{partition}"


class _QueueBuffer:
    """Rows of the next batch for one queue, or for any."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[Encoded] = []
        self._bytes = 0

    def add(self, encoded: Encoded, rows: Int64s) -> Iterator[tuple[int, tuple[Encoded, ...]]]:
        """Batches that are complete now, each with the first row that did not fit. `rows`: the
        numbers of the rows within the partition.
        """
        sizes = weights(encoded)
        ends = np.cumsum(sizes)
        start = 0
        while start < len(ends):
            before = int(ends[start] - sizes[start])
            room = self._bytes_max - self._bytes
            end = max(start, int(np.searchsorted(ends, before + room, "right")))
            if end == start and not self._parts:
                end = start + 1  # larger than a batch may be: a batch of its own
            if end > start:
                self._parts.append(encoded.slice(start, end))
                self._bytes += int(ends[end - 1]) - before
            if end < len(ends):
                yield int(rows[end]), self.take()
            start = end

    @property
    def _bytes_max(self) -> int:
        return _BYTES_MIN << min(self.count // _DOUBLES_AFTER, _DOUBLINGS)

    def take(self) -> tuple[Encoded, ...]:
        """Removes and returns the rows that wait."""
        parts, self._parts, self._bytes = tuple(self._parts), [], 0
        self.count += 1
        return parts

    def __bool__(self) -> bool:
        return bool(self._parts)


class Cutter:
    """Makes the batches of one partition and topic."""

    ANY = -1

    def __init__(
        self, writer: str, topic: str, queues: Sequence[QueueRef], partition: int, batch_id: int
    ) -> None:
        self._queues = queues
        self._partition = partition
        # Numbers of one producer must ascend: the broker forgets the lowest first.
        era, self._batch_id = divmod(batch_id, 1 << _BATCH_BITS)
        self._topic = topic
        era_writer = f"{writer}\n{era}" if era else writer
        self._producer_id = producer_id(era_writer, topic, queues, partition)
        # Spreads the first batches of small partitions over the queues.
        self._first = text_hash(writer) + batch_id + partition
        self._buffers: dict[int, _QueueBuffer] = {}
        self._rows = 0
        self._number = 0
        self._any = 0

    def add(self, encoded: Encoded, born_at_ms: int) -> Iterator[NumberedBatch]:
        """Adds rows. Returns the batches that are complete now."""
        cuts: list[Cut] = []
        for at, rows in by_queue(encoded, len(self._queues)):
            own = encoded if rows is None else encoded.take(rows)
            numbers = np.arange(len(own.frame_sizes)) if rows is None else rows
            buffer = self._buffers.setdefault(at, _QueueBuffer())
            cuts += (Cut(row, at, parts) for row, parts in buffer.add(own, numbers + self._rows))
        self._rows += len(encoded.frame_sizes)
        # By row and not by queue: the same order for any portions.
        return self._numbered(sorted(cuts, key=lambda cut: cut.row), born_at_ms)

    def flush(self, born_at_ms: int) -> Iterator[NumberedBatch]:
        """The last, incomplete batches."""
        left = [(at, rows) for at, rows in sorted(self._buffers.items()) if rows]
        cuts = (Cut(self._rows, at, rows.take()) for at, rows in left)
        return self._numbered(cuts, born_at_ms)

    def _numbered(self, cuts: Iterable[Cut], born_at_ms: int) -> Iterator[NumberedBatch]:
        for cut in cuts:
            queue = self._queues[cut.at]
            if cut.at == self.ANY:
                queue = self._queues[(self._first + self._any) % len(self._queues)]
                self._any += 1
            self._number += 1
            if self._number > _NUMBER_MAX:
                raise IllegalRequest(
                    f"partition {self._partition} has more than {_NUMBER_MAX} batches for topic "
                    f"{self._topic}: write the rows in more partitions"
                )
            yield self._batch(cut, queue, born_at_ms)

    def _batch(self, cut: Cut, queue: QueueRef, born_at_ms: int) -> NumberedBatch:
        rows = joined(cut.parts)
        frames = rows.frame_bytes()
        check = zlib.crc32(frames.data, cut.row_count) & ((1 << _CHECK_BITS) - 1)
        sequence = (self._batch_id << _NUMBER_BITS | self._number) << _CHECK_BITS | check
        if rows.is_unstamped.any():
            frames = frames.copy()
            stamp(frames, np.cumsum(rows.frame_sizes)[rows.is_unstamped], born_at_ms)
        head = place(self._topic, queue.queue_id, self._producer_id, sequence)
        data = b"".join((head, *rows.columns(), frames.data))
        return NumberedBatch(queue, sequence, cut.row_count, data)
