"""Rows are stored once, whatever happens between the source and the broker: drivers that are
killed, tasks that fail, leaders that die.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mq.client import Admin, Message, Producer
from tests.spark.stored import bodies, count, stored
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import poll

DEADLINE_S = 240.0
_ROOT = Path(__file__).parents[2]
SENT = 4_000
# So large that a few hundred rows are several batches of the sink, and not compressed.
BODIES = [f"{number:06} ".encode().ljust(4_000, b".") for number in range(SENT)]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSet]:
    with BrokerSet(tmp_path_factory.mktemp("brokers")) as made:
        yield made


class Driver:
    """The program of `exactly_once_driver`, in a process group with its Java."""

    def __init__(self, servers: str, directory: Path, *, at: str, partitions: int) -> None:
        self.signs = directory / "signs"
        self.signs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.spark.exactly_once_driver"]
        command += ["--servers", servers, "--at", at, "--partitions", str(partitions)]
        command += ["--signs", str(self.signs), "--checkpoints", str(directory / "checkpoints")]
        self.output = directory / f"{at}.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=_ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        assert self.process.wait(DEADLINE_S) == 0, self.output.read_text()[-5_000:]

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def poll(self, question: Callable[[], object], what: str) -> None:
        def answer() -> object:
            assert self.process.poll() is None, self.output.read_text()[-5_000:]
            return question()

        poll(answer, what, DEADLINE_S)


def first_batch(servers: str, checkpoint: Path) -> set[bytes]:
    """The bodies that were in it. A queue was one task then; later ones are split."""
    logged = json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[-1])
    ends: dict[str, int] = logged["queues"]["in"]
    return {
        one.body
        for ref, messages in stored(servers, "in").items()
        for one in messages[: ends[f"{ref.broker_set}/{ref.queue_id}"]]
    }


def in_order(servers: str, topic: str, among: set[bytes]) -> bool:
    """Whether those of a key stand in the order in which they were sent."""
    numbers: dict[str, list[int]] = {}
    for messages in stored(servers, topic).values():
        for one in messages:
            if one.ordering_key and one.body in among:
                numbers.setdefault(one.ordering_key, []).append(int(one.body[:6]))
    assert len(numbers) == 2
    return all(of_key == sorted(of_key) for of_key in numbers.values())


def test_rows_are_stored_once_over_a_killed_driver_failing_tasks_and_other_partitions(
    brokers: BrokerSet, tmp_path: Path
) -> None:
    servers = brokers.servers
    with Admin(servers) as admin:
        # A task for each queue: those of both queries have a slot, and run side by side.
        admin.create_topic("in", 2)
        for topic in ("by-format", "by-sink"):
            admin.create_topic(topic, 4)
    with Producer(servers) as producer:
        for number, body in enumerate(BODIES):
            key = f"key-{number % 4}" if number % 4 < 2 else ""
            producer.send_async("in", Message(body, ordering_key=key, keys=[f"{number}"]))
    driver = Driver(servers, tmp_path, at="hold", partitions=2)
    try:
        driver.poll(lambda: len(list(driver.signs.iterdir())) == 4, "all tasks are in the middle")
        for topic in ("by-format", "by-sink"):
            driver.poll(functools.partial(count, servers, topic), f"rows in {topic}")
    finally:
        driver.kill()
    partly = [count(servers, topic) for topic in ("by-format", "by-sink")]
    assert all(0 < number < SENT / 2 for number in partly), partly
    driver = Driver(servers, tmp_path, at="fail", partitions=5)
    try:
        driver.wait()
    finally:
        if driver.process.poll() is None:
            driver.kill()
    failed = [sign.name for sign in driver.signs.iterdir() if sign.name.startswith("fail")]
    assert {name.split("-")[1:3] == ["sink", "0"] for name in failed} == {True, False}
    for at, topic in enumerate(("by-format", "by-sink")):
        assert bodies(servers, topic) == BODIES
        among = first_batch(servers, tmp_path / "checkpoints" / str(at))
        assert len(among) == SENT / 2
        assert in_order(servers, topic, among)


def test_a_job_goes_on_when_the_leader_dies_in_the_middle(
    spark: SparkSession, brokers: BrokerSet, tmp_path: Path
) -> None:
    servers, go = brokers.servers, tmp_path / "go"
    with Admin(servers) as admin:
        admin.create_topic("jobs.today", 4)

    def wait_in_the_middle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            while number == 3 and not go.exists():
                time.sleep(0.02)
            yield batch

    rows = spark.range(0, 3_000, 1, 2).selectExpr(
        "rpad(format_string('%06d ', id), 4000, '.') body"
    )
    frame = rows.mapInArrow(wait_in_the_middle, rows.schema)
    is_over = threading.Event()

    def kill_in_the_middle() -> str:
        try:
            poll(
                lambda: is_over.is_set() or count(servers, "jobs.today"),
                "rows are stored",
                DEADLINE_S,
            )
            return brokers.kill_leader()
        finally:
            go.touch()

    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(setting, "200")
    with ThreadPoolExecutor() as pool:
        killing = pool.submit(kill_in_the_middle)
        try:
            frame.write.format("mq").mode("append").options(
                servers=servers, topic="jobs.today"
            ).save()
        finally:
            is_over.set()
            spark.conf.unset(setting)
        killed = killing.result()
    brokers.start(killed)
    assert bodies(servers, "jobs.today") == BODIES[:3_000]
