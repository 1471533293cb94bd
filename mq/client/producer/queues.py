"""Batches of a producer, and the buffers in which they wait for their queue.

One batch of a queue is with the broker at a time, and keeps the queue while it is retried, so that
the messages of a producer stand in a queue in the order in which they were sent. While the queue is
busy the next batch grows. A topic has queues in one or more broker sets; ordering keys choose among
all of them, in the order that all clients know. Queue i of a topic with priorities has the priority
i modulo their number. Batches are numbered for each set from 1 on, and the number of a batch that
was certainly not stored is given to the next one. Values without a lock: the accumulator has it.
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

# What a message costs in a batch beyond its frame: its size and the hash of its tag.
MESSAGE_OVERHEAD_BYTES = 12


class Kind(enum.Enum):
    """Who chose the queue of a batch."""

    ANY = enum.auto()  # nobody: it may go to another one
    KEY = enum.auto()  # the ordering keys of its messages
    FIXED = enum.auto()  # the user
    DELAYED = enum.auto()  # nobody, and it keeps no line: it is delivered later, by its time


class ResultFuture(Protocol):
    """A future of either kind."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class Batch:
    """Messages of one queue. `futures` has one for each, or None where nobody waits."""

    __slots__ = (
        "attempts",
        "bounces",
        "broker_set",
        "columns",
        "delay",
        "error",
        "futures",
        "in_doubt",
        "is_done",
        "is_out",
        "kind",
        "messages",
        "opened_s",
        "priority",
        "producer_id",
        "queue_id",
        "refused_by",
        "retry_s",
        "ripe_s",
        "sent_s",
        "sequence",
        "size_bytes",
        "timeout_s",
        "topic",
    )

    def __init__(  # noqa: PLR0913 # what is not the rule, by name
        self,
        topic: str,
        kind: Kind,
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
        self.queue_id = queue_id  # -1: not chosen yet, ...
        self.broker_set = broker_set  # ... and then this is empty
        self.messages: list[Encoded] = []
        self.futures: list[ResultFuture | None] = []
        self.size_bytes = 0
        self.opened_s = opened_s
        self.ripe_s = opened_s  # it waits for more messages until then
        self.timeout_s = timeout_s
        self.columns = b""
        self.producer_id = ""
        self.sequence = 0
        self.is_done = False  # whoever waits for it knows; an answer that still comes is void
        self.is_out = False  # it was taken to be sent, and did not come back
        self.sent_s = 0.0  # 0: never
        self.retry_s = 0.0
        self.attempts = 0  # answers that count against `retries`
        self.bounces = 0  # those that do not: nobody led, nobody was there
        # Some attempt may have been stored: its number is not free for another batch.
        self.in_doubt = False
        # Broker sets that said that its queue is gone or closed.
        self.refused_by: tuple[str, ...] = ()
        self.error: MqError | None = None

    def add(self, message: Encoded, future: ResultFuture | None, size: int) -> None:
        self.messages.append(message)
        self.futures.append(future)
        self.size_bytes += size

    def empty_copy(self, line: QueueBuffer | None) -> Batch:
        """For a part of its messages, in another queue; None: any."""
        is_unpinned = line is None and self.kind is Kind.KEY
        copy = Batch(
            self.topic,
            Kind.ANY if is_unpinned else self.kind,
            -1 if line is None else line.queue_id,
            self.opened_s,
            self.timeout_s,
            self.delay,
            broker_set="" if line is None else line.broker_set,
            priority=self.priority,
        )
        copy.ripe_s = 0.0
        copy.refused_by = self.refused_by
        copy.sent_s = self.sent_s
        copy.attempts, copy.bounces = self.attempts, self.bounces
        return copy

    def place_at(self, line: QueueBuffer, producer_id: str, sequence: int) -> None:
        self.broker_set, self.queue_id = line.broker_set, line.queue_id
        self.producer_id, self.sequence = producer_id, sequence

    def displace(self) -> None:
        """It may go to any queue again. Nothing of it was stored, or twice is not too often."""
        self.broker_set, self.queue_id = "", -1
        self.producer_id, self.sequence = "", 0
        self.is_out = False

    @property
    def may_move(self) -> bool:
        """Whether another broker set may have it. One that may be stored may not: the other set
        would not know its number.
        """
        is_free = self.kind is Kind.ANY or self.kind is Kind.DELAYED
        return is_free and not (self.in_doubt and self.producer_id)

    def encoded(self) -> tuple[bytes, bytes]:
        """Place and columns, as a request has them."""
        if not self.columns:
            self.columns = columns(self.messages, self.delay)
        return place(self.topic, self.queue_id, self.producer_id, self.sequence), self.columns

    def succeed(self, result: BatchResult, status: str) -> None:
        """Tells everybody who waits where their message is."""
        topic, broker_set, queue_id = self.topic, self.broker_set, result.queue_id
        queue_offset, log_offset = result.queue_offset, result.log_offset
        stored_at_ms, is_duplicate = result.stored_at_ms, result.is_duplicate
        deliver_at_ms = result.deliver_at_ms
        if log_offset < 0:
            nowhere = SendResult(
                *("", topic, queue_id, -1, stored_at_ms),
                *(is_duplicate, status, deliver_at_ms, broker_set),
            )
            for future in self.futures:
                if future is not None and not future.done():
                    future.set_result(nowhere)
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
        """Tells everybody who waits; how many messages there are that nobody waits for."""
        for future in self.futures:
            if future is not None and not future.done():
                future.set_exception(fresh(error))
        return self.futures.count(None)

    def overdue(self, trouble: MqError | None, servers: Iterable[str]) -> MqError:
        """Why it has no answer in time: what a broker said last, or that none was reached."""
        # That there is no leader says more than what the last one said.
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
        """When it fails for want of an answer. Before it is sent the wait behind others does not
        count, as long as those are answered.
        """
        return (self.sent_s or max(self.opened_s, progress_s)) + self.timeout_s


class QueueBuffer:
    """Of a queue; or, without one, of batches that take the next queue that is free."""

    __slots__ = ("broker_set", "busy", "open", "queue_id", "waiting")

    def __init__(self, broker_set: str = "", queue_id: int = -1) -> None:
        self.broker_set = broker_set
        self.queue_id = queue_id
        self.busy: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.open: Batch | None = None

    def next(self) -> Batch | None:
        return self.waiting[0] if self.waiting else self.open

    def is_ripe(self, now_s: float) -> bool:
        """Whether the next one waits for nothing but its turn."""
        return bool(self.waiting) or (self.open is not None and self.open.ripe_s <= now_s)

    def pop(self) -> Batch:
        if not self.waiting and self.open is not None:
            self.waiting.append(self.open)
            self.open = None
        return self.waiting.popleft()

    def remove(self, batch: Batch) -> None:
        if self.busy is batch:
            self.busy = None
        elif self.open is batch:
            self.open = None
        elif batch in self.waiting:
            self.waiting.remove(batch)

    def batches(self) -> Iterator[Batch]:
        yield from (one for one in (self.busy, self.open) if one is not None)
        yield from self.waiting


class DelayedBuffer:
    """Batches that are delivered later, in any queue: they need no order, but a time in common, so
    that each time has an open batch of its own.
    """

    __slots__ = ("open", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Batch] = deque()
        # Keyed by delay, time-out and priority; the oldest comes first.
        self.open: dict[tuple[bytes, float, int], Batch] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting or self.open)

    def close(self, batch: Batch) -> None:
        """It takes no more messages."""
        key = batch.delay, batch.timeout_s, batch.priority
        if self.open.get(key) is batch:
            self.waiting.append(self.open.pop(key))

    def next(self, now_s: float) -> Batch | None:
        """The first that waits for nothing but its turn."""
        if not self.waiting and self.open:
            oldest = next(iter(self.open.values()))
            if oldest.ripe_s <= now_s:
                self.close(oldest)
        return self.waiting[0] if self.waiting else None

    def remove(self, batch: Batch) -> None:
        key = batch.delay, batch.timeout_s, batch.priority
        if self.open.get(key) is batch:
            del self.open[key]
        elif batch.queue_id < 0 and batch in self.waiting:
            self.waiting.remove(batch)


