"""The columns of the source, and messages as Arrow record batches in them.

    keys, body, topic, broker_set, queue_id, queue_offset, tag, ordering_key, [properties,]
    born_at, stored_at, message_id, delivery_attempt

A tag or an ordering key that a message does not have is null. Times are those of the message: its
producer's clock, and the leader's when it was stored. `properties` is there when it is asked for.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import lz4.frame
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mq.client import QueueRef
from mq.client.consuming.pages import Page
from mq.names import message_id
from mq.wire.v1.message_pb2 import Batch


def spark_schema(*, with_properties: bool) -> StructType:
    fields = [
        StructField("keys", ArrayType(StringType())),
        StructField("body", BinaryType()),
        StructField("topic", StringType()),
        StructField("broker_set", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("tag", StringType()),
        StructField("ordering_key", StringType()),
    ]
    if with_properties:
        fields.append(StructField("properties", MapType(StringType(), StringType())))
    fields += [
        StructField("born_at", TimestampType()),
        StructField("stored_at", TimestampType()),
        StructField("message_id", StringType()),
        StructField("delivery_attempt", IntegerType()),
    ]
    return StructType(fields)


class Rows(NamedTuple):
    """Where messages of one queue stand in `data`, and what is known of them without opening any:
    arrays of the same length, one element a message.
    """

    data: bytes
    frames_at: npt.NDArray[np.int64]
    frame_sizes: npt.NDArray[np.int64]
    queue_offsets: npt.NDArray[np.int64]
    log_offsets: npt.NDArray[np.int64]
    stored_at_ms: npt.NDArray[np.int64]


def rows_of(page: Page, start: int, end: int) -> Rows:
    """The messages of the page that are in [start, end) of their queue."""
    counts = [len(run.frame_sizes) // 4 for run in page.runs]
    sizes = np.concatenate(
        [np.frombuffer(run.frame_sizes, "<u4") for run in page.runs] or [np.empty(0, "<u4")]
    ).astype(np.int64)
    ends = np.cumsum(sizes)
    firsts = np.cumsum([0, *counts])[:-1]
    within_run = np.arange(len(sizes)) - np.repeat(firsts, counts)
    bytes_before = (ends - sizes) - np.repeat((ends - sizes)[firsts] if counts else ends, counts)

    def spread(values: list[int]) -> npt.NDArray[np.int64]:
        return np.repeat(np.array(values, np.int64), counts)

    queue_offsets = spread([run.queue_offset for run in page.runs]) + within_run
    chosen = (queue_offsets >= start) & (queue_offsets < end)
    return Rows(
        page.data,
        (spread([run.frames_at for run in page.runs]) + bytes_before)[chosen],
        sizes[chosen],
        queue_offsets[chosen],
        (spread([run.log_offset for run in page.runs]) + bytes_before)[chosen],
        spread([run.stored_at_ms for run in page.runs])[chosen],
    )


def record_batch(
    rows: Rows, ref: QueueRef, *, with_properties: bool, tags: frozenset[str] | None = None
) -> pa.RecordBatch:
    """One row a message, in the order of the queue; with `tags` only those that have one of them.
    A message that cannot be read is logged and left out.
    """
    schema = arrow_schema(with_properties=with_properties)
    made: list[dict[str, object]] = []
    for at, size, queue_offset, log_offset, stored_at_ms in zip(
        *(column.tolist() for column in rows[1:]), strict=True
    ):
        message = Batch.FromString(rows.data[at : at + size]).messages[0]
        if tags is not None and message.tag not in tags:
            continue
        body = lz4.frame.decompress(message.body) if message.compression else message.body
        made.append(
            {
                "keys": list(message.keys),
                "body": body,
                "topic": ref.topic,
                "broker_set": ref.broker_set,
                "queue_id": ref.queue_id,
                "queue_offset": queue_offset,
                "tag": message.tag or None,
                "ordering_key": message.ordering_key or None,
                "properties": list(message.properties.items()),
                "born_at": message.born_at_ms * 1000,
                "stored_at": stored_at_ms * 1000,
                "message_id": message_id(ref.broker_set, log_offset),
                "delivery_attempt": message.origin.attempts + 1,
            }
        )
    return pa.RecordBatch.from_pylist(made, schema=schema)


@functools.cache
def arrow_schema(*, with_properties: bool) -> pa.Schema:
    """What Spark expects for `spark_schema`, to the letter."""
    return to_arrow_schema(spark_schema(with_properties=with_properties), timezone="UTC")
