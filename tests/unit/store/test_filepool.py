"""A bounded number of open files, and the thread that writes to them."""

from __future__ import annotations

import errno

import pytest

from mq.store.filepool import FilePool, PendingWrite
from mq.store.writeback import Writeback
from tests.support.faulty_vfs import FaultyVfs


def disk(*paths: str) -> FaultyVfs:
    vfs = FaultyVfs()
    vfs.make_dirs("/data")
    for path in paths:
        vfs.write_all(path, path.encode())
    return vfs


def test_the_file_that_was_not_used_for_longest_is_closed() -> None:
    vfs = disk("/data/a", "/data/b", "/data/c")
    pool = FilePool(vfs, 2)
    first, second = pool.get("/data/a"), pool.get("/data/b")
    assert pool.get("/data/a") is first
    third = pool.get("/data/c")
    assert first.pread(9, 0) == b"/data/a"
    assert third.pread(9, 0) == b"/data/c"
    with pytest.raises(OSError, match="Bad file descriptor"):
        second.pread(9, 0)
    assert pool.get("/data/b").pread(9, 0) == b"/data/b"
    pool.close()
    assert vfs._handles == {}


def test_reading_creates_nothing() -> None:
    vfs = disk()
    with pytest.raises(FileNotFoundError):
        FilePool(vfs, 2).get("/data/a")
    assert vfs.list_dir("/data") == []


def test_a_write_makes_file_and_directories() -> None:
    vfs = disk()
    pool = FilePool(vfs, 2)
    pool.write(PendingWrite("/data/t/0/x", 3, [b"ab", b"c"]))
    assert vfs.read_all("/data/t/0/x") == b"\0\0\0abc"


def test_a_forgotten_file_is_opened_anew() -> None:
    vfs = disk("/data/a")
    pool = FilePool(vfs, 2)
    pool.get("/data/a")
    pool.forget("/data/a")
    pool.forget("/data/a")
    vfs.remove("/data/a")
    with pytest.raises(FileNotFoundError):
        pool.get("/data/a")


def test_write_back_writes_and_removes_in_the_order_asked_for() -> None:
    vfs = disk()
    writeback = Writeback(vfs, background=False)
    write = PendingWrite("/data/x", 0, [b"x"])
    writeback.write([write]).result()
    writeback.remove(["/data/x", "/data/never"]).result()
    assert not vfs.exists("/data/x")
    # Not through the handle of the removed file.
    writeback.write([write]).result()
    assert vfs.read_all("/data/x") == b"x"
    writeback.close()
    assert vfs._handles == {}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_is_in_the_future(error: int) -> None:
    vfs = disk()
    writeback = Writeback(vfs, background=False)
    vfs.fail("pwritev", "/data/x", error)
    future = writeback.write([PendingWrite("/data/x", 0, [b"x"])])
    assert isinstance(future.exception(), OSError)


def test_with_a_thread_closing_waits_for_what_was_asked_for() -> None:
    vfs = disk()
    writeback = Writeback(vfs, background=True)
    futures = [writeback.write([PendingWrite("/data/x", n, [b"%d" % n])]) for n in range(10)]
    writeback.close()
    assert all(future.done() for future in futures)
    assert vfs.read_all("/data/x") == b"0123456789"


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_files_are_given_up_for_the_next(error: int) -> None:
    vfs = disk("/data/a", "/data/b", "/data/c")
    pool = FilePool(vfs, 9)
    pool.get("/data/a")
    pool.get("/data/b")
    vfs.fail("open", "/data/c", error, times=2)
    assert pool.get("/data/c").pread(9, 0) == b"/data/c"
    assert len(vfs._handles) == 1
    vfs.fail("open", "/data/a", error, times=2)
    with pytest.raises(OSError, match="Too many open files"):
        pool.get("/data/a")
    assert pool.get("/data/a").pread(9, 0) == b"/data/a"
    pool.close()
