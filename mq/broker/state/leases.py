"""Leases of messages that groups have received and not acknowledged: part of the replicated state,
changed only by applying entries.

Of each queue that a group receives from, the state knows the next message that was never given out,
and the ranges of messages before it that are not done: their lease, its end, the attempts.
Everything else before `next` is done. A range is one record, however many messages it has: messages
that are given out together stay one record until they are acknowledged one by one and out of order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mq.broker.queue import Queue
from mq.wire.v1.state_pb2 import LeaseChange, LeaseState

_FIELDS = 5


class Range(NamedTuple):
    """Messages [start, end) that are not done. With lease 0 they have no receiver, and are given
    out from `visible_at_ms` on; with another lease they are given out again after that. `attempts`
    counts how often they were given out.
    """

    start: int
    end: int
    lease: int
    visible_at_ms: int
    attempts: int


class QueueLeases:
    __slots__ = ("next", "ranges")

    def __init__(self, next_offset: int = 0, ranges: Iterable[Range] = ()) -> None:
        self.next = next_offset
        self.ranges = list(ranges)  # sorted, they do not overlap

    @property
    def done_to(self) -> int:
        """Everything before it is done."""
        return self.ranges[0].start if self.ranges else self.next

    @property
    def message_count(self) -> int:
        """Messages with a lease or postponed, and not done."""
        return sum(one.end - one.start for one in self.ranges)

    @property
    def done_ahead(self) -> int:
        """Messages done behind the first one that is not."""
        return self.next - self.done_to - self.message_count

    def at(self, queue_offset: int) -> Range | None:
        """The range that has the message; None: it is done, or was never given out."""
        at = self._last_from(queue_offset)
        if at < 0:
            return None
        found = self.ranges[at]
        return found if found.end > queue_offset else None

    def within(self, start: int, end: int) -> list[Range]:
        """The ranges that have some of these messages."""
        first = self._last_from(start)
        if first < 0 or self.ranges[first].end <= start:
            first += 1
        return self.ranges[first : bisect_left(self.ranges, (end,))]

    def _last_from(self, queue_offset: int) -> int:
        """The index of the last range that starts here or before; -1: none does."""
        # A tuple is less than the longer ones that begin with it.
        return bisect_left(self.ranges, (queue_offset + 1,)) - 1

    def put(self, start: int, end: int, value: tuple[int, int, int] | None) -> None:
        """[start, end) is done (None), or is (lease, visible_at_ms, attempts) from now on. What
        stands between `next` and it was passed over, and is done.
        """
        if start >= end:
            return
        if start < self.next:
            self._replace(start, end, value)
            return
        # New messages: they stand behind all others.
        self.next = end
        if value is None:
            return
        ranges = self.ranges
        if ranges and ranges[-1][1:] == (start, *value):
            ranges[-1] = ranges[-1]._replace(end=end)
        else:
            ranges.append(Range(start, end, *value))

    def _replace(self, start: int, end: int, value: tuple[int, int, int] | None) -> None:
        ranges = self.ranges
        first = self._last_from(start)
        if value is None and first >= 0 and ranges[first].end >= end:
            # A part of one range: what is left of it has no neighbours to be joined with.
            ranges[first : first + 1] = _without(ranges[first], start, end)
            return
        first = first if first >= 0 and ranges[first].end > start else first + 1
        last = first
        replacement: list[Range] = []
        while last < len(ranges) and ranges[last].start < end:
            replacement += _without(ranges[last], start, end)
            last += 1
        if value is not None:
            at = 1 if replacement and replacement[0].start < start else 0
            replacement.insert(at, Range(start, end, *value))
        ranges[first:last] = replacement
        self._join(max(0, first - 1), first + len(replacement) + 1)
        self.next = max(self.next, end)

    def _join(self, first: int, last: int) -> None:
        """Neighbours that are alike are one."""
        joined: list[Range] = []
        for one in self.ranges[first:last]:
            if joined and joined[-1].end == one.start and joined[-1][2:] == one[2:]:
                joined[-1] = joined[-1]._replace(end=one.end)
            else:
                joined.append(one)
        self.ranges[first:last] = joined


def _without(one: Range, start: int, end: int) -> list[Range]:
    """The parts of the range before `start` and from `end` on."""
    left = [Range(one.start, start, *one[2:])] if one.start < start else []
    if end < one.end:
        left.append(Range(end, one.end, *one[2:]))
    return left


class Leases:
    def __init__(self) -> None:
        self._queues: dict[tuple[str, Queue], QueueLeases] = {}

    def __contains__(self, place: object) -> bool:
        return place in self._queues

    def get(self, group: str, queue: Queue) -> QueueLeases | None:
        return self._queues.get((group, queue))

    def done_ahead(self, group: str, queue: Queue) -> int:
        """Messages of the queue that are done, behind the group's offset."""
        found = self._queues.get((group, queue))
        return found.done_ahead if found else 0

    def items(self) -> Iterable[tuple[tuple[str, Queue], QueueLeases]]:
        return self._queues.items()

    def in_hand(self) -> dict[str, int]:
        """By group: messages with a lease, also if its time is over."""
        counts: dict[str, int] = {}
        for (group, _), one in self._queues.items():
            held = sum(each.end - each.start for each in one.ranges if each.lease)
            counts[group] = counts.get(group, 0) + held
        return counts

    # -- applying ---------------------------------------------------------------------------------

    def change(
        self,
        group: str,
        queue: Queue,
        changes: Iterable[LeaseChange],
        expected_next: int | None = None,
    ) -> int | None:
        """Returns the new position of the group in the queue. None: the group moved after this was
        decided, and nothing was changed.
        """
        if expected_next is None:
            leases = self._queues.setdefault((group, queue), QueueLeases())
        else:
            known = self._queues.get((group, queue))
            if known is None or known.next != expected_next:
                return None
            leases = known
        for one in changes:
            value = None if one.is_done else (one.lease, one.visible_at_ms, one.attempts)
            leases.put(one.start, one.end, value)
        return leases.done_to

    def move(self, group: str, queue: Queue, queue_offset: int) -> None:
        """The group was set to another place, if it receives from the queue at all."""
        if (group, queue) in self._queues:
            self._queues[group, queue] = QueueLeases(queue_offset)

    def drop_group(self, group: str) -> None:
        self._queues = {place: one for place, one in self._queues.items() if place[0] != group}

    def drop_topic(self, topic: str) -> None:
        self._queues = {
            place: one for place, one in self._queues.items() if place[1].topic != topic
        }

    # -- checkpoints ------------------------------------------------------------------------------

    def encode(self) -> Iterator[LeaseState]:
        for (group, queue), one in sorted(self._queues.items()):
            values = array("Q", [value for each in one.ranges for value in each])
            yield LeaseState(
                group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                next=one.next,
                ranges=values.tobytes(),
            )

    def restore(self, states: Iterable[LeaseState]) -> None:
        self._queues.clear()
        for state in states:
            values = array("Q")
            values.frombytes(state.ranges)
            ranges = [
                Range._make(values[at : at + _FIELDS]) for at in range(0, len(values), _FIELDS)
            ]
            self._queues[state.group, Queue(state.topic, state.queue_id)] = QueueLeases(
                state.next, ranges
            )
