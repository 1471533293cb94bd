"""Rows of one width in a file, in blocks that are followed by their checksum.

      +----- ... ----+-------+----- ... ----+-------+----- ... ---------
      | 256 rows     | crc32 | 256 rows     | crc32 | up to 256 rows
      +----- ... ----+-------+----- ... ----+-------+----- ... ---------

A complete block carries its crc32. The last one gets its own when it is complete, or when the file
takes no more rows; until then the checksum of the rows that count is kept by the owner of the file,
in memory and in its checkpoint ("tail crc"). So one write a file is enough, and whatever is read
from a file is checked against what was written, every time: a crc of 256 rows costs about a
microsecond. Knows neither queues nor keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32
from typing_extensions import Buffer

from mq.store.rowbuffer import Rows, bytes_of
from mq.store.vfs import File

BLOCK_ROWS = 256
CRC_BYTES = 4
# The crc32 of anything that is followed by its own crc32.
_CRC_OF_INTACT = crc32(bytes(CRC_BYTES))


class BadRows(NamedTuple):
    """Rows [first, end) of a file are not what was written, or not there."""

    first: int
    end: int


class RowsDamaged(Exception):
    """The first block of a read that is not what was written."""

    def __init__(self, bad: BadRows) -> None:
        super().__init__(bad)
        self.bad = bad


class Tail(NamedTuple):
    """The number of rows written to a file, and the checksum of its last, incomplete block."""

    rows: int
    crc: int


class RowBlocks(NamedTuple):
    """The layout of rows in a file."""

    dtype: np.dtype[Any]
    rows_max: int  # the last block may be shorter
    at: int = 0  # position of the first block

    @property
    def block_bytes(self) -> int:
        return BLOCK_ROWS * self.dtype.itemsize + CRC_BYTES

    def position(self, row: int) -> int:
        return self.at + row * self.dtype.itemsize + row // BLOCK_ROWS * CRC_BYTES

    def end_position(self, rows: int) -> int:
        """Behind the first `rows` rows, and the checksum of the last one's block if there is one
        on disk.
        """
        is_short_end = rows == self.rows_max and rows % BLOCK_ROWS
        return self.position(rows) + (CRC_BYTES if is_short_end else 0)

    def block_of(self, row: int) -> BadRows:
        first = row - row % BLOCK_ROWS
        return BadRows(first, min(first + BLOCK_ROWS, self.rows_max))

    # -- writing ----------------------------------------------------------------------------------

    def encode(
        self, rows_of: Callable[[int, int], Sequence[npt.NDArray[Any]]], tail: Tail, stop: int
    ) -> tuple[list[Buffer], Tail]:
        """The bytes at `position(tail.rows)` once the rows up to `stop` are written, and the tail
        after them. `rows_of` gives the rows [start, end) in parts, which are not copied.
        """
        content: list[Buffer] = []
        start, crc = tail
        while start < stop:
            block_end = self.block_of(start).end
            end = min(stop, block_end)
            for rows in rows_of(start, end):
                data = bytes_of(rows)
                crc = crc32(data, crc)
                content.append(data)
            if end == block_end:
                content.append(crc.to_bytes(CRC_BYTES, "little"))
                crc = 0
            start = end
        return content, Tail(stop, crc)

    def empty_tail(self, rows: int) -> Tail:
        """The tail of a file whose first `rows` rows were never written: they read as zeros."""
        count = rows % BLOCK_ROWS if rows < self.rows_max else 0
        return Tail(rows, _crc_of_zeros(count * self.dtype.itemsize))

    # -- reading ----------------------------------------------------------------------------------

    def read(self, file: File, start: int, stop: int, tail: Tail) -> Rows:
        """The rows [start, stop), which are not behind the tail. RowsDamaged."""
        first = start - start % BLOCK_ROWS
        end = min(stop + -stop % BLOCK_ROWS, self.rows_max, tail.rows)
        position = self.position(first)
        data = file.pread(self.end_position(end) - position, position)
        if not self._is_intact(data, first, end, tail):
            raise RowsDamaged(next(self._bad(data, first, end, tail)))
        width = self.dtype.itemsize
        if end - first <= BLOCK_ROWS:
            return np.frombuffer(data, self.dtype, stop - start, (start - first) * width)
        return np.frombuffer(self._without_crcs(data), self.dtype)[start - first : stop - first]

    def bad(self, file: File, tail: Tail) -> list[BadRows]:
        """All blocks of a file that are not what was written, or cannot be read."""
        found = []
        for first in range(0, tail.rows, BLOCK_ROWS):
            end = min(self.block_of(first).end, tail.rows)
            try:
                self.read(file, first, end, tail)
            except (RowsDamaged, OSError):
                found.append(BadRows(first, end))
        return found

    def _is_intact(self, data: bytes, first: int, end: int, tail: Tail) -> bool:
        """Whether `_bad` finds nothing, in as few steps as a check of every read can afford."""
        view, step = memoryview(data), self.block_bytes
        complete, rest_rows = divmod(end - first, BLOCK_ROWS)
        rest_at = complete * step
        for at in range(0, rest_at, step):
            if crc32(view[at : at + step]) != _CRC_OF_INTACT:
                return False
        if not rest_rows:
            return True
        if end == self.rows_max:
            return crc32(view[rest_at:]) == _CRC_OF_INTACT
        rest = view[rest_at : rest_at + rest_rows * self.dtype.itemsize]
        return len(rest) == rest_rows * self.dtype.itemsize and crc32(rest) == tail.crc

    def _bad(self, data: bytes, first: int, end: int, tail: Tail) -> Iterator[BadRows]:
        """`data` are the blocks from row `first` on, which opens one, up to row `end`."""
        view, width = memoryview(data), self.dtype.itemsize
        position = 0
        while first < end:
            block_end = self.block_of(first).end
            stop = min(block_end, end)
            rows_end = position + (stop - first) * width
            if stop == block_end:
                wanted = int.from_bytes(view[rows_end : rows_end + CRC_BYTES], "little")
                is_whole = len(view) >= rows_end + CRC_BYTES
            else:
                wanted, is_whole = tail.crc, len(view) >= rows_end
            if not is_whole or crc32(view[position:rows_end]) != wanted:
                yield BadRows(first, stop)
            first, position = stop, rows_end + CRC_BYTES

    def _without_crcs(self, data: bytes) -> bytes:
        step = self.block_bytes
        view = memoryview(data)
        parts = [view[at : at + step - CRC_BYTES] for at in range(0, len(data), step)]
        width = self.dtype.itemsize
        # A short last block may have its checksum behind it: less than a row.
        parts[-1] = parts[-1][: len(parts[-1]) // width * width]
        return b"".join(parts)


@functools.lru_cache(maxsize=2 * BLOCK_ROWS)
def _crc_of_zeros(count: int) -> int:
    return crc32(bytes(count))
