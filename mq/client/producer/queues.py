"""Batches of a producer, and the buffers in which they wait for their queue.

A queue has one batch in flight at a time, which keeps the queue while it is retried, so that the
messages of a producer stand in a queue in the order in which they were sent. Meanwhile the next
batch grows. A topic has queues in one or more broker sets; ordering keys choose among all of them,
in an order that is the same for all clients. Sequences of batches start at 1 in each set, and the
sequence of a batch that was certainly not stored is used again. No locks: the accumulator owns one.
"""

from __future__ import annotations

import enum
import heapq
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from mq.client.cluster.errors import fresh
from mq.client.encode import Encoded, columns, place
from mq.client.messages import SendResult
from mq.errors import IllegalRequest, MqError, NoLeader, Unreachable
from mq.wire.v1.cluster_pb2 import TopicRoute
from mq.wire.v1.producer_pb2 import BatchResult

# The bytes of a message in a batch beyond its frame: its size and the hash of its tag.
MESSAGE_OVERHEAD_BYTES = 12


class BatchKind(enum.Enum):
    """The way in which the queue of a batch is chosen."""

    ANY = enum.auto()  # by turn; a retry may go to another queue
    KEY = enum.auto()  # by the ordering keys of its messages
    FIXED = enum.auto()  # by the user
    DELAYED = enum.auto()  # by turn; delivered later, so that it occupies no queue


