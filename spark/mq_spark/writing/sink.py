"""`sink(...)`: a function for `foreachBatch` that writes each batch of a query to the broker, once.

A batch that runs again after a crash has the same query id and batch id, which go along as
`txnAppId` and `txnVersion`, see `writer`. It is one action: for it, the source is read once.
Through Spark Connect the id of the query is found in its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkAttributeError
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import StructType

from mq.client import Message
from mq.client.lowlevel import ConnectionOptions
from mq.errors import MqError
from mq_spark.errors import MqSparkError
from mq_spark.options import connection_options
from mq_spark.query_id import query_id
from mq_spark.writing.writer import check_columns, write_target

ColumnLike: TypeAlias = str | Column
ToMessage: TypeAlias = Callable[[Row], Message | bytes | str]

_RUN_ID = "spark.jobGroup.id"
_MADE = (
    "body binary, keys array<string>, tag string, ordering_key string, "
    "properties map<string,string>"
)
_MADE_ARROW = pa.schema(
    {
        "body": pa.binary(),
        "keys": pa.list_(pa.string()),
        "tag": pa.string(),
        "ordering_key": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
    }
)
# By sink and run of a query: the batch that came last.
_newest: dict[tuple[str, str], int] = {}


def sink(  # noqa: PLR0913
    *,
    servers: str | Sequence[str],
    topic: str = "",
    body: ColumnLike = "body",
    keys: ColumnLike | None = None,
    tag: ColumnLike | None = None,
    ordering_key: ColumnLike | None = None,
    properties: ColumnLike | None = None,
    born_at: ColumnLike | None = None,
    topic_column: ColumnLike | None = None,
    message: ToMessage | None = None,
    name: str = "",
    checkpoint: str = "",
    compress_above_bytes: int = 4096,
    timeout_s: int = 120,
    **connection: Any,
) -> Callable[[DataFrame, int], None]:
    """For `df.writeStream.foreachBatch(sink(...))`, or to be called in a function of your own with
    the frame and its batch id: each row is stored once, however often the batch runs.

    What a message has is told by columns, or made of each row by `message`, which is slower. All
    go to `topic`, or each to its `topic_column`. Several sinks in one query that have the same
    topic need a `name` each. Works in queries only: elsewhere, df.write.format("mq") does. Through
    Spark Connect it needs the query's `checkpoint`, its checkpointLocation. Options are checked at
    once: MqSparkError.

    `connection`: `tls`, `ca`, `cert`, `key`, `api_key`, `api_key_file`, `namespace` and `zone`, as
    clients take them. Each machine that runs tasks needs the files.
    """
    columns = {
        "keys": keys,
        "tag": tag,
        "ordering_key": ordering_key,
        "properties": properties,
        "born_at": born_at,
        "topic": topic_column,
    }
    chosen = {"body": body, **{key: one for key, one in columns.items() if one is not None}}
    if message is not None and (len(chosen) > 1 or isinstance(body, Column) or body != "body"):
        raise MqSparkError("sink: give columns, or a function `message`, not both")
    if bool(topic) == (topic_column is not None):
        raise MqSparkError("sink: give either topic or topic_column")
    options = {
        **_connection_options(servers, connection),
        "compressAboveBytes": str(compress_above_bytes),
        "timeoutSeconds": str(timeout_s),
        **({"topic": topic} if topic else {}),
    }
    write_target(options)

    def write(frame: DataFrame, batch_id: int) -> None:
        with _identity(frame, batch_id, name or topic or "topics", checkpoint) as identity:
            if message is not None:
                made = frame.mapInArrow(_messages(message, frame.schema), _MADE)
            else:
                made = frame.select(*(_column(one).alias(key) for key, one in chosen.items()))
            check_columns(made.schema, topic)
            made.write.format("mq").mode("append").options(**options, **identity).save()

    return write


def _connection_options(
    servers: str | Sequence[str], connection: Mapping[str, Any]
) -> dict[str, str]:
    try:
        return connection_options(ConnectionOptions(servers, **connection))
    except (MqError, TypeError) as error:
        raise MqSparkError(f"sink: {error}") from None


def _column(one: ColumnLike) -> Column:
    return fn.col(one) if isinstance(one, str) else one


@contextmanager
def _identity(
    frame: DataFrame, batch_id: int, name: str, checkpoint: str
) -> Iterator[dict[str, str]]:
    """The options that name the batch, while it is written."""
    query, run_id = query_id(frame.sparkSession, checkpoint), _run_id(frame.sparkSession)
    if not query:
        raise MqSparkError(
            "mq_spark.sink is for foreachBatch of a streaming query, whose id it needs to store "
            "each row once: elsewhere use df.write.format('mq'); through Spark Connect give it the "
            "query's checkpointLocation, sink(..., checkpoint=...)"
        )
    app_id = f"{query}/{name}"
    if _newest.get((app_id, run_id)) == batch_id:
        raise MqSparkError(
            f"batch {batch_id} came to the sink {name} twice: the second one would pass for the "
            "first. Give each sink of a query a name of its own: sink(..., name=...)"
        )
    _newest[app_id, run_id] = batch_id
    try:
        yield {"txnAppId": app_id, "txnVersion": str(batch_id)}
    except BaseException:
        # It may be tried again, by a function that catches this.
        del _newest[app_id, run_id]
        raise


def _run_id(session: SparkSession) -> str:
    """Empty through Spark Connect, where each run has a process of its own."""
    try:
        return session.sparkContext.getLocalProperty(_RUN_ID) or ""
    except PySparkAttributeError:
        return ""


def _messages(
    message: ToMessage, schema: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows as columns of messages, one row after the other."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = ArrowTableToRowsConversion.convert(pa.Table.from_batches([batch]), schema)
            yield _record_batch([message(row) for row in rows])

    return convert


def _record_batch(made: Sequence[Message | bytes | str]) -> pa.RecordBatch:
    """Raises MqSparkError if one of them is no message."""
    try:
        return pa.RecordBatch.from_pylist([_parts(one) for one in made], _MADE_ARROW)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        raise MqSparkError(f"what `message` gave is no message: {error}") from None


def _parts(made: Message | bytes | str) -> dict[str, object]:
    if not isinstance(made, Message):
        made = Message(made)  # type: ignore[arg-type]
    if made.priority or made.deliver_at_ms or made.delay_s or made.delay_level:
        raise MqSparkError(
            "what a sink writes is delivered at once and has no priority: leave these fields out"
        )
    body: object = made.body
    if not isinstance(body, bytes | bytearray | str):
        raise MqSparkError(f"the body of a message is bytes or str, not {type(body).__name__}")
    return {
        "body": body.encode() if isinstance(body, str) else bytes(body),
        "keys": [made.keys] if isinstance(made.keys, str) else list(made.keys),
        "tag": made.tag,
        "ordering_key": made.ordering_key,
        "properties": list(made.properties.items()),
    }
