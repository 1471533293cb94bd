"""Reads of what was written long ago, which nobody is in a hurry for.

They take turns, one at a time, however many readers there are. What is not in memory is read on a
thread, so that the loop goes on with appends and with readers near the end. On a node that follows
they rest in between while much is written: whoever writes waits for this node, too, and keeps most
of its disk and processors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mq.store.logreader import LogApart, LogReader
from mq.store.reading import Found, ReadResult

# Of one read: what follows it happens on the loop, and in one piece. Less when many wait, so that
# each has its turn before its client loses patience.
_READ_BYTES_MAX = 1 << 20
_READ_BYTES_MIN = 256 << 10
# For all who are paced together, while the log grows by more than a part of what they read.
_BYTES_PER_S = 32 << 20
_GROWTH_PART = 8


class ColdReads:
    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._log_end = log.end_offset
        self._rests_until_s = 0.0
        # Of them, those on a thread.
        self.disk_reads_total = 0

    async def read(
        self, find: Callable[[int], ReadResult | Found], *, is_paced: bool
    ) -> ReadResult:
        """`find` says what there is to read, of at most so many bytes, when its turn has come."""
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._read_in_turn(find, is_paced=is_paced)
        finally:
            self._turn.release()

    async def _read_in_turn(
        self, find: Callable[[int], ReadResult | Found], *, is_paced: bool
    ) -> ReadResult:
        loop = asyncio.get_running_loop()
        if is_paced and (rest_s := self._rests_until_s - loop.time()) > 0:
            await asyncio.sleep(rest_s)
        began_s = loop.time()
        bytes_max = max(_READ_BYTES_MIN, _READ_BYTES_MAX // (1 + self._waiting))
        result = await self._read(find(bytes_max))
        size_bytes = sum(len(run.frames) for run in result.runs)
        grown_bytes, self._log_end = self._log.end_offset - self._log_end, self._log.end_offset
        is_busy = grown_bytes * _GROWTH_PART > size_bytes
        self._rests_until_s = began_s + (size_bytes / _BYTES_PER_S if is_busy else 0.0)
        return result

    async def _read(self, found: ReadResult | Found) -> ReadResult:
        if not isinstance(found, Found):
            return found
        if found.is_in_memory(self._log):
            return found.read(self._log.read_ranges)
        self.disk_reads_total += 1
        apart = self._log.apart(*found.log_range)
        # Whoever asked may go away meanwhile: the files are closed all the same.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(None, _read_apart, found, apart))


def _read_apart(found: Found, apart: LogApart) -> ReadResult:
    try:
        return found.read(apart.read_ranges)
    finally:
        apart.close()
