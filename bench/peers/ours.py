"""mq itself, one node: with its client, and with batches that were encoded before."""

from __future__ import annotations

import json
import sys
from typing import ClassVar

from bench.broker import BATCHES, create_topic, generate
from bench.calls import build
from bench.peers.installation import Installation, tool
from bench.peers.peer import Flush, Peer, Processes, Work, run_tool
from tests.support.raft_cluster import free_port


class Mq(Peer):
    name = "mq"
    title = "mq"
    tools: ClassVar[dict[Work, str]] = {
        "batches": "mq bench produce, one process: our Python client",
        "calls": "bench/load, grpc-go: unary Sends on one connection",
    }

    def obtain(self, installation: Installation) -> None:
        pass

    def durability(self, flush: Flush) -> str:
        if flush == "sync":
            return "fsync of the log, shared by waiting messages (store.flush = sync)"
        return "in the page cache, flushed by the kernel (store.flush = async)"

    def start(self, processes: Processes, flush: Flush) -> str:
        port = free_port()
        command = [sys.executable, "-m", "mq", "server", "--data", str(processes.directory / "d")]
        command += ["--port", str(port), "--metrics-enabled", "no", "--store-flush", flush]
        processes.start("mq", command, port)
        self.address = f"127.0.0.1:{port}"
        self._directory = processes.directory
        create_topic(self.address, "bench", 8)
        return self.address

    def batches(self, size: int, seconds: float) -> float:
        return self._produce("bench", size, "--seconds", str(seconds))

    def calls(self, size: int, seconds: float, callers: int) -> float:
        load = self._directory / "load"
        if not load.exists():
            tool("go")
            build(load)
        command = [str(load), "-mode", "unary", "-address", self.address, "-size", str(size)]
        command += ["-seconds", str(seconds), "-callers", str(callers)]
        return calls_per_s(run_tool(command))

    def fill(self, topic: str, size: int, count: int) -> None:
        create_topic(self.address, topic, 8)
        self._produce(topic, size, "--messages", str(count))

    def _produce(self, topic: str, size: int, *flags: str) -> float:
        command = [sys.executable, "-m", "mq", "bench", "produce", "--server", self.address]
        command += ["--topic", topic, "--size", str(size), "--json", *flags]
        return float(json.loads(run_tool(command))["messages_per_s"])


class MqEncoded(Mq):
    name = "mq-encoded"
    title = "mq, encoded before"
    tools: ClassVar[dict[Work, str]] = {
        "batches": "bench.generator: batches of half a megabyte that were encoded before",
    }

    def batches(self, size: int, seconds: float) -> float:
        flags = {"size": size, "batch": BATCHES[size], "seconds": seconds, "warm_bytes": 0}
        return generate("produce", self.address, **flags)["messages_per_s"]


def calls_per_s(output: str) -> float:
    figures = json.loads(output)
    return float(figures["calls"] / figures["seconds"])
