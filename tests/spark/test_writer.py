"""`df.write`, `df.writeStream` and `mq_spark.sink` with a real broker: what rows become, and what
is told when they cannot. Crashes are in `test_exactly_once`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

import mq_spark
from mq.client import Admin, Message, Producer, PullConsumer, ReceivedMessage
from mq.client.encode import MESSAGE_BYTES_MAX
from mq_spark.errors import MqSparkError, explain
from tests.conformance.calls import CHANNEL_OPTIONS, Calls
from tests.spark.stored import bodies, count, stored
from tests.support.broker_process import BrokerProcess

DEADLINE_S = 60
COLUMNS = (
    "body string, keys array<string>, tag string, ordering_key string, "
    "properties map<string,string>, born_at timestamp"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


def write(frame: DataFrame, broker: BrokerProcess, **options: str) -> None:
    options = {"servers": broker.address, **options}
    frame.write.format("mq").mode("append").options(**options).save()


def told(action: Callable[[], object]) -> str:
    """The one line of the error that it ends with."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        action()
    assert "Traceback" not in str(caught.value)
    return explain(caught.value)


def messages(broker: BrokerProcess, topic: str) -> list[ReceivedMessage]:
    """In the order of their bodies."""
    found = [one for queue in stored(broker.address, topic).values() for one in queue]
    return sorted(found, key=lambda one: one.body)


def content(message: ReceivedMessage) -> tuple[object, ...]:
    """The fields that its producer gave."""
    return (
        message.body,
        message.tag,
        message.keys,
        dict(message.properties),
        message.ordering_key,
        message.born_at_ms,
    )


def send_all_kinds(broker: BrokerProcess, topic: str) -> None:
    """Messages "n00" to "n19" with and without what they may have; tags a and b take turns."""
    with Producer(broker.address) as producer:
        for number in range(20):
            message = Message(
                b"n%02d" % number,
                tag="ab"[number % 2],
                keys=[f"k{number}", "all"][: number % 3],
                properties={"n": str(number)} if number % 4 else {},
                ordering_key=f"o{number % 5}" if number % 5 else "",
            )
            producer.send(topic, message)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- df.write --------------------------------------------------------------------------------------


def test_columns_become_messages(spark: SparkSession, broker: BrokerProcess) -> None:
    born_at = dt.datetime(2020, 1, 2, 3, 4, 5, 678_000, dt.UTC)
    before_1970 = dt.datetime(1969, 12, 31, tzinfo=dt.UTC)
    rows = [
        ("", [], "", "", {}, before_1970),
        ("all", ["a", "b"], "é", "o", {"p": "q", "empty": ""}, born_at),
        ("none", None, None, None, None, None),
    ]
    before_ms = now_ms()
    write(spark.createDataFrame(rows, COLUMNS), broker, topic="columns")
    empty, whole, bare = messages(broker, "columns")
    assert content(empty) == (b"", "", (), {}, "", -86_400_000)
    properties = {"p": "q", "empty": ""}
    assert content(whole) == (b"all", "é", ("a", "b"), properties, "o", 1_577_934_245_678)
    assert content(bare)[:-1] == (b"none", "", (), {}, "")
    assert before_ms <= bare.born_at_ms <= now_ms()


