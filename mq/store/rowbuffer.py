"""The newest rows of a file of fixed-width rows, in memory, gathered in chunks: a reader at the
tail does not meet an array for each message.

What was appended never changes, so that another thread may write slices of it to a file meanwhile.
"""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]

_CHUNK_ROWS_MAX = 4096


class RowBuffer:
    """Rows [start, end), by their number in the file or queue."""

    __slots__ = ("_chunks", "_dtype", "_firsts", "_room", "_used", "end", "start")

    def __init__(self, dtype: np.dtype[Any], start: int) -> None:
        self.start = self.end = start
        self._dtype = dtype
        self._firsts: list[int] = []  # number of the first row of each chunk
        self._chunks: list[Rows] = []  # the last one may have room behind `end`
        self._room, self._used = memoryview(b""), 0  # the last chunk, in bytes

    def append(self, rows: Rows) -> None:
        # By bytes: assigning structured rows costs ten times as much.
        data = rows.tobytes()
        if self._used + len(data) > len(self._room):
            self._grow(len(rows))
        end = self._used + len(data)
        self._room[self._used : end] = data
        self._used = end
        self.end += len(rows)

    def _grow(self, count: int) -> None:
        """Chunks grow with what came before: an idle queue costs little, a busy one has few."""
        used = self._used // self._dtype.itemsize
        if self._chunks:
            self._chunks[-1] = self._chunks[-1][:used]
        chunk = np.empty(max(count, min(2 * used, _CHUNK_ROWS_MAX), 4), self._dtype)
        self._firsts.append(self.end)
        self._chunks.append(chunk)
        self._room, self._used = bytes_of(chunk), 0

    def read(self, start: int, end: int) -> list[Rows]:
        """The rows [start, end) as far as they are here, in slices that are not copied."""
        start, end = max(start, self.start), min(end, self.end)
        if start >= end:
            return []
        first = bisect.bisect_right(self._firsts, start) - 1
        last = bisect.bisect_left(self._firsts, end)
        return [
            chunk[max(start - at, 0) : end - at]
            for at, chunk in zip(self._firsts[first:last], self._chunks[first:last], strict=True)
        ]

    def drop_before(self, start: int) -> None:
        """Lets go of what stands before `start`."""
        self.start = max(self.start, min(start, self.end))
        if self.start == self.end:
            self._firsts.clear()
            self._chunks.clear()
            self._room, self._used = memoryview(b""), 0
            return
        whole = bisect.bisect_right(self._firsts, self.start) - 1
        del self._firsts[:whole]
        del self._chunks[:whole]


def bytes_of(rows: npt.NDArray[Any]) -> memoryview:
    """The rows as they stand in a file."""
    return rows.view(np.uint8).data
