"""Spark Structured Streaming on this broker: `format("mq")` to read and to write, and a sink for
`foreachBatch`. `pip install 'mq[spark]'` brings all that it needs.
"""

from mq_spark.session import session
from mq_spark.writing.sink import sink

__all__ = ["session", "sink"]
