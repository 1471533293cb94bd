"""`mq console`, and the console that `mq server --console-port` runs beside the broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from mq.client import Producer
from tests.support.broker_process import BrokerProcess
from tests.support.console import ConsoleProcess
from tests.support.raft_cluster import free_port
from tests.support.secured_broker import SecuredBroker
from tests.support.waiting import poll


def status(url: str) -> int:
    """0: nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 # of loopback
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_the_console_of_a_broker_comes_back_and_ends_with_it(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    broker = BrokerProcess(tmp_path / "data", "--console-port", str(port))
    with broker:
        poll(lambda: status(url) == 200, "the console serves")
        [first] = children(broker.pid)
        os.kill(first, signal.SIGKILL)
        poll(lambda: not is_alive(first), "it is gone")
        # The broker does not mind.
        with Producer(broker.address) as producer:
            producer.send("orders", "meanwhile")
        poll(lambda: status(url) == 200, "it serves again")
        [second] = children(broker.pid)
        broker.kill()
        poll(lambda: not is_alive(second), "it ends with a broker that was killed")
        broker.start()
        poll(lambda: status(url) == 200, "it serves with the next run of the broker")
        [third] = children(broker.pid)
        assert broker.stop() == 0
        assert not is_alive(third)


def test_a_console_that_cannot_run_is_no_reason_for_a_broker_to_stop(tmp_path: Path) -> None:
    """Its port is taken: it is tried ever more seldom, and the broker serves."""
    with BrokerProcess(tmp_path / "one") as other:
        taken = other.address.rpartition(":")[2]
        with BrokerProcess(tmp_path / "two", "--console-port", taken) as broker:
            poll(
                lambda: any(
                    "console cannot listen" in line.get("said", "") for line in broker.log()
                ),
                "the log says why there is none",
            )
            (taken_line,) = (one for one in broker.log() if "--console-port" in one["event"])
            assert taken_line["port"] == int(taken)
            with Producer(broker.address) as producer:
                producer.send("orders", "served")


def refused(servers: str, *flags: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mq", "console", "--server", servers),
            *("--port", "0", *flags),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_other_machines_are_served_only_when_brokers_ask_who_comes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "open") as broker:
        said = refused(broker.address, "--host", "0.0.0.0")  # noqa: S104
        assert "auth.mode" in said
        assert "--open" in said
        with ConsoleProcess(broker.address, "--host", "0.0.0.0", "--open") as console:  # noqa: S104
            port = console.url.rpartition(":")[2]
            assert status(f"http://127.0.0.1:{port}/") == 200
            assert console.stop() == 0
    folder = tmp_path / "secured"
    folder.mkdir()
    with (
        SecuredBroker(folder) as secured,
        ConsoleProcess(secured.address, "--host", "0.0.0.0") as console,  # noqa: S104
    ):
        port = console.url.rpartition(":")[2]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
            assert answer.url.endswith("/login")


def test_a_key_of_the_environment_is_not_the_key_of_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SecuredBroker(tmp_path) as broker:
        monkeypatch.setenv("MQ_API_KEY", broker.root)
        with (
            ConsoleProcess(broker.address) as console,
            urllib.request.urlopen(f"{console.url}/topics", timeout=30) as answer,  # noqa: S310
        ):
            assert answer.url.endswith("/login?next=%2Ftopics")
