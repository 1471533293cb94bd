"""`mq server` itself, three of it: what a person sees in the log lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.cluster.judgement import verify
from tests.support.log_compare import compare
from tests.support.raft_cluster import DEADLINE_S, ROOT, free_port, poll

if TYPE_CHECKING:
    from pathlib import Path


class Server:
    def __init__(self, data: Path, *flags: str) -> None:
        self.data = data
        self._log = data.with_name(data.name + ".log")
        self._log.touch()
        command = [
            sys.executable,
            "-m",
            "mq",
            "server",
            "--data",
            str(data),
            "--port",
            "0",
            "--metrics-port",
            "0",
            *flags,
        ]
        environment = {key: value for key, value in os.environ.items() if key[:3] != "MQ_"}
        with self._log.open("ab") as stderr:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=stderr, env=environment)

    def text(self) -> str:
        return self._log.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"]
        return [event for event in events if event["event"] == name]

    @property
    def leader(self) -> str | None:
        """By its last word."""
        said = self.events("leadership")
        return said[-1]["leader"] if said else None

    @property
    def votes(self) -> bool:
        waits = self.events("this node does not vote until it has caught up")
        return len(self.events("caught up: this node votes again")) == len(waits)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def same_leader(servers: list[Server]) -> str:
    def leader() -> str | None:
        names = {server.leader for server in servers}
        return names.pop() if len(names) == 1 else None

    return str(poll(leader, "all say the same leader"))


def test_three_servers_elect_a_leader_survive_its_death_and_stop_when_told(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    members = ",".join(f"{name}=127.0.0.1:{free_port()}" for name in names)
    servers = {
        name: Server(tmp_path / name, "--node-id", name, "--raft-members", members)
        for name in names
    }
    try:
        poll(lambda: all(one.events("node is up") for one in servers.values()), "all are up")
        # One that came late to the first election has to catch up before it may vote.
        poll(lambda: all(one.votes for one in servers.values()), "all vote")
        leader = same_leader(list(servers.values()))
        assert servers[leader].end(signal.SIGKILL) == -signal.SIGKILL
        left = [server for name, server in servers.items() if name != leader]
        poll(lambda: all(one.leader not in {leader, None} for one in left), "another one leads")
        assert same_leader(left) != leader
        for server in left:
            server.process.send_signal(signal.SIGTERM)
        assert [server.process.wait(DEADLINE_S) for server in left] == [0, 0]
    finally:
        for server in servers.values():
            server.process.kill()
            server.process.wait()
    assert all("Traceback" not in server.text() for server in servers.values())
    assert all(server.events("node is down") for server in left)
    assert compare([server.data for server in servers.values()]) == []
    for server in servers.values():
        verify(server.data)


def test_a_server_alone_needs_nothing_but_a_directory(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        up = poll(lambda: server.events("node is up"), "it is up")
        assert up[0]["role"] == "leader"
        assert server.end(signal.SIGTERM) == 0
    finally:
        server.process.kill()
        server.process.wait()
    assert "Traceback" not in server.text()