class WritableQueues:
    """The lines that take messages, of a topic or of one priority of it."""

    __slots__ = ("by_turn", "lines", "sets", "shared", "turn")

    def __init__(self, turn: int) -> None:
        self.sets: frozenset[str] = frozenset()
        self.lines: list[QueueBuffer] = []  # in the order by which keys choose
        # The same, those of different sets beside each other: any few in a row are of all sets.
        self.by_turn: list[QueueBuffer] = []
        self.turn = turn
        # Batches that may go to any of them.
        self.shared = QueueBuffer()

    def set_lines(self, lines: list[QueueBuffer]) -> None:
        self.lines = lines
        counts: dict[str, int] = {}
        places: dict[QueueBuffer, int] = {}
        for line in lines:
            places[line] = counts.setdefault(line.broker_set, 0)
            counts[line.broker_set] += 1
        self.sets = frozenset(counts)
        self.by_turn = sorted(
            lines, key=lambda line: (places[line] + 0.5) / counts[line.broker_set]
        )

    def next_queue(self, sets: Collection[str], *, is_idle: bool) -> QueueBuffer | None:
        """The next one in turn, in these sets; idle: nothing of it is with the broker."""
        lines, count = self.by_turn, len(self.by_turn)
        for at in range(self.turn, self.turn + count):
            line = lines[at % count]
            if line.broker_set in sets and (line.busy is None or not is_idle):
                self.turn = (at + 1) % count
                return line
        return None


