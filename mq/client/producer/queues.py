"""Batches of a producer, their outcomes, and the buffers in which they wait for their queue.

A queue has one batch in flight at a time, which keeps the queue while it is retried, so that the
messages of a producer stand in a queue in the order in which they were sent. Meanwhile the next
batch grows. A topic has queues in one or more broker sets; ordering keys choose among all of them,
in an order that is the same for all clients. When the queues of a topic change, a key moves to its
new queue once all of its messages in the old one are answered. Sequences of batches start at 1 in
each set, and the sequence of a batch that was certainly not stored is used again. No locks: the
accumulator owns one.

A batch has one outcome for all of its messages. The result of a message is made when it is read; a
future for threads is an index into the outcome of its batch, and costs a lock, lists and callbacks
only when it is waited for.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import struct
import threading
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mq.client.cluster.errors import fresh, unanswered
from mq.client.cluster.topology import in_several_sets, unknown_priority
from mq.client.encode import Bodies, Encoded, Prepared, Run, place, prepare
from mq.client.messages import SendResult
from mq.errors import IllegalRequest, MqError, NoLeader, Unreachable
from mq.wire.v1.cluster_pb2 import TopicRoute
from mq.wire.v1.producer_pb2 import BatchResult

# The bytes of a message in a batch beyond its frame: its size and the hash of its tag.
MESSAGE_OVERHEAD_BYTES = 12
# The bytes beyond the body of a message that is only a body; a few more for bodies above 16 KiB.
BODY_OVERHEAD_BYTES = MESSAGE_OVERHEAD_BYTES + 13


class ResultFuture(Protocol):
    """A future of asyncio or of threads."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


# Held for a few instructions: between the check for an outcome and the registration of a waiter.
_registering = threading.Lock()


class BatchOutcome:
    """The outcome of the messages of one batch, which are known by their index. Set by the event
    loop; any thread may read it. It does not hold the messages, only the sizes of their frames.
    """

    __slots__ = ("_first", "_offsets", "_sizes", "error", "is_done", "moved", "one_way", "waiting")

    def __init__(self) -> None:
        self.is_done = False
        self.error: Exception | None = None
        # The messages whose failure is only logged.
        self.one_way: list[int] = []
        # After the batch was dissolved: for each message, the outcome that has it, and its index.
        self.moved: Sequence[tuple[BatchOutcome, int]] = ()
        # Futures that are set when the batch is done.
        self.waiting: list[tuple[int, ResultFuture]] = []

    def attach(self, index: int, future: ResultFuture | None) -> None:
        """Before the batch leaves: this future gets the result of the message."""
        if future is None:
            self.one_way.append(index)
        elif isinstance(future, SendFuture):
            future.place = self, index
        else:
            self.waiting.append((index, future))

    def succeed(
        self, topic: str, broker_set: str, result: BatchResult, status: str, sizes: bytes
    ) -> None:
        """`sizes`: of the frames, packed."""
        self._sizes = sizes
        # The log offsets of all messages, once one was asked for. None are known: the id is empty.
        self._offsets = [result.log_offset]
        is_placed = result.log_offset >= 0
        self._first = SendResult(
            "",
            topic,
            result.queue_id,
            result.queue_offset if is_placed else -1,
            result.stored_at_ms,
            result.is_duplicate,
            status,
            result.deliver_at_ms,
            broker_set,
        )
        self._end()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._end()

    def move(self, places: Sequence[tuple[BatchOutcome, int]]) -> None:
        """The messages are in other batches, which are not done."""
        with _registering:
            self.moved = places
            for index, future in self.waiting:
                outcome, there = places[index]
                outcome.waiting.append((there, future))
            for index in self.one_way:
                outcome, there = places[index]
                outcome.one_way.append(there)

    def result_of(self, index: int) -> SendResult:
        """Raises the error of the batch. The batch must be done."""
        if self.error is not None:
            raise _raisable(self.error)
        if self._offsets[0] < 0:
            return self._first
        if len(self._offsets) == 1:
            sizes = struct.unpack(f"<{len(self._sizes) // 4}I", self._sizes)
            self._offsets = list(itertools.accumulate(sizes, initial=self._offsets[0]))
        _, topic, queue_id, queue_offset, stored_at_ms, again, status, at_ms, name = self._first
        queue_offset += index if queue_offset >= 0 else 0  # -1: delayed
        return SendResult(
            f"{name}:{self._offsets[index]}",
            *(topic, queue_id, queue_offset, stored_at_ms, again, status, at_ms, name),
        )

    def _end(self) -> None:
        with _registering:
            self.is_done = True
            waiting, self.waiting = self.waiting, []
        for index, future in waiting:
            if future.done():
                continue  # its caller has cancelled it
            if self.error is not None:
                future.set_exception(_raisable(self.error))
            else:
                future.set_result(self.result_of(index))


