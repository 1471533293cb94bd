"""bench.peers: what load tools print is read, and what cannot be had is skipped with its reason."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.peers import clients, kafka, nats, ours, rabbitmq, redis, rocketmq
from bench.peers.__main__ import main, peers_directory
from bench.peers.installation import Installation, Skipped, pom, tool
from bench.peers.peer import Processes, run_tool
from bench.peers.plot import draw
from bench.peers.report import Figure, Report, middle, shown

ReadFigure = Callable[[str], float]

KAFKA = """\
Warmup first 50000 records. Steady state results will print after the complete test summary.
4617 records sent, 921.9 records/sec (0.11 MB/sec), 3810.4 ms avg latency, 4847.0 ms max latency.
250000 records sent, 37608.123355 records/sec (4.59 MB/sec), 1332.70 ms avg latency, 1747 ms 99th.
200000 steady state records sent, 46439.628483 records/sec (5.67 MB/sec), 1512.88 ms avg latency.
"""
NATS_ASYNC = """\
19:36:59 Starting JetStream asynchronous publisher benchmark [batch=500, clients=1, msgs=100,000]
19:36:59 [1] Starting JetStream asynchronous publisher, publishing 100,000 messages

NATS JetStream asynchronous publisher stats: 46,495 msgs/sec ~ 5.7 MiB/sec ~ 21.51us
"""
NATS_SYNC = """\
NATS JetStream synchronous publisher aggregated stats: 14,403 msgs/sec ~ 1.8 MiB/sec
  [1] 251 msgs/sec ~ 32 KiB/sec ~ 3971.87us (313 msgs)
  [2] 248 msgs/sec ~ 31 KiB/sec ~ 4027.77us (313 msgs)
  message rates min 224 | avg 229 | max 251 | stddev 5 msgs
