"""Which messages a receive is given: pure decisions over a draft of the leases.

Of a queue first those that are visible again, then new ones. Messages are read as runs and stay
closed, unless the filter or the order by keys opens them. What the filter leaves out is done at
once. In an ordered group a message waits while an earlier one of its key is not done: it is put
off, a range in nobody's hands, within a window behind the first message that is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from mq.broker.consumer.filters import CompiledFilter
from mq.broker.consumer.pulling import Query
from mq.broker.queue import Queue
from mq.broker.receive.lease_draft import Draft
from mq.broker.receive.taking import QueueMemory
from mq.broker.retry.origins import opened
from mq.broker.state.leases import QueueLeases, Range
from mq.store.reading import ReadResult, Run, Status
from mq.wire.v1.message_pb2 import Batch as WireBatch

# In hand of one group and queue: beyond it the queue gives nothing new.
IN_HAND_MAX = 10_000
# In order: new messages are looked at no further than this behind the first one that is not done.
WINDOW_MESSAGES = 2_000
_LOOK_MESSAGES = 64
# Messages that one step opens for a filter by SQL.
_SEARCH_MESSAGES = 512
_EVERYTHING = CompiledFilter(frozenset(), None)
_PUT_OFF = (0, 0, 0)


class Wanted(NamedTuple):
    group: str
    filter: CompiledFilter
    is_ordered: bool
    messages_max: int
    bytes_max: int
    # How often a message is given out again at the most.
    retries_max: int


class Given(NamedTuple):
    """A run of messages in somebody's hands: which delivery of them this is, and until when."""

    queue: Queue
    lease: int
    attempt: int
    visible_at_ms: int
    run: Run


class Hand:
    """What one receive is given, while it is put together."""

    def __init__(
        self,
        wanted: Wanted,
        lease: int,
        visible_at_ms: int,
        draft: Draft,
        read: Callable[[Query], ReadResult],
    ) -> None:
        self.wanted = wanted
        self.given: list[Given] = []
        self.messages_left = wanted.messages_max
        self.size_bytes = 0
        self._lease = lease
        self._visible_at_ms = visible_at_ms
        self._draft = draft
        self._read = read
        self._is_full = False

    @property
    def has_room(self) -> bool:
        return self.messages_left > 0 and not self._is_full

    def leases(self, queue: Queue) -> QueueLeases:
        """Of a queue that the group receives from."""
        found = self._draft.get(self.wanted.group, queue)
        if found is None:
            raise ValueError(f"group {self.wanted.group} does not receive from {queue}")
        return found

    def read(self, query: Query) -> ReadResult:
        return self._read(query)

    def put(self, queue: Queue, start: int, end: int, value: tuple[int, int, int] | None) -> None:
        self._draft.put(self.wanted.group, queue, start, end, value)

    def take(self, queue: Queue, one: Range, messages_max: int) -> int:
        """Of the messages of the range so many, as far as they fit. Returns how far it came: what
        stands before is given or left out.
        """
        filter_ = self.wanted.filter
        count = min(messages_max, self.messages_left, one.end - one.start)
        # With a predicate as many are looked at as are asked for, whether they pass or not.
        looked = max(count, _SEARCH_MESSAGES) if filter_.predicate else count
        left_bytes = self.wanted.bytes_max - self.size_bytes
        result = self._read(Query(queue, one.start, filter_, left_bytes, looked))
        if result.status == Status.TOO_SMALL:
            return min(result.start, one.end)  # retention was faster
        if result.status not in (Status.FOUND, Status.NOTHING_MATCHED):
            return one.start
        runs, cut_at = first_of(clipped(result.runs, one.end), count)
        size_bytes = sum(len(run.frames) for run in runs)
        if self.given and self.size_bytes + size_bytes > self.wanted.bytes_max:
            self._is_full = True  # a read gives one message, however large
            return one.start
        for run in runs:
            self._give(queue, run, one.attempts + 1)
        self.size_bytes += size_bytes
        self._is_full = self.size_bytes >= self.wanted.bytes_max
        return min(result.next_offset, one.end) if cut_at is None else cut_at

    def _give(self, queue: Queue, run: Run, attempt: int) -> None:
        value = self._lease, self._visible_at_ms, attempt
        self.given.append(Given(queue, self._lease, attempt, self._visible_at_ms, run))
        self.put(queue, run.queue_offset, run.queue_offset + run.message_count, value)
        self.messages_left -= run.message_count


