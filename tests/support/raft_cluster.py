"""Three real processes of one broker set on loopback, driven through their doors."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import select
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from tests.support.warm_process import WarmProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ROOT = Path(__file__).resolve().parents[2]
# Generous: a shared disk may stall for half a minute, and nothing here is about how long it takes.
DEADLINE_S = 90.0
_given_ports: set[int] = set()

# None: the process ended first.
Answers: TypeAlias = "queue.SimpleQueue[dict[str, Any] | None]"


class Gone(Exception):
    """The process ended before it answered."""


def poll(question: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first answer that is true. The text says what was waited for."""
    deadline = time.monotonic() + deadline_s
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.005)
    return answer


class _Run:
    """One life of a process: the calls that wait for its answers, and a thread that hands them
    out.
    """

    def __init__(self, process: WarmProcess) -> None:
        self.process = process
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self.events: Answers = queue.SimpleQueue()
        self._ids = iter(range(1 << 60))
        self._waiters: dict[int, Answers] = {}
        self._lock = threading.Lock()
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def begin(self, do: str, fields: Mapping[str, Any]) -> Answers:
        waiter: Answers = queue.SimpleQueue()
        with self._lock:
            number = next(self._ids)
            if not self._is_over and self.say({"do": do, "id": number, **fields}):
                self._waiters[number] = waiter
            else:
                waiter.put(None)
        return waiter

    def say(self, command: Mapping[str, Any]) -> bool:
        """Returns whether it may be heard. Never waits: a frozen process does not empty its pipe. A
        line this short goes into a pipe as a whole, or not at all.
        """
        assert self.process.stdin is not None
        line = json.dumps(command).encode() + b"\n"
        assert len(line) <= select.PIPE_BUF
        try:
            os.write(self.process.stdin.fileno(), line)
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """The process is gone."""
        assert self.process.stdin is not None
        with self._lock, contextlib.suppress(OSError):
            self.process.stdin.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                message = json.loads(line)
                with self._lock:
                    waiter = self._waiters.pop(message.get("id"), self.events)
                waiter.put(message)
        with self._lock:
            self._is_over = True
            waiters = [*self._waiters.values(), self.events]
        for waiter in waiters:
            waiter.put(None)


