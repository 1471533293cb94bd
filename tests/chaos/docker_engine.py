"""The cluster of deploy/docker-compose.yml, as a project of its own, for chaos in containers.

Containers are killed, paused and taken off their network; links between them are cut by rules of
iptables in the chain that Docker keeps for its users; one node has a small disk. Clients are on the
host and come by the published ports. The image is built from the working tree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.chaos import engine as questions
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
FILES = (ROOT / "deploy" / "docker-compose.yml", ROOT / "tests" / "chaos" / "compose.yml")
SMALL_NODE = "a3"
_SMALL_DISK_BYTES = 256 << 20
_BROKER_BYTES = 256 << 20
_COMMAND_S = 600.0
_VERSION_S = 30.0
_FILLER = "/data/filler"
# Root, or a user that may.
_IPTABLES = ("iptables", "-w", "10")
_CHAIN = "DOCKER-USER"


def why_not() -> str:
    """The reason why no engine can be used here; empty if one can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    for command in (["docker", "version"], ["docker", "compose", "version"]):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_VERSION_S
            )
        except subprocess.TimeoutExpired:
            return f"`{' '.join(command)}` does not end"
        if done.returncode != 0:
            return f"`{' '.join(command)}` fails: {done.stderr.strip()}"
    return ""


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_S,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr}")
    return done.stdout


class DockerEngine:
    """`directory` is for what containers and host share: the files that step clocks."""

    name = "docker"

    def __init__(self, directory: Path, minutes: float = 1.0) -> None:
        self.sets: Mapping[str, Sequence[str]] = {
            name: [f"{name}{at}" for at in (1, 2, 3)] for name in ("a", "b")
        }
        self.project = f"mqchaos-{uuid.uuid4().hex[:8]}"
        nodes = questions.nodes_of(self)
        self._ports = {node: free_port() for node in nodes}
        self._clocks = directory / "clocks"
        self._clocks.mkdir(parents=True, exist_ok=True)
        # Nothing is dropped while it runs: what is sent stays.
        disk_bytes = _SMALL_DISK_BYTES + int(minutes * (32 << 20))
        self._environment = {
            **{f"PORT_{node.upper()}": str(port) for node, port in self._ports.items()},
            **{f"METRICS_{node.upper()}": str(free_port()) for node in nodes},
            **{name.replace(".", "_").upper(): value for name, value in questions.OPTIONS.items()},
            "CHAOS_SCRIPT": str(Path(__file__).with_name("stepped_server.py")),
            "CHAOS_CLOCKS": str(self._clocks.resolve()),
            "CHAOS_SMALL_DISK": str(disk_bytes),
            "CHAOS_SMALL_MEMORY": str(disk_bytes + _BROKER_BYTES),
        }
        troubles: dict[str, str] = {}
        self.disk: questions.SmallDisk | None = _SmallDisk(self)
        self.network: questions.Network | None = _Network(self, nodes)
        try:
            _run(*_IPTABLES, "-L", _CHAIN, "-n")
        except (RuntimeError, OSError) as error:
            self.network = None
            troubles["network"] = f"rules of iptables are not ours to set: {error}"
        self.unable: Mapping[str, str] = troubles

    # -- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.compose("build", "--quiet", self.sets["a"][0])
            self.compose("up", "--detach", "--no-build", "--quiet-pull")
            questions.wait_well(self, self.sets)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.network is not None:
            self.network.mend()
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "0")

    def compose(self, *command: str) -> str:
        files = [part for file in FILES for part in ("--file", str(file))]
        return _run(
            *("docker", "compose", "--project-name", self.project, *files),
            *command,
            environment=self._environment,
        )

    def container(self, node: str) -> str:
        return f"{self.project}-{node}-1"

    def address(self, node: str) -> str:
        return f"127.0.0.1:{self._ports[node]}"

    # -- processes ---------------------------------------------------------------------------------

    def kill(self, *nodes: str) -> None:
        _run("docker", "kill", *map(self.container, nodes))

    def start(self, *nodes: str) -> None:
        _run("docker", "start", *map(self.container, nodes))

    def stop(self, node: str) -> None:
        _run("docker", "stop", "--time", "60", self.container(node))
        state = _run("docker", "inspect", "--format", "{{.State.ExitCode}}", self.container(node))
        if state.strip() != "0":
            raise AssertionError(f"{node} ended with {state.strip()} after SIGTERM")

    def freeze(self, node: str) -> None:
        _run("docker", "pause", self.container(node))

    def thaw(self, node: str) -> None:
        _run("docker", "unpause", self.container(node))

    def step_clock(self, node: str, step_ms: int) -> None:
        (self._clocks / node).write_text(str(step_ms))

    # -- what is seen of it ------------------------------------------------------------------------

    def logs(self, node: str) -> str:
        # Its standard error is where a broker writes them.
        command = ("docker", "logs", self.container(node))
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMMAND_S
        )
        return done.stdout + done.stderr

    def ip(self, node: str) -> str:
        """Empty while it runs not, or is on no network."""
        form = "{{json .NetworkSettings.Networks}}"
        found = json.loads(_run("docker", "inspect", "--format", form, self.container(node)))
        return next((one["IPAddress"] for one in found.values()), "")


class _Network:
    def __init__(self, engine: DockerEngine, nodes: Sequence[str]) -> None:
        self._engine = engine
        self._nodes = nodes
        self._rules: list[tuple[str, ...]] = []

    @property
    def _name(self) -> str:
        return f"{self._engine.project}_default"

    def isolate(self, node: str) -> None:
        _run("docker", "network", "disconnect", self._name, self._engine.container(node))

    def rejoin(self, node: str) -> None:
        container = self._engine.container(node)
        _run("docker", "network", "connect", "--alias", node, self._name, container)

    def cut(self, source: str, target: str) -> None:
        self._drop("-s", self._engine.ip(source), "-d", self._engine.ip(target))

    def lose(self, node: str, share: float) -> None:
        chance = ("-m", "statistic", "--mode", "random", "--probability", str(share))
        address = self._engine.ip(node)
        self._drop("-s", address, *chance)
        self._drop("-d", address, *chance)

    def _drop(self, *which: str) -> None:
        rule = (_CHAIN, *which, "-j", "DROP")
        _run(*_IPTABLES, "-I", *rule)
        self._rules.append(rule)

    def mend(self) -> None:
        while self._rules:
            _run(*_IPTABLES, "-D", *self._rules.pop())


class _SmallDisk:
    node = SMALL_NODE

    def __init__(self, engine: DockerEngine) -> None:
        self._keeper = engine.container("keeper")

    def fill(self) -> None:
        # Ends with an error when there is no byte left: that is what it is for.
        command = f"dd if=/dev/zero of={_FILLER} bs=64K 2>/dev/null; test -s {_FILLER}"
        _run("docker", "exec", self._keeper, "sh", "-c", command)

    def free(self) -> None:
        _run("docker", "exec", self._keeper, "rm", "-f", _FILLER)
