"""The id of a streaming query, in a function of its foreachBatch. It is the checkpoint's, so it
stays over restarts.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from mq_spark.errors import MqSparkError

_QUERY_ID = "sql.streaming.queryId"
_LOCAL = "file:"


def query_id(session: SparkSession, checkpoint: str) -> str:
    """Empty: this is no query. Spark tells its driver; through Spark Connect, where the function
    runs in another process, it is read in the checkpoint.
    """
    try:
        return session.sparkContext.getLocalProperty(_QUERY_ID) or ""
    except PySparkAttributeError:
        return _of_checkpoint(session, checkpoint) if checkpoint else ""


def _of_checkpoint(session: SparkSession, checkpoint: str) -> str:
    place = f"{checkpoint}/metadata"
    try:
        text = Path(place.removeprefix(_LOCAL)).read_text(encoding="utf-8")
    except OSError:  # Spark knows more file systems
        text = "".join(row[0] for row in session.read.text(place).collect())
    try:
        return str(json.loads(text)["id"])
    except (LookupError, TypeError, ValueError):
        raise MqSparkError(f"{place} has no id of a query: {text[:100]!r}") from None
