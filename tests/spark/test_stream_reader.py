"""`spark.readStream.format("mq")` against a real broker: batches, restarts, queues that come."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from mq.client import Admin, Message, Producer
from mq.wire.v1.admin_pb2 import GroupQueue
from tests.spark.streams import DEADLINE_S, Stream
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import poll


class Broker:
    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = Admin(servers)
        self.producer = Producer(servers)

    def send(self, topic: str, numbers: range, queues: int) -> None:
        """Number n goes to queue n % queues."""
        for number in numbers:
            message = Message(str(number).encode(), tag="ab"[number % 2])
            self.producer.send_async(topic, message, queue_id=number % queues)
        self.producer.flush()

    def group(self, group: str) -> list[GroupQueue]:
        return list(self.admin.describe_group(group).queues)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        made = Broker(process.address)
        with made.admin, made.producer:
            yield made


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path / "checkpoint")


def numbers(count: int) -> list[bytes]:
    return sorted(str(number).encode() for number in range(count))


def test_a_stream_continues_where_it_stopped_under_changed_options(
    broker: Broker, stream: Stream
) -> None:
    broker.admin.create_topic("t", queues=2)
    broker.send("t", range(100), 2)
    options = {
        "servers": broker.servers,
        "subscribe": "t",
        "startingOffsets": "earliest",
        "group": "readers",
    }

    # Admission control: 100 messages in batches of no more than 40, of both queues.
    stream.run(options | {"maxOffsetsPerTrigger": "40"})
    assert {key: len(rows) for key, rows in stream.batches.items()} == {0: 40, 1: 40, 2: 20}
    assert {row.queue_id for row in stream.batches[0]} == {0, 1}
    assert {row.partition for row in stream.batches[0]} == {0}
    assert stream.bodies == numbers(100)
    assert stream.logged_offset(2) == {
        "layout": {"minPartitions": None, "queuesPerTask": 64, "rowsPerTask": 20_000},
        "queues": {"t": {"set-0/0": 50, "set-0/1": 50}},
        "version": 1,
    }
    # The last batch, too: nothing is behind.
    assert [(one.committed, one.lag) for one in broker.group("readers")] == [(50, 0), (50, 0)]

    # Again, with nothing new; then with more messages, more queues and another layout.
    assert stream.run(options) == []
    broker.send("t", range(100, 150), 2)
    broker.admin.alter_topic("t", write_queues=4, read_queues=4)
    broker.send("t", range(150, 200), 4)
    changed = options | {"minPartitions": "6", "startingOffsets": "latest"}
    found = stream.run(changed)
    assert len(found) == 100
    assert stream.bodies == numbers(200)
    assert {row.queue_id for row in found} == {0, 1, 2, 3}
    assert len({row.partition for row in found}) == 6
    logged = stream.logged_offset(3)
    assert logged["begins"] == {"t": {"set-0/2": 0, "set-0/3": 0}}
    assert logged["layout"]["minPartitions"] == 6
    assert sum(one.lag for one in broker.group("readers")) == 0


def test_a_batch_that_was_not_finished_is_read_again_as_it_was(
    broker: Broker, stream: Stream
) -> None:
    broker.admin.create_topic("again", queues=2)
    broker.send("again", range(100), 2)
    options = {"servers": broker.servers, "subscribe": "again", "startingOffsets": "earliest"}
    stream.run(options | {"minPartitions": "4"})
    first = stream.batches.pop(0)
    # As after a crash: the batch was planned, and whether it was done is unknown.
    for name in ("0", ".0.crc"):
        (stream.directory / "commits" / name).unlink()
    broker.send("again", range(100, 110), 2)
    stream.run(options | {"minPartitions": "1", "maxOffsetsPerTrigger": "3"})
    assert sorted(stream.batches[0]) == sorted(first)
    assert {row.partition for row in first} == {0, 1, 2, 3}
    assert [len(rows) for key, rows in sorted(stream.batches.items())] == [100, 3, 3, 3, 1]
    assert stream.bodies == numbers(110)


def test_a_running_stream_sees_new_messages_queues_and_topics(
    broker: Broker, stream: Stream
) -> None:
    broker.admin.create_topic("live-a", queues=1)
    broker.send("live-a", range(10), 1)
    query = stream.start(
        {
            "servers": broker.servers,
            "subscribePattern": "live-.*",
            "tags": "a",
            "group": "live",
        },
    )
    try:
        # By default it begins at the latest message.
        poll(lambda: query.status["message"] != "Initializing sources", "it runs", DEADLINE_S)
        poll(lambda: _has_group(broker, "live"), "it has begun", DEADLINE_S)
        broker.send("live-a", range(10, 20), 1)
        poll(lambda: len(stream.rows) == 5, "new messages", DEADLINE_S)
        broker.admin.alter_topic("live-a", write_queues=2, read_queues=2)
        broker.send("live-a", range(20, 30), 2)
        broker.admin.create_topic("live-b", queues=1)
        broker.send("live-b", range(30, 40), 1)
        poll(lambda: len(stream.rows) >= 15, "new queues and topics", DEADLINE_S)
        # While it runs, without the next batch: the group has what is done, whatever the tags are.
        poll(lambda: sum(one.lag for one in broker.group("live")) == 0, "no lag", DEADLINE_S)
        report = query.lastProgress
        assert query.exception() is None
    finally:
        query.stop()
    assert [int(body) for body in stream.bodies] == list(range(10, 40, 2))
    assert {row.tag for row in stream.rows} == {"a"}
    assert report is not None


def _has_group(broker: Broker, group: str) -> bool:
    return any(one.group == group for one in broker.admin.list_groups())


def test_a_stream_begins_where_it_is_told(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    broker.admin.create_topic("begin", queues=2)
    broker.send("begin", range(10), 2)
    options = {"servers": broker.servers, "subscribe": "begin"}
    by_offset = Stream(spark, tmp_path / "offset")
    starting = '{"begin": {"set-0/0": 4, "1": -2}}'
    by_offset.run(options | {"startingOffsets": starting, "failOnDataLoss": "false"})
    assert [int(body) for body in by_offset.bodies] == [1, 3, 5, 7, 8, 9]
    last = broker.producer.send("begin", Message(b"10", properties={"p": "q"}))
    by_time = dt.datetime.fromtimestamp(last.stored_at_ms / 1000, dt.UTC).isoformat()
    frame = (
        spark.readStream.format("mq")
        .options(**options, startingTimestamp=by_time, includeProperties="true", zone="east")
        .load()
    )
    found: list[Row] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "time"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)
    assert [(bytes(row.body), row.properties) for row in found] == [(b"10", {"p": "q"})]
