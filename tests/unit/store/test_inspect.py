"""Looking at a log without touching it says what a start would make of it."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import pytest

from mq.errors import LogDamaged, SegmentFull
from mq.store import scan
from mq.store.format import IDX_HEADER_BYTES, Kind, encode_header
from mq.store.inspect import Ending, LogInspector, SegmentState
from tests.support.faulty_vfs import FaultyVfs
from tests.support.logs import (
    DIRECTORY,
    append,
    checkpoint,
    content,
    disk,
    entry_bytes,
    files,
    new_log,
    open_log,
    segments_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = f"{DIRECTORY}/{0:020d}.log"


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """These logs are small, and buffers of megabytes take long to make."""
    monkeypatch.setattr(scan, "CHUNK_BYTES", 1024)


def looked_at(vfs: FaultyVfs, *, check_all: bool = False) -> LogInspector:
    inspector = LogInspector(vfs, "/data")
    inspector.look(check_all=check_all)
    return inspector


def crashed_log(seed: int) -> FaultyVfs:
    """The rest of some segments after a power loss; a part of them had been synced."""
    rng = random.Random(seed)
    vfs = disk(seed)
    log = new_log(vfs, segment_bytes=2048, zero_ahead=rng.random() < 0.5)
    for _ in range(rng.randint(1, 40)):
        try:
            append(log, *(rng.randbytes(rng.choice([0, 30, 200, 700])) for _ in range(3)))
        except SegmentFull:
            log.roll(checkpoint(b""))
        if rng.random() < 0.3:
            log.sync()
    vfs.crash(rng, keep=rng.choice([0, 0.1, 0.5, 0.9, 1]))
    return vfs


def check_that_a_start_agrees(vfs: FaultyVfs) -> Ending:
    before = files(vfs)
    inspector = looked_at(vfs, check_all=True)
    seen = [(each.raft_index, each.term, each.log_offset) for each in inspector.entries()]
    assert files(vfs) == before
    damage = next((problem for problem in inspector.problems if problem.is_damage), None)
    if damage is not None:
        with pytest.raises(LogDamaged) as refused:
            open_log(vfs)
        error = refused.value
        assert (error.path, error.position, error.reason) == (
            damage.path,
            damage.position,
            damage.reason,
        )
        return Ending.DAMAGED
    log = open_log(vfs)
    refs = [log.ref(each.raft_index) for each in content(log)]
    assert seen == [(ref.raft_index, ref.term, ref.log_offset) for ref in refs]
    lost = sum(problem.synced_bytes_lost for problem in inspector.problems)
    assert log.recovery.synced_bytes_lost in (0, lost)
    return inspector.ending


def test_after_a_power_loss_a_start_finds_the_same_entries() -> None:
    endings = set()
    for seed in range(200):
        with _seed(seed):
            endings.add(check_that_a_start_agrees(crashed_log(seed)))
    assert endings == {Ending.CLEAN, Ending.TORN}


def test_after_a_flipped_bit_a_start_refuses_the_same_place() -> None:
    endings = set()
    for seed in range(200):
        with _seed(seed):
            vfs = crashed_log(seed)
            rng = random.Random(seed)
            path = f"{DIRECTORY}/{rng.choice(sorted(files(vfs, '.log')) or [''])}"
            if vfs.file_size(path):
                vfs.flip_bit(path, rng.randrange(vfs.file_size(path) or 1), rng.randrange(8))
                endings.add(check_that_a_start_agrees(vfs))
    assert endings == {Ending.TORN, Ending.DAMAGED}


def test_an_entry_that_is_whole_but_cannot_follow_is_cut_by_a_start_and_called_torn() -> None:
    vfs = three_segments()
    last = looked_at(vfs).segments[-1]
    backwards = encode_header(Kind.MESSAGES, last.last_index + 1, 0, 1000, [], 0)
    vfs.write_all(last.path, vfs.read_all(last.path)[: last.used_bytes] + backwards)
    assert check_that_a_start_agrees(vfs) is Ending.TORN


def test_bytes_that_the_disk_cannot_read_are_damage_and_reading_goes_on_elsewhere() -> None:
    vfs = three_segments()
    _, second, _ = looked_at(vfs).segments
    vfs.fail("pread", second.path, times=1 << 20)
    inspector = looked_at(vfs, check_all=True)
    (problem,) = inspector.problems
    assert (problem.path, problem.position, problem.is_damage) == (second.path, 0, True)
    assert "cannot be read" in problem.reason
    assert [each.raft_index for each in inspector.entries()] == [1, 2, 3, 8, 9, 10]


@contextlib.contextmanager
def _seed(seed: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def three_segments() -> FaultyVfs:
    vfs = disk()
    log = new_log(vfs)
    append(log, b"a" * 100, b"b" * 100)
    segments_of(log, [b"c" * 100] * 3, [b"d" * 100] * 2)
    log.close()
    return vfs


def test_a_sealed_segment_is_not_read_unless_asked() -> None:
    vfs = three_segments()
    vfs.flip_bit(FIRST, 100)
    assert [each.is_checked for each in looked_at(vfs).segments] == [False, False, True]
    assert looked_at(vfs).ending is Ending.CLEAN
    assert looked_at(vfs, check_all=True).ending is Ending.DAMAGED


def test_damage_that_only_reading_meets_is_reported_and_reading_goes_on_behind_it() -> None:
    vfs = three_segments()
    second = entry_bytes(b"state")
    vfs.flip_bit(FIRST, second + 50)
    inspector = looked_at(vfs)
    assert [each.raft_index for each in inspector.entries()] == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    (problem,) = inspector.problems
    assert (problem.path, problem.position) == (FIRST, second)
    assert problem.resumes_at == second + entry_bytes(b"a" * 100)
    assert problem.is_damage


def test_entries_are_found_by_index_with_and_without_an_idx() -> None:
    vfs = three_segments()
    assert [each.raft_index for each in looked_at(vfs).entries(3)] == list(range(3, 11))
    assert [each.raft_index for each in looked_at(vfs).entries(9)] == [9, 10]
    for name in files(vfs, ".idx"):
        vfs.remove(f"{DIRECTORY}/{name}")
    inspector = looked_at(vfs)
    assert all(each.is_checked for each in inspector.segments)
    assert [each.raft_index for each in inspector.entries(6)] == list(range(6, 11))
    assert list(inspector.entries(11)) == []


def test_a_wrong_record_of_a_sealed_idx_is_found_by_a_full_check() -> None:
    vfs = three_segments()
    idx = FIRST.replace(".log", ".idx")
    vfs.flip_bit(idx, IDX_HEADER_BYTES + 24 + 1)
    assert looked_at(vfs).ending is Ending.CLEAN
    (problem,) = looked_at(vfs, check_all=True).problems
    assert (problem.path, problem.position) == (idx, IDX_HEADER_BYTES + 24)
    # The walk does not trust what it is told there.
    assert [each.raft_index for each in looked_at(vfs).entries(2)][:2] == [2, 3]


def test_a_missing_segment_is_damage() -> None:
    vfs = three_segments()
    (_, second, _) = sorted(files(vfs, ".log"))
    vfs.remove(f"{DIRECTORY}/{second}")
    inspector = looked_at(vfs)
    assert inspector.ending is Ending.DAMAGED
    assert "bytes are missing before the next segment" in inspector.problems[0].reason


def test_synced_bytes_that_are_gone_are_counted() -> None:
    vfs = three_segments()
    last = looked_at(vfs).segments[-1]
    vfs.truncate_file(last.path, last.used_bytes - entry_bytes(b"d" * 100))
    inspector = looked_at(vfs)
    assert inspector.ending is Ending.TORN
    assert inspector.problems[0].synced_bytes_lost == entry_bytes(b"d" * 100)
    vfs.truncate_file(last.path, 3)
    assert looked_at(vfs).segments[-1].state is SegmentState.EMPTY


def test_a_segment_that_is_dropped_meanwhile_is_named() -> None:
    vfs = three_segments()
    inspector = looked_at(vfs)
    vfs.remove(FIRST)
    assert [each.raft_index for each in inspector.entries()] == list(range(4, 11))
    assert inspector.removed == [FIRST]
    assert inspector.ending is Ending.CLEAN


def test_a_segment_that_is_dropped_during_the_look_is_no_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vfs = three_segments()
    names = sorted(files(vfs, ".log"))
    opened = vfs.open

    def open_and_drop(path: str, *, create: bool = False, read_only: bool = False) -> object:
        file = opened(path, create=create, read_only=read_only)
        if path == FIRST:
            for name in names[:2]:
                vfs.remove(f"{DIRECTORY}/{name}")
        return file

    monkeypatch.setattr(vfs, "open", open_and_drop)
    inspector = looked_at(vfs)
    assert [each.entries for each in inspector.segments] == [3, 3]
    assert inspector.removed == [f"{DIRECTORY}/{names[1]}"]
    assert inspector.ending is Ending.CLEAN


def test_a_file_that_is_cut_while_it_is_read_ends_with_its_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the prepared space of the active segment is when it is sealed."""
    vfs = disk()
    log = new_log(vfs, zero_ahead=True)
    append(log, b"a" * 100)
    log.sync()
    end = log.end_offset
    assert (vfs.file_size(FIRST) or 0) > end
    opened = vfs.open

    def open_and_cut(path: str, *, create: bool = False, read_only: bool = False) -> object:
        file = opened(path, create=create, read_only=read_only)
        if path == FIRST:
            size = file.size()
            monkeypatch.setattr(file, "size", lambda: size, raising=False)
            vfs.truncate_file(FIRST, end)
        return file

    monkeypatch.setattr(vfs, "open", open_and_cut)
    inspector = looked_at(vfs)
    assert inspector.ending is Ending.CLEAN
    assert inspector.segments[0].used_bytes == end
