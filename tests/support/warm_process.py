"""Processes of `mq` that begin with everything imported.

    process = WarmProcess("mq.__main__", ["server", "--data", "d"], stdout=log, stderr=log)
    done = run_mq("topic", "list", environment={**os.environ, "MQ_SERVER": address})

Imports are most of the start of a node, and tests start hundreds of nodes. One process a test run
imports a broker and forks when asked: a child is a process as any other, with memory, signals and
an end of its own; only its imports are older than itself. The same holds for commands (`run_mq`).
Tests of a program as such, how it starts and what signals and terminals do, run it from the
beginning.

    tests --socket--> the warm process --fork--> a keeper --fork--> the node
      ^-------------- pipe: its pid, then its status --'

The keeper is the parent of the node, and there to wait for its end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mq.cli.commands import COMMANDS
from tests.support.waiting import DEADLINE_S
from tests.support.waiting import poll as poll_until

_ROOT = Path(__file__).resolve().parents[2]
_PRELOADED = ("mq.__main__", "mq.server", "tests.support.appender", "tests.support.raft_process")
_NUMBER = struct.Struct("i")
_REQUEST_BYTES_MAX = 128 << 10
# The status of a process, its stdin, stdout and stderr.
_DESCRIPTORS = 4
_start_lock = threading.Lock()


class WarmProcess:
    """What tests need of `subprocess.Popen([python, "-m", module, *arguments], ...)`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        stderr: IO[str] | IO[bytes],
        stdout: IO[str] | IO[bytes] | None = None,
        stdin: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Without a `stdout`, this and stdin are pipes. With one, stdin is empty unless given."""
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._exit_code: int | None = None
        self._status, status = os.pipe()
        if stdout is None:
            stdin_read, stdin_write = os.pipe()
            stdout_read, stdout_write = os.pipe()
            self.stdin, self.stdout = os.fdopen(stdin_write, "wb", 0), os.fdopen(stdout_read, "rb")
        else:
            empty = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin.fileno())
            stdin_read, stdout_write = empty, os.dup(stdout.fileno())
        request = {
            "module": module,
            "arguments": list(arguments),
            "directory": str(Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
        }
        given = [status, stdin_read, stdout_write, stderr.fileno()]
        socket.send_fds(_warm_process(), [json.dumps(request).encode()], given)
        for descriptor in (status, stdin_read, stdout_write):
            os.close(descriptor)
        self.pid = self._number()

    def poll(self) -> int | None:
        """The code of its exit; negative is the number of the signal that ended it."""
        with self._lock:
            if self._exit_code is None and select.select([self._status], [], [], 0)[0]:
                self._exit_code = os.waitstatus_to_exitcode(self._number())
                os.close(self._status)
            return self._exit_code

    def wait(self, timeout: float = DEADLINE_S) -> int:
        poll_until(lambda: self.poll() is not None, f"the end of process {self.pid}", timeout)
        assert self._exit_code is not None
        return self._exit_code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        number: int = _NUMBER.unpack(os.read(self._status, _NUMBER.size))[0]
        return number


def run_mq(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float = DEADLINE_S,
) -> subprocess.CompletedProcess[bytes]:
    """`mq ARGUMENTS...` to its end."""
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        given.write(stdin)
        given.seek(0)
        process = WarmProcess(
            "mq.__main__",
            arguments,
            stdin=given,
            stdout=stdout,
            stderr=stderr,
            environment=environment,
        )
        try:
            exit_code = process.wait(timeout)
        finally:
            process.kill()
        for output in (stdout, stderr):
            output.seek(0)
        return subprocess.CompletedProcess(arguments, exit_code, stdout.read(), stderr.read())


def _warm_process() -> socket.socket:
    with _start_lock:
        return _started()


@functools.cache
def _started() -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm_process", str(its.fileno())],
            cwd=_ROOT,
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    atexit.register(_end, ours, process)
    return ours


def _end(requests: socket.socket, process: subprocess.Popen[bytes]) -> None:
    requests.close()
    process.wait(DEADLINE_S)


def main() -> None:
    for module in _PRELOADED:
        importlib.import_module(module)
    for command in COMMANDS:
        if command.name != "spark":  # its libraries are large
            command.load()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = serve(requests)
    if request is not None:
        sys.argv[1:] = request["arguments"]
        importlib.import_module(request["module"]).main()


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Returns in a new process what it is to do; in the warm one None, at the end of the tests."""
    # A process that ends looks through all objects for cycles: four times the work of a command.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, and ends the nodes
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, _DESCRIPTORS)
        _reap()
        if not data:
            return None
        if os.fork() == 0:
            _keep(descriptors)
            request: dict[str, Any] = json.loads(data)
            os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            return request
        for descriptor in descriptors:
            os.close(descriptor)


def _reap() -> None:
    """Keepers that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(descriptors: list[int]) -> None:
    """Returns in the node; the keeper ends here, after it."""
    status, *standard = descriptors
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(status)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return
    for descriptor in standard:
        os.close(descriptor)
    with contextlib.suppress(BrokenPipeError):  # the tests ended first
        os.write(status, _NUMBER.pack(pid))
        os.write(status, _NUMBER.pack(os.waitpid(pid, 0)[1]))
    os._exit(0)


if __name__ == "__main__":
    main()