def take(hand: Hand, queue: Queue, memory: QueueMemory, end: int, now_ms: int) -> bool:
    """Messages of the queue, which ends there, in any order. Whether there may be more."""
    again, wanted = memory.again, hand.wanted
    while hand.has_room and (found := again.pop(now_ms, hand.leases(queue))) is not None:
        if found.attempts > wanted.retries_max:
            memory.spent = True
            continue
        reached = hand.take(queue, found, found.end - found.start)
        _leave_out(hand, queue, found._replace(end=reached))
        if reached < found.end:
            again.push(found._replace(start=reached))
            if reached == found.start:
                break
    memory.passed = max(memory.passed, hand.leases(queue).next)
    memory.is_full = False
    if hand.has_room and memory.passed < end:
        room = _room(hand.leases(queue))
        memory.is_full = room <= 0
        if room > 0:
            fresh = Range(memory.passed, end, 0, 0, 0)
            memory.passed = hand.take(queue, fresh, room)
            if hand.given:
                # What is left out behind it goes with the same entry.
                hand.put(queue, hand.leases(queue).next, memory.passed, None)
    is_waiting = memory.passed < end and not memory.is_full
    return is_waiting or again.is_due(now_ms, hand.leases(queue))


def _room(leases: QueueLeases) -> int:
    """How many more may be in hand."""
    room = IN_HAND_MAX - (leases.next - leases.done_to)
    # Much of what stands between may be done; counting it costs something.
    return room if room >= IN_HAND_MAX // 2 else IN_HAND_MAX - leases.message_count


def _leave_out(hand: Hand, queue: Queue, stretch: Range) -> None:
    """Messages of the stretch that are as they were: the filter, or retention, left them out."""
    for one in hand.leases(queue).within(stretch.start, stretch.end):
        if one[2:] == stretch[2:]:
            start, end = max(one.start, stretch.start), min(one.end, stretch.end)
            hand.put(queue, start, end, None)


# -- in the order of keys -------------------------------------------------------------------------


def take_in_order(hand: Hand, queue: Queue, memory: QueueMemory, end: int, now_ms: int) -> bool:
    """As `take`, and of the messages with the same key one at a time, in their order."""
    keys = _Keys(hand, queue, memory)
    chosen: list[Range] = []
    left = hand.messages_left
    for one in list(hand.leases(queue).ranges):
        is_due = one.visible_at_ms <= now_ms
        for queue_offset in keys.free(one):
            if is_due and one.attempts > hand.wanted.retries_max:
                memory.spent = True
            elif is_due and left > 0:
                left -= 1
                _append(chosen, one._replace(start=queue_offset, end=queue_offset + 1))
    leases = hand.leases(queue)
    memory.passed = max(memory.passed, leases.next)
    limit = min(end, _window_end(leases, memory))
    looked_from = memory.passed
    if left > 0 and looked_from < limit:
        memory.passed = _look_ahead(hand, queue, keys, Range(looked_from, limit, 0, 0, 0), chosen)
    for one in chosen:
        at = one
        while hand.has_room and at.start < at.end:
            reached = hand.take(queue, at, at.end - at.start)
            if reached == at.start:
                break
            # The filter may be another one than when they were given out first.
            _leave_out(hand, queue, at._replace(end=reached))
            at = at._replace(start=reached)
    while memory.again.pop(now_ms, hand.leases(queue)) is not None:
        pass  # they only told that it was time to look
    memory.is_full = memory.passed >= _window_end(hand.leases(queue), memory)
    return bool(chosen) or memory.passed > looked_from


def _window_end(leases: QueueLeases, memory: QueueMemory) -> int:
    """New messages are looked at up to there."""
    return (leases.done_to if leases.ranges else memory.passed) + WINDOW_MESSAGES


