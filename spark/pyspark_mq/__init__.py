"""Registration with Spark: a module `pyspark_*` with a `DefaultSource` registers by itself, so that
`format("mq")` works wherever this package is installed.
"""

from mq_spark.source import MqDataSource as DefaultSource

__all__ = ["DefaultSource"]
