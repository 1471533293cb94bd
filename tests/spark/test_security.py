"""Source, sink and pipelines by TLS with a key; and the key in none of the texts of Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession

import mq_spark
from mq.client import Producer
from mq_spark.errors import MqSparkError, explain
from tests.spark.commands import DEADLINE_S, SparkCommand
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Files

SECRET = "mqk_abcdefghijkl_" + "s" * 43


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Authority(tmp_path_factory.mktemp("authority")).files()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[BrokerProcess]:
    flags = ["--broker-tls", "required", *(x for one in files.flags("broker").items() for x in one)]
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *flags) as process:
        with Producer(process.address, ca=files.ca) as producer:
            producer.send_many("numbers", [b"%d" % number for number in range(100)])
        yield process
        assert "sss" not in process.output()


@pytest.fixture(scope="module")
def options(broker: BrokerProcess, files: Files) -> dict[str, str]:
    return {"servers": broker.address, "ca": files.ca, "apiKey": SECRET}


def plans(frame: DataFrame) -> str:
    execution: Any = frame._jdf.queryExecution()
    parts = [execution.toString(), execution.analyzed().toJSON(), frame.schema.json()]
    return "\n".join(parts)


def bodies(spark: SparkSession, options: dict[str, str], topic: str) -> list[int]:
    frame = spark.read.format("mq").options(**options, subscribe=topic).load()
    assert "sss" not in plans(frame)
    return sorted(int(row.body) for row in frame.select("body").collect())


def test_a_batch_is_read_and_written(spark: SparkSession, options: dict[str, str]) -> None:
    assert bodies(spark, options, "numbers") == list(range(100))
    frame = spark.read.format("mq").options(**options, subscribe="numbers").load()
    frame.select("body").write.format("mq").mode("append").options(
        **options, topic="written"
    ).save()
    assert bodies(spark, options, "written") == list(range(100))


def test_a_stream_is_read_and_written_and_its_checkpoint_has_no_key(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    query = (
        spark.readStream.format("mq")
        .options(**options, subscribe="numbers", startingOffsets="earliest", group="streamers")
        .load()
        .select("body")
        .writeStream.format("mq")
        .options(**options, topic="streamed", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)
    explained: Any = query._jsq
    assert "sss" not in explained.explainInternal(True)
    assert "sss" not in json.dumps(query.lastProgress, default=str)
    assert bodies(spark, options, "streamed") == list(range(100))
    written = [one for one in (tmp_path / "checkpoint").rglob("*") if one.is_file()]
    assert written
    assert not [one for one in written if b"sss" in one.read_bytes()]


def test_a_sink_of_a_query_writes(
    spark: SparkSession, broker: BrokerProcess, files: Files, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    given: dict[str, Any] = {"ca": files.ca, "api_key_file": key}
    write = mq_spark.sink(servers=broker.address, topic="sunk", **given)
    source = {"servers": broker.address, "ca": files.ca, "apiKeyFile": str(key)}
    query = (
        spark.readStream.format("mq")
        .options(**source, subscribe="numbers", startingOffsets="earliest")
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)
    assert bodies(spark, source, "sunk") == list(range(100))
    with pytest.raises(MqSparkError, match="sink: cert is given without key"):
        mq_spark.sink(servers=broker.address, topic="sunk", cert="c")


def test_an_error_names_what_is_wrong_and_not_the_key(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    plain = {key: one for key, one in options.items() if key != "ca"}
    with pytest.raises(Exception, match="speaks TLS") as raised:
        spark.read.format("mq").options(**plain, subscribe="numbers").load().collect()
    assert explain(raised.value).endswith("speaks TLS: use tls=True, or --tls")
    assert "sss" not in str(raised.value)
    with BrokerProcess(tmp_path / "data", "--auth-mode", "required") as locked:
        given = {"servers": locked.address, "apiKey": SECRET}
        with pytest.raises(Exception, match="MqSparkError") as raised:
            spark.read.format("mq").options(**given, subscribe="numbers").load().collect()
        assert "sss" not in str(raised.value)
        with pytest.raises(Exception, match="MqSparkError") as raised:
            spark.range(3).selectExpr("cast(id as string) body").write.format("mq").mode(
                "append"
            ).options(**given, topic="t").save()
        assert "sss" not in str(raised.value)


def test_a_pipeline_takes_the_flags_and_variables_of_the_command_line(
    broker: BrokerProcess, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQ_API_KEY", SECRET)
    target = tmp_path / "archive"
    arguments = ["archive", "--topics", "numbers", "--to", str(target), "--once"]
    arguments += ["--server", broker.address, "--ca", files.ca]
    with SparkCommand(tmp_path, *arguments) as command:
        command.result()
        assert "sss" not in command.errors
    found = ds.dataset(target, partitioning="hive").to_table()["body"].to_pylist()
    assert sorted(map(int, found)) == list(range(100))
    for directory, _, names in os.walk(target):
        for name in names:
            assert b"sss" not in (Path(directory) / name).read_bytes()
