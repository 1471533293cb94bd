"""`mq dev-cluster`: broker sets of real processes on this machine, while the command runs.

Which nodes there are and on which ports is fixed by the first start on a directory and kept in a
file there, because the log of the nodes has their addresses too. Nothing is restarted: a node that
dies stays dead until the next start, which is what one wants to see. The nodes are in sessions of
their own, so that Ctrl-C reaches this process alone, and it stops them in an orderly way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq import hints
from mq.cli import output
from mq.cli.nodes import set_column
from mq.cli.ports import free_ports, is_free
from mq.cli.tables import Column, counted, print_table
from mq.config import check_variables
from mq.errors import IllegalConfig, MqError, NodeStopped, PortUnavailable

if TYPE_CHECKING:
    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import BrokerStatusResponse

_HOST = "127.0.0.1"
_FILE = "dev-cluster.json"
_FIRST_SET = "set-0"
_PORT = 8081
# So much higher the ports begin when those are taken, and so often that is tried.
_PORT_HOP, _PORT_TRIES = 100, 10
# Client, Raft and metrics ports of a node stand together, those of the next one so much higher.
_PORT_STEP = 10
_START_S = 60.0
_STOP_S = 30.0
_LOOK_S = 0.2
_ASK_S = 1.0
_ELECTION_S = 5.0
_LOG_LINES = 5
_CONSOLE, _CONSOLE_PORT, _CONSOLE_STOP_S, _CONSOLE_AGAIN_S = "console", 8080, 5.0, 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One node, as it is planned and kept in the file."""

    name: str
    port: int
    raft_port: int
    metrics_port: int
    broker_set: str = _FIRST_SET

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"

    def ports(self) -> Iterator[tuple[str, int]]:
        yield "for clients", self.port
        yield "for the other nodes", self.raft_port
        yield "of its metrics", self.metrics_port


# -- the plan --------------------------------------------------------------------------------------


def plan(
    directory: Path, count: int | None, port: int | None, sets: int | None = None
) -> list[Node]:
    """The nodes of the directory, or new ones, so many a set, which are written down. IllegalConfig
    when what is asked for is not what is there.
    """
    file = directory / _FILE
    if file.exists():
        nodes = _read(file)
        set_count = len({node.broker_set for node in nodes})
        if sets is not None and sets != set_count:
            raise IllegalConfig(
                f"{directory} holds a cluster of {counted(set_count, 'set')}, not {sets}: "
                "leave --sets out, or take another directory"
            )
        if count is not None and count * set_count != len(nodes):
            raise IllegalConfig(
                f"{directory} holds a cluster of {len(nodes) // set_count} nodes, not {count}: "
                "leave --nodes out, or take another directory"
            )
        if port not in (None, 0, nodes[0].port):
            raise IllegalConfig(
                f"{directory} holds a cluster whose first port is {nodes[0].port}, not {port}: "
                "leave --port out, or take another directory"
            )
        _check_free(nodes)
        return nodes
    nodes = _new_nodes(3 if count is None else count, port, 1 if sets is None else sets)
    _write(file, nodes)
    return nodes


def _new_nodes(count: int, port: int | None, sets: int) -> list[Node]:
    """On free ports. PortUnavailable: not those that were asked for."""
    if port is not None:
        nodes = _numbered_nodes(count, port, sets)
        _check_free(nodes)
        return nodes
    # A broker of `make run` is on the default port: a cluster beside it takes the next ports.
    first_taken = ""
    for first in range(_PORT, _PORT + _PORT_TRIES * _PORT_HOP, _PORT_HOP):
        nodes = _numbered_nodes(count, first, sets)
        taken = _taken(nodes)
        if not taken:
            if first_taken:
                last = nodes[-1].metrics_port
                output.note(f"{first_taken}; the ports are {first} to {last} instead")
            return nodes
        first_taken = first_taken or taken
    return _numbered_nodes(count, 0, sets)


def _numbered_nodes(count: int, port: int, sets: int) -> list[Node]:
    total = count * sets
    if port:
        firsts = [port + _PORT_STEP * at for at in range(total)]
        if firsts[-1] + 2 > 65_535:
            raise IllegalConfig(f"--port {port}: {total} nodes need ports up to {firsts[-1] + 2}")
        triples = [(first, first + 1, first + 2) for first in firsts]
    else:
        free = iter(free_ports(_HOST, 3 * total))
        triples = list(zip(free, free, free, strict=True))
    return [
        Node(f"node-{at}", *ports, broker_set=f"set-{at // count}")
        for at, ports in enumerate(triples)
    ]


