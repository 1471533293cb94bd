"""Requests about messages that were received: acknowledged, given back, kept longer, or turned into
dead letters. Pure decisions over the draft of a turn.

A handle is valid when all of its messages are held by its lease: also after its time, as long as no
other receiver was given them. A handle that is not valid changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mq.broker.queue import Queue
from mq.broker.receive.leases import (
    CHANGE_BYTES,
    QUEUE_BYTES,
    AtomicBatches,
    Handle,
    LeaseDraft,
    LeaseTurn,
    entry_bytes,
)
from mq.broker.retry.retries import wait_ms
from mq.broker.state.dedup import StoredAt
from mq.broker.state.leases import Range
from mq.errors import IllegalHandle

# Characters of a reason in the log, and of all reasons of one request.
REASON_TOLD_MAX, _REASONS_TOLD_MAX = 200, 10_000


def held_ranges(draft: LeaseDraft, group: str, handle: Handle) -> list[Range] | None:
    """The ranges of a handle's messages. None: the handle is not valid."""
    _, lease, start, end = handle
    leases = draft.get(group, handle.queue)
    first = leases.at(start) if leases else None
    if leases is None or first is None or first.lease != lease:
        return None
    if first.end >= end:
        is_whole = first.start == start and first.end == end
        return [first if is_whole else Range(start, end, *first[2:])]
    found: list[Range] = []
    reached = start
    for one in leases.within(start, end):
        if one.lease != lease or one.start > reached:
            return None
        found.append(Range(reached, min(one.end, end), *one[2:]))
        reached = one.end
    return found if reached >= end else None


def changes_bytes(handles: Sequence[Handle | None]) -> int:
    """Upper bound of what the changes of the handles take of an entry."""
    if len(handles) == 1:
        return CHANGE_BYTES + QUEUE_BYTES
    joined = _joined(handles)
    queues = len({handle.queue for _, _, handle in joined})
    return len(joined) * CHANGE_BYTES + queues * QUEUE_BYTES


def _joined(handles: Sequence[Handle | None]) -> list[tuple[int, int, Handle]]:
    """Neighbours of one lease as one, with the indexes that they came from."""
    joined: list[tuple[int, int, Handle]] = []
    for at, handle in enumerate(handles):
        if handle is None:
            continue
        if joined:
            first, stop, last = joined[-1]
            if stop == at and last[:2] == handle[:2] and last.end == handle.start:
                joined[-1] = first, at + 1, last._replace(end=handle.end)
                continue
        joined.append((at, at + 1, handle))
    return joined


class HandlesSettled(NamedTuple):
    valid: list[bool]  # of each handle
    # Where that was asked for: until when the messages of the valid ones are.
    invisible_until_ms: int = 0


# What most requests come to.
ONE_DONE = HandlesSettled([True])


@dataclass(slots=True)
class HandleRequest:
    """Changes the messages of some handles; each kind of request says how it changes a range."""

    group: str
    handles: Sequence[Handle | None]

    def decide(self, turn: LeaseTurn) -> HandlesSettled:
        handles = self.handles
        turn.check_fits(changes_bytes(handles))
        if len(handles) != 1:
            return HandlesSettled(self._settle(turn, handles))
        (handle,) = handles
        ranges = held_ranges(turn.draft, self.group, handle) if handle is not None else None
        if handle is None or ranges is None:
            return HandlesSettled([False])
        for one in ranges:
            self._change(turn, handle.queue, one)
        return ONE_DONE

    def _settle(self, turn: LeaseTurn, handles: Sequence[Handle | None]) -> list[bool]:
        valid = [False] * len(handles)
        for first, stop, joined in _joined(handles):
            ranges = held_ranges(turn.draft, self.group, joined)
            if ranges is not None:
                valid[first:stop] = [True] * (stop - first)
                for one in ranges:
                    self._change(turn, joined.queue, one)
            elif stop - first > 1:
                # One of them is not valid: each counts for itself.
                valid[first:stop] = [
                    self._settle(turn, [handle])[0] for handle in handles[first:stop]
                ]
        return valid

    def _change(self, turn: LeaseTurn, queue: Queue, one: Range) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class Ack(HandleRequest):
    """The messages are done."""

    def _change(self, turn: LeaseTurn, queue: Queue, one: Range) -> None:
        turn.draft.put(self.group, queue, one.start, one.end, None)


@dataclass(slots=True)
class ChangeInvisible(HandleRequest):
    """The messages stay invisible for so long, from the decision on."""

    invisible_ms: int

    def decide(self, turn: LeaseTurn) -> HandlesSettled:
        settled = HandleRequest.decide(self, turn)
        return settled._replace(invisible_until_ms=turn.now_ms + self.invisible_ms)

    def _change(self, turn: LeaseTurn, queue: Queue, one: Range) -> None:
        value = one.lease, turn.now_ms + self.invisible_ms, one.attempts
        turn.draft.put(self.group, queue, one.start, one.end, value)


@dataclass(slots=True)
class Return(HandleRequest):
    """The messages are as if they had not been given out: their receiver is gone."""

    def _change(self, turn: LeaseTurn, queue: Queue, one: Range) -> None:
        value = 0, turn.now_ms, one.attempts - 1
        turn.draft.put(self.group, queue, one.start, one.end, value)


@dataclass(slots=True)
class Nack(HandleRequest):
    """The messages are visible again after the delay, by default one that grows with the number of
    attempts. A message that was given out more often than `retries_max` allows is a dead letter.
    """

    delay_ms: int | None
    retries_max: int
    reason: str

    def decide(self, turn: LeaseTurn) -> HandlesSettled:
        told = min(len(self.reason) * len(self.handles), _REASONS_TOLD_MAX)
        turn.check_fits(changes_bytes(self.handles) + 4 * told)
        return HandlesSettled(self._settle(turn, self.handles))

    def _change(self, turn: LeaseTurn, queue: Queue, one: Range) -> None:
        start, delay_ms = one.start, self.delay_ms
        if one.attempts > self.retries_max:
            start = turn.to_dead_letters(self.group, queue, one, self.reason)
            # The rest follows soon: no receiver is given it.
            delay_ms = 0
        elif delay_ms is None:
            delay_ms = wait_ms(one.attempts)
        value = 0, turn.now_ms + delay_ms, one.attempts
        # Of many messages less is said.
        told = self.reason[: min(REASON_TOLD_MAX, _REASONS_TOLD_MAX // len(self.handles))]
        turn.draft.put(self.group, queue, start, one.end, value, told)


@dataclass(slots=True)
class AtomicAck:
    """All handles or none, and the batches with them, as one entry."""

    group: str
    handles: Sequence[Handle | None]
    atomic: AtomicBatches

    def decide(self, turn: LeaseTurn) -> list[StoredAt]:
        """The positions of the batches, when the turn is over. Raises IllegalHandle,
        MessageTooLarge: nothing was written.
        """
        batches = self.atomic.batches
        turn.check_fits(entry_bytes(batches) + changes_bytes(self.handles))
        stored = self.atomic.stored_before()
        if stored is not None:
            return stored
        for at, handle in enumerate(self.handles):
            if handle is None or held_ranges(turn.draft, self.group, handle) is None:
                raise IllegalHandle(
                    f"handle {at} of {len(self.handles)} is of no message in flight in group "
                    f"{self.group}: acknowledged before, or its time was over and another "
                    "consumer has it"
                )
        Ack(self.group, self.handles).decide(turn)
        self.atomic.begin()
        return turn.add(batches, self.atomic)


@dataclass(slots=True)
class SkipFiltered:
    """Messages that the filter left out are done: by queue the known `next`, and the end."""

    group: str
    skipped: Mapping[Queue, tuple[int, int]]

    def decide(self, turn: LeaseTurn) -> None:
        for queue, (known_next, end) in self.skipped.items():
            leases = turn.draft.get(self.group, queue)
            if leases is not None and leases.next == known_next:
                turn.draft.put(self.group, queue, known_next, end, None)


@dataclass(slots=True)
class DropExhausted:
    """Messages that were given out too often, and not acknowledged in time, are dead letters."""

    group: str
    queues: Sequence[Queue]
    retries_max: int

    def decide(self, turn: LeaseTurn) -> list[Queue]:
        """The queues that have no more of them; the others have to be asked for again."""
        finished: list[Queue] = []
        for queue in self.queues:
            leases = turn.draft.get(self.group, queue)
            for one in list(leases.ranges) if leases else ():
                if one.attempts <= self.retries_max or one.visible_at_ms > turn.now_ms:
                    continue
                reason = f"given out {one.attempts} times and not acknowledged in time"
                if turn.is_full or turn.to_dead_letters(self.group, queue, one, reason) < one.end:
                    return finished
            finished.append(queue)
        return finished
