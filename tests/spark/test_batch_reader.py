"""`spark.read.format("mq")` against a real broker."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from mq.client import Message, Producer
from tests.support.broker_process import BrokerProcess


def test_all_messages_of_a_topic_come_with_all_their_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Producer(broker.address) as producer:
            for number in range(100):
                producer.send_async(
                    "t",
                    Message(
                        f"{number}".encode(), tag="a", keys=[f"k{number}"], properties={"p": "1"}
                    ),
                )
        frame = (
            spark.read.format("mq")
            .options(servers=broker.address, subscribe="t", includeProperties="true")
            .load()
        )
        rows = frame.collect()
        assert sorted(int(row.body) for row in rows) == list(range(100))
        first = next(row for row in rows if row.body == b"7")
        assert first["keys"] == ["k7"]
        assert first["properties"] == {"p": "1"}
