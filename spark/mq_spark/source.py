"""`format("mq")`: what Spark asks for by name. Options are checked here, before any work begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mq.client import PullConsumer, QueueRef
from mq.client.consuming.scan import QueueScanner
from mq_spark.columns import record_batch, rows_of, spark_schema


class MqDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "mq"

    def schema(self) -> StructType:
        return spark_schema(with_properties=self._with_properties)

    @property
    def _with_properties(self) -> bool:
        return bool(self.options.get("includeProperties") == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(
            self.options["servers"],
            self.options["subscribe"],
            with_properties=self._with_properties,
        )


class _Range(InputPartition):
    def __init__(self, ref: QueueRef, start: int, end: int) -> None:
        self.ref, self.start, self.end = ref, start, end


class _BatchReader(DataSourceReader):
    def __init__(self, servers: str, topic: str, *, with_properties: bool) -> None:
        self._servers, self._topic, self._with_properties = servers, topic, with_properties

    def partitions(self) -> Sequence[InputPartition]:
        with PullConsumer(self._servers) as consumer:
            starts = consumer.find_offsets(self._topic, "earliest")
            ends = consumer.find_offsets(self._topic, "latest")
        return [_Range(ref, starts[ref], ends[ref]) for ref in sorted(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Range)  # noqa: S101
        with QueueScanner(self._servers) as scanner:
            for page in scanner.scan(partition.ref, partition.start, partition.end):
                rows = rows_of(page, partition.start, partition.end)
                yield record_batch(rows, partition.ref, with_properties=self._with_properties)
