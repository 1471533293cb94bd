"""NATS with JetStream, a stream on files; `nats bench js`."""

from __future__ import annotations

from typing import ClassVar

from bench.peers.installation import GoProgram, Installation
from bench.peers.peer import Flush, Peer, Processes, Work, number, run_tool
from tests.support.raft_cluster import free_port

VERSION = "2.15.1"
_SERVER = "github.com/nats-io/nats-server/v2"
_CLI = "github.com/nats-io/natscli"
_CLI_VERSION = "v0.3.0"


class Nats(Peer):
    name = "nats"
    title = f"JetStream {VERSION}"
    tools: ClassVar[dict[Work, str]] = {
        "batches": "nats bench js pub async, one client, 500 in flight",
        "calls": "nats bench js pub sync, a client and connection a caller",
    }
    # Its Python client needs no more to be busy for some seconds.
    backlog: ClassVar[dict[int, int]] = {128: 100_000, 1024: 100_000}

    def obtain(self, installation: Installation) -> None:
        server = GoProgram(_SERVER, f"v{VERSION}", _SERVER)
        self._server = installation.go("nats-server", server)
        self._cli = installation.go("nats", GoProgram(_CLI, _CLI_VERSION, f"{_CLI}/nats"))

    def durability(self, flush: Flush) -> str:
        if flush == "sync":
            return "fsync before each acknowledgement (sync_interval: always)"
        return "in the page cache, flushed every two minutes"

    def start(self, processes: Processes, flush: Flush) -> str:
        port = free_port()
        interval = "always" if flush == "sync" else "2m"
        store = processes.directory / "jetstream"
        config = processes.directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{store}", max_file: 40G, sync_interval: {interval} }}\n'
        )
        processes.start("nats-server", [str(self._server), "-c", str(config)], port)
        self._address = f"nats://127.0.0.1:{port}"
        return self._address

    def batches(self, size: int, seconds: float) -> float:
        return self.by_count(
            "batches",
            size,
            lambda count: self._publish("async", f"b{size}", size, count, "--batch", "500"),
            seconds,
            50_000,
        )

    def calls(self, size: int, seconds: float, callers: int) -> float:
        clients = ("--clients", str(callers))
        return self.by_count(
            "calls",
            size,
            lambda count: self._publish("sync", f"c{size}", size, count, *clients),
            seconds,
            20_000,
        )

    def fill(self, topic: str, size: int, count: int) -> None:
        self._publish("async", topic, size, count, "--batch", "500")

    def _publish(self, how: str, stream: str, size: int, count: int, *flags: str) -> float:
        command = [str(self._cli), "-s", self._address, "bench", "js", "pub", how, stream]
        command += ["--create", "--stream", stream, "--maxbytes", "3GB", "--size", f"{size}B"]
        command += ["--msgs", str(count), "--no-progress", *flags]
        return published_per_s(run_tool(command))


def published_per_s(output: str) -> float:
    """Of all clients together, where there are several."""
    return number(r"publisher (?:aggregated )?stats: ([\d,]+) msgs/sec", output)
