"""One executor against two, each with one core, of a standalone cluster on this machine: rows/s of
the source into noop, and of the sink, and their ratios.

Applications with one and with two executors take turns; each warms up before it counts. A ratio is
of the medians over the rounds. Broker, driver and executors share the machine: with two cores two
executors cannot be twice as fast. Progress is on stderr; `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import mq_spark
from bench.broker import progress
from bench.broker_set import single
from mq.client import Admin, Message, Producer
from tests.spark.cluster.standalone import CONF, StandaloneCluster

_BODY_BYTES = 128
_QUEUES = 8
# Runs in each application that count.
_RUNS = 3
_CONF = {
    **CONF,
    "spark.driver.extraJavaOptions": "",
    "spark.executor.extraJavaOptions": "",
    "spark.executor.memory": "1g",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # An application begins when all of its executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}

Rates = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=800_000, help=f"of {_BODY_BYTES} B")
    arguments = parser.parse_args()
    # The executors are on this machine, and have its packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with (
        tempfile.TemporaryDirectory(prefix="mq-bench-") as directory,
        single(Path(directory) / "broker", "async") as broker,
        StandaloneCluster(Path(directory) / "spark", cores_per_worker=1) as cluster,
    ):
        fill(broker.address, arguments.rows)
        rates: dict[int, Rates] = {1: defaultdict(list), 2: defaultdict(list)}
        for _ in range(arguments.rounds):
            for executors, found in rates.items():
                conf = {**_CONF, "spark.cores.max": str(executors)}
                with mq_spark.session("bench", master=cluster.url, conf=conf) as spark:
                    measure(spark, broker.address, arguments.rows, found)
                progress.print(f"{executors}: {_line(found)}")
    figures = summary(rates)
    print(json.dumps(figures) if arguments.json else _table(figures))


def fill(servers: str, rows: int) -> None:
    with Admin(servers) as admin:
        for topic in ("in", "out"):
            admin.create_topic(topic, queues=_QUEUES)
    randoms = random.Random(1)
    with Producer(servers) as producer:
        for number in range(rows):
            body = randoms.randbytes(_BODY_BYTES)
            producer.send_async("in", Message(body, tag="paid", keys=f"order-{number}"))


def measure(spark: SparkSession, servers: str, rows: int, found: Rates) -> None:
    frame = spark.read.format("mq").options(servers=servers, subscribe="in").load()
    # Bodies of the same size that no broker has to be asked for.
    made = spark.range(0, rows, 1, _QUEUES)
    made = made.selectExpr(f"rpad(cast(id as string), {_BODY_BYTES}, '.') body", "'paid' tag")

    def source() -> None:
        frame.write.format("noop").mode("overwrite").save()

    def sink() -> None:
        made.write.format("mq").mode("append").options(servers=servers, topic="out").save()

    works: dict[str, Callable[[], None]] = {"source": source, "sink": sink}
    for name, work in works.items():
        work()
        for _ in range(_RUNS):
            began = time.perf_counter()
            work()
            found[name].append(rows / (time.perf_counter() - began))


def summary(rates: dict[int, Rates]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name in rates[1]:
        one, two = (statistics.median(rates[executors][name]) for executors in (1, 2))
        figures |= {f"{name}_1_rows_per_s": one, f"{name}_2_rows_per_s": two}
        figures[f"{name}_2_vs_1"] = two / one
        # The noise: how far the slowest and the fastest run with one executor are apart.
        figures[f"{name}_1_spread"] = max(rates[1][name]) / min(rates[1][name])
    return figures


def _line(found: Rates) -> str:
    return ", ".join(
        f"{name} {statistics.median(values):,.0f} rows/s" for name, values in found.items()
    )


def _table(figures: dict[str, float]) -> str:
    return "\n".join(
        f"{name:<22} {value:,.2f}" if value < 100 else f"{name:<22} {value:,.0f}"
        for name, value in figures.items()
    )


if __name__ == "__main__":
    main()
