"""The log against a plain list: what is appended is read, in order, over segments and restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.errors import MessageTooLarge, OffsetOutOfRange, SegmentFull
from mq.store import commitlog, logreader
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import HEADER_BYTES, Kind, decode_header, is_intact
from mq.store.vfs import RealVfs
from tests.support.logs import (
    DIRECTORY,
    SEGMENT_BYTES,
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
    from pathlib import Path

    from tests.support.faulty_vfs import FaultyVfs


@pytest.fixture
def vfs() -> FaultyVfs:
    return disk()


@pytest.fixture
def log(vfs: FaultyVfs) -> CommitLog:
    """Three segments: entries 1 to 3, 4 to 6, 7 to 9, each opened by a checkpoint."""
    log = open_log(vfs)
    segments_of(log, [b"a", b"bb"], [b"ccc", b"dddd"], [b"eeeee", b"ffffff"])
    return log


# -- writing


def test_an_appended_entry_is_read_back(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    kinds = [Kind.NOOP, Kind.MESSAGES, Kind.COMMAND, Kind.MEMBERSHIP]
    news = [NewEntry(kind, 1, 1000, [b"x" * kind, memoryview(b"yz")]) for kind in kinds]
    refs = log.append(news)
    assert [ref.raft_index for ref in refs] == [2, 3, 4, 5]
    for ref, new in zip(refs, news, strict=True):
        assert log.ref(ref.raft_index) == ref
        entry = log.entry(ref.raft_index)
        assert entry.ref == ref
        assert entry.payload == b"".join(new.payload)
        assert log.read(ref.payload_log_offset, ref.length) == entry.payload
    assert log.end_offset == refs[-1].payload_log_offset + refs[-1].length
    assert (log.first_index, log.last_index) == (1, 5)


def test_many_entries_are_one_write(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    append(log, b"before")
    before = vfs.write_count
    append(log, *[b"x"] * 30)
    assert vfs.write_count == before + 2  # the log and the idx


def test_appending_nothing_changes_nothing(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    before = content(log), log.end_offset
    assert log.append([]) == []
    assert (content(log), log.end_offset) == before


def test_an_entry_on_disk_is_whole_without_us(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    append(log, b"hello")
    raw = log.read(entry_bytes(b"state"), entry_bytes(b"hello"))
    header = decode_header(raw)
    assert header is not None
    assert is_intact(memoryview(raw), header)


def test_time_never_goes_backwards(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    log.append([message(now_ms=5000), message(now_ms=4000), message(now_ms=6000)])
    log.append([message(now_ms=1)])
    log.roll(checkpoint(now_ms=2))
    log.sync()
    reopened = open_log(vfs)
    reopened.append([message(now_ms=3)])
    times = [entry.stored_at_ms for entry in content(reopened)]
    assert times == [1000, 5000, 5000, 6000, 6000, 6000, 6000]


@pytest.mark.parametrize("terms", [[2], [4, 3], [3, 4, 2]])
def test_a_term_that_goes_backwards_is_refused(vfs: FaultyVfs, terms: list[int]) -> None:
    log = new_log(vfs)
    append(log, b"a", term=3)
    before = log.end_offset
    with pytest.raises(ValueError, match="after term"):
        log.append([message(term=term) for term in terms])
    assert (log.end_offset, log.last_index) == (before, 2)
    append(log, b"b", term=3)
    log.sync()
    assert payloads(open_log(vfs)) == [b"a", b"b"]


def test_an_old_term_is_refused_after_a_restart_too(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    append(log, b"a", term=3)
    log.sync()
    with pytest.raises(ValueError, match="after term 3"):
        open_log(vfs).append([message(term=2)])


def test_a_checkpoint_stands_only_at_the_start_of_a_segment(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    with pytest.raises(ValueError, match="roll"):
        log.append([message(), checkpoint()])
    with pytest.raises(ValueError, match="checkpoint"):
        log.roll(message())
    append(log, b"a")
    log.sync()
    assert payloads(open_log(vfs)) == [b"a"]


def test_an_empty_log_asks_for_a_checkpoint(vfs: FaultyVfs) -> None:
    log = open_log(vfs)
    with pytest.raises(SegmentFull):
        log.append([message()])
    assert (log.first_index, log.last_index) == (1, 0)
    assert (log.start_offset, log.end_offset, log.durable_offset) == (0, 0, 0)
    assert log.offset_at_time(0) == 0
    assert log.segments() == []


def test_a_full_segment_says_so_and_a_roll_helps(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    append(log, b"x" * 3000)
    with pytest.raises(SegmentFull):
        append(log, b"y" * 2000)
    assert log.last_index == 2
    log.roll(checkpoint())
    append(log, b"y" * 2000)
    assert payloads(log) == [b"x" * 3000, b"y" * 2000]
    assert len(log.segments()) == 2


def test_a_segment_takes_entries_up_to_its_size_exactly(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    append(log, b"a")
    rest = SEGMENT_BYTES - log.end_offset - HEADER_BYTES
    with pytest.raises(SegmentFull):
        append(log, b"x" * (rest + 1))
    append(log, b"x" * rest)
    assert log.end_offset == SEGMENT_BYTES


@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_full_segment_takes_the_noop_of_a_new_leader(vfs: FaultyVfs, is_rolled: bool) -> None:
    log = new_log(vfs)
    append(log, b"x" * (SEGMENT_BYTES - log.end_offset - HEADER_BYTES))
    noop = NewEntry(Kind.NOOP, 2, 1000, [])
    log.append([noop])
    log.append([noop, noop])
    for other in (message(b""), NewEntry(Kind.NOOP, 2, 1000, [b"x"]), message()):
        with pytest.raises(SegmentFull):
            log.append([noop, other._replace(term=2)])
    assert log.last_index == 5
    if is_rolled:
        log.roll(checkpoint(term=2))
    log.sync()
    assert [entry.term for entry in content(open_log(vfs))][:5] == [1, 1, 2, 2, 2]


def test_no_segment_is_longer_than_its_idx_can_say(
    vfs: FaultyVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(vfs)
    monkeypatch.setattr(commitlog, "SEGMENT_BYTES_MAX", log.end_offset + 2 * HEADER_BYTES)
    noop = NewEntry(Kind.NOOP, 2, 1000, [])
    with pytest.raises(SegmentFull):
        log.append([noop] * 3)
    log.append([noop] * 2)
    with pytest.raises(SegmentFull):
        log.append([noop])


@pytest.mark.parametrize("zero_ahead", [False, True])
def test_an_entry_larger_than_a_segment_fits_a_fresh_one(vfs: FaultyVfs, zero_ahead: bool) -> None:
    log = new_log(vfs, zero_ahead=zero_ahead)
    append(log, b"x" * 50_000)
    with pytest.raises(SegmentFull):
        append(log, b"y")
    log.roll(checkpoint())
    append(log, b"y")
    log.sync()
    assert payloads(open_log(vfs)) == [b"x" * 50_000, b"y"]


def test_a_payload_beyond_the_format_is_refused(
    vfs: FaultyVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commitlog, "PAYLOAD_BYTES_MAX", 100)
    log = new_log(vfs)
    with pytest.raises(MessageTooLarge):
        append(log, b"a", b"x" * 101)
    append(log, b"x" * 100)
    assert payloads(log) == [b"x" * 100]


def test_the_durable_offset_follows_the_sync(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    assert log.durable_offset == 0
    first = log.sync()
    assert first == log.durable_offset == log.end_offset
    append(log, b"a")
    log.roll(checkpoint())
    assert log.durable_offset == first
    assert log.sync() == log.end_offset


def test_a_sealed_segment_gives_its_spare_space_back(log: CommitLog, vfs: FaultyVfs) -> None:
    sizes = {len(data) for data in list(files(vfs, ".log").values())[:-1]}
    assert sizes == {info.size_bytes for info in log.segments()[:-1]}


# -- reading


@pytest.mark.parametrize("start", range(1, 10))
@pytest.mark.parametrize("read_ahead", [1, 60, 1 << 20])
def test_any_range_of_entries_is_read_over_segments(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, start: int, read_ahead: int
) -> None:
    monkeypatch.setattr(logreader, "_READ_AHEAD_BYTES", read_ahead)
    everything = content(log)
    for end in range(start, 11):
        found = [(ref.raft_index, bytes(payload)) for ref, payload in log.entries(start, end)]
        assert found == [(e.raft_index, e.payload) for e in everything[start - 1 : end - 1]]


def test_entries_are_read_lazily(vfs: FaultyVfs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(vfs, segment_bytes=1 << 20)
    append(log, *[b"x" * 1000] * 200)
    monkeypatch.setattr(logreader, "_READ_AHEAD_BYTES", 10_000)
    lengths: list[int] = []
    segment = log._segments[0]
    read = segment.read

    def counted(position: int, length: int) -> bytes:
        lengths.append(length)
        return read(position, length)

    monkeypatch.setattr(segment, "read", counted)
    entries = log.entries(2, 202)
    assert lengths == []
    next(entries)
    assert len(lengths) == 1
    assert len(list(entries)) == 199
    assert max(lengths) <= 10_000
    assert sum(lengths) == 200 * entry_bytes(b"x" * 1000)


def test_bytes_are_read_over_the_border_of_segments(log: CommitLog, vfs: FaultyVfs) -> None:
    raw = b"".join(
        data[: info.size_bytes]
        for data, info in zip(files(vfs, ".log").values(), log.segments(), strict=True)
    )
    for start in range(0, len(raw), 13):
        for end in range(start, len(raw) + 1, 17):
            assert log.read(start, end - start) == raw[start:end]


def test_every_byte_belongs_to_an_entry(log: CommitLog) -> None:
    for index in range(1, 10):
        ref = log.ref(index)
        for log_offset in range(ref.log_offset, ref.payload_log_offset + ref.length):
            assert log.index_at(log_offset) == index


def test_an_offset_outside_of_the_log_is_out_of_range(log: CommitLog) -> None:
    log.drop_front(1)
    start, end = log.start_offset, log.end_offset
    for index in (0, 3, 10):
        with pytest.raises(OffsetOutOfRange, match="4 to 9"):
            log.ref(index)
        with pytest.raises(OffsetOutOfRange):
            log.entry(index)
    with pytest.raises(OffsetOutOfRange):
        list(log.entries(9, 11))
    for log_offset in (-1, 0, start - 1, end):
        with pytest.raises(OffsetOutOfRange):
            log.index_at(log_offset)
        with pytest.raises(OffsetOutOfRange):
            log.read(log_offset, 1)
    with pytest.raises(OffsetOutOfRange):
        log.read(end - 1, 2)
    with pytest.raises(OffsetOutOfRange):
        log.stored_at(np.array([start, end], np.int64))
    assert list(log.entries(20, 20)) == []


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=4),
    st.data(),
)
@settings(deadline=None)
def test_time_search_agrees_with_a_plain_list(
    segments: list[list[int]], draw: st.DataObject
) -> None:
    log = open_log(disk())
    for checkpoint_ms, *times in segments:
        log.roll(checkpoint(now_ms=checkpoint_ms))
        log.append([message(now_ms=time) for time in times])
    refs = [log.ref(index) for index in range(1, log.last_index + 1)]
    for time in range(-1, 53):
        expected = [ref.log_offset for ref in refs if ref.stored_at_ms >= time]
        assert log.offset_at_time(time) == (expected[0] if expected else log.end_offset)
    offsets = sorted(draw.draw(st.lists(st.integers(0, log.end_offset - 1), max_size=20)))
    expected_times = [refs[log.index_at(offset) - 1].stored_at_ms for offset in offsets]
    assert log.stored_at(np.array(offsets, np.int64)).tolist() == expected_times


# -- removing


@pytest.mark.parametrize("from_index", range(2, 10))
@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_truncated_log_goes_on_with_other_entries(
    log: CommitLog, vfs: FaultyVfs, from_index: int, is_reopened: bool
) -> None:
    expected = content(log)[: from_index - 1]
    if is_reopened:
        log = open_log(vfs)
    log.truncate(from_index)
    assert content(log) == expected
    assert log.last_index == from_index - 1
    assert log.durable_offset == log.end_offset
    append(log, b"other", b"things", term=2, now_ms=1)
    assert [entry.payload for entry in content(log)[-2:]] == [b"other", b"things"]
    log.sync()
    vfs.crash(0, keep=0)
    after = content(open_log(vfs))
    assert after[:-2] == expected
    assert [(e.raft_index, e.term, e.payload) for e in after[-2:]] == [
        (from_index, 2, b"other"),
        (from_index + 1, 2, b"things"),
    ]


@pytest.mark.parametrize("keep", [0, 0.5, 1])
def test_a_truncated_entry_never_comes_back(keep: float) -> None:
    """Not even behind the entries in its place, of the same size, when those are not synced."""
    old, new = ([bytes([letter]) * 600 for letter in letters] for letters in (b"abcd", b"wxyz"))
    for seed in range(20):
        vfs = disk(seed)
        log = new_log(vfs)
        append(log, *old)
        log.sync()
        log.truncate(3)
        append(log, *new)
        vfs.crash(seed, keep)
        after = payloads(open_log(vfs))
        assert after == [old[0], *new][: len(after)]
        assert after


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_truncation_does_not_disturb_readers_of_the_rest(
    log: CommitLog, vfs: FaultyVfs, is_reopened: bool
) -> None:
    """On another thread, with the file of a sealed segment that is written again from now on."""
    log = open_log(vfs) if is_reopened else log
    before = log.segments()[0]
    file = log._segments[0].log
    wanted = log.read(0, before.size_bytes)
    log.truncate(3)
    append(log, b"other")
    assert file.pread(log.ref(3).log_offset, 0) == wanted[: log.ref(3).log_offset]
    log.close()
    handles = [handle for handle in vfs._handles if handle._path == before.path]
    assert len(handles) == int(is_reopened)  # that of the first log object


def test_a_lower_term_may_follow_when_the_higher_one_is_cut(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    append(log, b"a", term=1, now_ms=1000)
    append(log, b"b", term=5, now_ms=9000)
    log.truncate(3)
    append(log, b"c", term=2, now_ms=2000)
    assert content(log)[-1].stored_at_ms == 2000


def test_truncating_behind_the_end_is_nothing_and_before_the_start_refused(log: CommitLog) -> None:
    before = content(log)
    log.truncate(10)
    log.truncate(99)
    for index in (1, 0, -1):
        with pytest.raises(OffsetOutOfRange):
            log.truncate(index)
    log.drop_front(1)
    with pytest.raises(OffsetOutOfRange):
        log.truncate(4)
    assert content(log) == before[3:]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 99])
def test_dropped_segments_stay_away_and_the_active_one_stays(
    log: CommitLog, vfs: FaultyVfs, count: int
) -> None:
    everything = content(log)
    log.drop_front(count)
    first = 1 + 3 * min(count, 2)
    assert log.first_index == first
    vfs.crash(0, keep=0)
    log = open_log(vfs)
    assert content(log) == everything[first - 1 :]
    append(log, b"more")
    assert content(log)[-1].raft_index == 10
    assert len(files(vfs)) == 2 * len(log.segments())


@pytest.mark.parametrize("are_removed", [False, True])
def test_released_segments_are_out_of_the_log_at_once_and_their_files_go_later(
    log: CommitLog, vfs: FaultyVfs, are_removed: bool
) -> None:
    everything = content(log)
    log.release_front(1)
    log.release_front(1)
    assert content(log) == everything[6:]
    assert len(files(vfs)) == 6
    if are_removed:
        log.remove_released()
        assert len(files(vfs)) == 2
    vfs.crash(0, keep=0)
    # If it came before they were gone, they are to be dropped again.
    assert content(open_log(vfs)) == everything[6 if are_removed else 0 :]


def test_a_log_that_starts_over_leaves_no_released_segment_behind(
    log: CommitLog, vfs: FaultyVfs
) -> None:
    log.release_front(2)
    log.start_over(100, 10_000)
    log.roll(checkpoint(b"of another log"))
    log.sync()
    vfs.crash(0, keep=0)
    log = open_log(vfs)
    assert (log.first_index, log.last_index, log.start_offset) == (100, 100, 10_000)


def test_nothing_is_dropped_before_what_stays_is_durable(vfs: FaultyVfs) -> None:
    log = new_log(vfs)
    append(log, b"a")
    log.sync()
    log.roll(checkpoint(b"all that is left"))
    log.drop_front(1)
    vfs.crash(0, keep=0)
    log = open_log(vfs)
    assert (log.first_index, log.last_index) == (3, 3)


def test_segments_tell_what_retention_needs(log: CommitLog) -> None:
    infos = log.segments()
    assert [info.first_index for info in infos] == [1, 4, 7]
    assert [info.base_log_offset for info in infos][1:] == [
        log.ref(4).log_offset,
        log.ref(7).log_offset,
    ]
    assert sum(info.size_bytes for info in infos) == log.end_offset
    assert infos[0].path == f"{DIRECTORY}/00000000000000000000.log"
    assert {info.last_stored_at_ms for info in infos} == {1000}


@pytest.mark.parametrize("zero_ahead", [False, True])
def test_the_same_log_works_on_a_real_disk_with_its_thread(
    tmp_path: Path, zero_ahead: bool
) -> None:
    def opened() -> CommitLog:
        return CommitLog(
            RealVfs(),
            f"{tmp_path}/commitlog",
            segment_bytes=100_000,
            verify_bytes=1 << 30,
            zero_ahead=zero_ahead,
        )

    log = opened()
    written = []
    for number in range(300):
        payload = bytes([number % 256]) * (number * 7 % 3000)
        try:
            append(log, payload)
        except SegmentFull:
            log.roll(checkpoint())
            append(log, payload)
        written.append(payload)
    log.sync()
    log.truncate(log.last_index)
    assert payloads(log) == written[:-1]
    log.close()
    log = opened()
    assert payloads(log) == written[:-1]
    assert len(log.segments()) > 2
    assert log.recovery.cut_bytes == 0
    log.close()