class Process:
    """One node. Calls may come from several threads."""

    def __init__(self, name: str, data: Path, flags: Mapping[str, str]) -> None:
        self.name = name
        self.data = data
        self.log_file = data.with_name(data.name + ".log")
        self._flags = dict(flags)
        self._run: _Run | None = None

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Up, but neither follower nor leader yet. Gone: it refuses, and says why."""
        self.launch()
        self.wait_started()

    def launch(self) -> None:
        flags = [part for pair in self._flags.items() for part in pair]
        arguments = ["--data", str(self.data), "--node-id", self.name, *flags]
        with self.log_file.open("ab") as stderr:
            process = WarmProcess("tests.support.raft_process", arguments, stderr=stderr)
        self._run = _Run(process)

    def wait_started(self) -> None:
        event = self._life.events.get(timeout=DEADLINE_S)
        if event is None or event["event"] != "started":
            self.kill()
            raise Gone(f"{self.name} does not start: {event or self.log_tail()}")

    @property
    def _life(self) -> _Run:
        assert self._run is not None
        return self._run

    @property
    def process(self) -> WarmProcess | None:
        return self._run.process if self._run is not None else None

    def log_tail(self) -> str:
        return self.log_file.read_text()[-4000:]

    def log_events(self) -> list[dict[str, Any]]:
        """The log lines so far, of all its lives."""
        text = self.log_file.read_text() if self.log_file.exists() else ""
        lines = text.splitlines(keepends=True)
        return [json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"]

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._life.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and gone when it returns."""
        if self._run is not None:
            self._run.process.kill()
            self._run.process.wait()
            self._run.close()

    def begin_stop(self) -> None:
        """As a person would: it hands leadership over and ends."""
        self._life.say({"do": "stop"})

    def wait_ended(self) -> int:
        code = self._life.process.wait(DEADLINE_S)
        self._life.close()
        return code

    def stop(self) -> int:
        self.begin_stop()
        return self.wait_ended()

    def rss_mb(self, field: str = "VmRSS") -> float:
        """VmHWM: the most that it ever had."""
        status = Path(f"/proc/{self._life.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(field))
        return int(line.split()[1]) / 1024

    # -- calls ------------------------------------------------------------------------------------

    def begin(self, do: str, **fields: Any) -> Answers:
        """The answer comes in the queue; None when the process ends before."""
        return self._life.begin(do, fields)

    def call(self, do: str, timeout_s: float = DEADLINE_S, **fields: Any) -> dict[str, Any]:
        """Gone when the process dies; queue.Empty when there is no answer in time."""
        answer = self.begin(do, **fields).get(timeout=timeout_s)
        if answer is None:
            raise Gone(self.name)
        return answer

    def status(self) -> dict[str, Any]:
        return self.call("status")

    def wait_for(self, key: str, value: object) -> None:
        """Until its status says so."""
        poll(lambda: self.status()[key] == value, f"{self.name}: {key} is {value}")


class Cluster:
    """Nodes n0, n1, ... below one directory; a context manager that starts them, waits until each
    has a vote, which a new one has not before it follows a leader, and kills what is left.
    """

    def __init__(
        self, directory: Path, count: int = 3, flags: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.addresses = {f"n{i}": f"127.0.0.1:{free_port()}" for i in range(count)}
        self._flags = dict(flags or {})
        self.nodes = {name: self.make(name) for name in self.addresses}

    def make(self, name: str, **flags: str) -> Process:
        members = ",".join(f"{node}={address}" for node, address in self.addresses.items())
        given = {"--raft-members": members, "--log-level": "info", **self._flags, **flags}
        return Process(name, self.directory / name, given)

    def __enter__(self) -> Self:
        try:
            start_all(self.nodes.values())
            for node in self.nodes.values():
                node.wait_for("ready", True)
                node.wait_for("must_catch_up", False)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes.values():
            node.kill()

    def running(self) -> list[Process]:
        # A copy: another thread may add nodes.
        return [node for node in [*self.nodes.values()] if node.is_running]

    def others(self, *nodes: Process) -> list[Process]:
        return [node for node in self.nodes.values() if node not in nodes]

    def leader(self, among: list[Process] | None = None) -> Process:
        """The node that leads, by its own word, and of the highest term."""

        def found() -> Process | None:
            leaders = []
            for node in among or self.running():
                try:
                    status = node.call("status", timeout_s=2.0)
                except (Gone, queue.Empty):
                    continue
                if status["role"] == "leader" and status["ready"]:
                    leaders.append((status["term"], node))
            return max(leaders, key=lambda pair: pair[0])[1] if leaders else None

        node: Process = poll(found, "a leader")
        return node

    def wait_same(self, names: list[str] | None = None, deadline_s: float = DEADLINE_S) -> int:
        """Waits until all have applied the same log; its last index."""
        nodes = [self.nodes[name] for name in names or self.nodes]

        def same() -> int:
            statuses = [node.status() for node in nodes]
            last = statuses[0]["last"]
            keys = ("last", "commit", "applied", "durable")
            is_same = all(status[key] == last for status in statuses for key in keys)
            return int(last) if is_same else 0

        return int(poll(same, "all nodes have the same log", deadline_s))


def start_all(nodes: Iterable[Process]) -> None:
    """At the same moment, as after a power cut."""
    nodes = list(nodes)
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_started()


def free_port() -> int:
    """Below the ports that the kernel gives to outgoing connections: a node that dials must not
    happen to sit on the port of one that is away for a moment.
    """
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given_ports:
                _given_ports.add(port)
                return port
