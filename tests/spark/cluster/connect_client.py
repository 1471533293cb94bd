"""A client of Spark Connect, without Java: a query from topic to topic, whose task stops in the
middle the first time, the same by `foreachBatch` and by a sink, and a count of what is there then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import mq_spark
from tests.spark.cluster.queries import run_to_end

PORTIONS = 4


def main(address: str, servers: str, home: str) -> None:
    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stopped = Path(home) / "signs" / "stopped"
        for number, batch in enumerate(batches):
            if number == PORTIONS and not stopped.exists():
                stopped.touch()
                while True:
                    time.sleep(0.05)
            yield batch

    spark = SparkSession.builder.remote(address).getOrCreate()
    stream = (
        spark.readStream.format("mq")
        .options(servers=servers, subscribe="in", startingOffsets="earliest")
        .load()
        .select("body")
    )
    stopping = stream.mapInArrow(pass_on, stream.schema)
    to_topic = stopping.writeStream.format("mq").options(servers=servers, topic="by-connect")
    run_to_end({f"{home}/checkpoint": to_topic})

    checkpoint = f"{home}/checkpoint-foreach"
    to_sink = mq_spark.sink(servers=servers, topic="by-connect-sink", checkpoint=checkpoint)

    def write(frame: DataFrame, batch_id: int) -> None:
        identity = {"txnAppId": "by-connect", "txnVersion": str(batch_id)}
        for _ in range(2):  # the second time is as after a crash
            writer = frame.write.format("mq").mode("append").options(**identity)
            writer.options(servers=servers, topic="by-foreach").save()
        to_sink(frame, batch_id)

    run_to_end({checkpoint: stream.writeStream.foreachBatch(write)})
    found = spark.read.format("mq").options(servers=servers, subscribe="by-connect").load()
    sys.stdout.write(f"{found.count()} rows\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
