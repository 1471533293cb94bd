"""Rows of one partition and topic, cut into numbered batches for the queues of the topic.

Where a batch ends, which queue it goes to and which number it has depends on the rows, their order,
the partition and the queues, and on nothing else: not on how Spark hands the rows over. So a
partition that is written again makes the same batches, and the broker stores them once.

    producer id = %SINK%, hash of (what writes, topic, queues), partition
    sequence    = batch id | number in the partition | check of the content     30, 14, 19 bits

A batch id that is larger, as one that a user makes of the time, has the rest in what writes.
Rows with an ordering key go where a producer sends them. The others fill one batch after the other,
each for the next queue. The check is for plans that are not the same when they run again, or whose
partitions are cut otherwise: what differs is stored again then. A batch that passed for another one
would be lost. Pure: no Spark, no network, no clock.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mq.client import QueueRef
from mq.client.lowlevel import place
from mq.hashing import text_hash
from mq.names import SINK_PREFIX
from mq.wire import varint
from mq_spark.errors import MqSparkError
from mq_spark.writing.encoding import Encoded, Int64s, stamp

# The first batches of a queue are small, so that sending begins early; later ones grow, so that
# the broker, which remembers the newest thousand, remembers all of a large partition.
_BYTES_MIN, _DOUBLINGS, _DOUBLES_AFTER = 256 << 10, 3, 32
# Of a batch, beside the frame of each message and each key.
_ROW_BYTES, _KEY_BYTES = 12, 8
_BATCH_BITS, _NUMBER_BITS, _CHECK_BITS = 30, 14, 19
_NUMBER_MAX = (1 << _NUMBER_BITS) - 1


class Cut(NamedTuple):
    """A batch that is complete. `row`: the row of its partition that did not fit."""

    row: int
    lane: int
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
    """`writer` names what makes the rows: a query, or one run of a job. Other queues are another
    producer: then rows may be stored twice, and none passes for another one.
    """
    places = ",".join(f"{ref.broker_set}/{ref.queue_id}" for ref in queues)
    whole = f"{writer}\n{topic}\n{places}"
    return f"{SINK_PREFIX}{hashlib.sha256(whole.encode()).hexdigest()[:40]}-{partition}"


class _Lane:
    """Rows on their way to one queue, or to any."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[Encoded] = []
        self._bytes = 0

    def add(self, encoded: Encoded, rows: Int64s) -> Iterator[tuple[int, tuple[Encoded, ...]]]:
        """Batches that are complete now, each with the row that did not fit; `rows` are the numbers
        of these rows.
        """
        weights = encoded.frame_sizes + encoded.key_counts * _KEY_BYTES + _ROW_BYTES
        ends = np.cumsum(weights)
        start = 0
        while start < len(ends):
            before = int(ends[start] - weights[start])
            room = self._bytes_max - self._bytes
            end = max(start, int(np.searchsorted(ends, before + room, "right")))
            if end == start and not self._parts:
                end = start + 1  # larger than any batch: it is one by itself
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
        """The rows so far, complete or not."""
        parts, self._parts, self._bytes = tuple(self._parts), [], 0
        self.count += 1
        return parts

    def __bool__(self) -> bool:
        return bool(self._parts)


