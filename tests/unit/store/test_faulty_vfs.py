"""The promises of `FaultyVfs` to the tests that build on it: the writes it loses and keeps."""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.store.vfs import write_file_atomically
from tests.support.faulty_vfs import SECTOR_BYTES, FaultyVfs
from tests.support.file_steps import STEPS, Step, error_of, perform, write

SEEDS = range(20)


@pytest.fixture
def faulty() -> FaultyVfs:
    """With a durable, empty /data."""
    return faulty_with_data()


def faulty_with_data(seed: int = 0) -> FaultyVfs:
    vfs = FaultyVfs(seed)
    vfs.make_dirs("/data")
    vfs.sync_tree("/")
    return vfs


def contents(vfs: FaultyVfs) -> dict[str, bytes]:
    return {name: vfs.read_all(f"/data/{name}") for name in vfs.list_dir("/data")}


@given(steps=STEPS, seed=st.integers(0, 1000))
@settings(deadline=None)
def test_a_crash_that_keeps_all_changes_nothing(steps: list[Step], seed: int) -> None:
    vfs = faulty_with_data()
    perform(vfs, "/data", steps)
    before = contents(vfs)
    vfs.crash(seed, keep=1)
    assert contents(vfs) == before
    vfs.crash(seed, keep=0)
    assert contents(vfs) == before


@given(before=STEPS, after=STEPS, seed=st.integers(0, 1000))
@settings(deadline=None)
def test_a_crash_that_keeps_nothing_goes_back_to_the_last_sync(
    before: list[Step], after: list[Step], seed: int
) -> None:
    vfs = faulty_with_data()
    perform(vfs, "/data", before)
    vfs.sync_tree("/data")
    synced = contents(vfs)
    perform(vfs, "/data", [step for step in after if step[0] != "sync"])
    vfs.crash(seed, keep=0)
    assert contents(vfs) == synced


@given(
    writes=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 1500)), max_size=8),
    seed=st.integers(0, 1000),
    keep=st.floats(0, 1),
)
@settings(deadline=None)
def test_after_a_crash_each_sector_is_one_that_was_there_before(
    writes: list[tuple[int, int]], seed: int, keep: float
) -> None:
    vfs = faulty_with_data()
    vfs.write_all("/data/a", b"s" * 1000)
    versions = [vfs.read_all("/data/a")]
    for index, (position, length) in enumerate(writes):
        write(vfs, "/data/a", bytes([index + 1]) * length, position)
        versions.append(vfs.read_all("/data/a"))
    vfs.crash(seed, keep)
    content = vfs.read_all("/data/a")
    assert len(content) in {len(version) for version in versions}
    for start in range(0, len(content), SECTOR_BYTES):
        sector = content[start : start + SECTOR_BYTES]
        padded = {
            version[start : start + len(sector)].ljust(len(sector), b"\0") for version in versions
        }
        assert sector in padded


@pytest.mark.parametrize("seed", SEEDS)
def test_synced_bytes_survive_every_crash(seed: int) -> None:
    vfs = faulty_with_data()
    synced = random.Random(seed).randbytes(5000)
    write(vfs, "/data/a", synced, sync=True)
    vfs.sync_dir("/data")
    write(vfs, "/data/a", b"unsynced" * 1000, position=5000)
    vfs.crash(seed, keep=seed / len(SEEDS))
    assert vfs.read_all("/data/a")[:5000] == synced


def test_unsynced_bytes_are_lost_and_torn_at_sectors() -> None:
    outcomes = set()
    for seed in SEEDS:
        vfs = faulty_with_data()
        vfs.write_all("/data/a", b"o" * 4 * SECTOR_BYTES)
        write(vfs, "/data/a", b"n" * 3 * SECTOR_BYTES, position=100)
        vfs.crash(seed)
        content = vfs.read_all("/data/a")
        sectors = [content[s : s + SECTOR_BYTES] for s in range(0, len(content), SECTOR_BYTES)]
        assert sectors[0] in {b"o" * 512, b"o" * 100 + b"n" * 412}
        assert {len(set(sector)) for sector in sectors[1:3]} == {1}
        assert sectors[3] in {b"o" * 512, b"n" * 100 + b"o" * 412}
        outcomes.add("".join("kept" if b"n" in sector else "lost" for sector in sectors))
    assert len(outcomes) > 5


def test_a_length_may_survive_without_its_bytes_and_bytes_without_their_length() -> None:
    outcomes = set()
    for seed in SEEDS:
        vfs = faulty_with_data()
        vfs.write_all("/data/a", b"")
        write(vfs, "/data/a", b"n" * 10)
        vfs.crash(seed)
        outcomes.add(vfs.read_all("/data/a"))
    assert outcomes == {b"", bytes(10), b"n" * 10}


