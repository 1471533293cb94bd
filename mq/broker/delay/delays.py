"""Delivery of delayed messages: the service on the leader.

It writes due batches to their topics, and the new positions of their lanes, as one entry; the next
entry is decided when that one is applied. Its memory is only a picture of the lanes (`due`), which
a new leader makes again. Delivery, recall and carrying take turns to change the schedule: a
decision never guesses what an unfinished entry will do.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mq.broker.core import Core, Service
from mq.broker.delay.due import (
    NEVER_MS,
    Agenda,
    Budget,
    DueUnit,
    Gathering,
    Window,
    numbers_of,
)
from mq.broker.delay.lanes import Lanes
from mq.broker.delay.recalls import Recalls
from mq.broker.held import DELIVERY_ROOM_BYTES
from mq.broker.state.machine import NewlyHeld
from mq.broker.state.schedule import Lane
from mq.broker.state.topics import Topic, Topics
from mq.errors import MqError, QueueDamaged, Rebuilding
from mq.logging import get_logger
from mq.store import rebatch
from mq.store.batch import Batch
from mq.store.holding import LANES, HeldBatch, lane_of
from mq.wire.v1.state_pb2 import (
    CarryScheduled,
    Command,
    DeliverScheduled,
    LaneCarried,
    LaneProgress,
)

log = get_logger(__name__)

# Limits of one entry in bytes and batches: other work waits while it is put together.
_ENTRY_BYTES = 2 << 20
_ENTRY_BATCHES = 512
# And in lanes.
_ENTRY_LANES = 64
# Lanes with a filled window in memory.
_FILLED_MAX = 8
# Back-off after a failure; doubled after the next.
_BACKOFF_S = 0.05
_BACKOFF_S_MAX = 5.0
# Later due times are left to the ticks: the clock may be set until then.
_TIMER_MS = 1_000
# Lanes that are read before due batches are delivered.
_LANES_AT_ONCE = 64
# Lanes of the last day are read first.
_PAST_LANES = 144


class _NotNow(Exception):
    """The state has changed since the decision: decide again."""


class Delays(Service):
    def __init__(self, core: Core) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._lanes = Lanes(core.state, core.store)
        self.recalls = Recalls(core, self._lanes, self._turn)
        entry_bytes_max = core.settings.config.store.entry_bytes_max
        self._entry_bytes = min(_ENTRY_BYTES, entry_bytes_max - DELIVERY_ROOM_BYTES)
        # Goes up whenever this node begins or ceases to lead: work of an older epoch ends.
        self._epoch = 0
        self._is_leading = False
        self._agenda = Agenda()
        # Lanes of which nothing is known yet.
        self._unseen: dict[int, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = NEVER_MS
        # Messages, since this process started: delivered, and dropped because their topic was.
        self.delivered_total = self.dropped_total = 0
        # A due batch waits for delayed batches in flight.
        self._waits_for_landing = False
        core.writer.pending_delays.watch(self._on_landed)

    # -- what it hears of -------------------------------------------------------------------------

    def lead(self) -> None:
        self._begin(is_leading=True)
        first = lane_of(self._core.now_ms()) - _PAST_LANES
        self._unseen = dict.fromkeys(
            sorted(self._core.state.schedule.lanes, key=lambda lane: (lane - first) % LANES)
        )
        self._arm()

    def step_down(self, error: MqError) -> None:
        self._begin(is_leading=False)
        self.recalls.step_down(error)

    def _begin(self, *, is_leading: bool) -> None:
        self._epoch += 1
        self._is_leading = is_leading
        self._agenda = Agenda()
        self._unseen = {}
        self._waits_for_landing = False
        # A task of an older epoch ends by itself.
        self._task = None
        self._stop_timer()

    def tick(self) -> None:
        self._arm()

    def on_held(self, held: NewlyHeld) -> None:
        """A batch was held back by an entry that was applied."""
        if not self._is_leading:
            return
        due_ms = held.queue.mark
        unit = DueUnit(due_ms, held.log_offset, len(held.batch.data))
        self._agenda.add(held.queue.queue_id, unit)
        if due_ms < self._timer_due_ms:
            self._arm_for(due_ms)

    def on_command(self, command: Command) -> None:
        if not self._is_leading:
            return
        carried = [one.lane for one in command.carry_scheduled.lanes]
        for number in carried:
            # Its batches stand elsewhere now.
            self._agenda.forget(number)
        for number in (*carried, *(one.lane for one in command.deliver_scheduled.lanes)):
            if number not in self._core.state.schedule.lanes:
                self._agenda.drop(number)

    # -- when -------------------------------------------------------------------------------------

    def _until_ms(self) -> int:
        """Batches that are due by then may be delivered: delayed batches in flight come first."""
        now_ms, landing_ms = self._core.now_ms(), self._core.writer.pending_delays.first_due_ms()
        return now_ms if landing_ms is None else min(now_ms, landing_ms)

    def _arm(self) -> None:
        if self._is_leading:
            self._arm_for(0 if self._unseen else self._agenda.first_ms())

    def _on_landed(self) -> None:
        if self._waits_for_landing:
            self._arm()

    def _arm_for(self, due_ms: int) -> None:
        """Starts delivery, now or when this is due."""
        if self._task is not None:
            return
        if due_ms <= self._until_ms():
            self._start()
            return
        self._stop_timer()
        wait_ms = due_ms - self._core.now_ms()
        self._waits_for_landing = wait_ms <= 0
        if 0 < wait_ms <= _TIMER_MS:
            self._timer_due_ms = due_ms
            self._timer = self._loop.call_later(wait_ms / 1_000, self._arm)

    def _start(self) -> None:
        self._stop_timer()
        self._task = self._loop.create_task(self._run(self._epoch))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_due_ms = NEVER_MS

    async def _run(self, epoch: int) -> None:
        """Until nothing is due."""
        backoff_s = _BACKOFF_S
        while epoch == self._epoch:
            try:
                await self._read_some_lanes()
                async with self._turn:
                    has_more = epoch == self._epoch and await self._deliver_some(epoch)
                backoff_s = _BACKOFF_S
            except _NotNow:
                pass
            except MqError as error:
                log.warning("delayed messages wait for another try", error=str(error))
            except Exception:
                log.exception("delayed messages wait for another try")
            else:
                if not has_more and not self._unseen:
                    break
                continue
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_S_MAX)
        if epoch == self._epoch:
            self._task = None
            self._arm()

    # -- what -------------------------------------------------------------------------------------

    async def _read_some_lanes(self) -> None:
        """Finds the due time of the first batch for some of the lanes that were not read yet."""
        for number in list(itertools.islice(self._unseen, _LANES_AT_ONCE)):
            await self._read_lane(number)

    async def _read_lane(self, number: int) -> None:
        if number not in self._unseen:
            return  # this node has stepped down since
        del self._unseen[number]
        window = self._agenda.window(number)
        try:
            async for units in self._lanes.waiting(number):
                if len(units):
                    window.waits_from(int(units["tag_hash"].min()))
        except BaseException:
            self._unseen[number] = None
            raise
        self._agenda.changed(number)

    async def _fill(self, number: int, window: Window) -> None:
        first_ms = window.first_ms
        gathering = Gathering()
        window.open()
        try:
            async for units in self._lanes.waiting(number):
                gathering.add(units)
        except BaseException:
            window.forget()
            window.waits_from(first_ms)
            raise
        units, are_all = gathering.result()
        window.fill(units, are_all=are_all)

    async def _deliver_some(self, epoch: int) -> bool:
        """Writes due batches, as many as one entry takes. Returns whether there were any."""
        agenda = self._agenda
        taken = await self._take(epoch)
        try:
            if taken:
                await self._deliver(taken)
        except BaseException:
            for number, units in taken.items():
                agenda.forget(number, units[0].due_ms)
            raise
        agenda.forget_surplus(_FILLED_MAX)
        return bool(taken)

    async def _take(self, epoch: int) -> dict[int, list[DueUnit]]:
        """Units that are due, out of their windows, by lane."""
        agenda, until_ms = self._agenda, self._until_ms()
        taken: dict[int, list[DueUnit]] = {}
        budget = Budget(self._entry_bytes, _ENTRY_BATCHES)
        lanes = agenda.take_due(until_ms, _ENTRY_LANES)
        try:
            for number in lanes:
                window = agenda.window(number)
                if not window.has_first:
                    await self._fill(number, window)
                    if epoch != self._epoch:
                        return {}  # the windows are of an older epoch
                units = window.take(until_ms, budget)
                if units:
                    taken[number] = units
                if window.has_first and window.first_ms <= until_ms:
                    break  # the entry is full
        finally:
            for number in lanes:
                agenda.changed(number)
        return taken

    async def _deliver(self, taken: dict[int, list[DueUnit]]) -> None:
        state = self._core.state
        # Most of it was written long ago.
        await self._load(taken.values())
        leaving = list(self._leaving(taken))
        for topic in {one.held.batch.topic for one in leaving if one.held is not None}:
            # Whether the topic stays is not known yet.
            if self._core.catalog.is_leaving(topic):
                raise _NotNow
        out = outgoing(leaving, state.schedule.lanes, state.topics)
        # A former leader must not deliver once more.
        self._core.leadership.check()
        if max(one.due_ms for one in out.lanes) > self._until_ms():
            raise _NotNow
        await self._core.writer.write(
            Command(deliver_scheduled=DeliverScheduled(lanes=out.lanes, sources=out.sources)),
            out.batches,
        )
        self.delivered_total += out.delivered
        self._count_dropped(out.dropped)
        if out.lost:
            log.error("batches that waited are gone from the log", batches=out.lost)

    async def _load(self, taken: Iterable[list[DueUnit]]) -> None:
        units = itertools.chain.from_iterable(taken)
        await self._core.page_in.load((one.log_offset, one.log_offset + one.size) for one in units)

    def _leaving(self, taken: dict[int, list[DueUnit]]) -> Iterator[Leaving]:
        """With the stored batches, in the order of the lanes."""
        store = self._core.store
        units = sorted((unit.log_offset, unit) for some in taken.values() for unit in some)
        there = [unit for at, unit in units if at >= store.log.start_offset]
        found = self._lanes.read_present(there)
        for number, some in taken.items():
            for unit in some:
                yield Leaving(number, unit, found.get(unit))

    def _count_dropped(self, messages: int) -> None:
        if messages:
            self.dropped_total += messages
            log.warning("delayed messages dropped: their topic was deleted", messages=messages)

    # -- retention --------------------------------------------------------------------------------

    def needs_log_before(self, log_offset: int) -> bool:
        log_offset = min(log_offset, self._lanes.applied_end())
        try:
            return any(
                self._lanes.waits_before(number, log_offset)
                for number in self._core.state.schedule.lanes
            )
        except (QueueDamaged, Rebuilding):
            return True  # what cannot be read now may wait there

    async def carry(self, log_offset: int) -> None:
        """Entry by entry; what is due meanwhile is delivered in between."""
        log_offset = min(log_offset, self._lanes.applied_end())
        is_done = False
        while not is_done:
            async with self._turn:
                is_done = await self._carry_some(log_offset)

    async def _carry_some(self, log_offset: int) -> bool:
        """Writes batches again that stand before, as many as one entry takes. Returns whether that
        was all.
        """
        epoch, budget = self._epoch, Budget(self._entry_bytes, _ENTRY_BATCHES)
        found: list[tuple[int, int, list[DueUnit]]] = []
        is_all = True
        for at, number in enumerate(list(self._core.state.schedule.lanes)):
            if at % _LANES_AT_ONCE == 0:
                await asyncio.sleep(0)
            units, below = [], log_offset
            for unit in self._lanes.waiting_before(number, log_offset):
                if not budget.spend(unit.size):
                    below, is_all = unit.log_offset, False
                    break
                units.append(unit)
            if units:
                found.append((number, below, units))
            if not is_all:
                break
        await self._load(units for _, _, units in found)
        self._core.leadership.check()
        if epoch != self._epoch:
            return False
        await self._write_again(found)
        return is_all

    async def _write_again(self, found: list[tuple[int, int, list[DueUnit]]]) -> None:
        lanes: list[LaneCarried] = []
        batches: list[Batch] = []
        dropped = 0
        for number, below, units in found:
            carried, lane, gone = self._carried(number, units, below)
            batches += carried
            lanes.append(lane)
            dropped += gone
        if lanes:
            await self._core.writer.write(
                Command(carry_scheduled=CarryScheduled(lanes=lanes)), batches
            )
            self._count_dropped(dropped)

    def _carried(
        self, number: int, units: list[DueUnit], below: int
    ) -> tuple[list[Batch], LaneCarried, int]:
        """New batches, the change of the lane, and how many messages have lost their topic."""
        batches, messages, gone = [], 0, 0
        topics = self._core.state.topics
        for _, _, held in self._leaving({number: units}):
            if held is None:
                continue
            messages += held.batch.message_count
            if topic_of(held, topics) is None:
                gone += held.batch.message_count
            else:
                batches.append(rebatch.carried(held.batch, held.first_message_at))
        lane = LaneCarried(
            lane=number, below_log_offset=below, batches=len(units), messages=messages
        )
        return batches, lane, gone


# -- what becomes of batches whose time has come: pure decisions ----------------------------------


class Leaving(NamedTuple):
    """A batch that leaves its lane, in the order of the lane."""

    number: int
    unit: DueUnit
    # None: the log has lost it.
    held: HeldBatch | None


class Outgoing(NamedTuple):
    batches: list[Batch]
    lanes: list[LaneProgress]
    delivered: int
    # Messages whose topic is gone, and batches that are.
    dropped: int
    lost: int
    # As in `DeliverScheduled`.
    sources: list[int]


def outgoing(leaving: Iterable[Leaving], lanes: Mapping[int, Lane], topics: Topics) -> Outgoing:
    """One batch for each queue, with all that goes there in its order; how far lanes are then."""
    by_queue: dict[tuple[str, int], list[Batch]] = {}
    origins: dict[tuple[str, int], list[tuple[int, int]]] = {}
    progress: dict[int, LaneProgress] = {}
    delivered = dropped = lost = 0
    for number, unit, held in leaving:
        one = progress.setdefault(number, LaneProgress(lane=number))
        one.due_ms, one.log_offset = unit.due_ms, unit.log_offset
        one.batches += 1
        if held is None:
            lost += 1
            continue
        one.messages += held.batch.message_count
        topic = topic_of(held, topics)
        if topic is None:
            dropped += held.batch.message_count
            continue
        batch = _without_recalled(held, lanes[number].recalled)
        if batch is not None:
            queue_id = batch.queue_id % topic.write_queues
            queue = topic.name, queue_id
            by_queue.setdefault(queue, []).append(batch)
            origin = held.first_message_at, batch.message_count
            origins.setdefault(queue, []).append(origin)
            delivered += batch.message_count
    batches = [rebatch.joined(some, *name) for name, some in by_queue.items()]
    sources = _sources(one for queue in by_queue for one in origins[queue])
    return Outgoing(batches, list(progress.values()), delivered, dropped, lost, sources)


def _sources(origins: Iterable[tuple[int, int]]) -> list[int]:
    found: list[int] = []
    last = 0
    for first_message_at, count in origins:
        found += first_message_at - last, count
        last = first_message_at
    return found


def topic_of(held: HeldBatch, topics: Topics) -> Topic | None:
    """The topic it was sent to; None: that one was deleted, whether there is a new one of its name
    or not. By places in the log: clocks may stand still, or go back.
    """
    if held.batch.topic not in topics:
        return None
    topic = topics.find(held.batch.topic)
    return topic if topic.created_at_log_offset < held.first_message_at else None


def _without_recalled(held: HeldBatch, recalled: Mapping[int, int]) -> Batch | None:
    if not recalled:
        return held.batch
    batch = held.batch
    starts = batch.frame_starts + (held.first_message_at - batch.region_start)
    numbers = numbers_of(starts, recalled)
    return rebatch.without(batch, numbers) if numbers else batch
