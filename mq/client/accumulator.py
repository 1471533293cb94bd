"""Messages on their way out: threads add them here, the event loop takes batches; a lock is between
them.

Messages without a key and without a queue share one batch a topic, which takes the next free line
(see `lines`) when it is full or has waited long enough; others are pinned to the line of their
queue. Memory is bounded: what does not fit has to wait. Knows no network.
"""

from __future__ import annotations

import enum
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence

from mq.client.encode import Encoded
from mq.client.lines import MESSAGE_OVERHEAD_BYTES, Awaited, Batch, Kind, Line, TopicLines
from mq.client.sequences import Sequences


class Outcome(enum.Enum):
    """What became of an attempt to add a message."""

    ADDED = enum.auto()
    WAKE = enum.auto()  # added, and the loop has to look at it now
    FULL = enum.auto()  # not added: wait for room
    UNROUTED = enum.auto()  # not added: say first how many queues the topic has


NOT_ADDED = (Outcome.FULL, Outcome.UNROUTED)
# Batches without a line that are with the broker: of so many it remembers where they are, when an
# answer was lost.
LOOSE_UNDER_WAY_MAX = 48


class _Harvest:
    """What one `take` has gathered, and when the next one is due."""

    __slots__ = ("batches", "look_s", "now_s", "room_bytes")

    def __init__(self, now_s: float, room_bytes: int) -> None:
        self.now_s = now_s
        self.room_bytes = room_bytes
        self.batches: list[Batch] = []
        self.look_s = math.inf

    def add(self, batch: Batch) -> None:
        batch.is_out = True
        self.batches.append(batch)
        self.room_bytes -= batch.size_bytes

    def has_room(self) -> bool:
        if self.room_bytes <= 0:
            self.look_s = self.now_s
        return self.room_bytes > 0

    def look_again(self, at_s: float) -> None:
        self.look_s = min(self.look_s, at_s)


