"""One Spark session for all tests of a process, in which small queries are quick, and brokers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mq_spark
from tests.spark import shared_classes, warm_python

_QUIET = Path(__file__).parent / "log4j2.properties"
_JAVA = f"-Xss64m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={_QUIET}"
CONF = {
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.driver.memory": "1g",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of each driver that this process, or a child of it, starts."""
    warm_python.use()
    # Drivers that are killed leave their files.
    files = f"-Djava.io.tmpdir={tmp_path_factory.mktemp('java')}"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{shared_classes.options()} {files}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with mq_spark.session("tests", master="local[2]", conf=CONF) as made:
        yield made
