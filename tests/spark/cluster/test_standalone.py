"""A standalone cluster, whose executors are processes elsewhere and have nothing but what the
documented command brings: what is read and written by them is right, also when they are killed.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from mq.client import Admin, Producer
from tests.spark.cluster.standalone import DEADLINE_S, Process, StandaloneCluster
from tests.spark.stored import bodies, count
from tests.spark.test_tutorial import section
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import poll

_HERE = Path(__file__).parent
_TARGETS = ("by-job", "by-format", "by-sink", "by-connect", "by-foreach", "by-connect-sink")
# Enough for a test, where more only take longer to start.
_ONE_EXECUTOR = {"spark.cores.max": "1"}
# No task starts before both are there.
_BOTH_EXECUTORS = {
    "spark.cores.max": "4",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{DEADLINE_S:.0f}s",
}
SENT = 4_000
# So large that a few hundred rows are several batches of the sink, and not compressed.
BODIES = [os.urandom(2_000) for _ in range(SENT)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With a full topic and empty ones."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        with Admin(broker.address) as admin:
            for topic in ("in", "kept", "kept-again", "figures", *_TARGETS):
                admin.create_topic(topic, 2)
        with Producer(broker.address) as producer:
            for body in BODIES:
                producer.send_async("in", body)
        yield broker.address


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of spark-submit that the command of the page prints."""
    directory = tmp_path_factory.mktemp("packages")
    command = "mq spark pack mq-packages.zip"
    assert f"    {command}\n" in section("## On a cluster")
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout.strip() in section("## On a cluster")
    return shlex.split(done.stdout.replace("mq-packages.zip", str(directory / "mq-packages.zip")))


def test_rows_are_stored_once_when_executors_are_killed_in_the_middle(
    cluster: StandaloneCluster, packages: list[str], servers: str, tmp_path: Path
) -> None:
    signs = tmp_path / "signs"
    signs.mkdir()
    arguments = [str(_HERE / "job.py"), servers, str(tmp_path)]
    with cluster.submit("job", *packages, *arguments, conf=_BOTH_EXECUTORS) as job:
        job.poll(lambda: len(list(signs.glob("stopped-*"))) == 4, "all tasks are in the middle")
        for topic in ("by-format", "by-sink"):
            job.poll(functools.partial(count, servers, topic), f"rows in {topic}")
        executors = cluster.executors()
        first, second = executors
        os.kill(first, signal.SIGKILL)
        job.poll(lambda: len(list(signs.glob("again-*"))) == 2, "tasks of the first run again")
        assert all(count(servers, topic) < SENT for topic in ("by-format", "by-sink"))
        os.kill(second, signal.SIGKILL)
        output = job.wait()
    assert len(list(signs.glob("again-*"))) == 4
    for topic in ("by-job", "by-format", "by-sink"):
        assert bodies(servers, topic) == sorted(BODIES), topic
    # Both executors have worked, in their directories and with the packages of the archive.
    places = json.loads(next(line for line in output.splitlines() if line.startswith("[{")))
    assert sum(place["rows"] for place in places) == SENT
    assert {place["directory"] for place in places} == set(map(str, executors.values()))
    for place in places:
        assert place["package"].startswith(f"{place['directory']}/mq-packages/mq/")


def test_pipelines_run_on_the_cluster_of_spark_submit(
    cluster: StandaloneCluster, packages: list[str], servers: str, tmp_path: Path
) -> None:
    (line,) = re.findall(r"^ {4}(echo .* > pipeline.py)$", section("## On a cluster"), re.MULTILINE)
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, timeout=60)  # noqa: S607
    target = tmp_path / "archive"
    arguments = ["--server", servers, "--topics", "in", "--to", str(target), "--once"]
    command = [str(tmp_path / "pipeline.py"), "spark", "archive", *arguments]
    with cluster.submit("archive", *packages, *command, conf=_ONE_EXECUTOR) as archive:
        output = archive.wait()
    assert f"Archived {SENT:,} messages" in output
    found = ds.dataset(target, partitioning="hive").to_table()["body"].to_pylist()
    assert sorted(found) == sorted(BODIES)


@pytest.fixture(scope="module")
def remote(cluster: StandaloneCluster, packages: list[str]) -> Iterator[str]:
    """A server of Spark Connect. It keeps an executor, which tests above have no use for."""
    server, address = cluster.connect_server(packages, _ONE_EXECUTOR)
    with server:
        yield address


def test_rows_of_spark_connect_are_stored_once_when_the_executor_is_killed(
    cluster: StandaloneCluster, remote: str, servers: str, tmp_path: Path
) -> None:
    signs = tmp_path / "signs"
    signs.mkdir()
    arguments = [str(_HERE / "connect_client.py"), remote, servers, str(tmp_path)]
    with cluster.client("client", *arguments) as client:
        client.poll(lambda: list(signs.iterdir()), "the task is in the middle")
        client.poll(functools.partial(count, servers, "by-connect"), "rows are stored")
        assert count(servers, "by-connect") < SENT
        (executor,) = cluster.executors()
        os.kill(executor, signal.SIGKILL)
        assert f"{SENT} rows" in client.wait()
    for topic in ("by-connect", "by-foreach", "by-connect-sink"):
        assert bodies(servers, topic) == sorted(BODIES), topic


def test_pipelines_run_through_spark_connect_also_when_their_command_is_killed(
    cluster: StandaloneCluster, remote: str, servers: str, tmp_path: Path
) -> None:
    archive, figures = tmp_path / "archive", tmp_path / "figures"

    def pipeline(name: str, *arguments: str) -> Process:
        common = ["--server", servers, "--remote", remote]
        return cluster.client(name, "-m", "mq", "spark", name, *common, *arguments)

    def archived() -> list[int]:
        found = sorted(archive.glob("topic=*/date=*/*.parquet"))
        tables = [pq.read_table(file, columns=["body"], partitioning=None) for file in found]
        return sorted(int(body) for table in tables for body in table["body"].to_pylist())

    archiving = ["--topics", "kept", "--to", str(archive)]
    with pipeline("archive", *archiving, "--every", "200ms") as killed:
        _send_numbers(servers, "kept", range(100))
        killed.poll(lambda: len(archived()) == 100, "the archive has what was sent")
    # The query is the server's, and goes on, until the same command takes over.
    _send_numbers(servers, "kept", range(100, 200))
    poll(lambda: len(archived()) == 200, "the archive goes on without its command", DEADLINE_S)
    _send_numbers(servers, "kept", range(200, 300))
    with pipeline("archive", *archiving, "--once") as again:
        again.wait()
    assert archived() == list(range(300))

    with pipeline("replay", "--from", str(archive), "--to-topic", "kept-again") as replay:
        assert "Replayed 300 messages" in replay.wait()
    assert sorted(map(int, bodies(servers, "kept-again"))) == list(range(300))

    windows = ["--window", "1s", "--watermark", "0s", "--once", "--json"]
    places = ["--to", str(figures), "--to-topic", "figures"]
    with pipeline("metrics", "--topics", "kept", *windows, *places) as metrics:
        output = metrics.wait()
    measured = json.loads(output[output.index("[") : output.rindex("]") + 1])
    assert sum(window["messages"] for window in measured) == 300
    complete = [window for window in measured if window["is_complete"]]
    assert complete
    assert sorted(map(json.loads, bodies(servers, "figures")), key=_start) == complete


def _send_numbers(servers: str, topic: str, numbers: range) -> None:
    with Producer(servers) as producer:
        for number in numbers:
            producer.send_async(topic, str(number))


def _start(window: dict[str, Any]) -> str:
    return str(window["window_start"])
