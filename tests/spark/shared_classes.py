"""The classes of Spark, read once: half of the time that a Java of Spark takes to start.

`make test` starts some thirty of them. `python -m tests.spark.shared_classes` makes an archive of
the classes that a session loads (class data sharing of the JVM), beside the packages that they are
from; `options` lets another Java map it. An archive that does not fit a Java is passed over by it,
and without one everything is only slower.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

_ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
# Warnings about an archive, and about classes that cannot be in one, go to stdout.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def options() -> str:
    """Of Java; empty without an archive."""
    return f"-XX:SharedArchiveFile={_ARCHIVE} {_QUIET}" if _ARCHIVE.exists() else ""


def make() -> None:
    """Java writes the archive at its end."""
    made = _ARCHIVE.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} {_QUIET}"
    import mq_spark  # noqa: PLC0415 - Spark is not there on every machine
    from tests.spark.conftest import CONF  # noqa: PLC0415 - imports this module

    with (
        tempfile.TemporaryDirectory() as directory,
        mq_spark.session("classes", master="local[2]", conf=CONF) as spark,
    ):
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        rows = spark.range(1_000).selectExpr("id", "id % 7 as key", "string(id) as text")
        rows.groupBy("key").count().collect()
        rows.write.parquet(f"{directory}/rows")
        stream = spark.readStream.schema(rows.schema).parquet(f"{directory}/rows")
        query = (
            stream.mapInArrow(lambda batches: batches, rows.schema)
            .writeStream.format("noop")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    # It ends when its input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
    made.replace(_ARCHIVE)


if __name__ == "__main__":
    make()