class ResultFuture(Protocol):
    """A future of asyncio or of threads."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class Batch:
    """Messages of one queue. `futures`: one per message, None for a one-way message."""

    __slots__ = (
        "broker_set",
        "columns",
        "delay",
        "error",
        "free_retries",
        "futures",
        "in_doubt",
        "is_done",
        "is_in_flight",
        "kind",
        "messages",
        "opened_s",
        "priority",
        "producer_id",
        "queue_id",
        "ready_s",
        "refused_by",
        "retries",
        "retry_s",
        "sent_s",
        "sequence",
        "size_bytes",
        "timeout_s",
        "topic",
    )

    def __init__(  # noqa: PLR0913 # exceptions to the rule, by name
        self,
        topic: str,
        kind: BatchKind,
        queue_id: int,
        opened_s: float,
        timeout_s: float,
        delay: bytes = b"",
        *,
        broker_set: str = "",
        priority: int = 0,
    ) -> None:
        self.topic = topic
        self.kind = kind
        self.delay = delay  # see `encode.delay_field`
        self.priority = priority  # 0 in a topic without priorities
        self.queue_id = queue_id  # -1: not assigned yet, ...
        self.broker_set = broker_set  # ... and then this is empty
        self.messages: list[Encoded] = []
        self.futures: list[ResultFuture | None] = []
        self.size_bytes = 0
        self.opened_s = opened_s
        self.ready_s = opened_s  # end of the linger time
        self.timeout_s = timeout_s
        self.columns = b""
        self.producer_id = ""
        self.sequence = 0
        self.is_done = False  # futures are set; a late answer is ignored
        self.is_in_flight = False  # taken, and neither retried nor released since
        self.sent_s = 0.0  # of the first attempt; 0: not sent yet
        self.retry_s = 0.0
        self.retries = 0  # those that count against the option `retries`
        self.free_retries = 0  # those that do not count: no leader, not reached
        # An attempt may have been stored: the sequence must not be used for another batch.
        self.in_doubt = False
        # Broker sets that refused it because its queue is removed or closed.
        self.refused_by: tuple[str, ...] = ()
        self.error: MqError | None = None

    def add(self, message: Encoded, future: ResultFuture | None, size: int) -> None:
        self.messages.append(message)
        self.futures.append(future)
        self.size_bytes += size

    def empty_copy(self, queue: QueueBuffer | None) -> Batch:
        """A batch for a part of the messages, in another queue; None: any queue."""
        is_unpinned = queue is None and self.kind is BatchKind.KEY
        copy = Batch(
            self.topic,
            BatchKind.ANY if is_unpinned else self.kind,
            -1 if queue is None else queue.queue_id,
            self.opened_s,
            self.timeout_s,
            self.delay,
            broker_set="" if queue is None else queue.broker_set,
            priority=self.priority,
        )
        copy.ready_s = 0.0
        copy.refused_by = self.refused_by
        copy.sent_s = self.sent_s
        copy.retries, copy.free_retries = self.retries, self.free_retries
        return copy

    def assign(self, queue: QueueBuffer, producer_id: str, sequence: int) -> None:
        self.broker_set, self.queue_id = queue.broker_set, queue.queue_id
        self.producer_id, self.sequence = producer_id, sequence

    def unassign(self) -> None:
        """Makes any queue possible again: it is not stored, or duplicates are allowed."""
        self.broker_set, self.queue_id = "", -1
        self.producer_id, self.sequence = "", 0
        self.is_in_flight = False

    @property
    def may_move(self) -> bool:
        """Whether the batch may go to another broker set. A numbered batch in doubt may not: the
        other set does not know its sequence.
        """
        is_free = self.kind is BatchKind.ANY or self.kind is BatchKind.DELAYED
        return is_free and not (self.in_doubt and self.producer_id)

    def encoded(self) -> tuple[bytes, bytes]:
        """Place and columns of a request."""
        if not self.columns:
            self.columns = columns(self.messages, self.delay)
        return place(self.topic, self.queue_id, self.producer_id, self.sequence), self.columns

    def succeed(self, result: BatchResult, status: str) -> None:
        """Sets the results of all futures."""
        topic, broker_set, queue_id = self.topic, self.broker_set, result.queue_id
        queue_offset, log_offset = result.queue_offset, result.log_offset
        stored_at_ms, is_duplicate = result.stored_at_ms, result.is_duplicate
        deliver_at_ms = result.deliver_at_ms
        if log_offset < 0:
            unplaced = SendResult(
                *("", topic, queue_id, -1, stored_at_ms),
                *(is_duplicate, status, deliver_at_ms, broker_set),
            )
            for future in self.futures:
                if future is not None and not future.done():
                    future.set_result(unplaced)
            return
        is_placed = queue_offset >= 0
        for message, future in zip(self.messages, self.futures, strict=True):
            if future is not None and not future.done():
                message_id = f"{broker_set}:{log_offset}"
                future.set_result(
                    SendResult(
                        message_id,
                        topic,
                        queue_id,
                        queue_offset,
                        stored_at_ms,
                        is_duplicate,
                        status,
                        deliver_at_ms,
                        broker_set,
                    )
                )
            queue_offset += is_placed
            log_offset += len(message[0])

    def fail(self, error: MqError) -> int:
        """Sets the error on all futures. Returns the number of one-way messages."""
        for future in self.futures:
            if future is not None and not future.done():
                future.set_exception(fresh(error))
        return self.futures.count(None)

    def overdue(self, trouble: MqError | None, servers: Iterable[str]) -> MqError:
        """The error of a time-out: the last refusal of a broker, or Unreachable."""
        # A missing leader explains more than the last refusal.
        error = trouble if isinstance(trouble, NoLeader) else self.error or trouble
        if error is not None and not isinstance(error, Unreachable):
            return error
        doubt = "it may have been stored" if self.in_doubt else "it was not sent"
        where = f"{self.topic} in broker set {self.broker_set}" if self.broker_set else self.topic
        unanswered = f"no answer for a batch to {where} within {self.timeout_s:g} s; {doubt}"
        if isinstance(error, NoLeader):
            found = fresh(error)
            found.args = (f"{unanswered}: {error}",)
            return found
        why = str(error) if error is not None else f"brokers: {', '.join(servers)}"
        return Unreachable(f"{unanswered}: {why}")

    def expires_s(self, progress_s: float) -> float:
        """The time at which the batch fails without an answer. The wait before it is sent does not
        count as long as other batches are answered.
        """
        return (self.sent_s or max(self.opened_s, progress_s)) + self.timeout_s


class QueueBuffer:
    """The batches of one queue; without a queue id, those that take the next idle queue."""

    __slots__ = ("broker_set", "in_flight", "open", "queue_id", "waiting")

    def __init__(self, broker_set: str = "", queue_id: int = -1) -> None:
        self.broker_set = broker_set
        self.queue_id = queue_id
        self.in_flight: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.open: Batch | None = None

    def next(self) -> Batch | None:
        return self.waiting[0] if self.waiting else self.open

    def is_ready(self, now_s: float) -> bool:
        """Whether the next batch is full or its linger time is over."""
        return bool(self.waiting) or (self.open is not None and self.open.ready_s <= now_s)

    def pop(self) -> Batch:
        if not self.waiting and self.open is not None:
            self.waiting.append(self.open)
            self.open = None
        return self.waiting.popleft()

    def remove(self, batch: Batch) -> None:
        if self.in_flight is batch:
            self.in_flight = None
        elif self.open is batch:
            self.open = None
        elif batch in self.waiting:
            self.waiting.remove(batch)

    def batches(self) -> Iterator[Batch]:
        yield from (one for one in (self.in_flight, self.open) if one is not None)
        yield from self.waiting


class DelayedBuffer:
    """Batches that are delivered later, in any queue. They need no order, but the messages of a
    batch share a delivery time: each time has an open batch of its own.
    """

    __slots__ = ("open", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Batch] = deque()
        # Keyed by delay, time-out and priority; the oldest comes first.
        self.open: dict[tuple[bytes, float, int], Batch] = {}

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


class WritableQueues:
    """The queues of a topic, or of one of its priorities, that take messages."""

    __slots__ = ("by_turn", "queues", "sets", "shared", "turn")

    def __init__(self, turn: int) -> None:
        self.sets: frozenset[str] = frozenset()
        self.queues: list[QueueBuffer] = []  # indexed by the hash of ordering keys
        # The same queues, interleaved so that any few in a row belong to all sets.
        self.by_turn: list[QueueBuffer] = []
        self.turn = turn
        # Batches that may go to any of these queues.
        self.shared = QueueBuffer()

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


class TopicQueues:
    """The buffers of a topic: `pinned` has the queues with batches that may go unplaced else,
    `delayed` the batches that occupy no queue. All others wait in the shared buffer of their
    priority.
    """

    __slots__ = (
        "by_priority",
        "delayed",
        "name",
        "parts",
        "pinned",
        "priorities",
        "queues",
        "sets",
        "shared",
        "turn",
        "unfinished",
        "writable",
        "write_sets",
    )

    def __init__(self, name: str, turn: int = 0) -> None:
        self.name = name
        self.parts: list[TopicRoute] = []
        self.priorities = 0
        # The sets that have queues of the topic, and those that take messages.
        self.sets: tuple[str, ...] = ()
        self.write_sets: frozenset[str] = frozenset()
        self.turn = turn
        self.queues: dict[tuple[str, int], QueueBuffer] = {}
        self.pinned: dict[QueueBuffer, None] = {}
        self.by_priority = [WritableQueues(turn)]
        # That of the lowest priority; kept here because every message reads it.
        self.shared = self.by_priority[0].shared
        self.writable: list[QueueBuffer] = []
        self.delayed = DelayedBuffer()
        self.unfinished = 0  # batches

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

    def queue(self, broker_set: str, queue_id: int) -> QueueBuffer:
        queue = self.queues.get((broker_set, queue_id))
        if queue is None:
            # Atomic: `split_batch` calls this on other threads without the lock.
            queue = self.queues.setdefault(
                (broker_set, queue_id), QueueBuffer(broker_set, queue_id)
            )
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
            raise IllegalRequest(
                f"queue {queue_id} of topic {self.name} is in {', '.join(self.sets)}: say which "
                "broker set (broker_set, --set)"
            )
        return self.queue(broker_set or self.sets[0], queue_id)

    def queue_for_key(self, ordering_hash: int, priority: int) -> QueueBuffer:
        """The queue of a key. Raises IllegalRequest for an unknown priority."""
        queues = self.of_priority(priority).queues
        return queues[ordering_hash % len(queues)]

    def of_priority(self, priority: int) -> WritableQueues:
        """Raises IllegalRequest for an unknown priority."""
        if self.priorities < 2:
            return self.by_priority[0]
        if not 0 <= priority < self.priorities or not self.by_priority[priority].queues:
            raise IllegalRequest(
                f"priority {priority}: the topic has {self.priorities}, 0 (the lowest) to "
                f"{self.priorities - 1}"
            )
        return self.by_priority[priority]

    def choose_buffer(
        self,
        ordering_hash: int | None,
        queue_id: int | None,
        broker_set: str,
        delay: bytes,
        priority: int,
    ) -> tuple[QueueBuffer, BatchKind, int]:
        """The buffer in which a message waits, how it was chosen, and the priority, 0 in a topic
        without priorities. Delayed messages use no such buffer. Raises IllegalRequest.
        """
        if queue_id is not None:
            return self.fixed_queue(queue_id, broker_set), BatchKind.FIXED, 0
        if self.priorities < 2:
            priority = 0
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
