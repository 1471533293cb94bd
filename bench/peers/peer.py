"""What every peer has: a way to start, a load tool of its own, and a name for its durability.

A peer's processes listen on loopback, on ports that are free, and keep their data in a temporary
directory. They are stopped by process group, so that a program which starts others leaves none.
"""

from __future__ import annotations

import abc
import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from bench.peers.installation import Installation, Skipped, reason, tool

Flush = Literal["async", "sync"]
Work = Literal["batches", "calls"]

_START_S = 120.0
_STOP_S = 20.0
_TOOL_S = 150.0
_POLL_S = 0.05


class Processes:
    """The processes of one running peer; all of them are gone when the block ends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        """In the opposite order of their start, the polite way first."""
        for process in reversed(self._running):
            end(process)

    def start(
        self, name: str, command: Sequence[str], port: int, env: Mapping[str, str] | None = None
    ) -> None:
        """Returns when the port is open."""
        log = self.directory / f"{name}.log"
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self._running.append(process)
        deadline = time.monotonic() + _START_S
        while not is_open(port):
            if process.poll() is not None:
                raise Skipped(f"{name} ended at its start: {reason(log.read_text())}")
            if time.monotonic() > deadline:
                raise Skipped(f"{name} did not open its port: {reason(log.read_text())}")
            time.sleep(_POLL_S)


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a process and all that it started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    process.wait()


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def run_tool(
    command: Sequence[str],
    *,
    until: str = "",
    times: int = 1,
    env: Mapping[str, str] | None = None,
) -> str:
    """What a load tool prints. A tool that knows no end is ended when it has printed so many lines
    with `until`.
    """
    lines: list[str] = []
    reports = 0
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
        text=True,
        start_new_session=True,
    ) as process:
        deadline = threading.Timer(_TOOL_S, end, [process])
        deadline.start()
        try:
            for line in process.stdout or ():
                lines.append(line)
                reports += bool(until) and until in line
                if until and reports == times:
                    break
            if not until:
                process.wait()
        finally:
            deadline.cancel()
            end(process)
    output = "".join(lines)
    if reports < times if until else process.returncode:
        what = f"{Path(command[0]).name} ... {command[-1]}"
        raise Skipped(f"{what} failed: {reason(output)}")
    return output


def java(jars: Path, heap: str, main: str, *flags: str) -> list[str]:
    """The command that runs this class."""
    memory = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", "-Djava.net.preferIPv4Stack=true"]
    return [tool("java"), *memory, *flags, "-cp", f"{jars}/*", main]


def number(pattern: str, output: str) -> float:
    """The last number that a tool prints at the group of this pattern, commas left out."""
    found = re.findall(pattern, output)
    if not found:
        raise Skipped(f"no figure in the output of its tool: {reason(output)}")
    return float(found[-1].replace(",", ""))


class Peer(abc.ABC):
    """A broker that is obtained by its constructor, which raises `Skipped` where it cannot be.

    `batches` and `calls` give messages a second of the running broker; 0 if its tool has no such
    load.
    """

    name: ClassVar[str]
    title: str
    # What is said of the load beside the figures, by kind of work.
    tools: ClassVar[dict[Work, str]]
    # Messages to receive with Python clients, by size; as long as the receivers are busy with it.
    backlog: ClassVar[dict[int, int]] = {128: 1_000_000, 1024: 300_000}

    def __init__(self, installation: Installation) -> None:
        self._rates: dict[tuple[str, int], float] = {}
        self.obtain(installation)

    @abc.abstractmethod
    def obtain(self, installation: Installation) -> None: ...

    @abc.abstractmethod
    def durability(self, flush: Flush) -> str:
        """What an acknowledgement means; raises `Skipped` if the peer does not offer this one."""

    @abc.abstractmethod
    def start(self, processes: Processes, flush: Flush) -> str:
        """Starts an empty broker of one node; its address."""

    @abc.abstractmethod
    def batches(self, size: int, seconds: float) -> float: ...

    @abc.abstractmethod
    def calls(self, size: int, seconds: float, callers: int) -> float: ...

    def fill(self, topic: str, size: int, count: int) -> None:  # noqa: ARG002 # for peers that fill
        """Messages for Python clients to receive, by the peer's own tool."""
        raise Skipped(f"{self.name} has no Python client here")

    def by_count(
        self, work: str, size: int, run: Callable[[int], float], seconds: float, trial: int
    ) -> float:
        """For tools that end by a count: as many messages as take about so long, judged by the run
        before; the first is a trial, which also warms the broker up.
        """
        key = (work, size)
        if key not in self._rates:
            self._rates[key] = run(trial)
        self._rates[key] = run(max(1000, int(self._rates[key] * seconds)))
        return self._rates[key]
