"""Reads of old messages, which may take their time.

They take turns, one at a time, however many readers there are. What is not in memory is read on a
thread, so that the loop goes on with appends and with readers near the end. On a node that follows
they rest in between while much is written, for longer the longer they took: producers wait for
this node, too, and a slow read means that others need the disk and the processors.
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
# Rest of all paced reads together while this much is written, in multiples of the time of a read.
_RESTS = 4
_BUSY_BYTES_PER_S = 4 << 20
_GROWTH_SEEN_OVER_S = 0.1


class ColdReads:
    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._growth = _Growth()
        self._rests_until_s = 0.0
        # Of them, those on a thread.
        self.disk_reads_total = 0

    async def read(
        self, find: Callable[[int], ReadResult | Found], *, is_paced: bool
    ) -> ReadResult:
        """Waits for its turn, then calls `find` with the number of bytes that may be read."""
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
        read_s = loop.time()
        is_busy = self._growth.bytes_per_s(self._log.end_offset, read_s) > _BUSY_BYTES_PER_S
        self._rests_until_s = read_s + (_RESTS * (read_s - began_s) if is_busy else 0.0)
        return result

    async def _read(self, found: ReadResult | Found) -> ReadResult:
        if not isinstance(found, Found):
            return found
        if (result := found.read_in_memory(self._log)) is not None:
            return result
        self.disk_reads_total += 1
        apart = self._log.apart(*found.log_range)
        # The caller may be cancelled meanwhile: the files are closed all the same.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(None, _read_apart, found, apart))


class _Growth:
    """Growth of the log over the last while: writes come in bursts."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._end_offset = 0
        self._bytes_per_s = 0.0

    def bytes_per_s(self, end_offset: int, now_s: float) -> float:
        if (seconds := now_s - self._since_s) >= _GROWTH_SEEN_OVER_S:
            self._bytes_per_s = (end_offset - self._end_offset) / seconds
            self._since_s, self._end_offset = now_s, end_offset
        return self._bytes_per_s


def _read_apart(found: Found, apart: LogApart) -> ReadResult:
    try:
        return found.read(apart.read_ranges)
    finally:
        apart.close()
