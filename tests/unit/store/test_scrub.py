"""The scrubber reads all of the log again and again, at its rate, and finds rot on its own."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

import pytest

from mq.errors import MessagesDamaged
from mq.store import scrub
from mq.store.damage import DamageKind
from mq.store.format import HEADER_BYTES, IDX_HEADER_BYTES, IDX_RECORD_BYTES
from mq.store.scrub import PASS_S_MIN, PAUSE_S_MAX, Scrubber, ScrubSchedule
from mq.store.segment_mending import survey, write_mended
from tests.support.stores import (
    append,
    apply_through,
    batch,
    fill,
    messages_of,
    new_store,
    read_all,
    reopen,
)

if TYPE_CHECKING:
    from mq.store.damage import Damage
    from mq.store.store import Store

RATE = 1000
STEP_BYTES = 1700  # two entries of `fill`


class Scene:
    """Three segments, all but the last sealed, and a scrubber on a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_fresh: bool = False) -> None:
        monkeypatch.setattr(scrub, "STEP_BYTES", STEP_BYTES)
        self.vfs, store = new_store()
        self.sent = fill(store, 3)
        self.store: Store = store if is_fresh else reopen(self.vfs)
        self.now_s, self.rate = 100.0, RATE
        self.infos = self.store.log.segments()
        self.scrubber = Scrubber(
            self.store.log,
            lambda: self.store.applied_index,
            lambda: self.rate,
            lambda: self.now_s,
        )

    def step(self) -> tuple[int, int] | None:
        """The log offsets that were looked at, at once; None when nothing is due."""
        step = self.scrubber.begin()
        if step is None:
            return None
        checked = step.check()
        self.scrubber.finish(step, checked)
        return step.segment.base + step.position, step.segment.base + checked.position

    def run_pass(self) -> list[tuple[int, int]]:
        """To the end of a pass, with the pauses that the scrubber asks for."""
        ranges, passes = [], self.scrubber.passes
        while self.scrubber.passes == passes:
            done = self.step()
            ranges += [] if done is None else [done]
            self.now_s += self.scrubber.pause_s if done else PAUSE_S_MAX
        return ranges

    def place(self, number: int, segment: int = 0) -> tuple[int, int]:
        return self.store.log.place_of(self.infos[segment].first_index + number)

    def rot(self, number: int, segment: int = 0) -> None:
        info = self.infos[segment]
        self.vfs.flip_bit(info.path, self.place(number, segment)[1] - 1 - info.base_log_offset)

    def rot_record(self, number: int, at: int, bit: int = 0) -> None:
        path = self.infos[0].path.replace(".log", ".idx")
        self.vfs.flip_bit(path, IDX_HEADER_BYTES + number * IDX_RECORD_BYTES + at, bit)

    def found(self) -> list[Damage]:
        return list(self.store.damage.records())


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


# -- what is next, and when


def test_every_byte_of_the_log_is_looked_at_once_a_pass(scene: Scene) -> None:
    for _ in range(2):
        ranges = scene.run_pass()
        assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
        assert ranges[-1][1] == scene.store.log.end_offset
        assert len(ranges) > 5
        assert all(end - start <= STEP_BYTES for start, end in ranges)
        scene.now_s += PASS_S_MIN
    assert scene.scrubber.scrubbed_bytes_total == 2 * scene.store.log.end_offset
    assert scene.found() == []


def test_the_rate_is_kept(scene: Scene) -> None:
    began_s = scene.now_s
    done = 0
    while scene.scrubber.passes == 0:
        # As often as one likes.
        ranges = scene.step()
        done += ranges[1] - ranges[0] if ranges else 0
        assert done <= (scene.now_s - began_s) * RATE + STEP_BYTES
        scene.now_s += 0.01
    assert done == scene.store.log.end_offset
    assert (scene.now_s - began_s) * RATE < done + 20 * STEP_BYTES, "and it is used"


def test_another_rate_counts_at_once() -> None:
    schedule = ScrubSchedule(0.0)
    assert schedule.next_offset(0, 1 << 30, 1, 0.0) == 0
    schedule.advance(1 << 20, 1 << 20)
    assert schedule.next_offset(0, 1 << 30, 1, 1000.0) is None
    assert schedule.next_offset(0, 1 << 30, 1 << 20, 1000.0) == 1 << 20


def test_scrubbing_can_be_switched_off_and_on(scene: Scene) -> None:
    scene.rate = 0
    assert scene.step() is None
    assert (scene.scrubber.pause_s, scene.scrubber.age_s) == (PAUSE_S_MAX, 0.0)
    scene.rate = RATE
    assert scene.step() is not None


