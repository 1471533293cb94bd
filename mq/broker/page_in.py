"""Old parts of the log are brought into the page cache before the loop reads them.

Services read single messages and batches on the loop: what waited for days, failed, or is looked
for. Mostly that is in memory. What is not is read by a thread first, one part after the other, so
that the loop waits for no disk; nothing of it is kept but the pages. The loop then reads as if they
had been there, and hears of damage itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from mq.errors import MqError, OffsetOutOfRange
from mq.store.logreader import LogApart, LogReader

# Bytes in between that are read along: fewer questions and fewer reads.
_GAP_BYTES_MAX = 64 << 10
# Of one read.
_PIECE_BYTES = 1 << 20


class PageIn:
    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._turn = asyncio.Lock()
        # Parts that were not in memory.
        self.reads_total = 0

    async def load(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Returns when these log offsets [start, end) are in memory, most likely; at once if they
        are already.
        """
        for start, end in _joined(ranges):
            if not self._is_in_memory(start, end):
                async with self._turn:
                    self.reads_total += 1
                    apart = self._log.apart(start, end)
                    loop = asyncio.get_running_loop()
                    work = loop.run_in_executor(None, _read, apart, start, end)
                    # The caller may be cancelled meanwhile: the files are closed all the same.
                    await asyncio.shield(work)

    def _is_in_memory(self, start: int, end: int) -> bool:
        try:
            return self._log.is_in_memory(start, end)
        except OffsetOutOfRange:
            return True  # the reader finds out


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """In the order of the log, in pieces; neighbours are one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start - found[-1][1] <= _GAP_BYTES_MAX:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    for start, end in found:
        for at in range(start, end, _PIECE_BYTES):
            yield at, min(end, at + _PIECE_BYTES)


def _read(apart: LogApart, start: int, end: int) -> None:
    try:
        # Damage is found again by the reader.
        with contextlib.suppress(MqError):
            apart.read_ranges([(start, end)])
    finally:
        apart.close()
