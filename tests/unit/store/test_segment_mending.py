"""A damaged segment is surveyed, filled and put in its place; a crash leaves a log that opens."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import pytest

from mq.errors import LogDamaged, StorageFailed
from mq.store.segment_mending import (
    Gap,
    Survey,
    is_filled_by,
    survey,
    write_mended,
    write_mended_idx,
)
from mq.store.store import Store
from tests.support.stores import apply_through, fill, new_store, open_store, read_all, reopen


class Scene:
    """A store of some segments; `whole` is what the first of them held before it was damaged."""

    def __init__(self) -> None:
        self.vfs, store = new_store()
        self.sent = fill(store, 3)
        self.store = reopen(self.vfs)
        self.info = self.store.log.segments()[0]
        self.whole = self.vfs.read_all(self.info.path)
        self.idx_path = self.info.path.replace(".log", ".idx")
        self.idx = self.vfs.read_all(self.idx_path)

    def place(self, number: int) -> tuple[int, int]:
        return self.store.log.place_of(self.info.first_index + number)

    def damage(self, *numbers: int) -> None:
        for number in numbers:
            self.vfs.flip_bit(self.info.path, self.place(number)[1] - 1)

    def survey(self) -> Survey:
        twin = self.store.log.twin_at(0)
        assert twin is not None
        with contextlib.closing(twin):
            return survey(twin)

    def mend(self, found: Survey, *, has_lost: bool = False) -> None:
        pieces = {gap.start: self.whole[gap.start : gap.end] for gap in found.gaps}
        twin = self.store.log.twin_at(0)
        assert twin is not None
        with contextlib.closing(twin):
            path = write_mended(self.vfs, twin, pieces, has_lost=has_lost)
            idx = write_mended_idx(self.vfs, twin, path) if found.is_idx_damaged else None
            assert self.store.log.replace_files(0, path, idx)


def test_a_sound_segment_has_no_gaps() -> None:
    found = Scene().survey()
    assert (found.gaps, found.is_idx_damaged) == ([], False)


def test_neighbours_are_one_gap() -> None:
    scene = Scene()
    scene.damage(1, 2, 4)
    gaps = scene.survey().gaps
    assert [(gap.start, gap.end) for gap in gaps] == [
        (scene.place(1)[0], scene.place(2)[1]),
        scene.place(4),
    ]
    assert [gap.first_index for gap in gaps] == [2, 5]
    assert [start for _, start, _ in gaps[0].entries(0)] == [scene.place(n)[0] for n in (1, 2)]


def test_an_unreadable_range_is_a_gap() -> None:
    scene = Scene()
    scene.vfs.fail("pread", ".log", errno.EIO)  # all in one
    scene.vfs.fail("pread", ".log", errno.EIO, after=1)  # the second by itself
    assert [(gap.start, gap.end) for gap in scene.survey().gaps] == [scene.place(1)]


def test_a_segment_that_lost_its_end_has_a_gap_there() -> None:
    scene = Scene()
    last = scene.info.size_bytes - 1
    scene.vfs.truncate_file(scene.info.path, last)
    (gap,) = scene.survey().gaps
    assert gap.end == scene.info.size_bytes
    scene.mend(scene.survey())
    assert scene.vfs.read_all(scene.info.path) == scene.whole


def test_a_mended_segment_is_what_it_was_and_readers_see_it() -> None:
    scene = Scene()
    scene.damage(1, 2, 4)
    scene.mend(scene.survey())
    assert scene.vfs.read_all(scene.info.path) == scene.whole
    assert read_all(scene.store) == scene.sent
    assert scene.survey().gaps == []
    assert not any(name.endswith(".mended") for name in scene.vfs.list_dir("/data/commitlog"))
    assert read_all(reopen(scene.vfs)) == scene.sent


def test_a_reader_on_another_thread_goes_on_meanwhile() -> None:
    scene = Scene()
    scene.damage(4)
    start, end = scene.place(1)
    apart = scene.store.log.apart(start, end)
    before = scene.store.log._segments[0].log
    scene.mend(scene.survey())
    assert apart.read_ranges([(start, end)]) == [scene.whole[start:end]]
    assert before.pread(4, 0) == scene.whole[:4], "not closed under a reader"


def test_nothing_is_believed_that_does_not_fit() -> None:
    scene = Scene()
    scene.damage(2, 3)
    (gap,) = scene.survey().gaps
    right = scene.whole[gap.start : gap.end]
    assert is_filled_by(gap, right)
    for wrong in (b"", right[:-1], right + b"x", bytes(len(right)), scene.whole[: len(right)]):
        assert not is_filled_by(gap, wrong)
    for at in range(len(right)):
        assert not is_filled_by(gap, right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
    # Entries of another term: intact, and of other replicas' making.
    records = gap.records.copy()
    records["term"] += 1
    assert not is_filled_by(gap._replace(records=records), right)


def test_a_file_that_is_not_whole_is_not_put_in_place() -> None:
    scene = Scene()
    scene.damage(1, 4)
    found = scene.survey()
    with pytest.raises(LogDamaged):
        scene.mend(found._replace(gaps=found.gaps[:1]))
    scene.mend(found._replace(gaps=found.gaps[:1]), has_lost=True)
    assert [(gap.start, gap.end) for gap in scene.survey().gaps] == [scene.place(4)]


@pytest.mark.parametrize("field", [0, 4, 8, 16])
def test_a_damaged_idx_is_made_again_from_the_log(field: int) -> None:
    scene = Scene()
    scene.vfs.flip_bit(scene.idx_path, 40 + 3 * 24 + field, 3)
    found = scene.survey()
    assert (found.gaps, found.is_idx_damaged) == ([], True)
    scene.mend(found)
    assert scene.vfs.read_all(scene.idx_path) == scene.idx
    assert read_all(scene.store) == scene.sent


def test_log_and_idx_may_be_damaged_at_once() -> None:
    scene = Scene()
    scene.vfs.flip_bit(scene.idx_path, 40 + 1 * 24 + 4)
    scene.vfs.flip_bit(scene.info.path, scene.place(3)[0] + 50)
    found = scene.survey()
    assert [(gap.start, gap.end) for gap in found.gaps] == [
        (scene.place(3)[0], scene.info.size_bytes)
    ]
    scene.mend(found)
    assert scene.vfs.read_all(scene.info.path) == scene.whole
    assert scene.vfs.read_all(scene.idx_path) == scene.idx


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_at_any_point_leaves_a_log_that_opens(seed: int) -> None:
    scene = Scene()
    found = scene.survey()  # of what is sound: the same bytes take the place of the same bytes
    gap = Gap(*scene.place(2), 3, scene.store.log._segments[0].records()[2:3])
    steps = itersteps(scene, found._replace(gaps=[gap], is_idx_damaged=True))
    for _, _ in zip(range(1 + seed % 4), steps, strict=False):
        pass
    scene.vfs.crash(seed)
    store = open_store(scene.vfs)
    apply_through(store, store.log.last_index)
    assert read_all(store) == scene.sent
    assert not any(name.endswith(".mended") for name in scene.vfs.list_dir("/data/commitlog"))


def itersteps(scene: Scene, found: Survey) -> Iterator[None]:
    (gap,) = found.gaps
    twin = scene.store.log.twin_at(0)
    assert twin is not None
    piece = {gap.start: scene.whole[gap.start : gap.end]}
    path = write_mended(scene.vfs, twin, piece, has_lost=False)
    yield
    idx = write_mended_idx(scene.vfs, twin, path)
    yield
    scene.vfs.replace(path, twin.log_path)
    yield
    scene.vfs.replace(path.replace(".log.", ".idx."), twin.idx_path)
    assert idx
    yield


# -- in place --------------------------------------------------------------------------------------


def newest(store: Store) -> tuple[int, int, int]:
    """The start of the newest segment, and an entry of it."""
    base = store.log.segments()[-1].base_log_offset
    start, end = store.log.place_of(store.log.last_index)
    return base, start, end


def test_the_newest_segment_is_mended_in_place() -> None:
    scene = Scene()
    store = scene.store
    base, start, end = newest(store)
    right = store.log.read(start, end - start)
    path = store.log.segments()[-1].path
    scene.vfs.flip_bit(path, end - base - 5)
    assert not store.log.is_resting(base)
    assert store.log.rewrite(base, start - base, right)
    scene.vfs.crash(1)
    assert read_all(reopen(scene.vfs)) == scene.sent


def test_entries_that_do_not_stand_there_are_not_written() -> None:
    scene = Scene()
    log = scene.store.log
    base, start, end = newest(scene.store)
    right = log.read(start, end - start)
    assert not log.rewrite(base, start - base, bytes(len(right)))
    assert not log.rewrite(base, start - base + len(right), right)
    assert not log.rewrite(base + 1, start - base, right)
    log.truncate(log.last_index)
    assert not log.rewrite(base, start - base, right)


def test_a_write_in_place_that_fails_stops_the_node() -> None:
    scene = Scene()
    base, start, end = newest(scene.store)
    right = scene.store.log.read(start, end - start)
    scene.vfs.fail("sync", ".log")
    with pytest.raises(StorageFailed):
        scene.store.log.rewrite(base, start - base, right)
    with pytest.raises(StorageFailed):
        scene.store.log.sync()


def test_a_segment_that_is_gone_is_left_alone() -> None:
    scene = Scene()
    log = scene.store.log
    assert log.twin_at(7) is None
    assert not log.is_resting(7)
    assert not log.replace_files(7, None, None)
