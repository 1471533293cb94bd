"""A cluster of plain processes on this machine, for chaos without Docker.

Two sets of three `mq server`. They share the machine's network and disk, so that only processes and
clocks can be made to fail.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.chaos import engine as questions
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCRIPT = Path(__file__).with_name("stepped_server.py")


class _SteppedProcess(BrokerProcess):
    """Its clock is what the file says."""

    @property
    def clock(self) -> Path:
        return self._data.with_name(f"{self._data.name}.clock")

    @property
    def program(self) -> list[str]:
        return [str(_SCRIPT), str(self.clock)]


class LocalEngine:
    name = "local"
    network: questions.Network | None = None
    disk: questions.SmallDisk | None = None

    def __init__(self, directory: Path) -> None:
        self.sets: Mapping[str, Sequence[str]] = {
            name: [f"{name}{at}" for at in (1, 2, 3)] for name in ("a", "b")
        }
        self.unable: Mapping[str, str] = {
            "network": "all nodes share one: docker only",
            "disk": "all nodes share one: docker only",
        }
        self._nodes: dict[str, _SteppedProcess] = {}
        ports = {node: free_port() for node in questions.nodes_of(self)}
        seeds = ",".join(f"127.0.0.1:{port}" for port in ports.values())
        for name, nodes in self.sets.items():
            members = ",".join(f"{node}=127.0.0.1:{free_port()}" for node in nodes)
            for node in nodes:
                (directory / name).mkdir(parents=True, exist_ok=True)
                self._nodes[node] = _SteppedProcess(
                    directory / name / node,
                    *("--node-broker-set", name, "--node-node", node),
                    *("--raft-members", members, "--broker-seeds", seeds),
                    *("--broker-auto-create-topics", "no", "--metrics-enabled", "no"),
                    *_flags(),
                    port=ports[node],
                )

    def __enter__(self) -> Self:
        try:
            self.start(*self._nodes)
            questions.wait_well(self, self.sets)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(*(name for name, node in self._nodes.items() if node.is_running))

    def address(self, node: str) -> str:
        return self._nodes[node].address

    def kill(self, *nodes: str) -> None:
        for node in nodes:
            os.kill(self._nodes[node].pid, signal.SIGKILL)
        for node in nodes:
            self._nodes[node].kill()

    def start(self, *nodes: str) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: self._nodes[node].launch(), nodes))

    def stop(self, node: str) -> None:
        code = self._nodes[node].stop()
        if code != 0:
            raise AssertionError(f"{node} ended with {code} after SIGTERM")

    def freeze(self, node: str) -> None:
        os.kill(self._nodes[node].pid, signal.SIGSTOP)

    def thaw(self, node: str) -> None:
        os.kill(self._nodes[node].pid, signal.SIGCONT)

    def step_clock(self, node: str, step_ms: int) -> None:
        self._nodes[node].clock.write_text(str(step_ms))

    def logs(self, node: str) -> str:
        return self._nodes[node].output()


def _flags() -> list[str]:
    found = []
    for name, value in questions.OPTIONS.items():
        found += [f"--{name.replace('.', '-').replace('_', '-')}", value]
    return found
