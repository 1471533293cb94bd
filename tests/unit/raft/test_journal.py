"""The CommitLog as PySyncObj sees it."""

from __future__ import annotations

import pytest

from mq.raft.hooks import NO_OP
from mq.raft.journal import Journal
from mq.raft.vote import VoteFile
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
    """A journal with a checkpoint and five entries of the terms 1, 1, 2, 2, 3."""

    def __init__(self, *, counts_unsynced: bool = False, applied_index: int = 0) -> None:
        self.vfs = FaultyVfs(1)
        self.log = open_log(self.vfs)
        self.log.roll(NewEntry(Kind.CHECKPOINT, 0, 0, [b""]))
        for term in (1, 1, 2, 2, 3):
            self.log.append([NewEntry(Kind.COMMAND, term, 0, [b"payload"])])
        self.truncated: list[int] = []
        self.journal = Journal(
            self.log,
            VoteFile(self.vfs, "/data/vote"),
            applied_index=applied_index,
            now_ms=lambda: 7,
            counts_unsynced=counts_unsynced,
            on_truncate=self.truncated.append,
        )


def test_what_was_found_in_the_log_is_durable_before_it_counts() -> None:
    made = Made()
    assert made.journal.durable_index == made.log.durable_index == 6
    made.vfs.crash(1, keep=0)
    assert open_log(made.vfs).last_index == 6


def test_entries_are_indexes_and_terms_like_items_of_a_list() -> None:
    journal = Made().journal
    assert len(journal) == 6
    assert journal[0] == (b"", 1, 0)
    assert journal[-1] == (b"", 6, 3)
    assert [(slot.raft_index, slot.term) for slot in journal[1:]] == [
        (2, 1),
        (3, 1),
        (4, 2),
        (5, 2),
        (6, 3),
    ]
    assert journal[2:4][-1] == (b"", 4, 2)
    assert journal[2:4][0] == (b"", 3, 1)
    assert journal[2:4][-2] == (b"", 3, 1)
    with pytest.raises(IndexError):
        journal[2:4][-3]
    assert len(journal[4:2]) == 0
    for beyond in (6, -7):
        with pytest.raises(IndexError):
            journal[:][beyond]


def test_a_term_is_the_entrys_own_also_after_a_truncation_and_new_entries() -> None:
    made = Made()
    journal = made.journal
    assert [journal.term_at(index) for index in range(1, 7)] == [0, 1, 1, 2, 2, 3]
    journal.add(NO_OP, 7, 3)
    journal.add(NO_OP, 8, 5)
    journal.add(NO_OP, 9, 5)
    assert [journal.term_at(index) for index in range(5, 10)] == [2, 3, 3, 5, 5]
    journal.truncate(5)
    assert made.truncated == [5]
    assert journal[-1] == (b"", 4, 2)
    journal.add(NO_OP, 5, 6)
    assert [journal.term_at(index) for index in range(3, 6)] == [1, 2, 6]


def test_it_has_an_entry_only_with_its_term_and_within_its_ends() -> None:
    made = Made()
    journal = made.journal
    assert journal.has(1, 0)
    assert journal.has(6, 3)
    assert not journal.has(6, 2)
    assert not journal.has(0, 0)
    assert not journal.has(7, 3)


@pytest.mark.parametrize("counts_unsynced", [False, True])
def test_what_is_added_counts_after_the_sync_or_at_once_in_async_flush_mode(
    *, counts_unsynced: bool
) -> None:
    journal = Made(counts_unsynced=counts_unsynced).journal
    journal.add(NO_OP, 7, 3)
    assert journal.durable_index == (7 if counts_unsynced else 6)
    journal.log.sync()
    journal.refresh_durable()
    assert journal.durable_index == 7
    journal.truncate(4)
    assert journal.durable_index == 3


def test_entries_are_deleted_by_their_place_in_the_list() -> None:
    made = Made()
    made.journal.deleteEntriesFrom(4)
    assert made.truncated == [5]
    assert made.log.last_index == 4


