"""`spark.read.format("mq")` against a real broker."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from mq.client import Admin, Consumer, Message, Producer, SendResult
from mq_spark.errors import MqSparkError, explain
from mq_spark.options import read_options
from mq_spark.reading.cluster import Cluster
from mq_spark.schema import spark_schema
from mq_spark.source import MqDataSource
from tests.spark.streams import DEADLINE_S
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import poll

MESSAGES, QUEUES = 100, 4


class Topic:
    """Messages "0" to "99" of topic "t" in four queues: number n is in queue n % 4."""

    def __init__(self, spark: SparkSession, servers: str) -> None:
        self._spark = spark
        self.servers = servers
        self.sent: list[SendResult] = []
        with Admin(servers) as admin:
            for name in ("t", "empty", "t-other"):
                admin.create_topic(name, queues=QUEUES)
        with Producer(servers) as producer:
            for number in range(MESSAGES):
                message = Message(
                    str(number).encode(),
                    tag="even" if number % 2 == 0 else "",
                    keys=[f"k{number}"],
                    properties={"p": str(number)},
                )
                self.sent.append(producer.send("t", message, queue_id=number % QUEUES))
            producer.send("t-other", Message(b"other"))

    def read(self, **options: str) -> DataFrame:
        options = {"servers": self.servers, **options}
        return self._spark.read.format("mq").options(**options).load()

    def numbers(self, **options: str) -> list[int]:
        return sorted(int(row.body) for row in self.read(subscribe="t", **options).collect())

    def ends(self, topic: str) -> list[int]:
        """The ends of its queues; none while there is no such topic."""
        with Admin(self.servers) as admin:
            listed = [one.info.topic for one in admin.list_topics(include_internal=True)]
            found = admin.describe_topic(topic).queues if topic in listed else []
            return [int(one.end) for one in found]

    def fails(self, **options: str) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            self.read(**options).collect()
        assert "Traceback" not in str(caught.value)
        return explain(caught.value)


@pytest.fixture(scope="module")
def topic(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield Topic(spark, broker.address)


def offsets(*numbers: int) -> str:
    """The offsets of the queues of the topic; every other one without its set."""
    names = [f"set-0/{at}" if at % 2 else str(at) for at in range(QUEUES)]
    return json.dumps({"t": dict(zip(names, numbers, strict=True))})


def test_all_messages_of_a_topic_come_with_all_their_columns(topic: Topic) -> None:
    frame = topic.read(subscribe="t", includeProperties="true")
    assert frame.schema == spark_schema(with_properties=True)
    rows = {int(row.body): row for row in frame.collect()}
    assert sorted(rows) == list(range(MESSAGES))
    row, sent = rows[7], topic.sent[7]
    assert row["keys"] == ["k7"]
    assert row["properties"] == {"p": "7"}
    assert (row.topic, row.broker_set, row.queue_id) == ("t", "set-0", 3)
    assert (row.queue_offset, row.message_id) == (sent.queue_offset, sent.message_id)
    assert (row.tag, rows[8].tag, row.ordering_key) == (None, "even", None)
    stored_at = dt.datetime.fromtimestamp(sent.stored_at_ms / 1000, dt.UTC)
    assert row.stored_at.astimezone(dt.UTC) == stored_at
    assert row.delivery_attempt == 1


def test_ranges_are_given_by_offsets_or_by_time(topic: Topic) -> None:
    # Four queues with every fourth number each.
    ranged = topic.numbers(
        startingOffsets=offsets(-2, 0, 24, 25), endingOffsets=offsets(1, 2, -1, 25)
    )
    assert ranged == [0, 1, 5, 98]
    middle_ms = topic.sent[50].stored_at_ms
    first = sum(one.stored_at_ms < middle_ms for one in topic.sent)
    assert topic.numbers(endingTimestamp=str(middle_ms)) == list(range(first))
    later = dt.datetime.fromtimestamp(middle_ms / 1000, dt.UTC).isoformat()
    assert topic.numbers(startingTimestamp=later) == list(range(first, MESSAGES))


def test_small_queues_share_a_task_and_min_partitions_splits_them(topic: Topic) -> None:
    assert topic.read(subscribe="t").rdd.getNumPartitions() == 1
    split = topic.read(subscribe="t", minPartitions="10")
    assert split.rdd.getNumPartitions() == 10
    assert sorted(int(row.body) for row in split.collect()) == list(range(MESSAGES))


def test_topics_are_chosen_by_names_pattern_or_queues(topic: Topic) -> None:
    both = topic.read(subscribe="t, t-other,empty")
    assert both.count() == MESSAGES + 1
    assert topic.read(subscribePattern="t.+").collect()[0].body == b"other"
    assigned = topic.read(assign='{"t": ["set-0/1", 2]}').collect()
    assert sorted(int(row.body) % QUEUES for row in assigned) == [1] * 25 + [2] * 25
    # Nothing there at all is no mistake.
    assert topic.read(subscribe="empty").collect() == []


def test_tags_are_filtered_and_a_zone_without_brokers_is_no_hindrance(topic: Topic) -> None:
    assert topic.numbers(tags="even || none", zone="east") == list(range(0, MESSAGES, 2))


def test_a_message_that_is_tried_again_says_how_often(topic: Topic) -> None:
    with Consumer(topic.servers, "tries", "t-other", start="earliest") as consumer:
        for _ in range(2):
            (message,) = consumer.poll(1, DEADLINE_S)
            consumer.nack(message, 0.0)
        poll(lambda: topic.ends("%RETRY%tries") == [2], "two more attempts", DEADLINE_S)
    # By name only: a pattern does not match what is the broker's own.
    rows = topic.read(subscribe="%RETRY%tries,t-other").collect()
    found = sorted((row.topic, row.delivery_attempt, bytes(row.body)) for row in rows)
    again = [("%RETRY%tries", attempt, b"other") for attempt in (2, 3)]
    assert found == [*again, ("t-other", 1, b"other")]
    assert topic.read(subscribePattern=".*tries|t-other").count() == 1


def test_an_error_is_one_line(topic: Topic) -> None:
    assert topic.fails(subscribe="nope") == (
        "topic nope does not exist: create it (mq topic create NAME), or correct subscribe"
    )
    outside = topic.fails(subscribe="t", endingOffsets=offsets(25, 26, 0, 0))
    assert "endingOffsets is out of range: t set-0/1 at 26 (it has 0 to 25)" in outside
    schema = topic._spark.read.format("mq").schema("body binary")
    with pytest.raises(Exception, match="leave schema") as caught:
        schema.options(servers=topic.servers, subscribe="t").load().collect()
    assert "the columns of format mq are" in explain(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "", "subscribePattern": "x.*"}, "'x.*' matches none of the topics"),
        (
            {"startingOffsets": '{"t": {"0": 1, "1": 1}}'},
            "startingOffsets must name every queue: add t set-0/2, t set-0/3",
        ),
        (
            {"startingOffsets": '{"t": {"0": 1, "7": 1}}'},
            "startingOffsets: there is no queue t 7; there are: t set-0/0",
        ),
        (
            {"endingOffsets": '{"u": {"0": 1}}'},
            "endingOffsets: topic u is not among those that are read: t",
        ),
        ({"subscribe": "", "assign": '{"t": ["b/0"]}'}, "assign: there is no queue t b/0"),
        ({"subscribe": "", "assign": '{"u": [0]}'}, "topic u does not exist"),
        (
            {"startingOffsets": offsets(0, 5, 0, 0), "endingOffsets": offsets(0, 4, 0, 0)},
            "t set-0/1 is 5, which is behind its endingOffsets, 4",
        ),
        ({"startingOffsets": "latest"}, "leaves nothing to read"),
        ({"path": "/nowhere"}, "servers and path are both given"),
    ],
)
def test_a_mistake_is_named(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], told: str
) -> None:
    # It is set where an error is to be told without its trace: here it is to last no longer.
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    source = MqDataSource({"servers": topic.servers, "subscribe": "t", **options})
    with pytest.raises(MqSparkError) as caught:
        source.reader(source.schema()).partitions()
    assert told in str(caught.value)


def test_offsets_out_of_range_are_brought_inside_where_loss_is_allowed(topic: Topic) -> None:
    found = topic.numbers(
        startingOffsets=offsets(24, 25, 25, 99),
        endingOffsets=offsets(99, 25, 25, 25),
        failOnDataLoss="false",
    )
    assert found == [96]


def test_a_broker_that_is_not_there_is_named() -> None:
    options = read_options({"servers": "127.0.0.1:1", "subscribe": "t"})
    with (
        pytest.raises(MqSparkError) as caught,
        Cluster(options, patience_s=1.0) as cluster,
    ):
        cluster.check(all_exist=True)
    assert str(caught.value).startswith(
        "servers = 127.0.0.1:1: no answer within 1 s; is a broker running there?"
    )
