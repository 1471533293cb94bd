"""One partition of a replay on its way to the broker; runs in Spark's workers.

As the sink does it, with two differences. Rows without an ordering key go to the queue that has the
number of the one they come from, so that a queue's order is kept. And with a pace, chunks of rows
leave when they are due, one after the other is stored.

Where batches end and which numbers they have depends on the rows and the plan alone, not on the
pace of this run: a step that is done again makes the same ones, which the broker stores once. Rows
that break off, because Java is gone, must not pass for all of them: they would end in a batch that
is never made again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from mq.client import QueueRef
from mq.client.arrow.cutting import Cutter, NumberedBatch
from mq.client.arrow.encoding import Encoded, UInt64s, encode, slices
from mq.client.lowlevel import ConnectionOptions
from mq.errors import MqError
from mq_spark.errors import MqSparkError
from mq_spark.pipelines.replaying.pacing import Pace, Schedule
from mq_spark.writing.sending import InFlight, by_topic, now_ms
from mq_spark.writing.whole_input import whole

# The broker remembers a thousand batches of a producer: half of them may be sent again.
_BATCHES_PER_WRITER = 512
# Of the bodies of a chunk, which is in memory as a whole.
CHUNK_BYTES = 16 << 20
_COMPRESS_ABOVE_BYTES = 4096
_TIMEOUT_S = 120.0
_TELL_EVERY_S = 1.0

RESULT = "rows long, repeated long, due_in_s double, base_ms long"
_RESULT = pa.schema(
    [
        ("rows", pa.int64()),
        ("repeated", pa.int64()),
        ("due_in_s", pa.float64()),
        ("base_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Job:
    """One step, for all of its tasks. Called by Spark, with the rows of one of them."""

    connection: ConnectionOptions
    # Names the replay to the broker.
    writer: str
    step: int
    # Where chunks end, as the plan has it.
    chunk_rows: int
    window_ms: int
    pace: Pace | None
    # Where a task writes how far it is, if it is there.
    progress: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None  # noqa: S101 - Spark runs it
        sending = _Sending(self, task.partitionId())
        try:
            for chunk in chunks(whole(batches), self.chunk_rows):
                sending.send(chunk)
            sending.finish()
        except MqError as error:
            raise MqSparkError(f"messages cannot be replayed: {error}") from None
        finally:
            sending.cancel()
        yield sending.result()


def chunks(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows, so many at a time, or fewer that are large, however they come."""
    held: list[pa.RecordBatch] = []
    room, room_bytes = rows, CHUNK_BYTES
    for batch in batches:
        sizes = np.asarray(pc.fill_null(pc.binary_length(batch.column("body")), 0), np.int64)
        ends = np.concatenate(([0], np.cumsum(sizes)))
        start = 0
        while start < batch.num_rows:
            fitting = int(np.searchsorted(ends, ends[start] + room_bytes, "right")) - 1 - start
            count = min(room, fitting if held else max(1, fitting), batch.num_rows - start)
            if count:
                held.append(batch.slice(start, count))
                room_bytes -= int(ends[start + count] - ends[start])
                room -= count
                start += count
            if room == 0 or start < batch.num_rows:
                yield _joined(held)
                held, room, room_bytes = [], rows, CHUNK_BYTES
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def windows(chunk: pa.RecordBatch, window_ms: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Rows that are due together, and when the first of them was stored. They were stored in the
    same `window_ms`; 0: all of them.
    """
    at_ms = np.asarray(chunk.column("stored_at").cast(pa.int64())) // 1000
    cuts = [0]
    if window_ms:
        cuts += (np.flatnonzero(np.diff(at_ms // window_ms)) + 1).tolist()
    for start, end in zip(cuts, [*cuts[1:], chunk.num_rows], strict=True):
        yield chunk.slice(start, end - start), int(at_ms[start])


class _Sending:
    def __init__(self, job: Job, partition: int) -> None:
        self._job = job
        self._partition = partition
        self._schedule = Schedule(job.pace, time.monotonic()) if job.pace else None
        self._in_flight = InFlight(job.connection, _TIMEOUT_S)
        self._cuttings: dict[str, _Cutting] = {}
        self._told_at_s = 0.0

    def send(self, chunk: pa.RecordBatch) -> None:
        """Waits until it is due, or while there is too much under way."""
        if self._schedule is None:
            self._hand_over(chunk)
            return
        counts = self._in_flight.counts
        for part, stored_at_ms in windows(chunk, self._job.window_ms):
            time.sleep(self._schedule.wait_s(stored_at_ms, time.monotonic()))
            repeated = counts.repeated_rows
            self._hand_over(part)
            self.finish()
            # What an earlier run had sent takes no time of this one.
            self._schedule.sent(part.num_rows - (counts.repeated_rows - repeated))

    def finish(self) -> None:
        """Everything is stored when it returns."""
        for cutting in self._cuttings.values():
            self._in_flight.send(cutting.flush())
        self._in_flight.finish()
        self._tell()

    def result(self) -> pa.RecordBatch:
        pace = self._schedule.handed_on(time.monotonic()) if self._schedule else Pace()
        counts = self._in_flight.counts
        columns = [[counts.rows], [counts.repeated_rows], [pace.due_in_s], [pace.base_ms]]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _RESULT, strict=True)],
            schema=_RESULT,
        )

    def cancel(self) -> None:
        self._in_flight.cancel()

    def _hand_over(self, chunk: pa.RecordBatch) -> None:
        for topic, rows in by_topic(chunk):
            cutting = self._cuttings.get(topic)
            if cutting is None:
                queues = self._in_flight.layout(topic)
                cutting = _Cutting(self._job, topic, queues, self._partition)
                self._cuttings[topic] = cutting
            self._in_flight.send(cutting.add(rows))
        self._tell()

    def _tell(self) -> None:
        """Reports the number of stored rows, now and then."""
        now_s = time.monotonic()
        if now_s < self._told_at_s + _TELL_EVERY_S:
            return
        self._told_at_s = now_s
        path = Path(self._job.progress) / str(self._partition)
        try:
            path.write_text(str(self._in_flight.counts.rows), encoding="utf-8")
        except OSError:
            # Another machine: the driver counts whole steps.
            self._told_at_s = float("inf")


class _Cutting:
    """Rows of one topic as numbered batches. After some hundreds of them as those of another
    producer: the broker forgets the oldest of each.
    """

    def __init__(self, job: Job, topic: str, queues: list[QueueRef], partition: int) -> None:
        self._job, self._topic, self._queues, self._partition = job, topic, queues, partition
        self._part = -1
        self._next_cutter()

    def add(self, rows: pa.RecordBatch) -> Iterator[NumberedBatch]:
        """Those of a whole chunk: what comes behind them does not depend on how they are sliced."""
        for part in slices(rows):
            encoded = self._routed(encode(part, self._topic, _COMPRESS_ABOVE_BYTES), part)
            yield from self._counted(self._cutter.add(encoded, now_ms()))
        if self._count >= _BATCHES_PER_WRITER:
            yield from self.flush()
            self._next_cutter()

    def flush(self) -> Iterator[NumberedBatch]:
        return self._counted(self._cutter.flush(now_ms()))

    def _counted(self, batches: Iterator[NumberedBatch]) -> Iterator[NumberedBatch]:
        for batch in batches:
            self._count += 1
            yield batch

    def _next_cutter(self) -> None:
        self._part += 1
        self._count = 0
        writer = f"{self._job.writer} {self._part}"
        self._cutter = Cutter(writer, self._topic, self._queues, self._partition, self._job.step)

    def _routed(self, encoded: Encoded, rows: pa.RecordBatch) -> Encoded:
        """With a queue for each row: that of its ordering key, or else of where it comes from."""
        own = np.where(encoded.is_ordered, encoded.ordering_hashes, self._lanes(rows))
        return encoded._replace(ordering_hashes=own, is_ordered=np.ones(rows.num_rows, np.bool_))

    def _lanes(self, rows: pa.RecordBatch) -> UInt64s:
        """By the queue they come from: the same one if the topic has it, or else its number."""
        sets = pc.dictionary_encode(rows.column("broker_set"))
        names = sets.dictionary.to_pylist()
        queue_ids = np.asarray(rows.column("queue_id")).astype(np.int64)
        places, inverse = np.unique(
            np.asarray(sets.indices).astype(np.int64) << 32 | queue_ids, return_inverse=True
        )
        lanes = [
            self._lane(QueueRef(self._topic, place & 0xFFFFFFFF, names[place >> 32]))
            for place in places.tolist()
        ]
        return np.array(lanes, np.uint64)[inverse]

    def _lane(self, ref: QueueRef) -> int:
        return self._queues.index(ref) if ref in self._queues else ref.queue_id % len(self._queues)
