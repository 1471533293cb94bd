"""`spark.read`: a range of each queue, by offsets or by time, read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mq_spark.errors import MqSparkError, as_our_own
from mq_spark.options import AtOffsets, ReadOptions, check_batch
from mq_spark.reading.cluster import START_PATIENCE_S, Cluster
from mq_spark.reading.offsets import Layout, QueueRange, queue_name
from mq_spark.reading.planning import QueuePartition, partitions
from mq_spark.reading.ranges import record_batches


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with as_our_own():
            check_batch(self._options)
            with Cluster(self._options, patience_s=START_PATIENCE_S) as cluster:
                found = self._ranges(cluster)
            return partitions(found, Layout(self._options.partitions_min))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark asks for a partition that was not planned when there is nothing to read.
        ranges = partition.ranges if isinstance(partition, QueuePartition) else ()
        return record_batches(ranges, self._options)

    def _ranges(self, cluster: Cluster) -> list[QueueRange]:
        options = self._options
        starts, ends = cluster.between(
            options.starting or "earliest",
            options.ending or "latest",
            fail=options.fail_on_data_loss,
        )
        if options.topics.pattern and not starts:
            raise MqSparkError(
                f"subscribePattern = {options.topics.pattern!r} matches none of the topics"
            )
        is_named = isinstance(options.starting, AtOffsets) and isinstance(options.ending, AtOffsets)
        backwards = [ref for ref in sorted(starts) if starts[ref] > ends[ref]]
        if is_named and backwards:
            ref = backwards[0]
            raise MqSparkError(
                f"startingOffsets: {ref.topic} {queue_name(ref)} is {starts[ref]}, which is behind "
                f"its endingOffsets, {ends[ref]}"
            )
        return [
            QueueRange(ref, starts[ref], ends[ref])
            for ref in sorted(starts)
            if starts[ref] < ends[ref]
        ]
