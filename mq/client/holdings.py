"""All queues that a consumer has in hand: who may take a message next, and what the broker has to
hear.

Safe to use from any thread: the stream fills it on its event loop, handlers take and finish where
they run. Invariants: in ordered mode at most one message of a queue is at work; a queue that leaves
the assignment gives out nothing more and is released when its last handler is through. It opens no
connection and waits for nothing but its own messages.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from mq.client.decode import Decoder, Frames
from mq.client.held_queue import HeldQueue, Taken
from mq.client.model import QueueRef
from mq.client.priorities import FairTurns
from mq.errors import MqError, NotAssigned
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.consumer_pb2 import Assignment, Delivery, QueueId, QueuePosition, SubscribeRequest


class OnReport(Protocol):
    def __call__(self, *, is_urgent: bool) -> None: ...


class _Released(NamedTuple):
    """What was let go of on this stream."""

    epoch: int
    done_to: int


class Holdings:
    """`on_ready` is called when there may be something to take, `on_report` when the broker should
    hear something: at once, or soon. Both under the lock, so they must not call back.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        is_ordered: bool = False,
        cache_messages: int = 1_000,
        cache_bytes: int = 100 << 20,
        on_ready: Callable[[], None] = lambda: None,
        on_report: OnReport = lambda *, is_urgent: None,  # noqa: ARG005
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_ready = on_ready
        self.on_report = on_report
        self.failure: MqError | None = None
        self._decoder = decoder
        self._is_ordered = is_ordered
        self._cache_messages = cache_messages
        self._cache_bytes = cache_bytes
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._queues: dict[QueueRef, HeldQueue] = {}
        # Those that have something to take, in the order of their turn.
        self._line: deque[HeldQueue] = deque()
        self._turns, self._has_ranks = FairTurns(), False
        # Failed messages: when to try again, a number that settles ties, the message.
        self._retries: list[tuple[float, int, Taken]] = []
        self._numbers = itertools.count()
        # What the broker has to hear of, and what it was told on this stream.
        self._dirty: dict[HeldQueue, None] = {}
        self._released: dict[QueueRef, _Released] = {}
        self._is_report_asked = False
        self._is_stopped = False
        self._is_suspended = False
        self._is_paused = False

    # From the broker

    def assign(self, assignment: Assignment, *, is_first: bool) -> None:
        """All queues from now on. `is_first` on a stream: the broker has heard `positions()`."""
        with self._changed:
            if is_first:
                self._released.clear()
                self._is_suspended = False
            listed = set()
            for one in assignment.queues:
                ref = QueueRef(one.topic, one.queue_id)
                listed.add(ref)
                queue = self._queues.get(ref)
                if queue is None:
                    queue = self._queues[ref] = self._new(ref, one.queue_offset, one.epoch)
                elif is_first:
                    self._resume(queue, one.queue_offset, one.epoch)
                elif one.epoch != queue.epoch:
                    self._move(queue, one.queue_offset, one.epoch)
                queue.rank = one.rank
                self._arrive(queue)
            self._has_ranks = any(one.rank for one in assignment.queues)
            for ref, queue in self._queues.items():
                if ref in listed:
                    continue
                if is_first:
                    # In hand, and not ours to go on with; for such the broker counts from 0.
                    queue.keep(queue.position, 0)
                    queue.forget_reports()
                queue.is_leaving = True
                self._note(queue, is_urgent=queue.running == 0)
            self._tell_ready()

    def _new(self, ref: QueueRef, queue_offset: int, epoch: int) -> HeldQueue:
        queue = HeldQueue(ref, queue_offset, epoch)
        released = self._released.pop(ref, None)
        if released and epoch > released.epoch and queue_offset <= released.done_to:
            # The broker gave it back before it heard of the release, and of our last progress.
            queue = HeldQueue(ref, released.done_to, epoch)
            queue.keep(queue_offset, epoch)
        queue.is_paused = self._is_paused
        return queue

    def _resume(self, queue: HeldQueue, queue_offset: int, epoch: int) -> None:
        """On a new stream: the broker goes on where we asked it to, or knows better."""
        queue.sent_seek = None
        if queue.position == queue_offset:
            queue.sought = None
            queue.keep(queue_offset, epoch)
            queue.forget_reports()
        elif queue.sought is None:
            queue.restart(queue_offset, epoch)
        else:
            # The broker has not heard of the seek; it is sent again.
            queue.epoch = epoch
            self._note(queue, is_urgent=True)

    def _move(self, queue: HeldQueue, queue_offset: int, epoch: int) -> None:
        """The epoch has changed within a stream."""
        if queue.sought != queue.sent_seek:
            # An earlier seek is answered, and the user wants to be elsewhere by now.
            queue.epoch, queue.sent_seek = epoch, None
            self._note(queue, is_urgent=True)
        elif queue.is_leaving and queue.sought is None and queue_offset in queue.reports:
            queue.keep(queue_offset, epoch)
        else:
            queue.restart(queue_offset, epoch)
            queue.sought = queue.sent_seek = None

    def _arrive(self, queue: HeldQueue) -> None:
        """It is assigned: new, or still."""
        if queue.is_leaving:
            queue.is_leaving = False
            postponed, queue.postponed = queue.postponed, []
            for taken in postponed:
                self._push_retry(taken, self._clock())
        self._note(queue)
        self._offer(queue)

    def deliver(self, delivery: Delivery, runs: Sequence[Frames], broker_set: str) -> None:
        """What is late, for a queue or an epoch of the past, is left out."""
        with self._changed:
            queue = self._queues.get(QueueRef(delivery.topic, delivery.queue_id))
            if queue is None or queue.epoch != delivery.epoch or queue.sought is not None:
                return
            queue.add(runs, delivery.next_offset, self._decoder, broker_set)
            if queue.reportable != queue.reported:
                self._note(queue)
            self._offer(queue)
            self._tell_ready()

    # Taking and finishing

    def take(self, messages_max: int) -> list[Taken]:
        """Those that are due again, then the next ones of one queue after the other. Raises what
        the broker has ended the consumer with.
        """
        with self._changed:
            if self.failure is not None:
                raise self.failure
            found: list[Taken] = []
            if self._is_stopped or self._is_suspended:
                return found
            while len(found) < messages_max and (due := self._take_retry()) is not None:
                found.append(due)
            while self._line and len(found) < messages_max:
                queue = self._whose_turn()
                queue.is_offered = False
                while self._can_take(queue) and len(found) < messages_max:
                    taken = queue.take()
                    if taken is None:
                        # All that was left nobody is to see.
                        self._note(queue)
                        break
                    found.append(taken)
                self._offer(queue)
            return found

    def wait_take(self, messages_max: int, timeout_s: float | None) -> list[Taken]:
        """`take` for threads: waits for the first message. Empty: out of time, or stopped."""
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        with self._changed:
            while True:
                found = self.take(messages_max)
                if found or self._is_stopped:
                    return found
                ends = [one for one in (deadline_s, self.next_retry_s()) if one is not None]
                left_s = min(ends) - self._clock() if ends else None
                if deadline_s is not None and deadline_s <= self._clock():
                    return found
                self._changed.wait(left_s)

    def done(self, taken: Iterable[Taken]) -> None:
        """Their work is done; each once."""
        with self._changed:
            for one in taken:
                queue = one.queue
                queue.finish(one)
                self._leave(queue)
                if self._is_ordered and self._offer(queue):
                    self._tell_ready(1)

    def give_up(self, taken: Iterable[Taken]) -> None:
        """Nobody works on them any more, and they are not done: the group gets them again."""
        with self._changed:
            for one in taken:
                one.queue.running -= 1
                self._leave(one.queue)

    def retry(self, taken: Taken, delay_s: float) -> None:
        """It failed, and is taken again after this time."""
        with self._changed:
            taken.failures += 1
            # A new one: whoever has the other may look at it.
            taken.message = replace(taken.message, attempt=taken.message.attempt + 1)
            taken.queue.running -= 1
            if not taken.is_void:
                taken.queue.waiting += 1
                self._push_retry(taken, self._clock() + delay_s)
                self._tell_ready(1)  # somebody has to wait for it
            self._leave(taken.queue)

    def _leave(self, queue: HeldQueue) -> None:
        """A handler is through."""
        if queue.is_leaving:
            self._note(queue, is_urgent=queue.running == 0)
        elif (done_to := queue.reportable) != queue.reported:
            credit = done_to - queue.reported
            is_urgent = (
                credit * 2 >= self._cache_messages or queue.done_bytes * 2 >= self._cache_bytes
            )
            self._note(queue, is_urgent=is_urgent)

    def _push_retry(self, taken: Taken, due_s: float) -> None:
        heapq.heappush(self._retries, (due_s, next(self._numbers), taken))

    def _take_retry(self) -> Taken | None:
        while self._retries and self._retries[0][0] <= self._clock():
            taken = heapq.heappop(self._retries)[2]
            queue = taken.queue
            if taken.is_void:
                continue
            if queue.is_leaving:
                queue.postponed.append(taken)
                continue
            queue.waiting -= 1
            queue.running += 1
            return taken
        return None

    def next_retry_s(self) -> float | None:
        """When a failed message is due again, by the clock of this object."""
        with self._changed:
            return self._retries[0][0] if self._retries else None

    def _can_take(self, queue: HeldQueue) -> bool:
        if queue.is_leaving or queue.is_paused or not queue.cached_messages:
            return False
        return not (self._is_ordered and (queue.running or queue.waiting))

    def _whose_turn(self) -> HeldQueue:
        """Out of the line; there must be one."""
        if not self._has_ranks:
            return self._line.popleft()
        queue = self._line[self._turns.choose([one.rank for one in self._line])]
        self._line.remove(queue)
        return queue

    def _offer(self, queue: HeldQueue) -> bool:
        """Puts it in the line, unless it stands there or has nothing to take."""
        if queue.is_offered or not self._can_take(queue):
            return False
        queue.is_offered = True
        self._line.append(queue)
        return True

    def _tell_ready(self, count: int | None = None) -> None:
        if count is None:
            self._changed.notify_all()
        else:
            self._changed.notify(count)
        self.on_ready()

    # To the broker

    def positions(self) -> dict[QueueRef, int]:
        """For a new stream: what is wanted next of all that is in hand."""
        with self._changed:
            return {ref: queue.position for ref, queue in self._queues.items()}

    def outgoing(self) -> list[SubscribeRequest]:
        """What the broker has not heard on this stream, in the order in which to say it."""
        with self._changed:
            dirty, self._dirty = self._dirty, {}
            self._is_report_asked = False
            seek, progress, released = wire.Seek(), wire.Progress(), wire.Released()
            for queue in dirty:
                if queue.sought is not None and queue.sent_seek is None:
                    queue.sent_seek = queue.sought
                    seek.positions.append(_position(queue.ref, queue.sought))
                elif queue.sought is None and queue.reportable != queue.reported:
                    place = _position(queue.ref, queue.report(), queue.epoch)
                    progress.positions.append(place)
                if queue.is_leaving and not queue.running and queue.ref in self._queues:
                    released.queues.append(
                        QueueId(topic=queue.ref.topic, queue_id=queue.ref.queue_id)
                    )
                    self._released[queue.ref] = _Released(queue.epoch, queue.progress.done_to)
                    del self._queues[queue.ref]
            requests = [
                SubscribeRequest(seek=seek) if seek.positions else None,
                SubscribeRequest(progress=progress) if progress.positions else None,
                SubscribeRequest(released=released) if released.queues else None,
            ]
            return [one for one in requests if one is not None]

    def _note(self, queue: HeldQueue, *, is_urgent: bool = False) -> None:
        self._dirty[queue] = None
        if is_urgent or not self._is_report_asked:
            self._is_report_asked = True
            self.on_report(is_urgent=is_urgent)

    def done_offsets(self) -> dict[QueueRef, int]:
        """Of all queues in hand: where the group would go on."""
        with self._changed:
            return {ref: queue.progress.done_to for ref, queue in self._queues.items()}

    # From the user

    @property
    def assignment(self) -> set[QueueRef]:
        with self._changed:
            return {ref for ref, queue in self._queues.items() if not queue.is_leaving}

    @property
    def cached_messages(self) -> dict[QueueRef, int]:
        """Delivered and not taken."""
        with self._changed:
            return {ref: queue.cached_messages for ref, queue in self._queues.items()}

    def seek(self, positions: Mapping[QueueRef, int]) -> None:
        """What was taken or delivered before is void. NotAssigned: nothing was moved."""
        with self._changed:
            for queue in self._named(positions):
                queue.seek(positions[queue.ref])
                self._note(queue, is_urgent=True)

    def pause(self, refs: Iterable[QueueRef] | None) -> None:
        """These queues, or all, also those that come."""
        with self._changed:
            self._is_paused = self._is_paused or refs is None
            for queue in self._named(refs):
                queue.is_paused = True

    def resume(self, refs: Iterable[QueueRef] | None) -> None:
        with self._changed:
            self._is_paused = self._is_paused and refs is not None
            for queue in self._named(refs):
                queue.is_paused = False
                self._offer(queue)
            self._tell_ready()

    def _named(self, refs: Iterable[QueueRef] | None) -> Iterator[HeldQueue]:
        if refs is None:
            return iter(list(self._queues.values()))
        wanted = [QueueRef(*ref) for ref in refs]
        missing = [ref for ref in wanted if ref not in self.assignment]
        if missing:
            raise NotAssigned(
                f"queue {missing[0].queue_id} of topic {missing[0].topic} is not assigned to this "
                "consumer"
            )
        return iter([self._queues[ref] for ref in wanted])

    # Endings

    def suspend(self) -> None:
        """The broker may believe by now that the consumer is gone, and give its queues to others:
        nothing is given out until it was heard again.
        """
        with self._changed:
            self._is_suspended = True

    def stop(self) -> None:
        """Nothing more is given out; what is at work may be finished."""
        with self._changed:
            self._is_stopped = True
            self._tell_ready()

    def fail(self, failure: MqError) -> None:
        """The consumer cannot go on; who takes gets this."""
        with self._changed:
            self.failure = self.failure or failure
            self._tell_ready()

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped


def _position(ref: QueueRef, queue_offset: int, epoch: int = 0) -> QueuePosition:
    return QueuePosition(
        topic=ref.topic, queue_id=ref.queue_id, queue_offset=queue_offset, epoch=epoch
    )
