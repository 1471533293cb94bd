"""Rows in blocks with checksums: they come back as they were written, or not at all."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.store.filepool import FilePool, PendingWrite
from mq.store.rowblocks import BLOCK_ROWS, BadRows, RowBlocks, RowsDamaged, Tail
from tests.support.faulty_vfs import FaultyVfs

PATH = "/rows"
ROW = np.dtype("<u4")
ROWS_MAX = 600  # two blocks of 256, and one of 88
BLOCKS = RowBlocks(ROW, ROWS_MAX, at=12)
ROWS = np.arange(7, 7 + ROWS_MAX, dtype=ROW)


def written(*stops: int) -> tuple[FaultyVfs, Tail]:
    """A file that was written by these steps."""
    vfs, tail = FaultyVfs(), Tail(0, 0)
    pool = FilePool(vfs, 1)
    for stop in stops:
        position = BLOCKS.position(tail.rows)
        content, tail = BLOCKS.encode(lambda start, end: [ROWS[start:end]], tail, stop)
        pool.write(PendingWrite(PATH, position, content))
    pool.close()
    return vfs, tail


def read(vfs: FaultyVfs, start: int, stop: int, tail: Tail) -> list[int]:
    file = vfs.open(PATH, read_only=True)
    try:
        return [int(row) for row in BLOCKS.read(file, start, stop, tail)]
    finally:
        file.close()


def test_a_complete_block_is_followed_by_its_crc32() -> None:
    vfs, tail = written(ROWS_MAX)
    data = vfs.read_all(PATH)[12:]
    assert tail == Tail(ROWS_MAX, 0)
    assert BLOCKS.end_position(ROWS_MAX) == len(data) + 12
    position = 0
    for start in range(0, ROWS_MAX, BLOCK_ROWS):
        rows = ROWS[start : start + BLOCK_ROWS].tobytes()
        end = position + len(rows)
        assert data[position:end] == rows
        assert data[end : end + 4] == zlib.crc32(rows).to_bytes(4, "little")
        position = end + 4
    assert position == len(data)


@given(
    steps=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    ends=st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1)),
)
def test_rows_come_back_however_they_were_written(
    steps: list[int], ends: tuple[float, float]
) -> None:
    stops = sorted({min(int(stop), ROWS_MAX) for stop in np.cumsum(steps)})
    vfs, tail = written(*stops)
    assert vfs.read_all(PATH)[12:] == written(stops[-1])[0].read_all(PATH)[12:]
    assert tail == written(stops[-1])[1]
    start = int(ends[0] * tail.rows)
    stop = start + 1 + int(ends[1] * (tail.rows - start - 1))
    assert read(vfs, start, stop, tail) == ROWS[start:stop].tolist()


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 512, 599, ROWS_MAX])
def test_a_flipped_bit_anywhere_is_noticed_by_readers_of_its_block_alone(rows: int) -> None:
    vfs, tail = written(rows)
    blocks = [BadRows(at, min(at + BLOCK_ROWS, rows)) for at in range(0, rows, BLOCK_ROWS)]
    for position in range(12, BLOCKS.end_position(rows), 7):
        vfs.flip_bit(PATH, position, position % 8)
        file = vfs.open(PATH)
        [bad] = BLOCKS.bad(file, tail)
        file.close()
        for block in blocks:
            if block == bad:
                with pytest.raises(RowsDamaged):
                    read(vfs, block.first, block.first + 1, tail)
            else:
                wanted = ROWS[block.first : block.end].tolist()
                assert read(vfs, block.first, block.end, tail) == wanted
        vfs.flip_bit(PATH, position, position % 8)


@pytest.mark.parametrize("size", [0, 12, 13, 12 + 4 * 256, 12 + 4 * 256 + 3])
def test_a_short_file_is_damage(size: int) -> None:
    vfs, tail = written(300)
    vfs.truncate_file(PATH, size)
    for row in (0, 299):
        with pytest.raises(RowsDamaged):
            read(vfs, row, row + 1, tail)


@pytest.mark.parametrize("first", [1, 100, 256, 300, ROWS_MAX])
def test_a_table_may_begin_with_rows_that_were_never_written(first: int) -> None:
    vfs, pool = FaultyVfs(), FilePool(FaultyVfs(), 1)
    pool = FilePool(vfs, 1)
    tail = BLOCKS.empty_tail(first)
    content, tail = BLOCKS.encode(lambda start, end: [ROWS[start:end]], tail, ROWS_MAX)
    if content:
        pool.write(PendingWrite(PATH, BLOCKS.position(first), content))
        assert read(vfs, first, ROWS_MAX, tail) == ROWS[first:].tolist()
    pool.close()
