"""Reading a log by files of one's own, whatever happens to it meanwhile; and whether a read would
wait for the disk.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import pytest

from mq.errors import OffsetOutOfRange
from mq.store.commitlog import CommitLog
from mq.store.vfs import RealVfs, Vfs
from tests.support.faulty_vfs import FaultyVfs
from tests.support.logs import append, checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Disk(NamedTuple):
    vfs: Vfs
    root: str


@pytest.fixture(params=["real", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "real":
        return Disk(RealVfs(), str(tmp_path))
    vfs = FaultyVfs()
    vfs.make_dirs("/data")
    return Disk(vfs, "/data")


def three_segments(disk: Disk) -> CommitLog:
    log = CommitLog(
        disk.vfs,
        f"{disk.root}/commitlog",
        segment_bytes=1 << 20,
        verify_bytes=1 << 20,
        background=False,
    )
    for at in range(3):
        log.roll(checkpoint())
        append(log, b"%d" % at * 1000, b"%d" % (at + 3) * 1000)
    log.sync()
    return log


def drop(log: CommitLog) -> None:
    log.drop_front(2)


def start_over(log: CommitLog) -> None:
    log.start_over(100, 1_000_000)


def truncate(log: CommitLog) -> None:
    log.truncate(log.first_index + 5)


@pytest.mark.parametrize("happens", [drop, start_over, truncate, CommitLog.close])
def test_a_reader_apart_can_read_whatever_happens_to_the_log(
    disk: Disk, happens: Callable[[CommitLog], None]
) -> None:
    log = three_segments(disk)
    first, second, _ = log.segments()
    start, end = first.base_log_offset + 10, second.base_log_offset + 100
    whole = log.read(start, end - start)
    apart = log.apart(start, end)
    happens(log)
    # A file that is opened now may get the number of one that was closed.
    other = disk.vfs.open(f"{disk.root}/other", create=True)
    other.pwritev([bytes(100_000)], 0)
    middle = second.base_log_offset
    parts = apart.read_ranges([(start, start + 5), (start + 7, middle), (middle, end)])
    assert parts == [whole[:5], whole[7 : middle - start], whole[middle - start :]]
    assert apart.read_ranges([(start, end)]) == [whole]
    apart.close()
    other.close()
    log.close()


def test_only_what_was_asked_for_is_there_and_nothing_after_the_end(disk: Disk) -> None:
    log = three_segments(disk)
    _, second, third = log.segments()
    apart = log.apart(second.base_log_offset, second.base_log_offset + 1)
    append(log, b"later")
    for log_offset in (0, third.base_log_offset):
        with pytest.raises(OffsetOutOfRange):
            apart.read_ranges([(log_offset, log_offset + 1)])
    apart.close()
    log.close()


def test_a_disk_that_is_cold_says_so() -> None:
    vfs = FaultyVfs()
    vfs.make_dirs("/data")
    log = three_segments(Disk(vfs, "/data"))
    assert log.is_in_memory(log.start_offset, log.end_offset)
    vfs.is_cold = True
    assert not log.is_in_memory(log.start_offset, log.end_offset)
    log.close()


def test_the_kernel_knows_what_is_in_memory(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 4 << 20
    path.write_bytes(bytes(size))
    file = RealVfs().open(str(path))
    file.sync()
    file.pread(size, 0)
    if not file.is_in_memory(0, size):
        pytest.skip("this file system cannot tell")
    assert file.is_in_memory(size - 1, 1)
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    # Advice is no command: what memory is the disk, nothing can leave it.
    if file.is_in_memory(0, size):
        pytest.skip("this file system keeps it in memory")
    file.pread(size, 0)
    assert file.is_in_memory(0, size)
    file.close()
    assert not file.is_in_memory(0, size), "nobody can tell"
