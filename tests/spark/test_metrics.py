"""`mq spark metrics`: figures against plain Python, windows once, late messages counted."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from mq.client import PullConsumer
from mq.client.lowlevel import ConnectionOptions
from mq.wire.v1.message_pb2 import Message
from mq_spark.errors import MqSparkError
from mq_spark.pipelines.measuring.metrics_figures import Measure, collected, figures
from mq_spark.pipelines.measuring.metrics_files import FigureFiles
from mq_spark.pipelines.measuring.metrics_stream import Measuring, Wanted, documents, measured
from tests.spark.commands import SparkCommand
from tests.support.broker_process import BrokerProcess
from tests.support.topics import create_topic, send

_DEADLINE_S = 120
_START_MS = round(dt.datetime(2024, 2, 28, 23, 59, tzinfo=dt.UTC).timestamp() * 1000)


class Seen(NamedTuple):
    """A message, as plain Python counts it."""

    topic: str
    queue_id: int
    tag: str
    size: int
    born_at_ms: int
    stored_at_ms: int


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("metrics") / "data") as running:
        yield running


# -- plain Python ----------------------------------------------------------------------------------


def _expected(
    messages: Iterable[Seen], measure: Measure, queue_set: str = ""
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """By the start of the window in ms, topic, queue, tag."""
    groups = defaultdict(list)
    window_ms = round(measure.window_s * 1000)
    for one in messages:
        born_ms = min(one.born_at_ms, one.stored_at_ms) if one.born_at_ms else one.stored_at_ms
        at_ms = one.stored_at_ms if measure.time == "stored" else born_ms
        queue = (queue_set, one.queue_id) if "queue" in measure.by else (None, None)
        tag = one.tag if "tag" in measure.by else None
        groups[at_ms // window_ms * window_ms, one.topic, *queue, tag].append(one)
    return {key: _row(found, measure.window_s) for key, found in groups.items()}


def _row(messages: Sequence[Seen], window_s: float) -> dict[str, Any]:
    sizes = sorted(one.size for one in messages)
    raw = [one.stored_at_ms - one.born_at_ms for one in messages if one.born_at_ms]
    latencies = sorted(max(0, one) for one in raw)
    return {
        "messages": len(messages),
        "messages_per_s": pytest.approx(len(messages) / window_s),
        "bytes": sum(sizes),
        "bytes_per_s": pytest.approx(sum(sizes) / window_s),
        "size_avg": pytest.approx(sum(sizes) / len(sizes)),
        "size_p50": _percentile(sizes, 0.5),
        "size_p99": _percentile(sizes, 0.99),
        "size_max": sizes[-1],
        "latency_p50_ms": _percentile(latencies, 0.5),
        "latency_p95_ms": _percentile(latencies, 0.95),
        "latency_p99_ms": _percentile(latencies, 0.99),
        "latency_max_ms": latencies[-1] if latencies else None,
        "skewed": sum(one < 0 for one in raw),
    }


def _percentile(ordered: Sequence[int], share: float) -> int | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _found(made: pa.Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The same of what was made; each key once."""
    rows = {}
    for row in made.to_pylist():
        start_ms = round(row.pop("window_start").timestamp() * 1000)
        key = (start_ms, *(row.pop(name) for name in ("topic", "broker_set", "queue_id", "tag")))
        row.pop("window_end"), row.pop("lag"), row.pop("is_complete")
        assert key not in rows
        rows[key] = row
    return rows


# -- messages --------------------------------------------------------------------------------------


def _message(born_s: float, size: int = 10, tag: str = "") -> Message:
    return Message(body=b"x" * size, tag=tag, born_at_ms=_START_MS + round(born_s * 1000))


def _stored(broker: BrokerProcess, topic: str) -> list[Seen]:
    """All messages, read by the client."""
    found = []
    with PullConsumer(broker.address) as consumer:
        for ref, end in consumer.find_offsets(topic, "latest").items():
            queue_offset = 0
            while queue_offset < end:
                answer = consumer.pull(topic, ref.queue_id, queue_offset, max_messages=1000)
                queue_offset = answer.next_offset
                found += [
                    Seen(
                        topic,
                        ref.queue_id,
                        one.tag,
                        len(one.body),
                        one.born_at_ms,
                        one.stored_at_ms,
                    )
                    for one in answer.messages
                ]
    return found


def _sent(broker: BrokerProcess, topic: str) -> list[Any]:
    """Figures on a topic, of one queue."""
    with PullConsumer(broker.address) as consumer:
        return [
            json.loads(one.body)
            for ref in consumer.queues(topic)
            for one in consumer.pull(topic, ref.queue_id, 0, max_messages=1000).messages
        ]


def _seconds(message: Seen) -> float:
    return (message.born_at_ms - _START_MS) / 1000


def _born_since(messages: Iterable[Seen], start_s: float, end_s: float = 1e9) -> list[Seen]:
    start_ms, end_ms = _START_MS + start_s * 1000, _START_MS + end_s * 1000
    return [one for one in messages if start_ms <= one.born_at_ms < end_ms]