def _check_free(nodes: Sequence[Node]) -> None:
    if taken := _taken(nodes):
        raise PortUnavailable(
            f"{taken}. Stop what listens there, or start on an "
            "empty directory with another --port; --port 0 takes any that are free"
        )


def _taken(nodes: Sequence[Node]) -> str:
    """The ports that are not free, in words; empty if all are."""
    taken = [
        f"{port} ({node.name}, {use})"
        for node in nodes
        for use, port in node.ports()
        if not is_free(_HOST, port)
    ]
    return f"taken on {_HOST}: port {', '.join(taken)}" if taken else ""


def _read(file: Path) -> list[Node]:
    try:
        nodes = [Node(**each) for each in json.loads(file.read_text())["nodes"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise IllegalConfig(
            f"{file} is not readable: {error}. Without it the ports of the nodes are not known: "
            "restore it, or take another directory"
        ) from error
    if not nodes:
        raise IllegalConfig(f"{file} has no nodes: take another directory")
    return nodes


def _write(file: Path, nodes: Sequence[Node]) -> None:
    documents = [dataclasses.asdict(node) for node in nodes]
    if all(node.broker_set == _FIRST_SET for node in nodes):
        for each in documents:
            del each["broker_set"]
    document = {"nodes": documents}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(".tmp")
        draft.write_text(json.dumps(document, indent=2) + "\n")
        draft.rename(file)
    except OSError as error:
        raise IllegalConfig(
            f"{file} cannot be written: {error.strerror}; name a directory that can be"
        ) from error


# -- processes -------------------------------------------------------------------------------------


class Cluster:
    """The processes. `stop` is to be called whatever happens."""

    def __init__(self, directory: Path, nodes: Sequence[Node], console_port: int = 0) -> None:
        self.nodes = nodes
        self.console_port = console_port
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, node: Node) -> list[str]:
        own = [one for one in self.nodes if one.broker_set == node.broker_set]
        members = ",".join(f"{one.name}={_HOST}:{one.raft_port}" for one in own)
        seeds = ",".join(one.address for one in self.nodes if one not in own)
        return [
            *("server", "--node-id", node.name, "--data", str(self._directory / node.name)),
            *("--port", str(node.port), "--metrics-port", str(node.metrics_port)),
            *("--raft-members", members, "--log-format", "console"),
            *(("--node-broker-set", node.broker_set, "--broker-seeds", seeds) if seeds else ()),
        ]

    def log(self, node: Node) -> Path:
        return self._directory / f"{node.name}.log"

    def start(self) -> None:
        environment = {**os.environ, "NO_COLOR": "1"}
        for node in self.nodes:
            with self.log(node).open("ab") as log:
                self._processes[node.name] = subprocess.Popen(  # noqa: S603 - our own program
                    [sys.executable, "-m", "mq", *self.command(node)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=environment,
                )
        if self.console_port:
            self._start_console(environment)

    def _start_console(self, environment: dict[str, str]) -> None:
        servers = ",".join(node.address for node in self.nodes)
        with (self._directory / f"{_CONSOLE}.log").open("ab") as log:
            self._processes[_CONSOLE] = subprocess.Popen(  # noqa: S603 - our own program
                [
                    *(sys.executable, "-m", "mq", "console", "--server", servers),
                    *("--port", str(self.console_port), "--with-parent"),
                ],
                # It ends with this process, however that ends.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )

    def has_restarted_console(self) -> bool:
        """Starts the console anew if it has ended."""
        console = self._processes.get(_CONSOLE)
        if console is None or console.poll() is None:
            return False
        if console.stdin is not None:
            console.stdin.close()
        self._start_console({**os.environ, "NO_COLOR": "1"})
        return True

    @property
    def console(self) -> str:
        """Its URL; empty: there is none."""
        return f"http://{_HOST}:{self.console_port}" if self.console_port else ""

    def pid(self, node: Node) -> int:
        return self._processes[node.name].pid

    def exit_code(self, node: Node) -> int | None:
        return self._processes[node.name].poll()

    def log_tail(self, node: Node) -> list[str]:
        lines = self.log(node).read_text(errors="replace").splitlines()
        return [output.printable(line) for line in lines[-_LOG_LINES:]]

    def stop(self) -> list[Node]:
        """SIGTERM to all at once; those that had to be killed after all."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline_s = time.monotonic() + _STOP_S
        killed = []
        if _CONSOLE in self._processes:
            console = self._processes[_CONSOLE]
            with contextlib.suppress(subprocess.TimeoutExpired):
                console.wait(_CONSOLE_STOP_S)
            console.kill()
            console.wait()
        for node in self.nodes:
            if node.name not in self._processes:
                continue
            process = self._processes[node.name]
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed.append(node)
        return killed


# -- the command -----------------------------------------------------------------------------------


@click.command("dev-cluster", short_help="Run a cluster on this machine.")
@click.option(
    "--nodes", metavar="N", type=click.IntRange(1, 9), help="How many a set.  [default: 3]"
)
@click.option(
    "--sets", metavar="N", type=click.IntRange(1, 9), help="How many broker sets.  [default: 1]"
)
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("dev-cluster"),
    show_default=True,
    help="Directory for data and logs of all nodes.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65_535),
    help="First port; the next node's is 10 higher. 0: any that are free.  "
    "[default: 8081, or 8181, 8281... when that is taken]",
)
@click.option(
    "--console/--no-console",
    "with_console",
    default=True,
    help="Serve the web console as well, on port 8080 or another one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the nodes as JSON when they are up.")
def dev_cluster(
    nodes: int | None,
    sets: int | None,
    data: Path,
    port: int | None,
    *,
    with_console: bool,
    as_json: bool,
) -> None:
    """Run a cluster of real processes on this machine, until Ctrl-C.

    A second start on the same directory goes on with the same nodes, ports and
    data. Each node logs to DIR/<node>.log. A node that dies is not restarted:
    kill one and see how another takes over.

    Options of the nodes are taken from MQ_... variables, as by `mq server`.
    """
    check_variables(os.environ)
    planned = plan(data, nodes, port, sets)
    cluster = Cluster(data, planned, _console_port(port) if with_console else 0)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        cluster.start()
        with _admin(cluster.nodes) as admin:
            roles = _wait_until_up(cluster, admin, stop)
            if roles:
                _print_nodes(cluster, roles, as_json=as_json)
                _watch(cluster, admin, stop)
    finally:
        if not as_json:
            output.note("stopping")
        for node in cluster.stop():
            output.note(f"{node.name} did not stop within {_STOP_S:g} s and was killed")


def _console_port(port: int | None) -> int:
    """0: its extra is not installed."""
    if importlib.util.find_spec("starlette") is None:
        return 0
    if port != 0 and is_free(_HOST, _CONSOLE_PORT):
        return _CONSOLE_PORT
    return free_ports(_HOST, 1)[0]


@contextlib.contextmanager
def _admin(nodes: Sequence[Node]) -> Iterator[Admin]:
    from mq.client import Admin  # noqa: PLC0415

    # Nodes that do not answer are told of here: when they end, and when they are not up in time.
    logger = logging.getLogger("mq.client.cluster")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with Admin([node.address for node in nodes], timeout_s=_ASK_S) as admin:
            yield admin
    finally:
        logger.setLevel(level)


def _wait_until_up(cluster: Cluster, admin: Admin, stop: threading.Event) -> dict[str, str]:
    """The role of each node, when all are ready; nothing when it is to stop before that."""
    deadline_s = time.monotonic() + _START_S
    while not stop.wait(_LOOK_S):
        for node in cluster.nodes:
            if cluster.exit_code(node) is not None:
                why = _errors(cluster, node) or cluster.log_tail(node)
                raise NodeStopped(f"{_exit_text(cluster, node)}: {' | '.join(why)}")
        found = {node.name: _status(admin, node) for node in cluster.nodes}
        # One that does not vote yet is ready to serve, but the set would not survive the leader.
        roles = {
            name: status.role
            for name, status in found.items()
            if status and status.is_ready and status.is_voter
        }
        led = {node.broker_set for node in cluster.nodes if roles.get(node.name) == "leader"}
        if len(roles) == len(cluster.nodes) and led == {node.broker_set for node in cluster.nodes}:
            return roles
        if time.monotonic() > deadline_s:
            missing = ", ".join(name for name in found if name not in roles)
            raise NodeStopped(
                f"not ready within {_START_S:g} s: {missing or 'a set has no leader'}; "
                f"see {cluster.log(cluster.nodes[0]).parent}/*.log"
            )
    return {}


def _status(admin: Admin, node: Node) -> BrokerStatusResponse | None:
    with contextlib.suppress(MqError):
        return admin.broker_status(node.address)
    return None


def _errors(cluster: Cluster, node: Node) -> list[str]:
    """The line that the program ended with, if it says why."""
    return [line for line in cluster.log_tail(node)[-1:] if line.startswith("error: ")]


def _exit_text(cluster: Cluster, node: Node) -> str:
    code = cluster.exit_code(node) or 0
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"{node.name} (pid {cluster.pid(node)}) ended {how}, see {cluster.log(node)}"


def _print_nodes(cluster: Cluster, roles: dict[str, str], *, as_json: bool) -> None:
    nodes = cluster.nodes
    addresses = ",".join(node.address for node in nodes)
    if as_json:
        output.write_json(
            {
                "servers": addresses,
                "console": cluster.console,
                "nodes": [
                    {
                        "node": node.name,
                        "broker_set": node.broker_set,
                        "address": node.address,
                        "role": roles[node.name],
                        "pid": cluster.pid(node),
                        "metrics_port": node.metrics_port,
                        "log": str(cluster.log(node)),
                    }
                    for node in nodes
                ],
            }
        )
        sys.stdout.flush()
        return
    out = output.console()
    print_table(
        out,
        [
            *set_column([node.broker_set for node in nodes]),
            Column("node", [node.name for node in nodes], "left"),
            Column("address", [node.address for node in nodes], "left"),
            Column("role", [roles[node.name] for node in nodes], "left"),
            Column("pid", [str(cluster.pid(node)) for node in nodes]),
            Column("metrics", [f"{_HOST}:{node.metrics_port}" for node in nodes], "left", rank=1),
            Column("log", [str(cluster.log(node)) for node in nodes], "left", is_flexible=True),
        ],
    )
    click.echo(hints.first_steps(addresses, hints.program(), console=cluster.console), nl=False)


def _watch(cluster: Cluster, admin: Admin, stop: threading.Event) -> None:
    """Runs until it is to stop. Reports when a node dies, the leader of its set then, and when a
    set that had no leader has one again: nodes can be started by hand. A console that has ended is
    started again.
    """
    alive = list(cluster.nodes)
    leaderless: set[str] = set()
    console_s = time.monotonic()
    while not stop.wait(_LOOK_S):
        if time.monotonic() > console_s + _CONSOLE_AGAIN_S and cluster.has_restarted_console():
            console_s = time.monotonic()
            output.note("the console has ended, and is started again")
        for node in [one for one in alive if cluster.exit_code(one) is not None]:
            alive.remove(node)
            output.note(_exit_text(cluster, node))
            for line in _errors(cluster, node):
                output.note(f"  {line}")
            again = shlex.join([hints.program(), *cluster.command(node)])
            output.note(f"  start it again: {again}")
            if not alive:
                raise NodeStopped("all nodes have ended")
            leader, state = _leadership(cluster, admin, node.broker_set, stop.is_set)
            output.note(f"  {state}")
            (leaderless.discard if leader else leaderless.add)(node.broker_set)
        for name in sorted(leaderless):
            leader, state = _leadership(cluster, admin, name, lambda: True)
            if leader:
                output.note(state)
                leaderless.remove(name)


def _leadership(
    cluster: Cluster, admin: Admin, broker_set: str, is_over: Callable[[], bool]
) -> tuple[str, str]:
    """Returns the leader of the set, and the same in words. Waits a while for an election.

    A leader that has lost the majority says for a moment that it leads: it does not count.
    """
    nodes = [one for one in cluster.nodes if one.broker_set == broker_set]
    needed = len(nodes) // 2 + 1
    deadline_s = time.monotonic() + _ELECTION_S
    while True:
        found: dict[str, Any] = {node.name: _status(admin, node) for node in nodes}
        up = [name for name, status in found.items() if status is not None]
        leader = next((name for name in up if found[name].role == "leader"), "")
        if leader and len(up) >= needed:
            return leader, f"{broker_set} is led by {leader}"
        if len(up) < needed or time.monotonic() > deadline_s or is_over():
            break
        time.sleep(_LOOK_S)
    names = f" ({', '.join(up)})" if up else ""
    state = f"{len(up)} of {len(nodes)} nodes {'is' if len(up) == 1 else 'are'} up{names}"
    if len(up) >= needed:
        return "", f"{broker_set} has no leader yet: {state}"
    return "", f"{broker_set} has no leader: {state}, {needed} are needed"
