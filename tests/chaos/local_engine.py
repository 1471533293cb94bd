"""A cluster of plain processes on this machine, for chaos without Docker.

Two sets of three `mq server`. They share the machine's network and disk, so that only processes,
clocks and single files can be made to fail.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.chaos import engine as questions
from tests.chaos import rot_disk
from tests.chaos.secrets import Secrets
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCRIPT = Path(__file__).with_name("stepped_server.py")


class SteppedProcess(BrokerProcess):
    """Its clock is what the file says."""

    @property
    def data(self) -> Path:
        return self._data

    @property
    def clock(self) -> Path:
        return self._data.with_name(f"{self._data.name}.clock")

    @property
    def program(self) -> list[str]:
        return [str(_SCRIPT), str(self.clock)]


class ProcessEngine:
    """The half of an engine that is the same for all brokers that are processes of this machine."""

    name: str
    network: questions.Network | None = None
    disk: questions.SmallDisk | None = None

    def __init__(self, sets: Sequence[str], unable: Mapping[str, str]) -> None:
        """Three nodes a set. Subclasses fill `_nodes`."""
        self.sets: Mapping[str, Sequence[str]] = {
            name: [f"{name}{at}" for at in (1, 2, 3)] for name in sets
        }
        self.unable = unable
        self._nodes: dict[str, SteppedProcess] = {}
        self.access = questions.Access()

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

    def at_disk(self, node: str, verb: str, argument: object = None) -> Any:
        return rot_disk.VERBS[verb](self._nodes[node].data, argument)

    def logs(self, node: str) -> str:
        return self._nodes[node].output()


class LocalEngine(ProcessEngine):
    name = "local"

    def __init__(self, directory: Path, *, is_secure: bool = False) -> None:
        """`is_secure`: TLS everywhere, and callers that are known."""
        reason = "all nodes share one: docker only"
        super().__init__(("a", "b"), {"network": reason, "disk": reason})
        security: list[str] = []
        if is_secure:
            secrets = Secrets(directory / "secrets")
            self.access, security = secrets.access, secrets.flags
        ports = {node: free_port() for node in questions.nodes_of(self)}
        seeds = ",".join(f"127.0.0.1:{port}" for port in ports.values())
        for name, nodes in self.sets.items():
            members = ",".join(f"{node}=127.0.0.1:{free_port()}" for node in nodes)
            for node in nodes:
                (directory / name).mkdir(parents=True, exist_ok=True)
                self._nodes[node] = SteppedProcess(
                    directory / name / node,
                    *("--node-broker-set", name, "--node-id", node),
                    *("--raft-members", members, "--broker-seeds", seeds),
                    *("--broker-auto-create-topics", "no", "--metrics-enabled", "no"),
                    *(*questions.option_flags(), *security),
                    port=ports[node],
                )
