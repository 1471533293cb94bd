"""`mq spark replay`: an archive back to topics, each message once, in order, as it was."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from mq.cli.main import main
from mq.client import QueueRef, ReceivedMessage
from mq.client.lowlevel import ConnectionOptions
from mq_spark.cli import spark as spark_commands
from mq_spark.pipelines.archiving.archive_directory import ArchiveDirectory
from mq_spark.pipelines.archiving.compaction import compact
from mq_spark.pipelines.common import Pipeline
from mq_spark.pipelines.replaying import replay_plan
from mq_spark.pipelines.replaying.pacing import Pace
from mq_spark.pipelines.replaying.replay import PROPERTIES, Replaying
from mq_spark.pipelines.replaying.replay_plan import ReplayState, Wanted
from tests.spark.archives import archive, send_numbers
from tests.spark.commands import DEADLINE_S, SparkCommand
from tests.spark.stored import count, stored
from tests.support.broker_process import BrokerProcess
from tests.support.topics import create_topic, eventually

# Commands as users have them, with the errors that end them.
_MQ = type(main)("mq", commands={"spark": spark_commands})
_QUEUES = 4


class Archived(NamedTuple):
    path: Path
    # What is in it, as it was when it was archived.
    queues: dict[QueueRef, list[ReceivedMessage]]

    @property
    def messages(self) -> list[ReceivedMessage]:
        return [one for messages in self.queues.values() for one in messages]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, "--broker-auto-create-topics", "no") as running:
        yield running


@pytest.fixture(scope="module")
def archived(
    spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Archived:
    """Two topics, in several files each."""
    path = tmp_path_factory.mktemp("archive")
    create_topic(broker.address, "orders", _QUEUES)
    create_topic(broker.address, "payments", 2)
    for start in (0, 120):
        send_numbers(broker.address, "orders", range(start, start + 100))
        send_numbers(broker.address, "payments", range(start + 100, start + 120))
    options = {"subscribe": "orders,payments", "maxOffsetsPerTrigger": "120"}
    done = archive(spark, path, {"servers": broker.address, **options})
    assert done[:2] == (240, 4)
    queues = stored(broker.address, "orders") | stored(broker.address, "payments")
    return Archived(path, queues)


class Replays:
    """The command, in the session of the tests."""

    def __init__(self, servers: str, path: Path) -> None:
        self._servers = servers
        self.path = path

    def run(self, *arguments: str, source: Path | None = None) -> Result:
        options = ("--from", str(source or self.path), "--server", self._servers, *arguments)
        return CliRunner().invoke(_MQ, ["spark", "replay", *options])

    def result(self, *arguments: str, source: Path | None = None) -> Any:
        """The JSON that it prints; it has to end well."""
        done = self.run(*arguments, "--json", source=source)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@pytest.fixture
def replays(
    spark: SparkSession,
    broker: BrokerProcess,
    archived: Archived,
    monkeypatch: pytest.MonkeyPatch,
) -> Replays:
    """The replays of the archive, in two steps."""

    @contextmanager
    def session(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(Pipeline, "session", session)
    monkeypatch.setattr(replay_plan, "STEP_ROWS", 130)
    return Replays(broker.address, archived.path)


# -- what is expected ------------------------------------------------------------------------------


def _ids(messages: Iterable[ReceivedMessage]) -> Counter[str]:
    """The ids of the messages that these are replays of."""
    return Counter(one.properties[PROPERTIES[0]] for one in messages)


def _check_once_in_order(
    servers: str, topic: str, expected: Iterable[ReceivedMessage]
) -> list[ReceivedMessage]:
    """These and no others are on the topic, once; those of one queue, or of one ordering key, in
    their order. What is there.
    """
    originals = {one.message_id: one for one in expected}
    queues = stored(servers, topic)
    found = [one for messages in queues.values() for one in messages]
    assert _ids(found) == Counter(list(originals))
    for messages in queues.values():
        lanes = defaultdict(list)
        for one in messages:
            original = originals[one.properties[PROPERTIES[0]]]
            lane = original.queue, original.ordering_key
            lanes[lane].append(original.queue_offset)
        assert all(offsets == sorted(offsets) for offsets in lanes.values())
    return found


def _content(message: ReceivedMessage) -> tuple[object, ...]:
    """The fields that its producer gave."""
    own = {name: text for name, text in message.properties.items() if name not in PROPERTIES}
    parts = (message.body, message.tag, message.keys, message.ordering_key, message.born_at_ms)
    return (*parts, own)


def _write_sparse(path: Path, bodies: list[bytes]) -> None:
    """An archive with no more columns than it needs, of one queue of topic 12, the last first."""
    numbers = range(len(bodies))[::-1]
    rows = {
        "body": bodies[::-1],
        "broker_set": ["set-9"] * len(bodies),
        "queue_id": pa.array([7] * len(bodies), pa.int32()),
        "queue_offset": pa.array(numbers, pa.int64()),
        "stored_at": pa.array(numbers, pa.timestamp("us", tz="UTC")),
    }
    day = path / "topic=12" / "date=2026-11-16"
    day.mkdir(parents=True)
    pq.write_table(pa.table(rows), day / "part-0000000000-0000.parquet")


def _crash(*_: object) -> None:
    raise OSError("the machine is gone")


# -- tests -----------------------------------------------------------------------------------------


def test_a_replay_that_is_killed_in_a_step_goes_on_and_each_message_is_there_once(
    replays: Replays, broker: BrokerProcess, archived: Archived, tmp_path: Path
) -> None:
    create_topic(broker.address, "killed", 3)
    arguments = ("--to-topic", "killed", "--id", "killed")
    command = ("replay", "--from", str(archived.path), "--server", broker.address, *arguments)
    with SparkCommand(tmp_path, *command, "--rate", "50") as running:
        deadline_s = time.monotonic() + DEADLINE_S
        while count(broker.address, "killed") < 20:
            assert running.is_running, running.errors
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        running.kill()
    before = count(broker.address, "killed")
    assert 20 <= before < 240
    done = replays.result(*arguments, "--rate", "100000")
    assert done["rows"] == done["rows_of_all_runs"] == 240
    # What the killed one had sent was stored, and known to be.
    assert before <= done["repeated"] < 240
    _check_once_in_order(broker.address, "killed", archived.messages)
    assert replays.result(*arguments, "--rate", "9")["rows"] == 0


def test_a_task_that_is_stopped_does_not_take_the_rows_it_has_for_all(
    replays: Replays, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """As Ctrl-C stops it: Spark ends the rows, and lets the task run on for a while."""
    create_topic(broker.address, "stopped", 1)
    # More than all buffers between Java and the task hold, and chunks that they do not fill.
    bodies = [os.urandom(64 << 10) for _ in range(300)]
    _write_sparse(tmp_path, bodies)
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(setting, "7")
    state = ReplayState(tmp_path / "_mq_archive" / "replays" / "stopped")
    wanted = Wanted(to_topic="stopped", is_paced=True)
    try:
        with state.locked(), ThreadPoolExecutor(1) as pool:
            directory = ArchiveDirectory(tmp_path)
            plan = state.begin(directory, wanted, tasks=2, chunk_rows=50, window_ms=0)
            replaying = Replaying(
                spark, ConnectionOptions(broker.address), state, plan, Pace(rate=200)
            )
            running = pool.submit(replaying.run)
            eventually(lambda: running.done() or count(broker.address, "stopped"))
            spark.sparkContext.cancelAllJobs()
            assert running.exception() is not None
    finally:
        spark.conf.unset(setting)
    arguments = ("--to-topic", "stopped", "--id", "stopped", "--rate", "1000")
    assert replays.result(*arguments, source=tmp_path)["rows"] == 300
    (messages,) = stored(broker.address, "stopped").values()
    assert [one.body for one in messages] == bodies


def test_messages_are_as_they_were_in_the_order_of_their_queues(
    replays: Replays, broker: BrokerProcess, archived: Archived
) -> None:
    create_topic(broker.address, "again", _QUEUES)
    done = replays.result("--to-topic", "again", "--topics", "orders")
    assert (done["rows"], done["repeated"]) == (200, 0)
    queues = stored(broker.address, "again")
    for ref, messages in queues.items():
        originals = archived.queues[ref._replace(topic="orders")]
        assert [_content(one) for one in messages] == [_content(one) for one in originals]
        assert [tuple(one.properties[name] for name in PROPERTIES) for one in messages] == [
            (one.message_id, "orders", str(one.stored_at_ms)) for one in originals
        ]
    assert sum(map(len, queues.values())) == 200


def test_same_topics_get_their_messages_again_and_plain_ones_are_not_marked(
    replays: Replays, broker: BrokerProcess, archived: Archived
) -> None:
    before = stored(broker.address, "orders") | stored(broker.address, "payments")
    done = replays.run("--same-topics", "--plain")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Replayed 240 messages in ")
    assert "if it is cut off, add --id" in done.stderr
    after = stored(broker.address, "orders") | stored(broker.address, "payments")
    for ref, messages in after.items():
        fresh = messages[len(before[ref]) :]
        # With the properties that they had, and no others.
        assert [(one.properties, _content(one)) for one in fresh] == [
            (one.properties, _content(one)) for one in archived.queues[ref]
        ]


def test_only_what_passes_the_filters_is_replayed(
    replays: Replays,
    broker: BrokerProcess,
    archived: Archived,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_topic(broker.address, "filtered", 1)
    times_ms = sorted({one.stored_at_ms for one in archived.messages})
    since_ms, until_ms = times_ms[len(times_ms) // 2], times_ms[-1]
    filters: list[tuple[tuple[str, ...], Callable[[ReceivedMessage], bool]]] = [
        (("--topics", "payments"), lambda one: one.topic == "payments"),
        (("--since", str(since_ms)), lambda one: one.stored_at_ms >= since_ms),
        (("--until", str(until_ms)), lambda one: one.stored_at_ms < until_ms),
        (("--key", "k7", "--key", "k110"), lambda one: one.body in (b"7", b"110")),
        (
            ("--tags", "b || c", "--where", "int(string(body)) > 100", "--rate", "10000"),
            lambda one: one.tag == "b" and int(one.body) > 100,
        ),
        (("--where", "false", "--speed", "9x"), lambda _one: False),
    ]
    seen = 0
    for arguments, is_wanted in filters:
        # Steps without a message, and all in one.
        monkeypatch.setattr(replay_plan, "STEP_ROWS", 130 if "--where" in arguments else 240)
        expected = [one for one in archived.messages if is_wanted(one)]
        assert len(expected) < 240
        done = replays.result("--to-topic", "filtered", *arguments)
        assert done["rows"] == len(expected), arguments
        (messages,) = stored(broker.address, "filtered").values()
        assert _ids(messages[seen:]) == Counter(one.message_id for one in expected), arguments
        seen = len(messages)


def test_a_dry_run_counts_and_leaves_no_trace(
    replays: Replays, broker: BrokerProcess, archived: Archived
) -> None:
    create_topic(broker.address, "dry", 1)
    copies = archived.path / "_mq_archive" / "replays"
    before = sorted(copies.glob("*"))
    arguments = ("--to-topic", "dry", "--tags", "a", "--dry-run")
    counted = {row["topic"]: row for row in replays.result(*arguments)}
    for topic in ("orders", "payments"):
        tagged = [one for one in archived.messages if (one.topic, one.tag) == (topic, "a")]
        assert counted[topic] == {
            "topic": topic,
            "messages": len(tagged),
            "body_bytes": sum(len(one.body) for one in tagged),
            "first_ms": min(one.stored_at_ms for one in tagged),
            "last_ms": max(one.stored_at_ms for one in tagged),
        }
    assert len(counted) == 2
    assert "120 messages would be replayed" in replays.run(*arguments).stdout
    assert "Nothing would be replayed" in replays.run(*arguments, "--since", "2100-01-01").stdout
    assert count(broker.address, "dry") == 0
    assert sorted(copies.glob("*")) == before


@pytest.mark.parametrize(
    "paces",
    [
        [(), (), ()],
        # Other windows than at first, and none.
        [("--speed", "1x"), ("--speed", "0.01x"), ("--rate", "100000")],
        [("--rate", "100000"), ("--rate", "20"), ("--speed", "0.01x")],
    ],
)
def test_messages_stored_but_not_recorded_are_stored_once_at_any_pace(
    replays: Replays,
    broker: BrokerProcess,
    archived: Archived,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    paces: list[tuple[str, ...]],
) -> None:
    path = tmp_path / "archive"
    shutil.copytree(archived.path, path, ignore=shutil.ignore_patterns("replays"))
    topic = f"crashed-{'-'.join(name.strip('-') for name in paces[0][:1]) or 'fast'}"
    create_topic(broker.address, topic, 2)
    arguments = ("--to-topic", topic, "--id", "crashed")
    with monkeypatch.context() as broken:
        broken.setattr(ReplayState, "record", _crash)
        for pace in paces[:2]:
            crashed = replays.run(*arguments, *pace, source=path)
            assert isinstance(crashed.exception, OSError), crashed.output
            first_step = count(broker.address, topic)
            assert 0 < first_step < 240
    # The files of the plan are still there, though the archive has others now.
    directory = ArchiveDirectory(path)
    with directory.locked():
        assert compact(directory, "9999-12-31", 1 << 20).files_after == 2
    done = replays.result(*arguments, *paces[2], source=path)
    assert (done["rows"], done["repeated"]) == (240, first_step)
    _check_once_in_order(broker.address, topic, archived.messages)
    refused = replays.run(*arguments, *paces[2], "--tags", "a", source=path)
    assert refused.exit_code == 1
    assert "crashed was started without --tags, now it is with --tags 'a'" in refused.stderr


def test_a_replay_of_the_same_name_begun_anew_is_another_one(
    replays: Replays, broker: BrokerProcess, archived: Archived, tmp_path: Path
) -> None:
    create_topic(broker.address, "twice", 2)
    arguments = ("--to-topic", "twice", "--topics", "payments", "--id", "monday")
    for state in ("one", "other"):
        done = replays.result(*arguments, "--state", str(tmp_path / state))
        assert (done["rows"], done["repeated"]) == (40, 0)
    found = [one for messages in stored(broker.address, "twice").values() for one in messages]
    payments = Counter(one.message_id for one in archived.messages if one.topic == "payments")
    assert _ids(found) == payments + payments


def test_a_rate_is_that_of_the_whole_replay(
    replays: Replays, broker: BrokerProcess, archived: Archived
) -> None:
    create_topic(broker.address, "paced", _QUEUES)
    rate, chunk_rows = 80, 8
    began_ms = time.time() * 1000
    done = replays.result("--to-topic", "paced", "--rate", str(rate))
    assert done["rows"] == 240
    found = _check_once_in_order(broker.address, "paced", archived.messages)
    for number, at_ms in enumerate(sorted(one.stored_at_ms for one in found), 1):
        assert number <= rate * (at_ms - began_ms) / 1000 + chunk_rows
    # All topics in the order of time, in each of the steps.
    assert len({one.properties[PROPERTIES[1]] for one in found}) == 2


def test_columns_that_an_archive_did_not_have_are_empty(
    replays: Replays, broker: BrokerProcess, tmp_path: Path
) -> None:
    create_topic(broker.address, "sparse", 1)
    _write_sparse(tmp_path, [b"0", b"1", b"2"])
    assert replays.result("--to-topic", "sparse", source=tmp_path)["rows"] == 3
    (messages,) = stored(broker.address, "sparse").values()
    assert [one.body for one in messages] == [b"0", b"1", b"2"]
    properties = dict(zip(PROPERTIES, ("", "12", "0"), strict=True))
    assert [_content(one)[1:4] for one in messages] == [("", (), "")] * 3
    assert messages[0].properties == properties


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--to-topic dry --id a/b", "SPARK_FAILED: --id 'a/b': use up to 64 of letters"),
        ("--to-topic dry --topics ordres", "has no topic ordres, it has orders, payments"),
        ("--to-topic dry --where tag=", "SPARK_FAILED: --where 'tag=': Syntax error at or near"),
        ("--to-topic dry --where tagg=1", "name `tagg` cannot be resolved"),
        ("--to-topic dry --where tag --dry-run", "--where 'tag': "),
        ("--to-topic nowhere", "messages cannot be replayed: topic nowhere does not exist"),
        ("--to-topic %no!", "ILLEGAL_TOPIC"),
        ("--to-topic dry --server 127.0.0.1:1", "UNREACHABLE: no broker answers at 127.0.0.1:1"),
    ],
)
def test_an_error_is_one_line(replays: Replays, arguments: str, told: str) -> None:
    failed = replays.run(*arguments.split())
    assert failed.exit_code == 1
    lines = [line for line in failed.stderr.splitlines() if not line.lower().startswith("replay ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert told in lines[0]


def test_a_path_without_an_archive_is_refused(replays: Replays, tmp_path: Path) -> None:
    failed = replays.run("--to-topic", "dry", source=tmp_path)
    assert f"{tmp_path} has no topic=.../date=.../*.parquet" in failed.stderr
    assert not list(tmp_path.iterdir())
