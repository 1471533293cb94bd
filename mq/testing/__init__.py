"""A broker for the tests of a program that uses one: a real one, in a process of its own.

    with Broker() as broker:
        producer = Producer(broker.address)

It listens on a free port of this machine, keeps its data in a directory of its own, which goes with
it, and is up in less than a second. `kill` and `start` show what a program does when its broker
dies. Needs the extra `server`; `mq.testing.fixtures` has a fixture for pytest, and
`mq.testing.container` the same with Docker.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from mq.errors import NodeStopped

_START_S = 60.0
_STOP_S = 60.0
_LOOK_S = 0.01
# Small segments: a test that starts many brokers does not prepare a gigabyte for each.
_DEFAULTS = {"store_segment_bytes": "16MiB", "metrics_enabled": "no"}


class Broker:
    """One node, without other callers and without TLS unless the options say so."""

    def __init__(self, data: str | os.PathLike[str] | None = None, **options: str) -> None:
        """`data`: a directory that stays. `options`: those of `mq server`, by the names of their
        flags with underscores, such as `store_flush="async"`.
        """
        self._options = {**_DEFAULTS, **options}
        self._home = None if data is not None else tempfile.TemporaryDirectory(prefix="mq-test-")
        folder = Path(data) if data is not None else Path(self._home.name if self._home else "")
        self._data = folder / "data"
        self._log = folder / "log"
        self._log_start = 0
        self._port = int(options.get("port", 0))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """For clients; the same after a restart."""
        return f"127.0.0.1:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Returns when clients can be served. Raises NodeStopped, with the last words of the log,
        when it does not come up.
        """
        if self.is_running:
            return self
        self._data.parent.mkdir(parents=True, exist_ok=True)
        flags = {**self._options, "port": str(self._port), "data": str(self._data)}
        flags |= {"log_format": "json"}
        command = [sys.executable, "-m", "mq", "server"]
        for name, value in flags.items():
            command += [f"--{name.replace('_', '-')}", value]
        # Options of the surroundings are not meant for it.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            process = subprocess.Popen(command, stdout=log, stderr=log, env=kept)  # noqa: S603
        self._process = process
        deadline_s = time.monotonic() + _START_S
        while (up := self._found("node is up")) is None:
            if process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise NodeStopped(f"the broker did not come up:\n{self.output()[-2_000:]}")
            time.sleep(_LOOK_S)
        self._port = int(up["address"].rpartition(":")[2])
        return self

    def stop(self) -> int:
        """In order, as SIGTERM does. Returns the exit code; 0 if it did not run."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """At once, as a power cut of the process; what was acknowledged is there after `start`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_S)

    def output(self) -> str:
        """The log of this run."""
        with contextlib.suppress(FileNotFoundError), self._log.open(encoding="utf-8") as log:
            log.seek(self._log_start)
            return log.read()
        return ""

    def _found(self, event: str) -> dict[str, Any] | None:
        for line in self.output().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                document: dict[str, Any] = json.loads(line)
                if document.get("event") == event:
                    return document
        return None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self._remove()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._remove()

    def _remove(self) -> None:
        if self._home is not None:
            self._home.cleanup()
