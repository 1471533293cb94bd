"""Reads of what was written long ago: from the disk, and of no hurry.

They run on a thread, so that the loop goes on with appends and with readers near the end; one at a
time, however many readers there are; and while the log grows they rest in between, so that whoever
writes keeps most of the disk and of the processors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mq.store.logreader import LogApart, LogReader
from mq.store.reading import Found, ReadResult

# Of one read. What follows a read happens on the loop, and in one piece.
COLD_BYTES_MAX = 1 << 20
# For all cold readers of a node together, while somebody writes.
_BYTES_PER_S = 64 << 20


class ColdReads:
    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._turn = asyncio.Lock()
        self._log_end = log.end_offset
        self._rests_until_s = 0.0
        self.reads_total = 0

    async def read(self, find: Callable[[], ReadResult | Found]) -> ReadResult:
        """`find` says what there is to read when its turn has come."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            if (rest_s := self._rests_until_s - loop.time()) > 0:
                await asyncio.sleep(rest_s)
            found = find()
            if not isinstance(found, Found):
                return found
            began_s, apart = loop.time(), self._log.apart(*found.log_range)
            # Whoever asked may go away meanwhile: the files are closed all the same.
            result = await asyncio.shield(loop.run_in_executor(None, _read, found, apart))
            self.reads_total += 1
            is_growing = self._log.end_offset != self._log_end
            self._log_end = self._log.end_offset
            size_bytes = sum(len(run.frames) for run in result.runs)
            self._rests_until_s = began_s + (size_bytes / _BYTES_PER_S if is_growing else 0.0)
            return result


def _read(found: Found, apart: LogApart) -> ReadResult:
    try:
        return found.read(apart.read_ranges)
    finally:
        apart.close()
