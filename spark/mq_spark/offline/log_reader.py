"""`spark.read.format("mq").load(path)`: the files of a log as rows, without a broker.

One Spark partition a segment; columns and values are those that the broker would give. Damage, and
files that cannot be read, are a loss of data: an error with file and position, or a warning and the
other segments, as the user chose. Behind damage the rest of its segment is left out, because the
queue offsets of what stands there are not known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mq.client.arrow.columns import record_batch
from mq.client.lowlevel import split_tags
from mq.errors import LogDamaged
from mq.names import is_internal_topic, is_readable_topic
from mq_spark.errors import MqSparkError, as_our_own
from mq_spark.offline.log_files import Log, SegmentFile, find_logs
from mq_spark.offline.log_segments import Wanted, segment_rows
from mq_spark.offline.log_topics import topics_of, visible
from mq_spark.options import (
    Topics,
    checked_pattern,
    flag,
    reject_unknown,
    tag_filter,
    text,
    time_ms,
    topic_names,
)

LOG_OPTIONS = (
    "path",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "endingTimestamp",
    "tags",
    "includeProperties",
    "failOnDataLoss",
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Without names and pattern: all topics that are not the broker's own."""

    path: str
    names: tuple[str, ...] = ()
    pattern: str = ""
    from_ms: int = 0
    to_ms: int | None = None
    tags: frozenset[str] | None = None
    with_properties: bool = False
    fail_on_data_loss: bool = True


def log_options(options: Mapping[str, str]) -> LogOptions:
    """Raises MqSparkError with the name of the option."""
    reject_unknown(options, LOG_OPTIONS, "reading a path")
    names, pattern = text(options, "subscribe"), text(options, "subscribePattern")
    if names and pattern:
        raise MqSparkError("subscribe and subscribePattern are both given: use one of them")
    tags = tag_filter(options)
    return LogOptions(
        path=text(options, "path"),
        names=topic_names(names) if names else (),
        pattern=checked_pattern(pattern) if pattern else "",
        from_ms=time_ms(options, "startingTimestamp") or 0,
        to_ms=time_ms(options, "endingTimestamp"),
        tags=split_tags(tags) if tags else None,
        with_properties=flag(options, "includeProperties", default=False),
        fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
    )


class SegmentPartition(InputPartition):
    def __init__(self, broker_set: str, segment: SegmentFile, wanted: Wanted) -> None:
        self.broker_set, self.segment, self.wanted = broker_set, segment, wanted


class LogReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = log_options(options)

    def partitions(self) -> Sequence[InputPartition]:
        with as_our_own():
            try:
                return segment_partitions(self._options)
            except OSError as error:
                raise MqSparkError(_unreadable(self._options.path, error)) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark asks for a partition that was not planned when there is nothing to read.
        if isinstance(partition, SegmentPartition):
            yield from record_batches(partition, self._options)


def segment_partitions(options: LogOptions) -> list[SegmentPartition]:
    """Segments that may have what is wanted, set by set, the oldest first."""
    logs = find_logs(options.path)
    topics = [topics_of(log) for log in logs]
    chosen = _choose({topic for each in topics for topic in each}, options)
    found = []
    for log, since in zip(logs, topics, strict=True):
        _tell_rest(log)
        seen = visible(log, {topic: since[topic] for topic in chosen & since.keys()})
        wanted = Wanted(seen, options.from_ms, options.to_ms)
        if seen.since:
            found += [
                SegmentPartition(log.broker_set, segment, wanted)
                for segment in log.segments
                if _may_have(segment, options)
            ]
    return found


def _choose(existing: set[str], options: LogOptions) -> set[str]:
    readable = {topic for topic in existing if is_readable_topic(topic)}
    plain = {topic for topic in readable if not is_internal_topic(topic)}
    if options.pattern:
        return set(filter(Topics(pattern=options.pattern).matches, plain))
    if not options.names:
        return plain
    missing = sorted(set(options.names) - readable)
    if missing:
        there = ", ".join(sorted(plain)[:10]) or "none"
        raise MqSparkError(
            f"subscribe: there is no topic {missing[0]} in the log at {options.path}; "
            f"it has {there}{' ...' if len(plain) > 10 else ''}"
        )
    return set(options.names)


def _may_have(segment: SegmentFile, options: LogOptions) -> bool:
    is_over = segment.last_stored_at_ms is not None and segment.last_stored_at_ms < options.from_ms
    is_to_come = options.to_ms is not None and segment.first_stored_at_ms >= options.to_ms
    return segment.end > 0 and not is_over and not is_to_come


def _tell_rest(log: Log) -> None:
    if log.rest_bytes and log.segments:
        last = log.segments[-1]
        _log.warning(
            "%s: %d bytes behind byte %d are not known to be committed, and are left out; the node "
            "knows when it has started, or read a backup",
            last.path,
            log.rest_bytes,
            last.end,
        )


def record_batches(partition: SegmentPartition, options: LogOptions) -> Iterator[pa.RecordBatch]:
    """Raises MqSparkError for a loss of data, if the options say so; behind what was there before
    it.
    """
    segment = partition.segment
    try:
        for ref, rows in segment_rows(partition.broker_set, segment, partition.wanted):
            made = record_batch(
                rows, ref, with_properties=options.with_properties, tags=options.tags
            )
            if made.num_rows:
                yield made
    except LogDamaged as error:
        _lost(str(error), options)
    except OSError as error:
        _lost(_unreadable(segment.path, error), options)


def _lost(what: str, options: LogOptions) -> None:
    if options.fail_on_data_loss:
        raise MqSparkError(what)
    _log.warning("%s The rest of this segment is left out.", what.rstrip(".") + ".")


def _unreadable(path: str, error: OSError) -> str:
    return (
        f"{error.filename or path} cannot be read: {error.strerror or error}. Every machine that "
        "runs tasks needs the files, under the same path"
    )
