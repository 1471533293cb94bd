"""`spark.readStream`: where a stream begins, how far the next batch goes, and what it reads.

Spark makes one of these in a process of the driver, which asks it everything but `read`, and a copy
of it goes to the workers. Options are parsed when they are first needed: Spark hides what goes
wrong while a reader is made.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mq.client import QueueRef
from mq_spark.errors import MqSparkError, as_our_own
from mq_spark.options import ReadOptions, check_stream, read_options, text
from mq_spark.reading.cluster import Cluster, Queues
from mq_spark.reading.group_progress import Progress
from mq_spark.reading.offsets import (
    Layout,
    Loss,
    StreamOffset,
    from_json,
    losses,
    named,
    next_offset,
    ranges,
    to_json,
)
from mq_spark.reading.planning import QueuePartition, partitions
from mq_spark.reading.ranges import ADVICE, check_schema, record_batches

_log = logging.getLogger(__name__)

# The default trigger asks for new messages some seventy times a second, for as long as there are
# none. A broker need not be asked so often: what comes is still seen at once by any measure of a
# batch, which takes several times as long.
_LOOK_EVERY_S = 0.1
# A leader that has just lost the others does not know it for a moment, and may have less than the
# next one has shown. That messages are behind its end is believed when it still says so later.
_BEHIND_END_S = 2.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType | None = None) -> None:
        """`schema`: what Spark takes the columns to be."""
        self._given = dict(options)
        self._schema = schema

    @functools.cached_property
    def _options(self) -> ReadOptions:
        if text(self._given, "path"):
            raise MqSparkError("path is for spark.read: files of a log are no stream")
        options = read_options(self._given)
        check_stream(options)
        if self._schema is not None:
            check_schema(self._schema, options)
        return options

    @functools.cached_property
    def _stream(self) -> _Stream:
        return _Stream(self._options)

    def __getstate__(self) -> dict[str, Any]:
        return {"_given": self._given, "_schema": self._schema}

    # In the driver

    def initialOffset(self) -> dict[str, Any]:
        with as_our_own():
            return to_json(self._stream.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        with as_our_own():
            rows_max = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with as_our_own():
            rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            found = self._stream.next(from_json(start), rows_max)
            # The same text for the same offsets, whatever wrote it: otherwise it would be a batch.
            return start if found is None else to_json(found)

    def prepareForTriggerAvailableNow(self) -> None:
        with as_our_own():
            self._stream.end_here()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self._stream.latest
        return None if latest is None else to_json(StreamOffset(latest, self._stream.layout))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with as_our_own():
            last = from_json(end)
            return partitions(ranges(from_json(start), last), last.layout)

    def commit(self, end: dict[str, Any]) -> None:
        with as_our_own():
            self._stream.done(from_json(end))

    def stop(self) -> None:
        if "_stream" in self.__dict__:
            self._stream.close()

    # In workers

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ranges = partition.ranges if isinstance(partition, QueuePartition) else ()
        return record_batches(ranges, self._options)


class _Stream:
    """The state that a stream keeps from trigger to trigger; none of it needs to outlive the
    process.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.layout = Layout(options.partitions_min)
        # As far as is known; for reports.
        self.latest: Queues | None = None
        self._options = options
        self._cluster = Cluster(options)
        self._progress = Progress(options.connection, options.group) if options.group else None
        self._looked_at_s = 0.0
        # Earliest and latest, when the stream is to end there.
        self._bounds: tuple[Queues, Queues] | None = None
        # Lost queues, those of them that no longer exist, and those that were reported.
        self._lost: set[QueueRef] = set()
        self._gone: set[QueueRef] = set()
        self._warned: set[Loss] = set()

    def initial(self) -> StreamOffset:
        fail = self._options.fail_on_data_loss
        places = self._cluster.places(self._options.starting or "latest", fail=fail)
        if self._bounds is not None:
            # Spark asks for the end first: what has come in between is not behind it.
            earliest, latest = self._bounds
            latest |= {ref: max(latest.get(ref, place), place) for ref, place in places.items()}
            self._bounds = places | earliest, latest
        return StreamOffset(places, self.layout)

    def end_here(self) -> None:
        """Messages that come later are left to the next run."""
        earliest, latest = self._cluster.find_all("earliest", "latest")
        self._bounds = earliest, latest

    def next(self, start: StreamOffset, rows_max: int | None) -> StreamOffset | None:
        """None: nothing is new."""
        found = self._next(start, rows_max)
        if found is not None:
            self._looked_at_s = 0.0
        # Spark asks for more only when all before is done. A commit without other work is waited
        # for: a stream that ends now is not told of it, and its process is gone at once.
        self.done(start, wait=found is None)
        return found

    def _next(self, start: StreamOffset, rows_max: int | None) -> StreamOffset | None:
        known = {ref: at for ref, at in start.queues.items() if self._cluster.is_selected(ref)}
        doubtful_until_s = time.monotonic() + _BEHIND_END_S
        while True:
            earliest, latest = self._look(known)
            self._keep_hidden(known, earliest, latest)
            found = losses(known, earliest, latest)
            is_doubtful = any(loss.is_behind_end for loss in found if loss not in self._warned)
            if not is_doubtful or time.monotonic() > doubtful_until_s:
                break
            if self._bounds is not None:
                time.sleep(_LOOK_EVERY_S)
                self.end_here()
        self._check_losses(found)
        return next_offset(
            StreamOffset(known, start.layout), earliest, latest, self.layout, rows_max
        )

    def _keep_hidden(self, known: Queues, earliest: Queues, latest: Queues) -> None:
        """Queues that the answering broker has not heard of yet stay where they are."""
        absent = known.keys() - latest.keys()
        self._gone &= absent
        if absent - self._gone:
            self._gone = self._cluster.gone(absent)
        hidden = {ref: known[ref] for ref in absent - self._gone}
        earliest |= hidden
        latest |= hidden

    def _look(self, known: Queues) -> tuple[Queues, Queues]:
        """Earliest and latest; as earliest, what is known will do where nothing is new."""
        if self._bounds is not None:
            earliest, latest = self._bounds
            self.latest = latest
            return dict(earliest), dict(latest)
        time.sleep(max(0.0, self._looked_at_s + _LOOK_EVERY_S - time.monotonic()))
        self._looked_at_s = time.monotonic()
        (latest,) = self._cluster.find("latest")
        if latest == known:
            self.latest = latest
            return dict(latest), dict(latest)
        earliest, latest = self._cluster.find("earliest", "latest")
        self.latest = latest
        return earliest, dict(latest)

    def _check_losses(self, found: list[Loss]) -> None:
        self._lost = {loss.ref for loss in found}
        if found and self._options.fail_on_data_loss:
            raise MqSparkError(f"messages are lost: {named(found)}; {ADVICE}")
        fresh = [loss for loss in found if loss not in self._warned]
        if fresh:
            _log.warning("messages are lost: %s", named(fresh))
        self._warned.update(fresh)

    def done(self, stream_offset: StreamOffset, *, wait: bool = False) -> None:
        if self._progress is not None:
            # The broker takes all of it or nothing: queues that it no longer has are left out.
            queues = {
                ref: at
                for ref, at in stream_offset.queues.items()
                if ref not in self._lost and self._cluster.is_selected(ref)
            }
            self._progress.done(queues, wait=wait)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
        self._cluster.close()
