"""Figures of messages, by topic and window of time: what is counted, and the columns it ends up in.

    window_start, window_end, topic, broker_set, queue_id, tag, messages, messages_per_s, bytes,
    bytes_per_s, size_avg, size_p50, size_p99, size_max, latency_p50_ms, latency_p95_ms,
    latency_p99_ms, latency_max_ms, skewed, lag, is_complete

The columns are the same whatever was asked for: `broker_set`, `queue_id` and `tag` are null where
figures are not split by them. Latency is from producer to broker: two clocks. A message that seems
to be stored before it was born counts as `skewed`, with a latency of 0; one without a time of birth
has none. Batch and stream have the same figures; nothing here knows where they go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

Time = Literal["stored", "born"]
Split = Literal["queue", "tag"]

# One in so many ranks: a p99 is between the exact p98.9 and p99.1; exact up to 500 messages.
_ACCURACY = 1_000
# More windows than that in one batch: the number of late ones is near, not exact.
_HISTOGRAM_BINS = 10_000
OBSERVED = "mq_metrics"
KEYS = ("window_start", "topic", "broker_set", "queue_id", "tag")

_MOMENT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    {
        "window_start": _MOMENT,
        "window_end": _MOMENT,
        "topic": pa.string(),
        "broker_set": pa.string(),
        "queue_id": pa.int32(),
        "tag": pa.string(),
        "messages": pa.int64(),
        "messages_per_s": pa.float64(),
        "bytes": pa.int64(),
        "bytes_per_s": pa.float64(),
        "size_avg": pa.float64(),
        "size_p50": pa.int64(),
        "size_p99": pa.int64(),
        "size_max": pa.int64(),
        "latency_p50_ms": pa.int64(),
        "latency_p95_ms": pa.int64(),
        "latency_p99_ms": pa.int64(),
        "latency_max_ms": pa.int64(),
        "skewed": pa.int64(),
        "lag": pa.map_(pa.string(), pa.int64()),
        "is_complete": pa.bool_(),
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """The figures that are asked for."""

    window_s: float
    # Messages that come later than that, against the newest one, are late.
    watermark_s: float
    time: Time = "stored"
    by: frozenset[Split] = frozenset()


def figures(messages: DataFrame, measure: Measure) -> DataFrame:
    """One row a window and topic (queue, tag), and `newest_at`: the time of its newest message.

    In a stream a window comes when it is complete, once; what is later than the watermark is
    dropped, and observed: see `late`.
    """
    window = f"{round(measure.window_s * 1000)} milliseconds"
    watermark = f"{round(measure.watermark_s * 1000)} milliseconds"
    born_ms, stored_ms = F.unix_millis("born_at"), F.unix_millis("stored_at")
    prepared = (
        messages.select(
            _time(measure.time).alias("at"),
            "topic",
            *_splits(measure.by),
            F.octet_length("body").cast("long").alias("size"),
            F.when(born_ms > 0, stored_ms - born_ms).alias("latency_ms"),
        )
        .withWatermark("at", watermark)
        # Not withColumn, by which Spark Connect loses the watermark of the window.
        .select("*", F.window("at", window).alias("window"))
    )
    if messages.isStreaming:
        # Messages by the end of their window. Spark itself counts late ones as groups.
        ends_ms = F.unix_millis(F.col("window.end")).cast("double")
        counts = F.histogram_numeric(ends_ms, F.lit(_HISTOGRAM_BINS))
        prepared = prepared.observe(OBSERVED, counts.alias("by_window_end"))
    grouped = prepared.groupBy("window", "topic", "broker_set", "queue_id", "tag")
    return grouped.agg(*_aggregates()).select(*_columns(measure.window_s))


def _time(time: Time) -> Column:
    """The time of the message. A clock that is ahead must not make all other messages late: the
    time is never after the one of storing.
    """
    stored = F.col("stored_at")
    if time == "stored":
        return stored
    return F.when(F.unix_millis("born_at") > 0, F.least("born_at", stored)).otherwise(stored)


def _splits(by: frozenset[Split]) -> list[Column]:
    is_by_queue, is_by_tag = "queue" in by, "tag" in by
    nothing = F.lit(None)
    return [
        (F.col("broker_set") if is_by_queue else nothing.cast("string")).alias("broker_set"),
        (F.col("queue_id") if is_by_queue else nothing.cast("int")).alias("queue_id"),
        # Empty: those without one. Null would be all of them.
        (F.coalesce("tag", F.lit("")) if is_by_tag else nothing.cast("string")).alias("tag"),
    ]


def _aggregates() -> list[Column]:
    latency_ms = F.greatest("latency_ms", F.lit(0))
    return [
        F.count(F.lit(1)).alias("messages"),
        F.sum("size").alias("bytes"),
        F.percentile_approx("size", [0.5, 0.99], _ACCURACY).alias("sizes"),
        F.max("size").alias("size_max"),
        # Null of a null, other than greatest().
        F.percentile_approx(
            F.when(F.col("latency_ms").isNotNull(), latency_ms), [0.5, 0.95, 0.99], _ACCURACY
        ).alias("latencies"),
        F.max(F.when(F.col("latency_ms").isNotNull(), latency_ms)).alias("latency_max_ms"),
        F.count_if(F.col("latency_ms") < 0).alias("skewed"),
        F.max("at").alias("newest_at"),
    ]


def _columns(window_s: float) -> list[Column | str]:
    def per_s(name: str) -> Column:
        return (F.col(name) / F.lit(window_s)).alias(f"{name}_per_s")

    return [
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        *("topic", "broker_set", "queue_id", "tag"),
        *("messages", per_s("messages"), "bytes", per_s("bytes")),
        (F.col("bytes") / F.col("messages")).alias("size_avg"),
        F.col("sizes")[0].alias("size_p50"),
        F.col("sizes")[1].alias("size_p99"),
        "size_max",
        F.col("latencies")[0].alias("latency_p50_ms"),
        F.col("latencies")[1].alias("latency_p95_ms"),
        F.col("latencies")[2].alias("latency_p99_ms"),
        *("latency_max_ms", "skewed", "newest_at"),
    ]


# -- collected -------------------------------------------------------------------------------------


def collected(frame: DataFrame, measure: Measure, *, is_final: bool) -> pa.Table:
    """All rows in the order of KEYS, as SCHEMA has them, without lags.

    Final windows are complete. Others are by the rule of a stream: when their end is further back
    from the newest message than the watermark.
    """
    found: pa.Table = frame.toArrow()
    newest_at_us = pc.max(found["newest_at"].cast(_MOMENT).cast(pa.int64())).as_py() or 0
    closed_us = newest_at_us - round(measure.watermark_s * 1_000_000)
    ends_us = found["window_end"].cast(_MOMENT).cast(pa.int64())
    is_complete = pc.less_equal(ends_us, closed_us)
    columns: dict[str, Any] = {
        name: found[name].cast(SCHEMA.field(name).type)
        for name in SCHEMA.names
        if name in found.column_names
    }
    columns["lag"] = pa.nulls(len(found), SCHEMA.field("lag").type)
    columns["is_complete"] = pa.repeat(True, len(found)) if is_final else is_complete  # noqa: FBT003
    made = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    return made.sort_by([(name, "ascending") for name in KEYS])


def late(observed: Mapping[str, Any], watermark_ms: int) -> int:
    """The number of messages of a batch that were dropped, as `figures` observed.

    The watermark is that of the batch before: in its own a batch only closes windows.
    """
    bins = observed.get("by_window_end") or ()
    return sum(round(each["y"]) for each in bins if each["x"] <= watermark_ms)
