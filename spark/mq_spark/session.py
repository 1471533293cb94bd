"""A Spark session that is ready for this source and sink: local, of a cluster, that of
`spark-submit`, or of a server of Spark Connect.

A user's own session needs none of it: `format("mq")` is there wherever the package is
installed. What is set here a user may set otherwise, by `conf`; options of the Java machine are
added to ours, and win over them.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mq.extras import explained
from mq_spark.errors import MqSparkError
from mq_spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_QUIET = Path(__file__).parent / "log4j2.properties"
OF_SQL = "spark.sql."
_REACHABLE_S = 8.0
_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # An error in a task or a data source is told by its text, without the workers' stacks.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    # A query that is stopped in the middle of foreachBatch needs a deep stack.
    _JAVA_OPTIONS: f'-Xss8m "-Dlog4j2.configurationFile={_QUIET}"',
}


def session(
    name: str = "mq",
    *,
    master: str = "",
    remote: str = "",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The one of this process, made when there is none; also that of this thread, which has to call
    it before it writes with `df.write.format("mq")`. Without a `master` it is local, except in a
    program that `spark-submit` started. Raises NoJava.

    `remote` is the address of a server of Spark Connect, sc://HOST:PORT, in place of a master. It
    needs no Java here. Raises MqSparkError if nothing is there.
    """
    # Here, so that the help of `mq spark` is there without PySpark, too.
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(explained("mq_spark", error), name=error.name) from None

    if remote:
        _check_reachable(remote)
        return _with(SparkSession.builder.remote(remote), _of_sql(merged(conf or {}))).getOrCreate()
    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        if SparkSession.getActiveSession() is None:
            use_java()
        master = master or "local[*]"
        choose_python(master)
    if master:
        builder = builder.master(master)
    made = _with(builder, merged(conf or {})).getOrCreate()
    # Spark looks for data sources of Python by the session of the thread, which is known to Java
    # from here on.
    made.createDataFrame([], "nothing int")
    return made


def choose_python(master: str) -> None:
    """Spark starts Python by one name on all machines, `python3` if it is told no other."""
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif "PYSPARK_PYTHON" not in os.environ:
        # Its place on executors is unknown: so it is called by name, which here has to be this one.
        first = str(Path(sys.executable).parent)
        os.environ["PATH"] = os.pathsep.join([first, os.environ.get("PATH", os.defpath)])


def _with(builder: SparkSession.Builder, conf: Mapping[str, str]) -> SparkSession.Builder:
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder


def _of_sql(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that a session of Spark Connect can change. All others are those of the server,
    which takes them when it starts.
    """
    return {key: value for key, value in conf.items() if key.startswith(OF_SQL)}


def _check_reachable(remote: str) -> None:
    """MqSparkError if no server listens there: PySpark would try for ten minutes, in silence."""
    # Here, so that the help of `mq spark` is there without PySpark, too.
    from pyspark.errors import PySparkValueError  # noqa: PLC0415
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

    try:
        host, _, port = DefaultChannelBuilder(remote).endpoint.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _REACHABLE_S).close()
    except (PySparkValueError, ValueError):
        raise MqSparkError(f"remote = {remote}: it is not like sc://HOST:15002") from None
    except OSError as error:
        raise MqSparkError(
            f"remote = {remote}: no answer; is a server of Spark Connect running there? ({error})"
        ) from None


def merged(conf: Mapping[str, str]) -> dict[str, str]:
    """Our settings and the user's, which win."""
    both = {**_CONF, **conf}
    if _JAVA_OPTIONS in conf:
        # Java takes the last one of two that speak of the same.
        both[_JAVA_OPTIONS] = f"{_CONF[_JAVA_OPTIONS]} {conf[_JAVA_OPTIONS]}"
    return both
