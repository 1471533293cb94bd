"""An in-memory disk that loses, tears and refuses what a real one may: a `Vfs` for tests.

Two layers: what the running process sees (the page cache) and what is durable. The rules:
- `File.sync` makes content and length of that file durable, never its name. Names, those of
  directories too, are durable after `sync_dir` of the directory that holds them; `sync_tree` does
  both for all that is below a directory.
- `crash` loses power. Of the writes since the last sync each 512-byte sector survives by its own
  coin, as the cache had it after one of the writes to it: writes are lost, reordered and torn at
  sectors. The length survives by its own coins; lost bytes within it read as before or as zeros.
  Each create, replace and remove survives by its own coin, whole. What survived is durable.
- `kill` ends the process only: handles and locks die, the cache stays and is still unsynced.
- A failed `sync` drops the dirty bytes as Linux does: they are still read, but no later sync makes
  them durable. The length is metadata and stays unsynced.
- Space is the sum of file lengths; a removed file takes it until its last handle is closed.

All of it follows from the seeds and the order of calls. For one thread; files are in memory twice.
"""

from __future__ import annotations

import errno
import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from mq.store.vfs import DiskUsage
from tests.support.disk_layers import (
    SECTOR_BYTES,
    Change,
    Directory,
    Inode,
    Names,
    Resize,
    Write,
    os_error,
    resize,
    split,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

__all__ = ["SECTOR_BYTES", "FaultyFile", "FaultyVfs", "Operation"]

_UNLIMITED_TOTAL_BYTES = 1 << 40

# fmt: off
Operation = Literal[
    "pread", "pwritev", "sync", "truncate", "allocate", "open", "sync_dir", "sync_tree", "replace",
]
# fmt: on


@dataclass(slots=True)
class _Fault:
    operation: Operation
    path_part: str
    error: int
    after: int
    times: int


class FaultyFile:
    """A handle. Closed, killed or crashed, it raises EBADF at every use but `close`."""

    def __init__(
        self, vfs: FaultyVfs, inode: Inode, path: str, *, read_only: bool, locks: bool
    ) -> None:
        self._vfs = vfs
        self._inode = inode
        self._path = path
        self._read_only = read_only
        self._locks = locks
        self._open = True
        self._snapshot = b""
        self._snapshot_version = -1
        inode.handles += 1
        inode.locked |= locks

    def pread(self, length: int, position: int) -> bytes:
        inode = self._checked("pread")
        if position < 0 or length < 0:
            raise os_error(errno.EINVAL, self._path)
        with memoryview(inode.cached) as cached:
            return bytes(cached[position : position + length])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def changed_at(self) -> int:
        return self._live().version

    def is_in_memory(self, position: int, length: int) -> bool:  # noqa: ARG002 - all or nothing
        return not self._vfs.is_cold

    def read_ahead(self, position: int, length: int) -> None:
        self._vfs.asked_ahead.append((self._path, position, length))

    def drop_cache(self, position: int, length: int) -> None:
        self._vfs.let_go_of.append((self._path, position, length))

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        inode, vfs = self._live(errno.EBADF), self._vfs
        if position < 0:
            raise os_error(errno.EINVAL, self._path)
        data = b"".join(buffers)
        vfs.write_count += 1
        error = vfs._fault("pwritev", self._path)
        end_max = len(inode.cached) + vfs._free_bytes()
        if error is None and data and position + len(data) > max(end_max, len(inode.cached)):
            error = os_error(errno.ENOSPC, self._path)
        if error is not None:
            # What was written before the error stays.
            data = data[: vfs._rng.randint(0, max(0, min(len(data), end_max - position)))]
        if data:
            self._change(Write(position, data))
            vfs.bytes_written += len(data)
        if error is not None:
            raise error

    def view(self, length: int) -> memoryview:
        inode = self._live()
        if length > len(inode.cached):
            raise ValueError(f"view of {length} bytes of a file of {len(inode.cached)}")
        if self._snapshot_version != inode.version or length > len(self._snapshot):
            # A copy, because a bytearray with a view on it cannot change its length.
            with memoryview(inode.cached) as cached:
                self._snapshot = bytes(cached[:length])
            self._snapshot_version = inode.version
        return memoryview(self._snapshot)[:length]

    def allocate(self, position: int, length: int) -> None:
        inode = self._checked("allocate", errno.EBADF)
        if position < 0 or length <= 0:
            raise os_error(errno.EINVAL, self._path)
        self._grow(inode, position + length)

    def truncate(self, size: int) -> None:
        inode = self._checked("truncate", errno.EINVAL)
        if size < 0:
            raise os_error(errno.EINVAL, self._path)
        if size < len(inode.cached):
            self._change(Resize(size))
        else:
            self._grow(inode, size)

    def size(self) -> int:
        return len(self._live().cached)

    def sync(self) -> None:
        inode = self._live()
        self._vfs.sync_count += 1
        if error := self._vfs._fault("sync", self._path):
            inode.drop()
            raise error
        inode.sync()

    def close(self) -> None:
        if self._open:
            self._vfs._handles.pop(self)
            self._die()

    def _die(self) -> None:
        self._open = False
        self._snapshot = b""
        self._inode.handles -= 1
        if self._locks:
            self._inode.locked = False
        self._vfs._release(self._inode)

    def _live(self, error_if_read_only: int = 0) -> Inode:
        if not self._open:
            raise os_error(errno.EBADF, self._path)
        if error_if_read_only and self._read_only:
            raise os_error(error_if_read_only, self._path)
        return self._inode

    def _checked(self, operation: Operation, error_if_read_only: int = 0) -> Inode:
        inode = self._live(error_if_read_only)
        if error := self._vfs._fault(operation, self._path):
            raise error
        return inode

    def _grow(self, inode: Inode, size: int) -> None:
        growth = size - len(inode.cached)
        if growth > 0:
            if growth > self._vfs._free_bytes():
                raise os_error(errno.ENOSPC, self._path)
            self._change(Resize(size))

    def _change(self, change: Change) -> None:
        before = len(self._inode.cached)
        self._inode.change(change)
        self._vfs._used_bytes += len(self._inode.cached) - before


class FaultyVfs:
    """Starts with an empty, durable "/". Paths are absolute, without "." and ".."."""

    def __init__(self, seed: int = 0, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.sync_count = 0
        self.write_count = 0
        self.bytes_written = 0
        self._rng = random.Random(seed)
        self._names = Names()
        self._handles: dict[FaultyFile, None] = {}
        self._faults: list[_Fault] = []
        self._used_bytes = 0
        # No file is in memory, by its own word.
        self.is_cold = False
        # What the page cache need not keep: path, position, length.
        self.let_go_of: list[tuple[str, int, int]] = []
        # Of `read_ahead`.
        self.asked_ahead: list[tuple[str, int, int]] = []

    # The protocol.

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> FaultyFile:
        if error := self._fault("open", path):
            raise error
        return self._open(path, create=create, read_only=read_only, locks=False)

    def exists(self, path: str) -> bool:
        try:
            return self._names.find(path) is not None
        except NotADirectoryError:
            return False

    def file_size(self, path: str) -> int | None:
        node = self._names.find(path)
        if isinstance(node, Inode):
            return len(node.cached)
        return None if node is None else 0

    def list_dir(self, path: str) -> list[str]:
        if self._names.find(path) is None:
            return []
        return sorted(self._names.directory(path).entries)

    def make_dirs(self, path: str) -> None:
        directory, parts = self._names.root, split(path)
        for index, name in enumerate(parts):
            node = directory.entries.get(name)
            if node is None:
                node = Directory()
                self._names.link(directory, name, node)
            if isinstance(node, Inode):
                raise os_error(errno.EEXIST if index == len(parts) - 1 else errno.ENOTDIR, path)
            directory = node

    def replace(self, source: str, target: str) -> None:
        if error := self._fault("replace", source, target):
            raise error
        node, old = self._names.find(source), self._names.find(target)
        places = self._names.parent(source), self._names.parent(target)
        if node is None:
            raise os_error(errno.ENOENT, source)
        if node is old:
            return
        if isinstance(node, Directory):
            if split(target)[: len(split(source))] == split(source):
                raise os_error(errno.EINVAL, target)
            if isinstance(old, Inode):
                raise os_error(errno.ENOTDIR, target)
            if old is not None and old.entries:
                raise os_error(errno.ENOTEMPTY, target)
        elif isinstance(old, Directory):
            raise os_error(errno.EISDIR, target)
        self._names.move(*places)
        if isinstance(old, Inode):
            self._unlinked(old)

    def remove(self, path: str) -> None:
        node = self._names.find(path)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        if node is not None:
            self._unlink(*self._names.parent(path))

    def remove_tree(self, path: str) -> None:
        if self._names.find(path) is None:
            return
        directory = self._names.directory(path)
        for name, node in list(directory.entries.items()):
            if isinstance(node, Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self._unlink(directory, name)
        self._unlink(*self._names.parent(path))

    def sync_dir(self, path: str) -> None:
        directory = self._names.directory(path)
        if error := self._fault("sync_dir", path):
            raise error
        self._names.sync({directory})

    def sync_tree(self, path: str) -> None:
        """Below `path`, so not the name of `path` itself."""
        top = self._names.directory(path)
        error = self._fault("sync_tree", path)
        directories = {top}
        for node in top.below():
            if isinstance(node, Directory):
                directories.add(node)
            elif error is not None:
                node.drop()
            else:
                node.sync()
        if error is not None:
            raise error
        self._names.sync(directories)

    def disk_usage(self, path: str) -> DiskUsage:
        if self._names.find(path) is None:
            raise os_error(errno.ENOENT, path)
        if self.capacity_bytes is None:
            return DiskUsage(
                _UNLIMITED_TOTAL_BYTES, max(0, _UNLIMITED_TOTAL_BYTES - self._used_bytes)
            )
        return DiskUsage(self.capacity_bytes, self._free_bytes())

    def open_files_max(self) -> int:
        return 64

    def lock(self, path: str) -> FaultyFile:
        if error := self._fault("open", path):
            raise error
        return self._open(path, create=True, read_only=False, locks=True)

    # What a test does to the disk.

    def crash(self, rng: random.Random | int, keep: float = 0.5) -> None:
        """Power loss: each unsynced sector, length and name survives with probability `keep`."""
        rng = random.Random(rng) if isinstance(rng, int) else rng
        self.kill()
        self._names.crash(rng, keep)
        self._used_bytes = 0
        for node in self._names.root.below():
            if isinstance(node, Inode):
                node.linked = True
                node.crash(rng, keep)
                self._used_bytes += len(node.cached)

    def kill(self) -> None:
        """kill -9: nothing written is lost, and nothing more of it is durable."""
        handles, self._handles = self._handles, {}
        for handle in handles:
            handle._die()

    def fail(
        self,
        operation: Operation,
        path_part: str,
        error: int = errno.EIO,
        after: int = 0,
        times: int = 1,
    ) -> None:
        """Lets `after` calls with `path_part` in the path pass, then fails the next `times`."""
        if operation not in get_args(Operation):
            raise ValueError(f"{operation!r} is none of {get_args(Operation)}")
        self._faults.append(_Fault(operation, path_part, error, after, times))

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Bit rot, in both layers."""
        inode = self._names.file(path)
        if not 0 <= position < len(inode.cached):
            raise ValueError(f"{path} has {len(inode.cached)} bytes, none at {position}")
        inode.flip_bit(position, bit)

    def truncate_file(self, path: str, size: int) -> None:
        """Durable at once, with all that was unsynced in the file."""
        content = bytearray(self.read_all(path))
        resize(content, size)
        self.write_all(path, content)

    def read_all(self, path: str) -> bytes:
        return bytes(self._names.file(path).cached)

    def write_all(self, path: str, data: Buffer) -> None:
        """Durable at once, and so are the names in its directory. Takes no heed of capacity."""
        self._open(path, create=True, read_only=False, locks=False).close()
        inode, content = self._names.file(path), bytearray(data)
        self._used_bytes += len(content) - len(inode.cached)
        inode.settle(content)
        self._names.sync({self._names.parent(path)[0]})

    # Inside.

    def _open(self, path: str, *, create: bool, read_only: bool, locks: bool) -> FaultyFile:
        parent, name = self._names.parent(path)
        node = parent.entries.get(name)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        if node is None:
            if not create:
                raise os_error(errno.ENOENT, path)
            node = Inode()
            self._names.link(parent, name, node)
        if locks and node.locked:
            raise os_error(errno.EAGAIN, path)
        file = FaultyFile(self, node, path, read_only=read_only, locks=locks)
        self._handles[file] = None
        return file

    def _fault(self, operation: Operation, *paths: str) -> OSError | None:
        for fault in self._faults:
            if fault.operation == operation and any(fault.path_part in p for p in paths):
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return os_error(fault.error, paths[0])
        return None

    def _free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return sys.maxsize
        return max(0, self.capacity_bytes - self._used_bytes)

    def _unlink(self, parent: Directory, name: str) -> None:
        node = self._names.unlink(parent, name)
        if isinstance(node, Inode):
            self._unlinked(node)

    def _unlinked(self, inode: Inode) -> None:
        inode.linked = False
        self._release(inode)

    def _release(self, inode: Inode) -> None:
        if not inode.linked and inode.handles == 0:
            self._used_bytes -= len(inode.cached)
