"""Messages that wait for their delivery time, for operators: listed in the order of that time, and
counted by it. On the leader only.

A lane may have millions of units: they are read a part at a time, with others in between, and of a
page no more than `_READ_BATCHES` batches are opened. Batches that are not in memory are read on a
thread. A page is a place in the order (due_ms, log_offset), and the number of a message in the
batch there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from mq import names
from mq.broker.broker import Broker
from mq.broker.delay.due import DueUnit, Gathering, units_of
from mq.broker.delay.lanes import Lanes
from mq.broker.long_work import TimeSlice
from mq.broker.state.schedule import Lane
from mq.errors import IllegalRequest, MessagesDamaged
from mq.store.batch import message_of_frame
from mq.store.holding import LANE_MS, LANES, HeldBatch, lane_of, read_held
from mq.store.logreader import LogApart
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.message_pb2 import Message

LIST_MAX = 1_000
_LIST_DEFAULT = 32
BUCKETS_MAX = 500
_BUCKETS_DEFAULT = 60
_TOPICS_MAX = 1_000
# Limits of one page.
_READ_BATCHES = 1_000
_READ_BYTES = 8 << 20
# Lanes of the last day come first; the number of a lane comes again after 41 days.
_PAST_MS = 86_400_000
# Buckets shorter than a lane.
_STEPS_MS = (1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000)
# As many lanes are looked at for these: what is due within an hour or two.
_FINE_LANES = 12
_PAGE = re.compile(r"([0-9]{1,15})-([0-9]{1,19})-([0-9]{1,9})", re.ASCII)


class _Place(NamedTuple):
    due_ms: int
    log_offset: int = 0
    number: int = 0

    def text(self) -> str:
        return "-".join(map(str, self))


def _parse_page(page: str) -> _Place:
    found = _PAGE.fullmatch(page)
    if found is None:
        raise IllegalRequest(
            f"page = {page[:60]!r} is none: give `next_page` of the answer before, or leave it out"
        )
    return _Place(*map(int, found.groups()))


class _Budget:
    def __init__(self) -> None:
        self.batches, self.size_bytes = _READ_BATCHES, _READ_BYTES

    @property
    def is_spent(self) -> bool:
        return self.batches <= 0 or self.size_bytes <= 0

    def spend(self, size_bytes: int) -> None:
        self.batches -= 1
        self.size_bytes -= size_bytes


class ScheduleReader:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set
        self._lanes = Lanes(broker.state, broker.store)

    # -- lists ------------------------------------------------------------------------------------

    async def listed(
        self,
        request: pb.ListScheduledRequest,
        may_describe: Callable[[str], bool],
        may_consume: Callable[[str], bool],
    ) -> pb.ListScheduledResponse:
        count = request.messages_max or _LIST_DEFAULT
        if count > LIST_MAX:
            raise IllegalRequest(f"messages_max = {count}: at most {LIST_MAX}")
        if request.begin_ms < 0:
            raise IllegalRequest(f"begin_ms = {request.begin_ms}: it must not be negative")
        place = _parse_page(request.page) if request.page else _Place(request.begin_ms)
        if request.topic:
            self._broker.state.topics.find(request.topic)
        answer, budget, turn = pb.ListScheduledResponse(), _Budget(), TimeSlice()
        async for number, unit in self._units(place, count):
            lane = self._broker.state.schedule.lanes.get(number)
            if len(answer.messages) >= count or budget.is_spent:
                answer.next_page = _Place(unit.due_ms, unit.log_offset).text()
                break
            budget.spend(unit.size)
            await turn.over()
            held = await self._read(unit)
            if lane is None or held is None:
                continue
            topic = held.batch.topic
            if request.topic not in ("", topic) or not may_describe(topic):
                continue
            is_first = (unit.due_ms, unit.log_offset) == place[:2]
            first = place.number if is_first else 0
            for at, shown in self._messages(lane, unit, held, first, reveals=may_consume(topic)):
                if len(answer.messages) >= count:
                    answer.next_page = _Place(unit.due_ms, unit.log_offset, at).text()
                    return answer
                answer.messages.append(shown)
        return answer

    async def _units(self, place: _Place, count: int) -> AsyncIterator[tuple[int, DueUnit]]:
        """From this place on, in the order of time, with their lanes."""
        units_max = _READ_BATCHES + count + 1
        for number in self._in_order(place.due_ms):
            gathering = Gathering(units_max)
            async for units in self._lanes.waiting(number):
                due = units["tag_hash"].astype(np.int64)
                at = units["log_offset"].astype(np.int64)
                is_behind = (due > place.due_ms) | (
                    (due == place.due_ms) & (at >= place.log_offset)
                )
                gathering.add(units[is_behind])
            for unit in units_of(gathering.result()[0]):
                yield number, unit

    def _in_order(self, begin_ms: int = 0) -> list[int]:
        """The lanes with something due then or later, in the order of time."""
        now_ms = self._broker.now_ms()
        first = lane_of(now_ms - _PAST_MS)
        lanes = sorted(self._broker.state.schedule.lanes, key=lambda one: (one - first) % LANES)
        if begin_ms <= now_ms - _PAST_MS:
            return lanes
        if begin_ms - now_ms >= (LANES * LANE_MS) - _PAST_MS:
            return []
        skipped = (lane_of(begin_ms) - first) % LANES
        return [one for one in lanes if (one - first) % LANES >= skipped]

    async def _read(self, unit: DueUnit) -> HeldBatch | None:
        """None: it is gone by now, or damaged."""
        log, end = self._broker.store.log, unit.log_offset + unit.size
        if unit.log_offset < log.start_offset:
            return None
        try:
            if log.is_in_memory(unit.log_offset, end):
                return self._lanes.read([unit])[0]
            part = log.apart(unit.log_offset, end)
            loop = asyncio.get_running_loop()
            # A cancelled call does not stop the thread, which closes the file in the end.
            return await asyncio.shield(loop.run_in_executor(None, _read_apart, part, unit))
        except (MessagesDamaged, ValueError):
            return None

    def _messages(
        self, lane: Lane, unit: DueUnit, held: HeldBatch, first: int, *, reveals: bool
    ) -> Iterator[tuple[int, pb.ScheduledMessage]]:
        """From the message of this number on, without those that were recalled."""
        batch = held.batch
        starts = batch.frame_starts[first:].tolist()
        sizes = batch.frame_sizes[first:].tolist()
        for at, (start, size) in enumerate(zip(starts, sizes, strict=True), first):
            log_offset = held.first_message_at + start - batch.region_start
            if log_offset in lane.recalled:
                continue
            frame = memoryview(batch.data)[start : start + size]
            try:
                message = Message.FromString(bytes(message_of_frame(frame)))
            except DecodeError:
                message = Message()
            yield (
                at,
                pb.ScheduledMessage(
                    message_id=names.message_id(self._broker_set, log_offset),
                    topic=batch.topic,
                    queue_id=batch.queue_id,
                    deliver_at_ms=batch.deliver_at_ms,
                    born_at_ms=message.born_at_ms,
                    size_bytes=len(message.body),
                    tag=message.tag if reveals else "",
                    keys=message.keys if reveals else (),
                    next_page=_Place(unit.due_ms, unit.log_offset, at + 1).text(),
                ),
            )

    # -- counts -----------------------------------------------------------------------------------

    async def counted(
        self, buckets_max: int, may_describe: Callable[[str], bool]
    ) -> pb.CountScheduledResponse:
        buckets_max = buckets_max or _BUCKETS_DEFAULT
        if buckets_max > BUCKETS_MAX:
            raise IllegalRequest(f"buckets_max = {buckets_max}: at most {BUCKETS_MAX}")
        schedule, numbers = self._broker.state.schedule, self._in_order()
        answer = pb.CountScheduledResponse(
            messages=schedule.messages, topics=self._by_topic(may_describe)
        )
        if not numbers:
            return answer
        if len(numbers) <= _FINE_LANES:
            due_ms = await self._due_times(numbers)
            span_ms = int(due_ms.max() - due_ms.min()) + 1 if len(due_ms) else 0
            fine = [one for one in _STEPS_MS if span_ms // one + 2 <= buckets_max]
            if span_ms and fine:
                begins, counts = np.unique(due_ms // fine[0] * fine[0], return_counts=True)
                by_begin = dict(zip(begins.tolist(), counts.tolist(), strict=True))
                _add_buckets(answer, fine[0], by_begin)
                answer.counts_batches = True
                return answer
        times = {self._begin_ms(one): one for one in numbers}
        lanes = {at: schedule.lanes[one] for at, one in times.items() if one in schedule.lanes}
        span = (max(times) - min(times)) // LANE_MS + 1
        step_ms = LANE_MS * -(-span // max(1, buckets_max - 1))
        counts_by: dict[int, int] = {}
        for at, lane in lanes.items():
            begin = at // step_ms * step_ms
            # A recalled message is remembered until its time is over, even if it has left the lane.
            waiting = max(0, lane.messages - len(lane.recalled))
            counts_by[begin] = counts_by.get(begin, 0) + waiting
        _add_buckets(answer, step_ms, counts_by)
        return answer

    def _begin_ms(self, number: int) -> int:
        """When the lane begins, of the times around now."""
        first_ms = (self._broker.now_ms() - _PAST_MS) // LANE_MS * LANE_MS
        return first_ms + (number - lane_of(first_ms)) % LANES * LANE_MS

    async def _due_times(self, numbers: list[int]) -> npt.NDArray[np.int64]:
        found = [np.empty(0, np.int64)]
        for number in numbers:
            found += [
                units["tag_hash"].astype(np.int64) async for units in self._lanes.waiting(number)
            ]
        return np.concatenate(found)

    def _by_topic(self, may_describe: Callable[[str], bool]) -> Iterator[pb.ScheduledTopic]:
        topics = self._broker.state.topics
        waiting = [
            (one.name, count)
            for one in topics
            if (count := topics.delayed_messages(one.name)) and may_describe(one.name)
        ]
        waiting.sort(key=lambda one: (-one[1], one[0]))
        for name, count in waiting[:_TOPICS_MAX]:
            yield pb.ScheduledTopic(topic=name, messages=count)


def _add_buckets(answer: pb.CountScheduledResponse, step_ms: int, counts: dict[int, int]) -> None:
    answer.bucket_ms = step_ms
    for begin_ms in sorted(counts):
        if counts[begin_ms] > 0:
            answer.buckets.add(begin_ms=begin_ms, count=counts[begin_ms])


def _read_apart(part: LogApart, unit: DueUnit) -> HeldBatch:
    try:
        return read_held(part, [(unit.log_offset, unit.size)])[0]
    finally:
        part.close()
