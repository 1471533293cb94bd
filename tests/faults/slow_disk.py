"""A disk that flushes slowly: `slow_disk.py FILE IMAGE MOUNT` has IMAGE, under its name, in MOUNT,
for a loop device with a file system.

FILE holds milliseconds that each flush takes longer; it is read again many times a second. Data of
brokers are not here themselves: Linux holds the lock of a FUSE file while it is synced, so that a
write to it waits as well, which no file system on a slow disk does. Runs in the foreground until it
is unmounted or killed.
"""

# ruff: noqa: ARG002 - the signatures are those of FUSE

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import mfusepy

_READ_S = 0.02


class SlowDisk(mfusepy.Operations):  # type: ignore[misc] # mfusepy may not be there
    use_ns = True

    def __init__(self, file: Path, image: Path) -> None:
        self._file = file
        self._name = image.name
        self._image = os.open(image, os.O_RDWR)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        """What waits already is done as soon as the disk is fast again."""
        began_s = time.monotonic()
        while (left_s := began_s + self._delay_s() - time.monotonic()) > 0:
            time.sleep(min(_READ_S, left_s))
        os.fdatasync(self._image)
        return 0

    def _delay_s(self) -> float:
        try:
            return float(self._file.read_text()) / 1000
        except (OSError, ValueError):  # not there, or being written
            return 0.0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(self._image, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(self._image, data, offset)

    def open(self, path: str, flags: int) -> int:
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path != f"/{self._name}":
            raise mfusepy.FuseOSError(mfusepy.ENOENT)
        size = os.fstat(self._image).st_size
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", self._name]


if __name__ == "__main__":
    file, image, mount = map(Path, sys.argv[1:])
    mfusepy.FUSE(SlowDisk(file, image), str(mount), foreground=True)
