"""The cluster of deploy/docker-compose.yml, as a project of its own, for chaos in containers.

Containers are killed, paused and taken off their network; links between them are cut by rules of
iptables in the chain that Docker keeps for its users; one node has a small disk. Clients are on the
host and come by the published ports. The image is built from the working tree.

Containers are driven by the client of testcontainers. Compose is not: its wrapper there has neither
a name for the project nor variables of its own, so that two runs at once would share a cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from testcontainers.core.docker_client import DockerClient

from tests.chaos import engine as questions
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
_COMPOSE = ROOT / "deploy" / "docker-compose.yml"
_SECURE = ROOT / "deploy" / "docker-compose.secure.yml"
_CHAOS = Path(__file__).with_name("compose.yml")
_CHAOS_SECURE = Path(__file__).with_name("compose.secure.yml")
SMALL_NODE = "a3"
_SMALL_DISK_BYTES = 256 << 20
_BROKER_BYTES = 256 << 20
_IMAGE = "mq:chaos"
_COMMAND_S = 600.0
_VERSION_S = 30.0
_STOP_S = 60
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


def _run(
    *command: str, environment: Mapping[str, str] | None = None, text: str | None = None
) -> str:
    done = subprocess.run(
        command,
        input=text,
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
    """`directory` is for what containers and host share: the files that step clocks, and what
    clients of a secure cluster need.
    """

    name = "docker"

    def __init__(self, directory: Path, minutes: float = 1.0, *, is_secure: bool = False) -> None:
        self._files = (
            [_COMPOSE, _SECURE, _CHAOS, _CHAOS_SECURE] if is_secure else [_COMPOSE, _CHAOS]
        )
        self._is_secure = is_secure
        self._directory = directory
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
        self.access = questions.Access()
        self._docker: Any = DockerClient().client
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
            services = (*questions.nodes_of(self), "keeper")
            self.compose("up", "--detach", "--no-build", "--quiet-pull", *services)
            if self._is_secure:
                self.access = self._fetched_access()
            questions.wait_well(self, self.sets)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.network is not None:
            self.network.mend()
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "0")

    def _fetched_access(self) -> questions.Access:
        ca, key = (
            self.compose("exec", "-T", self.sets["a"][0], "cat", f"/secrets/{name}")
            for name in ("ca.pem", "root.key")
        )
        path = self._directory / "ca.pem"
        path.write_text(ca)
        return questions.Access(str(path), key.strip())

    def compose(self, *command: str) -> str:
        files = [part for file in self._files for part in ("--file", str(file))]
        return _run(
            *("docker", "compose", "--project-name", self.project, *files),
            *command,
            environment=self._environment,
        )

    def container(self, node: str) -> Any:
        return self._docker.containers.get(f"{self.project}-{node}-1")

    def network_of_all(self) -> Any:
        return self._docker.networks.get(f"{self.project}_default")

    def address(self, node: str) -> str:
        return f"127.0.0.1:{self._ports[node]}"

    # -- processes ---------------------------------------------------------------------------------

    def kill(self, *nodes: str) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: self.container(node).kill(), nodes))

    def start(self, *nodes: str) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: self.container(node).start(), nodes))

    def stop(self, node: str) -> None:
        container = self.container(node)
        container.stop(timeout=_STOP_S)
        code = container.wait()["StatusCode"]
        if code != 0:
            raise AssertionError(f"{node} ended with {code} after SIGTERM")

    def freeze(self, node: str) -> None:
        self.container(node).pause()

    def thaw(self, node: str) -> None:
        self.container(node).unpause()

    def step_clock(self, node: str, step_ms: int) -> None:
        (self._clocks / node).write_text(str(step_ms))

    def at_disk(self, node: str, verb: str, argument: object = None) -> Any:
        # In a container of its own: that of the node may be dead.
        script = Path(__file__).with_name("rot_disk.py").read_text()
        command = ("docker", "run", "--rm", "--interactive", "--network", "none")
        answer = _run(
            *(*command, "--volumes-from", self.container(node).name, "--entrypoint", "python"),
            *(_IMAGE, "-c", script, "/data", verb),
            text=json.dumps(argument),
        )
        return json.loads(answer)

    # -- what is seen of it ------------------------------------------------------------------------

    def logs(self, node: str) -> str:
        text: bytes = self.container(node).logs()
        return text.decode(errors="replace")

    def ip(self, node: str) -> str:
        """Empty while it runs not, or is on no network."""
        networks = self.container(node).attrs["NetworkSettings"]["Networks"]
        return next((one["IPAddress"] for one in networks.values()), "")


class _Network:
    def __init__(self, engine: DockerEngine, nodes: Sequence[str]) -> None:
        self._engine = engine
        self._nodes = nodes
        self._rules: list[tuple[str, ...]] = []

    def isolate(self, node: str) -> None:
        self._engine.network_of_all().disconnect(self._engine.container(node))

    def rejoin(self, node: str) -> None:
        self._engine.network_of_all().connect(self._engine.container(node), aliases=[node])

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
        self._engine = engine

    def fill(self) -> None:
        # Ends with an error when there is no byte left: that is what it is for.
        command = f"dd if=/dev/zero of={_FILLER} bs=64K 2>/dev/null; test -s {_FILLER}"
        self._run("sh", "-c", command)

    def free(self) -> None:
        self._run("rm", "-f", _FILLER)

    def _run(self, *command: str) -> None:
        done = self._engine.container("keeper").exec_run(list(command))
        if done.exit_code != 0:
            raise RuntimeError(f"{command} ended with {done.exit_code}: {done.output!r}")
