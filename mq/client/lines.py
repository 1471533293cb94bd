"""Batches of a producer, and the lines in which they wait for their queue.

A queue is a line: one batch of it is with the broker at a time, and keeps the line while it is
retried, so that the messages of a producer stand in a queue in the order they were sent, whatever
happens. While the line is busy the next batch grows. Values without a lock: the accumulator has it.
"""

from __future__ import annotations

import enum
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from mq.client.encode import Encoded, columns, place
from mq.client.failures import fresh
from mq.client.model import SendResult
from mq.client.priorities import queue_for
from mq.errors import MqError, Unreachable
from mq.wire.v1.producer_pb2 import BatchResult

# What a message costs in a batch beyond its frame: its size and the hash of its tag.
MESSAGE_OVERHEAD_BYTES = 12


class Kind(enum.Enum):
    """Who chose the queue of a batch."""

    ANY = enum.auto()  # nobody: it may go to another one
    KEY = enum.auto()  # the ordering keys of its messages
    FIXED = enum.auto()  # the user
    LOOSE = enum.auto()  # nobody, and it keeps no line: it is delivered later, by its time


class Awaited(Protocol):
    """A future of either kind."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class Batch:
    """Messages of one queue. `futures` has one for each, or None where nobody waits."""

    __slots__ = (
        "attempts",
        "bounces",
        "columns",
        "delay",
        "error",
        "futures",
        "in_doubt",
        "is_done",
        "is_out",
        "is_rerouted",
        "kind",
        "messages",
        "opened_s",
        "producer_id",
        "queue_id",
        "retry_s",
        "ripe_s",
        "sent_s",
        "sequence",
        "size_bytes",
        "timeout_s",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        kind: Kind,
        queue_id: int,
        opened_s: float,
        timeout_s: float,
        delay: bytes = b"",
    ) -> None:
        self.topic = topic
        self.kind = kind
        self.delay = delay  # see `encode.delay_field`
        self.queue_id = queue_id  # -1: not chosen yet
        self.messages: list[Encoded] = []
        self.futures: list[Awaited | None] = []
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
        self.is_rerouted = False
        self.error: MqError | None = None

    def add(self, message: Encoded, future: Awaited | None, size: int) -> None:
        self.messages.append(message)
        self.futures.append(future)
        self.size_bytes += size

    def empty_copy(self, queue_id: int) -> Batch:
        """For a part of its messages, in another queue."""
        copy = Batch(self.topic, self.kind, queue_id, self.opened_s, self.timeout_s, self.delay)
        copy.ripe_s = 0.0
        copy.is_rerouted = self.is_rerouted
        copy.attempts, copy.bounces = self.attempts, self.bounces
        return copy

    def encoded(self) -> tuple[bytes, bytes]:
        """Place and columns, as a request has them."""
        if not self.columns:
            self.columns = columns(self.messages, self.delay)
        return place(self.topic, self.queue_id, self.producer_id, self.sequence), self.columns

    def succeed(self, broker_set: str, result: BatchResult, status: str) -> None:
        """Tells everybody who waits where their message is."""
        topic, queue_id = self.topic, result.queue_id
        queue_offset, log_offset = result.queue_offset, result.log_offset
        stored_at_ms, is_duplicate = result.stored_at_ms, result.is_duplicate
        deliver_at_ms = result.deliver_at_ms
        if log_offset < 0:
            nowhere = SendResult(
                "", topic, queue_id, -1, stored_at_ms, is_duplicate, status, deliver_at_ms
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
        error = self.error or trouble
        if error is not None and not isinstance(error, Unreachable):
            return error
        doubt = "it may have been stored" if self.in_doubt else "it was not sent"
        return Unreachable(
            f"no answer for a batch to {self.topic} within {self.timeout_s:g} s; {doubt}; brokers: "
            f"{', '.join(servers)}; the last trouble: {error or 'none'}"
        )

    def expires_s(self, progress_s: float) -> float:
        """When it fails for want of an answer. Before it is sent the wait behind others does not
        count, as long as those are answered.
        """
        return (self.sent_s or max(self.opened_s, progress_s)) + self.timeout_s


class Line:
    __slots__ = ("busy", "open", "waiting")

    def __init__(self) -> None:
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


class Loose:
    """Batches that are delivered later, in any queue: they need no order, but a time in common, so
    that each time has an open batch of its own.
    """

    __slots__ = ("open", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Batch] = deque()
        # Keyed by delay and time-out; the oldest comes first.
        self.open: dict[tuple[bytes, float], Batch] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting or self.open)

    def close(self, batch: Batch) -> None:
        """It takes no more messages."""
        key = batch.delay, batch.timeout_s
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
        key = batch.delay, batch.timeout_s
        if self.open.get(key) is batch:
            del self.open[key]
        elif batch.queue_id < 0 and batch in self.waiting:
            self.waiting.remove(batch)


class TopicLines:
    """`pinned` has the lines with batches that may go nowhere else; `shared` is for the others,
    `loose` for those of them that need no line.
    """

    __slots__ = (
        "lines",
        "loose",
        "name",
        "next_queue",
        "pinned",
        "priorities",
        "shared",
        "turns",
        "write_queues",
    )

    def __init__(self, name: str, write_queues: int, first_queue: int, priorities: int = 0) -> None:
        self.name = name
        self.priorities = priorities
        self.turns: dict[int, int] = {}  # of each priority: which of its queues is next
        self.write_queues = write_queues
        self.next_queue = first_queue
        self.lines: dict[int, Line] = {}
        self.pinned: dict[int, Line] = {}
        self.shared = Line()
        self.loose = Loose()

    def line(self, queue_id: int) -> Line:
        line = self.lines.get(queue_id)
        if line is None:
            line = self.lines[queue_id] = Line()
        return line

    def line_of(self, batch: Batch) -> Line | Loose:
        if batch.kind is Kind.LOOSE:
            return self.loose
        return self.shared if batch.queue_id < 0 else self.line(batch.queue_id)

    def priority_queue(self, priority: int, ordering_hash: int | None) -> int:
        """In a topic with priorities: of a key, or that in which a batch is open, or the next one.
        IllegalRequest.
        """
        choose = functools.partial(
            queue_for, priority=priority, priorities=self.priorities, queues=self.write_queues
        )
        if ordering_hash is not None:
            return choose(ordering_hash)
        turn = self.turns.get(priority, self.next_queue)
        if self.line(choose(turn)).open is None:
            turn += 1
        self.turns[priority] = turn
        return choose(turn)

    def any_queue(self) -> int:
        """The next one in turn."""
        queue_id = self.next_queue % self.write_queues
        self.next_queue = (queue_id + 1) % self.write_queues
        return queue_id

    def idle_queue(self) -> int:
        """The next one in turn of which nothing is with the broker; -1: there is none."""
        for step in range(self.write_queues):
            queue_id = (self.next_queue + step) % self.write_queues
            line = self.lines.get(queue_id)
            if line is None or line.busy is None:
                self.next_queue = (queue_id + 1) % self.write_queues
                return queue_id
        return -1