def test_rows_of_an_ordering_key_stand_in_order_in_the_queue_of_a_producer(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("ordered", 4)
    rows = spark.range(0, 200, 1, 1).selectExpr(
        "format_string('%03d', id) body",
        "if(id % 8 = 7, null, concat('key-', id % 8)) ordering_key",
    )
    write(rows, broker, topic="ordered")
    queues: dict[str, set[int]] = {}
    for ref, queue in stored(broker.address, "ordered").items():
        for key in {one.ordering_key for one in queue}:
            queues.setdefault(key, set()).add(ref.queue_id)
            of_key = [one.body for one in queue if one.ordering_key == key]
            assert of_key == sorted(of_key)
    assert len(bodies(broker.address, "ordered")) == 200
    del queues[""]
    with Producer(broker.address) as producer:
        sent = {
            key: {producer.send("ordered", Message(b"", ordering_key=key)).queue_id}
            for key in queues
        }
    assert len(queues) == 7
    assert sent == queues
    assert len({min(ids) for ids in queues.values()}) > 1


def test_each_row_goes_to_the_topic_of_its_column(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = spark.range(0, 30, 1, 2).selectExpr(
        "encode(format_string('%02d', id), 'utf-8') body",
        "if(id % 2 = 0, concat('k', id), null) keys",
        "map('n', cast(id as string)) properties",
        "concat('column-', id % 3) topic",
    )
    before_ms = now_ms()
    write(rows, broker)
    for number in range(3):
        found = messages(broker, f"column-{number}")
        assert [content(one)[:-1] for one in found] == [
            (b"%02d" % at, "", (f"k{at}",) if at % 2 == 0 else (), {"n": str(at)}, "")
            for at in range(number, 30, 3)
        ]
        assert all(before_ms <= one.born_at_ms <= now_ms() for one in found)


def test_large_bodies_are_compressed_and_the_largest_is_stored(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("large", 1)
    size = MESSAGE_BYTES_MAX
    rows = spark.range(0, 2, 1, 1).selectExpr(f"if(id = 0, 'small', repeat('a', {size})) body")
    write(rows, broker, topic="large")
    write(rows, broker, topic="large", compressAboveBytes=str(size))
    assert bodies(broker.address, "large") == sorted([b"small", b"a" * size] * 2)
    with grpc.insecure_channel(broker.address, CHANNEL_OPTIONS) as channel:
        pulled = [
            Calls(channel)("Pull", topic="large", queue_offset=at).runs[0].messages[0]
            for at in range(4)
        ]
    assert [bool(one.compression) for one in pulled] == [False, True, False, False]
    assert len(pulled[1].body) < size // 100


def test_rows_that_were_read_are_written_as_they_are(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    send_all_kinds(broker, "original")
    options = {"servers": broker.address, "subscribe": "original", "includeProperties": "true"}
    write(spark.read.format("mq").options(**options).load(), broker, topic="copy")
    copies = [content(one) for one in messages(broker, "copy")]
    assert copies == [content(one) for one in messages(broker, "original")]
    assert len(copies) == 20


def test_a_job_with_a_version_is_stored_once_and_others_as_often_as_they_run(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) body")
    version_1 = {"txnAppId": "app", "txnVersion": "1"}
    version_2 = {"txnAppId": "app", "txnVersion": str(2**30 + 1)}
    counts = []
    for options in (version_1, version_1, version_2, version_2, {}, {}):
        write(rows, broker, topic="versions", **options)
        counts.append(count(broker.address, "versions"))
    assert counts == [100, 100, 200, 200, 300, 400]


def test_a_topic_that_is_not_created_by_itself_must_be_there(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) body")
    with Admin(broker.address) as admin:
        admin.set_config("broker.auto_create_topics", "no")
        try:
            error = told(lambda: write(rows, broker, topic="nowhere"))
            # No rows need no topic.
            write(rows.where("body = 'none'"), broker, topic="nowhere")
        finally:
            admin.set_config("broker.auto_create_topics", "yes")
        assert "nowhere" not in [one.info.topic for one in admin.list_topics()]
    assert error == "rows cannot be written: topic nowhere does not exist: create it first"


def test_rows_that_a_failing_task_holds_are_not_stored_as_if_they_were_all(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("broken", 4)
    servers, deadline_s = broker.address, time.monotonic() + DEADLINE_S

    def break_off(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with PullConsumer(servers) as consumer:
            yield from itertools.islice(batches, 4)
            # The writer has stored some of them, and waits for more to go with the others.
            while not sum(consumer.find_offsets("broken", "latest").values()):
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            raise RuntimeError("no more")

    rows = spark.range(0, 600, 1, 2).selectExpr("rpad(id, 4000, '.') body")
    job = {"topic": "broken", "txnAppId": "broken", "txnVersion": "1"}
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(setting, "50")
    try:
        with pytest.raises(PythonException, match="no more"):
            write(rows.mapInArrow(break_off, rows.schema), broker, **job)
        write(rows, broker, **job)
    finally:
        spark.conf.unset(setting)
    assert count(servers, "broken") == 600


@pytest.mark.parametrize(
    ("columns", "options", "error"),
    [
        (
            ["id value"],
            {},
            "there is no column body among value: name the one that has the content",
        ),
        (
            ["nullif(id, 1) || '' body"],
            {},
            "rows cannot be written: topic t: 1 of 3 rows have no body (null): filter them",
        ),
        (
            ["'a' body", "if(id = 1, null, 't') topic"],
            {"topic": ""},
            "column topic is null in 1 of 3 rows: fill it, or give option topic",
        ),
        (
            ["'a' body", "'a b' topic"],
            {"topic": ""},
            "rows cannot be written: topic 'a b' is not legal: use 1 to 127 of letters",
        ),
        (
            ["'a' body", "'%SYS%HALF' topic"],
            {"topic": ""},
            "rows cannot be written: topic %SYS%HALF is written by the broker alone",
        ),
        (
            ["'a' body"],
            {"servers": "127.0.0.1:1", "timeoutSeconds": "1"},
            "rows cannot be written: no broker answered within 1 s; tried 127.0.0.1:1",
        ),
    ],
)
def test_an_error_of_a_job_is_one_line(
    spark: SparkSession,
    broker: BrokerProcess,
    columns: list[str],
    options: dict[str, str],
    error: str,
) -> None:
    rows = spark.range(0, 3, 1, 1).selectExpr(*columns)
    given = {name: value for name, value in {"topic": "t", **options}.items() if value}
    assert told(lambda: write(rows, broker, **given)).startswith(error)
    assert count(broker.address, "t") == 0


def test_messages_are_not_replaced(spark: SparkSession, broker: BrokerProcess) -> None:
    writer = spark.range(1).selectExpr("'a' body").write.format("mq").mode("overwrite")
    error = told(writer.options(servers=broker.address, topic="t").save)
    assert error == "mode overwrite: messages are not replaced; use mode('append')"
    assert count(broker.address, "t") == 0


# -- df.writeStream --------------------------------------------------------------------------------


def test_a_stream_goes_from_topic_to_topic_and_on_where_it_was(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    def send() -> None:
        with Producer(broker.address) as producer:
            for number in range(20):
                producer.send("stream-in", Message(b"%02d" % number, tag="t", keys=["k"]))

    def run() -> None:
        frame = spark.readStream.format("mq").options(
            servers=broker.address, subscribe="stream-in", startingOffsets="earliest"
        )
        rows = frame.load().select("body", "keys", "tag")
        writer = rows.writeStream.format("mq").trigger(availableNow=True)
        query = writer.options(
            servers=broker.address, topic="stream-out", checkpointLocation=str(tmp_path)
        ).start()
        assert query.awaitTermination(DEADLINE_S)

    send()
    run()
    assert count(broker.address, "stream-out") == 20
    # Rows that are the same are not a repetition when they came again.
    send()
    run()
    copies = [content(one)[:-1] for one in messages(broker, "stream-out")]
    assert copies == [content(one)[:-1] for one in messages(broker, "stream-in")]
    assert len(copies) == 40


def test_an_error_of_a_stream_is_one_line(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    rates = spark.readStream.format("rate").load()
    counts = rates.groupBy("value").count().selectExpr("cast(value as string) body")

    def start(frame: DataFrame, mode: str, **options: str) -> None:
        options = {"servers": broker.address, "checkpointLocation": str(tmp_path / mode), **options}
        writer = frame.writeStream.format("mq").options(**options).outputMode(mode)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(DEADLINE_S)
        finally:
            query.stop()

    error = told(lambda: start(counts, "complete", topic="t"))
    assert error == "outputMode complete: messages are not replaced; use 'append'"
    error = told(lambda: start(rates, "append", topic="t"))
    assert error.startswith("there is no column body among timestamp, value: name the one")


# -- mq_spark.sink ---------------------------------------------------------------------------------


Sink = Callable[[DataFrame, int], None]


def run(spark: SparkSession, broker: BrokerProcess, directory: Path, sink: Sink) -> None:
    """All of topic "sink-in", in one batch."""
    source = spark.readStream.format("mq").options(
        servers=broker.address,
        subscribe="sink-in",
        startingOffsets="earliest",
        includeProperties="true",
    )
    writer = source.load().writeStream.foreachBatch(sink).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(directory)).start()
    assert query.awaitTermination(DEADLINE_S)


def sinks_of(broker: BrokerProcess) -> list[Sink]:
    """To "by-name", "by-expression", "by-function", "by-topic-a" and "-b", and "twice", twice."""

    def of_row(row: Row) -> Message | bytes | str:
        number = int(row.body[1:])
        if number % 3 == 0:
            return Message(row.body, tag="f", keys=row["keys"], properties=row["properties"])
        return bytes(row.body) if number % 3 == 1 else f"text {number:02}"

    to = partial(mq_spark.sink, servers=broker.address)
    text = fn.col("body").cast("string")
    return [
        to(
            topic="by-name",
            keys="keys",
            tag="tag",
            ordering_key="ordering_key",
            properties="properties",
            born_at="born_at",
        ),
        to(
            topic="by-expression",
            body=fn.upper(text),
            keys=fn.array("tag", text),
            tag=fn.lit("x"),
            properties=fn.create_map(fn.lit("tag"), "tag"),
        ),
        to(topic="by-function", message=of_row),
        to(topic_column=fn.concat(fn.lit("by-topic-"), "tag"), body=text),
        to(topic="twice", name="first"),
        to(topic="twice", name="second"),
    ]


def test_sinks_write_what_columns_or_a_function_say_and_need_names_to_share_a_topic(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    send_all_kinds(broker, "sink-in")
    to = partial(mq_spark.sink, servers=broker.address)
    errors: list[str] = []

    def write_all(frame: DataFrame, batch_id: int) -> None:
        frame.persist()
        for one in sinks_of(broker):
            one(frame, batch_id)
        # Another one to the same topic would be taken for a repetition of the first.
        errors.append(told(lambda: to(topic="by-name")(frame, batch_id)))
        # One that failed may be tried again.
        errors.append(told(lambda: to(topic="retried", body="queue_id")(frame, batch_id)))
        errors.append(told(lambda: to(topic="retried", body="nobody")(frame, batch_id)))
        to(topic="retried")(frame, batch_id)
        frame.unpersist()

    run(spark, broker, tmp_path, write_all)
    sent = messages(broker, "sink-in")
    assert [content(one) for one in messages(broker, "by-name")] == [content(one) for one in sent]
    assert [content(one)[:-1] for one in messages(broker, "by-expression")] == [
        (one.body.upper(), "x", (one.tag, one.body.decode()), {"tag": one.tag}, "") for one in sent
    ]
    whole = [(one.body, "f", one.keys, dict(one.properties), "") for one in sent[::3]]
    others = [one.body for one in sent[1::3]] + [b"text %02d" % at for at in range(2, 20, 3)]
    by_function = [content(one)[:-1] for one in messages(broker, "by-function")]
    assert [one for one in by_function if one[1]] == whole
    assert [one for one in by_function if not one[1]] == [(one, "", (), {}, "") for one in others]
    names = [one.body for one in sent]
    assert bodies(broker.address, "by-topic-a") == names[::2]
    assert bodies(broker.address, "by-topic-b") == names[1::2]
    assert bodies(broker.address, "twice") == sorted(names * 2)
    assert bodies(broker.address, "retried") == names
    assert errors[0] == (
        "batch 0 came to the sink by-name twice: the second one would pass for the first. Give "
        "each sink of a query a name of its own: sink(..., name=...)"
    )
    assert errors[1] == "column body is int: it must be binary or string"
    assert "nobody" in errors[2]


def test_a_sink_is_for_streams_only(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.range(1).selectExpr("'a' body")
    with pytest.raises(MqSparkError, match=r"is for foreachBatch .* use df.write.format\('mq'\)"):
        mq_spark.sink(servers=broker.address, topic="t")(rows, 0)


def test_a_thread_writes_when_it_has_asked_for_the_session(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    def work() -> None:
        mq_spark.session()
        write(spark.range(3).selectExpr("cast(id as string) body"), broker, topic="by-thread")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(DEADLINE_S)
    assert bodies(broker.address, "by-thread") == [b"0", b"1", b"2"]