# -- tests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_of", "by"), [("stored", []), ("born", ["tag"]), ("stored", ["queue", "tag"])]
)
def test_figures_are_those_of_plain_python_on_random_messages(
    spark: SparkSession, time_of: Any, by: list[Any]
) -> None:
    rnd = random.Random(len(by))
    messages = []
    for _ in range(3_000):
        stored_at_ms = _START_MS + rnd.randrange(100_000)
        # Some clocks are ahead, by a second or a year; some messages have no time of birth.
        latency_ms = rnd.choice([rnd.randrange(5_000), -rnd.randrange(2_000), -31_536_000_000])
        born_at_ms = rnd.choice([0, stored_at_ms - latency_ms, stored_at_ms - latency_ms])
        place = (rnd.choice("ab"), rnd.randrange(3), rnd.choice(["", "x", "y"]))
        messages.append(Seen(*place, rnd.randrange(500), born_at_ms, stored_at_ms))
    moment = pa.timestamp("ms", tz="UTC")
    frame = spark.createDataFrame(
        pa.table(
            {
                "topic": [one.topic for one in messages],
                "broker_set": ["set-0"] * len(messages),
                "queue_id": pa.array([one.queue_id for one in messages], pa.int32()),
                "tag": [one.tag or None for one in messages],
                "body": [b"x" * one.size for one in messages],
                "born_at": pa.array([one.born_at_ms for one in messages], moment),
                "stored_at": pa.array([one.stored_at_ms for one in messages], moment),
            }
        )
    )
    measure = Measure(20, 30, time_of, frozenset(by))
    made = collected(figures(frame, measure), measure, is_final=False)
    assert _found(made) == _expected(messages, measure, "set-0")
    closed_ms = max(one.stored_at_ms for one in messages) - 30_000
    for row in made.to_pylist():
        assert row["is_complete"] == (row["window_end"].timestamp() * 1000 <= closed_ms)


class Crash(Exception):
    """A crash of the driver, behind the writes of a batch and before Spark knows that it is
    done.
    """


class Crashing(Measuring):
    def take(self, frame: DataFrame, batch_id: int) -> None:
        super().take(frame, batch_id)
        if self.completed():
            raise Crash


def _measured(spark: SparkSession, measuring: Measuring, checkpoint: Path) -> Measuring:
    """One run, until nothing is left."""
    writer = measuring.writer(spark, {"startingOffsets": "earliest"})
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    running = query.start()
    try:
        running.awaitTermination(_DEADLINE_S)
    finally:
        measuring.count_late(running.recentProgress)
    measuring.completed()
    measuring.finish(spark)
    return measuring


