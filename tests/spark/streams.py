"""Streams of tests: what came of each batch, collected in this process.

`Stream` is a query of Spark. `Steps` does with a reader what Spark does, without one: quick, and it
can be stopped between any two steps.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.query import StreamingQuery

from mq_spark.reading.stream_reader import StreamReader

DEADLINE_S = 120


class Stream:
    """One checkpoint, and all batches that were read with it, over any number of runs."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        through: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> None:
        """`through`: what is done with the rows before they are collected."""
        self._spark = spark
        self.directory = directory
        self._through = through
        self.batches: dict[int, list[Row]] = {}

    def run(self, options: Mapping[str, str]) -> list[Row]:
        """All that is there now, in as many batches as the options ask for; what this run read."""
        before = set(self.batches)
        query = self.start(options, trigger={"availableNow": True})
        try:
            assert query.awaitTermination(DEADLINE_S)
        finally:
            query.stop()
        return [
            row for batch_id, rows in self.batches.items() if batch_id not in before for row in rows
        ]

    def start(
        self, options: Mapping[str, str], trigger: Mapping[str, Any] | None = None
    ) -> StreamingQuery:
        frame = self._spark.readStream.format("mq").options(**options).load()
        writer = self._through(frame).writeStream.foreachBatch(self._collect)
        writer = writer.option("checkpointLocation", str(self.directory))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def _collect(self, frame: DataFrame, batch_id: int) -> None:
        columns = ("topic", "broker_set", "queue_id", "queue_offset", "tag", "body")
        self.batches[batch_id] = frame.select(
            *columns, spark_partition_id().alias("partition")
        ).collect()

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.batches.values() for row in rows]

    @property
    def bodies(self) -> list[bytes]:
        """Sorted."""
        return sorted(bytes(row.body) for row in self.rows)

    def logged_offset(self, batch_id: int) -> dict[str, Any]:
        """The end of a batch, as it is in the checkpoint."""
        lines = (self.directory / "offsets" / str(batch_id)).read_text().splitlines()
        parsed: dict[str, Any] = json.loads(lines[-1])
        return parsed


class Steps:
    """A stream whose batches are planned and read by hand."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self.reader = StreamReader(options)
        self.at: dict[str, Any] = _through_json(self.reader.initialOffset())

    def restart(self, **options: str) -> None:
        """As another process would go on."""
        self.reader.stop()
        self.options |= options
        self.reader = StreamReader(self.options)

    def plan(self) -> list[InputPartition]:
        """The plan of the next batch; none: nothing is new."""
        start = self.at
        limit = self.reader.getDefaultReadLimit()
        self.at = _through_json(self.reader.latestOffset(start, limit))
        if self.at == start:
            return []
        return list(self.reader.partitions(start, self.at))

    def read(self, partitions: list[InputPartition]) -> list[bytes]:
        """The bodies, by a copy of the reader, as in a worker."""
        reader, copies = pickle.loads(pickle.dumps((self.reader, partitions)))  # noqa: S301
        batches = [batch for one in copies for batch in reader.read(one)]
        return [row["body"] for batch in batches for row in batch.to_pylist()]

    def step(self) -> list[bytes]:
        return self.read(self.plan())


def _through_json(stream_offset: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json.dumps(stream_offset))
    return parsed