class Accumulator:
    def __init__(
        self,
        sequences: Sequences,
        *,
        linger_s: float,
        batch_bytes: int,
        buffer_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sequences = sequences
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[str, TopicLines] = {}
        # Topics with batches that are open or wait, the one to be served next at the front.
        self._active: dict[TopicLines, None] = {}
        self._retrying: list[Batch] = []
        # All that are not done yet, oldest first.
        self._unfinished: dict[Batch, None] = {}
        self._bytes = 0
        self._loose_under_way = 0
        # Of any topic: who sends asks for a queue by priority only then.
        self.has_priorities = False
        self._is_closed = False
        self._room_callbacks: list[Callable[[], object]] = []
        # When the loop looks here next without being called; what is due later calls nobody.
        self._looks_s = math.inf

    # From any thread

    def add(
        self,
        topic_name: str,
        message: Encoded,
        queue_id: int | None,
        future: Awaited | None,
        timeout_s: float,
        *,
        is_urgent: bool = False,
        delay: bytes = b"",
    ) -> Outcome:
        """`is_urgent`: somebody waits for this very message, so it does not wait for others.
        `delay`: see `encode.delay_field`.
        """
        size = len(message[0]) + MESSAGE_OVERHEAD_BYTES
        with self._lock:
            topic = self._topics.get(topic_name)
            if topic is None or not self._reserve(size):
                return Outcome.UNROUTED if topic is None else Outcome.FULL
            if queue_id is not None:
                line, kind = topic.line(queue_id), Kind.FIXED
            elif message[3] is not None:
                queue_id, kind = message[3] % topic.write_queues, Kind.KEY
                line = topic.line(queue_id)
            elif delay:
                return self._add_loose(
                    topic, message, future, timeout_s, delay, is_urgent=is_urgent
                )
            else:
                queue_id, line, kind = -1, topic.shared, Kind.ANY
            batch, due_s = line.open, math.inf
            if (
                batch is None
                or batch.size_bytes + size > self._batch_bytes
                or batch.kind is not kind
                or batch.timeout_s != timeout_s
                or batch.delay != delay
            ):
                due_s = math.inf if batch is None else 0.0
                batch = self._open(topic, line, kind, queue_id, timeout_s, delay)
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
        *,
        is_urgent: bool,
    ) -> Outcome:
        """A message of any queue that is delivered later."""
        size = len(message[0]) + MESSAGE_OVERHEAD_BYTES
        key, loose, due_s = (delay, timeout_s), topic.loose, math.inf
        batch = loose.open.get(key)
        if batch is not None and batch.size_bytes + size > self._batch_bytes:
            loose.close(batch)
            batch, due_s = None, 0.0
        if batch is None:
            batch = loose.open[key] = self._begin(topic, Kind.LOOSE, -1, timeout_s, delay)
        batch.add(message, future, size)
        if is_urgent or batch.size_bytes >= self._batch_bytes:
            loose.close(batch)
            due_s = 0.0
        return self._outcome(min(due_s, batch.ripe_s))

    def add_batch(
        self,
        topic_name: str,
        messages: Sequence[Encoded],
        queue_id: int | None,
        futures: Sequence[Awaited],
        timeout_s: float,
        *,
        kind: Kind,
        delay: bytes = b"",
    ) -> Outcome:
        """All of them as one batch of its own, behind what was added before."""
        sizes = [len(message[0]) + MESSAGE_OVERHEAD_BYTES for message in messages]
        with self._lock:
            topic = self._topics.get(topic_name)
            if topic is None or not self._reserve(sum(sizes)):
                return Outcome.UNROUTED if topic is None else Outcome.FULL
            place = -1 if queue_id is None else queue_id
            if queue_id is None and delay:
                batch = self._begin(topic, Kind.LOOSE, place, timeout_s, delay)
                topic.loose.waiting.append(batch)
            else:
                line = topic.shared if queue_id is None else topic.line(queue_id)
                batch = self._open(topic, line, kind, place, timeout_s, delay)
                line.waiting.append(batch)
                line.open = None
            for message, future, size in zip(messages, futures, sizes, strict=True):
                batch.add(message, future, size)
            return self._outcome(0.0)

    def queue_of(self, topic_name: str, ordering_hash: int) -> int | None:
        """Where messages of a key go. None: the topic is not known here."""
        with self._lock:
            topic = self._topics.get(topic_name)
            return None if topic is None else ordering_hash % topic.write_queues

    def knows(self, topic_name: str) -> bool:
        """Whether its queues are known."""
        return topic_name in self._topics

    def queue_by_priority(
        self, topic_name: str, priority: int, ordering_hash: int | None
    ) -> int | None:
        """Where a message goes in a topic with priorities; None: the topic has none, or is not
        known. IllegalRequest: the topic has others.
        """
        topic = self._topics.get(topic_name)  # asked for every message: without the lock
        if topic is None or topic.priorities < 2:
            return None
        with self._lock:
            return topic.priority_queue(priority, ordering_hash)

    def call_when_room(self, callback: Callable[[], object]) -> None:
        """Once, when something is released; at once when there is nothing that could be."""
        with self._lock:
            if self._bytes:
                self._room_callbacks.append(callback)
                return
        callback()

    def _reserve(self, size: int) -> bool:
        if self._is_closed:
            raise RuntimeError("the producer is closed")
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

    def _open(
        self,
        topic: TopicLines,
        line: Line,
        kind: Kind,
        queue_id: int,
        timeout_s: float,
        delay: bytes,
    ) -> Batch:
        if line.open is not None:
            line.waiting.append(line.open)
        batch = line.open = self._begin(topic, kind, queue_id, timeout_s, delay)
        if line is not topic.shared:
            topic.pinned[queue_id] = line
        return batch

    def _begin(
        self, topic: TopicLines, kind: Kind, queue_id: int, timeout_s: float, delay: bytes
    ) -> Batch:
        now_s = self._clock()
        batch = Batch(topic.name, kind, queue_id, now_s, timeout_s, delay)
        batch.ripe_s = now_s + self._linger_s
        self._unfinished[batch] = None
        self._active[topic] = None
        return batch

    # From the event loop

    def set_route(
        self, topic_name: str, write_queues: int, first_queue: int = 0, priorities: int = 0
    ) -> None:
        """How many queues the topic has now; batches without a key start at `first_queue`."""
        with self._lock:
            self.has_priorities = self.has_priorities or priorities > 1
            topic = self._topics.get(topic_name)
            if topic is None:
                lines = TopicLines(topic_name, write_queues, first_queue, priorities)
                self._topics[topic_name] = lines
            else:
                topic.write_queues = write_queues
                topic.priorities = priorities
                topic.next_queue %= write_queues

    def topics(self) -> list[str]:
        with self._lock:
            return list(self._topics)

    def take(self, room_bytes: int) -> tuple[list[Batch], float]:
        """Batches to be sent now, of so many bytes or one, and when to look again at the latest.

        Each keeps its line until it comes back by `release`, or by `retry` and `take` once more.
        """
        harvest = _Harvest(self._clock(), room_bytes)
        with self._lock:
            self._take_retries(harvest)
            for topic in list(self._active):
                if not harvest.has_room():
                    break
                self._take_topic(topic, harvest)
                del self._active[topic]
                if topic.pinned or topic.loose or topic.shared.next() is not None:
                    self._active[topic] = None
            self._looks_s = harvest.look_s
        return harvest.batches, harvest.look_s

    def _take_retries(self, harvest: _Harvest) -> None:
        later: list[Batch] = []
        for batch in self._retrying:
            if batch.retry_s <= harvest.now_s and harvest.has_room():
                harvest.add(batch)
            else:
                later.append(batch)
                harvest.look_again(batch.retry_s)
        self._retrying = later

    def _take_topic(self, topic: TopicLines, harvest: _Harvest) -> None:
        shared = topic.shared.next()
        oldest_s = min(
            (batch.opened_s for line in topic.pinned.values() if (batch := line.next())),
            default=math.inf,
        )
        # The oldest one goes first: those with keys must not keep the others out for ever.
        if topic.loose:
            self._take_loose(topic, harvest, min(oldest_s, shared.opened_s if shared else math.inf))
        if shared is not None and shared.opened_s <= oldest_s:
            self._take_shared(topic, harvest)
        for queue_id, line in list(topic.pinned.items()):
            batch = line.next()
            if batch is None:
                del topic.pinned[queue_id]
            elif line.busy is None and not line.is_ripe(harvest.now_s):
                harvest.look_again(batch.ripe_s)
            elif line.busy is None and harvest.has_room():
                self._bind(line.pop(), line, queue_id, harvest)
        while harvest.has_room() and self._take_shared(topic, harvest):
            pass
        if topic.loose:
            self._take_loose(topic, harvest, math.inf)

    def _take_loose(self, topic: TopicLines, harvest: _Harvest, opened_before_s: float) -> None:
        """Those that are not younger than that."""
        loose = topic.loose
        while self._loose_under_way < LOOSE_UNDER_WAY_MAX:
            batch = loose.next(harvest.now_s)
            if batch is None:
                for waiting in itertools.islice(loose.open.values(), 1):
                    harvest.look_again(waiting.ripe_s)
                return
            if batch.opened_s > opened_before_s or not harvest.has_room():
                return
            loose.waiting.popleft()
            self._loose_under_way += 1
            batch.queue_id = topic.any_queue()
            batch.producer_id, batch.sequence = self._sequences.take()
            harvest.add(batch)

    def _take_shared(self, topic: TopicLines, harvest: _Harvest) -> bool:
        batch = topic.shared.next()
        if batch is None:
            return False
        if not topic.shared.is_ripe(harvest.now_s):
            harvest.look_again(batch.ripe_s)
            return False
        queue_id = topic.idle_queue()
        if queue_id < 0:
            return False
        self._bind(topic.shared.pop(), topic.line(queue_id), queue_id, harvest)
        return True

    def _bind(self, batch: Batch, line: Line, queue_id: int, harvest: _Harvest) -> None:
        batch.queue_id = queue_id
        batch.producer_id, batch.sequence = self._sequences.take()
        line.busy = batch
        harvest.add(batch)

    def rest(self) -> bool:
        """The loop cannot send at the moment, and looks by itself when it can: nobody calls it.

        True when nothing is here at all: then the next message does.
        """
        with self._lock:
            is_empty = self._bytes == 0
            self._looks_s = math.inf if is_empty else -math.inf
            return is_empty

    def retry(self, batch: Batch, at_s: float, *, elsewhere: bool = False) -> None:
        """It is taken once more, then. `elsewhere`: in another queue, if it may and one is free."""
        with self._lock:
            topic = self._topics[batch.topic]
            if elsewhere and batch.kind is Kind.ANY:
                queue_id = topic.idle_queue()  # not its own, which it keeps busy
                if queue_id >= 0:
                    topic.line(batch.queue_id).busy = None
                    topic.line(queue_id).busy = batch
                    batch.queue_id = queue_id
            elif elsewhere and batch.kind is Kind.LOOSE:
                batch.queue_id = topic.any_queue()
            batch.retry_s = at_s
            batch.is_out = False
            self._retrying.append(batch)

    def release(self, batch: Batch, *, is_stored: bool) -> None:
        """It is done, one way or the other: its line and its memory are free."""
        with self._lock:
            self._remove(batch)
            self._bytes -= batch.size_bytes
            if not is_stored and not batch.in_doubt:
                self._sequences.give_back(batch.producer_id, batch.sequence)
            callbacks, self._room_callbacks = self._room_callbacks, []
        for callback in callbacks:
            callback()

    def _remove(self, batch: Batch) -> None:
        del self._unfinished[batch]
        self._topics[batch.topic].line_of(batch).remove(batch)
        if batch.kind is Kind.LOOSE and batch.queue_id >= 0:
            self._loose_under_way -= 1
        if batch in self._retrying:
            self._retrying.remove(batch)

    def renumber(self, batch: Batch) -> bool:
        """The broker takes no more batches of its producer id. Whether it has another one now."""
        with self._lock:
            if batch.in_doubt or not self._sequences.start_over(batch.producer_id):
                return False
            batch.producer_id, batch.sequence = self._sequences.take()
            return True

    def split(self, batch: Batch) -> list[Batch]:
        """Its queue is gone, and nothing of it was stored: its messages, and those that wait behind
        it, go where their keys lead now, before those that wait there.
        """
        with self._lock:
            self._remove(batch)
            self._sequences.give_back(batch.producer_id, batch.sequence)
            topic = self._topics[batch.topic]
            behind = []
            if batch.queue_id >= topic.write_queues:
                line = topic.line(batch.queue_id)
                behind = [one for one in line.batches() if one.kind is Kind.KEY]
                behind.sort(key=lambda one: one is line.open)
                for one in behind:
                    self._remove(one)
            for one in reversed(behind):
                self._spread(topic, one)
            self._active[topic] = None
            return self._spread(topic, batch)

    def _spread(self, topic: TopicLines, batch: Batch) -> list[Batch]:
        parts: dict[int, Batch] = {}
        for message, future in zip(batch.messages, batch.futures, strict=True):
            queue_id = -1 if message[3] is None else message[3] % topic.write_queues
            if queue_id not in parts:
                parts[queue_id] = batch.empty_copy(queue_id)
            parts[queue_id].add(message, future, len(message[0]) + MESSAGE_OVERHEAD_BYTES)
        for queue_id, part in parts.items():
            self._unfinished[part] = None
            topic.line_of(part).waiting.appendleft(part)
            if queue_id >= 0:
                topic.pinned[queue_id] = topic.line(queue_id)
        return list(parts.values())

    def ripen(self) -> set[Batch]:
        """Nothing waits for more messages: for `flush`. All batches that are not done yet."""
        with self._lock:
            for batch in self._unfinished:
                batch.ripe_s = 0.0
            return set(self._unfinished)

    def unsent(self) -> list[Batch]:
        """Those that are not with the broker at the moment."""
        with self._lock:
            return [batch for batch in self._unfinished if not batch.is_out]

    @property
    def is_empty(self) -> bool:
        return self._bytes == 0

    def close(self) -> None:
        """Nothing more is added."""
        with self._lock:
            self._is_closed = True
