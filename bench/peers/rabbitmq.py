"""RabbitMQ from the system's packages, a quorum queue of one member; PerfTest from Maven.

Its server needs Erlang and is in none of the registries that are used here.
"""

from __future__ import annotations

import os
import shutil
from typing import ClassVar

from bench.peers.installation import Installation, Skipped, tool
from bench.peers.peer import Flush, Peer, Processes, Work, java, number, run_tool
from tests.support.raft_cluster import free_port

_PERF_TEST = "com.rabbitmq:perf-test:2.22.1"
# Debian's program on the PATH changes to a user of its own; the one behind it does not.
_PROGRAMS = "/usr/lib/rabbitmq/bin"
_UNCONFIRMED = 500


class RabbitMq(Peer):
    name = "rabbitmq"
    title = "RabbitMQ"
    tools: ClassVar[dict[Work, str]] = {
        "batches": f"PerfTest, one producer, {_UNCONFIRMED} unconfirmed messages",
        "calls": "PerfTest, a connection a caller, one unconfirmed message each",
    }

    def obtain(self, installation: Installation) -> None:
        self._server, self._control = (_program(f"rabbitmq{end}") for end in ("-server", "ctl"))
        self._epmd = tool("epmd")
        self._jars = installation.jars("rabbitmq", _PERF_TEST)

    def durability(self, flush: Flush) -> str:
        if flush == "async":
            raise Skipped("RabbitMQ confirms durable messages after fsync only")
        return "fsync of the Raft log of a quorum queue, shared by waiting messages"

    def start(self, processes: Processes, flush: Flush) -> str:  # noqa: ARG002 # it has one way to flush
        home = processes.directory
        port, daemon = free_port(), free_port()
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{port}\ndisk_free_limit.absolute = 1GB\n"
        )
        (home / "enabled_plugins").write_text("[].\n")
        env = {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(daemon),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        # Its own: one that the server starts by itself would outlive it.
        epmd = [self._epmd, "-address", "127.0.0.1", "-port", str(daemon)]
        processes.start("epmd", epmd, daemon)
        processes.start("rabbitmq", [self._server], port, env)
        version = run_tool([self._control, "--silent", "version"], env=env).split()[-1]
        self.title = f"RabbitMQ {version}"
        self._address = f"amqp://guest:guest@127.0.0.1:{port}/%2f"
        self._queues = 0
        return self._address

    def batches(self, size: int, seconds: float) -> float:
        return self._perf("-x", "1", "-c", str(_UNCONFIRMED), size=size, seconds=seconds)

    def calls(self, size: int, seconds: float, callers: int) -> float:
        return self._perf("-x", str(callers), "-c", "1", size=size, seconds=seconds)

    def _perf(self, *flags: str, size: int, seconds: float) -> float:
        self._queues += 1
        command = java(self._jars, "512m", "com.rabbitmq.perf.PerfTest")
        command += ["-h", self._address, "--quorum-queue", "--queue", f"q{self._queues}"]
        command += ["-y", "0", "-s", str(size), "-z", str(max(1, round(seconds))), *flags]
        return sent_per_s(run_tool(command))


def _program(name: str) -> str:
    return shutil.which(name, path=_PROGRAMS) or tool(name)


def sent_per_s(output: str) -> float:
    return number(r"sending rate avg: ([\d,.]+) msg/s", output)