"""
PERF_TEST = """\
id: test-194005-123, time: 3.000s, sent: 26,988 msg/s, min/median/75th/95th/99th confirm latency: 1
test stopped (Producer reached time limit)
id: test-194005-123, sending rate avg: 26840 msg/s
id: test-194005-123, receiving rate avg: 0 msg/s
"""
REDIS = """\
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms"
"XADD s__rand_int__ * b xxxx","113636.37","0.326","0.072","0.303","0.439"
"""
BATCH_PRODUCER = """\
Current Time: 2026-01-01 00:00:01,000 | Send TPS: 3900 | Send MPS: 124801 | Max RT(ms): 131
Current Time: 2026-01-01 00:00:02,000 | Send TPS: 4216 | Send MPS: 134925 | Max RT(ms): 131
"""
PRODUCER = """\
Current Time: 2026-01-01 00:00:01,000 | Send TPS: 14890 | Max RT(ms): 61 | Average RT(ms):   4.295
Current Time: 2026-01-01 00:00:02,000 | Send TPS: 15021 | Max RT(ms): 61 | Average RT(ms):   4.258
"""


@pytest.mark.parametrize(
    ("read", "output", "per_s"),
    [
        pytest.param(kafka.records_per_s, KAFKA, 46_439.628483, id="kafka, after its warm-up"),
        pytest.param(nats.published_per_s, NATS_ASYNC, 46_495, id="one NATS client"),
        pytest.param(nats.published_per_s, NATS_SYNC, 14_403, id="all NATS clients together"),
        pytest.param(rabbitmq.sent_per_s, PERF_TEST, 26_840, id="PerfTest, the average"),
        pytest.param(redis.added_per_s, REDIS, 113_636.37, id="redis-benchmark"),
        pytest.param(rocketmq.messages_per_s, BATCH_PRODUCER, 134_925, id="RocketMQ, messages"),
        pytest.param(rocketmq.sends_per_s, PRODUCER, 15_021, id="RocketMQ, the last report"),
        pytest.param(ours.calls_per_s, '{"calls": 30000, "seconds": 2.5}', 12_000, id="bench/load"),
        pytest.param(clients.rate, "a warning\n500000 2.5\n", 200_000, id="a Python client"),
    ],
)
def test_a_tool_is_read(read: ReadFigure, output: str, per_s: float) -> None:
    assert read(output) == pytest.approx(per_s)


@pytest.mark.parametrize(
    "read",
    [
        kafka.records_per_s,
        nats.published_per_s,
        rabbitmq.sent_per_s,
        redis.added_per_s,
        rocketmq.messages_per_s,
        rocketmq.sends_per_s,
        clients.rate,
    ],
)
def test_a_tool_without_a_figure_is_skipped_with_what_it_said(read: ReadFigure) -> None:
    with pytest.raises(Skipped, match="ERROR: no route to the broker"):
        read("starting\nERROR: no route to the broker\nbye\n")


def test_a_tool_that_fails_is_skipped_with_its_error() -> None:
    program = "import sys; print('connected'); sys.exit('error: the topic is not there')"
    with pytest.raises(Skipped, match="failed: error: the topic is not there"):
        run_tool([sys.executable, "-c", program])


def test_a_tool_without_an_end_is_ended_after_its_reports() -> None:
    program = "import itertools\nfor at in itertools.count(): print('Send TPS:', at, flush=True)"
    output = run_tool([sys.executable, "-c", program], until="Send TPS", times=3)
    assert output.split() == ["Send", "TPS:", "0", "Send", "TPS:", "1", "Send", "TPS:", "2"]


def test_a_tool_that_ends_before_its_reports_is_skipped() -> None:
    with pytest.raises(Skipped, match="one report"):
        run_tool([sys.executable, "-c", "print('one report')"], until="report", times=2)


def test_a_broker_that_ends_at_its_start_is_skipped_with_its_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('error: no room on the disk')"]
    with Processes(tmp_path / "data") as processes, pytest.raises(Skipped, match="no room"):
        processes.start("broker", command, port=1)


# -- obtaining -------------------------------------------------------------------------------------


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(rabbitmq, "_PROGRAMS", str(tmp_path / "bin"))
    program(tmp_path / "bin", "java", "exit 0")
    return tmp_path / "bin"


def test_what_was_fetched_is_not_fetched_again(programs: Path, tmp_path: Path) -> None:
    program(programs, "mvn", f"echo once >> {tmp_path}/fetched")
    installation = Installation(tmp_path / "peers", offline=False)
    for _ in range(2):
        assert installation.jars("kafka", "a:b:1") == tmp_path / "peers" / "kafka" / "lib"
    assert (tmp_path / "fetched").read_text() == "once\n"

    installation.jars("kafka", "a:b:2")
    assert (tmp_path / "fetched").read_text() == "once\nonce\n", "another version is another fetch"


def test_a_fetch_that_failed_is_made_again(programs: Path, tmp_path: Path) -> None:
    program(programs, "mvn", "echo '[ERROR] Could not find artifact a:b:1'; exit 1")
    installation = Installation(tmp_path / "peers", offline=False)
    with pytest.raises(Skipped, match=r"mvn .* failed: .*Could not find artifact a:b:1"):
        installation.jars("kafka", "a:b:1")

    program(programs, "mvn", "exit 0")
    installation.jars("kafka", "a:b:1")


def test_the_project_for_maven_names_every_artifact() -> None:
    root = ET.fromstring(pom(["org.a:b:1", "org.c:d:2"]))  # noqa: S314 - our own text
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    found = [[part.text for part in one] for one in root.iterfind(".//m:dependency", space)]
    assert found == [["org.a", "b", "1"], ["org.c", "d", "2"]]


def test_a_program_that_is_missing_is_named(programs: Path) -> None:
    assert tool("no-such-program", "java") == str(programs / "java")
    with pytest.raises(Skipped, match="mvn is not installed"):
        tool("mvn")


@pytest.mark.usefixtures("programs")
def test_peers_that_cannot_be_had_are_skipped_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "rocketmq,kafka,nats,rabbitmq,redis"
    directory = str(tmp_path / "peers")
    monkeypatch.setattr("sys.argv", ["peers", "--only", names, "--directory", directory, "--json"])
    main()

    report = json.loads(capsys.readouterr().out)
    assert report == {
        "figures": [],
        "skipped": {
            "rocketmq": "mvn is not installed",
            "kafka": "mvn is not installed",
            "nats": "go is not installed",
            "rabbitmq": "rabbitmq-server is not installed",
            "redis": "redis-server is not installed",
        },
    }


@pytest.mark.usefixtures("programs")
def test_nothing_is_fetched_when_offline(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match=r"kafka is not in .*, and --offline was given"):
        kafka.Kafka(Installation(tmp_path, offline=True))


def test_a_durability_that_a_peer_does_not_offer_is_skipped(programs: Path, tmp_path: Path) -> None:
    for name in ("rabbitmq-server", "rabbitmqctl", "epmd", "mvn"):
        program(programs, name, "exit 0")
    peer = rabbitmq.RabbitMq(Installation(tmp_path / "peers", offline=False))
    with pytest.raises(Skipped, match="after fsync only"):
        peer.durability("async")


def test_the_directory_of_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BENCH_PEERS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peers_directory(None) == tmp_path / "mq-peers"
    monkeypatch.setenv("BENCH_PEERS_DIR", str(tmp_path / "named"))
    assert peers_directory(None) == tmp_path / "named"
    assert peers_directory(tmp_path / "chosen") == tmp_path / "chosen"


# -- showing ---------------------------------------------------------------------------------------


def figure(title: str, work: str, per_s: float, *, size: int = 128, flush: str = "async") -> Figure:
    return Figure(title, work, size, flush, per_s, (per_s, per_s), "a tool", "in the page cache")


def test_a_later_run_replaces_the_same_figure(tmp_path: Path) -> None:
    first = Report([figure("mq", "batches", 1.0), figure("mq", "calls", 2.0)], {"redis": "why"})
    second = Report([figure("mq", "batches", 3.0), figure("mq", "batches", 4.0, flush="sync")])
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    for path, report in zip(paths, (first, second), strict=True):
        path.write_text(report.to_json())

    merged = Report.merged(paths)
    assert merged.rates(["batches", "calls"], "async") == {
        "mq": {("batches", 128): 3.0, ("calls", 128): 2.0}
    }
    assert merged.rates(["batches"], "sync") == {"mq": {("batches", 128): 4.0}}
    assert merged.skipped == {"redis": "why"}


def test_the_table_fits_a_terminal_and_names_durability_and_reasons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ("mq", "mq, encoded before", "JetStream 2.15.1")
    works = ("batches", "calls", "send", "receive")
    figures = [
        figure(name, work, 1_234_567.0, size=size, flush=flush)
        for name in names
        for work in works
        for size in (128, 1024)
        for flush in ("async", "sync")
    ]
    Report(figures, {"redis": "redis-server is not installed"}).show()
    shown_lines = capsys.readouterr().out.splitlines()

    assert max(map(len, shown_lines)) <= 80
    assert (
        sum(bool(re.match(r"JetStream 2.15.1( +1,230,000){4}$", one)) for one in shown_lines) == 3
    )
    assert "  JetStream 2.15.1: in the page cache" in shown_lines
    assert shown_lines[-1] == "skipped: redis: redis-server is not installed"


def test_figures_are_shown_with_three_digits() -> None:
    assert [shown(value) for value in (None, 0.0, 7.6, 431.2, 13_249.0, 4_187_000.0)] == [
        "-", "-", "8", "431", "13,200", "4,190,000"
    ]  # fmt: skip


def test_the_middle_of_rounds() -> None:
    assert middle([3.0, 1.0, 2.0]) == 2.0
    assert middle([1.0, 2.0]) == 2.0


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_plot_is_drawn_again_byte_for_byte(tmp_path: Path, suffix: str) -> None:
    report = Report([figure("mq", "batches", 5000.0), figure("Kafka 4.3.1", "calls", 300.0)])
    paths = [tmp_path / f"{at}.{suffix}" for at in range(2)]
    for path in paths:
        draw(report, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    if suffix == "svg":
        assert {"5,000", "300", "Kafka 4.3.1"} <= set(
            re.findall(r">([^<>\n]+)</text>", paths[0].read_text())
        )
