"""Messages that were delivered to a consumer and are not finished yet, by queue.

Streams put deliveries in (`deliver`), handlers take messages out (`take`) and finish them (`done`,
`retry`, `give_up`); how far a queue is done goes back to its broker set (`outgoing`).
`PrefetchBuffer` has the state of all assigned queues under one lock and may be used from any
thread.

Invariants: messages of a queue are taken in order, each delivered one once, unless it was put back;
in ordered mode at most one range of a queue is in flight, of one message unless the consumer
`takes_ranges`; a queue that leaves the assignment gives out nothing more, and
is released when its last handler has finished; an event of one broker set moves no queue of
another. Nothing here opens a connection, or waits for anything but messages of the buffer.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from mq.client.cluster.topology import in_several_sets
from mq.client.consumer.prefetch_queue import (
    InFlight,
    PendingCommit,
    PrefetchQueue,
    SetReports,
    Signal,
)
from mq.client.decode import Decoder, Runs
from mq.client.messages import QueueRef
from mq.errors import MqError, NotAssigned
from mq.wire.v1 import consumer_pb2 as wire

# Every tenth turn goes to the queue that has waited longest, whatever its priority.
_FAIR_EACH = 10


class FairTurns:
    """Chooses among queues that have messages, given in the order in which they began to wait."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def choose(self, ranks: Sequence[int]) -> int:
        """An index of `ranks`, which must not be empty; a rank is the distance of a queue from the
        highest priority.
        """
        self._count += 1
        if self._count % _FAIR_EACH == 0:
            return 0
        return min(range(len(ranks)), key=ranks.__getitem__)


class Backlog(NamedTuple):
    """The messages of a queue that are delivered and not done, and how far it is done."""

    messages: int
    done_to: int