def test_a_lost_truncate_brings_the_tail_back() -> None:
    outcomes = set()
    for seed in SEEDS:
        vfs = faulty_with_data()
        vfs.write_all("/data/a", b"o" * 1024)
        file = vfs.open("/data/a")
        file.truncate(0)
        file.pwritev([b"n" * 10], 0)
        vfs.crash(seed)
        outcomes.add(vfs.read_all("/data/a"))
    new_sector = b"n" * 10 + bytes(502)
    assert outcomes == {b"o" * 1024, new_sector + b"o" * 512, b"", bytes(10), b"n" * 10}


def test_a_new_name_needs_a_sync_of_its_directory(faulty: FaultyVfs) -> None:
    write(faulty, "/data/a", b"abc", sync=True)
    faulty.make_dirs("/data/dir")
    write(faulty, "/data/dir/b", b"abc", sync=True)
    faulty.sync_dir("/data/dir")
    faulty.crash(0, keep=0)
    assert faulty.list_dir("/data") == []
    write(faulty, "/data/a", b"abc")
    faulty.sync_dir("/data")
    faulty.crash(0, keep=0)
    assert faulty.read_all("/data/a") == b""


def test_an_unsynced_replace_is_undone_or_kept_whole() -> None:
    outcomes = set()
    for seed in SEEDS:
        vfs = faulty_with_data()
        vfs.write_all("/data/a", b"old")
        vfs.write_all("/data/a.new", b"new")
        vfs.replace("/data/a.new", "/data/a")
        vfs.crash(seed)
        outcomes.add(tuple(contents(vfs).items()))
    assert outcomes == {(("a", b"new"),), (("a", b"old"), ("a.new", b"new"))}


def test_an_unsynced_removal_may_come_back_with_the_durable_content() -> None:
    outcomes = set()
    for seed in SEEDS:
        vfs = faulty_with_data()
        vfs.write_all("/data/dir.a", b"old")
        vfs.remove("/data/dir.a")
        vfs.crash(seed)
        outcomes.add(vfs.exists("/data/dir.a") and vfs.read_all("/data/dir.a"))
    assert outcomes == {False, b"old"}


def test_a_synced_removal_of_a_tree_is_final(faulty: FaultyVfs) -> None:
    faulty.make_dirs("/data/dir/sub")
    faulty.write_all("/data/dir/sub/a", b"abc")
    faulty.sync_tree("/")
    faulty.remove_tree("/data/dir")
    faulty.sync_dir("/data")
    assert not faulty._names._unsynced
    faulty.crash(0, keep=0)
    assert faulty.list_dir("/data") == []


def test_renames_lost_in_the_middle_leave_one_name() -> None:
    for seed in SEEDS:
        vfs = faulty_with_data()
        vfs.write_all("/data/a", b"abc")
        vfs.replace("/data/a", "/data/b")
        vfs.replace("/data/b", "/data/c")
        vfs.crash(seed)
        assert list(contents(vfs).values()) == [b"abc"]


@pytest.mark.parametrize("seed", SEEDS)
def test_write_file_atomically_leaves_the_old_or_the_new(seed: int) -> None:
    vfs = faulty_with_data()
    write_file_atomically(vfs, "/data/a", [b"o" * 2000])
    for operation in ("pwritev", "sync", "replace", "sync_dir"):
        vfs.fail(operation, "/data")
        with pytest.raises(OSError, match="error"):
            write_file_atomically(vfs, "/data/a", [b"n" * 3000])
        vfs.crash(seed)
        assert vfs.read_all("/data/a") in {b"o" * 2000, b"n" * 3000}
    write_file_atomically(vfs, "/data/a", [b"m" * 3000])
    vfs.crash(seed, keep=0)
    assert vfs.read_all("/data/a") == b"m" * 3000


def test_a_failed_sync_drops_the_bytes_for_good(faulty: FaultyVfs) -> None:
    faulty.write_all("/data/a", b"old")
    file = faulty.open("/data/a")
    file.pwritev([b"dropped"], 0)
    faulty.fail("sync", "/data/a")
    assert error_of(file.sync) == errno.EIO
    assert file.pread(10, 0) == b"dropped"
    file.pwritev([b"kept"], 10)
    file.sync()
    assert faulty.sync_count == 2
    faulty.crash(0, keep=1)
    assert faulty.read_all("/data/a") == b"old" + bytes(7) + b"kept"


def test_a_failed_sync_tree_drops_the_bytes_below(faulty: FaultyVfs) -> None:
    faulty.write_all("/data/a", b"old")
    write(faulty, "/data/a", b"new")
    faulty.fail("sync_tree", "/data")
    assert error_of(lambda: faulty.sync_tree("/data")) == errno.EIO
    faulty.sync_tree("/data")
    faulty.crash(0, keep=1)
    assert faulty.read_all("/data/a") == b"old"


