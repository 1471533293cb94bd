"""The live tail of a topic: what comes, as it comes, at a pace that hurts nobody.

Twice a second the ends of the queues are asked for, by one call a set, and only queues with news
are read. What is more than a reader can follow is skipped and counted. Every event carries the
vector of queue offsets behind it: a reader that comes back with the last one misses nothing and
gets nothing twice, whichever broker leads by then.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from mq.client.messages import FilterLike, QueueRef, ReceivedMessage
from mq.console.positions import Positions
from mq.console.scanning import Predicate
from mq.console.shared_reads import SharedReads
from mq.errors import MqError

# In one tick: rows that are shown, and messages that are looked at for them.
ROWS_MAX = 40
LOOKED_AT_MAX = 4_000
_BYTES_MAX = 1 << 20
_ALIVE_S = 10.0
_AT_ONCE = 8


@dataclass(slots=True)
class TailEvent:
    """`skipped` were not looked at, or not shown, since the last event. `trouble`: the brokers do
    not answer, and are asked again.
    """

    positions: Positions
    messages: list[ReceivedMessage] = field(default_factory=list)
    skipped: int = 0
    trouble: str = ""


class Tail:
    def __init__(
        self,
        reads: SharedReads,
        topic: str,
        *,
        queue: QueueRef | None = None,
        wanted: FilterLike = None,
        predicate: Predicate | None = None,
        after: Positions | None = None,
    ) -> None:
        self._reads = reads
        self._topic = topic
        self._queue = queue
        self._wanted = wanted
        self._predicate = predicate
        self._positions: Positions = dict(after or {})
        self._is_new = not after

    async def events(self) -> AsyncIterator[TailEvent]:
        """Without an end; the first one says where it begins. Raises what asking again cannot
        mend.
        """
        told_s, was_troubled = -math.inf, False
        while True:
            began_s = time.monotonic()
            try:
                event = await self._next()
            except MqError as error:
                if not error.retryable:
                    raise
                event = TailEvent(dict(self._positions), trouble=str(error))
            is_worth_it = bool(event.messages or event.skipped)
            if is_worth_it or bool(event.trouble) != was_troubled or began_s - told_s > _ALIVE_S:
                yield event
                told_s, was_troubled = began_s, bool(event.trouble)
            await self._reads.next_tick()

    async def _next(self) -> TailEvent:
        ends = await self._reads.ends(self._topic)
        if self._queue is not None:
            ends = {ref: end for ref, end in ends.items() if ref == self._queue}
        if self._is_new:
            self._positions, self._is_new = dict(ends), False
        # A new leader may not know yet what its predecessor has shown: positions never go back.
        news = {
            ref: (self._positions.get(ref, 0), end)
            for ref, end in ends.items()
            if end > self._positions.get(ref, 0)
        }
        moved = dict(self._positions)
        skipped = _skip(news)
        found: list[ReceivedMessage] = []
        turn = asyncio.Semaphore(_AT_ONCE)

        async def read(ref: QueueRef, at: int, end: int) -> None:
            async with turn:
                messages, moved[ref] = await self._read(ref, at, end)
            found.extend(messages)

        await asyncio.gather(*(read(ref, at, end) for ref, (at, end) in news.items()))
        # Not before: if one queue could not be read, all are read again.
        self._positions = moved
        found.sort(key=lambda one: one.stored_at_ms)
        if self._predicate is not None:
            found = [one for one in found if self._predicate(one)]
        if len(found) > ROWS_MAX:
            skipped += len(found) - ROWS_MAX
            found = found[-ROWS_MAX:]
        return TailEvent(dict(self._positions), found, skipped)

    async def _read(self, ref: QueueRef, at: int, end: int) -> tuple[list[ReceivedMessage], int]:
        """The messages, and where they end."""
        found: list[ReceivedMessage] = []
        while at < end:
            result = await self._reads.read(ref, at, end, self._wanted, _BYTES_MAX)
            found += [one for one in result.messages if one.queue_offset < end]
            if result.next_offset <= at:
                break
            at = min(result.next_offset, end)
        return found, at


def _skip(news: dict[QueueRef, tuple[int, int]]) -> int:
    """Leaves out the oldest of what is too much for one tick. Returns how many."""
    if sum(end - at for at, end in news.values()) <= LOOKED_AT_MAX:
        return 0
    share = max(1, LOOKED_AT_MAX // len(news))
    skipped = 0
    for ref, (at, end) in news.items():
        if end - at > share:
            skipped += end - share - at
            news[ref] = end - share, end
    return skipped
