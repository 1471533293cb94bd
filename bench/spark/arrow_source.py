"""The rows of a topic as a data source without a broker: Arrow files in memory, one a queue.

The same Python API of Spark, the same schema, the same rows in the same record batches: what is
left is what Spark itself takes. The files are mapped, and nothing of them is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mq.client import PullConsumer
from mq.client.arrow.columns import message_schema, record_batch
from mq.client.arrow.runs import rows_of
from mq.client.lowlevel import QueueScanner
from mq_spark.schema import spark_schema


class ArrowFiles(DataSource):
    """`load(directory)`."""

    @classmethod
    def name(cls) -> str:
        return "bench_arrow"

    def schema(self) -> StructType:
        return spark_schema(with_properties=False)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return _Reader(self.options["path"])


class _Reader(DataSourceReader):
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self._directory).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as source, pa.ipc.open_file(source) as reader:
            for at in range(reader.num_record_batches):
                yield reader.get_batch(at)


def save_topic(servers: str, topic: str, directory: Path) -> int:
    """All of it, as our source shows it. How many rows that is."""
    directory.mkdir(parents=True)
    with PullConsumer(servers) as consumer:
        ends = consumer.find_offsets(topic, "latest")
    schema = message_schema(with_properties=False)
    with QueueScanner(servers) as scanner:
        for ref, end in ends.items():
            path = directory / f"{ref.broker_set}-{ref.queue_id}.arrow"
            with pa.ipc.new_file(str(path), schema) as writer:
                for page in scanner.scan(ref, 0, end):
                    batch = record_batch(rows_of(page, 0, end), ref, with_properties=False)
                    writer.write_batch(batch)
    return sum(ends.values())