class TopicQueues:
    """`pinned` has the lines with batches that may go nowhere else; `loose` those that need no
    line. All others wait in the shared line of their choice: one for each priority, or one.
    """

    __slots__ = (
        "choices",
        "delayed",
        "lines",
        "name",
        "parts",
        "pinned",
        "priorities",
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
        # Those that have queues of it, and those of them that take messages.
        self.sets: tuple[str, ...] = ()
        self.write_sets: frozenset[str] = frozenset()
        self.turn = turn
        self.lines: dict[tuple[str, int], QueueBuffer] = {}
        self.pinned: dict[QueueBuffer, None] = {}
        self.choices = [WritableQueues(turn)]
        # Of the only choice, or the lowest priority: asked for with every message.
        self.shared = self.choices[0].shared
        self.writable: list[QueueBuffer] = []
        self.delayed = DelayedBuffer()
        self.unfinished = 0  # batches

    def set_parts(self, parts: Sequence[TopicRoute]) -> None:
        """What the topic has in each set now; some part takes messages. The priorities of a topic
        do not change.
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
            self.line(part.broker_set, queue_id)
            for part in taking
            for queue_id in range(part.write_queues)
        ]
        count = max(1, self.priorities)
        while len(self.choices) < count:
            self.choices.append(WritableQueues(self.turn))
        for at, choice in enumerate(self.choices):
            choice.set_lines(
                [line for line in self.writable if line.queue_id % count == at % count]
            )

    def line(self, broker_set: str, queue_id: int) -> QueueBuffer:
        line = self.lines.get((broker_set, queue_id))
        if line is None:
            # In one step: threads that form batches come here without the lock.
            line = self.lines.setdefault((broker_set, queue_id), QueueBuffer(broker_set, queue_id))
        return line

    def buffer_of(self, batch: Batch) -> QueueBuffer | DelayedBuffer:
        if batch.kind is Kind.DELAYED:
            return self.delayed
        if batch.queue_id < 0:
            return self.choices[batch.priority].shared
        return self.line(batch.broker_set, batch.queue_id)

    def fixed_queue(self, queue_id: int, broker_set: str) -> QueueBuffer:
        """Of a queue as users name it. IllegalRequest: the topic has queues in several sets, or
        none in this one.
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
        return self.line(broker_set or self.sets[0], queue_id)

    def queue_for_key(self, ordering_hash: int, priority: int) -> QueueBuffer:
        """Where all messages of a key go. IllegalRequest: there is no such priority."""
        lines = self.choice(priority).lines
        return lines[ordering_hash % len(lines)]

    def choice(self, priority: int) -> WritableQueues:
        """IllegalRequest: there is no such priority."""
        if self.priorities < 2:
            return self.choices[0]
        if not 0 <= priority < self.priorities or not self.choices[priority].lines:
            raise IllegalRequest(
                f"priority {priority}: the topic has {self.priorities}, 0 (the lowest) to "
                f"{self.priorities - 1}"
            )
        return self.choices[priority]

    def wait_for(
        self,
        ordering_hash: int | None,
        queue_id: int | None,
        broker_set: str,
        delay: bytes,
        priority: int,
    ) -> tuple[QueueBuffer, Kind, int]:
        """The line in which a message waits, who chose it, and its priority, which is 0 where that
        means nothing. One that is loose needs no line. IllegalRequest.
        """
        if queue_id is not None:
            return self.fixed_queue(queue_id, broker_set), Kind.FIXED, 0
        if self.priorities < 2:
            priority = 0
        if ordering_hash is not None:
            return self.queue_for_key(ordering_hash, priority), Kind.KEY, priority
        return self.choice(priority).shared, Kind.DELAYED if delay else Kind.ANY, priority

    def may_use(self, broker_set: str) -> bool:
        """Whether messages go to that set: those that come now, or some that wait for it."""
        is_waiting = any(line.broker_set == broker_set for line in self.pinned)
        return is_waiting or broker_set in self.write_sets

    def has_waiting(self) -> bool:
        """Whether there may be something to be taken."""
        if self.pinned or self.delayed:
            return True
        return any(choice.shared.next() is not None for choice in self.choices)


# One turn of so many goes by who has waited longest.
_FAIR_EACH = 10


def queues_of(priority: int, priorities: int, queues: int) -> range:
    """The queues for messages of a priority. IllegalRequest: the topic has no such priority."""
    if priorities <= 1:
        return range(queues)
    if not 0 <= priority < priorities:
        raise IllegalRequest(
            f"priority {priority}: the topic has {priorities}, 0 (the lowest) to {priorities - 1}"
        )
    return range(priority, queues, priorities)


def queue_for(turn: int, priority: int, priorities: int, queues: int) -> int:
    """One of them: by the hash of an ordering key, or by turn."""
    choice = queues_of(priority, priorities, queues)
    return choice[turn % len(choice)]


class FairTurns:
    """Whose turn it is among queues that have something, the one first that has waited longest."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def choose(self, ranks: Sequence[int]) -> int:
        """Which of them, by how far each is below the highest priority. There must be one."""
        self._count += 1
        if self._count % _FAIR_EACH == 0:
            return 0
        return min(range(len(ranks)), key=ranks.__getitem__)


class Sequences:
    """With `producer_id` None a name is made up; with an empty one there are no numbers at all."""

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
        """The batch of this number was not stored, whatever attempt is looked at."""
        if sequence and producer_id == self.producer_id:
            heapq.heappush(self._free, sequence)

    def start_over(self, producer_id: str) -> bool:
        """The broker takes no more batches of this name. False: the name is the user's to keep."""
        if self._is_own_name and producer_id == self.producer_id:
            self.producer_id = uuid.uuid4().hex
            self._next = 1
            self._free.clear()
        return self._is_own_name
