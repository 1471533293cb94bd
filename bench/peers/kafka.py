"""Apache Kafka in KRaft mode, broker and controller in one process; kafka-producer-perf-test."""

from __future__ import annotations

from typing import ClassVar

from bench.peers.installation import Installation
from bench.peers.peer import Flush, Peer, Processes, Work, java, number, run_tool
from tests.support.raft_cluster import free_port

VERSION = "4.3.1"
_CLUSTER_ID = "bWVzc2FnZXMtYS1zZWNvbg"
_CALLS = ("batch.size=0", "linger.ms=0")


class Kafka(Peer):
    name = "kafka"
    title = f"Kafka {VERSION}"
    tools: ClassVar[dict[Work, str]] = {
        "batches": "kafka-producer-perf-test, one producer, acks=all, its default batches",
        "calls": "the same with batches of one record; five requests in flight, not 64",
    }

    def obtain(self, installation: Installation) -> None:
        artifacts = ("kafka_2.13", "kafka-tools", "kafka-clients")
        coordinates = (f"org.apache.kafka:{name}:{VERSION}" for name in artifacts)
        self._jars = installation.jars("kafka", *coordinates)

    def durability(self, flush: Flush) -> str:
        if flush == "sync":
            return "fsync of the partition's log on each append (flush.messages=1)"
        return "in the page cache, flushed by the kernel"

    def start(self, processes: Processes, flush: Flush) -> str:
        port, controller = free_port(), free_port()
        properties = processes.directory / "server.properties"
        properties.write_text(
            f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={processes.directory / "logs"}
num.partitions=8
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
group.initial.rebalance.delay.ms=0
{"log.flush.interval.messages=1" if flush == "sync" else ""}
"""
        )
        format_ = java(self._jars, "256m", "kafka.tools.StorageTool")
        run_tool([*format_, "format", "-t", _CLUSTER_ID, "-c", str(properties)])
        processes.start("kafka", [*java(self._jars, "1g", "kafka.Kafka"), str(properties)], port)
        self._address = f"127.0.0.1:{port}"
        return self._address

    def batches(self, size: int, seconds: float) -> float:
        return self.by_count(
            "batches", size, lambda count: self._send(f"b{size}", size, count), seconds, 500_000
        )

    def calls(self, size: int, seconds: float, callers: int) -> float:  # noqa: ARG002 # its tool has no callers
        return self.by_count(
            "calls", size, lambda count: self._send(f"c{size}", size, count, *_CALLS), seconds, 5000
        )

    def fill(self, topic: str, size: int, count: int) -> None:
        self._send(topic, size, count // 2)

    def _send(self, topic: str, size: int, count: int, *properties: str) -> float:
        command = java(self._jars, "512m", "org.apache.kafka.tools.ProducerPerformance")
        command += ["--bootstrap-server", self._address, "--topic", topic]
        # As many again before the clock starts: the code of both sides is compiled meanwhile.
        command += ["--num-records", str(2 * count), "--warmup-records", str(count)]
        command += ["--record-size", str(size), "--throughput", "-1"]
        command += ["--command-property", "acks=all", *properties]
        return records_per_s(run_tool(command))


def records_per_s(output: str) -> float:
    """Of the records after the warm-up."""
    return number(r"steady state records sent, ([\d.]+) records/sec", output)