def test_a_small_log_is_not_read_over_and_over(scene: Scene) -> None:
    scene.rate = 1 << 30
    began_s = scene.now_s
    scene.run_pass()
    while scene.step() is None:
        scene.now_s += 1
    assert PASS_S_MIN <= scene.now_s - began_s <= PASS_S_MIN + PAUSE_S_MAX


def test_the_age_is_that_of_the_last_full_pass(scene: Scene) -> None:
    scene.now_s += 5
    assert scene.scrubber.age_s == 5
    scene.run_pass()
    assert scene.scrubber.age_s == PAUSE_S_MAX
    scene.now_s += 70
    scene.step()
    assert scene.scrubber.age_s == 70 + PAUSE_S_MAX


def test_a_pass_ends_where_the_log_ended_when_it_began() -> None:
    schedule = ScrubSchedule(0.0)
    assert schedule.next_offset(0, 100, 1, 0.0) == 0
    schedule.advance(100, 0)
    assert schedule.next_offset(0, 1 << 40, 1, 0.0) is None
    assert schedule.passes == 1
    assert schedule.next_offset(0, 1 << 40, 1, PASS_S_MIN) == 0


def test_a_log_that_was_replaced_is_walked_from_its_start() -> None:
    schedule = ScrubSchedule(0.0)
    assert schedule.next_offset(0, 1000, 1, 0.0) == 0
    schedule.advance(500, 0)
    assert schedule.next_offset(100, 900, 1, 0.0) == 100
    assert schedule.passes == 0


def test_unapplied_entries_are_not_scrubbed(scene: Scene) -> None:
    store = scene.store
    applied_end = store.log.end_offset
    append(store, batch(messages_of(5)))
    store.log.sync()
    assert scene.run_pass()[-1][1] == applied_end < store.log.end_offset


def test_an_empty_log_has_nothing_to_be_looked_at() -> None:
    _, store = new_store()
    assert Scrubber(store.log, lambda: 0, lambda: RATE, lambda: 0.0).begin() is None


# -- what is found


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_flipped_bit_is_found_and_all_else_is_looked_at(scene: Scene, segment: int) -> None:
    scene.rot(1, segment)
    assert scene.run_pass()[-1][1] == scene.store.log.end_offset
    (damage,) = scene.found()
    assert (damage.kind, damage.path) == (DamageKind.LOG, scene.infos[segment].path)
    assert (damage.start, damage.end) == scene.place(1, segment)
    assert "is not what was written" in damage.reason


def test_damage_to_own_writes_is_found_and_not_served_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, is_fresh=True)
    scene.rot(1, 2)
    assert len(read_all(scene.store)) == len(scene.sent), (
        "trusted in the newest segment, and served"
    )
    scene.run_pass()
    (damage,) = scene.found()
    assert (damage.start, damage.end) == scene.place(1, 2)
    with pytest.raises(MessagesDamaged):
        read_all(scene.store)


def test_damage_after_an_earlier_check_is_found(scene: Scene) -> None:
    assert read_all(scene.store) == scene.sent
    scene.rot(2)
    scene.run_pass()
    assert [one.start for one in scene.found()] == [scene.place(2)[0]]
    with pytest.raises(MessagesDamaged):
        read_all(scene.store)


def test_each_damaged_entry_is_reported_once_and_new_ones_beside_those_that_are_lost(
    scene: Scene,
) -> None:
    scene.rot(1)
    scene.run_pass()
    scene.store.damage.lose(scene.infos[0].path, scene.place(1)[0], "")
    scene.rot(2)
    scene.now_s += PASS_S_MIN
    scene.run_pass()
    assert [(one.start, one.is_lost) for one in scene.found()] == [
        (scene.place(1)[0], True),
        (scene.place(2)[0], False),
    ]
    assert scene.store.damage.found_total[DamageKind.LOG] == 2


@pytest.mark.parametrize(
    ("field", "at", "bit"),
    [
        ("position", 0, 2),
        ("position", 3, 7),
        ("length", 4, 0),
        ("length", 7, 7),
        ("term", 8, 0),
        ("stored_at_ms", 16, 0),
    ],
)
def test_a_record_of_the_idx_that_rots_is_found(
    scene: Scene, field: str, at: int, bit: int
) -> None:
    place = scene.place(3)
    scene.rot_record(3, at, bit)
    assert scene.run_pass()[-1][1] == scene.store.log.end_offset
    (damage,) = scene.found()
    assert (damage.start, damage.end) == place, field
    assert "in the .idx" in damage.reason
    twin = scene.store.log.twin_at(0)
    assert twin is not None
    with contextlib.closing(twin):
        assert survey(twin).is_idx_damaged, "so that the mender writes it again"


