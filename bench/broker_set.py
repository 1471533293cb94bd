"""Brokers as real processes for benchmarks: one node, or a broker set on loopback."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tests.support.raft_cluster import free_port

_START_S = 60.0


class BrokerSet:
    """`address` is the leader's. Stops with SIGKILL: nothing of it is kept."""

    def __init__(self, directory: Path, nodes: int, flush: str, *flags: str) -> None:
        """`flags` are more of `mq server`."""
        self._directory = directory
        self._flush = flush
        self._flags = flags
        self._names = [f"n{at}" for at in range(nodes)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        members = ",".join(f"{name}=127.0.0.1:{free_port()}" for name in self._names)
        for name in self._names:
            command = [sys.executable, "-m", "mq", "server", "--data", str(self._directory / name)]
            command += ["--node-id", name, "--port", "0", "--metrics-enabled", "no"]
            command += ["--store-flush", self._flush, "--log-format", "json", *self._flags]
            command += ["--raft-members", members] if len(self._names) > 1 else []
            with self._log_path(name).open("wb") as log_file:
                self._processes.append(
                    subprocess.Popen(command, stdout=log_file, stderr=subprocess.STDOUT)
                )
        deadline = time.monotonic() + _START_S
        while not (leader := self._leader()):
            if time.monotonic() > deadline:
                sys.exit("the broker did not come up, see its log")
            time.sleep(0.05)
        self.address = leader
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        # A fast machine writes tens of gigabytes in one run.
        shutil.rmtree(self._directory)

    def cpu_s(self) -> float:
        """CPU seconds of all nodes so far: of their threads that live, to the nanosecond."""
        spent_ns = 0
        for process in self._processes:
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                spent_ns += int((task / "schedstat").read_text().split()[0])
        return spent_ns / 1e9

    def rss_mb(self) -> float:
        """Memory of the largest node."""
        sizes = []
        for process in self._processes:
            status = Path(f"/proc/{process.pid}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
            sizes.append(int(line.split()[1]) / 1000)
        return max(sizes)

    def _leader(self) -> str:
        """Its address, when all nodes are up."""
        found, is_up = "", 0
        for name in self._names:
            lines = self._log_path(name).read_text().splitlines()
            ups = [json.loads(line) for line in lines if '"node is up"' in line]
            is_up += bool(ups)
            if ups and ups[-1]["leader"] == name:
                found = ups[-1]["address"]
        return found if is_up == len(self._names) else ""

    def _log_path(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def single(directory: Path, flush: str, *flags: str) -> BrokerSet:
    return BrokerSet(directory, 1, flush, *flags)
