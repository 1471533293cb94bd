"""A disk that can lose power under a running broker: an ext4 file system in an image, which lies on
an XFS of its own.

    <directory>.below.img             --loop--> XFS at <directory>.below
    <directory>.below/disk.img        --loop--> ext4 at <directory>, the data directory of a node

There are two ways to cut the power, and neither of them flushes anything:

    COPY   a reflink of the image: XFS takes it between two writes of ext4 to its device. What ext4
           had in its page cache only is gone; what it gave to the device is there, flushed or not.
           The disk has no volatile cache.
    DROP   the XFS below is shut down without writing its log or any page. What ext4 gave to the
           device and did not flush is gone as well, but for what happened to be written back.
           The disk has a volatile cache.

`restore` mounts what is left: XFS recovers its log, ext4 replays its journal. All mounts belong to
a mount namespace (`in_mount_namespace`): they end with the processes in it, whatever ends those.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.waiting import poll

# From linux/fs.h; and the shutdown of XFS and of ext4, which took it over, with its flag "without
# the log".
_FICLONE = 0x40049409
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_BELOW_BYTES = 4 << 30
_DISK_BYTES = 1 << 30
_TOOLS = ("unshare", "mount", "umount", "mkfs.xfs", "mkfs.ext4")
_TOOL_S = 120.0
_IN_NAMESPACE = "IN_MOUNT_NAMESPACE_OF"


class Cut(enum.Enum):
    COPY = "copy"
    DROP = "drop"


class Disk:
    """`directory` is its mount point. `cut` may be called from any thread, and blocks for some
    milliseconds; what runs on the disk has to be stopped before, and to end before `restore`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._below = directory.with_name(f"{directory.name}.below")
        self._below_image = directory.with_name(f"{directory.name}.below.img")
        self._image = self._below / "disk.img"
        self._copy = self._below / "copy.img"
        self._cut: Cut | None = None

    def make(self) -> None:
        for mount_point in (self.directory, self._below):
            mount_point.mkdir()
        _make_sparse(self._below_image, _BELOW_BYTES)
        _tool("mkfs.xfs", "-q", "-m", "reflink=1", self._below_image)
        _mount(self._below_image, self._below)
        _make_sparse(self._image, _DISK_BYTES)
        _tool("mkfs.ext4", "-q", "-F", self._image)
        _mount(self._image, self.directory)

    def cut(self, way: Cut) -> None:
        self._cut = way
        if way is Cut.DROP:
            _shut_down(self._below)
            return
        with self._image.open("rb") as source, self._copy.open("wb") as target:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())

    def restore(self) -> None:
        """The power is back: the disk is mounted, with what the cut has left of it."""
        if self._cut is Cut.COPY:
            # Else unmounting would write to the image that is thrown away.
            _shut_down(self.directory)
            _unmount(self.directory)
            self._copy.rename(self._image)
        else:
            _unmount(self.directory)
            _unmount(self._below)
            _mount(self._below_image, self._below)
        self._cut = None
        _mount(self._image, self.directory)

    def remove(self) -> None:
        """Also when it was not made completely."""
        for mount_point in (self.directory, self._below):
            if _is_mounted(mount_point):
                _unmount(mount_point)
            with contextlib.suppress(FileNotFoundError):
                mount_point.rmdir()
        self._below_image.unlink(missing_ok=True)


@functools.cache
def why_not() -> str:
    """The reason why this machine cannot have such disks; empty: it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (packages xfsprogs, e2fsprogs, util-linux)"
    with tempfile.TemporaryDirectory() as directory:
        image = Path(directory, "probe.img")
        _make_sparse(image, 512 << 20)
        try:
            _tool("mkfs.xfs", "-q", "-m", "reflink=1", image)
            # Nothing is left of it.
            mount = ("mount", "-o", "loop", str(image), directory)
            _tool("unshare", "--mount", *mount)
        except ToolFailed as error:
            return f"no loop mount: {error}"
    return ""


def in_mount_namespace() -> None:
    """Starts this program anew in a mount namespace of its own, unless it is in one."""
    if os.environ.get(_IN_NAMESPACE) != str(os.getpid()):
        os.environ[_IN_NAMESPACE] = str(os.getpid())
        again = [sys.executable, *sys.orig_argv[1:]]
        os.execvp("unshare", ["unshare", "--mount", *again])  # noqa: S606, S607 - as it was started


class ToolFailed(Exception):
    """A program that makes or mounts file systems has failed."""


def _make_sparse(image: Path, size_bytes: int) -> None:
    with image.open("wb") as file:
        file.truncate(size_bytes)


def _mount(image: Path, mount_point: Path) -> None:
    _tool("mount", "-o", "loop", image, mount_point)


def _is_mounted(mount_point: Path) -> bool:
    """Also of a file system that was shut down: every question to it fails."""
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return str(mount_point) in (line.split()[1] for line in mounts)


def _unmount(mount_point: Path) -> None:
    """The loop device above it lets go of a file system a moment after it was unmounted."""

    def is_unmounted() -> bool:
        with contextlib.suppress(ToolFailed):
            _tool("umount", mount_point)
        return not _is_mounted(mount_point)

    poll(is_unmounted, f"{mount_point} is unmounted")


def _shut_down(mount_point: Path) -> None:
    """Of the file system that is mounted there nothing more gets to its device."""
    descriptor = os.open(mount_point, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(descriptor)


def _tool(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    if done.returncode != 0:
        raise ToolFailed(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
