"""One partition of a replay on its way to the broker; runs in Spark's workers.

As the sink does it, with two differences. Rows without an ordering key go to the queue that has the
number of the one they come from, so that a queue's order is kept. And with a pace, chunks of rows
leave when they are due, one after the other is stored.

Where batches end and which numbers they have depends on the rows and the plan alone: a step that is
done again makes the same ones, which the broker stores once.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from mq.client import QueueRef
from mq.client.producing.exact import ExactSender, Shipment, Stored
from mq.errors import MqError
from mq_spark.cutting import Cutter, NumberedBatch
from mq_spark.encoding import Encoded, UInt64s, encode, slices
from mq_spark.errors import MqSparkError
from mq_spark.pipelines.pacing import Pace, Schedule

# The broker remembers a thousand batches of a producer: half of them may be sent again.
_BATCHES_PER_WRITER = 512
_IN_FLIGHT_BYTES = 8 << 20
# Messages that were stored within so long of each other are sent together.
_WINDOW_S = 0.1
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

    servers: str
    # Names the replay to the broker.
    writer: str
    step: int
    chunk_rows: int
    pace: Pace | None
    # Where a task writes how far it is; whoever cannot read it there knows less.
    progress: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None  # noqa: S101 - Spark runs it
        sending = _Sending(self, task.partitionId())
        try:
            for chunk in chunks(batches, self.chunk_rows):
                sending.send(chunk)
            sending.finish()
        except MqError as error:
            raise MqSparkError(f"messages cannot be replayed: {error}") from None
        finally:
            sending.cancel()
        yield sending.result()


def chunks(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows, so many at a time, however they come."""
    held: list[pa.RecordBatch] = []
    room = rows
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, room)
            held.append(part)
            start += part.num_rows
            room -= part.num_rows
            if room == 0:
                yield from _joined(held)
                held, room = [], rows
    if held:
        yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One, unless there are more bytes than an array can have."""
    return (
        batches
        if len(batches) == 1
        else pa.Table.from_batches(batches).combine_chunks().to_batches()
    )


class _Sending:
    def __init__(self, job: Job, partition: int) -> None:
        self._job = job
        self._partition = partition
        self._schedule = Schedule(job.pace, time.monotonic()) if job.pace else None
        self._sender = _sender(job.servers)
        self._cutters: dict[str, _Cutting] = {}
        self._under_way: deque[tuple[NumberedBatch, Future[Stored]]] = deque()
        self._bytes = 0
        self._rows = self._repeated = 0
        self._told_at_s = 0.0

    def send(self, chunk: pa.RecordBatch) -> None:
        """Waits until it is due, or while there is too much under way."""
        if self._schedule is None:
            self._hand_over(chunk)
            return
        for part, stored_at_ms in self._windows(chunk):
            time.sleep(self._schedule.wait_s(stored_at_ms, time.monotonic()))
            repeated = self._repeated
            self._hand_over(part)
            self._flush()
            # What an earlier run had sent takes no time of this one.
            self._schedule.sent(part.num_rows - (self._repeated - repeated))

    def finish(self) -> None:
        self._flush()

    def result(self) -> pa.RecordBatch:
        pace = self._schedule.handed_on(time.monotonic()) if self._schedule else Pace()
        columns = [[self._rows], [self._repeated], [pace.due_in_s], [pace.base_ms]]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _RESULT, strict=True)],
            schema=_RESULT,
        )

    def cancel(self) -> None:
        for _, future in self._under_way:
            future.cancel()

    def _windows(self, chunk: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Rows that are due together, and when the first of them was stored."""
        at_ms = np.asarray(chunk.column("stored_at").cast(pa.int64())) // 1000
        pace = self._job.pace
        cuts = [0]
        if pace is not None and pace.speed:
            windows = at_ms // max(1, int(_WINDOW_S * 1000 * pace.speed))
            cuts += (np.flatnonzero(np.diff(windows)) + 1).tolist()
        for start, end in zip(cuts, [*cuts[1:], chunk.num_rows], strict=True):
            yield chunk.slice(start, end - start), int(at_ms[start])

    def _hand_over(self, chunk: pa.RecordBatch) -> None:
        for topic, rows in _by_topic(chunk):
            cutting = self._cutters.get(topic)
            if cutting is None:
                queues = self._sender.layout(topic, _TIMEOUT_S)
                cutting = _Cutting(self._job, topic, queues, self._partition)
                self._cutters[topic] = cutting
            for part in slices(rows):
                for batch in cutting.add(part):
                    self._submit(batch)

    def _flush(self) -> None:
        """Everything is stored when it returns."""
        for cutting in self._cutters.values():
            for batch in cutting.flush():
                self._submit(batch)
        while self._under_way:
            self._settle()

    def _submit(self, batch: NumberedBatch) -> None:
        while self._under_way and self._bytes + len(batch.data) > _IN_FLIGHT_BYTES:
            self._settle()
        future = self._sender.submit(Shipment(batch.queue, batch.data), _TIMEOUT_S)
        self._under_way.append((batch, future))
        self._bytes += len(batch.data)

    def _settle(self) -> None:
        batch, future = self._under_way[0]
        stored = future.result()
        self._under_way.popleft()
        self._bytes -= len(batch.data)
        self._rows += batch.row_count
        self._repeated += batch.row_count if stored.is_duplicate else 0
        self._tell()

    def _tell(self) -> None:
        now_s = time.monotonic()
        if now_s < self._told_at_s + _TELL_EVERY_S:
            return
        self._told_at_s = now_s
        path = Path(self._job.progress) / str(self._partition)
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(str(self._rows), encoding="utf-8")
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
        encoded = encode(rows, self._topic, _COMPRESS_ABOVE_BYTES)
        yield from self._counted(self._cutter.add(self._routed(encoded, rows), _now_ms()))
        if self._count >= _BATCHES_PER_WRITER:
            yield from self.flush()
            self._next_cutter()

    def flush(self) -> Iterator[NumberedBatch]:
        return self._counted(self._cutter.flush(_now_ms()))

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


def _by_topic(chunk: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = chunk.column("topic")
    names = pc.unique(topics).to_pylist()
    for name in names:
        yield name, chunk if len(names) == 1 else chunk.filter(pc.equal(topics, name))


@functools.cache
def _sender(servers: str) -> ExactSender:
    return ExactSender(servers)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
