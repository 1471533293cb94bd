"""`mq spark archive`: each message of the topics once, for every reader, whatever happens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mq.client import Admin, Message, Producer
from mq_spark.pipelines.archiving.archive_directory import ArchiveDirectory
from mq_spark.pipelines.archiving.compaction import compact
from mq_spark.pipelines.archiving.delta_log import DeltaLog
from tests.spark.archives import archive, send_numbers
from tests.spark.commands import DEADLINE_S, SparkCommand
from tests.support.broker_process import BrokerProcess

_ODD = "shop|eu%1"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


def _numbers(directory: Path) -> list[int]:
    """As a reader has them that knows nothing of Spark."""
    return sorted(
        map(int, ds.dataset(directory, partitioning="hive").to_table()["body"].to_pylist())
    )


def test_an_archive_that_is_killed_goes_on_and_has_each_message_once(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    send_numbers(broker.address, "orders", range(3_000))
    target = tmp_path / "archive"
    arguments = ["archive", "--server", broker.address, "--topics", "orders", "--to", str(target)]
    arguments += ["--once", "--rows-per-trigger", "500", "--group", "keeper"]
    plan = target / "_mq_archive" / "plan.json"
    with SparkCommand(tmp_path, *arguments) as command:
        deadline_s = time.monotonic() + DEADLINE_S
        while not (plan.exists() and json.loads(plan.read_text())["batch"] >= 2):
            assert command.is_running, command.errors
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        command.kill()
    seen = _numbers(target)
    assert len(seen) == len(set(seen))
    assert 1_000 <= len(seen) < 3_000
    # A death behind the last batch would leave the command nothing to do.
    send_numbers(broker.address, "orders", range(3_000, 3_100))
    with SparkCommand(tmp_path, *arguments, "--json") as command:
        result = json.loads(command.result())
        assert "3,100 of 3,100 messages" not in command.errors
    assert _numbers(target) == list(range(3_100))
    assert 100 <= result["rows"] <= 3_100 - 1_000
    with Admin(broker.address) as admin:
        queues = admin.describe_group("keeper").queues
    assert sum(queue.lag for queue in queues) == 0
    assert sum(queue.committed for queue in queues) == 3_100


def test_archives_have_all_columns_and_only_what_is_new(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    send_numbers(broker.address, _ODD, range(40))
    send_numbers(broker.address, "shop-2", range(40, 60))
    with Producer(broker.address) as producer:
        producer.send("shop-2", Message(b""))
        producer.send("shop-2", Message(bytes(500_000), tag="a"))
    options = {"servers": broker.address, "subscribePattern": "shop.*"}
    assert archive(spark, tmp_path, options)[:2] == (62, 2)
    assert archive(spark, tmp_path, options) == (0, 0, 0)

    expected = spark.read.format("mq").options(**options, includeProperties="true").load()
    columns = [name for name in expected.columns if name != "topic"]
    read = spark.read.parquet(str(tmp_path))
    assert sorted(read.columns) == sorted([*columns, "topic", "date"])
    order = ["topic", "broker_set", "queue_id", "queue_offset"]
    rows = read.select("topic", *columns).orderBy(order).collect()
    assert rows == expected.select("topic", *columns).orderBy(order).collect()
    (date,) = {f"{row.date}" for row in read.select("date").distinct().collect()}
    assert date == rows[0].stored_at.date().isoformat()
    assert (tmp_path / "topic=shop|eu%251" / f"date={date}").is_dir()
    plain = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert set(plain["topic"].to_pylist()) == {_ODD, "shop-2"}
    assert str(plain.schema.field("stored_at").type) == "timestamp[us, tz=UTC]"
    DeltaLog(tmp_path).follow(ArchiveDirectory(tmp_path).days())
    as_delta = DeltaTable(tmp_path).to_pyarrow_table()
    assert sorted(as_delta["body"].to_pylist()) == sorted(plain["body"].to_pylist())
    assert {"keys", "properties", "stored_at", "topic", "date"} <= set(as_delta.column_names)
    assert str(as_delta.schema.field("stored_at").type) == "timestamp[us, tz=UTC]"

    # More messages and a topic of the pattern that was not there before.
    send_numbers(broker.address, _ODD, range(60, 65))
    send_numbers(broker.address, "shop.eu.3", range(65, 70))
    assert archive(spark, tmp_path, options)[:2] == (10, 2)
    directory = ArchiveDirectory(tmp_path)
    assert [(day.topic, len(day.files())) for day in directory.days()] == [
        ("shop-2", 1),
        ("shop.eu.3", 1),
        (_ODD, 2),
    ]

    # Merged files are read as the others are.
    before = read.select("topic", *columns).orderBy(order).collect()
    with directory.locked():
        assert compact(directory, "9999-12-31", 1 << 20) == (1, 2, 1)
    again = spark.read.parquet(str(tmp_path))
    assert again.schema == read.schema
    rows = again.select("topic", *columns).orderBy(order).collect()
    assert len(rows) == 72
    assert set(map(str, before)) <= set(map(str, rows))
    assert again.where("queue_offset is null").count() == 0


def test_tags_are_filtered_and_a_lost_checkpoint_is_refused(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    send_numbers(broker.address, "tagged", range(30))
    options = {"servers": broker.address, "subscribe": "tagged", "tags": "a"}
    assert archive(spark, tmp_path, options).rows == 15
    assert _numbers(tmp_path) == list(range(0, 30, 2))
    (tmp_path / "_mq_archive" / "checkpoint").rename(tmp_path / "_lost")
    with pytest.raises(Exception, match="archived with another checkpoint"):
        archive(spark, tmp_path, options)
    assert _numbers(tmp_path) == list(range(0, 30, 2))