def _raisable(error: Exception) -> Exception:
    """A copy of its own for each raise, with a traceback of its own."""
    return fresh(error) if isinstance(error, MqError) else error


class SendFuture(Future[SendResult]):
    """Cannot be cancelled: a message that was sent cannot be taken back."""

    # The outcome of its batch, and its index there. Set when the message is added to a batch.
    place: tuple[BatchOutcome, int]
    _made: threading.Condition | None = None
    if not TYPE_CHECKING:
        # One is made for each message; what the base class needs, for those that are waited for.
        __init__ = object.__init__

    def outcome(self) -> tuple[BatchOutcome, int]:
        """The outcome of the batch that has the message now, and the index in it."""
        place = self.place
        while place[0].moved:
            place = place[0].moved[place[1]]
        return place

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _registering:
                if self._made is None:
                    self._register()
        assert self._made is not None  # noqa: S101 # just made
        return self._made

    def _register(self) -> None:
        self._state, self._result, self._exception = "PENDING", None, None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        outcome, index = self.outcome()
        if outcome.is_done:
            self._state = "FINISHED"
            if outcome.error is not None:
                self._exception = _raisable(outcome.error)
            else:
                self._result = outcome.result_of(index)
        else:
            outcome.waiting.append((index, self))
        self._made = threading.Condition()

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self.outcome()[0].is_done if self._made is None else super().done()

    def result(self, timeout: float | None = None) -> SendResult:
        outcome, index = self.outcome()
        return outcome.result_of(index) if outcome.is_done else super().result(timeout)


class BatchKind(enum.IntEnum):
    """The way in which the queue of a batch is chosen. Integers: they are hashed often."""

    ANY = enum.auto()  # by turn; a retry may go to another queue
    KEY = enum.auto()  # by the ordering keys of its messages
    FIXED = enum.auto()  # by the user
    DELAYED = enum.auto()  # by turn; delivered later, so that it occupies no queue


# The buffer in which a message waits, how it was chosen, and the priority, 0 without priorities.
Chosen = tuple["QueueBuffer", BatchKind, int]


