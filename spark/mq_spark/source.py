"""`format("mq")`: what Spark asks for by name. With `path` it reads files, otherwise brokers.

`schema` is where a user's mistakes are found, before any work begins: Spark asks for it when a
frame is made, and hides or delays what later steps say. Every process of Spark's that reads or
writes imports this: what only some of them need, writers and files of logs, is imported there.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from mq_spark.errors import MqSparkError, as_our_own
from mq_spark.options import read_options, text
from mq_spark.reading.batch_reader import BatchReader
from mq_spark.reading.cluster import START_PATIENCE_S, Cluster
from mq_spark.reading.ranges import check_schema
from mq_spark.reading.stream_reader import StreamReader
from mq_spark.schema import spark_schema


class MqDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "mq"

    def schema(self) -> StructType:
        with as_our_own():
            if self._is_offline:
                from mq_spark.offline.log_reader import log_options  # noqa: PLC0415

                return spark_schema(with_properties=log_options(self.options).with_properties)
            options = read_options(self.options)
            with Cluster(options, patience_s=START_PATIENCE_S) as cluster:
                # A stream that may lose data may have lost a topic, too.
                cluster.check(all_exist=options.fail_on_data_loss)
            return spark_schema(with_properties=options.with_properties)

    @property
    def _is_offline(self) -> bool:
        path, servers = text(self.options, "path"), text(self.options, "servers")
        if path and servers:
            raise MqSparkError(
                "servers and path are both given: path reads the files of a log without a broker, "
                "servers a running one"
            )
        return bool(path)

    def reader(self, schema: StructType) -> DataSourceReader:
        with as_our_own():
            if self._is_offline:
                from mq_spark.offline.log_reader import LogReader  # noqa: PLC0415

                return LogReader(self.options)
            options = read_options(self.options)
            check_schema(schema, options)
            return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        from mq_spark.writing.writer import batch_writer  # noqa: PLC0415

        with as_our_own():
            if overwrite:
                raise MqSparkError("mode overwrite: messages are not replaced; use mode('append')")
            return batch_writer(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001
        from mq_spark.writing.writer import stream_writer  # noqa: PLC0415

        with as_our_own():
            if overwrite:
                raise MqSparkError("outputMode complete: messages are not replaced; use 'append'")
            return stream_writer(self.options, schema)
