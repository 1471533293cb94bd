"""Three real processes of one broker set on loopback, driven through their doors."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0


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


class Process:
    """One node. Calls may come from several threads."""

    def __init__(self, name: str, data: Path, flags: Mapping[str, str]) -> None:
        self.name = name
        self.data = data
        self._flags = dict(flags)
        self._ids = iter(range(1 << 60))
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        flags = [part for pair in self._flags.items() for part in pair]
        command = [sys.executable, "-m", "tests.support.raft_process"]
        command += ["--data", str(self.data), "--node-node", self.name, *flags]
        environment = {key: value for key, value in os.environ.items() if key[:3] != "MQ_"}
        with self.data.with_name(self.data.name + ".log").open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._events = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        event = self._events.get(timeout=DEADLINE_S)
        if event is None:
            raise Gone(f"{self.name} does not start:\n{self.log_tail()}")

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            waiter = self._answers.pop(message.get("id"), None)
            (self._events if waiter is None else waiter).put(message)
        with self._lock:
            waiters, self._answers = list(self._answers.values()), {}
        for waiter in [*waiters, self._events]:
            waiter.put(None)

    def log_tail(self) -> str:
        return self.data.with_name(self.data.name + ".log").read_text()[-4000:]

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and gone when it returns."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        """As a person would: it hands leadership over and ends."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(b'{"do": "stop"}\n')
        self.process.stdin.flush()
        return self.process.wait(DEADLINE_S)

    def rss_mb(self) -> float:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    # -- calls ------------------------------------------------------------------------------------

    def begin(self, do: str, **fields: Any) -> queue.SimpleQueue[dict[str, Any] | None]:
        """The answer comes in the queue; None when the process ends before."""
        waiter: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self._lock:
            number = next(self._ids)
            self._answers[number] = waiter
            process = self.process
            try:
                assert process is not None
                assert process.stdin is not None
                process.stdin.write(json.dumps({"do": do, "id": number, **fields}).encode() + b"\n")
                process.stdin.flush()
            except OSError:
                self._answers.pop(number, None)
                waiter.put(None)
        return waiter

    def call(self, do: str, timeout_s: float = DEADLINE_S, **fields: Any) -> dict[str, Any]:
        """Gone when the process dies; queue.Empty when there is no answer in time."""
        answer = self.begin(do, **fields).get(timeout=timeout_s)
        if answer is None:
            raise Gone(self.name)
        return answer

    def status(self) -> dict[str, Any]:
        return self.call("status")


class Cluster:
    """Nodes n0, n1, ... below one directory; a context manager that kills what is left."""

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
            for node in self.nodes.values():
                node.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes.values():
            node.kill()

    def running(self) -> list[Process]:
        return [node for node in self.nodes.values() if node.is_running]

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

    def wait_same(self, names: list[str] | None = None) -> int:
        """Waits until all have applied the same log; its last index."""
        nodes = [self.nodes[name] for name in names or self.nodes]

        def same() -> int:
            statuses = [node.status() for node in nodes]
            last = statuses[0]["last"]
            keys = ("last", "commit", "applied", "durable")
            is_same = all(status[key] == last for status in statuses for key in keys)
            return int(last) if is_same else 0

        return int(poll(same, "all nodes have the same log"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
