"""Redis streams with an append-only file, from the system's packages; redis-benchmark with XADD."""

from __future__ import annotations

from typing import ClassVar

from bench.peers.installation import Installation, tool
from bench.peers.peer import Flush, Peer, Processes, Work, number, run_tool
from tests.support.raft_cluster import free_port

_PIPELINE = 100
_CONNECTIONS = 8


class Redis(Peer):
    name = "redis"
    title = "Redis streams"
    tools: ClassVar[dict[Work, str]] = {
        "batches": f"redis-benchmark XADD, {_CONNECTIONS} connections, pipelines of {_PIPELINE}",
        "calls": "redis-benchmark XADD, a connection a caller, no pipeline",
    }

    def obtain(self, installation: Installation) -> None:  # noqa: ARG002 # as of all peers
        programs = ("redis-server", "redis-benchmark", "redis-cli")
        self._server, self._benchmark, self._cli = (tool(name) for name in programs)
        version = number(r"v=([\d]+\.[\d]+)", run_tool([self._server, "--version"]))
        self.title = f"Redis {version:g} streams"

    def durability(self, flush: Flush) -> str:
        if flush == "sync":
            return "fsync of the append-only file, once a turn of its loop (appendfsync always)"
        return "in the page cache, flushed every second (appendfsync everysec)"

    def start(self, processes: Processes, flush: Flush) -> str:
        port = free_port()
        appendfsync = "always" if flush == "sync" else "everysec"
        config = processes.directory / "redis.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {port}\ndir {processes.directory}\ndaemonize no\n"
            f'save ""\nappendonly yes\nappendfsync {appendfsync}\n'
            "auto-aof-rewrite-percentage 0\n"
        )
        processes.start("redis", [self._server, str(config)], port)
        self._port = str(port)
        return f"127.0.0.1:{port}"

    def batches(self, size: int, seconds: float) -> float:
        flags = ("-c", str(_CONNECTIONS), "-P", str(_PIPELINE))
        return self.by_count(
            "batches", size, lambda count: self._add(size, count, *flags), seconds, 100_000
        )

    def calls(self, size: int, seconds: float, callers: int) -> float:
        flags = ("-c", str(callers))
        return self.by_count(
            "calls", size, lambda count: self._add(size, count, *flags), seconds, 10_000
        )

    def _add(self, size: int, count: int, *flags: str) -> float:
        # Streams are in memory: the last one goes before the next one grows.
        run_tool([self._cli, "-p", self._port, "flushall"])
        command = [self._benchmark, "-p", self._port, "-n", str(count), "-r", "8", "--csv", *flags]
        return added_per_s(run_tool([*command, "XADD", "s__rand_int__", "*", "b", "x" * size]))


def added_per_s(output: str) -> float:
    """The second column of redis-benchmark's CSV: the first is the command."""
    return number(r'(?m)^"[^"]*","([\d.]+)"', output)
