"""A cable between two interfaces that takes its time: `delay_line.py NEAR FAR FILE`.

NEAR and FAR are TAP interfaces, made here: network cards to the rest of the system. FILE holds the
delay of each direction in milliseconds, and is read again many times a second. Frames keep their
order. Prints "ready" when both interfaces are there; runs until it is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_FRAME_BYTES_MAX = 1 << 16
_READ_S = 0.02
_COMMAND_S = 30.0


def open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    command = ("ip", "link", "set", name, "up")
    subprocess.run(command, check=True, timeout=_COMMAND_S)
    return tap


class Delay:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at_s = 0.0
        self._delay_s = 0.0

    def seconds(self, now_s: float) -> float:
        if now_s - self._read_at_s > _READ_S:
            self._read_at_s = now_s
            with contextlib.suppress(OSError, ValueError):  # not there, or being written
                self._delay_s = float(self._file.read_text()) / 1000
        return self._delay_s


def forward(near: int, far: int, delay: Delay) -> None:
    target_of = {near: far, far: near}
    # What is under way: when it is due, where it goes, the frame.
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        timeout_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for source in select.select([near, far], [], [], timeout_s)[0]:
            frame = os.read(source, _FRAME_BYTES_MAX)
            now_s = time.monotonic()
            waiting.append((now_s + delay.seconds(now_s), target_of[source], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, frame = waiting.popleft()
            # An interface that is down, or whose queue is full: the frame is lost, as on a cable.
            with contextlib.suppress(OSError):
                os.write(target, frame)


if __name__ == "__main__":
    near, far = map(open_tap, sys.argv[1:3])
    print("ready", flush=True)  # noqa: T201 - the starter reads it
    forward(near, far, Delay(Path(sys.argv[3])))
