"""The Spark source and sink, with local[2] and a broker of one node, asynchronous flush: ratios in
one run, because machines are shared and noisy.

    source    spark.read.format("mq") into noop, against the same plan over the same rows in memory,
              by the same Python API of Spark: 128 B and 1 KiB bodies, each with a tag and a key
    sink      df.write.format("mq") of rows in memory, against our producer alone, encoding included
    trigger   a micro-batch with a few messages, against one of Spark's own rate source

Ours and the baseline take turns, after a round that does not count; a ratio is of the medians over
the rounds. Progress is on stderr; `--json` prints one object.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

import mq_spark
from bench.broker import progress, run_parts
from bench.broker_set import single
from bench.spark.arrow_source import ArrowFiles, save_topic
from mq.client import Admin, Message, Producer

GOALS = {
    "source_vs_arrow_128": (0.5, "at least"),
    "source_vs_arrow_1k": (0.5, "at least"),
    "sink_vs_producer": (0.5, "at least"),
    "trigger_overhead_ms": (0.0, "printed"),
}
_SIZES = {"128": 128, "1k": 1024}
_QUEUES = 4
_MESSAGES_A_TRIGGER = 5
_TRIGGER_DEADLINE_S = 120.0
_CONF = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--rows", type=int, default=800_000, help="of 128 B; a quarter of it of 1 KiB"
    )
    parser.add_argument("--triggers", type=int, default=20, help="micro-batches of each kind")
    parser.add_argument("--only", default="", help="comma-separated parts: source, sink, trigger")
    parser.add_argument(
        "--directory", help="where to write (default: the system's temporary directory)"
    )
    arguments = parser.parse_args()
    # Workers import the other source from here, wherever this was started.
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [root, os.environ.get("PYTHONPATH", "")])
    )
    with (
        tempfile.TemporaryDirectory(prefix="mq-bench-", dir=arguments.directory) as directory,
        mq_spark.session("bench", master="local[2]", conf=_CONF) as spark,
    ):
        spark.dataSource.register(ArrowFiles)
        figures = Bench(spark, Path(directory), arguments).run()
    print(json.dumps(figures)) if arguments.json else show(figures)


class Bench:
    def __init__(self, spark: SparkSession, directory: Path, arguments: argparse.Namespace) -> None:
        self._spark = spark
        self._directory = directory
        self._rounds: int = arguments.rounds
        self._rows: dict[str, int] = {"128": arguments.rows, "1k": arguments.rows // 4}
        self._triggers: int = arguments.triggers
        self._only = set(filter(None, arguments.only.split(",")))
        self._figures: Figures = {}

    def run(self) -> Figures:
        parts = [("source", self.source), ("sink", self.sink), ("trigger", self.trigger)]
        run_parts(parts, self._only)
        return self._figures

    # -- parts ------------------------------------------------------------------------------------

    def source(self) -> None:
        for name in _SIZES:
            with self._filled_broker(name) as address:
                saved = self._directory / f"source-{name}"
                count = save_topic(address, "bench", saved)
                reader = self._spark.read.format("mq")
                ours = reader.options(servers=address, subscribe="bench").load()
                theirs = self._spark.read.format("bench_arrow").load(str(saved))
                self._compare(
                    f"source_vs_arrow_{name}",
                    count,
                    functools.partial(_to_nowhere, ours),
                    functools.partial(_to_nowhere, theirs),
                )

    def sink(self) -> None:
        with self._filled_broker("128") as address:
            saved = self._directory / "sink"
            count = save_topic(address, "bench", saved)
            frame = self._spark.read.format("bench_arrow").load(str(saved))
            frame = frame.select("body", "keys", "tag")
            messages = list(_messages_in(saved))

            def ours() -> None:
                writer = frame.write.format("mq").mode("append")
                writer.options(servers=address, topic="bench").save()

            def theirs() -> None:
                with Producer(address) as producer:
                    for message in messages:
                        producer.send_async("bench", message)

            self._compare("sink_vs_producer", count, ours, theirs)

    def trigger(self) -> None:
        with self._broker() as address, Producer(address) as producer:

            def send() -> None:
                for number in range(_MESSAGES_A_TRIGGER):
                    producer.send("bench", b"%d" % number)

            reader = self._spark.readStream.format("mq")
            # From the earliest: what is sent before the query has begun counts, too.
            options = {"servers": address, "subscribe": "bench", "startingOffsets": "earliest"}
            stream = reader.options(**options).load()
            ours = self._micro_batches("mq", stream, send)
        reader = self._spark.readStream.format("rate-micro-batch")
        stream = reader.option("rowsPerBatch", _MESSAGES_A_TRIGGER).load()
        theirs = self._micro_batches("rate", stream, lambda: None)
        self._figures["trigger_ms"] = ours
        self._figures["trigger_rate_source_ms"] = theirs
        self._figures["trigger_overhead_ms"] = ours - theirs

    # -- pieces -----------------------------------------------------------------------------------

    @contextmanager
    def _broker(self) -> Iterator[str]:
        """Its address; with an empty topic."""
        with (
            tempfile.TemporaryDirectory(dir=self._directory) as directory,
            single(Path(directory) / "broker", "async") as broker,
        ):
            with Admin(broker.address) as admin:
                admin.create_topic("bench", queues=_QUEUES)
            yield broker.address

    @contextmanager
    def _filled_broker(self, name: str) -> Iterator[str]:
        """Its address; the topic is as our producer fills it."""
        with self._broker() as address:
            began = time.perf_counter()
            randoms = random.Random(name)
            with Producer(address) as producer:
                for number in range(self._rows[name]):
                    body = randoms.randbytes(_SIZES[name])
                    producer.send_async("bench", Message(body, tag="paid", keys=f"order-{number}"))
            took_s = time.perf_counter() - began
            progress.print(f"{self._rows[name]:,} messages of {name} sent in {took_s:.0f} s")
            yield address

    def _compare(
        self, name: str, rows: int, ours: Callable[[], None], theirs: Callable[[], None]
    ) -> None:
        _seconds(ours), _seconds(theirs)
        took: list[tuple[float, float]] = []
        for _ in range(self._rounds):
            their_s = _seconds(theirs)
            took.append((_seconds(ours), their_s))
            rates = [rows / one for one in took[-1]]
            progress.print(
                f"{name}: {rates[0]:,.0f} of {rates[1]:,.0f} rows/s, {rates[0] / rates[1]:.2f}"
            )
        our_s, their_s = (statistics.median(one) for one in zip(*took, strict=True))
        self._figures[name] = their_s / our_s
        self._figures[f"{name}_rows_per_s"] = rows / our_s
        self._figures[f"{name}_baseline_rows_per_s"] = rows / their_s

    def _micro_batches(self, name: str, stream: DataFrame, send: Callable[[], None]) -> float:
        """The median time of those that had rows, in milliseconds."""
        writer = stream.writeStream.format("noop").option(
            "checkpointLocation", str(self._directory / f"checkpoint-{name}")
        )
        query = writer.start()
        try:
            times = list(_trigger_times(query, send, self._triggers))
        finally:
            query.stop()
        progress.print(f"micro-batches of {name}: {statistics.median(times):.0f} ms")
        return statistics.median(times)


def _trigger_times(query: StreamingQuery, send: Callable[[], None], count: int) -> Iterator[float]:
    """The times of micro-batches, one after the other, without the first few, which warm up."""
    deadline_s = time.monotonic() + _TRIGGER_DEADLINE_S
    seen: set[int] = set()
    send()
    while len(seen) < count + 3:
        assert time.monotonic() < deadline_s, f"{len(seen)} of {count} micro-batches"
        if query.exception():
            raise RuntimeError(f"the query failed: {query.exception()}")
        for done in query.recentProgress:
            if done["numInputRows"] and done["batchId"] not in seen:
                seen.add(done["batchId"])
                if len(seen) > 3:
                    yield float(done["durationMs"]["triggerExecution"])
                send()
        time.sleep(0.02)


def _to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _messages_in(directory: Path) -> Iterator[Message]:
    """As the producer sends them."""
    for path in sorted(directory.iterdir()):
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            table = reader.read_all().select(["body", "tag", "keys"])
            keys = pc.list_element(table["keys"], 0)
            columns = (table["body"], table["tag"], keys)
            for body, tag, key in zip(*(column.to_pylist() for column in columns), strict=True):
                yield Message(body, tag=tag, keys=key)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def show(figures: Figures) -> None:
    console = Console()
    table = Table("figure", "value", "goal", box=None, pad_edge=False)
    for name, value in figures.items():
        goal, how = GOALS.get(name, (0.0, ""))
        shown = f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
        table.add_row(name, shown, f"{how} {goal:g}" if goal else how)
    console.print(table)


if __name__ == "__main__":
    main()
