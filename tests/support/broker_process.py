"""A real broker in a process of its own: `mq server` on a free port and a directory of the test's.

    with BrokerProcess(tmp_path / "data") as broker:
        channel = grpc.insecure_channel(broker.address)

`kill` is SIGKILL, `stop` is SIGTERM and returns the exit code; `start` again keeps data and port.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from tests.support.warm_process import WarmProcess

# Generous: a shared disk may stall for half a minute, and nothing here is about how long it takes.
START_S = 90.0
STOP_S = 90.0


class BrokerProcess:
    def __init__(self, data: Path, *flags: str, port: int = 0) -> None:
        self._data = data
        self._flags = flags
        self._port = port
        self.metrics_port = 0
        self._process: subprocess.Popen[bytes] | WarmProcess | None = None
        self._log_path = data.with_name(f"{data.name}.log")

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def address(self) -> str:
        return f"{self.host}:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def program(self) -> list[str]:
        """The arguments of Python in place of `-m mq`; empty: the broker itself."""
        return []

    @property
    def wrapper(self) -> list[str]:
        """What the command of a `program` begins with, such as `nsenter`; it must not fork."""
        return []

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self, *flags: str) -> Self:
        """Does not wait until it is up. `flags` are for this run."""
        assert not self.is_running
        arguments = ["server", "--data", str(self._data), "--log-format", "json"]
        arguments += ["--port", str(self._port), "--metrics-port", "0", *self._flags, *flags]
        with self._log_path.open("ab") as log_file:
            self._log_start = log_file.tell()
            if self.program:
                command = [*self.wrapper, sys.executable, *self.program, *arguments]
                self._process = subprocess.Popen(command, stdout=log_file, stderr=log_file)
            else:
                self._process = WarmProcess(
                    "mq.__main__", arguments, stdout=log_file, stderr=log_file
                )
        return self

    def start(self, *flags: str) -> Self:
        """Returns when clients can be served."""
        self.launch(*flags)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for line in self.log():
                if line.get("event") == "node is up":
                    self._port = int(line["address"].rpartition(":")[2])
                    self.metrics_port = line["metrics_port"]
                    return self
            if not self.is_running:
                break
            time.sleep(0.02)
        raise AssertionError(f"the broker did not come up:\n{self.output()}")

    def log(self) -> list[dict[str, Any]]:
        """The log of the current run."""
        lines = []
        for line in self.output().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
        return lines

    def output(self) -> str:
        with self._log_path.open(encoding="utf-8") as log_file:
            log_file.seek(self._log_start)
            return log_file.read()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_S)

    def wait(self) -> int:
        """The exit code of a broker that ends by itself."""
        assert self._process is not None
        return self._process.wait(START_S)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()
