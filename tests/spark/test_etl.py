"""`mq spark etl` finds exactly what the shop did, also when it is killed in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mq.client import Admin, Consumer, Producer
from mq.client.lowlevel import ConnectionOptions
from mq_spark.pipelines.common import Runs
from mq_spark.pipelines.etl.queries import start
from mq_spark.pipelines.etl.results import Results, days, read_results
from mq_spark.pipelines.etl.shop import make_day
from mq_spark.pipelines.etl.traffic import Topics
from tests.support.broker_process import BrokerProcess

USERS = 150
TOPICS = Topics.of("shop")
ONCE = Runs(checkpoint=None, is_once=True, every_s=1.0)
# A Java that lives for seconds is done sooner without its second compiler.
QUICK_JAVA = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
DEADLINE_S = 300  # of a busy machine


@pytest.fixture
def admin(server: str) -> Iterator[Admin]:
    with Admin(server, timeout_s=30) as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mq", "spark", "etl", *arguments]


def produce(server: str, *more: str) -> dict[str, Any]:
    """The results of a correct pipeline for the next day."""
    arguments = ["produce", "--json", "--users", str(USERS), "--server", server, *more]
    done = subprocess.run(
        command(*arguments), check=False, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer.pop("rolled_back") > 0
    return answer


def run_here(spark: SparkSession, server: str, folder: Path) -> Results:
    """The queries of the command, in the session of the tests."""
    queries = start(spark, ConnectionOptions(server), TOPICS, str(folder), ONCE)
    for query in queries.values():
        assert query.awaitTermination(DEADLINE_S)
    return read_results(folder)


def stored(admin: Admin, topic: str) -> int:
    return sum(queue.end for queue in admin.describe_topic(topic).queues)


def kill_when_results_come(admin: Admin, server: str, folder: Path) -> None:
    """Driver, Java and all, while they write their results. Spark gives a new Python process ten
    seconds, which a busy machine does not always keep: then it is started again.
    """
    log_path = folder.parent / "run.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            command("run", "--once", "--dir", str(folder), "--server", server),
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=QUICK_JAVA,
        )
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while not stored(admin, TOPICS.sales) and process.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait(DEADLINE_S)
    if code != -signal.SIGKILL:
        assert "failed to connect back" in log_path.read_text(), log_path.read_text()
        kill_when_results_come(admin, server, folder)


def messages(server: str, topic: str, count: int, tags: str | None = None) -> list[dict[str, Any]]:
    """All that there are; so many are expected."""
    found: list[dict[str, Any]] = []
    group = f"test-{topic}-{tags or 'all'}"
    with Consumer(server, group, {topic: tags}, start="earliest") as consumer:
        while len(found) < count:
            polled = consumer.poll(timeout_s=60)
            assert polled, f"{len(found)} of {count}"
            found += [json.loads(message.body) for message in polled]
    return found


def test_the_results_are_those_of_the_shop_also_after_a_kill(
    spark: SparkSession, server: str, admin: Admin, tmp_path: Path
) -> None:
    folder = tmp_path / "shop"
    first = produce(server)
    kill_when_results_come(admin, server, folder)
    # The next day, and messages that are no events.
    second = produce(server)
    with Producer(server) as producer:
        for topic in TOPICS[:3]:
            for body in (b"", b"no JSON", b'{"at": "yesterday"}', b"[1]", b"\xff\xfe"):
                producer.send(topic, body)
    results = run_here(spark, server, folder)
    assert [day._asdict() for day in days(results)] == [first, second]

    # The topics have each result once, although a batch was written twice.
    both = {name: first[name] + second[name] for name in first if name != "day"}
    assert stored(admin, TOPICS.sales) == both["orders"]
    assert stored(admin, TOPICS.sessions) == both["sessions"]
    sales = {one["order_id"]: one for one in messages(server, TOPICS.sales, both["orders"])}
    assert len(sales) == both["orders"]
    paid = [one["amount_cents"] for one in sales.values() if one["status"] == "paid"]
    assert (len(paid), sum(paid)) == (both["paid"], both["revenue_cents"])
    rolled_back = {one.order_id for one in make_day(1, USERS, 1).orders if not one.is_booked}
    assert rolled_back
    assert not rolled_back & sales.keys()
    assert len(messages(server, TOPICS.sales, both["unpaid"], "unpaid")) == both["unpaid"]
    sessions = messages(server, TOPICS.sessions, both["sessions"])
    assert sum(one["clicks"] for one in sessions) == both["clicks"]
    assert {group.group: group.lag for group in admin.list_groups()}["shop-sales"] == 0