@dataclass(slots=True, eq=False)
class Batch:
    """Messages of one queue."""

    topic: str
    kind: BatchKind
    queue_id: int  # -1: not assigned yet, ...
    opened_s: float
    timeout_s: float
    delay: bytes = b""  # see `encode.delay_field`
    broker_set: str = ""  # ... and then this is empty
    priority: int = 0  # 0 in a topic without priorities
    ready_s: float = 0.0  # end of the linger time
    runs: list[Run] = field(default_factory=list)
    # The last run, if it has bodies: its time and its list. Time 0: encoded messages; -1: no run.
    born_at_ms: int = -1
    bodies: list[bytes] = field(default_factory=list)
    encoded: list[Encoded] = field(default_factory=list)
    count: int = 0  # of messages
    size_bytes: int = 0
    prepared: Prepared | None = None
    outcome: BatchOutcome = field(default_factory=BatchOutcome)
    producer_id: str = ""
    sequence: int = 0
    is_done: bool = False  # the outcome is set, or elsewhere; a late answer is ignored
    is_in_flight: bool = False  # taken, and neither retried nor released since
    sent_s: float = 0.0  # of the first attempt; 0: not sent yet
    retry_s: float = 0.0
    retries: int = 0  # those that count against the option `retries`
    free_retries: int = 0  # those that do not count: no leader, not reached
    # An attempt may have been stored: the sequence must not be used for another batch.
    in_doubt: bool = False
    # Broker sets that refused it because its queue is removed or closed.
    refused_by: tuple[str, ...] = ()
    error: MqError | None = None

    def add(self, message: Encoded, future: ResultFuture | None, size: int) -> None:
        self.outcome.attach(self.count, future)
        self.append(message, size)

    def append(self, message: Encoded, size: int) -> None:
        """Adds a message whose future knows its place, or will be told."""
        if self.born_at_ms:
            self.born_at_ms, self.encoded = 0, []
            self.runs.append(self.encoded)
        self.encoded.append(message)
        self.count += 1
        self.size_bytes += size

    def begin_bodies(self, born_at_ms: int) -> None:
        """Begins a run of bodies, which `Accumulator.add_body` extends."""
        self.born_at_ms, self.bodies = born_at_ms, []
        self.runs.append(Bodies(born_at_ms, self.bodies))

    def empty_copy(self, queue: QueueBuffer | None) -> Batch:
        """A batch for a part of the messages, in another queue; None: any queue."""
        is_unpinned = queue is None and self.kind is BatchKind.KEY
        return Batch(
            self.topic,
            BatchKind.ANY if is_unpinned else self.kind,
            -1 if queue is None else queue.queue_id,
            self.opened_s,
            self.timeout_s,
            self.delay,
            "" if queue is None else queue.broker_set,
            self.priority,
            sent_s=self.sent_s,
            retries=self.retries,
            free_retries=self.free_retries,
            refused_by=self.refused_by,
        )

    def moved(self) -> Batch:
        """The same messages for any queue."""
        batch = self.empty_copy(None)
        batch.runs, batch.prepared, batch.outcome = self.runs, self.prepared, self.outcome
        batch.count, batch.size_bytes = self.count, self.size_bytes
        return batch

    def assign(self, queue: QueueBuffer, producer_id: str, sequence: int) -> None:
        self.broker_set, self.queue_id = queue.broker_set, queue.queue_id
        self.producer_id, self.sequence = producer_id, sequence

    def unassign(self) -> None:
        """Makes any queue possible again: it is not stored, or duplicates are allowed."""
        self.broker_set, self.queue_id = "", -1
        self.producer_id, self.sequence = "", 0
        self.is_in_flight = False

    def encoded_messages(self) -> Iterator[Encoded]:
        """The messages of a batch with ordering keys: none of them is only a body."""
        for run in self.runs:
            assert not isinstance(run, Bodies)  # noqa: S101 # of no key
            yield from run

    @property
    def may_move(self) -> bool:
        """Whether the batch may go to another broker set. A numbered batch in doubt may not: the
        other set does not know its sequence.
        """
        is_free = self.kind is BatchKind.ANY or self.kind is BatchKind.DELAYED
        return is_free and not (self.in_doubt and self.producer_id)

    def request_parts(self) -> tuple[bytes, bytes]:
        """Place and columns of a request."""
        if self.prepared is None:
            self.prepared = prepare(self.runs, self.delay)
        where = place(self.topic, self.queue_id, self.producer_id, self.sequence)
        return where, self.prepared.columns

    def succeed(self, result: BatchResult, status: str) -> None:
        """Sets the results of all messages."""
        assert self.prepared is not None  # noqa: S101 # it was sent
        self.outcome.succeed(self.topic, self.broker_set, result, status, self.prepared.sizes)

    def overdue(self, trouble: MqError | None, servers: Iterable[str]) -> MqError:
        """The error of a time-out: the last refusal of a broker, or Unreachable."""
        # A missing leader explains more than the last refusal.
        error = trouble if isinstance(trouble, NoLeader) else self.error or trouble
        if error is not None and not isinstance(error, Unreachable):
            return error
        doubt = "it may have been stored" if self.in_doubt else "it was not sent"
        where = f"{self.topic} in broker set {self.broker_set}" if self.broker_set else self.topic
        what = f"no answer for a batch to {where} within {self.timeout_s:g} s; {doubt}"
        return unanswered(what, error, servers)

    def expires_s(self, progress_s: float) -> float:
        """The time at which the batch fails without an answer. The wait before it is sent does not
        count as long as other batches are answered.
        """
        return (self.sent_s or max(self.opened_s, progress_s)) + self.timeout_s


