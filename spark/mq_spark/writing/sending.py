"""One partition on its way to the broker: encoded, cut, sent. Runs in Spark's workers, once a task.

Several batches are under way, one a queue, while the next rows are encoded. All are stored when
`write_partition` returns; when it raises, some may be, and are not stored again when the task runs
again. Workers are used again, too: each has one sender for a cluster.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mq.client import QueueRef
from mq.client.arrow.cutting import Cutter, NumberedBatch
from mq.client.arrow.encoding import encode, slices
from mq.client.lowlevel import ConnectionOptions, ExactSender, Shipment, Stored
from mq.errors import MqError
from mq_spark.errors import MqSparkError

# Encoded and not stored yet, of one task.
_IN_FLIGHT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of rows. Without a `topic` each row names it."""

    connection: ConnectionOptions
    topic: str
    compress_above_bytes: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Origin:
    """The identity of rows: the same rows are stored once."""

    writer: str
    batch_id: int
    partition: int


@dataclass(slots=True)
class Counts:
    rows: int = 0
    batches: int = 0
    # Of the rows: those that an earlier attempt had stored.
    repeated_rows: int = 0


def write_partition(batches: Iterator[pa.RecordBatch], target: Target, origin: Origin) -> Counts:
    """Raises MqSparkError with the reason and the topic."""
    sending = InFlight(target.connection, target.timeout_s)
    cutters: dict[str, Cutter] = {}
    try:
        for batch in batches:
            for topic, rows in by_topic(batch, target.topic):
                cutter = cutters.get(topic)
                if cutter is None:
                    queues = sending.layout(topic)
                    cutter = Cutter(origin.writer, topic, queues, origin.partition, origin.batch_id)
                    cutters[topic] = cutter
                for part in slices(rows):
                    encoded = encode(part, topic, target.compress_above_bytes)
                    sending.send(cutter.add(encoded, now_ms()))
        for cutter in cutters.values():
            sending.send(cutter.flush(now_ms()))
        return sending.finish()
    except MqError as error:
        raise MqSparkError(f"rows cannot be written: {error}") from None
    finally:
        sending.cancel()


class InFlight:
    """Batches that are under way, in the order in which they were handed over, and what became of
    those before them. Of one task.
    """

    def __init__(self, connection: ConnectionOptions, timeout_s: float) -> None:
        self.counts = Counts()
        self._sender = _sender(connection)
        self._timeout_s = timeout_s
        self._under_way: deque[tuple[NumberedBatch, Future[Stored]]] = deque()
        self._bytes = 0

    def layout(self, topic: str) -> list[QueueRef]:
        """As `BatchSender.layout`."""
        return self._sender.layout(topic, self._timeout_s)

    def send(self, batches: Iterator[NumberedBatch]) -> None:
        """Waits while there is too much under way. Raises why an earlier one failed."""
        for batch in batches:
            while self._under_way and self._bytes + len(batch.data) > _IN_FLIGHT_BYTES:
                self._settle()
            future = self._sender.submit(Shipment(batch.queue, batch.data), self._timeout_s)
            self._under_way.append((batch, future))
            self._bytes += len(batch.data)

    def finish(self) -> Counts:
        """Everything is stored when it returns; more may be sent."""
        while self._under_way:
            self._settle()
        return self.counts

    def cancel(self) -> None:
        """The rest is not waited for."""
        for _, future in self._under_way:
            future.cancel()

    def _settle(self) -> None:
        batch, future = self._under_way[0]
        stored = future.result()
        self._under_way.popleft()
        self._bytes -= len(batch.data)
        self.counts.rows += batch.row_count
        self.counts.batches += 1
        self.counts.repeated_rows += batch.row_count if stored.is_duplicate else 0


@functools.cache
def _sender(connection: ConnectionOptions) -> ExactSender:
    return ExactSender(**connection.shared)


def by_topic(batch: pa.RecordBatch, topic: str = "") -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of each topic, in their order; without a `topic` each row says it."""
    if batch.num_rows == 0:
        return
    if topic:
        yield topic, batch
        return
    column = batch.column("topic")
    if column.null_count:
        raise MqSparkError(
            f"column topic is null in {column.null_count} of {batch.num_rows} rows: fill it, or "
            "give option topic, which is then that of all rows"
        )
    encoded = pc.dictionary_encode(column)
    indices = np.asarray(encoded.indices)
    try:
        names = encoded.dictionary.to_pylist()
    except UnicodeDecodeError:
        raise MqSparkError("column topic has bytes that are no text (UTF-8)") from None
    for at, name in enumerate(names):
        if len(names) == 1:
            yield name, batch
        else:
            yield name, batch.take(pa.array(np.flatnonzero(indices == at)))


def now_ms() -> int:
    return time.time_ns() // 1_000_000
