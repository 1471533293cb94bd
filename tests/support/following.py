"""`mq consume --follow` in a process of its own, and what it writes as it comes.

with Following(broker.address, "orders") as following:
    assert following.next_shown() == "hello"
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from typing import IO, Self

_DEADLINE_S = 60


class Following:
    """`mq consume --follow` of a topic; what it writes is in `shown` and `told`, line by line, with
    an empty line at the end.
    """

    def __init__(self, servers: str, topic: str, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mq", "consume", topic, "--follow", *flags],
            env={**os.environ, "MQ_SERVER": servers},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.shown: queue.Queue[bytes] = queue.Queue()
        self.told: queue.Queue[bytes] = queue.Queue()
        pipes = [(self.process.stdout, self.shown), (self.process.stderr, self.told)]
        self._readers = [threading.Thread(target=_read, args=pipe) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    def next_shown(self) -> str:
        return self.shown.get(timeout=_DEADLINE_S).decode().rstrip()

    def next_told(self) -> str:
        return self.told.get(timeout=_DEADLINE_S).decode().rstrip()

    def interrupt(self) -> int:
        """As Ctrl-C does; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(_DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()


def _read(pipe: IO[bytes], lines: queue.Queue[bytes]) -> None:
    with pipe:
        for line in pipe:
            lines.put(line)
    lines.put(b"")
