"""A log that is replaced: all of it goes, for good, and the next one starts where it is told."""

from __future__ import annotations

import errno

import pytest

from mq.errors import DiskFull, MalformedEntries, OffsetOutOfRange, SegmentFull, StorageFailed
from mq.store.commitlog import CommitLog
from tests.support.faulty_vfs import FaultyVfs
from tests.support.logs import (
    DIRECTORY,
    append,
    checkpoint,
    content,
    disk,
    files,
    message,
    new_log,
    open_log,
    payloads,
    same_files,
    segments_of,
    send,
)

SEEDS = range(30)


def old_log(seed: int = 0) -> tuple[FaultyVfs, CommitLog]:
    """Three segments: entries 1 to 3, 4 to 6, 7 to 9."""
    vfs = disk(seed)
    log = open_log(vfs)
    segments_of(log, [b"a", b"bb"], [b"ccc", b"dddd"], [b"eeeee", b"ffffff"])
    return vfs, log


def leader_log() -> tuple[FaultyVfs, CommitLog]:
    """Has lost its first segments: starts at entry 5."""
    vfs = disk()
    log = open_log(vfs)
    segments_of(log, [b"A"], [b"B"], [b"C", b"D"], [b"E"])
    log.drop_front(2)
    return vfs, log


def test_a_log_that_starts_over_is_empty_at_the_given_place() -> None:
    vfs, log = old_log()
    log.start_over(500, 12345)
    assert files(vfs) == {}
    assert (log.first_index, log.last_index, log.durable_index) == (500, 499, 499)
    assert (log.start_offset, log.end_offset, log.durable_offset) == (12345, 12345, 12345)
    assert (log.last_term, log.last_stored_at_ms) == (0, 0)
    assert log.segments() == []
    assert log.sync() == 12345
    for index in (499, 500):
        with pytest.raises(OffsetOutOfRange):
            log.term_at(index)
    with pytest.raises(SegmentFull):
        log.append([message()])


def test_a_crash_right_after_leaves_an_empty_log() -> None:
    for seed in SEEDS:
        vfs, log = old_log(seed)
        log.start_over(500, 12345)
        vfs.crash(seed)
        log = open_log(vfs)
        assert (log.first_index, log.last_index, log.end_offset) == (1, 0, 0)
        assert files(vfs) == {}


@pytest.mark.parametrize("bytes_max", [0, 100, 1 << 20])
def test_the_log_of_another_takes_its_place_byte_for_byte(bytes_max: int) -> None:
    for seed in SEEDS:
        vfs, log = old_log(seed)
        other, leader = leader_log()
        log.start_over(leader.first_index, leader.start_offset)
        with pytest.raises(MalformedEntries):
            log.extend(leader.region(6, 100).data)
        send(leader, log, bytes_max)
        assert content(log) == content(leader)
        assert log.durable_index == 4
        log.sync()
        same_files(vfs, other)
        vfs.crash(seed)
        log = open_log(vfs)
        assert (log.first_index, log.start_offset) == (5, leader.start_offset)
        assert content(log) == content(leader)
        append(log, b"more")
        assert log.last_index == leader.last_index + 1


def test_a_roll_opens_at_the_very_place_too() -> None:
    vfs, log = old_log()
    log.start_over(77, 1000)
    ref = log.roll(checkpoint(b"new"))
    assert (ref.raft_index, ref.log_offset) == (77, 1000)
    log.sync()
    vfs.crash(0, keep=0)
    log = open_log(vfs)
    assert (log.first_index, log.last_index, log.start_offset) == (77, 77, 1000)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_in_the_middle_leaves_a_shorter_log(seed: int) -> None:
    lengths = set()
    for after in range(3):
        for keep in (0, 0.5, 1):
            vfs, log = old_log(seed)
            everything = content(log)
            vfs.fail("sync_dir", DIRECTORY, after=after)
            with pytest.raises(StorageFailed):
                log.start_over(500, 12345)
            with pytest.raises(StorageFailed):
                log.roll(checkpoint())
            vfs.crash(seed, keep)
            found = content(open_log(vfs))
            assert found == everything[: len(found)]
            lengths.add(len(found))
    assert lengths <= {0, 3, 6, 9}
    assert len(lengths) > 2


def test_a_failed_append_before_it_does_not_matter() -> None:
    vfs = disk()
    log = new_log(vfs)
    vfs.fail("pwritev", ".log", errno.ENOSPC)
    with pytest.raises(DiskFull):
        append(log, b"a")
    log.start_over(5, 50)
    log.roll(checkpoint())
    append(log, b"b")
    assert payloads(log) == [b"b"]


def test_a_full_disk_leaves_the_log_empty_at_the_given_place() -> None:
    vfs, log = old_log()
    _, leader = leader_log()
    log.start_over(leader.first_index, leader.start_offset)
    vfs.capacity_bytes = 1
    with pytest.raises(DiskFull):
        send(leader, log, 1 << 20)
    assert (log.first_index, log.last_index, log.end_offset) == (5, 4, leader.start_offset)
    assert files(vfs) == {}
    vfs.capacity_bytes = None
    send(leader, log, 1 << 20)
    assert content(log) == content(leader)


def test_time_and_terms_start_over_too() -> None:
    _, log = old_log()
    append(log, b"late", term=9, now_ms=1 << 40)
    log.start_over(3, 30)
    log.roll(checkpoint(term=1, now_ms=5))
    assert (log.last_term, log.last_stored_at_ms) == (1, 5)


@pytest.mark.parametrize(("first_index", "log_offset"), [(0, 0), (-1, 5), (1, -1)])
def test_a_place_that_cannot_be_is_refused(first_index: int, log_offset: int) -> None:
    _, log = old_log()
    with pytest.raises(ValueError, match="cannot start"):
        log.start_over(first_index, log_offset)
    assert log.last_index == 9


def test_an_empty_log_starts_over_too() -> None:
    log = open_log(disk())
    log.start_over(9, 90)
    log.start_over(8, 80)
    assert log.roll(checkpoint()).raft_index == 8
