"""A file system that passes everything on to a directory, slowly: `slow_disk.py FILE SOURCE MOUNT`.

FILE holds milliseconds that each sync takes longer; it is read again many times a second. Reads and
writes are those of the page cache below: FUSE does not keep what was just written in one of its
own, and the newest entries of a log, which followers get, would have to be read from a slow disk
that has them in memory. Runs in the foreground until it is unmounted or killed.
"""

# ruff: noqa: ARG002 - the signatures are those of FUSE

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import mfusepy

_READ_S = 0.02
_STATS = (
    *("st_atime_ns", "st_ctime_ns", "st_mtime_ns", "st_blocks", "st_gid", "st_ino"),
    *("st_mode", "st_nlink", "st_size", "st_uid"),
)


class SlowDisk(mfusepy.Operations):  # type: ignore[misc] # mfusepy may not be there
    """Open files are handled by their descriptors: one that was removed lives on."""

    use_ns = True

    def __init__(self, file: Path, source: Path) -> None:
        self._file = file
        self._source = source

    def _below(self, path: str) -> str:
        return f"{self._source}{path}"

    def _take_time(self) -> None:
        """What waits already is done as soon as the disk is fast again."""
        began_s = time.monotonic()
        while (left_s := began_s + self._delay_s() - time.monotonic()) > 0:
            time.sleep(min(_READ_S, left_s))

    def _delay_s(self) -> float:
        try:
            return float(self._file.read_text()) / 1000
        except (OSError, ValueError):  # not there, or being written
            return 0.0

    # -- slow --------------------------------------------------------------------------------------

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._take_time()
        (os.fdatasync if datasync else os.fsync)(fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._take_time()
        fd = os.open(self._below(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        return 0

    # -- as fast as the disk below -----------------------------------------------------------------

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._below(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        # With O_APPEND the offsets of writes would not count; the kernel has checked the rest.
        return os.open(self._below(path), flags & ~os.O_APPEND)

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def fallocate(self, path: str, mode: int, offset: int, size: int, fh: int) -> int:
        if mode:
            raise mfusepy.FuseOSError(mfusepy.ENOTSUP)
        os.posix_fallocate(fh, offset, size)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._below(path) if fh is None else fh, length)
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._below(path)) if fh is None else os.fstat(fh)
        return {name.removesuffix("_ns"): getattr(found, name) for name in _STATS}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._below(path))]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._below(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._below(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._below(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._below(old), self._below(new))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._below(path))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._below(path), mode)
        return 0

    def utimens(self, path: str, times: tuple[int, int]) -> int:
        os.utime(self._below(path), ns=times)
        return 0


if __name__ == "__main__":
    file, source, mount = map(Path, sys.argv[1:])
    mfusepy.FUSE(SlowDisk(file, source), str(mount), foreground=True, hard_remove=True)
