"""Streams while leaders die, and while brokers of another set take part."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mq.client import Admin, Message, Producer, QueueRef
from mq_spark.errors import MqSparkError
from mq_spark.options import connection_of
from mq_spark.reading import ranges
from mq_spark.source import MqDataSource
from tests.spark.streams import DEADLINE_S, Steps, Stream
from tests.support.broker_cluster import BrokerCluster
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import poll
from tests.support.topics import create_topic, send

# So long that an answer of a broker has a small part of what is in a queue.
_LONG_BYTES, LONG = 16 << 10, 1_000


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSet]:
    """Each in a zone of its own."""
    made = BrokerSet(tmp_path_factory.mktemp("brokers"))
    for name, node in made.nodes.items():
        node._flags += ("--broker-zone", f"zone-{name}")
    with made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    flags = ("--broker-auto-create-topics", "no")
    with BrokerCluster(tmp_path_factory.mktemp("sets"), "a", "b", flags=flags) as made:
        yield made


@pytest.fixture(autouse=True)
def _traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of this process are told with their traces again after a test."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


class Sender:
    """Sends small messages, one after the other, until it is told to stop; all are acknowledged."""

    def __init__(self, servers: str, topic: str) -> None:
        self.sent: list[bytes] = []
        self._servers, self._topic = servers, topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        with Producer(self._servers, timeout_s=DEADLINE_S) as producer:
            while not self._is_over.wait(0.01):
                body = b"small %d" % len(self.sent)
                producer.send(self._topic, Message(body))
                self.sent.append(body)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


def held(signs: Path) -> Callable[[DataFrame], DataFrame]:
    """A task stands still after the first of the long messages, until there is a file `go`."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if batch.column("body")[-1].as_buffer().size >= _LONG_BYTES:
                (signs / "held").touch()
                while not (signs / "go").exists():
                    time.sleep(0.02)

    return lambda frame: frame.mapInArrow(pass_on, frame.schema)


def wait(query: StreamingQuery, question: Callable[[], object], what: str) -> None:
    def answer() -> object:
        assert query.isActive, query.exception()
        return question()

    poll(answer, what, DEADLINE_S)


def test_a_stream_goes_on_over_killed_leaders_and_has_each_message_once(
    spark: SparkSession, brokers: BrokerSet, tmp_path: Path
) -> None:
    servers = brokers.servers
    with Admin(servers) as admin:
        admin.create_topic("t", 4)
    stream = Stream(spark, tmp_path / "checkpoint", held(tmp_path))
    options = {"servers": servers, "subscribe": "t", "startingOffsets": "earliest", "group": "g"}
    rows_a_batch = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(rows_a_batch, "100")
    query = stream.start(options, trigger={"processingTime": "200 milliseconds"})
    spark.conf.unset(rows_a_batch)
    sender = Sender(servers, "t")
    try:
        wait(query, lambda: len(stream.batches) > 2, "some batches")
        # While there is nothing to read, and no leader until they are back: the driver has to be
        # patient.
        sender.stop()
        first = sender.sent
        wait(query, lambda: len(stream.rows) == len(first), "all of the first messages")
        killed = [brokers.kill_leader()]
        killed += brokers.others(*killed)[:1]
        brokers.nodes[killed[1]].kill()
        sender = Sender(servers, "t")
        brokers.start(*killed)
        wait(query, lambda: len(stream.rows) > len(first), "messages of the second leader")

        # While tasks read, and messages come in.
        long = [b"long %d" % number for number in range(LONG)]
        with Producer(servers) as producer:
            for body in long:
                producer.send_async("t", body.ljust(_LONG_BYTES, b"."), queue_id=0)
        wait(query, (tmp_path / "held").exists, "a task in the middle of a queue")
        dead = brokers.kill_leader()
        (tmp_path / "go").touch()
        count = len(sender.sent)
        poll(lambda: len(sender.sent) > count + 10, "messages of the third leader", DEADLINE_S)
        sender.stop()
        brokers.start(dead)
        sent = Counter([*first, *sender.sent, *long])
        wait(query, lambda: len(stream.rows) >= sent.total(), "all messages")
    finally:
        (tmp_path / "go").touch()
        sender.stop()
        query.stop()
    assert Counter(body.rstrip(b".") for body in stream.bodies) == sent


