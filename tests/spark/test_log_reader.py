"""`spark.read.format("mq").load(path)`: the files of a log give the rows that brokers gave."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mq.client import (
    Admin,
    Message,
    Nack,
    Producer,
    PushConsumer,
    QueueRef,
    ReceivedMessage,
    SendResult,
    TransactionProducer,
)
from mq_spark.errors import explain
from tests.support.broker_cluster import BrokerCluster
from tests.support.raft_cluster import poll

SMALL = ("--store-segment-bytes=256KiB",)
DEADLINE_S = 60.0
TOPICS = "orders,late,sure,again,%RETRY%workers,%DLQ%workers"


class Logs(NamedTuple):
    """The brokers' answers while they ran, and the places of their files."""

    rows: list[Any]
    middle_ms: int
    backup: Path
    data: dict[str, Path]


@pytest.fixture(scope="module")
def logs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    directory = tmp_path_factory.mktemp("logs")
    with BrokerCluster(directory, "east", "west", flags=SMALL) as cluster:
        with Admin(cluster.servers) as admin:
            for topic in ("orders", "late", "again", "dropped"):
                admin.create_topic(topic, queues=2)
            admin.create_topic("sure", queues=2, type="transactional")
        cluster.wait_known("orders", "late", "sure", "again", "dropped")
        middle_ms = _send(cluster)
        frame = spark.read.format("mq").options(servers=cluster.servers, subscribe=TOPICS)
        rows = frame.option("includeProperties", "true").load().collect()
        command = [sys.executable, "-m", "mq", "backup", str(directory / "backup")]
        subprocess.run(
            [*command, "--server", cluster.servers], check=True, capture_output=True, timeout=120
        )
        for one in cluster.sets.values():
            for node in one.nodes.values():
                node.stop()
    data = {name: one.directories[0] for name, one in cluster.sets.items()}
    return Logs(rows, middle_ms, directory / "backup", data)


def _send(cluster: BrokerCluster) -> int:
    """Something of every kind; some of it before the time that is returned, some at it or later."""
    with Producer(cluster.servers) as producer:
        producer.send("late", Message(b"waited", delay_s=0.1, keys=["k"]))
        producer.send("late", Message(b"still waits", delay_s=3600))
        producer.send("dropped", b"gone")
        _wait([producer.send_async("orders", _order(number)) for number in range(600)])
        time.sleep(0.002)
        middle_ms = time.time_ns() // 1_000_000
        _wait([producer.send_async("orders", _order(number)) for number in range(600, 1000)])
        for number in range(3):
            producer.send("again", f"{number}".encode())
    with Admin(cluster.servers) as admin:
        admin.delete_topic("dropped")
        admin.create_topic("dropped", queues=2)
    _transactions(cluster.servers)
    _failures(cluster.servers)
    with Admin(cluster.servers) as admin:
        _until(lambda: _count(admin, "late") == 1)
    return middle_ms


def _wait(sent: list[Future[SendResult]]) -> None:
    for each in sent:
        each.result(DEADLINE_S)


def _order(number: int) -> Message:
    # Zeros are compressed on their way; the others make several segments.
    body = bytes([number % 251]) * 4000 if number % 2 else b"\0" * 9000
    return Message(
        b"%d:%s" % (number, body),
        tag="odd" if number % 2 else "even",
        keys=[f"k{number}", "all"][: number % 3],
        ordering_key=f"user-{number % 7}" if number % 5 else "",
        properties={"number": str(number)},
    )


def _transactions(servers: str) -> None:
    with TransactionProducer(
        servers, "shop", lambda _, word: word, lambda _: "UNKNOWN"
    ) as producer:
        for word in ("COMMIT", "ROLLBACK", "UNKNOWN", "COMMIT"):
            producer.send_in_transaction("sure", word.encode(), word)


def _failures(servers: str) -> None:
    """The first message fails once, the second always."""

    def handle(message: ReceivedMessage) -> Nack | None:
        fails = (message.body == b"0" and message.attempt == 1) or message.body == b"1"
        return Nack("bad", delay_s=0) if fails else None

    with Admin(servers) as admin:
        admin.alter_group("workers", retries_max=2)
        with PushConsumer(servers, "workers", "again", handle, start="earliest"):
            _until(
                lambda: (_count(admin, "%RETRY%workers"), _count(admin, "%DLQ%workers")) == (3, 1)
            )


