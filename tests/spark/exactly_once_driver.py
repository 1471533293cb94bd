"""A program with two queries from one topic to two others, which a test kills.

`--at` says what happens to each task when it has passed some rows on: it waits until it is killed
("hold"), fails the first time ("fail"), or nothing. Signs of it are files in `--signs`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import mq_spark
from tests.spark.conftest import CONF

# Each task passes so much on before something happens; a batch of the sink is some of it.
ROWS, PORTIONS = 100, 4


def trouble(
    at: str, signs: Path, query: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        sign = signs / f"{at}-{query}-{batch_id}-{task.partitionId()}"
        for number, batch in enumerate(batches):
            if number == PORTIONS and at == "hold":
                sign.touch()
                while True:
                    time.sleep(0.05)
            if number == PORTIONS and at == "fail" and not sign.exists():
                sign.touch()
                raise RuntimeError("this task fails the first time")
            yield batch

    return pass_on


def run(spark: SparkSession, args: argparse.Namespace) -> None:
    source = (
        spark.readStream.format("mq")
        .options(servers=args.servers, subscribe="in", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger="2000", minPartitions=args.partitions)
        .load()
        .select("body", "keys", "ordering_key")
    )

    def frame(query: str) -> DataFrame:
        return source.mapInArrow(trouble(args.at, args.signs, query), source.schema)

    sink = mq_spark.sink(
        servers=args.servers, topic="by-sink", keys="keys", ordering_key="ordering_key"
    )
    writers = [
        frame("format").writeStream.format("mq").options(servers=args.servers, topic="by-format"),
        frame("sink").writeStream.foreachBatch(sink),
    ]
    for at, writer in enumerate(writers):
        checkpoint = str(args.checkpoints / str(at))
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        if args.at != "hold":
            query.awaitTermination()
    if args.at == "hold":
        spark.streams.awaitAnyTermination()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("servers", "at", "partitions"):
        parser.add_argument(f"--{name}")
    for name in ("signs", "checkpoints"):
        parser.add_argument(f"--{name}", type=Path)
    conf = {**CONF, "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS)}
    # Four attempts of each task, and one slot for each of the two queries' tasks.
    with mq_spark.session("exactly-once", master="local[4,4]", conf=conf) as spark:
        run(spark, parser.parse_args())


if __name__ == "__main__":
    main()
