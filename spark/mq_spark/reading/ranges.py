"""Ranges of queues as Arrow record batches, in a worker of Spark.

Workers are used again for other tasks: the connections stay open. Elections of leaders are waited
for. Messages that are gone are a loss of data: an error, or a warning and the next message that
is there, as the user chose. A filter of tags works on the broker, by hashes, and exactly here.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from mq.client.arrow.columns import record_batch
from mq.client.arrow.runs import rows_of
from mq.client.lowlevel import ConnectionOptions, Page, QueueScanner
from mq.errors import MqError, QueueNotFound, TopicNotFound
from mq.wire.v1 import consumer_pb2 as wire
from mq_spark.errors import MqSparkError, as_our_own
from mq_spark.options import ReadOptions
from mq_spark.reading.offsets import Loss, QueueRange
from mq_spark.schema import spark_schema

_log = logging.getLogger(__name__)

_PATIENCE_S = 60.0
_PAUSE_S = 0.2
ADVICE = (
    "with failOnDataLoss = false reading goes on at what is there; messages are kept by the "
    "broker's retention settings"
)


def check_schema(given: StructType, options: ReadOptions) -> None:
    """Checks the schema of the reader: a user may give one, and then Spark takes it for granted."""
    ours = spark_schema(with_properties=options.with_properties)
    if given != ours:
        raise MqSparkError(
            f"the columns of format mq are {ours.simpleString()}: leave schema(...) out"
        )


@functools.cache
def _scanner(connection: ConnectionOptions) -> QueueScanner:
    """One a process, for as long as it lives."""
    return QueueScanner(**connection.shared)


def record_batches(ranges: Iterable[QueueRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """In the order of the ranges, and of the queue in each."""
    with as_our_own():
        yield from _record_batches(ranges, options)


def _record_batches(ranges: Iterable[QueueRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    scanner = _scanner(options.connection)
    for one in ranges:
        for page in _pages(scanner, one, options):
            if not page.runs:
                continue
            made = record_batch(
                rows_of(page, one.start, one.end),
                one.ref,
                with_properties=options.with_properties,
                tags=options.exact_tags,
            )
            if made.num_rows:
                yield made


def _pages(scanner: QueueScanner, wanted: QueueRange, options: ReadOptions) -> Iterator[Page]:
    """Pages of the range, as far as it exists."""
    place, failing_since_s = wanted.start, 0.0
    while place < wanted.end:
        try:
            for page in scanner.scan(wanted.ref, place, wanted.end, options.tags or None):
                failing_since_s = 0.0
                if page.status in (wire.PULL_TOO_SMALL, wire.PULL_TOO_LARGE):
                    _lost(Loss(wanted.ref, place, page.start, page.end), options)
                    # Behind the end there is nothing, and before the start the queue goes on.
                    is_behind = page.status == wire.PULL_TOO_LARGE
                    place = wanted.end if is_behind else max(page.next_offset, place)
                    break
                yield page
                place = max(page.next_offset, place)
        except (TopicNotFound, QueueNotFound):
            _lost(Loss(wanted.ref, place), options)
            return
        except MqError as error:
            now_s = time.monotonic()
            failing_since_s = failing_since_s or now_s
            if not error.retryable or now_s > failing_since_s + _PATIENCE_S:
                raise MqSparkError(
                    f"reading {wanted.ref.topic} from {place} on failed: {error}"
                ) from None
            time.sleep(_PAUSE_S)


def _lost(loss: Loss, options: ReadOptions) -> None:
    text = f"messages are lost: {loss}"
    if options.fail_on_data_loss:
        raise MqSparkError(f"{text}; {ADVICE}")
    _log.warning(text)
