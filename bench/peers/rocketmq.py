"""Apache RocketMQ, a name server and a broker without its proxy; the benchmark of its examples.

The broker's port for replicas listens on all addresses: it has no setting for that.
"""

from __future__ import annotations

from typing import ClassVar

from bench.peers.installation import Installation
from bench.peers.peer import Flush, Peer, Processes, Work, java, number, run_tool
from tests.support.raft_cluster import free_port

VERSION = "5.5.0"
_BATCH = 32
_BATCH_THREADS = 8
# Its tools report every second, for the first time after ten, the mean of the last ten seconds:
# later reports have less of the start in them.
_REPORTS = 4
_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)


class RocketMq(Peer):
    name = "rocketmq"
    title = f"RocketMQ {VERSION}"
    tools: ClassVar[dict[Work, str]] = {
        "batches": f"benchmark.BatchProducer, {_BATCH_THREADS} threads, batches of {_BATCH}",
        "calls": "benchmark.Producer, synchronous sends, a thread a caller",
    }

    def obtain(self, installation: Installation) -> None:
        artifacts = ("namesrv", "broker", "tools", "example", "client")
        coordinates = (f"org.apache.rocketmq:rocketmq-{name}:{VERSION}" for name in artifacts)
        self._jars = installation.jars("rocketmq", *coordinates)

    def durability(self, flush: Flush) -> str:
        if flush == "sync":
            return "fsync of the commit log, shared by waiting sends (SYNC_FLUSH)"
        return "in the page cache, flushed every 500 ms (ASYNC_FLUSH)"

    def start(self, processes: Processes, flush: Flush) -> str:
        home = processes.directory
        names, port, ha = free_port(), free_port(), free_port()
        self._flags = (*_OPENS, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}")
        (home / "names.conf").write_text(f"listenPort={names}\nbindAddress=127.0.0.1\n")
        (home / "broker.conf").write_text(
            f"""\
brokerClusterName=bench
brokerName=bench
brokerId=0
namesrvAddr=127.0.0.1:{names}
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
bindAddress=127.0.0.1
listenPort={port}
haListenPort={ha}
brokerRole=ASYNC_MASTER
flushDiskType={flush.upper()}_FLUSH
storePathRootDir={home / "store"}
storePathCommitLog={home / "store" / "commitlog"}
"""
        )
        package = "org.apache.rocketmq"
        command = java(self._jars, "256m", f"{package}.namesrv.NamesrvStartup", *self._flags)
        processes.start("namesrv", [*command, "-c", str(home / "names.conf")], names)
        command = java(self._jars, "1g", f"{package}.broker.BrokerStartup", *self._flags)
        processes.start("broker", [*command, "-c", str(home / "broker.conf")], port)
        self._names = f"127.0.0.1:{names}"
        self._create_topic("bench")
        return self._names

    def batches(self, size: int, seconds: float) -> float:  # noqa: ARG002 # its tool has times of its own
        flags = ("-s", str(size), "-w", str(_BATCH_THREADS), "-b", str(_BATCH))
        return messages_per_s(self._bench("BatchProducer", flags))

    def calls(self, size: int, seconds: float, callers: int) -> float:  # noqa: ARG002 # its tool has times of its own
        flags = ("-s", str(size), "-w", str(callers))
        return sends_per_s(self._bench("Producer", flags))

    def _bench(self, what: str, flags: tuple[str, ...]) -> str:
        main = f"org.apache.rocketmq.example.benchmark.{what}"
        command = [*java(self._jars, "512m", main, *self._flags), "-n", self._names]
        command += ["-t", "bench", "-ri", "1000", *flags]
        return run_tool(command, until="Send TPS", times=_REPORTS)

    def _create_topic(self, topic: str) -> None:
        """Fails as long as the broker has not registered with the name server: so the tool waits
        for that, too.
        """
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        command = [*java(self._jars, "256m", main, *self._flags), "updateTopic"]
        command += ["-n", self._names, "-c", "bench", "-t", topic, "-r", "8", "-w", "8"]
        run_tool(command)


def messages_per_s(output: str) -> float:
    """Of the last report of BatchProducer, whose TPS counts batches."""
    return number(r"Send MPS: (\d+)", output)


def sends_per_s(output: str) -> float:
    return number(r"Send TPS: (\d+)", output)
