"""A local Spark session that is ready for this source and sink.

Who has a session of their own needs none of it: `format("mq")` is there wherever the package is
installed. What is set here a user may set otherwise, by `conf`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from mq_spark.java import use_java

_CONF = {
    # Workers are started by name: without this they are whatever `python3` the PATH has.
    "spark.pyspark.python": sys.executable,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # A query that is stopped in the middle of foreachBatch needs a deep stack.
    "spark.driver.extraJavaOptions": "-Xss8m",
}


def session(
    name: str = "mq", *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The one of this process, made when there is none. NoJava."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_CONF, **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
