"""A program for `spark-submit`: rows of a topic to others, by a job and by two queries.

Each task of the first batch of a query stops in the middle, the first time, until its executor is
killed; signs of it are files. What it prints is where tasks ran.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import mq_spark
from tests.spark.cluster.queries import run_to_end

# Each task passes so many Arrow batches on before it stops.
PORTIONS = 4

Batches = Iterator[pa.RecordBatch]


def places(batches: Batches) -> Batches:
    """The directory of the task's process, and where it has its packages from."""
    import mq  # noqa: PLC0415 - of the executor

    rows = sum(batch.num_rows for batch in batches)
    row = {"directory": os.getcwd(), "package": str(mq.__file__), "rows": rows}
    yield pa.RecordBatch.from_pylist([row])


def stopping(query: str, signs: Path) -> Callable[[Batches], Batches]:
    def pass_on(batches: Batches) -> Batches:
        task = TaskContext.get()
        assert task is not None
        is_first = task.getLocalProperty("streaming.sql.batchId") == "0"
        stopped = signs / f"stopped-{query}-{task.partitionId()}"
        is_again = stopped.exists()
        for number, batch in enumerate(batches):
            if is_first and number == PORTIONS:
                if is_again:
                    (signs / f"again-{query}-{task.partitionId()}").touch()
                else:
                    stopped.touch()
                while not is_again:
                    time.sleep(0.05)
            yield batch

    return pass_on


def start(spark: SparkSession, servers: str, home: Path) -> None:
    options = {"servers": servers, "subscribe": "in", "minPartitions": "2"}
    read = spark.read.format("mq").options(**options).load()
    found = read.mapInArrow(places, "directory string, package string, rows long").collect()
    sys.stdout.write(f"{json.dumps([row.asDict() for row in found])}\n")
    job = read.select("body").write.format("mq").mode("append")
    job.options(servers=servers, topic="by-job").save()

    stream = (
        spark.readStream.format("mq")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="2000")
        .load()
        .select("body")
    )

    def frame(query: str) -> DataFrame:
        return stream.mapInArrow(stopping(query, home / "signs"), stream.schema)

    to_topic = mq_spark.sink(servers=servers, topic="by-sink")
    writers = {
        f"{home}/checkpoints/format": frame("format")
        .writeStream.format("mq")
        .options(servers=servers, topic="by-format"),
        f"{home}/checkpoints/sink": frame("sink").writeStream.foreachBatch(to_topic),
    }
    run_to_end(writers)


if __name__ == "__main__":
    start(SparkSession.builder.appName("job").getOrCreate(), sys.argv[1], Path(sys.argv[2]))
