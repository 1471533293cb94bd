"""`mq dev-cluster`: real processes that form a cluster, survive the death of one, and stop."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mq.client import Consumer, Producer
from tests.support.waiting import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 90
ENVIRONMENT = {name: value for name, value in os.environ.items() if name[:3] != "MQ_"}


class DevCluster:
    """A running `mq dev-cluster --json`."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mq", "dev-cluster", "--data", str(directory), "--json", *flags],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.put(line.strip())

    def up(self) -> dict[str, Any]:
        """The output once all nodes are up."""
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            if line == "}\n":
                break
        found: dict[str, Any] = json.loads(text)
        return found

    def next_line(self) -> str:
        return self._said.get(timeout=DEADLINE_S)

    def stop(self) -> tuple[int, list[str]]:
        """The exit code, and what it said since the last line that was asked for."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code, [self._said.get_nowait() for _ in range(self._said.qsize())]


@contextlib.contextmanager
def dev_cluster(directory: Path, *flags: str) -> Iterator[DevCluster]:
    cluster = DevCluster(directory, *flags)
    with cluster.process:
        try:
            yield cluster
        finally:
            if cluster.process.poll() is None:
                cluster.stop()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def send(servers: str, *bodies: str) -> None:
    with Producer(servers, timeout_s=30) as producer:
        for body in bodies:
            producer.send("greetings", body)


def received(servers: str, group: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(servers, group, "greetings", start="earliest") as consumer:
        while len(found) < count:
            messages = consumer.poll(timeout_s=DEADLINE_S)
            assert messages, found
            found += [message.body for message in messages]
    return sorted(found)


def test_a_console_that_dies_is_started_again(tmp_path: Path) -> None:
    def is_served(url: str) -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/health").close()  # noqa: S310 # of loopback
            return True
        return False

    with dev_cluster(tmp_path, "--nodes", "1", "--port", "0") as cluster:
        url = cluster.up()["console"]
        poll(lambda: is_served(url), "the console serves")
        [console] = (
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if url.rpartition(":")[2].encode() in (words := path.read_bytes().split(b"\0"))
            and b"console" in words
        )
        os.kill(console, signal.SIGKILL)
        assert cluster.next_line() == "the console has ended, and is started again"
        poll(lambda: is_served(url), "it serves again")


def test_a_cluster_loses_its_leader_goes_on_and_keeps_data_and_ports(tmp_path: Path) -> None:
    with dev_cluster(tmp_path, "--nodes", "3", "--port", "0") as cluster:
        first = cluster.up()
        nodes = first["nodes"]
        assert sorted(node["role"] for node in nodes) == ["follower", "follower", "leader"]
        send(first["servers"], "one", "two")
        leader = next(node for node in nodes if node["role"] == "leader")
        os.kill(leader["pid"], signal.SIGKILL)
        died = f"{leader['node']} (pid {leader['pid']}) ended by SIGKILL, see {leader['log']}"
        assert cluster.next_line() == died
        again = cluster.next_line()
        assert again.startswith("start it again: ")
        assert f"--node-id {leader['node']}" in again
        up = [node for node in nodes if node is not leader]
        names = ", ".join(node["node"] for node in up)
        yet = f"set-0 has no leader yet: 2 of 3 nodes are up ({names})"
        while (line := cluster.next_line()) == yet:
            pass
        assert line.startswith("set-0 is led by ")
        send(first["servers"], "three")
        assert received(first["servers"], "early", 3) == [b"one", b"three", b"two"]
        # The one that stays leads until it notices: by itself it can store nothing.
        follower, leader = sorted(up, key=lambda node: node["node"] in line)
        os.kill(follower["pid"], signal.SIGKILL)
        assert cluster.next_line().startswith(f"{follower['node']} (pid {follower['pid']}) ended")
        assert cluster.next_line().startswith("start it again: ")
        assert cluster.next_line() == (
            f"set-0 has no leader: 1 of 3 nodes is up ({leader['node']}), 2 are needed"
        )
        code, rest = cluster.stop()
        assert (code, rest) == (0, [])
        assert not any(is_running(node["pid"]) for node in nodes)
    with dev_cluster(tmp_path) as cluster:
        second = cluster.up()
        assert second["servers"] == first["servers"]
        assert received(second["servers"], "late", 3) == [b"one", b"three", b"two"]
        assert cluster.stop()[0] == 0
    log = (tmp_path / "node-0.log").read_text()
    assert "node is up" in log
    assert "Traceback" not in log


def run(directory: Path, *flags: str) -> tuple[int, str]:
    """Exit code and output of a start that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "mq", "dev-cluster", "--data", str(directory), *flags],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, text = run(tmp_path, "--nodes", "1", "--port", str(port))
    assert code == 1
    assert text.startswith("error: PORT_UNAVAILABLE: ")
    assert f"port {port} (node-0, for clients)" in text
    assert text.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_cannot_start_ends_all_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "other").touch()
    code, text = run(tmp_path, "--nodes", "2", "--port", "0")
    assert code == 1
    error = text.splitlines()[-1]
    assert error.startswith("error: NODE_STOPPED: node-1 (pid ")
    assert "WRONG_DATA_DIRECTORY" in error
