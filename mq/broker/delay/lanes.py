"""The lanes of the schedule as they stand in the store: which units wait, read a part at a time.

Units of a lane stand in the order of the log. Reading changes nothing, and goes on while others
come in; a caller that needs that no unit leaves meanwhile holds the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

import numpy as np

from mq.broker.delay.due import DueUnit, units_of
from mq.broker.state.schedule import Lane
from mq.broker.state.state import State
from mq.errors import MessagesDamaged
from mq.names import SCHEDULE_TOPIC
from mq.store.consumequeue import SCAN_UNITS, ConsumeQueue, Units
from mq.store.holding import HeldBatch, lane_of, read_held
from mq.store.store import Store

# Batches that are read in one go when one of them is looked for.
_SEARCH_BATCHES = 256


class Lanes:
    def __init__(self, state: State, store: Store) -> None:
        self._schedule = state.schedule
        self._store = store
        # Before these log offsets nothing waits in the lane, and never will again: what comes
        # stands behind.
        self._clear_before: dict[int, int] = {}

    async def waiting(self, number: int) -> AsyncIterator[Units]:
        """Units that wait, of those that are there now; others run between the parts."""
        queue = self._queue(number)
        at, end = (queue.start, queue.end) if queue is not None else (0, 0)
        while queue is not None and at < end:
            units, at = _part(queue, at, end)
            lane = self._schedule.lanes.get(number)
            if lane is None:
                return
            yield units[lane.waiting(units)]
            await asyncio.sleep(0)

    def is_waiting(self, number: int, unit: DueUnit) -> bool:
        """Whether a unit that waited some time ago does so still, at the same place."""
        lane, queue = self._schedule.lanes.get(number), self._queue(number)
        if lane is None or queue is None:
            return False
        at = queue.first_at(unit.log_offset)
        units = queue.read(at, min(at + 1, queue.end))
        return units_of(units) == [unit] and bool(lane.waiting(units)[0])

    def applied_end(self) -> int:
        """Log offset behind the last applied entry: no unit before it will be added to a lane."""
        log, applied_index = self._store.log, self._store.applied_index
        if applied_index < log.first_index:
            return log.start_offset
        return log.place_of(applied_index)[1]

    def waits_before(self, number: int, log_offset: int) -> bool:
        """Whether any unit of the lane waits that stands before."""
        return next(self.waiting_before(number, log_offset), None) is not None

    def waiting_before(self, number: int, log_offset: int) -> Iterator[DueUnit]:
        """Those that wait and stand before, in the order of the log; `log_offset` is not behind
        what is applied.
        """
        lane, queue = self._schedule.lanes.get(number), self._queue(number)
        if lane is None or queue is None or self._is_clear(number, lane, log_offset):
            return
        at, is_first = queue.start, True
        while at < queue.end:
            units, at = _part(queue, at, queue.end)
            waiting = units[lane.waiting(units)]
            if is_first and len(waiting):
                self._clear_before[number] = int(waiting["log_offset"][0])
                is_first = False
            before = units_of(waiting[waiting["log_offset"] < np.uint64(log_offset)])
            yield from before
            if len(before) < len(waiting):
                return
        if is_first:
            self._clear_before[number] = log_offset

    def _is_clear(self, number: int, lane: Lane, log_offset: int) -> bool:
        return log_offset <= max(lane.below_log_offset, self._clear_before.get(number, 0))

    async def find(self, topic: str, message_log_offset: int, deliver_at_ms: int) -> DueUnit | None:
        """The unit that waits and has this message, by the log offset it had at first."""
        number = lane_of(deliver_at_ms)
        lane, queue = self._schedule.lanes.get(number), self._queue(number)
        if lane is None or queue is None:
            return None
        at = queue.first_at(message_log_offset) - 1
        if at >= queue.start:
            units = queue.read(at, at + 1)
            (unit,) = units_of(units)
            covers = unit.log_offset < message_log_offset < unit.log_offset + unit.size
            if covers:
                is_it = bool(lane.waiting(units)[0]) and self._has(
                    unit, topic, message_log_offset, deliver_at_ms
                )
                if is_it or unit.log_offset >= lane.below_log_offset:
                    return unit if is_it else None
        if message_log_offset >= lane.below_log_offset:
            return None
        return await self._find_carried(lane, topic, message_log_offset, deliver_at_ms)

    async def _find_carried(
        self, lane: Lane, topic: str, message_log_offset: int, deliver_at_ms: int
    ) -> DueUnit | None:
        """It does not stand where it stood: every batch of its time is looked at."""
        async for units in self.waiting(lane_of(deliver_at_ms)):
            # The mark of one that came too late for its time is the place of the lane.
            marks = [deliver_at_ms, max(lane.delivered.due_ms, deliver_at_ms)]
            found = units_of(units[np.isin(units["tag_hash"], np.array(marks, np.uint64))])
            for start in range(0, len(found), _SEARCH_BATCHES):
                part = found[start : start + _SEARCH_BATCHES]
                for unit, held in zip(part, self.read(part), strict=True):
                    if _has_message(held, topic, message_log_offset, deliver_at_ms):
                        return unit
                await asyncio.sleep(0)
        return None

    def _has(self, unit: DueUnit, topic: str, message_log_offset: int, deliver_at_ms: int) -> bool:
        (held,) = self.read([unit])
        return _has_message(held, topic, message_log_offset, deliver_at_ms)

    def read(self, units: list[DueUnit]) -> list[HeldBatch]:
        return read_held(self._store.log, [(one.log_offset, one.size) for one in units])

    def read_present(self, units: list[DueUnit]) -> dict[DueUnit, HeldBatch]:
        """Without those that are lost: damaged, and no node has them. MessagesDamaged: one is being
        mended.
        """
        try:
            return dict(zip(units, self.read(units), strict=True))
        except MessagesDamaged as error:
            if len(units) > 1:
                return {unit: held for one in units for unit, held in self._present(one)}
            if not error.is_lost:
                raise
            return {}

    def _present(self, unit: DueUnit) -> Iterable[tuple[DueUnit, HeldBatch]]:
        return self.read_present([unit]).items()

    def _queue(self, number: int) -> ConsumeQueue | None:
        return self._store.queues.get(SCHEDULE_TOPIC, number)


def _part(queue: ConsumeQueue, at: int, end: int) -> tuple[Units, int]:
    """Some units, and where the next ones stand. Retention may have taken the first ones away."""
    at = max(at, queue.start)
    stop = max(at, min(at + SCAN_UNITS, end))
    return queue.read(at, stop), stop


def _has_message(held: HeldBatch, topic: str, message_log_offset: int, deliver_at_ms: int) -> bool:
    batch = held.batch
    starts = batch.frame_starts + (held.first_message_at - batch.region_start)
    return (
        batch.topic == topic
        and batch.deliver_at_ms == deliver_at_ms
        and bool((starts == message_log_offset).any())
    )
