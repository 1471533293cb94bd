"""`mq` with a wall clock that a file puts forward or back: `stepped_server.py FILE server ...`.

The file holds milliseconds. It is written while the broker runs, and read again many times a
second; without a file the clock is right. A script that needs only the package `mq`, so that it
also runs in the image of a broker.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mq.server
from mq.__main__ import main
from mq.clock import SystemClock

_READ_S = 0.02


class SteppedClock(SystemClock):
    def __init__(self, file: Path) -> None:
        self._file = file
        self._step_ms = 0
        self._read_at_s = 0.0

    def now_ms(self) -> int:
        now_s = time.monotonic()
        if now_s - self._read_at_s > _READ_S:
            self._read_at_s = now_s
            try:
                self._step_ms = int(self._file.read_text())
            except (OSError, ValueError):  # not there, or being written
                self._step_ms = self._step_ms if self._file.exists() else 0
        return super().now_ms() + self._step_ms


if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    vars(mq.server)["SystemClock"] = lambda: SteppedClock(file)
    main()
