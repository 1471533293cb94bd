"""Streams whose messages are gone: an error that says which, or what is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import randbytes

import pytest
from pyspark.sql import SparkSession

from mq.client import Admin, Consumer, Message, Producer
from mq.client.lowlevel import ConnectionOptions
from mq_spark.errors import MqSparkError, explain
from mq_spark.reading.group_progress import Progress
from mq_spark.source import MqDataSource
from tests.spark.streams import DEADLINE_S, Steps, Stream
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import poll

SMALL_LOG = (
    "--store-message-bytes-max=64KiB",
    "--store-entry-bytes-max=128KiB",
    "--store-segment-bytes=256KiB",
    "--store-checkpoint-log-bytes=256KiB",
    "--retention-check-ms=50",
)


class Broker:
    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = Admin(servers)
        # No batch that is more than one of the small entries of its log.
        self.producer = Producer(servers, batch_bytes=64 << 10)

    def make(self, topic: str, *bodies: bytes) -> None:
        self.admin.create_topic(topic, queues=1)
        self.send(topic, *bodies)

    def send(self, topic: str, *bodies: bytes) -> None:
        sent = [self.producer.send_async(topic, Message(one), queue_id=0) for one in bodies]
        self.producer.flush()
        assert [one.result().status for one in sent] == ["SEND_OK"] * len(bodies)

    def forget(self, topic: str, least: int) -> int:
        """At least so many messages of the topic, by retention; where its queue begins then."""

        def start() -> int:
            return int(self.admin.describe_topic(topic).queues[0].start)

        self.admin.set_config("retention.bytes", "600KiB")
        poll(lambda: start() >= least, "the oldest messages go", DEADLINE_S)
        self.admin.set_config("retention.bytes", "0")
        return start()

    def follow(self, *topics: str, **options: str) -> Steps:
        options = {"startingOffsets": "earliest", **options}
        return Steps({"servers": self.servers, "subscribe": ",".join(topics), **options})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *SMALL_LOG) as process:
        made = Broker(process.address)
        with made.admin, made.producer:
            yield made


@pytest.fixture(autouse=True)
def _traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of this process are told with their traces again after a test."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def test_a_topic_that_was_deleted_stops_the_stream_or_is_left_out(
    broker: Broker, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker.make("gone", b"1", b"2")
    broker.make("stays", b"3")
    steps = broker.follow("gone", "stays")
    planned = steps.plan()
    assert sorted(steps.read(planned)) == [b"1", b"2", b"3"]
    stream = Stream(spark, tmp_path / "checkpoint")
    options = {"servers": broker.servers, "subscribePattern": "gone|stays"}
    stream.run(options | {"startingOffsets": "earliest"})
    broker.admin.delete_topic("gone")
    broker.send("stays", b"4")

    lost = r"messages are lost: gone set-0/0 at 2 \(the queue is gone\); with failOnDataLoss"
    with pytest.raises(MqSparkError, match=lost):
        steps.step()
    with pytest.raises(MqSparkError, match=r"gone set-0/0 at 0 \(the queue is gone\)"):
        steps.read(planned)
    with pytest.raises(Exception, match="messages are lost") as caught:
        stream.run(options)
    assert explain(caught.value).startswith("messages are lost: gone set-0/0 at 2 (the queue is")

    steps.restart(failOnDataLoss="false")
    assert steps.step() == [b"4"]
    assert "messages are lost: gone set-0/0 at 2" in caplog.text
    assert steps.read(planned) == [b"3"]
    assert steps.step() == []
    # A topic of this name begins anew: all of it is read.
    broker.make("gone", b"5")
    poll(lambda: steps.step() == [b"5"], "the new topic", DEADLINE_S)
    assert {row.topic for row in stream.rows} == {"gone", "stays"}


def test_of_a_topic_that_was_made_anew_only_what_was_not_read_before_is_lost(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.make("anew", *(b"old" for _ in range(10)))
    steps = broker.follow("anew", maxOffsetsPerTrigger="5")
    planned = steps.plan()
    assert len(steps.read(planned)) == 5
    up_to_date = broker.follow("anew")
    assert len(up_to_date.step()) == 10
    # Its queues count on.
    broker.admin.delete_topic("anew")
    broker.make("anew", b"new", b"er")

    assert up_to_date.step() == [b"new", b"er"]
    with pytest.raises(MqSparkError, match=r"anew set-0/0 at 5 \(it has 10 to 12\)"):
        steps.step()
    steps.restart(failOnDataLoss="false", maxOffsetsPerTrigger="1")
    assert [steps.step(), steps.step(), steps.step()] == [[b"new"], [b"er"], []]
    assert "messages are lost: anew set-0/0 at 5" in caplog.text
    # What was planned before, and is read now.
    assert steps.read(planned) == []
    steps.restart(failOnDataLoss="true")
    with pytest.raises(MqSparkError, match=r"anew set-0/0 at 0 \(it has 10 to 12\)"):
        steps.read(planned)


def test_messages_that_are_kept_no_longer_are_a_loss(broker: Broker) -> None:
    broker.make("kept", *(b"%d" % number for number in range(10)))
    steps = broker.follow("kept", maxOffsetsPerTrigger="4")
    planned = steps.plan()
    assert steps.read(planned) == [b"0", b"1", b"2", b"3"]
    broker.send("kept", *(randbytes(60_000) for _ in range(40)))
    first = broker.forget("kept", 10)
    with pytest.raises(MqSparkError, match=rf"kept set-0/0 at 4 \(it has {first} to "):
        steps.step()
    # Planned before, read after.
    with pytest.raises(MqSparkError, match=rf"kept set-0/0 at 0 \(it has {first} to "):
        steps.read(planned)

    steps.restart(failOnDataLoss="false")
    assert steps.read(planned) == []
    assert [len(body) for body in steps.step()] == [60_000] * 4
    steps.restart(maxOffsetsPerTrigger="1000")
    count = int(broker.admin.describe_topic("kept").queues[0].end) - first - 4
    assert len(steps.step()) == count


def test_messages_that_go_while_a_batch_is_read_are_a_loss(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    # Several answers of the broker: the first one is there, and the second on its way, by then.
    sent = [randbytes(60_000) for _ in range(250)]
    broker.make("middle", *sent)
    pages = {}
    for fail in ("true", "false"):
        source = MqDataSource(
            {"servers": broker.servers, "subscribe": "middle", "failOnDataLoss": fail}
        )
        reader = source.reader(source.schema())
        (whole,) = reader.partitions()
        pages[fail] = iter(reader.read(whole))
    found = {fail: next(pages[fail]).column("body").to_pylist() for fail in pages}
    start = broker.forget("middle", 200)
    for page in pages["false"]:
        found["false"] += page.column("body").to_pylist()
    read = len(found["false"]) - (250 - start)
    assert found["false"] == sent[:read] + sent[start:]
    assert f"messages are lost: middle set-0/0 at {read} (it has {start} to 250)" in caplog.text
    lost = rf"messages are lost: middle set-0/0 at {read} \(it has {start} to 250\); with failOn"
    with pytest.raises(MqSparkError, match=lost):
        list(pages["true"])


def test_where_a_stream_begins_must_be_there(broker: Broker) -> None:
    broker.make("begin", b"1", b"2")
    outside = '{"begin": {"0": 5}}'
    with pytest.raises(MqSparkError, match=r"startingOffsets is out of range: begin set-0/0 at 5"):
        broker.follow("begin", startingOffsets=outside)
    allowed = broker.follow("begin", startingOffsets=outside, failOnDataLoss="false")
    assert allowed.step() == []
    with pytest.raises(MqSparkError, match="topic nowhere does not exist"):
        broker.follow("begin", "nowhere", failOnDataLoss="false")


def test_a_checkpoint_of_another_source_is_refused(broker: Broker) -> None:
    steps = broker.follow("begin")
    steps.at = {"index": 3}
    with pytest.raises(MqSparkError, match="the checkpoint has an offset of version None"):
        steps.step()


def test_topics_that_are_no_longer_subscribed_are_no_loss(broker: Broker) -> None:
    broker.make("one", b"1")
    broker.make("two", b"2")
    steps = broker.follow("one", "two")
    assert sorted(steps.step()) == [b"1", b"2"]
    broker.send("one", b"3")
    steps.restart(subscribe="one")
    assert steps.step() == [b"3"]
    # And back: from the beginning, since its position is unknown.
    steps.restart(subscribe="one,two")
    assert steps.step() == [b"2"]


def test_progress_that_cannot_be_committed_does_no_harm(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.make("busy", b"1", b"2")
    with Consumer(broker.servers, "members", "busy", start="earliest") as member:
        assert member.poll(1, DEADLINE_S)
        steps = broker.follow("busy", group="members")
        assert steps.step() == [b"1", b"2"]
        assert steps.step() == []
        steps.reader.stop()
    assert "group members: progress was not committed" in caplog.text
    nobody = Progress(ConnectionOptions("127.0.0.1:1"), "g")
    nobody.done({}, wait=True)
    nobody.close()
