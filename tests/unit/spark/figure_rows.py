"""Rows of figures, for tests of what is done with them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from mq_spark.pipelines.measuring.metrics_figures import SCHEMA

NOON = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)


def row(minute: float = 0, topic: str = "orders", **others: Any) -> dict[str, Any]:
    """A window of a minute, so many minutes past noon."""
    start = NOON + dt.timedelta(minutes=minute)
    known = {
        "window_start": start,
        "window_end": start + dt.timedelta(minutes=1),
        "topic": topic,
        "broker_set": None,
        "queue_id": None,
        "tag": None,
        "messages": 120,
        "messages_per_s": 2.0,
        "bytes": 12_000,
        "bytes_per_s": 200.0,
        "size_avg": 100.0,
        "size_p50": 90,
        "size_p99": 1_500,
        "size_max": 2_000,
        "latency_p50_ms": 3,
        "latency_p95_ms": 40,
        "latency_p99_ms": 1_250,
        "latency_max_ms": 75_000,
        "skewed": 0,
        "lag": None,
        "is_complete": True,
    }
    return known | others


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)
