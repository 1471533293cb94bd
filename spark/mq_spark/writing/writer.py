"""`df.write.format("mq")` and `df.writeStream.format("mq")`: options and columns are checked before
anything is written, then each task sends its partition.

A message has a place in three numbers: what writes, a batch id, a partition. A stream has a query
id and batch ids, which are the same after a restart from its checkpoint. A batch job has an id of
its own, which its tasks share however often they are tried, or those that a user gives it, so that
a whole job may be run again: `txnAppId` and `txnVersion`, as Delta Lake calls them.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mq.errors import MqError
from mq.names import check_topic, is_internal_topic
from mq_spark import options as opts
from mq_spark.errors import MqSparkError, as_our_own
from mq_spark.writing.sending import Counts, Origin, Target, write_partition
from mq_spark.writing.whole_input import check_pyspark, whole

log = logging.getLogger(__name__)

WRITE_OPTIONS = (
    "servers",
    "topic",
    "zone",
    *opts.SECURITY_OPTIONS,
    "compressAboveBytes",
    "timeoutSeconds",
    "txnAppId",
    "txnVersion",
)
_TEXTS = (StringType,)
# Columns that become parts of a message, and what they may be.
_COLUMNS: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "body": ("binary or string", (BinaryType, StringType)),
    "keys": ("array<string> or string", (ArrayType, StringType)),
    "tag": ("string", _TEXTS),
    "ordering_key": ("string", _TEXTS),
    "properties": ("map<string,string>", (MapType,)),
    "topic": ("string", _TEXTS),
    "born_at": ("timestamp", (TimestampType, TimestampNTZType)),
}
# Columns of the source that the broker makes: what is read can be written as it is.
_MADE_BY_BROKER = (
    "broker_set",
    "queue_id",
    "queue_offset",
    "stored_at",
    "message_id",
    "delivery_attempt",
)
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """The rows that one task has stored."""

    counts: Counts


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._target = write_target(options)
        check_columns(schema, self._target.topic)
        self._writer, self._batch_id = _job(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        origin = Origin(self._writer, self._batch_id, _task().partitionId())
        return Written(write_partition(whole(iterator), self._target, origin))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_counts(self._target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._target = write_target(options)
        check_columns(schema, self._target.topic)
        if opts.text(options, "txnAppId") or opts.text(options, "txnVersion"):
            raise MqSparkError("txnAppId and txnVersion are for batches: a stream has its own")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query_id, batch_id = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if not query_id or not batch_id:
            raise MqSparkError(
                f"this version of Spark does not tell a task its query ({_QUERY_ID}) and batch "
                f"({_BATCH_ID}), so that rows could be stored twice: write with foreachBatch and "
                "mq_spark.sink"
            )
        origin = Origin(f"query {query_id}", int(batch_id), task.partitionId())
        return Written(write_partition(whole(iterator), self._target, origin))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_counts(self._target, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Stored rows stay: the batch runs again, and is stored once."""


def batch_writer(options: Mapping[str, str], schema: StructType) -> BatchWriter:
    with as_our_own():
        return BatchWriter(options, schema)


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    with as_our_own():
        return StreamWriter(options, schema)


def write_target(options: Mapping[str, str]) -> Target:
    """Raises MqSparkError with the name of the option."""
    check_pyspark()
    opts.reject_unknown(options, WRITE_OPTIONS, "writing")
    topic = opts.text(options, "topic")
    if topic:
        try:
            check_topic(topic)
        except MqError as error:
            raise MqSparkError(f"topic: {error}") from None
        if is_internal_topic(topic):
            raise MqSparkError(f"topic: {topic} is written by the broker alone")
    if opts.text(options, "path"):
        raise MqSparkError("path is for reading without a broker: leave it out of save and start")
    return Target(
        opts.connection_of(options),
        topic,
        _number(options, "compressAboveBytes", 4096, 0),
        _number(options, "timeoutSeconds", 120, 1),
    )


def check_columns(schema: StructType, topic: str) -> None:
    """Raises MqSparkError with the column, its type and the expected one."""
    names = schema.fieldNames()
    known = (*_COLUMNS, *_MADE_BY_BROKER)
    unknown = [name for name in names if name not in known]
    if "body" not in names:
        raise MqSparkError(
            f"there is no column body among {', '.join(names)}: name the one that has the content, "
            "as df.selectExpr('value AS body') does"
        )
    if unknown:
        raise MqSparkError(
            f"column {unknown[0]} is no part of a message: leave it out with df.drop, or put it "
            f"into one of {', '.join(_COLUMNS)}"
        )
    twice = [name for name in known if names.count(name) > 1]
    if twice:
        raise MqSparkError(f"there are {names.count(twice[0])} columns {twice[0]}: keep one")
    if not topic and "topic" not in names:
        raise MqSparkError("option topic is missing, and there is no column topic: give one")
    for field in schema.fields:
        if field.name in _COLUMNS:
            _check_type(field.name, field.dataType)


def _check_type(name: str, found: DataType) -> None:
    expected, kinds = _COLUMNS[name]
    inner: tuple[DataType, ...] = ()
    if isinstance(found, ArrayType):
        inner = (found.elementType,)
    elif isinstance(found, MapType):
        inner = (found.keyType, found.valueType)
    if not isinstance(found, kinds) or not all(isinstance(one, StringType) for one in inner):
        raise MqSparkError(f"column {name} is {found.simpleString()}: it must be {expected}")


def _job(options: Mapping[str, str]) -> tuple[str, int]:
    """The writing query, and the number of the batch."""
    app_id, version = opts.text(options, "txnAppId"), opts.text(options, "txnVersion")
    if not app_id and not version:
        return f"job {uuid.uuid4()}", 0
    if not app_id or not re.fullmatch(r"[0-9]{1,18}", version):
        raise MqSparkError(
            f"txnAppId = {app_id!r}, txnVersion = {version!r}: give both or none, a name and a "
            "number that grows"
        )
    return f"app {app_id}", int(version)


def _number(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    given = opts.text(options, name)
    if given and (not re.fullmatch(r"[0-9]{1,9}", given) or int(given) < least):
        raise MqSparkError(f"{name} = {given!r}: use a whole number, {least} or more")
    return int(given) if given else default


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise MqSparkError("this is no task of Spark: rows are written by df.write and writeStream")
    return task


def _log_counts(target: Target, messages: list[WriterCommitMessage | None]) -> None:
    counts = [one.counts for one in messages if isinstance(one, Written)]
    log.info(
        "%d rows written to %s, %d of them by an earlier attempt",
        sum(one.rows for one in counts),
        target.topic or "their topics",
        sum(one.repeated_rows for one in counts),
    )
