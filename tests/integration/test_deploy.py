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
    flags = ("--node-node", "n1", "--raft-members", members, "--metrics-enabled", "no")
    alone = BrokerProcess(tmp_path / "n1", *flags, port=free_port())
    alone.launch()
    try:
        while not (done := health(alone.address)).stdout and alone.is_running:
            assert done.returncode == 1
        assert (done.returncode, done.stdout) == (1, "not serving\n")
    finally:
        alone.kill()


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
    return {name: one for name, one in services.items() if not one.get("profiles")}


def test_the_compose_file_has_two_sets_of_three(compose: dict[str, Any]) -> None:
    found = brokers(compose)
    assert sorted(found) == ["a1", "a2", "a3", "b1", "b2", "b3"]
    for name, one in found.items():
        environment = one["environment"]
        options = config.load(None, environment, {})
        assert (options.node.broker_set, options.node.node) == (name[0], name)
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
    text = (ROOT / "deploy" / "prometheus.yml").read_text()
    targets = re.findall(r"\b([a-z][0-9]):5557\b", text)
    assert sorted(targets) == sorted(brokers(compose))