def test_windows_are_written_once_and_late_messages_are_counted(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    create_topic(broker.address, "shop", 2)
    create_topic(broker.address, "figures", 2)
    measure = Measure(10, 20, "born", frozenset(["tag"]))
    wanted = Wanted(
        ConnectionOptions(broker.address), {"subscribe": "shop"}, measure, ["readers", "nobody"]
    )
    files = FigureFiles(tmp_path)
    checkpoint = tmp_path / "_checkpoint"

    def run(kind: type[Measuring] = Measuring) -> Measuring:
        measuring = kind(wanted, checkpoint, files=files, topic="figures")
        return _measured(spark, measuring, checkpoint)

    # Windows over midnight; the newest message closes those that end at 60 s.
    send(broker.address, "shop", 0, [_message(at / 4, at, "ab"[at % 2]) for at in range(300)])
    send(broker.address, "shop", 1, [_message(at, round(at * 9)) for at in (3, 55, 59.999, 60, 80)])
    with PullConsumer(broker.address, "readers") as readers:
        readers.commit({("shop", 0): 100, ("shop", 1): 2})
    with pytest.raises(StreamingQueryException, match="Crash"):
        run(Crashing)
    with PullConsumer(broker.address, "readers") as readers:
        readers.commit({("shop", 0): 200})
    first = run()
    assert (first.late, first.windows) == (0, 6)
    everything = _stored(broker, "shop")
    assert _found(files.read()) == _expected(everything, measure)
    complete = files.read().filter(pa.compute.field("is_complete"))
    assert _found(complete) == _expected(_born_since(everything, 0, 60), measure)
    # As it was when the batch ran first: a repetition has the same.
    assert {tuple(row["lag"]) for row in complete.to_pylist()} == {(("readers", 203),)}

    # A late one in a window that is closed, one that is in time, and one that closes the rest.
    send(broker.address, "shop", 0, [_message(59), _message(1), _message(61), _message(200)])
    late = [Seen("shop", 0, "", 10, _START_MS + at, 0) for at in (59_000, 1_000)]
    second = run()
    assert (second.late, second.windows) == (2, 3)
    in_time = everything + _born_since(_stored(broker, "shop")[300:304], 60)
    counted = [one for one in _stored(broker, "shop") if one._replace(stored_at_ms=0) not in late]
    assert len(counted) == len(in_time) == 307
    assert _found(files.read()) == _expected(counted, measure)
    open_rows = files.read().filter(~pa.compute.field("is_complete"))
    assert _found(open_rows) == _expected(_born_since(counted, 200), measure)

    # Nothing new: nothing changes.
    before = files.read()
    third = run()
    assert (third.rows, third.late) == (0, 0)
    assert files.read() == before

    # On the topic: the complete ones, once, in order.
    complete = files.read().filter(pa.compute.field("is_complete"))
    assert _sent(broker, "figures") == documents(complete)

    # Any reader has the same.
    assert (
        len(pd.read_parquet(tmp_path)) == spark.read.parquet(str(tmp_path)).count() == len(before)
    )

    # Other windows in the same place are refused.
    other = Wanted(ConnectionOptions(broker.address), {"subscribe": "shop"}, Measure(5, 20, "born"))
    with pytest.raises(MqSparkError, match=r"was begun with windows of 10000 ms .* by tag"):
        Measuring(other, checkpoint, files=files)
    with pytest.raises(MqSparkError, match="is not its checkpoint"):
        Measuring(wanted, tmp_path / "_other", files=files)
    assert files.read() == before


def test_a_look_at_what_is_there_has_open_windows_and_lags_by_queue(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    create_topic(broker.address, "looked-at", 2)
    create_topic(broker.address, "empty", 1)
    send(broker.address, "looked-at", 1, [_message(0), _message(400)])
    with PullConsumer(broker.address, "lookers") as lookers:
        lookers.commit({("looked-at", 1): 1})
    source = {"subscribePattern": "looked.*|empty"}
    measure = Measure(60, 120, "stored", frozenset(["queue"]))
    made = measured(
        spark, Wanted(ConnectionOptions(broker.address), source, measure, ["lookers"]), {}
    )
    assert _found(made) == _expected(
        _stored(broker, "looked-at"), measure, made["broker_set"][0].as_py()
    )
    assert {tuple(row["lag"]) for row in made.to_pylist()} == {(("lookers", 1),)}
    assert not any(made["is_complete"].to_pylist())
    empty = Wanted(ConnectionOptions(broker.address), {"subscribe": "empty"}, measure, ["lookers"])
    assert len(measured(spark, empty, {})) == 0


def test_late_are_those_that_the_windows_lack_also_in_batches_one_after_the_other(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    create_topic(broker.address, "in-twos", 1)
    # Batches of two; what closes a window does not make those of the same batch late.
    moments = (1, 100, 75, 200, 5, 76, 150)
    send(broker.address, "in-twos", 0, [_message(at) for at in moments])
    source = {"subscribe": "in-twos", "maxOffsetsPerTrigger": "2"}
    files = FigureFiles(tmp_path)
    wanted = Wanted(ConnectionOptions(broker.address), source, Measure(10, 20, "born"))
    measuring = Measuring(wanted, tmp_path / "_checkpoint", files=files)
    writer = measuring.writer(spark, {"startingOffsets": "earliest"})
    query = writer.option("checkpointLocation", str(tmp_path / "_checkpoint"))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination(_DEADLINE_S)
    measuring.finish(spark)
    assert measuring.count_late(running.recentProgress) == 3
    assert measuring.count_late(running.recentProgress) == 3
    counted = [one for one in _stored(broker, "in-twos") if _seconds(one) in (1, 100, 75, 200)]
    assert _found(files.read()) == _expected(counted, wanted.measure)


def test_a_run_that_is_killed_goes_on_and_each_window_is_there_once(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    create_topic(broker.address, "killed", 2)
    files = FigureFiles(tmp_path)
    command = ["metrics", "--topics", "killed", "--server", broker.address, "--window", "10s"]
    command += ["--watermark", "20s", "--time", "born"]
    command += ["--to", str(tmp_path), "--to-topic", "killed-figures"]
    send(broker.address, "killed", 0, [_message(at, at) for at in range(90)])
    outputs = tmp_path / "_outputs"
    outputs.mkdir()
    with SparkCommand(outputs, *command, "--every", "200ms") as running:
        deadline = time.monotonic() + _DEADLINE_S
        while files.is_empty and time.monotonic() < deadline and running.is_running:
            time.sleep(0.05)
        # In the middle of a batch, or before it.
        send(broker.address, "killed", 1, [_message(at, 500 + at) for at in range(80, 300)])
        assert running.is_running, running.errors
        running.kill()
    assert not files.is_empty

    with SparkCommand(outputs, *command, "--once", "--json", "--last", "100") as again:
        told = json.loads(again.result())
        assert "rows of windows that are still open" in again.errors
    stored = _stored(broker, "killed")
    assert _found(files.read()) == _expected(stored, Measure(10, 20, "born"))
    assert told == documents(files.read())
    assert _sent(broker, "killed-figures") == [one for one in told if one["is_complete"]]
