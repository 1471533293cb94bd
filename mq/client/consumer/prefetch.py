"""All queues that a consumer has in hand, of all broker sets: who may take a message next, and what
each set has to hear.

Safe to use from any thread: streams fill it on their event loop, one for each set, handlers take
and finish where they run. Invariants: in ordered mode at most one message of a queue is at work; a
queue that leaves the assignment gives out nothing more and is released when its last handler is
through; what happens to one set moves no queue of another. It opens no connection and waits for
nothing but its own messages.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mq.client.consumer.reports import OnReport, Reports
from mq.client.decode import Decoded, Decoder, Frames
from mq.client.messages import QueueRef, ReceivedMessage
from mq.client.producer.priorities import FairTurns
from mq.errors import IllegalRequest, MqError, NotAssigned
from mq.wire.v1.consumer_pb2 import Assignment, Delivery, SubscribeRequest


class QueueProgress:
    """Messages are taken in the order of their queue, and each one finished once."""

    __slots__ = ("_finished", "_taken", "_taken_to")

    def __init__(self, queue_offset: int) -> None:
        self._taken_to = queue_offset
        # In the order of the queue; the first one is not finished.
        self._taken: deque[int] = deque()
        # Of those behind the first one.
        self._finished: set[int] = set()

    @property
    def done_to(self) -> int:
        """Where the group goes on if the consumer is lost."""
        return self._taken[0] if self._taken else self._taken_to

    @property
    def taken_to(self) -> int:
        """The next one that can be taken is not before this."""
        return self._taken_to

    @property
    def under_way(self) -> int:
        """InFlight and not finished, or finished behind one that is not."""
        return len(self._taken)

    def take(self, queue_offset: int) -> None:
        if queue_offset < self._taken_to:
            raise ValueError(f"{queue_offset} is taken after {self._taken_to - 1}")
        self._taken.append(queue_offset)
        self._taken_to = queue_offset + 1

    def skip_to(self, queue_offset: int) -> None:
        """What was not taken before this one needs no work: a filter left it out."""
        self._taken_to = max(self._taken_to, queue_offset)

    def finish(self, queue_offset: int) -> None:
        taken, finished = self._taken, self._finished
        if taken[0] != queue_offset:
            finished.add(queue_offset)
            return
        taken.popleft()
        while taken and taken[0] in finished:
            finished.remove(taken.popleft())


@dataclass(slots=True)
class InFlight:
    """A message in the hands of whoever works on it."""

    queue: PrefetchQueue
    version: int
    message: ReceivedMessage
    frame_bytes: int
    failures: int = 0

    @property
    def is_void(self) -> bool:
        return self.version != self.queue.version


@dataclass(slots=True)
class _Cached:
    """A delivery, of which some messages may be taken already."""

    messages: Iterator[Decoded]
    count: int
    next_offset: int


class PrefetchQueue:
    def __init__(self, ref: QueueRef, queue_offset: int, epoch: int) -> None:
        self.ref = ref
        self.version = 0
        # Handlers at work, of any version.
        self.running = 0
        self.is_leaving = False
        # How far below the highest priority of its topic.
        self.rank = 0
        self.is_paused = False
        # Stands in the line of those that have something to take; `PrefetchBuffer` keeps that line.
        self.is_offered = False
        # The broker is to hear of it; `Reports` knows what.
        self.is_noted = False
        # Failed, and their time has not come; those whose time came when the queue was leaving.
        self.waiting = 0
        self.postponed: list[InFlight] = []
        # Where the user wants to go, and what of it the broker was told.
        self.sought: int | None = None
        self.sent_seek: int | None = None
        self._begin(queue_offset, epoch)

    def _begin(self, queue_offset: int, epoch: int) -> None:
        self.epoch = epoch
        self.progress = QueueProgress(queue_offset)
        # Behind all that was delivered: what is wanted next.
        self.position = queue_offset
        # The same, under this epoch.
        self.received_to = queue_offset
        self.reported = queue_offset
        # What is durable, by a commit that was answered under this epoch.
        self.committed = -1
        self.done_bytes = 0
        self._cache: deque[_Cached] = deque()
        self.cached_messages = 0

    # Positions

    def restart(self, queue_offset: int, epoch: int) -> None:
        """What came before is void."""
        self.version += 1
        self.waiting = 0
        self.postponed.clear()
        self._begin(queue_offset, epoch)

    def keep(self, queue_offset: int, epoch: int) -> None:
        """The broker delivers again from a place that lies behind us: what is in hand stays, and
        what comes twice is left out.
        """
        self.epoch = epoch
        self.received_to = self.reported = queue_offset
        self.committed = -1

    def comes_back(self, queue_offset: int, epoch: int) -> bool:
        """It was to leave, and is assigned again, from the place that the broker knew: that is not
        beyond what is done, but may be any before it, because reports were lost with a stream. One
        that was moved as well, by an operator, has come a further epoch.
        """
        return epoch == self.epoch + 1 and queue_offset <= self.progress.done_to

    def seek(self, queue_offset: int) -> None:
        """Nothing is delivered until the broker says that it goes on from there."""
        self.restart(queue_offset, self.epoch)
        self.sought = queue_offset

    @property
    def reportable(self) -> int:
        """Everything before it is done, and was delivered under this epoch."""
        return min(self.progress.done_to, self.received_to)

    def forget_reports(self) -> None:
        """On a new stream nothing was said yet: what was on its way may be lost."""
        self.reported = -1

    def report(self) -> int:
        """`reportable`, which is about to be sent."""
        self.reported = self.reportable
        self.done_bytes = 0
        return self.reported

    # Messages

    @property
    def unfinished(self) -> int:
        """Delivered and not done, or done behind one that is not."""
        return self.cached_messages + self.progress.under_way

    def add(self, runs: Sequence[Frames], next_offset: int, decoder: Decoder) -> None:
        """A delivery under the epoch of the day."""
        first = runs[0].queue_offset if runs else next_offset
        if first < self.received_to:
            # The queue is shorter than it was: its topic is another one of the same name.
            self.restart(first, self.epoch)
        self.received_to = next_offset
        if next_offset <= self.position:
            return
        runs = [part for run in runs if (part := run.behind(self.position)).frame_sizes]
        count = sum(len(run.frame_sizes) for run in runs)
        self.position = next_offset
        messages = decoder.messages(self.ref, runs, self.ref.broker_set)
        self._cache.append(_Cached(messages, count, next_offset))
        self.cached_messages += count
        self._drop_empty()

    def take(self) -> InFlight | None:
        """The next message; what nobody is to see is passed over. None: the cache is empty."""
        while self._cache:
            cached = self._cache[0]
            decoded = next(cached.messages)
            cached.count -= 1
            self.cached_messages -= 1
            if decoded.message is not None:
                self.progress.take(decoded.queue_offset)
            self._drop_empty()
            if decoded.message is not None:
                self.running += 1
                return InFlight(self, self.version, decoded.message, decoded.frame_bytes)
        return None

    def _drop_empty(self) -> None:
        while self._cache and not self._cache[0].count:
            self.progress.skip_to(self._cache.popleft().next_offset)

    def finish(self, taken: InFlight) -> None:
        """Its work is done."""
        self.running -= 1
        if not taken.is_void:
            self.progress.finish(taken.message.queue_offset)
            self.done_bytes += taken.frame_bytes


class InHand(NamedTuple):
    messages: int
    done_to: int


class ToCommit(NamedTuple):
    queue: PrefetchQueue
    version: int
    epoch: int
    queue_offset: int


class PrefetchBuffer:
    """`on_ready` is called when there may be something to take, `on_report` when a broker set
    should hear something: at once, or soon. Both under the lock, so they must not call back.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        is_ordered: bool = False,
        cache_messages: int = 1_000,
        cache_bytes: int = 100 << 20,
        on_ready: Callable[[], None] = lambda: None,
        on_report: OnReport = lambda _, *, is_urgent: None,  # noqa: ARG005
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_ready = on_ready
        self.failure: MqError | None = None
        self._decoder = decoder
        self._is_ordered = is_ordered
        self._cache_messages = cache_messages
        self._cache_bytes = cache_bytes
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._queues: dict[QueueRef, PrefetchQueue] = {}
        # Those that have something to take, in the order of their turn.
        self._line: deque[PrefetchQueue] = deque()
        self._turns, self._has_ranks = FairTurns(), False
        # Failed messages: when to try again, a number that settles ties, the message.
        self._retries: list[tuple[float, int, InFlight]] = []
        self._numbers = itertools.count()
        self._reports = Reports(on_report)
        # Sets that were not heard for too long.
        self._suspended: set[str] = set()
        self._is_stopped = False
        self._is_paused = False

    # From the broker

    def assign(self, assignment: Assignment, broker_set: str, *, is_first: bool) -> None:
        """All queues of this set from now on. `is_first` on a stream: the broker has heard
        `positions()`.
        """
        with self._changed:
            if is_first:
                self._reports.begin(broker_set)
                self._suspended.discard(broker_set)
            listed = set()
            for one in assignment.queues:
                ref = QueueRef(one.topic, one.queue_id, broker_set)
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
            self._has_ranks = any(one.rank for one in self._queues.values())
            for ref, queue in self._queues.items():
                if ref.broker_set != broker_set or ref in listed:
                    continue
                if is_first:
                    # In hand, and not ours to go on with; for such the broker counts from 0.
                    queue.keep(queue.position, 0)
                    queue.forget_reports()
                queue.is_leaving = True
                self._reports.note(queue, is_urgent=queue.running == 0)
            self._tell_ready()

    def _new(self, ref: QueueRef, queue_offset: int, epoch: int) -> PrefetchQueue:
        queue = PrefetchQueue(ref, queue_offset, epoch)
        released = self._reports.take_released(ref)
        if released and epoch == released.epoch + 1 and queue_offset <= released.done_to:
            # The broker gave it back before it heard of the release, and of our last progress.
            queue = PrefetchQueue(ref, released.done_to, epoch)
            queue.keep(queue_offset, epoch)
        queue.is_paused = self._is_paused
        return queue

    def _resume(self, queue: PrefetchQueue, queue_offset: int, epoch: int) -> None:
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
            self._reports.note(queue, is_urgent=True)

    def _move(self, queue: PrefetchQueue, queue_offset: int, epoch: int) -> None:
        """The epoch has changed within a stream."""
        if queue.sought != queue.sent_seek:
            # An earlier seek is answered, and the user wants to be elsewhere by now.
            queue.epoch, queue.sent_seek = epoch, None
            self._reports.note(queue, is_urgent=True)
        elif queue.is_leaving and queue.sought is None and queue.comes_back(queue_offset, epoch):
            queue.keep(queue_offset, epoch)
        else:
            queue.restart(queue_offset, epoch)
            queue.sought = queue.sent_seek = None

    def _arrive(self, queue: PrefetchQueue) -> None:
        """It is assigned: new, or still."""
        queue.is_leaving = False
        if queue.ref.broker_set not in self._suspended:
            postponed, queue.postponed = queue.postponed, []
            for taken in postponed:
                self._push_retry(taken, self._clock())
        self._reports.note(queue)
        self._offer(queue)

    def deliver(self, delivery: Delivery, runs: Sequence[Frames], broker_set: str) -> bool:
        """What is late, for a queue or an epoch of the past, is left out: False."""
        with self._changed:
            ref = QueueRef(delivery.topic, delivery.queue_id, broker_set)
            queue = self._queues.get(ref)
            if queue is None or queue.epoch != delivery.epoch or queue.sought is not None:
                return False
            queue.add(runs, delivery.next_offset, self._decoder)
            if queue.reportable != queue.reported:
                self._reports.note(queue)
            self._offer(queue)
            self._tell_ready()
            return True

    def in_hand(self, ref: QueueRef, epoch: int) -> InHand | None:
        """What was delivered of a queue and is not done; None: nothing more is wanted under this
        epoch.
        """
        with self._changed:
            queue = self._queues.get(ref)
            if queue is None or queue.epoch != epoch or queue.sought is not None:
                return None
            return (
                InHand(queue.unfinished, queue.progress.done_to) if not queue.is_leaving else None
            )

    # Taking and finishing

    def take(self, messages_max: int) -> list[InFlight]:
        """Those that are due again, then the next ones of one queue after the other. Raises what
        the broker has ended the consumer with.
        """
        with self._changed:
            if self.failure is not None:
                raise self.failure
            found: list[InFlight] = []
            if self._is_stopped:
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
                        self._reports.note(queue)
                        break
                    found.append(taken)
                self._offer(queue)
            return found

    def wait_take(self, messages_max: int, timeout_s: float | None) -> list[InFlight]:
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

    def done(self, taken: Iterable[InFlight]) -> None:
        """Their work is done; each once."""
        with self._changed:
            for one in taken:
                queue = one.queue
                queue.finish(one)
                self._leave(queue)
                if self._is_ordered and self._offer(queue):
                    self._tell_ready(1)

    def give_up(self, taken: Iterable[InFlight]) -> None:
        """Nobody works on them any more, and they are not done: the group gets them again."""
        with self._changed:
            for one in taken:
                one.queue.running -= 1
                self._leave(one.queue)

    def retry(self, taken: InFlight, delay_s: float) -> None:
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

    def _leave(self, queue: PrefetchQueue) -> None:
        """A handler is through."""
        if queue.is_leaving:
            self._reports.note(queue, is_urgent=queue.running == 0)
        elif (done_to := queue.reportable) != queue.reported:
            credit = done_to - queue.reported
            is_urgent = (
                credit * 2 >= self._cache_messages or queue.done_bytes * 2 >= self._cache_bytes
            )
            self._reports.note(queue, is_urgent=is_urgent)

    def _push_retry(self, taken: InFlight, due_s: float) -> None:
        heapq.heappush(self._retries, (due_s, next(self._numbers), taken))

    def _take_retry(self) -> InFlight | None:
        while self._retries and self._retries[0][0] <= self._clock():
            taken = heapq.heappop(self._retries)[2]
            queue = taken.queue
            if taken.is_void:
                continue
            if queue.is_leaving or queue.ref.broker_set in self._suspended:
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

    def _can_take(self, queue: PrefetchQueue) -> bool:
        if queue.is_leaving or queue.is_paused or not queue.cached_messages:
            return False
        if self._suspended and queue.ref.broker_set in self._suspended:
            return False
        return not (self._is_ordered and (queue.running or queue.waiting))

    def _whose_turn(self) -> PrefetchQueue:
        """Out of the line; there must be one."""
        if not self._has_ranks:
            return self._line.popleft()
        queue = self._line[self._turns.choose([one.rank for one in self._line])]
        self._line.remove(queue)
        return queue

    def _offer(self, queue: PrefetchQueue) -> bool:
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

    def reclaim(self, broker_set: str) -> None:
        """Before a new stream: what was let go of on the last one is in hand again, to be let go of
        once more. If the broker did not hear of it, nobody else knows how far it is. In ordered
        mode only, where the lock says whether another has it by now.
        """
        with self._changed:
            released = self._reports.unheard(broker_set) if self._is_ordered else {}
            for ref, (_, done_to) in released.items():
                if ref not in self._queues:
                    queue = self._queues[ref] = PrefetchQueue(ref, done_to, 0)
                    queue.is_leaving, queue.is_paused = True, self._is_paused

    def positions(self, broker_set: str) -> dict[QueueRef, int]:
        """For a new stream: what is wanted next of all that is in hand."""
        with self._changed:
            return {ref: queue.position for ref, queue in self._of(broker_set)}

    def outgoing(self, broker_set: str) -> list[SubscribeRequest]:
        """What the set has not heard on its stream, in the order in which to say it."""
        with self._changed:
            return self._reports.outgoing(broker_set, self._queues)

    def _of(self, broker_set: str) -> list[tuple[QueueRef, PrefetchQueue]]:
        return [one for one in self._queues.items() if one[0].broker_set == broker_set]

    def done_offsets(self) -> dict[QueueRef, int]:
        """Of all queues in hand: where the group would go on."""
        with self._changed:
            return {ref: queue.progress.done_to for ref, queue in self._queues.items()}

    def to_commit(self, broker_set: str) -> list[ToCommit]:
        """What is done in this set and not known to be durable there."""
        with self._changed:
            return [
                ToCommit(queue, queue.version, queue.epoch, queue.progress.done_to)
                for _, queue in self._of(broker_set)
                if queue.progress.done_to != queue.committed
            ]

    def committed(self, positions: Iterable[ToCommit]) -> None:
        """They are durable. Not noted where the queue has moved meanwhile."""
        with self._changed:
            for queue, version, epoch, queue_offset in positions:
                if (queue.version, queue.epoch) == (version, epoch):
                    queue.committed = queue_offset

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
            named = self._named(positions)
            for queue, queue_offset in zip(named, positions.values(), strict=True):
                queue.seek(queue_offset)
                self._reports.note(queue, is_urgent=True)

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

    def assigned(self, refs: Iterable[QueueRef]) -> list[QueueRef]:
        """The same, with their sets. NotAssigned; IllegalRequest when there is a choice."""
        with self._changed:
            return [queue.ref for queue in self._named(refs)]

    def _named(self, refs: Iterable[QueueRef] | None) -> list[PrefetchQueue]:
        if refs is None:
            return list(self._queues.values())
        return [self._queues[self._assigned(QueueRef(*ref))] for ref in refs]

    def _assigned(self, named: QueueRef) -> QueueRef:
        """The set may be left out where there is no choice."""
        found = [
            ref
            for ref, queue in self._queues.items()
            if ref[:2] == named[:2]
            and named.broker_set in ("", ref.broker_set)
            and not queue.is_leaving
        ]
        where = f"queue {named.queue_id} of topic {named.topic}"
        if not found:
            of_set = f" in broker set {named.broker_set}" if named.broker_set else ""
            raise NotAssigned(f"{where}{of_set} is not assigned to this consumer")
        if len(found) > 1:
            sets = ", ".join(sorted(ref.broker_set for ref in found))
            raise IllegalRequest(f"{where} is in {sets}: say which broker set")
        return found[0]

    # Endings

    def suspend(self, broker_set: str) -> None:
        """The set may believe by now that the consumer is gone, and give its queues to others:
        nothing of them is given out until it was heard again.
        """
        with self._changed:
            self._suspended.add(broker_set)

    def drop(self, broker_set: str) -> None:
        """The consumer is not in this set any more: what it had there is void."""
        with self._changed:
            for ref, queue in self._of(broker_set):
                queue.is_leaving = True
                queue.restart(queue.position, queue.epoch)
                del self._queues[ref]
            self._reports.drop(broker_set)
            self._suspended.discard(broker_set)

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