@dataclass(slots=True, eq=False)
class QueueBuffer:
    """The batches of one queue; without a queue id, those that take the next idle queue."""

    broker_set: str = ""
    queue_id: int = -1
    in_flight: Batch | None = None
    open: Batch | None = None
    waiting: deque[Batch] = field(default_factory=deque)

    def next(self) -> Batch | None:
        return self.waiting[0] if self.waiting else self.open

    def is_ready(self, now_s: float) -> bool:
        """Whether the next batch is full or its linger time is over."""
        return bool(self.waiting) or (self.open is not None and self.open.ready_s <= now_s)

    def pop(self) -> Batch:
        if not self.waiting:
            self.close()
        return self.waiting.popleft()

    def remove(self, batch: Batch) -> None:
        if self.in_flight is batch:
            self.in_flight = None
        elif self.open is batch:
            self.open = None
        elif batch in self.waiting:
            self.waiting.remove(batch)

    def close(self) -> None:
        """The next message opens another batch."""
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    def keyed(self) -> list[Batch]:
        """The batches with ordering keys that are not finished, oldest first."""
        batches = (self.in_flight, *self.waiting, self.open)
        return [batch for batch in batches if batch and batch.kind is BatchKind.KEY]


@dataclass(slots=True, eq=False)
class DelayedBuffer:
    """Batches that are delivered later, in any queue. They need no order, but the messages of a
    batch share a delivery time: each time has an open batch of its own.
    """

    # Keyed by delay, time-out and priority; the oldest comes first.
    open: dict[tuple[bytes, float, int], Batch] = field(default_factory=dict)
    waiting: deque[Batch] = field(default_factory=deque)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.open)

    def close(self, batch: Batch) -> None:
        """No more messages are added to the batch."""
        key = batch.delay, batch.timeout_s, batch.priority
        if self.open.get(key) is batch:
            self.waiting.append(self.open.pop(key))

    def next(self, now_s: float) -> Batch | None:
        """The first batch that is full or has lingered."""
        if not self.waiting and self.open:
            oldest = next(iter(self.open.values()))
            if oldest.ready_s <= now_s:
                self.close(oldest)
        return self.waiting[0] if self.waiting else None

    def remove(self, batch: Batch) -> None:
        key = batch.delay, batch.timeout_s, batch.priority
        if self.open.get(key) is batch:
            del self.open[key]
        elif batch.queue_id < 0 and batch in self.waiting:
            self.waiting.remove(batch)


@dataclass(slots=True, eq=False)
class WritableQueues:
    """The queues of a topic, or of one of its priorities, that take messages."""

    turn: int
    sets: frozenset[str] = frozenset()
    queues: list[QueueBuffer] = field(default_factory=list)  # indexed by the hash of ordering keys
    # The same queues, interleaved so that any few in a row belong to all sets.
    by_turn: list[QueueBuffer] = field(default_factory=list)
    # Batches that may go to any of these queues.
    shared: QueueBuffer = field(default_factory=QueueBuffer)

    def set_queues(self, queues: list[QueueBuffer]) -> None:
        self.queues = queues
        counts: dict[str, int] = {}
        places: dict[QueueBuffer, int] = {}
        for queue in queues:
            places[queue] = counts.setdefault(queue.broker_set, 0)
            counts[queue.broker_set] += 1
        self.sets = frozenset(counts)
        self.by_turn = sorted(
            queues, key=lambda queue: (places[queue] + 0.5) / counts[queue.broker_set]
        )

    def next_queue(self, sets: Collection[str], *, is_idle: bool) -> QueueBuffer | None:
        """The next queue by turn in these sets; an idle one has no batch in flight."""
        queues, count = self.by_turn, len(self.by_turn)
        for at in range(self.turn, self.turn + count):
            queue = queues[at % count]
            if queue.broker_set in sets and (queue.in_flight is None or not is_idle):
                self.turn = (at + 1) % count
                return queue
        return None