class PrefetchBuffer:
    """All queues that are assigned to a consumer, of all broker sets.

    `on_ready` is called under the lock when there may be a message to take: it must not call back.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        is_ordered: bool = False,
        takes_ranges: bool = False,
        cache_messages: int = 1_000,
        cache_bytes: int = 100 << 20,
        on_ready: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure: MqError | None = None
        self._on_ready = on_ready
        self._decoder = decoder
        self._is_ordered = is_ordered
        # In ordered mode, too, messages are taken together: they are handled as one, or in turn.
        self._takes_ranges = takes_ranges or not is_ordered
        self._cache_messages = cache_messages
        self._cache_bytes = cache_bytes
        self._clock = clock
        self._lock = threading.RLock()
        # Entered by threads that wait; the lock alone costs less.
        self._changed = threading.Condition(self._lock)
        self._queues: dict[QueueRef, PrefetchQueue] = {}
        # By broker set. Each queue in `_queues` has its set here.
        self._reports: dict[str, SetReports] = {}
        # Queues with messages to take, in the order of their turn.
        self._line: OrderedDict[PrefetchQueue, None] = OrderedDict()
        self._turns, self._has_ranks = FairTurns(), False
        # Failed messages: when to try again, a number that breaks ties, the message.
        self._retries: list[tuple[float, int, InFlight]] = []
        self._numbers = itertools.count()
        # Sets that were silent for too long: their queues give out nothing.
        self._suspended: set[str] = set()
        self._is_stopped = False
        self._is_paused = False

    # From the broker

    def open_set(self, broker_set: str, signal: Signal) -> None:
        """Before the first assignment of a set: `signal` is told when the set should hear a
        report.
        """
        with self._lock:
            self._reports[broker_set] = SetReports(signal)

    def assign(self, assignment: wire.Assignment, broker_set: str, *, is_first: bool) -> None:
        """All queues of this set from now on. The first assignment of a stream is the answer to
        `positions`.
        """
        with self._lock:
            reports = self._reports[broker_set]
            if is_first:
                reports.take_all_released()
                self._suspended.discard(broker_set)
            listed = set()
            for one in assignment.queues:
                ref = QueueRef(one.topic, one.queue_id, broker_set)
                listed.add(ref)
                queue = self._queues.get(ref)
                must_seek = False
                if queue is None:
                    queue = self._queues[ref] = self._new(ref, one.queue_offset, one.epoch)
                elif is_first:
                    must_seek = queue.resume(one.queue_offset, one.epoch)
                elif one.epoch != queue.epoch:
                    must_seek = queue.move(one.queue_offset, one.epoch)
                reports.note(queue, is_urgent=must_seek)
                queue.rank = one.rank
                self._arrive(queue)
            self._has_ranks = any(one.rank for one in self._queues.values())
            for ref, queue in self._of(broker_set):
                if ref in listed:
                    continue
                if is_first:
                    # Epochs of queues that are not assigned are counted from 0.
                    queue.keep(queue.position, 0)
                    queue.forget_reports()
                queue.is_leaving = True
                reports.note(queue, is_urgent=queue.running == 0)
            self._tell_ready()

    def _new(self, ref: QueueRef, queue_offset: int, epoch: int) -> PrefetchQueue:
        queue = PrefetchQueue(ref, queue_offset, epoch)
        released = self._reports[ref.broker_set].take_released(ref)
        if released and epoch == released.epoch + 1 and queue_offset <= released.done_to:
            # The broker assigned it again before it heard of the release and the last progress.
            queue = PrefetchQueue(ref, released.done_to, epoch)
            queue.keep(queue_offset, epoch)
        queue.is_paused = self._is_paused
        return queue

    def _arrive(self, queue: PrefetchQueue) -> None:
        """The queue is assigned: newly, again or still."""
        queue.is_leaving = False
        if queue.ref.broker_set not in self._suspended:
            for taken in queue.take_postponed():
                self._push_retry(taken, self._clock())
        self._offer(queue)

    def deliver(self, delivery: wire.Delivery, runs: Runs, broker_set: str) -> bool:
        """Returns False and drops the delivery if its queue or epoch is stale."""
        with self._lock:
            queue = self._current(
                QueueRef(delivery.topic, delivery.queue_id, broker_set), delivery.epoch
            )
            if queue is None:
                return False
            queue.add(runs, delivery.next_offset)
            if queue.reportable != queue.reported:
                self._reports[broker_set].note(queue)
            self._offer(queue)
            self._tell_ready()
            return True

    def _current(self, ref: QueueRef, epoch: int) -> PrefetchQueue | None:
        """The queue, if messages of this epoch may be added to it."""
        queue = self._queues.get(ref)
        is_current = queue is not None and queue.epoch == epoch and queue.sought is None
        return queue if is_current else None

    def backlog(self, ref: QueueRef, epoch: int) -> Backlog | None:
        """Returns None if messages of this epoch are no longer wanted."""
        with self._lock:
            queue = self._current(ref, epoch)
            if queue is None or queue.is_leaving:
                return None
            return Backlog(queue.unfinished, queue.done_to)

    # Messages, for handlers

    def take(self, messages_max: int, ranges_max: int | None = None) -> list[InFlight]:
        """Failed messages that are due again, then the next ones of one queue after the other, each
        time those of one delivery. Raises the error that ended the consumer.
        """
        with self._lock:
            if self.failure is not None:
                raise self.failure
            found: list[InFlight] = []
            if self._is_stopped:
                return found
            room = messages_max
            most = messages_max if ranges_max is None else ranges_max
            while self._retries and len(found) < most and room > 0:
                due = self._take_retry()
                if due is None:
                    break
                found.append(due)
                room -= len(due.messages)
            while self._line and len(found) < most and room > 0:
                queue = self._next_in_line()
                while self._can_take(queue) and len(found) < most and room > 0:
                    taken = queue.take(room if self._takes_ranges else 1, self._decoder)
                    if taken is None:
                        # The rest of the cache was filtered: that is progress, too.
                        self._reports[queue.ref.broker_set].note(queue)
                        break
                    found.append(taken)
                    room -= len(taken.messages)
                self._offer(queue)
            return found

    def take_or_wait(
        self, messages_max: int, deadline_s: float, ranges_max: int | None = None
    ) -> tuple[list[InFlight], float | None]:
        """As `take`; if there are none, how long to wait for some. None: no longer, since the time
        is over or the consumer was stopped.
        """
        found = self.take(messages_max, ranges_max)
        if found or self._is_stopped or (now_s := self._clock()) >= deadline_s:
            return found, None
        with self._lock:
            retry_s = self._retries[0][0] if self._retries else math.inf
        return found, min(deadline_s, retry_s) - now_s

    def wait_take(
        self, messages_max: int, timeout_s: float | None, ranges_max: int | None = None
    ) -> list[InFlight]:
        """`take` for threads: waits for the first message. Empty after the time-out, or when the
        consumer was stopped.
        """
        deadline_s = math.inf if timeout_s is None else self._clock() + timeout_s
        with self._lock:
            while True:
                found, wait_s = self.take_or_wait(messages_max, deadline_s, ranges_max)
                if wait_s is None:
                    return found
                self._changed.wait(None if math.isinf(wait_s) else wait_s)

    def done(self, taken: Iterable[InFlight]) -> None:
        """Each message once."""
        with self._lock:
            for one in taken:
                queue = one.queue
                queue.finish(one)
                self._report_finished(queue)
                if self._is_ordered and self._offer(queue):
                    self._tell_ready(1)

    def put_back(self, taken: InFlight) -> None:
        """No handler has seen the messages, the last ones of their queue that were taken: they are
        the next again.
        """
        with self._lock:
            taken.queue.put_back(taken)
            if self._offer(taken.queue):
                self._tell_ready(1)

    def give_up(self, taken: Iterable[InFlight]) -> None:
        """The messages are not done and no handler works on them: the group gets them again."""
        with self._lock:
            for one in taken:
                one.queue.give_up(one)
                self._report_finished(one.queue)

    def retry(self, taken: InFlight, delay_s: float) -> None:
        """The messages have failed, and are taken again here, together, after this time."""
        with self._lock:
            if taken.queue.fail(taken):
                self._push_retry(taken, self._clock() + delay_s)
                # One thread has to wait for that time.
                self._tell_ready(1)
            self._report_finished(taken.queue)

    def _report_finished(self, queue: PrefetchQueue) -> None:
        """A handler has finished a message of the queue."""
        if queue.is_leaving:
            # A dropped queue has nothing to report; its successor may be assigned by now.
            if self._queues.get(queue.ref) is queue:
                self._reports[queue.ref.broker_set].note(queue, is_urgent=queue.running == 0)
            return
        reports = self._reports[queue.ref.broker_set]
        # The broker delivers no more than the cache holds: at half of it, it should hear.
        is_urgent = (
            queue.unreported * 2 >= self._cache_messages
            or queue.unreported_bytes * 2 >= self._cache_bytes
        )
        if (is_urgent or not reports.is_pending(queue)) and queue.reportable != queue.reported:
            reports.note(queue, is_urgent=is_urgent)

    def _push_retry(self, taken: InFlight, due_s: float) -> None:
        heapq.heappush(self._retries, (due_s, next(self._numbers), taken))

    def _take_retry(self) -> InFlight | None:
        while self._retries and self._retries[0][0] <= self._clock():
            taken = heapq.heappop(self._retries)[2]
            queue = taken.queue
            if taken.is_void:
                continue
            if queue.is_leaving or queue.ref.broker_set in self._suspended:
                queue.postpone(taken)
                continue
            queue.take_again(taken)
            return taken
        return None

    def _can_take(self, queue: PrefetchQueue) -> bool:
        if queue.is_leaving or queue.is_paused or not queue.cached_messages:
            return False
        if self._suspended and queue.ref.broker_set in self._suspended:
            return False
        return not (self._is_ordered and (queue.running or queue.waiting))

    def _next_in_line(self) -> PrefetchQueue:
        """Leaves the line, which is not empty."""
        if not self._has_ranks:
            return self._line.popitem(last=False)[0]
        queues = list(self._line)
        queue = queues[self._turns.choose([one.rank for one in queues])]
        del self._line[queue]
        return queue

    def _offer(self, queue: PrefetchQueue) -> bool:
        """Puts the queue in the line. Returns False if it is there, or has nothing to take."""
        if queue in self._line or not self._can_take(queue):
            return False
        self._line[queue] = None
        return True

    def _tell_ready(self, threads: int | None = None) -> None:
        """Wakes so many waiting threads, or all."""
        if threads is None:
            self._changed.notify_all()
        else:
            self._changed.notify(threads)
        self._on_ready()

    # To the broker

    def reclaim(self, broker_set: str) -> None:
        """Before a new stream: queues that were released on the last one are here again, to be
        released once more. If the broker did not hear of the release, no other member knows their
        progress. In ordered mode only, where the lock of a queue says whether another member has
        it.
        """
        with self._lock:
            released = self._reports[broker_set].take_all_released()
            for ref, (_, done_to) in released.items() if self._is_ordered else ():
                if ref not in self._queues:
                    queue = self._queues[ref] = PrefetchQueue(ref, done_to, 0)
                    queue.is_leaving, queue.is_paused = True, self._is_paused

    def positions(self, broker_set: str) -> dict[QueueRef, int]:
        """For a new stream: the next message to deliver of each queue."""
        with self._lock:
            return {ref: queue.position for ref, queue in self._of(broker_set)}

    def outgoing(self, broker_set: str) -> list[wire.SubscribeRequest]:
        """The reports for the stream of the set, in the order in which to send them."""
        with self._lock:
            requests, released = self._reports[broker_set].outgoing()
            for ref in released:
                del self._queues[ref]
            return requests

    def _of(self, broker_set: str) -> list[tuple[QueueRef, PrefetchQueue]]:
        return [one for one in self._queues.items() if one[0].broker_set == broker_set]

    def done_offsets(self) -> dict[QueueRef, int]:
        """By queue, the offset at which the group would continue."""
        with self._lock:
            return {ref: queue.done_to for ref, queue in self._queues.items()}

    def to_commit(self, broker_set: str) -> list[PendingCommit]:
        """The progress of this set that is not known to be durable."""
        with self._lock:
            return [
                PendingCommit(queue, queue.version, queue.epoch, queue.done_to)
                for _, queue in self._of(broker_set)
                if queue.done_to != queue.committed
            ]

    def committed(self, commits: Iterable[PendingCommit]) -> None:
        """They are durable."""
        with self._lock:
            for one in commits:
                one.queue.commit(one)

    # From the user

    @property
    def assignment(self) -> set[QueueRef]:
        with self._lock:
            return {ref for ref, queue in self._queues.items() if not queue.is_leaving}

    @property
    def cached_messages(self) -> dict[QueueRef, int]:
        """Delivered and not taken."""
        with self._lock:
            return {ref: queue.cached_messages for ref, queue in self._queues.items()}

    def seek(self, positions: Mapping[QueueRef, int]) -> None:
        """Messages that were taken or delivered before are void. NotAssigned: nothing was moved."""
        with self._lock:
            named = self._named(positions)
            for queue, queue_offset in zip(named, positions.values(), strict=True):
                queue.seek(queue_offset)
                self._reports[queue.ref.broker_set].note(queue, is_urgent=True)

    def pause(self, refs: Iterable[QueueRef] | None) -> None:
        """These queues; None: all, also those that are assigned later."""
        with self._lock:
            self._is_paused = self._is_paused or refs is None
            for queue in self._named(refs):
                queue.is_paused = True

    def resume(self, refs: Iterable[QueueRef] | None) -> None:
        with self._lock:
            self._is_paused = self._is_paused and refs is not None
            for queue in self._named(refs):
                queue.is_paused = False
                self._offer(queue)
            self._tell_ready()

    def assigned(self, refs: Iterable[QueueRef]) -> list[QueueRef]:
        """The same, with their sets. NotAssigned; IllegalRequest if a set is missing and several
        have the queue.
        """
        with self._lock:
            return [queue.ref for queue in self._named(refs)]

    def _named(self, refs: Iterable[QueueRef] | None) -> list[PrefetchQueue]:
        if refs is None:
            return list(self._queues.values())
        return [self._queues[self._assigned(QueueRef(*ref))] for ref in refs]

    def _assigned(self, named: QueueRef) -> QueueRef:
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
            raise in_several_sets(*named[:2], sorted(ref.broker_set for ref in found))
        return found[0]

    # Ending

    def suspend(self, broker_set: str) -> None:
        """The set may take this consumer for gone, and assign its queues to others: they give out
        nothing until the set is heard again.
        """
        with self._lock:
            self._suspended.add(broker_set)

    def drop(self, broker_set: str) -> None:
        """The consumer has left the set: all messages of it are void."""
        with self._lock:
            for ref, queue in self._of(broker_set):
                queue.is_leaving = True
                queue.restart(queue.position, queue.epoch)
                del self._queues[ref]
            self._reports.pop(broker_set, None)
            self._suspended.discard(broker_set)

    def stop(self) -> None:
        """Nothing more is given out; messages in flight may be finished."""
        with self._lock:
            self._is_stopped = True
            self._tell_ready()

    def fail(self, failure: MqError) -> None:
        """The consumer cannot go on; `take` raises this. The first failure counts."""
        with self._lock:
            self.failure = self.failure or failure
            self._tell_ready()

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped
