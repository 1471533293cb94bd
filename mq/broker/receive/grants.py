"""The messages granted to a receive: pure decisions over a draft of the leases.

Of a queue, messages that are visible again come first, then new ones. Messages are read as runs and
are not parsed, unless an SQL filter or the order of keys needs it. Messages that the filter leaves
out are done at once. In an ordered group a message waits while an earlier one of its key is not
done: it is put off, a range without a lease, within a window behind the first message that is not
done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from mq.broker.attribution import NOBODY, Actor
from mq.broker.consumer.filters import CompiledFilter
from mq.broker.consumer.groups import Start
from mq.broker.consumer.pulling import Query
from mq.broker.queue import Queue
from mq.broker.receive.leases import LeaseTurn
from mq.broker.receive.members import QueueMemory, ReceiveSpec
from mq.broker.retry.origins import opened
from mq.broker.state.leases import QueueLeases, Range
from mq.store.reading import ReadResult, Run, Status
from mq.wire.v1.message_pb2 import Batch as WireBatch

# Leased or put off, of one group and queue: with more, the queue gives no new messages.
IN_HAND_MAX = 10_000
# In order, new messages are looked at up to this far behind the first one that is not done.
WINDOW_MESSAGES = 2_000
_LOOK_MESSAGES = 64
# Messages that one step opens for a filter by SQL.
_SEARCH_MESSAGES = 512
_EVERYTHING = CompiledFilter(frozenset(), None)
_PUT_OFF = (0, 0, 0)
_READABLE = (Status.FOUND, Status.NOTHING_MATCHED)


class Receive(NamedTuple):
    """A request for messages."""

    group: str
    topic: str
    member_id: str
    spec: ReceiveSpec
    filter: CompiledFilter
    messages_max: int
    bytes_max: int
    invisible_ms: int
    wait_s: float = 0.0
    start: Start = Start()
    # For traces.
    actor: Actor = NOBODY
    # A later leader knows the leases of this receiver by it, see `leases.marked`; 0: it need not.
    lease_mark: int = 0
    # In an ordered group: the same number means that the caller did not get the answer to its
    # former call. Begins with the mark, see `leases.attempted`; 0: the receive is not repeated.
    attempt: int = 0


class GrantedRun(NamedTuple):
    """A run of messages with its lease: which attempt this is, and when the lease ends."""

    queue: Queue
    lease: int
    attempt: int
    visible_at_ms: int
    run: Run


class Grant:
    """The messages that one receive is given, while they are being collected."""

    def __init__(
        self,
        receive: Receive,
        bytes_max: int,
        retries_max: int,
        lease: int,
        turn: LeaseTurn,
        read: Callable[[Query], ReadResult],
    ) -> None:
        self.receive = receive
        self.bytes_max = bytes_max
        self.retries_max = retries_max
        self.runs: list[GrantedRun] = []
        self.messages_left = receive.messages_max
        self.size_bytes = 0
        self.now_ms = turn.now_ms
        self.read = read
        self._lease = lease
        self._visible_at_ms = turn.now_ms + receive.invisible_ms
        self._draft = turn.draft
        self._draft.holders[lease] = receive.actor
        self._is_full = False

    @property
    def has_room(self) -> bool:
        return self.messages_left > 0 and not self._is_full

    def leases(self, queue: Queue) -> QueueLeases:
        """The leases of a queue that the group receives from."""
        found = self._draft.get(self.receive.group, queue)
        if found is None:
            raise ValueError(f"group {self.receive.group} does not receive from {queue}")
        return found

    def put(self, queue: Queue, start: int, end: int, value: tuple[int, int, int] | None) -> None:
        self._draft.put(self.receive.group, queue, start, end, value)

    def take(self, queue: Queue, one: Range, messages_max: int) -> int:
        """Gives so many messages of the range, as far as they fit. Returns the queue offset that it
        reached: messages before it are given or left out.
        """
        filter_ = self.receive.filter
        count = min(messages_max, self.messages_left, one.end - one.start)
        # With a predicate, `messages_max` limits the messages that are parsed, passing or not.
        looked = max(count, _SEARCH_MESSAGES) if filter_.predicate else count
        left_bytes = self.bytes_max - self.size_bytes
        result = self.read(Query(queue, one.start, filter_, left_bytes, looked))
        if result.status == Status.TOO_SMALL:
            return min(result.start, one.end)  # dropped by retention
        if result.status not in _READABLE:
            return one.start
        runs, reached = result.runs, result.next_offset
        if filter_.predicate or reached > one.end:
            runs, cut_at = first_of(clipped(runs, one.end), count)
            reached = min(reached, one.end) if cut_at is None else cut_at
        size_bytes = sum([len(run.frames) for run in runs])
        if self.runs and self.size_bytes + size_bytes > self.bytes_max:
            self._is_full = True  # a read returns one message, however large
            return one.start
        for run in runs:
            self._give(queue, run, one.attempts + 1)
        self.size_bytes += size_bytes
        self._is_full = self.size_bytes >= self.bytes_max
        return reached

    def _give(self, queue: Queue, run: Run, attempt: int) -> None:
        value = self._lease, self._visible_at_ms, attempt
        self.runs.append(GrantedRun(queue, self._lease, attempt, self._visible_at_ms, run))
        self.put(queue, run.queue_offset, run.queue_offset + run.message_count, value)
        self.messages_left -= run.message_count


def single_messages(runs: Iterable[GrantedRun]) -> list[GrantedRun]:
    """Each message as a run of its own."""
    singles: list[GrantedRun] = []
    for granted in runs:
        queue, lease, attempt, visible_at_ms, run = granted
        if run.message_count == 1:
            singles.append(granted)
            continue
        queue_offset, _, log_offset, stored_at_ms, frames, sizes = run
        start = 0
        for at, size in enumerate(sizes.tolist()):
            single = Run(
                queue_offset + at,
                1,
                log_offset + start,
                stored_at_ms,
                frames[start : start + size],
                sizes[at : at + 1],
            )
            singles.append(GrantedRun(queue, lease, attempt, visible_at_ms, single))
            start += size
    return singles


def give(grant: Grant, queue: Queue, memory: QueueMemory, end: int) -> bool:
    """Gives messages of the queue, which ends at `end`, in any order. Returns whether there may be
    more.
    """
    _give_again(grant, queue, memory)
    leases = grant.leases(queue)
    memory.passed = max(memory.passed, leases.next)
    memory.is_full = False
    if grant.has_room and memory.passed < end:
        room = _room(leases)
        memory.is_full = room <= 0
        if room > 0:
            fresh = Range(memory.passed, end, 0, 0, 0)
            memory.passed = grant.take(queue, fresh, room)
            if grant.runs:
                # Messages that the filter left out behind it go with the same entry.
                grant.put(queue, grant.leases(queue).next, memory.passed, None)
    is_waiting = memory.passed < end and not memory.is_full
    return is_waiting or memory.redeliveries.is_due(grant.now_ms, grant.leases(queue))


def _give_again(grant: Grant, queue: Queue, memory: QueueMemory) -> None:
    redeliveries, now_ms = memory.redeliveries, grant.now_ms
    while redeliveries.next_ms <= now_ms and grant.has_room:
        found = redeliveries.pop(now_ms, grant.leases(queue))
        if found is None:
            break
        if found.attempts > grant.retries_max:
            memory.exhausted = True
            continue
        reached = grant.take(queue, found, found.end - found.start)
        _leave_out(grant, queue, found._replace(end=reached))
        if reached < found.end:
            redeliveries.push(found._replace(start=reached))
            if reached == found.start:
                break


def _room(leases: QueueLeases) -> int:
    """The number of messages that may still be granted."""
    room = IN_HAND_MAX - (leases.next - leases.done_to)
    # Many messages in between may be done; counting them is slower.
    return room if room >= IN_HAND_MAX // 2 else IN_HAND_MAX - leases.message_count


def _leave_out(grant: Grant, queue: Queue, stretch: Range) -> None:
    """Marks messages as done that were not given: the filter or retention left them out."""
    for one in grant.leases(queue).within(stretch.start, stretch.end):
        if one[2:] == stretch[2:]:
            start, end = max(one.start, stretch.start), min(one.end, stretch.end)
            grant.put(queue, start, end, None)


# -- in the order of keys -------------------------------------------------------------------------


def give_in_order(grant: Grant, queue: Queue, memory: QueueMemory, end: int) -> bool:
    """As `give`, and messages with the same key one at a time, in their order."""
    keys = _FreeKeys(grant, queue, memory)
    chosen: list[Range] = []
    left, now_ms = grant.messages_left, grant.now_ms
    for one in list(grant.leases(queue).ranges):
        is_due = one.visible_at_ms <= now_ms
        for queue_offset in keys.free(one):
            if is_due and one.attempts > grant.retries_max:
                memory.exhausted = True
            elif is_due and left > 0:
                left -= 1
                _append(chosen, one._replace(start=queue_offset, end=queue_offset + 1))
    leases = grant.leases(queue)
    memory.passed = max(memory.passed, leases.next)
    limit = min(end, _window_end(leases, memory))
    looked_from = memory.passed
    if left > 0 and looked_from < limit:
        memory.passed = _look_ahead(grant, queue, keys, Range(looked_from, limit, 0, 0, 0), chosen)
    for one in chosen:
        at = one
        while grant.has_room and at.start < at.end:
            reached = grant.take(queue, at, at.end - at.start)
            if reached == at.start:
                break
            # The filter may have changed since the first attempt.
            _leave_out(grant, queue, at._replace(end=reached))
            at = at._replace(start=reached)
    while memory.redeliveries.pop(now_ms, grant.leases(queue)) is not None:
        pass  # all ranges were looked at above
    memory.is_full = memory.passed >= _window_end(grant.leases(queue), memory)
    return bool(chosen) or memory.passed > looked_from


def _window_end(leases: QueueLeases, memory: QueueMemory) -> int:
    """The end of the window of new messages."""
    return (leases.done_to if leases.ranges else memory.passed) + WINDOW_MESSAGES


def _look_ahead(
    grant: Grant, queue: Queue, keys: _FreeKeys, ahead: Range, chosen: list[Range]
) -> int:
    """Chooses new messages whose keys are free, and puts the others off. Returns the queue offset
    that it reached.
    """
    left = grant.messages_left - sum(one.end - one.start for one in chosen)
    count = min(ahead.end - ahead.start, max(_LOOK_MESSAGES, 4 * left))
    result = grant.read(Query(queue, ahead.start, grant.receive.filter, messages_max=count))
    if result.status == Status.TOO_SMALL:
        return min(result.start, ahead.end)
    if result.status not in _READABLE:
        return ahead.start
    for run in clipped(result.runs, ahead.end):
        if left <= 0:
            return run.queue_offset
        stop = run.queue_offset + run.message_count
        keys.learn(run)
        # Chosen messages are given out of what is put off here.
        grant.put(queue, run.queue_offset, stop, _PUT_OFF)
        for queue_offset in keys.free(Range(run.queue_offset, stop, *_PUT_OFF)):
            if left > 0:
                left -= 1
                _append(chosen, Range(queue_offset, queue_offset + 1, *_PUT_OFF))
    return min(result.next_offset, ahead.end)


class _FreeKeys:
    """Tells which messages of a queue are the first of their key among those that are not done."""

    def __init__(self, grant: Grant, queue: Queue, memory: QueueMemory) -> None:
        self._grant = grant
        self._queue = queue
        self._taken: set[str] = set()
        if len(memory.keys) > 2 * WINDOW_MESSAGES:
            ranges = grant.leases(queue).ranges
            memory.keys = {
                at: memory.keys[at]
                for one in ranges
                for at in range(one.start, one.end)
                if at in memory.keys
            }
        self._known = memory.keys

    def free(self, one: Range) -> Iterator[int]:
        """The messages of the range whose key is free. Call it in the order of the queue."""
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
            result = self._grant.read(
                Query(self._queue, at, _EVERYTHING, messages_max=one.end - at)
            )
            if result.status == Status.TOO_SMALL:
                # Dropped by retention: it blocks no key.
                gone_to = min(result.start, one.end)
                self._grant.put(self._queue, at, gone_to, None)
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
    """Joins neighbours that are alike."""
    if stretches and stretches[-1].end == one.start and stretches[-1][2:] == one[2:]:
        stretches[-1] = stretches[-1]._replace(end=one.end)
    else:
        stretches.append(one)


def first_of(runs: Iterable[Run], count: int) -> tuple[list[Run], int | None]:
    """So many messages of the runs, and the queue offset of the next one if there is one."""
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
    """The part of the runs before this queue offset."""
    for run in runs:
        count = end - run.queue_offset
        if count >= run.message_count:
            yield run
        elif count > 0:
            size_bytes = int(np.add.reduce(run.sizes[:count], dtype=np.int64))
            yield run._replace(
                message_count=count, frames=run.frames[:size_bytes], sizes=run.sizes[:count]
            )
