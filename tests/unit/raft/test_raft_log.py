"""The CommitLog as Raft reads it."""

from __future__ import annotations

import pytest

from mq.raft.raft_log import RaftLog
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import HEADER_BYTES, Kind
from tests.support.faulty_vfs import FaultyVfs


def open_log(vfs: FaultyVfs, name: str = "log") -> CommitLog:
    vfs.make_dirs("/data")
    vfs.sync_dir("/")
    return CommitLog(
        vfs, f"/data/{name}", segment_bytes=1 << 16, verify_bytes=1 << 20, background=False
    )


class Made:
    """A log with a checkpoint and five entries of the terms 1, 1, 2, 2, 3."""

    def __init__(self, *, counts_unsynced: bool = False) -> None:
        self.vfs = FaultyVfs(1)
        self.log = open_log(self.vfs)
        self.log.roll(NewEntry(Kind.CHECKPOINT, 0, 0, [b""]))
        for term in (1, 1, 2, 2, 3):
            self.log.append([NewEntry(Kind.COMMAND, term, 0, [b"payload"])])
        self.raft_log = RaftLog(self.log, counts_unsynced=counts_unsynced)

    def append(self, *terms: int) -> None:
        self.log.append([NewEntry(Kind.COMMAND, term, 0, [b"payload"]) for term in terms])
        self.raft_log.refresh()

    def truncate(self, from_index: int) -> None:
        self.log.truncate(from_index)
        self.raft_log.refresh(was_truncated=True)


def test_entries_found_at_start_are_durable_before_they_count() -> None:
    made = Made()
    assert made.raft_log.durable_index == made.log.durable_index == 6
    made.vfs.crash(1, keep=0)
    assert open_log(made.vfs).last_index == 6


def test_a_term_is_the_entrys_own_also_after_a_truncation_and_new_entries() -> None:
    made = Made()
    raft_log = made.raft_log
    assert [raft_log.term_at(index) for index in range(1, 7)] == [0, 1, 1, 2, 2, 3]
    made.append(3)
    made.append(5, 5)
    assert [raft_log.term_at(index) for index in range(5, 10)] == [2, 3, 3, 5, 5]
    # Shorter and longer again before it is looked at, with the same last term as before.
    made.log.truncate(5)
    made.log.append([NewEntry(Kind.COMMAND, term, 0, []) for term in (2, 2, 2, 2, 5)])
    raft_log.refresh(was_truncated=True)
    assert [raft_log.term_at(index) for index in range(4, 10)] == [2, 2, 2, 2, 2, 5]


def test_an_entry_is_found_only_by_its_term_and_within_the_log() -> None:
    made = Made()
    raft_log = made.raft_log
    assert raft_log.has(1, 0)
    assert raft_log.has(6, 3)
    assert not raft_log.has(6, 2)
    assert not raft_log.has(0, 0)
    assert not raft_log.has(7, 3)


@pytest.mark.parametrize("counts_unsynced", [False, True])
def test_an_appended_entry_counts_after_its_sync_or_at_once_with_async_flush(
    *, counts_unsynced: bool
) -> None:
    made = Made(counts_unsynced=counts_unsynced)
    made.append(3)
    assert made.raft_log.durable_index == (7 if counts_unsynced else 6)
    made.log.sync()
    made.raft_log.refresh_durable(made.log.durable_index)
    assert made.raft_log.durable_index == 7
    made.truncate(4)
    assert made.raft_log.durable_index == 3


def test_a_region_is_read_once_for_followers_at_the_same_place() -> None:
    made = Made()
    raft_log = made.raft_log
    first = raft_log.region(2, 1 << 20)
    assert (first.first_index, first.last_index, first.last_term) == (2, 6, 3)
    assert raft_log.region(2, 1 << 20) is first
    assert raft_log.region(3, 1 << 20).first_index == 3
    made.append(3)
    assert raft_log.region(3, 1 << 20).last_index == 7
    made.truncate(7)
    made.append(4)
    assert raft_log.region(3, 1 << 20).last_term == 4


def test_the_known_part_of_a_region_ends_where_the_log_differs_or_ends() -> None:
    made, other = Made(), Made()
    other.truncate(5)
    other.log.append([NewEntry(Kind.COMMAND, 4, 0, [b"another"])])
    body = memoryview(other.raft_log.region(2, 1 << 20).data)
    size = HEADER_BYTES + len(b"payload")
    assert made.raft_log.known_part(body, 1, 0) == (3 * size, 4, 2)
    same = memoryview(Made().raft_log.region(2, 1 << 20).data)
    assert made.raft_log.known_part(same, 1, 0) == (5 * size, 6, 3)
    made.truncate(4)
    assert made.raft_log.known_part(same, 1, 0) == (2 * size, 3, 1)
    assert made.raft_log.known_part(memoryview(b"no entry"), 1, 0) == (0, 1, 0)


@pytest.mark.parametrize("raft_index", [1, 6])
def test_damage_is_found_where_a_follower_refuses_what_is_sent(raft_index: int) -> None:
    made = Made()
    for index in (0, 1, raft_index, 6, 7):
        made.raft_log.verify(index)
    ref = made.log.ref(raft_index)
    assert made.log.damage.records() == []
    made.vfs.flip_bit("/data/log/00000000000000000000.log", ref.end_log_offset - 1)
    made.raft_log.verify(raft_index)
    assert [one.start for one in made.log.damage.records()] == [ref.log_offset]


def test_a_mended_entry_is_read_again_for_followers() -> None:
    made = Made()
    ref, path = made.log.ref(6), "/data/log/00000000000000000000.log"
    right = made.log.read(ref.log_offset, ref.end_log_offset - ref.log_offset)
    made.vfs.flip_bit(path, ref.end_log_offset - 1)
    assert made.raft_log.region(6, 1).data != right
    assert made.log.rewrite(0, ref.log_offset, right)
    assert made.raft_log.region(6, 1).data == right
