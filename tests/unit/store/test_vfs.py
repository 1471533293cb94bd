"""The promises of every `Vfs`: told once, kept by the real one and by the faulty one."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings

from mq.store.vfs import RealVfs, Vfs, write_file_atomically
from tests.support.faulty_vfs import FaultyVfs
from tests.support.file_steps import STEPS, Step, error_of, perform, read, write


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


def test_pages_dropped_from_the_cache_are_still_in_the_file(disk: Disk) -> None:
    write(disk.vfs, f"{disk.root}/a", b"0123456789")
    file = disk.vfs.open(f"{disk.root}/a")
    file.drop_cache(0, 10)
    assert file.pread(10, 0) == b"0123456789"
    file.close()


@pytest.mark.parametrize(
    ("number", "advised"), [(errno.EAGAIN, [(1, 3)]), (errno.EOPNOTSUPP, [])], ids=["cold", "mute"]
)
def test_nothing_is_let_go_where_the_file_system_does_not_tell_what_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advised: list[tuple[int, int]]
) -> None:
    def preadv(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, at, size, __: calls.append((at, size)))
    file = RealVfs().open(f"{tmp_path}/a", create=True)
    assert not file.is_in_memory(1, 3)
    file.drop_cache(1, 3)
    assert calls == advised
    file.close()


def test_pread_is_short_only_at_the_end(disk: Disk) -> None:
    write(disk.vfs, f"{disk.root}/a", b"0123456789")
    file = disk.vfs.open(f"{disk.root}/a")
    assert file.pread(4, 2) == b"2345"
    assert file.pread(100, 7) == b"789"
    assert file.pread(100, 10) == b""
    assert file.pread(100, 1000) == b""
    file.close()


@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 3000])
def test_pwritev_takes_any_number_of_buffers(disk: Disk, count: int) -> None:
    buffers = [index.to_bytes(2, "big") * (index % 3) for index in range(count)]
    file = disk.vfs.open(f"{disk.root}/a", create=True)
    file.pwritev([memoryview(buffer) for buffer in buffers], 5)
    written = b"".join(buffers)
    assert file.pread(file.size(), 0) == (bytes(5) + written if written else b"")
    file.close()


def test_pwritev_of_nothing_behind_the_end_does_not_grow_the_file(disk: Disk) -> None:
    file = disk.vfs.open(f"{disk.root}/a", create=True)
    file.pwritev([b"", b""], 100)
    assert file.size() == 0
    file.close()


def test_a_gap_reads_as_zeros(disk: Disk) -> None:
    write(disk.vfs, f"{disk.root}/a", b"x", position=1000)
    assert read(disk.vfs, f"{disk.root}/a") == bytes(1000) + b"x"


def test_view_grows_with_the_file_and_outlives_a_truncate(disk: Disk) -> None:
    file = disk.vfs.open(f"{disk.root}/a", create=True)
    assert bytes(file.view(0)) == b""
    file.pwritev([b"abc"], 0)
    first = file.view(2)
    assert bytes(first) == b"ab"
    with pytest.raises(ValueError, match="view of 4 bytes of a file of 3"):
        file.view(4)
    file.pwritev([b"d" * 10_000], 3)
    assert file.view(10_003) == b"abc" + b"d" * 10_000
    assert bytes(first) == b"ab"
    file.truncate(1)
    with pytest.raises(ValueError, match="view of 2 bytes of a file of 1"):
        file.view(2)
    file.pwritev([b"XY"], 1)
    assert bytes(file.view(3)) == b"aXY"
    assert file.view(3).readonly
    file.close()


def test_a_new_view_shows_earlier_writes(disk: Disk) -> None:
    file, other = (disk.vfs.open(f"{disk.root}/a", create=True) for _ in range(2))
    file.pwritev([b"abc"], 0)
    assert bytes(file.view(3)) == b"abc"
    other.pwritev([b"B"], 1)
    assert bytes(file.view(3)) == b"aBc"
    file.close()
    other.close()


def test_allocate_fills_with_zeros_and_never_shrinks(disk: Disk) -> None:
    file = disk.vfs.open(f"{disk.root}/a", create=True)
    file.pwritev([b"abc"], 0)
    file.allocate(1, 4)
    assert file.pread(100, 0) == b"abc\0\0"
    file.allocate(0, 2)
    assert file.size() == 5
    assert error_of(lambda: file.allocate(0, 0)) == errno.EINVAL
    file.close()


def test_truncate_cuts_and_grows_with_zeros(disk: Disk) -> None:
    file = disk.vfs.open(f"{disk.root}/a", create=True)
    file.pwritev([b"abcdef"], 0)
    file.truncate(2)
    file.truncate(4)
    assert file.pread(100, 0) == b"ab\0\0"
    file.close()


def test_a_closed_file_is_a_bad_descriptor_and_may_be_closed_again(disk: Disk) -> None:
    file = disk.vfs.open(f"{disk.root}/a", create=True)
    file.close()
    file.close()
    for call in (file.size, lambda: file.pread(1, 0), lambda: file.pwritev([b"x"], 0)):
        assert error_of(call) == errno.EBADF


def test_a_read_only_file_refuses_changes(disk: Disk) -> None:
    write(disk.vfs, f"{disk.root}/a", b"abc")
    file = disk.vfs.open(f"{disk.root}/a", read_only=True)
    assert error_of(lambda: file.pwritev([b"x"], 0)) == errno.EBADF
    assert error_of(lambda: file.truncate(0)) == errno.EINVAL
    assert error_of(lambda: file.allocate(0, 9)) == errno.EBADF
    assert bytes(file.view(3)) == b"abc"
    file.close()


def test_open_needs_the_file_or_create_and_always_the_directory(disk: Disk) -> None:
    vfs, root = disk
    with pytest.raises(FileNotFoundError):
        vfs.open(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        vfs.open(f"{root}/no/a", create=True)
    with pytest.raises(IsADirectoryError):
        vfs.open(root)
    write(vfs, f"{root}/a", b"")
    with pytest.raises(NotADirectoryError):
        vfs.open(f"{root}/a/b", create=True)


def test_replace_takes_the_place_of_the_target(disk: Disk) -> None:
    vfs, root = disk
    write(vfs, f"{root}/a", b"new")
    write(vfs, f"{root}/b", b"old content")
    old = vfs.open(f"{root}/b")
    vfs.replace(f"{root}/a", f"{root}/b")
    assert vfs.list_dir(root) == ["b"]
    assert read(vfs, f"{root}/b") == b"new"
    assert old.pread(100, 0) == b"old content"
    old.close()
    with pytest.raises(FileNotFoundError):
        vfs.replace(f"{root}/a", f"{root}/b")


def test_replace_moves_directories(disk: Disk) -> None:
    vfs, root = disk
    vfs.make_dirs(f"{root}/one/two")
    write(vfs, f"{root}/one/two/a", b"abc")
    vfs.make_dirs(f"{root}/empty")
    vfs.replace(f"{root}/one", f"{root}/empty")
    assert vfs.list_dir(root) == ["empty"]
    assert read(vfs, f"{root}/empty/two/a") == b"abc"
    write(vfs, f"{root}/b", b"")
    with pytest.raises(IsADirectoryError):
        vfs.replace(f"{root}/b", f"{root}/empty")
    with pytest.raises(NotADirectoryError):
        vfs.replace(f"{root}/empty", f"{root}/b")
    into_itself = f"{root}/empty/two/x"
    assert error_of(lambda: vfs.replace(f"{root}/empty", into_itself)) == errno.EINVAL


def test_removing_what_is_not_there_is_no_error(disk: Disk) -> None:
    vfs, root = disk
    vfs.remove(f"{root}/a")
    vfs.remove(f"{root}/no/a")
    vfs.remove_tree(f"{root}/no")
    write(vfs, f"{root}/a", b"abc")
    file = vfs.open(f"{root}/a")
    vfs.remove(f"{root}/a")
    assert not vfs.exists(f"{root}/a")
    assert file.pread(3, 0) == b"abc"
    file.close()
    with pytest.raises(IsADirectoryError):
        vfs.remove(root)


def test_directories_are_listed_sorted_and_removed_whole(disk: Disk) -> None:
    vfs, root = disk
    vfs.make_dirs(f"{root}/d/sub")
    vfs.make_dirs(f"{root}/d")
    for name in ("b", "10", "a", "9"):
        write(vfs, f"{root}/d/{name}", b"")
    assert vfs.list_dir(f"{root}/d") == ["10", "9", "a", "b", "sub"]
    assert vfs.list_dir(f"{root}/no") == []
    with pytest.raises(NotADirectoryError):
        vfs.list_dir(f"{root}/d/a")
    with pytest.raises(FileExistsError):
        vfs.make_dirs(f"{root}/d/a")
    vfs.remove_tree(f"{root}/d")
    assert vfs.list_dir(root) == []


def test_sizes_and_existence(disk: Disk) -> None:
    vfs, root = disk
    assert vfs.file_size(f"{root}/a") is None
    write(vfs, f"{root}/a", b"abc")
    assert vfs.file_size(f"{root}/a") == 3
    assert vfs.exists(f"{root}/a")
    assert vfs.exists(root)
    assert not vfs.exists(f"{root}/a/b")
    usage = vfs.disk_usage(root)
    assert 0 < usage.free_bytes <= usage.total_bytes
    assert 0 <= usage.used_ratio < 1


def test_the_reserve_of_root_is_neither_used_nor_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = list(os.statvfs(tmp_path))
    # Blocks of 4 KiB: 1000 in all, 950 are free, and 700 of these not for root alone.
    fields[0:5] = 4096, 4096, 1000, 950, 700
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    usage = RealVfs().disk_usage(str(tmp_path))
    assert usage == (750 * 4096, 700 * 4096)
    assert usage.used_ratio == pytest.approx(50 / 750)


def test_syncs_need_a_directory(disk: Disk) -> None:
    vfs, root = disk
    write(vfs, f"{root}/a", b"abc", sync=True)
    vfs.sync_dir(root)
    vfs.sync_tree(root)
    for sync in (vfs.sync_dir, vfs.sync_tree):
        with pytest.raises(FileNotFoundError):
            sync(f"{root}/no")
        with pytest.raises(NotADirectoryError):
            sync(f"{root}/a")


def test_a_lock_excludes_a_second_one_until_it_is_closed(disk: Disk) -> None:
    vfs, root = disk
    first = vfs.lock(f"{root}/LOCK")
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            vfs.lock(f"{root}/LOCK")
    vfs.open(f"{root}/LOCK").close()
    with pytest.raises(BlockingIOError):
        vfs.lock(f"{root}/LOCK")
    first.close()
    vfs.lock(f"{root}/LOCK").close()


def test_write_file_atomically_replaces_the_content(disk: Disk) -> None:
    vfs, root = disk
    for content in (b"a long first content", b"short", b""):
        write_file_atomically(vfs, f"{root}/a", [content])
        assert read(vfs, f"{root}/a") == content
        assert vfs.list_dir(root) == ["a"]


@given(steps=STEPS)
@settings(deadline=None)
def test_the_faulty_disk_shows_what_the_real_one_shows(steps: list[Step]) -> None:
    vfs = FaultyVfs()
    vfs.make_dirs("/data")
    with tempfile.TemporaryDirectory() as root:
        assert perform(vfs, "/data", steps) == perform(RealVfs(), root, steps)


def test_a_view_takes_no_descriptor_and_outlives_its_file(tmp_path: Path) -> None:
    file = RealVfs().open(f"{tmp_path}/a", create=True)
    file.pwritev([b"0123456789"], 0)
    before = os.listdir("/proc/self/fd")
    part = file.view(10)[2:5]
    assert os.listdir("/proc/self/fd") == before
    assert part.readonly
    file.close()
    assert bytes(part) == b"234"


def test_a_map_ends_with_its_last_view(tmp_path: Path) -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(f"{tmp_path}/a")

    file = RealVfs().open(f"{tmp_path}/a", create=True)
    file.pwritev([b"0123456789"], 0)
    part = file.view(10)[2:5]
    file.close()
    assert maps() == 1
    del part
    gc.collect()
    assert maps() == 0
