"""A local Spark session that is ready for this source and sink.

A user's own session needs none of it: `format("mq")` is there wherever the package is
installed. What is set here a user may set otherwise, by `conf`; options of the Java machine are
added to ours, and win over them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mq_spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_QUIET = Path(__file__).parent / "log4j2.properties"
_CONF = {
    # Workers are started by name: without this they are whatever `python3` the PATH has.
    "spark.pyspark.python": sys.executable,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # An error in a task or a data source is told by its text, without the workers' stacks.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    # A query that is stopped in the middle of foreachBatch needs a deep stack.
    _JAVA_OPTIONS: f'-Xss8m "-Dlog4j2.configurationFile={_QUIET}"',
}


def session(
    name: str = "mq", *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The one of this process, made when there is none; also that of this thread, which has to call
    it before it writes with `df.write.format("mq")`. NoJava.
    """
    # Here, so that the help of `mq spark` is there without PySpark, too.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if SparkSession.getActiveSession() is None:
        use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in merged(conf or {}).items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    # Spark looks for data sources of Python by the session of the thread, which is known to Java
    # from here on.
    made.createDataFrame([], "nothing int")
    return made


def merged(conf: Mapping[str, str]) -> dict[str, str]:
    """Our settings and the user's, which win."""
    both = {**_CONF, **conf}
    if _JAVA_OPTIONS in conf:
        # Java takes the last one of two that speak of the same.
        both[_JAVA_OPTIONS] = f"{_CONF[_JAVA_OPTIONS]} {conf[_JAVA_OPTIONS]}"
    return both
