"""Spark Structured Streaming on this broker: `format("mq")` to read and to write, and a sink for
`foreachBatch`. The extra `spark` of this package brings all that it needs.
"""

from typing import TYPE_CHECKING, Any

from mq.extras import explained
from mq_spark.session import session

if TYPE_CHECKING:
    from mq_spark.writing.sink import sink

__all__ = ["session", "sink"]


def __getattr__(name: str) -> Any:
    """The sink needs PySpark: it is loaded when it is used, so that help works without."""
    if name != "sink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from mq_spark.writing.sink import sink  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(explained("mq_spark.sink", error), name=error.name) from None
    return sink