def test_faults_wait_and_repeat(faulty: FaultyVfs) -> None:
    faulty.write_all("/data/abc", b"123")
    file = faulty.open("/data/abc")
    faulty.fail("pread", "b", error=errno.ENOMEM, after=1, times=2)
    assert file.pread(1, 0) == b"1"
    assert [error_of(lambda: file.pread(1, 0)) for _ in range(2)] == [errno.ENOMEM] * 2
    assert file.pread(1, 0) == b"1"
    faulty.fail("truncate", "other")
    file.truncate(0)
    faulty.fail("open", "abc", error=errno.EMFILE)
    assert error_of(lambda: faulty.open("/data/abc")) == errno.EMFILE
    faulty.fail("allocate", "abc", error=errno.ENOSPC)
    assert error_of(lambda: file.allocate(0, 100)) == errno.ENOSPC
    assert file.size() == 0
    with pytest.raises(ValueError, match="none of"):
        faulty.fail("fsync", "abc")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_space_writes_at_most_what_fits(seed: int) -> None:
    vfs = FaultyVfs(seed, capacity_bytes=1000)
    write(vfs, "/a", b"a" * 600)
    file = vfs.open("/b", create=True)
    file.pwritev([b"b" * 100], 0)
    assert vfs.disk_usage("/") == (1000, 300)
    for call in (
        lambda: file.pwritev([b"c" * 500], 50),
        lambda: file.allocate(0, 401),
        lambda: file.truncate(401),
        lambda: file.pwritev([b"c"], 1000),
    ):
        assert error_of(call) == errno.ENOSPC
    content = file.pread(1000, 0)
    assert content == (b"b" * 50 + b"c" * content.count(b"c")).ljust(100, b"b")
    assert len(content) <= 400
    assert vfs.disk_usage("/").free_bytes == 400 - len(content)
    vfs.capacity_bytes = 10
    file.pwritev([b"x" * len(content)], 0)
    assert vfs.disk_usage("/") == (10, 0)


def test_a_removed_file_takes_space_until_it_is_closed(faulty: FaultyVfs) -> None:
    faulty.capacity_bytes = 1000
    write(faulty, "/data/a", b"a" * 600)
    file = faulty.open("/data/a")
    faulty.remove("/data/a")
    assert faulty.disk_usage("/data").free_bytes == 400
    file.close()
    assert faulty.disk_usage("/data").free_bytes == 1000


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_handles_and_locks_die_with_the_process(faulty: FaultyVfs, end: str) -> None:
    file, lock = faulty.open("/data/a", create=True), faulty.lock("/data/LOCK")
    faulty.kill() if end == "kill" else faulty.crash(0, keep=1)
    for call in (
        lock.size,
        file.sync,
        lambda: file.view(0),
        lambda: file.truncate(0),
        lambda: file.pread(1, 0),
        lambda: file.pwritev([b""], 0),
        lambda: file.allocate(0, 1),
    ):
        assert error_of(call) == errno.EBADF
    second = faulty.lock("/data/LOCK")
    lock.close()
    with pytest.raises(BlockingIOError):
        faulty.lock("/data/LOCK")
    second.close()


def test_a_kill_keeps_the_page_cache_unsynced(faulty: FaultyVfs) -> None:
    faulty.write_all("/data/a", b"old")
    write(faulty, "/data/a", b"new")
    write(faulty, "/data/b", b"b")
    faulty.kill()
    assert faulty.read_all("/data/a") == b"new"
    assert faulty.exists("/data/b")
    faulty.crash(0, keep=0)
    assert faulty.read_all("/data/a") == b"old"
    assert not faulty.exists("/data/b")


def test_the_same_seed_gives_the_same_crash() -> None:
    def outcome(seed: int) -> dict[str, bytes]:
        vfs = faulty_with_data()
        for index in range(10):
            write(vfs, f"/data/{index}", bytes([index]) * 3000)
        vfs.crash(random.Random(seed))
        return contents(vfs)

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)


@pytest.mark.parametrize("synced", [True, False])
def test_a_flipped_bit_is_in_both_layers(faulty: FaultyVfs, synced: bool) -> None:
    write(faulty, "/data/a", b"abc", sync=synced)
    file = faulty.open("/data/a")
    view = file.view(3)
    faulty.flip_bit("/data/a", 1, bit=2)
    assert (bytes(view), bytes(file.view(3))) == (b"abc", b"afc")
    faulty.sync_tree("/data")
    faulty.crash(0, keep=0)
    assert faulty.read_all("/data/a") == b"afc"
    with pytest.raises(ValueError, match="none at 3"):
        faulty.flip_bit("/data/a", 3)


def test_conveniences_are_durable_at_once(faulty: FaultyVfs) -> None:
    faulty.write_all("/data/a", b"abc")
    faulty.truncate_file("/data/a", 2)
    faulty.crash(0, keep=0)
    assert faulty.read_all("/data/a") == b"ab"
    assert faulty.disk_usage("/").total_bytes - faulty.disk_usage("/").free_bytes == 2
    assert (faulty.write_count, faulty.bytes_written) == (0, 0)
    write(faulty, "/data/a", b"12345")
    assert (faulty.write_count, faulty.bytes_written) == (1, 5)