def _look_ahead(hand: Hand, queue: Queue, keys: _Keys, ahead: Range, chosen: list[Range]) -> int:
    """Of new messages those are chosen whose keys are free, and the others put off. Returns how far
    it came.
    """
    wanted = hand.wanted
    left = hand.messages_left - sum(one.end - one.start for one in chosen)
    count = min(ahead.end - ahead.start, max(_LOOK_MESSAGES, 4 * left))
    result = hand.read(Query(queue, ahead.start, wanted.filter, messages_max=count))
    if result.status == Status.TOO_SMALL:
        return min(result.start, ahead.end)
    if result.status not in (Status.FOUND, Status.NOTHING_MATCHED):
        return ahead.start
    for run in clipped(result.runs, ahead.end):
        if left <= 0:
            return run.queue_offset
        stop = run.queue_offset + run.message_count
        keys.learn(run)
        # Those that are given out after all are taken from what is put off here.
        hand.put(queue, run.queue_offset, stop, _PUT_OFF)
        for queue_offset in keys.free(Range(run.queue_offset, stop, *_PUT_OFF)):
            if left > 0:
                left -= 1
                _append(chosen, Range(queue_offset, queue_offset + 1, *_PUT_OFF))
    return min(result.next_offset, ahead.end)


class _Keys:
    """Which messages of a queue are the first of their key among those that are not done."""

    def __init__(self, hand: Hand, queue: Queue, memory: QueueMemory) -> None:
        self._hand = hand
        self._queue = queue
        self._taken: set[str] = set()
        if len(memory.keys) > 2 * WINDOW_MESSAGES:
            ranges = hand.leases(queue).ranges
            memory.keys = {
                at: memory.keys[at]
                for one in ranges
                for at in range(one.start, one.end)
                if at in memory.keys
            }
        self._known = memory.keys

    def free(self, one: Range) -> Iterator[int]:
        """To be asked in the order of the queue."""
        self._load(one)
        for queue_offset in range(one.start, one.end):
            key = self._known.get(queue_offset)
            if key is None or key in self._taken:
                continue
            if key:
                self._taken.add(key)
            yield queue_offset

    def learn(self, run: Run) -> None:
        self._known.update(enumerate(_ordering_keys(run), run.queue_offset))

    def _load(self, one: Range) -> None:
        at = one.start
        while at < one.end:
            if at in self._known:
                at += 1
                continue
            result = self._hand.read(Query(self._queue, at, _EVERYTHING, messages_max=one.end - at))
            if result.status == Status.TOO_SMALL:
                # Retention was faster: what is gone holds nobody up.
                gone_to = min(result.start, one.end)
                self._hand.put(self._queue, at, gone_to, None)
                at = gone_to
            elif result.status == Status.FOUND:
                for run in result.runs:
                    self.learn(run)
                at = result.next_offset
            else:
                break


def _ordering_keys(run: Run) -> Iterable[str]:
    try:
        messages = WireBatch.FromString(run.frames).messages  # type: ignore[arg-type] # a buffer
    except DecodeError:
        return [message.ordering_key for message in opened(run)]
    return [message.ordering_key for message in messages]


def _append(stretches: list[Range], one: Range) -> None:
    """Neighbours that are alike are one."""
    if stretches and stretches[-1].end == one.start and stretches[-1][2:] == one[2:]:
        stretches[-1] = stretches[-1]._replace(end=one.end)
    else:
        stretches.append(one)


def first_of(runs: Iterable[Run], count: int) -> tuple[list[Run], int | None]:
    """So many messages of the runs, and the queue offset of the next one, if there is one."""
    found: list[Run] = []
    for run in runs:
        if count <= 0:
            return found, run.queue_offset
        found += clipped([run], run.queue_offset + count)
        if run.message_count > count:
            return found, run.queue_offset + count
        count -= run.message_count
    return found, None


def clipped(runs: Iterable[Run], end: int) -> Iterator[Run]:
    """What the runs have before this queue offset."""
    for run in runs:
        count = end - run.queue_offset
        if count >= run.message_count:
            yield run
        elif count > 0:
            size_bytes = int(np.add.reduce(run.sizes[:count], dtype=np.int64))
            yield run._replace(
                message_count=count, frames=run.frames[:size_bytes], sizes=run.sizes[:count]
            )
