"""A full disk passes and leaves no trace; a failed write or sync is the end of this log object."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from mq.errors import DiskFull, LogDamaged, StorageFailed
from tests.support.logs import (
    DIRECTORY,
    append,
    checkpoint,
    content,
    disk,
    entry_bytes,
    files,
    message,
    new_log,
    open_log,
    payloads,
    segments_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.store.commitlog import CommitLog
    from tests.support.faulty_vfs import FaultyVfs, Operation

SEEDS = range(30)
BIG = b"x" * 1500
NO_SPACE = [errno.ENOSPC, errno.EDQUOT]
NO_DESCRIPTOR = [errno.EMFILE, errno.ENFILE]


def full(vfs: FaultyVfs) -> None:
    vfs.capacity_bytes = 1


def used_up(log: CommitLog) -> None:
    """No space is prepared behind the end of the active segment."""
    log._segments[-1].undo()


# -- no space


@pytest.mark.parametrize("zero_ahead", [False, True])
def test_a_full_disk_refuses_an_append_and_nothing_else(zero_ahead: bool) -> None:
    vfs = disk()
    log = new_log(vfs, zero_ahead=zero_ahead)
    append(log, b"a")
    used_up(log)
    log.sync()
    before = content(log), log.end_offset
    full(vfs)
    for _ in range(3):
        with pytest.raises(DiskFull, match=r"\.log"):
            append(log, BIG)
    assert (content(log), log.end_offset) == before
    assert log.sync() == log.end_offset
    vfs.capacity_bytes = None
    append(log, b"b")
    log.sync()
    vfs.crash(0, keep=0)
    assert payloads(open_log(vfs)) == [b"a", b"b"]


# Each place where the space may end: ahead of the write or, where less is promised, in it.
@pytest.mark.parametrize(
    ("operation", "part"),
    [("allocate", ".log"), ("allocate", ".idx"), ("pwritev", ".log"), ("pwritev", ".idx")],
)
@pytest.mark.parametrize("error", NO_SPACE)
def test_a_failed_append_never_comes_back_in_the_way_of_the_next(
    operation: Operation, part: str, error: int
) -> None:
    for seed in SEEDS:
        vfs = disk(seed)
        log = new_log(vfs)
        append(log, *[b"a"] * 9)
        log._segments[-1]._idx_room.reset(0)  # type: ignore[union-attr]
        used_up(log)
        log.sync()
        vfs.fail(operation, part, error)
        with pytest.raises(DiskFull):
            append(log, b"failed", b"failed too" * 100)
        assert payloads(log) == [b"a"] * 9
        append(log, b"next")
        vfs.crash(seed, keep=0.5)
        after = payloads(open_log(vfs))
        assert after in ([b"a"] * 9, [*[b"a"] * 9, b"next"]), f"seed {seed}"


def test_a_failed_append_is_no_entry_after_a_restart_with_room() -> None:
    vfs = disk()
    log = new_log(vfs)
    append(log, b"a")
    used_up(log)
    log.sync()
    full(vfs)
    with pytest.raises(DiskFull):
        append(log, BIG)
    vfs.kill()
    log = open_log(vfs)
    assert payloads(log) == [b"a"]
    assert log.recovery.cut_bytes == 0


def test_a_full_disk_refuses_a_roll_and_the_old_segment_goes_on() -> None:
    for capacity in range(0, 6000, 250):
        vfs = disk(capacity)
        log = new_log(vfs)
        append(log, b"a")
        log.sync()
        names = list(files(vfs))
        vfs.capacity_bytes = sum(map(len, files(vfs).values())) + capacity
        try:
            log.roll(checkpoint(BIG))
        except DiskFull:
            assert capacity < 4500
            assert list(files(vfs)) == names
        else:
            assert capacity > 1500
            continue
        append(log, b"b")
        vfs.capacity_bytes = None
        log.roll(checkpoint(b"later"))
        log.sync()
        vfs.crash(0, keep=0)
        log = open_log(vfs)
        assert [e.payload for e in content(log)] == [b"state", b"a", b"b", b"later"]


@pytest.mark.parametrize("operation", ["open", "pwritev", "allocate", "truncate", "sync"])
@pytest.mark.parametrize("part", [".log", ".idx"])
def test_a_failed_roll_never_comes_back_in_the_way_of_the_next_entry(
    operation: Operation, part: str
) -> None:
    for seed in SEEDS:
        vfs = disk(seed)
        log = new_log(vfs)
        append(log, b"a")
        log.sync()
        path = f"{DIRECTORY}/{log.end_offset:020d}{part}"
        vfs.fail(operation, path, errno.ENOSPC)
        try:
            log.roll(checkpoint(b"failed"))
        except DiskFull:
            pass
        else:  # what cannot fail in a roll, such as the sync of the new log
            continue
        append(log, b"next")
        vfs.crash(seed, keep=0.5)
        log = open_log(vfs)
        assert payloads(log) in ([b"a"], [b"a", b"next"]), f"seed {seed}"
        assert log.recovery.synced_bytes_lost == 0
        assert len(log.segments()) == 1


@pytest.mark.parametrize("error", NO_DESCRIPTOR)
@pytest.mark.parametrize("part", [".idx", ".log"])
def test_a_roll_without_a_descriptor_passes(part: str, error: int) -> None:
    vfs = disk()
    log = new_log(vfs)
    append(log, b"a")
    log.sync()
    vfs.fail("open", part, error)
    with pytest.raises(DiskFull, match="no free descriptor"):
        log.roll(checkpoint(b"failed"))
    append(log, b"b")
    log.roll(checkpoint(b"second"))
    append(log, b"c")
    log.sync()
    vfs.crash(0, keep=0)
    assert payloads(open_log(vfs)) == [b"a", b"b", b"c"]


def test_going_back_to_an_earlier_segment_needs_no_descriptor() -> None:
    """What was not committed is cut also while a node has none left."""
    vfs = disk()
    log = new_log(vfs)
    append(log, b"a", b"b")
    segments_of(log, [b"c"])
    vfs.fail("open", "commitlog", errno.EMFILE, times=1_000)
    log.truncate(log.first_index + 2)
    append(log, b"d")
    log.sync()
    assert payloads(log) == [b"a", b"d"]


def test_a_roll_after_a_failed_append_starts_from_a_clean_end() -> None:
    vfs = disk()
    log = new_log(vfs)
    append(log, b"a")
    vfs.fail("pwritev", ".idx", errno.ENOSPC)
    with pytest.raises(DiskFull):
        append(log, b"failed")
    log.roll(checkpoint(b"second"))
    log.sync()
    assert [e.payload for e in content(open_log(vfs))] == [b"state", b"a", b"second"]


# -- failures that do not pass


def failing_append(vfs: FaultyVfs, log: CommitLog) -> None:
    vfs.fail("pwritev", ".log")
    append(log, b"lost")


def failing_idx(vfs: FaultyVfs, log: CommitLog) -> None:
    vfs.fail("pwritev", ".idx")
    append(log, b"lost")


def failing_allocate(vfs: FaultyVfs, log: CommitLog) -> None:
    used_up(log)
    vfs.fail("allocate", ".log")
    append(log, b"lost")


def failing_sync(vfs: FaultyVfs, log: CommitLog) -> None:
    append(log, b"lost")
    vfs.fail("sync", ".log")
    log.sync()


def full_sync(vfs: FaultyVfs, log: CommitLog) -> None:
    """A failed sync is final, also for lack of space: the pages are gone."""
    append(log, b"lost")
    vfs.fail("sync", ".log", errno.ENOSPC)
    log.sync()


def failing_names(vfs: FaultyVfs, log: CommitLog) -> None:
    log.roll(checkpoint(b"lost"))
    vfs.fail("sync_dir", DIRECTORY)
    log.sync()


def failing_roll(vfs: FaultyVfs, log: CommitLog) -> None:
    vfs.fail("pwritev", ".log")
    log.roll(checkpoint(b"lost"))


def failing_seal(vfs: FaultyVfs, log: CommitLog) -> None:
    vfs.fail("truncate", f"{DIRECTORY}/{0:020d}.log")
    log.roll(checkpoint(b"lost"))


def failing_undo(vfs: FaultyVfs, log: CommitLog) -> None:
    vfs.fail("pwritev", ".log", errno.ENOSPC)
    with pytest.raises(DiskFull):
        append(log, b"lost")
    vfs.fail("sync", ".log")
    append(log, b"lost")


def failing_truncate(vfs: FaultyVfs, log: CommitLog) -> None:
    append(log, b"lost")
    vfs.fail("truncate", ".log")
    log.truncate(log.last_index)


@pytest.mark.parametrize(
    "failure",
    [
        failing_append,
        failing_idx,
        failing_allocate,
        failing_sync,
        full_sync,
        failing_names,
        failing_roll,
        failing_seal,
        failing_undo,
        failing_truncate,
    ],
)
def test_a_failed_write_or_sync_is_final(failure: Callable[[FaultyVfs, CommitLog], None]) -> None:
    vfs = disk()
    log = new_log(vfs)
    append(log, b"a", b"b")
    durable = log.sync()
    with pytest.raises(StorageFailed, match=DIRECTORY):
        failure(vfs, log)
    # The disk is well again, which changes nothing: what it dropped in between is unknown.
    for _ in range(2):
        with pytest.raises(StorageFailed):
            append(log, b"more")
        with pytest.raises(StorageFailed):
            log.sync()
        with pytest.raises(StorageFailed):
            log.roll(checkpoint())
        with pytest.raises(StorageFailed):
            log.truncate(2)
        with pytest.raises(StorageFailed):
            log.append([message()])
    assert log.read(0, durable)
    assert payloads(log)[:2] == [b"a", b"b"]
    vfs.crash(0, keep=0)
    assert payloads(open_log(vfs)) == [b"a", b"b"]


def test_a_mark_that_cannot_be_written_is_final_too() -> None:
    vfs = disk()
    log = new_log(vfs)
    append(log, b"a")
    vfs.fail("pwritev", ".idx")
    with pytest.raises(StorageFailed):
        log.sync()
    with pytest.raises(StorageFailed):
        append(log, b"b")
    vfs.crash(0, keep=0)
    assert payloads(open_log(vfs)) == [b"a"]


def test_a_failed_sync_is_never_taken_for_a_good_one() -> None:
    """The disk drops what it could not write, and a second sync would succeed on nothing."""
    for seed in SEEDS:
        vfs = disk(seed)
        log = new_log(vfs)
        append(log, b"a")
        durable = log.sync()
        append(log, BIG)
        vfs.fail("sync", ".log")
        with pytest.raises(StorageFailed):
            log.sync()
        assert log.durable_offset == durable
        vfs.crash(seed, keep=1)
        log = open_log(vfs)
        assert payloads(log) == [b"a"]
        assert log.recovery.synced_bytes_lost == 0


@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_failed_sync_is_not_taken_for_a_good_one_by_the_next_process_either(
    is_rolled: bool,
) -> None:
    """It still reads what the disk has dropped, and goes on from there."""
    for seed in SEEDS:
        vfs = disk(seed)
        log = new_log(vfs)
        append(log, b"a")
        log.sync()
        append(log, BIG)
        if is_rolled:
            log.roll(checkpoint())
        vfs.fail("sync", ".log")
        with pytest.raises(StorageFailed):
            log.sync()
        vfs.kill()
        log = open_log(vfs)
        assert payloads(log) == [b"a", BIG]
        append(log, b"c")
        log.sync()
        vfs.crash(seed, keep=0)
        assert payloads(open_log(vfs)) == [b"a", BIG, b"c"]


@pytest.mark.parametrize("after", range(3))
def test_a_crash_in_the_middle_of_dropping_leaves_no_gap(after: int) -> None:
    for seed in SEEDS:
        vfs = disk(seed)
        log = open_log(vfs)
        segments_of(log, [b"a"], [b"b"], [b"c"], [b"d"])
        everything = content(log)
        vfs.fail("sync_dir", DIRECTORY, after=after)
        with pytest.raises(StorageFailed):
            log.drop_front(3)
        vfs.crash(seed)
        after_crash = content(open_log(vfs))
        assert after_crash == everything[-len(after_crash) :]


@pytest.mark.parametrize("after", range(3))
def test_a_crash_in_the_middle_of_truncating_leaves_a_prefix(after: int) -> None:
    for seed in SEEDS:
        vfs = disk(seed)
        log = open_log(vfs)
        segments_of(log, [b"a", b"b"], [b"c"], [b"d"], [b"e"])
        everything = content(log)
        vfs.fail("sync_dir", DIRECTORY, after=after)
        with pytest.raises(StorageFailed):
            log.truncate(3)
        vfs.crash(seed)
        after_crash = content(open_log(vfs))
        assert len(after_crash) > 2
        assert after_crash == everything[: len(after_crash)]


def test_a_file_that_became_shorter_shows_at_the_read() -> None:
    vfs = disk()
    log = new_log(vfs)
    append(log, b"a" * 100)
    log.sync()
    path = log.segments()[0].path
    vfs.truncate_file(path, log.end_offset - 10)
    with pytest.raises(LogDamaged, match="too short") as caught:
        log.read(0, log.end_offset)
    assert (caught.value.path, caught.value.position) == (path, log.end_offset - 10)
    with pytest.raises(LogDamaged) as caught:
        log.entry(2)
    assert caught.value.position == entry_bytes(b"state")


def test_a_damaged_kind_shows_at_the_read() -> None:
    vfs = disk()
    log = new_log(vfs)
    append(log, b"a")
    log.sync()
    vfs.flip_bit(log.segments()[0].path, entry_bytes(b"state") + 8, 7)
    with pytest.raises(LogDamaged):
        log.ref(2)
    with pytest.raises(LogDamaged):
        log.entry(2)