def test_a_reader_of_a_zone_reads_there_and_goes_on_when_that_broker_dies(
    brokers: BrokerSet,
) -> None:
    leader = brokers.leader()
    near = brokers.others(leader)[0]
    create_topic(brokers.address(leader), "near", 1)
    sent = [b"%d" % number for number in range(20)]
    send(brokers.address(leader), "near", 0, sent[:10])
    brokers.wait_same()
    # The leader is asked first, which knows the near replicas.
    steps = Steps(
        {
            "servers": brokers.address(leader),
            "subscribe": "near",
            "startingOffsets": "earliest",
            "zone": f"zone-{near}",
            "maxOffsetsPerTrigger": "5",
        }
    )
    planned = steps.plan()
    assert steps.read(planned) == sent[:5]
    scanner = ranges._scanner(connection_of(steps.options))
    there = {QueueRef("near", 0, "set-0"): brokers.address(near)}

    def is_near() -> bool:
        assert steps.read(planned) == sent[:5]
        return scanner._client._reads._addresses == there

    # Once the leader has heard how far the others are.
    poll(is_near, "it is read in the zone", DEADLINE_S)
    assert steps.step() == sent[5:10]
    assert scanner._client._reads._addresses == there
    brokers.nodes[near].kill()
    send(brokers.address(leader), "near", 0, sent[10:])
    assert steps.step() + steps.step() == sent[10:]
    brokers.start(near)


def test_a_topic_that_another_set_gets_is_taken_up_by_a_running_stream(
    cluster: BrokerCluster,
) -> None:
    a, b = (cluster.sets[name].servers for name in "ab")
    create_topic(a, "grows", 2)
    send(a, "grows", 0, [b"a0"])
    # One broker is enough, of whichever set.
    steps = Steps(
        {"servers": b, "subscribe": "grows", "startingOffsets": "earliest", "group": "growing"}
    )
    plain = Steps({"servers": a, "assign": '{"grows": [0]}', "startingOffsets": "earliest"})
    assert steps.step() == plain.step() == [b"a0"]
    create_topic(b, "grows", 2)
    send(b, "grows", 0, [b"b0"])
    send(b, "grows", 1, [b"b1"])
    send(a, "grows", 0, [b"a1"])
    found: list[bytes] = []

    def step() -> bool:
        found.extend(steps.step())
        return len(found) >= 3

    poll(step, "messages of both sets", DEADLINE_S)
    assert sorted(found) == [b"a1", b"b0", b"b1"]
    assert steps.at["queues"] == {"grows": {"a/0": 2, "a/1": 0, "b/0": 1, "b/1": 1}}
    assert steps.step() == []
    with Admin(a) as admin:
        queues = admin.describe_group("growing").queues
    committed = [(one.broker_set, one.queue_id, one.committed) for one in queues]
    assert committed == [("a", 0, 2), ("a", 1, 0), ("b", 0, 1), ("b", 1, 1)]
    # A queue that was named without its set stays the one that it was,
    assert plain.step() == [b"a1"]
    assert plain.at["queues"] == {"grows": {"a/0": 2}}
    # but a new query has to say which one is meant.
    plain.restart()
    with pytest.raises(MqSparkError, match="assign: topic grows is in several broker sets"):
        plain.step()


def test_a_batch_reads_a_topic_of_two_sets(spark: SparkSession, cluster: BrokerCluster) -> None:
    for name in "ab":
        create_topic(cluster.sets[name].servers, "both", 1)
        send(
            cluster.sets[name].servers, "both", 0, [b"%s%d" % (name.encode(), at) for at in (0, 1)]
        )
    cluster.wait_known("both")
    options = {"servers": cluster.sets["a"].servers, "subscribe": "both"}
    rows = spark.read.format("mq").options(**options).load().collect()
    assert sorted((row.broker_set, row.queue_offset, bytes(row.body)) for row in rows) == [
        ("a", 0, b"a0"),
        ("a", 1, b"a1"),
        ("b", 0, b"b0"),
        ("b", 1, b"b1"),
    ]

    def read(**offsets: dict[str, int]) -> list[bytes]:
        given = {name: json.dumps({"both": places}) for name, places in offsets.items()}
        source = MqDataSource(options | given)
        reader = source.reader(source.schema())
        read = [batch for one in reader.partitions() for batch in reader.read(one)]
        return sorted(row["body"] for row in pa.Table.from_batches(read).to_pylist())

    assert read(startingOffsets={"a/0": 1, "b/0": -2}) == [b"a1", b"b0", b"b1"]
    assert read(endingOffsets={"a/0": 0, "b/0": 1}) == [b"b0"]
    with pytest.raises(MqSparkError) as caught:
        read(startingOffsets={"0": 1})
    assert str(caught.value) == (
        "startingOffsets: topic both is in several broker sets: say which one has queue 0, as in "
        "'a/0'"
    )
    with pytest.raises(MqSparkError, match="endingOffsets must name every queue: add both b/0"):
        read(endingOffsets={"a/0": 1})
