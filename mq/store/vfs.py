"""The only door to the file system.

Everything in `mq.store` takes a `Vfs`, so that tests can lose unsynced writes, tear them, flip bits
and run out of space. Errors are plain `OSError`s; the owner of the file decides what they mean.
Names are `str` paths.

What is durable: bytes after `File.sync`, names (a file that was created, replaced or removed) after
`sync_dir` of the directory that holds them. Until then a crash may lose any of it, in any order,
and tear it at any sector.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from typing_extensions import Buffer

from mq import descriptors

# Linux takes at most this many buffers in one call (IOV_MAX).
_BUFFERS_MAX = 1024
_OPEN_FILES_MAX = 16_384
_LARGE_FILE_BYTES = 16 << 20
_PROBE_BYTES = 128 << 10


class DiskUsage(NamedTuple):
    """Of the part of a disk that is not reserved for root."""

    total_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float:
        return 1.0 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0


class File(Protocol):
    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes: fewer only at the end of the file."""
        ...

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fills the buffer and says how far: not all of it only at the end of the file."""
        ...

    def changed_at(self) -> int:
        """The time of the last write by any process: for comparing, in no known unit."""
        ...

    def is_in_memory(self, position: int, length: int) -> bool:
        """Whether a read would most likely not wait for the disk; False if that is unknown."""
        ...

    def read_ahead(self, position: int, length: int) -> None:
        """These bytes will be read soon: the page cache should have them by then. Does not wait."""
        ...

    def drop_cache(self, position: int, length: int) -> None:
        """These bytes, which were not in memory before, will not be read again soon: the page cache
        need not keep them.
        """
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Writes all of it or raises; after an error any part of it may be there."""
        ...

    def view(self, length: int) -> memoryview:
        """The first `length` bytes, which must exist, for random access without copies.

        Later writes may show or not. Bytes that were truncated away, by this handle only,
        must not be touched through a view.
        """
        ...

    def allocate(self, position: int, length: int) -> None:
        """Reserves disk space and makes the file at least that long; new bytes read as zeros."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """Returns when content and length are durable."""
        ...

    def close(self) -> None: ...


class Vfs(Protocol):
    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File: ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int | None:
        """None when there is no such file."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Sorted names; none when there is no such directory."""
        ...

    def make_dirs(self, path: str) -> None: ...

    def replace(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Removing what is not there is no error."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def sync_tree(self, path: str) -> None:
        """Everything written below `path` is durable, files and names: for many small files at
        once.
        """
        ...

    def disk_usage(self, path: str) -> DiskUsage: ...

    def open_files_max(self) -> int:
        """The number of files that one owner may keep open for speed."""
        ...

    def lock(self, path: str) -> File:
        """Holds an exclusive lock until the returned file is closed; BlockingIOError when another
        process has it.
        """
        ...


class RealFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        # By the file system: whether bytes are in memory.
        self._can_tell = True
        self._view = memoryview(b"")

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        while data := os.pread(
            self._fd, length - sum(map(len, parts)), position + sum(map(len, parts))
        ):
            parts.append(data)
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], position + done)
            if count == 0:
                break
            done += count
        return done

    def changed_at(self) -> int:
        return os.fstat(self._fd).st_mtime_ns

    def is_in_memory(self, position: int, length: int) -> bool:
        buffer = bytearray(1)
        # The kernel reads ahead in steps of about this size: a byte of each tells of all.
        for at in (*range(position, position + length, _PROBE_BYTES), position + length - 1):
            try:
                os.preadv(self._fd, [buffer], at, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                self._can_tell = False
                return False
        return True

    def read_ahead(self, position: int, length: int) -> None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_WILLNEED)

    def drop_cache(self, position: int, length: int) -> None:
        # Where the file system does not tell what is in memory, it may be in use by others.
        if self._can_tell:
            os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_DONTNEED)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        if len(buffers) > _BUFFERS_MAX:
            for start in range(0, len(buffers), _BUFFERS_MAX):
                group = buffers[start : start + _BUFFERS_MAX]
                self.pwritev(group, position)
                position += sum([memoryview(buffer).nbytes for buffer in group])
            return
        if len(buffers) == 1:
            written, size = os.pwrite(self._fd, buffers[0], position), memoryview(buffers[0]).nbytes
        else:
            written = os.pwritev(self._fd, buffers, position)
            size = sum([memoryview(buffer).nbytes for buffer in buffers])
        if written < size:
            self._write_rest(b"".join(buffers)[written:], position + written)

    def _write_rest(self, rest: bytes, position: int) -> None:
        """A short write has a reason (no space, a limit): the next write says which, or finishes
        the work.
        """
        while rest:
            written = os.pwrite(self._fd, rest, position)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest, position = rest[written:], position + written

    def view(self, length: int) -> memoryview:
        if length > len(self._view):
            # The old map lives on in the views that were handed out.
            size = os.fstat(self._fd).st_size
            if length > size:
                raise ValueError(f"view of {length} bytes of a file of {size}")
            self._view = _map(self._fd, size)
        return self._view[:length]

    def allocate(self, position: int, length: int) -> None:
        os.posix_fallocate(self._fd, position, length)

    def truncate(self, size: int) -> None:
        # A page of a map beyond the end of its file is deadly to touch: never hand the old one out
        # again.
        self._view = memoryview(b"")
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        if self._fd < 0:  # Python would call it a ValueError
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._view = memoryview(b"")