def test_a_region_is_read_once_for_followers_at_the_same_place() -> None:
    journal = Made().journal
    first = journal.region(2, 1 << 20)
    assert (first.first_index, first.last_index, first.last_term) == (2, 6, 3)
    assert journal.region(2, 1 << 20) is first
    assert journal.region(3, 1 << 20).first_index == 3
    journal.add(NO_OP, 7, 3)
    assert journal.region(3, 1 << 20).last_index == 7
    journal.truncate(7)
    journal.add(NO_OP, 7, 4)
    assert journal.region(3, 1 << 20).last_term == 4


def test_the_known_part_of_a_region_ends_where_the_log_differs_or_ends() -> None:
    made, other = Made(), Made()
    other.journal.truncate(5)
    other.log.append([NewEntry(Kind.COMMAND, 4, 0, [b"another"])])
    body = memoryview(other.journal.region(2, 1 << 20).data)
    size = HEADER_BYTES + len(b"payload")
    assert made.journal.known_part(body, 1, 0) == (3 * size, 4, 2)
    same = memoryview(Made().journal.region(2, 1 << 20).data)
    assert made.journal.known_part(same, 1, 0) == (5 * size, 6, 3)
    made.journal.truncate(4)
    assert made.journal.known_part(same, 1, 0) == (2 * size, 3, 1)
    assert made.journal.known_part(memoryview(b"no entry"), 1, 0) == (0, 1, 0)


def test_a_region_comes_in_as_it_went_out() -> None:
    made, other = Made(), Made()
    made.journal.truncate(3)
    region = other.journal.region(3, 1 << 20)
    made.journal.add(region.data, region.last_index, region.last_term)
    start, end = made.log.start_offset, made.log.end_offset
    assert made.log.read(start, end - start) == other.log.read(start, end - start)


def test_term_and_vote_are_durable_and_keep_the_mark() -> None:
    made = Made()
    made.journal.vote.save(3, None, must_catch_up=True)
    made.journal.setCurrentTerm(4, "n1")
    assert (made.journal.getCurrentTerm(), made.journal.getVotedForNodeId()) == (4, "n1")
    made.vfs.crash(1, keep=0)
    vote = VoteFile(made.vfs, "/data/vote")
    assert (vote.term, vote.voted_for, vote.must_catch_up) == (4, "n1", True)


@pytest.mark.parametrize(("applied_index", "commit_index"), [(0, 0), (4, 4), (6, 6), (99, 6)])
def test_what_was_applied_is_committed_as_far_as_the_log_has_it(
    applied_index: int, commit_index: int
) -> None:
    journal = Made(applied_index=applied_index).journal
    assert journal.getRaftCommitIndex() == commit_index
    journal.setRaftCommitIndex(5)
    assert journal.getRaftCommitIndex() == commit_index


@pytest.mark.parametrize("raft_index", [1, 6])
def test_damage_is_found_where_a_follower_refuses_what_is_sent(raft_index: int) -> None:
    made = Made()
    for index in (0, 1, raft_index, 6, 7):
        made.journal.verify(index)
    ref = made.log.ref(raft_index)
    assert made.log.damage.records() == []
    made.vfs.flip_bit("/data/log/00000000000000000000.log", ref.end_log_offset - 1)
    made.journal.verify(raft_index)
    assert [one.start for one in made.log.damage.records()] == [ref.log_offset]


def test_what_was_mended_is_read_again_for_followers() -> None:
    made = Made()
    ref, path = made.log.ref(6), "/data/log/00000000000000000000.log"
    right = made.log.read(ref.log_offset, ref.end_log_offset - ref.log_offset)
    made.vfs.flip_bit(path, ref.end_log_offset - 1)
    assert made.journal.region(6, 1).data != right
    assert made.log.rewrite(0, ref.log_offset, right)
    assert made.journal.region(6, 1).data == right
