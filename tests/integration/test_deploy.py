"""The files in deploy/ fit the broker: its health check, its metrics, its options."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mq import config
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "docker-compose.yml"
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
    """The whole file, as Compose reads it; that needs no engine."""
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command")
    command = ["docker", "compose", "--file", str(COMPOSE), "--profile", "monitoring", "config"]
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


def test_prometheus_scrapes_every_broker(compose: dict[str, Any]) -> None:
    text = (ROOT / "deploy" / "prometheus.yml").read_text()
    targets = re.findall(r"\b([a-z][0-9]):5557\b", text)
    assert sorted(targets) == sorted(brokers(compose))