@dataclass(slots=True, eq=False)
class TopicQueues:
    """The buffers of a topic: `pinned` has the queues with batches that may go nowhere else,
    `delayed` the batches that occupy no queue. All others wait in the shared buffer of their
    priority.
    """

    name: str
    turn: int = 0
    parts: list[TopicRoute] = field(default_factory=list)
    priorities: int = 0
    # The sets that have queues of the topic, and those that take messages.
    sets: tuple[str, ...] = ()
    write_sets: frozenset[str] = frozenset()
    queues: dict[tuple[str, int], QueueBuffer] = field(default_factory=dict)
    pinned: dict[QueueBuffer, None] = field(default_factory=dict)
    writable: list[QueueBuffer] = field(default_factory=list)
    delayed: DelayedBuffer = field(default_factory=DelayedBuffer)
    unfinished: int = 0  # batches
    by_priority: list[WritableQueues] = field(init=False)
    # That of the lowest priority; kept here because every message reads it.
    shared: QueueBuffer = field(init=False)
    # Since a change of the queues: the queue of each key, by priority and hash, that has unfinished
    # messages elsewhere than in its new queue, ...
    key_places: dict[tuple[int, int], QueueBuffer] = field(default_factory=dict)
    # ... and the batches that such a queue had then. Its keys move when all of them are finished;
    # messages that are added meanwhile wait there, in other batches.
    leaving: dict[QueueBuffer, set[Batch]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_priority = [WritableQueues(self.turn)]
        self.shared = self.by_priority[0].shared

    def set_parts(self, parts: Sequence[TopicRoute]) -> None:
        """Sets the queues of the topic in each set; at least one part must be writable. The
        number of priorities of a topic does not change.
        """
        ranked = sorted(parts, key=lambda part: part.broker_set)
        if ranked == self.parts:
            return
        self.parts = ranked
        taking = [part for part in ranked if part.is_writable and part.write_queues]
        self.sets = tuple(part.broker_set for part in ranked)
        self.write_sets = frozenset(part.broker_set for part in taking)
        self.priorities = max(part.priorities for part in taking)
        self.writable = [
            self.queue(part.broker_set, queue_id)
            for part in taking
            for queue_id in range(part.write_queues)
        ]
        count = max(1, self.priorities)
        while len(self.by_priority) < count:
            self.by_priority.append(WritableQueues(self.turn))
        for at, candidates in enumerate(self.by_priority):
            candidates.set_queues(
                [queue for queue in self.writable if queue.queue_id % count == at % count]
            )
        self._keep_keys()

    def _keep_keys(self) -> None:
        """After a change of the queues: keys with unfinished messages stay where these are."""
        self.key_places, self.leaving = {}, {}
        for queue in self.queues.values():
            batches = queue.keyed()
            keys = {
                (batch.priority, message[3]): None
                for batch in batches
                for message in batch.encoded_messages()
                if message[3] is not None
            }
            moving = [key for key in keys if self._new_queue_for_key(*key) is not queue]
            if moving:
                self.key_places.update(dict.fromkeys(moving, queue))
                self.leaving[queue] = set(batches)
                queue.close()

    def _new_queue_for_key(self, priority: int, ordering_hash: int) -> QueueBuffer | None:
        """None: the topic was created anew with fewer priorities, or has no such queue."""
        queues = self.by_priority[priority].queues if priority < max(1, self.priorities) else ()
        return queues[ordering_hash % len(queues)] if queues else None

    def finished(self, queue: QueueBuffer, batch: Batch) -> list[Batch]:
        """Returns the batches whose keys move now: those that came to the queue after its last
        change. The caller distributes them.
        """
        left = self.leaving.get(queue)
        if left is None:
            return []
        left.discard(batch)
        return [] if left else self.let_go(queue)

    def let_go(self, queue: QueueBuffer) -> list[Batch]:
        """From now on keys lead where the new queues want them. As `finished`."""
        del self.leaving[queue]
        places = self.key_places.items()
        self.key_places = {key: place for key, place in places if place is not queue}
        return queue.keyed()

    def queue(self, broker_set: str, queue_id: int) -> QueueBuffer:
        queue = self.queues.get((broker_set, queue_id))
        if queue is None:
            queue = self.queues[broker_set, queue_id] = QueueBuffer(broker_set, queue_id)
        return queue

    def buffer_of(self, batch: Batch) -> QueueBuffer | DelayedBuffer:
        if batch.kind is BatchKind.DELAYED:
            return self.delayed
        if batch.queue_id < 0:
            return self.by_priority[batch.priority].shared
        return self.queue(batch.broker_set, batch.queue_id)

    def fixed_queue(self, queue_id: int, broker_set: str) -> QueueBuffer:
        """The buffer of a queue that the user chose. Raises IllegalRequest if the set is missing
        and the topic has several, or has no queues of the topic.
        """
        if broker_set and broker_set not in self.sets:
            raise IllegalRequest(
                f"topic {self.name} has no queues in broker set {broker_set[:127]!r}: it has some "
                f"in {', '.join(self.sets)}"
            )
        if not broker_set and len(self.sets) > 1:
            raise in_several_sets(self.name, queue_id, self.sets)
        return self.queue(broker_set or self.sets[0], queue_id)

    def queue_for_key(self, ordering_hash: int, priority: int) -> QueueBuffer:
        """The queue of a key. Raises IllegalRequest for an unknown priority."""
        queues = self.of_priority(priority).queues
        if self.key_places:
            place = self.key_places.get((priority, ordering_hash))
            if place is not None:
                return place
        return queues[ordering_hash % len(queues)]

    def of_priority(self, priority: int) -> WritableQueues:
        """Raises IllegalRequest for an unknown priority."""
        if self.priorities < 2:
            return self.by_priority[0]
        if not 0 <= priority < self.priorities or not self.by_priority[priority].queues:
            raise unknown_priority(priority, self.priorities)
        return self.by_priority[priority]

    def choose_buffer(self, message: Encoded, queue_id: int | None, broker_set: str) -> Chosen:
        """Delayed messages of any queue do not wait in the buffer itself. Raises IllegalRequest."""
        if queue_id is not None:
            return self.fixed_queue(queue_id, broker_set), BatchKind.FIXED, 0
        ordering_hash, delay = message[3], message[4]
        priority = message[5] if self.priorities > 1 else 0
        if ordering_hash is not None:
            return self.queue_for_key(ordering_hash, priority), BatchKind.KEY, priority
        return (
            self.of_priority(priority).shared,
            BatchKind.DELAYED if delay else BatchKind.ANY,
            priority,
        )

    def may_use(self, broker_set: str) -> bool:
        """Whether new messages may go to that set, or waiting ones have to."""
        is_waiting = any(queue.broker_set == broker_set for queue in self.pinned)
        return is_waiting or broker_set in self.write_sets

    def has_waiting(self) -> bool:
        """Whether a batch is open or waits."""
        if self.pinned or self.delayed:
            return True
        return any(candidates.shared.next() is not None for candidates in self.by_priority)


class Sequences:
    """The sequences of one producer in one broker set. `producer_id` None: one is generated; empty:
    batches have no sequences.
    """

    def __init__(self, producer_id: str | None) -> None:
        self._is_own_name = producer_id is None
        self.producer_id = uuid.uuid4().hex if producer_id is None else producer_id
        self._next = 1
        self._free: list[int] = []

    def take(self) -> tuple[str, int]:
        """Producer id and sequence of the next batch; empty and 0 without idempotence."""
        if not self.producer_id:
            return "", 0
        if self._free:
            return self.producer_id, heapq.heappop(self._free)
        self._next += 1
        return self.producer_id, self._next - 1

    def give_back(self, producer_id: str, sequence: int) -> None:
        """For a batch of which no attempt was stored."""
        if sequence and producer_id == self.producer_id:
            heapq.heappush(self._free, sequence)

    def start_over(self, producer_id: str) -> bool:
        """After the broker refused the producer id: generates another one. Returns False if the id
        was given by the user.
        """
        if self._is_own_name and producer_id == self.producer_id:
            self.producer_id = uuid.uuid4().hex
            self._next = 1
            self._free.clear()
        return self._is_own_name
