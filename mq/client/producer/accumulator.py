"""Messages on their way out: threads add them here, the event loop takes batches; a lock is between
them.

Messages without a key and without a queue share one batch a topic, which takes the next free line
when it is full or has waited long enough; others are pinned to the line of their queue. Where
batches wait, and whose turn it is, `waiting` knows. Memory is bounded, over all broker sets: what
does not fit has to wait. Knows no network.
"""

from __future__ import annotations

import enum
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence

from mq.client.encode import Encoded
from mq.client.producer.lines import MESSAGE_OVERHEAD_BYTES, Awaited, Batch, Kind, Line, TopicLines
from mq.client.producer.waiting import Harvest, Waiting
from mq.errors import ClientClosed
from mq.wire.v1.cluster_pb2 import TopicRoute


class Outcome(enum.Enum):
    """What became of an attempt to add a message."""

    ADDED = enum.auto()
    WAKE = enum.auto()  # added, and the loop has to look at it now
    FULL = enum.auto()  # not added: wait for room
    UNROUTED = enum.auto()  # not added: say first which queues the topic has


NOT_ADDED = (Outcome.FULL, Outcome.UNROUTED)


class Accumulator:
    def __init__(
        self,
        producer_id: str | None,
        *,
        linger_s: float,
        batch_bytes: int,
        buffer_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`producer_id` as `Sequences` has it."""
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = Waiting(producer_id, linger_s)
        self._topics = self._waiting.topics
        self._bytes = 0
        # Of any topic: who sends asks for the priority of a message only then.
        self.has_priorities = False
        self._is_closed = False
        self._room_callbacks: list[Callable[[], object]] = []
        # When the loop looks here next without being called; what is due later calls nobody.
        self._looks_s = math.inf

    # From any thread

    def add(  # noqa: PLR0913 # what is not the rule, by name
        self,
        topic_name: str,
        message: Encoded,
        queue_id: int | None,
        future: Awaited | None,
        timeout_s: float,
        *,
        is_urgent: bool = False,
        delay: bytes = b"",
        priority: int = 0,
        broker_set: str = "",
    ) -> Outcome:
        """`is_urgent`: somebody waits for this very message, so it does not wait for others.
        `delay`: see `encode.delay_field`. IllegalRequest: there is no such priority; a queue
        without its set is not enough.
        """
        size = len(message[0]) + MESSAGE_OVERHEAD_BYTES
        with self._lock:
            topic = self._topics.get(topic_name)
            if topic is None:
                return Outcome.UNROUTED
            if queue_id is None and message[3] is None and not delay and topic.priorities < 2:
                line, kind, priority = topic.shared, Kind.ANY, 0
            else:
                line, kind, priority = topic.wait_for(
                    message[3], queue_id, broker_set, delay, priority
                )
            if not self._reserve(size):
                return Outcome.FULL
            if kind is Kind.LOOSE:
                return self._add_loose(
                    topic, message, future, timeout_s, delay, priority, is_urgent=is_urgent
                )
            batch, due_s = line.open, math.inf
            if (
                batch is None
                or batch.size_bytes + size > self._batch_bytes
                or batch.kind is not kind
                or batch.timeout_s != timeout_s
                or batch.delay != delay
            ):
                due_s = math.inf if batch is None else 0.0
                batch = self._waiting.open(
                    topic, line, kind, self._clock(), timeout_s, delay, priority
                )
            batch.messages.append(message)
            batch.futures.append(future)
            batch.size_bytes += size
            if is_urgent or batch.size_bytes >= self._batch_bytes:
                batch.ripe_s = 0.0
            return self._outcome(min(due_s, batch.ripe_s))

    def _add_loose(
        self,
        topic: TopicLines,
        message: Encoded,
        future: Awaited | None,
        timeout_s: float,
        delay: bytes,
        priority: int,
        *,
        is_urgent: bool,
    ) -> Outcome:
        """A message of any queue that is delivered later."""
        size = len(message[0]) + MESSAGE_OVERHEAD_BYTES
        batch, is_due = self._waiting.open_loose(
            topic, self._batch_bytes - size, self._clock(), timeout_s, delay, priority
        )
        batch.add(message, future, size)
        if is_urgent or batch.size_bytes >= self._batch_bytes:
            topic.loose.close(batch)
            is_due = True
        return self._outcome(0.0 if is_due else batch.ripe_s)

    def add_batch(  # noqa: PLR0913 # what is not the rule, by name
        self,
        topic_name: str,
        messages: Sequence[Encoded],
        line: Line | None,
        futures: Sequence[Awaited],
        timeout_s: float,
        *,
        kind: Kind,
        delay: bytes = b"",
        priority: int = 0,
    ) -> Outcome:
        """All of them as one batch of its own, behind what was added before. `line` None: any."""
        sizes = [len(message[0]) + MESSAGE_OVERHEAD_BYTES for message in messages]
        with self._lock:
            topic = self._topics.get(topic_name)
            if topic is None or not self._reserve(sum(sizes)):
                return Outcome.UNROUTED if topic is None else Outcome.FULL
            waiting, now_s = self._waiting, self._clock()
            if line is None and delay:
                batch = waiting.begin(topic, None, Kind.LOOSE, now_s, timeout_s, delay, priority)
                topic.loose.waiting.append(batch)
            else:
                line = line or topic.choices[priority].shared
                batch = waiting.open(topic, line, kind, now_s, timeout_s, delay, priority)
                line.waiting.append(batch)
                line.open = None
            for message, future, size in zip(messages, futures, sizes, strict=True):
                batch.add(message, future, size)
            return self._outcome(0.0)

    def topic(self, topic_name: str) -> TopicLines | None:
        """Its lines, to choose among them; None: it is not known here."""
        return self._topics.get(topic_name)

    def call_when_room(self, callback: Callable[[], object]) -> None:
        """Once, when something is released; at once when there is nothing that could be."""
        with self._lock:
            if self._bytes:
                self._room_callbacks.append(callback)
                return
        callback()

    def _reserve(self, size: int) -> bool:
        if self._is_closed:
            raise ClientClosed("the producer is closed: make another one")
        # Whatever its size, one message fits an empty buffer.
        if self._bytes and self._bytes + size > self._buffer_bytes:
            return False
        self._bytes += size
        return True

    def _outcome(self, due_s: float) -> Outcome:
        if due_s >= self._looks_s:
            return Outcome.ADDED
        self._looks_s = due_s
        return Outcome.WAKE

    # From the event loop

    def set_route(self, topic_name: str, parts: Sequence[TopicRoute], turn: int = 0) -> None:
        """What the topic has in each set now; some part takes messages. Batches of a new topic
        without a key start at the queue of that `turn`.
        """
        with self._lock:
            topic = self._waiting.set_route(topic_name, parts, turn)
            self.has_priorities = self.has_priorities or topic.priorities > 1

    def needs(self, broker_set: str) -> bool:
        """Whether that set is wanted for what is here, or for more of the like."""
        with self._lock:
            return self._waiting.needs(broker_set)

    def topics(self) -> list[str]:
        with self._lock:
            return list(self._topics)

    def take(
        self, room_bytes: int, free: Collection[str], well: Collection[str]
    ) -> tuple[list[Batch], float]:
        """Batches to be sent now, of so many bytes or one to each set that is free, and when to
        look again at the latest. What may go to any set goes to those that are well, or to any if
        none of its topic is.

        Each keeps its line until it comes back by `release`, or by `retry` and `take` once more.
        """
        harvest = Harvest(self._clock(), room_bytes, free, well)
        with self._lock:
            self._waiting.take(harvest)
            self._looks_s = harvest.look_s
        return harvest.batches, harvest.look_s

    def rest(self) -> bool:
        """The loop cannot send at the moment, and looks by itself when it can: nobody calls it.

        True when nothing is here at all: then the next message does.
        """
        with self._lock:
            is_empty = self._bytes == 0
            self._looks_s = math.inf if is_empty else -math.inf
            return is_empty

    def retry(self, batch: Batch, at_s: float, *, elsewhere: bool = False) -> None:
        """It is taken once more, then, by the same set; by another one as soon as that is not well,
        if it may. `elsewhere`: in another queue, if it may and one is free.
        """
        with self._lock:
            self._waiting.retry(batch, at_s, elsewhere=elsewhere)

    def release(self, batch: Batch, *, is_stored: bool) -> None:
        """It is done, one way or the other: its line and its memory are free."""
        with self._lock:
            self._waiting.remove(batch, is_stored=is_stored)
            self._bytes -= batch.size_bytes
            callbacks, self._room_callbacks = self._room_callbacks, []
        for callback in callbacks:
            callback()

    def renumber(self, batch: Batch) -> bool:
        """The set takes no more batches of its producer id. Whether it has another one now."""
        with self._lock:
            return self._waiting.renumber(batch)

    def split(self, batch: Batch) -> dict[Batch, list[Batch]]:
        """Its queue is gone, and nothing of it was stored: its messages, and those that wait behind
        it, go where their keys lead now, before those that wait there. What there is instead of
        each batch that is no more.
        """
        with self._lock:
            return self._waiting.split(batch)

    def ripen(self) -> set[Batch]:
        """Nothing waits for more messages: for `flush`. All batches that are not done yet."""
        with self._lock:
            for batch in self._waiting.unfinished:
                batch.ripe_s = 0.0
            return set(self._waiting.unfinished)

    def unsent(self) -> list[Batch]:
        """Those that are not with the broker at the moment."""
        with self._lock:
            return [batch for batch in self._waiting.unfinished if not batch.is_out]

    @property
    def is_empty(self) -> bool:
        return self._bytes == 0

    def close(self) -> None:
        """Nothing more is added."""
        with self._lock:
            self._is_closed = True