def test_an_idx_that_is_too_short_is_found(scene: Scene) -> None:
    place = scene.place(2)
    path = scene.infos[0].path.replace(".log", ".idx")
    scene.vfs.truncate_file(path, IDX_HEADER_BYTES + 2 * IDX_RECORD_BYTES)
    scene.run_pass()
    assert scene.found()[0].start == place[0]


def test_where_entry_and_record_are_gone_the_rest_of_the_segment_is_damaged(scene: Scene) -> None:
    scene.rot(3, 1)
    start, _ = scene.place(3)
    scene.rot(3)
    scene.rot_record(3, 0)
    assert scene.run_pass()[-1][1] == scene.store.log.end_offset
    first, second = scene.found()
    assert (first.start, first.end) == (start, scene.infos[0].size_bytes)
    assert second.start == scene.place(3, 1)[0], "the next segment is looked at as ever"


def test_a_read_error_of_the_disk_is_damage_of_its_entry(scene: Scene) -> None:
    scene.step()
    number = scene.scrubber._at[1]
    # The read of both; header and whole of the first are read, and the header of the second not.
    scene.vfs.fail("pread", ".log", errno.EIO)
    scene.vfs.fail("pread", ".log", errno.EIO, after=2)
    scene.now_s += 2 * PAUSE_S_MAX
    scene.step()
    (damage,) = scene.found()
    assert (damage.start, damage.end) == scene.place(number + 1)


def test_a_segment_that_ends_too_early_is_found(scene: Scene) -> None:
    scene.vfs.truncate_file(scene.infos[0].path, scene.infos[0].size_bytes - 1)
    scene.run_pass()
    (damage,) = scene.found()
    assert damage.end == scene.infos[0].size_bytes


def test_a_file_that_was_removed_by_hand_is_found(scene: Scene) -> None:
    scene.vfs.remove(scene.infos[1].path)
    scene.run_pass()
    (damage,) = scene.found()
    assert "cannot be opened" in damage.reason
    assert damage.start == scene.infos[1].base_log_offset


# -- meanwhile


def test_a_segment_that_retention_drops_meanwhile_is_no_damage(scene: Scene) -> None:
    scene.step()
    scene.now_s += 2 * PAUSE_S_MAX
    step = scene.scrubber.begin()
    assert step is not None
    scene.store.drop_front(1)
    scene.scrubber.finish(step, step.check())
    assert scene.found() == []
    ranges = scene.run_pass()
    assert ranges[0][0] == scene.infos[1].base_log_offset
    assert ranges[-1][1] == scene.store.log.end_offset


def test_a_step_closes_its_files(scene: Scene) -> None:
    step = scene.scrubber.begin()
    assert step is not None
    step.check()
    assert step.twin._log_file is None
    assert step.twin._idx_file is None


def test_a_segment_mended_during_a_step_is_scrubbed_again(scene: Scene) -> None:
    whole = scene.vfs.read_all(scene.infos[0].path)
    scene.rot(1)
    step = scene.scrubber.begin()
    assert step is not None
    checked = step.check()
    assert checked.findings
    start, end = scene.place(1)
    twin = scene.store.log.twin_at(0)
    assert twin is not None
    with contextlib.closing(twin):
        path = write_mended(scene.vfs, twin, {start: whole[start:end]}, has_lost=False)
    assert scene.store.log.replace_files(0, path, None)
    scene.scrubber.finish(step, checked)
    assert scene.run_pass()[0][0] == 0
    assert scene.found() == []


def test_a_lack_of_descriptors_puts_the_step_off(scene: Scene) -> None:
    scene.vfs.fail("open", ".log", errno.EMFILE)
    assert scene.step() == (0, 0)
    assert scene.step() is None
    scene.now_s += PAUSE_S_MAX
    assert scene.run_pass()[0][0] == 0
    assert scene.found() == []


def test_the_page_cache_is_left_to_readers(scene: Scene) -> None:
    scene.run_pass()
    assert scene.vfs.let_go_of == []
    scene.vfs.is_cold = True
    scene.now_s += PASS_S_MIN
    scene.run_pass()
    assert sum(length for *_, length in scene.vfs.let_go_of) == scene.store.log.end_offset


def test_bytes_read_from_the_disk_do_not_count_as_own_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, is_fresh=True)
    verified = scene.store.log.verified
    assert verified.is_appended(scene.store.log.end_offset)
    scene.vfs.is_cold = True
    scene.run_pass()
    assert not verified.is_appended(scene.store.log.end_offset)


def test_an_entry_larger_than_a_step_is_one_step(scene: Scene) -> None:
    ref = append(scene.store, batch(messages_of(30, size=100)))
    scene.store.log.sync()
    apply_through(scene.store, ref.raft_index)
    assert ref.length + HEADER_BYTES > STEP_BYTES
    assert (ref.log_offset, ref.end_log_offset) in scene.run_pass()
