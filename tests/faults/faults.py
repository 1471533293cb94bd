"""The faults: each a context manager that harms one node, and heals it.

Everything here blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mq import descriptors
from mq.client.aio import Admin, Message, Producer
from mq.errors import MqError
from tests.chaos import engine as questions
from tests.chaos.workloads import PATIENCE_S
from tests.faults.engine import SET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.engine import NamespaceEngine
    from tests.faults.network import NamespaceNetwork

LEADER, FOLLOWER = "leader", "follower"
_BOTH = (LEADER, FOLLOWER)
_SLOW_FLUSH_MS = 50.0
_NEVER_MS = 3_600_000.0
_DELAY_MS = 20.0
_HOUR_MS = 3_600_000
_BUSY_LOOPS = 3
_CONNECTIONS = 10_000
# Of a node's connections, those that are left to the clients that work.
_LEFT_CONNECTIONS = 50
_PRESSURE = "pressure"
_PRESSURE_BYTES = 128 << 10
# At a time, twice a second.
_FEW_SENDS, _MANY_SENDS = 4, 64
_LINE_CHARACTERS = 200


@dataclass(frozen=True)
class Target:
    """The node that is to be harmed. `notes` gets what is worth telling, such as how many
    connections could be opened.
    """

    engine: NamespaceEngine
    node: str
    notes: list[str] = field(default_factory=list)

    @property
    def network(self) -> NamespaceNetwork:
        return self.engine.network

    @property
    def pid(self) -> int:
        return self.engine.pid(self.node)

    @property
    def nodes(self) -> list[str]:
        """The other ones."""
        return self.engine.others(self.node)

    @property
    def leader(self) -> str:
        return questions.leader(self.engine, SET)


@dataclass(frozen=True)
class Fault:
    """`roles`: what the node does in its set when the fault meets it. `flags` are for brokers."""

    name: str
    text: str
    harm: Callable[[Target], AbstractContextManager[None]]
    roles: tuple[str, ...] = _BOTH
    flags: tuple[str, ...] = ()
    has_slow_disk: bool = False
    has_slow_network: bool = False


# -- disk ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def slow_disk(target: Target, delay_ms: float) -> Iterator[None]:
    disk = target.engine.slow_disk
    assert disk is not None
    disk.delay(delay_ms)
    try:
        yield
    finally:
        disk.delay(0)


# -- network ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def network(target: Target, change: Callable[[Target], None]) -> Iterator[None]:
    change(target)
    try:
        yield
    finally:
        target.network.mend()


# -- the machine -----------------------------------------------------------------------------------


@contextlib.contextmanager
def clock(target: Target, step_ms: int) -> Iterator[None]:
    target.engine.step_clock(target.node, step_ms)
    try:
        yield
    finally:
        target.engine.step_clock(target.node, 0)


@contextlib.contextmanager
def no_descriptors(target: Target) -> Iterator[None]:
    """As many as it has, and no more: the hard limit, too, since a node raises its soft one for its
    log. Large messages come, so that it needs new files. Not every root may raise a hard limit
    again: then the node is restarted.
    """
    engine, node, kind = target.engine, target.node, resource.RLIMIT_NOFILE
    limits = resource.prlimit(target.pid, kind)
    used = len(os.listdir(f"/proc/{target.pid}/fd"))
    target.notes.append(f"{used} descriptors, all of them in use")
    resource.prlimit(target.pid, kind, (used, used))
    try:
        with _large_messages(engine, _FEW_SENDS):
            yield
    finally:
        if engine.is_running(node):
            try:
                resource.prlimit(target.pid, kind, limits)
            except PermissionError:
                target.notes.append("restarted in the end: its limit cannot be raised")
                engine.stop(node)
                engine.start(node)
    _start_if_dead(target)


@contextlib.contextmanager
def no_memory(target: Target) -> Iterator[None]:
    """It may not have one more page than now, while large messages come."""
    kind = resource.RLIMIT_AS
    limits = resource.prlimit(target.pid, kind)
    with _large_messages(target.engine, _MANY_SENDS):
        resource.prlimit(target.pid, kind, (_memory_bytes(target, 0), limits[1]))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(target.pid, kind, limits)
    _start_if_dead(target)


def _memory_bytes(target: Target, column: int) -> int:
    """0: address space, 1: resident."""
    columns = Path(f"/proc/{target.pid}/statm").read_text().split()
    return int(columns[column]) * resource.getpagesize()


def _start_if_dead(target: Target) -> None:
    engine, node = target.engine, target.node
    if not engine.is_running(node):
        last = [line for line in engine.logs(node).splitlines() if line.strip()][-1]
        assert last.startswith("error: "), f"it has to say why it ended: {last}"
        target.notes.append(f"the node ended and was started again: {last[:_LINE_CHARACTERS]}")
        engine.start(node)


@contextlib.contextmanager
def _large_messages(engine: NamespaceEngine, sends: int) -> Iterator[None]:
    over = threading.Event()
    servers = questions.servers_of(engine)

    async def send_all() -> None:
        async with Admin(servers, timeout_s=PATIENCE_S) as admin:
            await admin.create_topic(_PRESSURE, 1)
        async with Producer(servers, timeout_s=PATIENCE_S, retries=1_000) as producer:
            await asyncio.gather(*(send(producer) for _ in range(sends)))

    async def send(producer: Producer) -> None:
        while not over.is_set():
            with contextlib.suppress(MqError):
                await producer.send(_PRESSURE, Message(os.urandom(_PRESSURE_BYTES)))
            await asyncio.sleep(0.5)

    thread = threading.Thread(target=lambda: asyncio.run(send_all()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def connections(target: Target) -> Iterator[None]:
    count = connections_max() - _LEFT_CONNECTIONS
    host, _, port = target.engine.address(target.node).rpartition(":")
    before_bytes = _memory_bytes(target, 1)
    command = (sys.executable, "-m", "tests.faults.idle_connections", host, port, str(count))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            opened = int(process.stdout.readline())
            each_kib = (_memory_bytes(target, 1) - before_bytes) / max(1, opened) / 1024
            target.notes.append(f"{opened:,} of {count:,} opened, {each_kib:.1f} KiB each")
            yield
            if process.poll() is not None:
                target.notes.append("some were closed by the node")
        finally:
            process.kill()


def connections_max() -> int:
    """What a node can take that may have as many descriptors as this process, and need not more."""
    limit = descriptors.hard_limit()
    return min(_CONNECTIONS + _LEFT_CONNECTIONS, limit // 2 - min(limit // 8, 1_024))


@contextlib.contextmanager
def busy(target: Target) -> Iterator[None]:
    """It shares one core with loops of the same priority."""
    cores = os.sched_getaffinity(target.pid)
    loop = ("taskset", "--cpu-list", str(min(cores)), "sh", "-c", "while :; do :; done")
    loops = [subprocess.Popen(loop) for _ in range(_BUSY_LOOPS)]
    try:
        _pin(target.pid, {min(cores)})
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()
        _pin(target.pid, cores)


def _pin(pid: int, cores: set[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


# -- all of them -----------------------------------------------------------------------------------


def all_faults() -> list[Fault]:
    """The first and the last are none."""
    return [_QUIET, *_disk_faults(), *_network_faults(), *_machine_faults(), _QUIET]


_QUIET = Fault(
    "nothing",
    "no fault: the noise of the machine",
    lambda _: contextlib.nullcontext(),
    (LEADER,),
)


def _disk_faults() -> list[Fault]:
    slow = functools.partial(slow_disk, delay_ms=_SLOW_FLUSH_MS)
    stalled = functools.partial(slow_disk, delay_ms=_NEVER_MS)
    text = f"each flush takes {_SLOW_FLUSH_MS:g} ms longer"
    return [
        Fault("slow-disk", text, slow, has_slow_disk=True),
        Fault("stalled-disk", "no flush ends", stalled, has_slow_disk=True),
    ]


def _network_faults() -> list[Fault]:
    def fault(
        name: str, text: str, change: Callable[[Target], None], roles: tuple[str, ...] = _BOTH
    ) -> Fault:
        harm = functools.partial(network, change=change)
        return Fault(name, text, harm, roles, has_slow_network=name == "slow-network")

    def lose(share: float) -> Callable[[Target], None]:
        return lambda target: target.network.lose(target.node, share)

    return [
        fault(
            "slow-network",
            f"{_DELAY_MS:g} ms each way, to nodes and clients",
            lambda target: target.network.delay(target.node, _DELAY_MS),
        ),
        fault("loss-1", "1 % of its packets are lost, each way", lose(0.01)),
        fault("loss-5", "5 % of its packets are lost, each way", lose(0.05)),
        fault("deaf", "is heard, hears nothing", lambda t: t.network.deafen(t.node)),
        fault(
            "deaf-to-nodes",
            "is heard, hears clients but no node",
            lambda t: t.network.deafen(t.node, only=t.nodes),
        ),
        fault("mute", "hears, is not heard", lambda t: t.network.mute(t.node)),
        fault(
            "mute-to-nodes",
            "hears, is heard by clients but no node",
            lambda t: t.network.mute(t.node, only=t.nodes),
        ),
        fault(
            "deaf-to-leader",
            "does not hear the leader, which hears it",
            lambda t: t.network.cut(t.leader, t.node),
            (FOLLOWER,),
        ),
        fault(
            "mute-to-leader",
            "hears the leader, which does not hear it",
            lambda t: t.network.cut(t.node, t.leader),
            (FOLLOWER,),
        ),
        fault(
            "isolated",
            "neither hears nor is heard",
            lambda t: t.network.isolate(t.node),
        ),
    ]


def _machine_faults() -> list[Fault]:
    def jump(step_ms: int) -> Callable[[Target], AbstractContextManager[None]]:
        return functools.partial(clock, step_ms=step_ms)

    flags = ("--broker-connections-max", str(connections_max()))
    return [
        Fault("clock-forward", "its clock jumps by +1 h, and back", jump(_HOUR_MS)),
        Fault("clock-back", "its clock jumps by -1 h, and back", jump(-_HOUR_MS)),
        Fault("descriptors", "has no descriptor left; large messages come", no_descriptors),
        Fault("memory", "gets not one more page; large messages come", no_memory),
        Fault("connections", "has many idle connections", connections, (LEADER,), flags),
        Fault("busy", f"shares one core with {_BUSY_LOOPS} busy loops", busy),
    ]