class Cutter:
    """The cutter of one partition and topic."""

    ANY = -1

    def __init__(
        self, writer: str, topic: str, queues: Sequence[QueueRef], partition: int, batch_id: int
    ) -> None:
        self._queues = queues
        self._partition = partition
        # Numbers of one producer must grow: the broker forgets the lowest first.
        era, self._batch_id = divmod(batch_id, 1 << _BATCH_BITS)
        self._topic = topic
        era_writer = f"{writer}\n{era}" if era else writer
        self._producer_id = producer_id(era_writer, topic, queues, partition)
        # So that small batches do not all go to the same queues.
        self._first = text_hash(writer) + batch_id + partition
        self._lanes: dict[int, _Lane] = {}
        self._rows = 0
        self._number = 0
        self._any = 0

    def add(self, encoded: Encoded, born_at_ms: int) -> Iterator[NumberedBatch]:
        """The rows that follow; batches that are complete now."""
        cuts: list[Cut] = []
        for lane, rows in self._lanes_of(encoded):
            own = encoded if rows is None else encoded.take(rows)
            numbers = np.arange(len(own.frame_sizes)) if rows is None else rows
            lanes = self._lanes.setdefault(lane, _Lane())
            cuts += (Cut(row, lane, parts) for row, parts in lanes.add(own, numbers + self._rows))
        self._rows += len(encoded.frame_sizes)
        # By row, and not by lane: rows that come in other portions have the same order.
        return self._numbered(sorted(cuts, key=lambda cut: cut.row), born_at_ms)

    def flush(self, born_at_ms: int) -> Iterator[NumberedBatch]:
        """Those that are left, at the end."""
        left = [(lane, rows) for lane, rows in sorted(self._lanes.items()) if rows]
        cuts = (Cut(self._rows, lane, rows.take()) for lane, rows in left)
        return self._numbered(cuts, born_at_ms)

    def _lanes_of(self, encoded: Encoded) -> Iterable[tuple[int, Int64s | None]]:
        """Each lane with its rows; None: all of them."""
        if not encoded.is_ordered.any():
            return [(self.ANY, None)]
        lanes = (encoded.ordering_hashes % np.uint64(len(self._queues))).astype(np.int64)
        lanes[~encoded.is_ordered] = self.ANY
        order = np.argsort(lanes, kind="stable")
        bounds = np.flatnonzero(np.diff(lanes[order])) + 1
        return [(int(lanes[rows[0]]), rows) for rows in np.split(order, bounds)]

    def _numbered(self, cuts: Iterable[Cut], born_at_ms: int) -> Iterator[NumberedBatch]:
        for cut in cuts:
            queue = self._queues[cut.lane]
            if cut.lane == self.ANY:
                queue = self._queues[(self._first + self._any) % len(self._queues)]
                self._any += 1
            self._number += 1
            if self._number > _NUMBER_MAX:
                raise MqSparkError(
                    f"partition {self._partition} has more than {_NUMBER_MAX} batches for topic "
                    f"{self._topic}: cut the rows into more partitions, with df.repartition"
                )
            yield self._batch(cut, queue, born_at_ms)

    def _batch(self, cut: Cut, queue: QueueRef, born_at_ms: int) -> NumberedBatch:
        frames = np.concatenate([part.frame_bytes() for part in cut.parts])
        check = zlib.crc32(frames.data, cut.row_count) & ((1 << _CHECK_BITS) - 1)
        sequence = (self._batch_id << _NUMBER_BITS | self._number) << _CHECK_BITS | check
        frame_sizes = np.concatenate([part.frame_sizes for part in cut.parts])
        is_unborn = np.concatenate([part.is_unborn for part in cut.parts])
        if is_unborn.any():
            stamp(frames, np.cumsum(frame_sizes)[is_unborn], born_at_ms)
        tag_hashes = np.concatenate([part.tag_hashes for part in cut.parts])
        key_hashes = np.concatenate([part.key_hashes for part in cut.parts])
        columns = [
            _column(0x2A, tag_hashes.astype("<u8").tobytes()),
            _column(0x32, frame_sizes.astype("<u4").tobytes()),
        ]
        if len(key_hashes):
            key_counts = np.concatenate([part.key_counts for part in cut.parts])
            columns += (
                _column(0x3A, key_hashes.astype("<u8").tobytes()),
                _column(0x42, key_counts.astype("<u4").tobytes()),
            )
        head = place(self._topic, queue.queue_id, self._producer_id, sequence)
        data = b"".join((head, *columns, frames.data))
        return NumberedBatch(queue, sequence, cut.row_count, data)


def _column(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + varint.encode(len(data)) + data