class RealVfs:
    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
        return RealFile(_open(path, flags | (os.O_CREAT if create else 0)))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def file_size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        # The name goes at once. Giving back the pages of a large file takes as long as it is large,
        # and happens when it is closed for the last time: by a thread without waiters.
        with contextlib.suppress(FileNotFoundError):
            try:
                fd = _open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                os.remove(path)
                return
            try:
                is_large = os.fstat(fd).st_size >= _LARGE_FILE_BYTES
                os.remove(path)
            except OSError:
                os.close(fd)
                raise
            if is_large:
                threading.Thread(target=os.close, args=(fd,), name="mq-remove", daemon=True).start()
            else:
                os.close(fd)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        with _directory(path) as fd:
            os.fsync(fd)

    def sync_tree(self, path: str) -> None:
        # One syncfs costs a single commit of the file system's journal; ten thousand fsyncs cost
        # ten thousand.
        with _directory(path) as fd:
            if _SYNCFS is None:
                os.sync()
            elif _SYNCFS(fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)

    def disk_usage(self, path: str) -> DiskUsage:
        # As `df` has it: blocks that are reserved for root are neither used nor free. Counted as
        # used, they would make the broker of an empty disk with a large reserve delete messages.
        _, used_bytes, free_bytes = shutil.disk_usage(path)
        return DiskUsage(used_bytes + free_bytes, free_bytes)

    def open_files_max(self) -> int:
        return min(_OPEN_FILES_MAX, descriptors.hard_limit() // 2)

    def lock(self, path: str) -> RealFile:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # noqa: SLF001 - our own class
        except OSError:
            file.close()
            raise
        return file


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    with descriptors.reserve():
        return os.open(path, flags, 0o644)


@contextlib.contextmanager
def _directory(path: str) -> Iterator[int]:
    """To sync it, which must not fail for want of a descriptor: a failed sync stops the node."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        try:
            fd = _open(path, flags)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            stack.enter_context(descriptors.borrowed())
            fd = os.open(path, flags)
        stack.callback(os.close, fd)
        yield fd


_LIBC = ctypes.CDLL(None, use_errno=True)
_SYNCFS = getattr(_LIBC, "syncfs", None)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_int64,
)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value


def _map(fd: int, size: int) -> memoryview:
    """The map ends with the last view of it. Python's own `mmap` takes a descriptor for each map
    (until 3.13), which a node that has none left cannot give: it could not apply its log.
    """
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    region = (ctypes.c_char * size).from_address(address)
    # Not at the exit of the process, when views may still be in use.
    weakref.finalize(region, _LIBC.munmap, address, size).atexit = False
    return memoryview(region).cast("B").toreadonly()


_SHORTAGES = {
    errno.ENOSPC: "no space on the disk",
    errno.EDQUOT: "no space within the disk quota",
    errno.EMFILE: "no free descriptor in this process, whose limit on open files is too low,",
    errno.ENFILE: "no free descriptor in this system",
}


def is_shortage(error: OSError) -> bool:
    """A state of the disk or the process, which passes; any other error is a state of the file, and
    does not.
    """
    return error.errno in _SHORTAGES


def shortage(error: OSError) -> str:
    """Names the resource that is missing, for an error message."""
    return _SHORTAGES[error.errno or 0]


def write_file_atomically(vfs: Vfs, path: str, content: Sequence[Buffer]) -> None:
    """After this the file has the new content, durably; after a crash in the middle it has the old
    or the new.
    """
    temporary = path + ".new"
    file = vfs.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwritev(content, 0)
        file.sync()
    finally:
        file.close()
    vfs.replace(temporary, path)
    vfs.sync_dir(os.path.dirname(path) or ".")