_Place = tuple[str, str, int, int]


class PolledMessages:
    def __init__(self, buffer: PrefetchBuffer) -> None:
        self._buffer = buffer
        self._lock = threading.Lock()
        # By its place and not by the object: users may hand back a copy.
        self._open: dict[_Place, InFlight] = {}

    def add(self, taken: Iterable[InFlight]) -> list[ReceivedMessage]:
        with self._lock:
            messages = []
            for one in taken:
                former = self._open.pop(place := _place(one.message), None)
                if former is not None:
                    # It came again after a seek.
                    self._buffer.give_up([former])
                self._open[place] = one
                messages.append(one.message)
            return messages

    def done(self, messages: Iterable[ReceivedMessage]) -> None:
        """Those that are done already, or void by now, are left out."""
        with self._lock:
            found = [self._open.pop(_place(one), None) for one in messages]
            self._buffer.done([one for one in found if one is not None])

    def take_back(self, messages: Iterable[ReceivedMessage]) -> list[InFlight]:
        """Those of them that are not done, for somebody else to finish."""
        with self._lock:
            found = [self._open.pop(_place(one), None) for one in messages]
            return [one for one in found if one is not None]

    def all_done(self) -> None:
        with self._lock:
            taken, self._open = self._open, {}
            self._buffer.done(taken.values())


def _place(message: ReceivedMessage) -> _Place:
    # The id begins with the broker set.
    return message.message_id, message.topic, message.queue_id, message.queue_offset
