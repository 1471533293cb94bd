"""Queues against plain lists, and what they do with their files."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import QueueDamaged
from mq.store.consumequeue import (
    UNIT,
    UNIT_BYTES,
    ConsumeQueues,
    QueueExtent,
    SavedQueue,
    make_units,
    matching,
)
from mq.store.filepool import FilePool
from mq.store.rowblocks import CRC_BYTES
from tests.support.faulty_vfs import FaultyVfs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mq.store.consumequeue import ConsumeQueue, QueueWrites, Units

DIRECTORY = "/data/consumequeue"
PER_FILE = 16
Row = tuple[int, int, int]


def disk() -> FaultyVfs:
    vfs = FaultyVfs()
    vfs.make_dirs("/data")
    return vfs


def units_of(rows: Iterable[Row]) -> Units:
    return np.array(list(rows), UNIT)


def rows(start: int, count: int) -> list[Row]:
    """Frames of 10 bytes, 100 bytes apart, with three tags."""
    return [(at * 100, 10, at % 3) for at in range(start, start + count)]


def write(vfs: FaultyVfs, plan: QueueWrites) -> None:
    pool = FilePool(vfs, 8)
    for pending in plan.writes:
        pool.write(pending)
    pool.close()


def stored(vfs: FaultyVfs, count: int, start: int = 0) -> tuple[ConsumeQueues, ConsumeQueue]:
    """A queue of so many messages, all of them in files."""
    queues = ConsumeQueues(vfs, DIRECTORY, PER_FILE)
    queues.append("t", 1, units_of(rows(0, count)))
    plan = queues.pending_writes()
    write(vfs, plan)
    queues.set_written(plan)
    queues.advance_start(QueueExtent("t", 1, start, start))
    queue = queues.get("t", 1)
    assert queue is not None
    return queues, queue


def path(first: int) -> str:
    return f"{DIRECTORY}/t/1/{first:020d}"


def test_a_unit_is_twenty_bytes_of_log_offset_size_and_tag() -> None:
    made = make_units(
        np.array([0x0102030405060708]), np.array([0x0A0B0C0D], "u4"), np.array([7], "u8")
    )
    assert made.tobytes().hex() == "08070605040302010d0c0b0a0700000000000000"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 40)),
        st.tuples(st.just("write"), st.just(0), st.sampled_from([1, 200, 2000, 1 << 30])),
        st.tuples(st.just("split"), st.integers(0, 2), st.integers(1, 30)),
        st.tuples(st.just("advance"), st.integers(0, 2), st.integers(0, 30)),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_queues_are_lists(steps: list[tuple[str, int, int]]) -> None:
    vfs = disk()
    queues = ConsumeQueues(vfs, DIRECTORY, PER_FILE)
    lists: dict[int, list[Row]] = {}
    starts = {0: 0, 1: 0, 2: 0}

    def append(queue_id: int, count: int) -> None:
        messages = lists.setdefault(queue_id, [])
        news = rows(len(messages), count)
        assert queues.append("t", queue_id, units_of(news)) == len(messages)
        messages += news

    for step, queue_id, amount in steps:
        if step == "append":
            append(queue_id, amount)
        elif step == "write":
            plan = queues.pending_writes(amount)
            write(vfs, plan)
            queues.set_written(plan)
        elif step == "split":
            plan = queues.pending_writes()
            append(queue_id, amount)
            write(vfs, plan)
            queues.set_written(plan)
        elif queue_id in lists:
            start = min(starts[queue_id] + amount, len(lists[queue_id]))
            moved = queues.advance_start(QueueExtent("t", queue_id, start, start))
            assert (moved is None) == (start == starts[queue_id])
            starts[queue_id] = start
            for surplus in moved or []:
                vfs.remove(surplus)
        assert len(queues) == len(lists)
        in_memory = 0
        for number, messages in lists.items():
            queue = queues.get("t", number)
            assert queue is not None
            check(queue, messages, starts[number])
            in_memory += queue.end - queue.written
        assert queues.pending_bytes == in_memory * UNIT_BYTES


def check(queue: ConsumeQueue, messages: list[Row], start: int) -> None:
    end = len(messages)
    assert (queue.start, queue.end) == (start, end)
    assert queue.read(start, end).tolist() == messages[start:]
    middle = (start + end) // 2
    assert queue.read(middle, end).tolist() == messages[middle:]
    assert queue.backlog(middle) == end - middle
    assert queue.backlog(0) == end - start
    assert queue.backlog(end + 3) == 0
    tagged = [row for row in messages[start:] if row[2] in (1, 2)]
    units = queue.read(start, end)
    assert units[matching(units, (1, 2))].tolist() == tagged
    for log_offset in (0, start * 100, middle * 100, middle * 100 + 1, end * 100):
        later = [at for at in range(start, end) if messages[at][0] >= log_offset]
        assert queue.first_at(log_offset) == (later[0] if later else end)


def test_reading_out_of_a_queue_is_an_error_of_the_caller() -> None:
    _, queue = stored(disk(), 40, start=20)
    for start, end in [(19, 30), (30, 41), (35, 30)]:
        with pytest.raises(IndexError, match=r"\[20, 40\)"):
            queue.read(start, end)


def test_no_tags_match_nothing() -> None:
    assert matching(units_of(rows(0, 5)), []).tolist() == [False] * 5


def test_the_oldest_pending_units_are_written_first_up_to_the_limit() -> None:
    queues = ConsumeQueues(disk(), DIRECTORY, PER_FILE)
    for queue_id in (3, 1, 2):
        queues.append("t", queue_id, units_of(rows(0, 10)))
    plan = queues.pending_writes(11 * UNIT_BYTES)
    assert [queue.queue_id for queue, *_ in plan.marks] == [3, 1]
    queues.append("t", 3, units_of(rows(10, 1)))
    queues.set_written(plan)
    assert [queue.queue_id for queue, *_ in queues.pending_writes().marks] == [2, 3]


def test_a_file_is_written_from_where_the_last_write_ended() -> None:
    vfs = disk()
    queues, _ = stored(vfs, 20)
    queues.append("t", 1, units_of(rows(20, 30)))
    writes = queues.pending_writes().writes
    assert [(one.path, one.position) for one in writes] == [
        (path(16), 4 * UNIT_BYTES),
        (path(32), 0),
        (path(48), 0),
    ]


def test_the_files_before_the_start_are_named_once() -> None:
    queues, _ = stored(disk(), 50)
    extent = QueueExtent("t", 1, 40, 40)
    assert queues.advance_start(extent) == [path(0), path(16)]
    assert queues.advance_start(extent) is None
    assert queues.advance_start(QueueExtent("t", 1, 48, 48)) == [path(32)]
    assert queues.advance_start(QueueExtent("nobody", 1, 40, 40)) is None


def restored(vfs: FaultyVfs, *saved: SavedQueue) -> ConsumeQueues:
    queues = ConsumeQueues(vfs, DIRECTORY, PER_FILE)
    queues.restore(saved)
    return queues


def crc_of(start: int, end: int) -> int:
    """The checksum of units in one block."""
    return zlib.crc32(units_of(rows(start, end - start)).tobytes())


def test_restored_queues_go_on_where_they_were() -> None:
    vfs = disk()
    stored(vfs, 40)
    queues = restored(vfs, SavedQueue("t", 1, 5, 35, crc_of(32, 35)))
    queue = queues.get("t", 1)
    assert queue is not None
    assert queue.read(5, 35).tolist() == rows(5, 30)
    assert queues.append("t", 1, units_of(rows(35, 1))) == 35
    assert queue.read(30, 36).tolist() == rows(30, 6)
    assert queues.extents() == [QueueExtent("t", 1, 5, 36)]


@pytest.mark.parametrize(
    ("lost", "size", "found"),
    [
        (None, 0, None),
        (0, 0, 0),
        (16, 15 * UNIT_BYTES, 16),
        (16, 16 * UNIT_BYTES + CRC_BYTES - 1, 16),
        (32, 8 * UNIT_BYTES - 1, 32),
        (32, 8 * UNIT_BYTES, None),
    ],
)
def test_a_file_that_is_missing_or_short_is_named(
    lost: int | None, size: int, found: int | None
) -> None:
    vfs = disk()
    stored(vfs, 40)
    if lost is not None:
        vfs.truncate_file(path(lost), size)
    queues = restored(vfs, SavedQueue("u", 2, 7, 7), SavedQueue("t", 1, 3, 40))
    assert queues.missing_file() == (None if found is None else path(found))
    assert restored(vfs, SavedQueue("t", 1, 40, 40)).missing_file() is None


@pytest.mark.parametrize("size", [0, 3, UNIT_BYTES, 5 * UNIT_BYTES - 1])
def test_a_file_that_gets_short_while_it_is_used_is_damage(size: int) -> None:
    vfs = disk()
    _, queue = stored(vfs, 20)
    vfs.truncate_file(path(0), size)
    with pytest.raises(QueueDamaged, match=path(0)):
        queue.read(0, 20)
    with pytest.raises(QueueDamaged, match=path(0)):
        queue.first_at(400)


def test_a_file_that_vanishes_while_it_is_used_is_damage() -> None:
    vfs = disk()
    queues, queue = stored(vfs, 20)
    vfs.remove(path(16))
    with pytest.raises(QueueDamaged, match=path(16)):
        queue.read(0, 20)
    queues.close()


def test_clearing_forgets_queues_and_deletes_files() -> None:
    vfs = disk()
    queues, _ = stored(vfs, 20)
    queues.append("t", 1, units_of(rows(20, 5)))
    queues.clear()
    assert (len(queues), queues.pending_bytes) == (0, 0)
    assert queues.pending_writes() == ([], [])
    assert not vfs.exists(DIRECTORY)
    assert queues.append("t", 1, units_of(rows(0, 1))) == 0
