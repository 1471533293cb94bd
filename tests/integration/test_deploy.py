"""The files in deploy/ fit the broker: its health check, its metrics, its options."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mq import config
from mq.access import keys
from mq.broker.security.key_files import first_admin
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "docker-compose.yml"
SECURE = ROOT / "deploy" / "docker-compose.secure.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "mq.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
ALERTS_TEST = ROOT / "deploy" / "prometheus" / "alerts_test.yml"
METRIC = re.compile(r"\b(?:mq|process)_[a-z0-9_]+")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("deploy") / "data") as broker:
        yield broker


def health(address: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mq", "health", "--server", address, *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_broker_that_serves_is_healthy(broker: BrokerProcess) -> None:
    done = health(broker.address)
    assert (done.returncode, done.stdout) == (0, "serving\n")
    document = json.loads(health(broker.address, "--json").stdout)
    assert document == {"is_healthy": True, "status": "SERVING"}


def test_a_broker_that_is_not_there_is_not_healthy() -> None:
    done = health(f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "no broker answers" in done.stderr


def test_a_broker_that_is_frozen_is_not_healthy(broker: BrokerProcess) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        done = health(broker.address, "--timeout", "0.3")
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert done.returncode == 1
    assert "no broker answers" in done.stderr


def test_a_broker_without_a_leader_is_not_healthy(tmp_path: Path) -> None:
    members = ",".join(f"n{at}=127.0.0.1:{free_port()}" for at in (1, 2, 3))
    flags = ("--node-id", "n1", "--raft-members", members, "--metrics-enabled", "no")
    alone = BrokerProcess(tmp_path / "n1", *flags, port=free_port())
    alone.launch()
    try:
        while not (done := health(alone.address)).stdout and alone.is_running:
            assert done.returncode == 1
        assert (done.returncode, done.stdout) == (1, "not serving\n")
    finally:
        alone.kill()


def probed(broker: BrokerProcess, path: str) -> int:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{broker.metrics_port}{path}", timeout=60
        ) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_probes_of_a_broker_that_serves_succeed(broker: BrokerProcess) -> None:
    assert (probed(broker, "/livez"), probed(broker, "/readyz")) == (200, 200)


def exposed(broker: BrokerProcess) -> set[str]:
    """Names that Prometheus can ask for."""
    url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as response:
        text = response.read().decode()
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        parts = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        found |= {name + part for part in parts}
    return found


def test_every_metric_of_the_dashboard_exists(broker: BrokerProcess) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [one for one in dashboard["panels"] if one["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [one["query"]["query"] for one in dashboard["templating"]["list"]]
    names = {name for text in asked for name in METRIC.findall(text)}
    assert len(names) > 20
    assert names - exposed(broker) == set()
    assert len({one["id"] for one in dashboard["panels"]}) == len(dashboard["panels"])


def test_alerts_ask_for_metrics_that_a_broker_has(broker: BrokerProcess) -> None:
    rules = ALERTS.read_text()
    # Not what annotations say: those name commands and options.
    asked = re.findall(r"^ +expr: (.*(?:\n {10,}.*)*)", rules, re.MULTILINE)
    assert len(asked) == rules.count("- alert:") > 15
    names = {name for text in asked for name in METRIC.findall(text)}
    assert names - exposed(broker) == set()
    tested = set(re.findall(r"alertname: (\w+)", ALERTS_TEST.read_text()))
    assert tested <= set(re.findall(r"alert: (\w+)", rules))
    assert len(tested) > 10


def test_alerts_fire_when_they_should() -> None:
    # `make test` puts it beside Python.
    promtool = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if promtool is None:
        pytest.skip("there is no promtool: it comes with Prometheus")
    checked = (
        ["check", "config", str(ROOT / "deploy" / "prometheus.yml")],
        ["check", "rules", str(ALERTS)],
    )
    for arguments in (*checked, ["test", "rules", str(ALERTS_TEST)]):
        done = subprocess.run(
            [promtool, *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return as_compose_reads(COMPOSE)


def as_compose_reads(*files: Path) -> dict[str, Any]:
    """The whole of them; that needs no engine."""
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command")
    named = [part for file in files for part in ("--file", str(file))]
    command = ["docker", "compose", *named, "--profile", "monitoring", "config"]
    done = subprocess.run(
        [*command, "--format", "json"], capture_output=True, text=True, check=False, timeout=120
    )
    if "is not a docker command" in done.stderr or "unknown" in done.stderr:
        pytest.skip(f"docker has no compose: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def brokers(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = compose["services"]
    others = {"console"}
    return {
        name: one
        for name, one in services.items()
        if not one.get("profiles") and name not in others
    }


def test_the_compose_file_has_two_sets_of_three(compose: dict[str, Any]) -> None:
    found = brokers(compose)
    assert sorted(found) == ["a1", "a2", "a3", "b1", "b2", "b3"]
    for name, one in found.items():
        environment = one["environment"]
        options = config.load(None, environment, {})
        assert (options.node.broker_set, options.node.id) == (name[0], name)
        assert options.broker.advertised == f"{name}:8081"
        assert options.broker.auto_create_topics == "no"
        assert f"{name}={name}:8082" in options.raft.members.split(",")
        (published,) = [port["published"] for port in one["ports"] if port["target"] == 9081]
        assert options.broker.external_advertised == f"127.0.0.1:{published}"
        assert options.broker.external_listen == "0.0.0.0:9081"
        assert set(options.broker.seeds.split(",")) == {f"{other}:8081" for other in found}
        assert int(one["mem_limit"]) == 256 << 20
        assert all(port["host_ip"] == "127.0.0.1" for port in one["ports"])
    ports = [port["published"] for one in found.values() for port in one["ports"]]
    assert len(set(ports)) == len(ports)


def test_the_console_asks_both_sets_and_is_for_this_machine_alone(compose: dict[str, Any]) -> None:
    console = compose["services"]["console"]
    assert console["command"][:3] == ["console", "--server", "a1:8081,b1:8081"]
    assert [port["host_ip"] for port in console["ports"]] == ["127.0.0.1"]
    secure = as_compose_reads(COMPOSE, SECURE)["services"]["console"]
    assert "--open" not in secure["command"]
    assert "--ca" in secure["command"]


def test_the_secure_cluster_knows_its_callers_and_encrypts() -> None:
    found = as_compose_reads(COMPOSE, SECURE)
    for name in ("a1", "a2", "a3", "b1", "b2", "b3"):
        one = found["services"][name]
        options = config.load(None, one["environment"], {})
        assert (options.auth.mode, options.auth.open) == ("required", "no")
        assert options.broker.tls == "required"
        assert options.raft.tls_cert
        assert one["healthcheck"]["test"][-1] == options.broker.tls_ca
        assert one["depends_on"]["secrets"]["condition"] == "service_completed_successfully"
        (secrets,) = [volume for volume in one["volumes"] if volume["target"] == "/secrets"]
        assert secrets["read_only"]


def test_the_secrets_of_the_secure_cluster_are_made_once(tmp_path: Path) -> None:
    text = SECURE.read_text()
    script = textwrap.dedent(text.partition("      - |\n")[2].partition("    volumes:")[0])
    script = script.replace("/secrets", str(tmp_path)).replace("$$", "$").replace("chown", "true")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    made = []
    for _ in range(2):
        subprocess.run(
            ["/bin/sh", "-euc", script],
            env={"PATH": path},
            check=True,
            capture_output=True,
            timeout=120,
        )
        made.append({one.name: one.read_bytes() for one in tmp_path.iterdir()})
    assert made[0] == made[1]
    needed = set(re.findall(r"/secrets/([\w.-]+)", text))
    assert needed <= made[0].keys()
    admin = first_admin(str(tmp_path / "first-admin"))
    assert (admin.user, admin.key) == ("root", keys.parse(made[0]["root.key"].decode().strip()))


def test_prometheus_scrapes_every_broker(compose: dict[str, Any]) -> None:
    for name in ("prometheus.yml", "otel-collector.yml"):
        text = (ROOT / "deploy" / name).read_text()
        targets = re.findall(r"\b([a-z][0-9]):5557\b", text)
        assert sorted(targets) == sorted(brokers(compose))


UNIT = ROOT / "deploy" / "systemd" / "mq.service"


def analyzed(verb: str, *flags: str, unit: Path) -> subprocess.CompletedProcess[str]:
    systemd_analyze = shutil.which("systemd-analyze")
    if systemd_analyze is None:
        pytest.skip("there is no systemd-analyze")
    return subprocess.run(
        [systemd_analyze, verb, *flags, str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_systemd_unit_is_legal_and_starts_what_there_is(tmp_path: Path) -> None:
    unit, program = tmp_path / "mq.service", Path(sys.executable).with_name("mq")
    # It is looked for.
    unit.write_text(UNIT.read_text().replace("/opt/mq/bin/mq", str(program)))
    done = analyzed("verify", unit=unit)
    assert (done.returncode, done.stderr) == (0, "")
    (start,) = re.findall(r"^ExecStart=\S+ (.*)$", UNIT.read_text(), re.MULTILINE)
    words = iter(start.split())
    assert next(words) == "server"
    flags = dict(zip(words, words, strict=True))
    assert flags.keys() == {"--config", "--data"}
    assert f"StateDirectory={Path(flags['--data']).name}\n" in UNIT.read_text()
    assert config.load(None, {}, {"node.data": flags["--data"]}).node.data == flags["--data"]


def test_the_systemd_unit_exposes_little() -> None:
    # In tenths of ten; systemd itself calls what is below 5.0 fine.
    done = analyzed("security", "--offline=true", "--threshold=20", unit=UNIT)
    if "Unknown" in done.stderr or "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze does not judge files")
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
