"""A log that is copied by regions is the same log, byte for byte; what is no region is refused."""

from __future__ import annotations

import errno
import itertools
import os
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.errors import DiskFull, MalformedEntries, OffsetOutOfRange, StorageFailed
from mq.store import scan
from mq.store.commitlog import NewEntry
from mq.store.format import HEADER_BYTES, Kind, encode_header
from tests.support.logs import (
    append,
    checkpoint,
    content,
    disk,
    files,
    new_log,
    open_log,
    payloads,
    same_files,
    segments_of,
    send,
    used,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.store.commitlog import CommitLog
    from tests.support.faulty_vfs import FaultyVfs, Operation


@pytest.fixture
def vfs() -> FaultyVfs:
    return disk()


@pytest.fixture
def log(vfs: FaultyVfs) -> CommitLog:
    """Three segments: entries 1 to 3, 4 to 6, 7 to 9, each opened by a checkpoint."""
    log = open_log(vfs)
    segments_of(log, [b"a", b"bb"], [b"ccc", b"dddd"], [b"eeeee", b"ffffff"])
    return log


# -- terms and regions


def test_a_term_is_known_without_the_log(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    for term in (1, 1, 3, 7):
        append(log, b"x", term=term)
    log.roll(checkpoint(term=8))
    append(log, b"y", term=1 << 40)
    vfs.fail("pread", ".log", times=1 << 30)
    assert [log.term_at(index) for index in range(1, 8)] == [1, 1, 1, 3, 7, 8, 1 << 40]


def test_a_term_or_region_outside_of_the_log_is_out_of_range(log: CommitLog) -> None:
    log.drop_front(1)
    for index in (-1, 0, 3, 10):
        with pytest.raises(OffsetOutOfRange, match="4 to 9"):
            log.term_at(index)
        with pytest.raises(OffsetOutOfRange, match="4 to 9"):
            log.region(index, 1000)
    empty = open_log(disk())
    for index in (0, 1):
        with pytest.raises(OffsetOutOfRange):
            empty.term_at(index)


def test_a_region_is_what_stands_in_one_segment_and_fits(log: CommitLog) -> None:
    refs = [log.ref(index) for index in range(1, 10)]
    for ref in refs:
        segment_end = 3 * ((ref.raft_index + 2) // 3)
        for bytes_max in range(-1, 200):
            region = log.region(ref.raft_index, bytes_max)
            last = refs[region.last_index - 1]
            assert region.first_index == ref.raft_index <= region.last_index <= segment_end
            assert region.last_term == last.term
            size = last.end_log_offset - ref.log_offset
            assert region.data == log.read(ref.log_offset, size)
            assert len(region.data) <= bytes_max or last == ref
            if region.last_index < segment_end:
                assert size + HEADER_BYTES + refs[region.last_index].length > bytes_max
        assert log.region(ref.raft_index, 1 << 60).last_index == segment_end


def test_behind_a_region_of_old_entries_the_disk_is_asked_to_read_ahead(
    log: CommitLog, vfs: FaultyVfs
) -> None:
    log.region(8, 1 << 20)
    assert vfs.asked_ahead == []
    region = log.region(1, 60)
    (old, _, _) = log.segments()
    assert vfs.asked_ahead == [(old.path, len(region.data), 4 << 20)]


def test_a_region_is_one_read(log: CommitLog, vfs: FaultyVfs) -> None:
    append(log, *[b"x" * 10] * 50)
    vfs.fail("pread", ".log", after=1, times=1 << 30)
    assert log.region(8, 2000).last_index > 40


def test_a_region_of_a_file_that_became_shorter_is_reported_and_refused_elsewhere(
    log: CommitLog, vfs: FaultyVfs
) -> None:
    info = log.segments()[1]
    whole = log.region(4, 1 << 20)
    vfs.truncate_file(info.path, info.size_bytes - 1)
    region = log.region(4, 1 << 20)
    assert region.data == whole.data[:-1] + b"\0" != whole.data
    (found,) = log.damage.records()
    assert (found.path, found.end) == (info.path, info.base_log_offset + info.size_bytes)
    with pytest.raises(MalformedEntries):
        scan.check_opening(memoryview(region.data), 4)


def test_a_region_that_the_disk_does_not_give_is_reported(log: CommitLog, vfs: FaultyVfs) -> None:
    vfs.fail("pread", ".log", times=2)
    region = log.region(4, 1 << 20)
    assert not any(region.data)
    (found,) = log.damage.records()
    assert "cannot be read" in found.reason


# -- extend


@pytest.mark.parametrize("bytes_max", [0, 90, 150, 1 << 20])
@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("segment_bytes", [64, 1 << 20])
def test_a_copy_by_regions_is_the_same_log(
    log: CommitLog,
    vfs: FaultyVfs,
    bytes_max: int,
    make: Callable[[bytes], bytes],
    segment_bytes: int,
) -> None:
    other = disk()
    copy = open_log(other, segment_bytes=segment_bytes)
    while copy.last_index < log.last_index:
        region = log.region(copy.last_index + 1, bytes_max)
        ref = copy.extend(make(region.data))
        assert ref == log.ref(region.last_index)
        assert (copy.last_index, copy.last_term) == (region.last_index, region.last_term)
        assert copy.durable_index < region.first_index
        copy.sync()
        assert copy.durable_index == region.last_index
    assert copy.last_stored_at_ms == log.last_stored_at_ms
    assert content(copy) == content(log)
    same_files(vfs, other)
    other.crash(0, keep=0)
    assert content(open_log(other)) == content(log)


def test_a_region_is_one_write_and_goes_on_in_a_segment_of_any_size(vfs: FaultyVfs) -> None:
    log = new_log(vfs, segment_bytes=1 << 20)
    append(log, *[b"x" * 1000] * 100)
    other = disk()
    copy = open_log(other, segment_bytes=4096)
    copy.extend(log.region(1, 10_000).data)
    before = other.write_count
    copy.extend(log.region(copy.last_index + 1, 50_000).data)
    assert other.write_count == before + 2  # the log and the idx
    send(log, copy, 1 << 20)
    assert len(copy.segments()) == 1
    same_files(vfs, other)
    # Its own size counts again when it leads.
    copy.roll(checkpoint())
    assert len(copy.segments()) == 2


def test_a_bytearray_may_be_used_again_after_extend(log: CommitLog) -> None:
    copy = open_log(disk())
    buffer = bytearray(log.region(1, 1 << 20).data)
    copy.extend(buffer)
    buffer.clear()
    assert content(copy) == content(log)[:3]


# -- what is refused


def entry(
    index: int,
    payload: bytes = b"p",
    *,
    kind: int = Kind.MESSAGES,
    term: int = 2,
    now_ms: int = 2000,
) -> bytes:
    return bytes(encode_header(kind, index, term, now_ms, [payload], len(payload))) + payload


# Behind entry 9, which has term 2 and time 2000.
MALFORMED = {
    "nothing": b"",
    "no entry": b"hello",
    "zeros": bytes(100),
    "a header cut short": entry(10)[:39],
    "a payload cut short": entry(10)[:-1],
    "a second entry cut short": entry(10) + entry(11)[:-1],
    "a byte more": entry(10) + b"\0",
    "zeros behind": entry(10) + bytes(64),
    "an entry that is there already": entry(9),
    "a gap": entry(11),
    "a gap inside": entry(10) + entry(12),
    "twice the same": entry(10) + entry(10),
    "out of order": entry(11) + entry(10),
    "an old term": entry(10, term=1),
    "a term that goes backwards inside": entry(10, term=3) + entry(11, term=2),
    "an old time": entry(10, now_ms=1999),
    "a time that goes backwards inside": entry(10, now_ms=2001) + entry(11, now_ms=2000),
    "a kind that nobody knows": entry(10, kind=5),
    "a kind that nobody knows inside": entry(10) + entry(11, kind=200),
    "a checkpoint inside": entry(10) + entry(11, kind=Kind.CHECKPOINT),
    "two checkpoints": entry(10, kind=Kind.CHECKPOINT) + entry(11, kind=Kind.CHECKPOINT),
    "a checkpoint of an old term": entry(10, kind=Kind.CHECKPOINT, term=1),
    "a checkpoint of an old time": entry(10, kind=Kind.CHECKPOINT, now_ms=1999),
    "a checkpoint after a gap": entry(11, kind=Kind.CHECKPOINT),
    "a checkpoint and a gap": entry(10, kind=Kind.CHECKPOINT) + entry(12),
    "a length beyond the format": bytes(
        encode_header(Kind.MESSAGES, 10, 2, 2000, [], scan.PAYLOAD_BYTES_MAX + 1)
    ),
}


def refuses(vfs: FaultyVfs, log: CommitLog, data: bytes) -> None:
    """With nothing changed in memory or on disk."""
    before = files(vfs), log.end_offset, log.last_index, log.last_term, log.durable_index
    with pytest.raises(MalformedEntries):
        log.extend(data)
    after = files(vfs), log.end_offset, log.last_index, log.last_term, log.durable_index
    assert after == before


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_region_other_than_the_next_entries_is_refused(
    log: CommitLog, vfs: FaultyVfs, data: bytes
) -> None:
    log.truncate(9)
    append(log, b"ninth", term=2, now_ms=2000)
    refuses(vfs, log, data)
    good = entry(10) + entry(11, b"", kind=Kind.NOOP, term=3, now_ms=2001)
    assert log.extend(good).raft_index == 11
    assert payloads(log)[-2:] == [b"p", b""]


def test_an_empty_log_takes_only_a_region_that_opens_with_a_checkpoint() -> None:
    vfs = disk()
    log = open_log(vfs)
    for data in (entry(1), entry(2, kind=Kind.CHECKPOINT), entry(0, kind=Kind.CHECKPOINT)):
        refuses(vfs, log, data)
    assert files(vfs) == {}
    log.extend(entry(1, kind=Kind.CHECKPOINT) + entry(2))
    assert log.last_index == 2


def test_a_segment_longer_than_its_idx_can_say_is_refused(
    log: CommitLog, vfs: FaultyVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = log.segments()[-1]
    data = entry(10) + entry(11)
    monkeypatch.setattr(scan, "SEGMENT_BYTES_MAX", active.size_bytes + len(data) - 1)
    refuses(vfs, log, data)
    monkeypatch.setattr(scan, "SEGMENT_BYTES_MAX", active.size_bytes + len(data))
    log.extend(data)


def good_region() -> tuple[FaultyVfs, CommitLog, list[bytes]]:
    """A follower and the entries of a region that it would take."""
    rng = random.Random(7)
    leader = new_log(disk(), segment_bytes=1 << 20)
    follower_vfs = disk()
    follower = open_log(follower_vfs)
    append(leader, b"a", b"b")
    send(leader, follower, 1 << 20)
    sizes = [0, 3, 40, 41, 200]
    append(leader, *map(rng.randbytes, sizes), term=2, now_ms=3000)
    starts = [leader.ref(index).log_offset for index in range(4, 9)]
    data = leader.region(4, 1 << 20).data
    cuts = [start - starts[0] for start in starts] + [len(data)]
    return follower_vfs, follower, [data[a:b] for a, b in itertools.pairwise(cuts)]


GOOD_VFS, GOOD_FOLLOWER, GOOD_ENTRIES = good_region()


@given(st.data())
@settings(max_examples=3 * settings().max_examples)
def test_a_mutated_region_is_refused_and_changes_nothing(draw: st.DataObject) -> None:
    data = b"".join(GOOD_ENTRIES)
    at = draw.draw(st.integers(0, len(data) - 1))
    other = draw.draw(st.integers(at, len(data) - 1))
    number = draw.draw(st.integers(0, 4))
    mutated = draw.draw(
        st.sampled_from(
            [
                data[:at] + bytes([data[at] ^ draw.draw(st.integers(1, 255))]) + data[at + 1 :],
                data[:at] + bytes(other - at + 1) + data[other + 1 :],
                data[:at] + data[other + 1 :],
                data[:at] + draw.draw(st.binary(min_size=1, max_size=60)) + data[at:],
                b"".join(GOOD_ENTRIES[:number] + GOOD_ENTRIES[number + 1 :]),
                b"".join([*GOOD_ENTRIES[: number + 1], *GOOD_ENTRIES[number:]]),
                b"".join(draw.draw(st.permutations(GOOD_ENTRIES))),
            ]
        )
    )
    prefixes = {b"".join(GOOD_ENTRIES[:count]) for count in range(1, 6)}
    if mutated not in prefixes:
        refuses(GOOD_VFS, GOOD_FOLLOWER, mutated)


# -- disks


@pytest.mark.parametrize("operation", ["open", "pwritev", "allocate", "truncate", "sync"])
@pytest.mark.parametrize("part", [".log", ".idx"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("is_opening", [True, False])
@pytest.mark.parametrize("after", [0, 1])
def test_a_region_that_cannot_be_written_leaves_nothing(
    operation: Operation, part: str, number: int, is_opening: bool, after: int
) -> None:
    first = entry(4, b"x" * 700, kind=Kind.CHECKPOINT if is_opening else Kind.COMMAND)
    data = first + entry(5, b"y" * 700)
    for seed in range(15):
        vfs = disk(seed)
        log = new_log(vfs)
        append(log, b"a", b"b")
        log._segments[-1].undo()  # nothing is prepared ahead
        log._segments[-1]._idx_room.reset(0)  # type: ignore[union-attr]
        log.sync()
        before = content(log)
        vfs.fail(operation, part, number, after=after)
        try:
            log.extend(data)
        except DiskFull:
            assert number == errno.ENOSPC
            assert content(log) == before
            append(log, b"next", term=2, now_ms=2000)
        except StorageFailed:
            with pytest.raises(StorageFailed):
                log.extend(data)
        vfs._faults.clear()  # those that met nothing
        vfs.crash(seed)
        log = open_log(vfs)
        assert content(log)[:3] == before
        found = [each.payload for each in content(log)[3:]]
        assert found in ([], [b"next"], [b"x" * 700], [b"x" * 700, b"y" * 700]), f"seed {seed}"
        assert log.recovery.synced_bytes_lost == 0


def test_a_full_disk_refuses_a_region_that_opens_a_segment_whole() -> None:
    data = entry(4, b"x" * 100, kind=Kind.CHECKPOINT) + entry(5, b"y" * 8000)
    for capacity in range(0, 12_000, 400):
        vfs = disk(capacity)
        log = new_log(vfs)
        append(log, b"a", b"b")
        log.sync()
        names = list(files(vfs))
        vfs.capacity_bytes = sum(map(len, files(vfs).values())) + capacity
        try:
            log.extend(data)
        except DiskFull:
            assert list(files(vfs)) == names
            assert log.last_index == 3
            vfs.capacity_bytes = None
            log.extend(data)
        log.sync()
        vfs.crash(0, keep=0)
        assert payloads(open_log(vfs)) == [b"a", b"b", b"y" * 8000]


# -- a leader's log and its copy, for life

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["write"] * 3 + ["send"] * 3 + ["roll", "sync", "crash", "fork", "drop"]),
        st.integers(0, 1 << 30),
    ),
    min_size=10,
    max_size=60,
)


class Pair:
    """A leader, whose log may fork where the follower has not synced, and a follower that
    crashes.
    """

    def __init__(self) -> None:
        self.vfs, self.other = disk(), disk()
        self.leader = new_log(self.vfs, segment_bytes=2500)
        self.follower = open_log(self.other, segment_bytes=700)
        self.term = 1
        self.now_ms = 1000
        self.durable = 0

    def write(self, rng: random.Random) -> None:
        self.now_ms += rng.randint(0, 3)
        kinds = rng.choices([Kind.NOOP, Kind.MESSAGES, Kind.COMMAND, Kind.MEMBERSHIP], k=3)
        news = [
            NewEntry(kind, self.term, self.now_ms, [rng.randbytes(rng.choice([0, 5, 300]))])
            for kind in kinds[: rng.randint(1, 3)]
        ]
        # Whatever its size: here the test decides about borders.
        self.leader._segment_bytes = 1 << 20
        self.leader.append(news)

    def roll(self, rng: random.Random) -> None:
        payload = rng.randbytes(rng.choice([0, 50, 900]))
        self.leader.roll(checkpoint(payload, term=self.term, now_ms=self.now_ms))

    def send(self, rng: random.Random) -> None:
        self.agree()
        if self.follower.last_index < self.leader.last_index:
            bytes_max = rng.choice([0, 100, 700, 1 << 20])
            region = self.leader.region(self.follower.last_index + 1, bytes_max)
            self.follower.extend(region.data)

    def agree(self) -> None:
        """As Raft does it: what the leader does not have goes."""
        leader, follower = self.leader, self.follower
        last = follower.last_index
        while last >= leader.first_index and (
            last > leader.last_index or leader.term_at(last) != follower.term_at(last)
        ):
            last -= 1
        if last < leader.first_index:
            # What would follow is gone from the leader's log.
            follower.start_over(leader.first_index, leader.start_offset)
            self.durable = leader.first_index - 1
        elif last < follower.last_index:
            assert self.durable <= last
            follower.truncate(last + 1)

    def sync(self, _: random.Random) -> None:
        self.follower.sync()
        assert self.follower.durable_index == self.follower.last_index
        self.agree()
        self.durable = self.follower.last_index

    def crash(self, rng: random.Random) -> None:
        lived = content(self.follower)
        durable = self.follower.durable_index
        self.other.crash(rng, keep=rng.choice([0, 0.3, 0.7, 1]))
        self.follower = open_log(
            self.other, segment_bytes=700, verify_bytes=rng.choice([0, 1 << 30])
        )
        found = content(self.follower)
        assert found == lived[: len(found)]
        assert all(lost.raft_index > durable for lost in lived[len(found) :])
        assert self.follower.recovery.synced_bytes_lost == 0
        assert self.follower.durable_index == self.follower.last_index

    def drop(self, rng: random.Random) -> None:
        self.leader.drop_front(rng.randint(0, 2))

    def fork(self, rng: random.Random) -> None:
        """A new leader that has all that is durable on the follower, and not all of the rest."""
        self.term += 1
        first = max(self.durable, self.leader.first_index) + 1
        if first <= self.leader.last_index:
            self.leader.truncate(rng.randint(first, self.leader.last_index + 1))
        self.leader.append([NewEntry(Kind.NOOP, self.term, self.now_ms, [])])


@given(ACTIONS)
@settings(max_examples=int(os.environ.get("MQ_MODEL_EXAMPLES", "150")), deadline=None)
def test_a_copy_follows_its_leader_through_crashes_and_forks(
    actions: list[tuple[str, int]],
) -> None:
    pair = Pair()
    for name, seed in actions:
        getattr(pair, name)(random.Random(seed))
    pair.agree()
    send(pair.leader, pair.follower, 1000)
    pair.sync(random.Random(0))
    pair.leader.sync()
    # The follower may have more: what the leader dropped.
    assert used(pair.vfs).items() <= used(pair.other).items()
    pair.other.crash(0, keep=0)
    wanted = content(pair.leader)
    assert content(open_log(pair.other))[-len(wanted) :] == wanted