def _count(admin: Admin, topic: str) -> int:
    try:
        return sum(queue.end - queue.start for queue in admin.describe_topic(topic).queues)
    except Exception:  # noqa: BLE001 - it is not there yet
        return 0


def _until(question: Callable[[], bool]) -> None:
    poll(question, "what was sent is there", DEADLINE_S)


def _read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    reader = spark.read.format("mq").option("includeProperties", "true").options(**options)
    return reader.load(str(path))


def _place(row: Any) -> QueueRef:
    return QueueRef(row.topic, row.queue_id, row.broker_set)


def _ordered(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: (_place(row), row.queue_offset))


def test_a_backup_of_two_sets_has_the_rows_that_the_brokers_had(
    spark: SparkSession, logs: Logs
) -> None:
    frame = _read(spark, logs.backup, subscribe=TOPICS)
    assert frame.rdd.getNumPartitions() > 4
    found = frame.collect()
    assert _ordered(found) == _ordered(logs.rows)
    # Of everything there is something.
    topics = Counter(row.topic for row in found)
    assert topics == {
        "orders": 1000,
        "late": 1,
        "sure": 2,
        "again": 3,
        "%RETRY%workers": 3,
        "%DLQ%workers": 1,
    }
    assert {row.broker_set for row in found} == {"east", "west"}
    assert max(row.delivery_attempt for row in found) > 2


def test_a_stopped_node_has_the_rows_of_its_set_and_what_its_own_names_leave_out(
    spark: SparkSession, logs: Logs
) -> None:
    for path in (logs.data["east"], logs.data["east"] / "commitlog"):
        found = _read(spark, path).collect()
        expected = [
            row for row in logs.rows if row.broker_set == "east" and not row.topic.startswith("%")
        ]
        # No internal topic, and nothing of the topic that was dropped and made again.
        assert _ordered(found) == _ordered(expected)


def test_times_tags_and_patterns_choose(spark: SparkSession, logs: Logs) -> None:
    late = _read(
        spark,
        logs.backup,
        subscribePattern="or.*",
        startingTimestamp=str(logs.middle_ms),
        tags="odd",
    ).collect()
    numbers = sorted(int(row.properties["number"]) for row in late)
    assert numbers == list(range(601, 1000, 2))
    early = _read(spark, logs.backup, subscribe="orders", endingTimestamp=str(logs.middle_ms))
    assert sorted(int(row.properties["number"]) for row in early.collect()) == list(range(600))


def test_damage_is_an_error_with_its_place_or_left_out(
    spark: SparkSession, logs: Logs, tmp_path: Path
) -> None:
    # Keys decide which set has more of the messages, and so more segments.
    largest = max(logs.data.values(), key=lambda one: len(list(one.glob("commitlog/*.log"))))
    copied = tmp_path / "copied"
    shutil.copytree(largest, copied)
    whole = _read(spark, copied, subscribe="orders").collect()
    files = sorted((copied / "commitlog").glob("*.log"))
    assert len(files) > 2
    content = bytearray(files[1].read_bytes())
    content[len(content) // 2] ^= 1
    files[1].write_bytes(content)
    with pytest.raises(PySparkException) as raised:
        _read(spark, copied, subscribe="orders").collect()
    told = explain(raised.value)
    assert f"{files[1]} is damaged at byte " in told
    assert "failOnDataLoss" in told
    rest = _read(spark, copied, subscribe="orders", failOnDataLoss="false").collect()
    assert 0 < len(rest) < len(whole)
    assert {row.message_id for row in rest} < {row.message_id for row in whole}
    assert [row for row in _ordered(whole) if row in rest] == _ordered(rest)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "ordres"}, "there is no topic ordres in the log at"),
        ({"subscribe": "orders", "subscribePattern": "o.*"}, "use one of them"),
        ({"topics": "orders"}, "option topics is unknown for reading a path"),
        ({"startingOffsets": "earliest"}, "option startingOffsets is unknown for reading a path"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp = 'yesterday'"),
    ],
)
def test_an_error_is_one_line(
    spark: SparkSession, logs: Logs, options: dict[str, str], told: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        _read(spark, logs.backup, **options).collect()
    assert told in explain(raised.value)
    assert "\n" not in explain(raised.value)


def test_a_path_without_a_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as raised:
        _read(spark, tmp_path).collect()
    assert f"path = '{tmp_path}' is no backup, data directory or commitlog" in explain(raised.value)
