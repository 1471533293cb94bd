"""Messages on their way out: threads add them to batches, the event loop takes the batches that are
due; a lock is between them.

Messages without a key and without a queue share one batch a topic, which takes the next free queue
when it is full or has waited long enough; others wait in the buffer of their queue. A batch that
was sent to a set keeps its queue and its number there until it is done; it moves to another set
only when it is certainly not stored. Memory is bounded, over all broker sets. Knows no network.
"""

from __future__ import annotations

import enum
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from mq.client.encode import Encoded, delay_field
from mq.client.messages import Message
from mq.client.producer.queues import (
    MESSAGE_OVERHEAD_BYTES,
    Batch,
    Kind,
    QueueBuffer,
    ResultFuture,
    Sequences,
    TopicQueues,
    WritableQueues,
)
from mq.errors import ClientClosed, IllegalDelay, MessageTooLarge
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
        self._waiting = WaitingBatches(producer_id, linger_s)
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
        future: ResultFuture | None,
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
            if kind is Kind.DELAYED:
                return self._add_delayed(
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

    def _add_delayed(
        self,
        topic: TopicQueues,
        message: Encoded,
        future: ResultFuture | None,
        timeout_s: float,
        delay: bytes,
        priority: int,
        *,
        is_urgent: bool,
    ) -> Outcome:
        """A message of any queue that is delivered later."""
        size = len(message[0]) + MESSAGE_OVERHEAD_BYTES
        batch, is_due = self._waiting.open_delayed(
            topic, self._batch_bytes - size, self._clock(), timeout_s, delay, priority
        )
        batch.add(message, future, size)
        if is_urgent or batch.size_bytes >= self._batch_bytes:
            topic.delayed.close(batch)
            is_due = True
        return self._outcome(0.0 if is_due else batch.ripe_s)

    def add_batch(  # noqa: PLR0913 # what is not the rule, by name
        self,
        topic_name: str,
        messages: Sequence[Encoded],
        line: QueueBuffer | None,
        futures: Sequence[ResultFuture],
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
                batch = waiting.begin(topic, None, Kind.DELAYED, now_s, timeout_s, delay, priority)
                topic.delayed.waiting.append(batch)
            else:
                line = line or topic.choices[priority].shared
                batch = waiting.open(topic, line, kind, now_s, timeout_s, delay, priority)
                line.waiting.append(batch)
                line.open = None
            for message, future, size in zip(messages, futures, sizes, strict=True):
                batch.add(message, future, size)
            return self._outcome(0.0)

    def topic(self, topic_name: str) -> TopicQueues | None:
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
        drain = Drain(self._clock(), room_bytes, free, well)
        with self._lock:
            self._waiting.take(drain)
            self._looks_s = drain.look_s
        return drain.batches, drain.look_s

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

    def expedite(self) -> set[Batch]:
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


# Batches without a line that are with a broker set: of so many it remembers where they are, when
# an answer was lost.
DELAYED_IN_FLIGHT_MAX = 48
# Batches in one request. A broker takes twice as many.
REQUEST_BATCHES_MAX = 1_000


class Drain:
    """What one `take` has gathered, and when the next one is due."""

    __slots__ = ("batches", "look_s", "now_s", "room", "room_bytes", "well")

    def __init__(
        self, now_s: float, room_bytes: int, free: Collection[str], well: Collection[str]
    ) -> None:
        self.now_s = now_s
        self.room_bytes = dict.fromkeys(free, room_bytes)
        self.room = dict.fromkeys(free, REQUEST_BATCHES_MAX)
        self.well = frozenset(well)
        self.batches: list[Batch] = []
        self.look_s = math.inf

    def add(self, batch: Batch) -> None:
        batch.is_out = True
        self.batches.append(batch)
        self.room_bytes[batch.broker_set] -= batch.size_bytes
        self.room[batch.broker_set] -= 1

    def is_full(self) -> bool:
        return not any(map(self.has_room, self.room_bytes))

    def has_room(self, broker_set: str) -> bool:
        """Not for a set that is not free: once it is, it is looked at again."""
        left = self.room_bytes.get(broker_set)
        if left is None:
            return False
        if left <= 0 or not self.room[broker_set]:
            self.look_s = self.now_s
            return False
        return True

    def sets(self, choice: WritableQueues) -> list[str]:
        """Those for whatever may go to any: that are well, or all if none is."""
        chosen = choice.sets & self.well or choice.sets
        return [one for one in chosen if self.has_room(one)]

    def look_again(self, at_s: float) -> None:
        self.look_s = min(self.look_s, at_s)


class WaitingBatches:
    def __init__(self, producer_id: str | None, linger_s: float) -> None:
        """`producer_id` as `Sequences` has it."""
        self._producer_id = producer_id
        self._linger_s = linger_s
        self._sequences: dict[str, Sequences] = {}
        self.topics: dict[str, TopicQueues] = {}
        # Topics with batches that are open or wait, the one to be served next at the front.
        self._active: dict[TopicQueues, None] = {}
        self._retrying: list[Batch] = []
        # All of them, oldest first.
        self.unfinished: dict[Batch, None] = {}
        self._delayed_in_flight: Counter[str] = Counter()

    def set_route(self, topic_name: str, parts: Sequence[TopicRoute], turn: int = 0) -> TopicQueues:
        """What the topic has in each set now; some part takes messages."""
        topic = self.topics.get(topic_name)
        if topic is None:
            topic = TopicQueues(topic_name, turn)
        topic.set_parts(parts)
        self.topics[topic_name] = topic
        return topic

    def needs(self, broker_set: str) -> bool:
        """Whether that set is wanted: something has to go there, or something like what is sent now
        could.
        """
        if any(batch.broker_set == broker_set for batch in self._retrying):
            return True
        return any(topic.unfinished and topic.may_use(broker_set) for topic in self.topics.values())

    # In

    def open(
        self,
        topic: TopicQueues,
        line: QueueBuffer,
        kind: Kind,
        now_s: float,
        timeout_s: float,
        delay: bytes,
        priority: int,
    ) -> Batch:
        if line.open is not None:
            line.waiting.append(line.open)
        batch = line.open = self.begin(topic, line, kind, now_s, timeout_s, delay, priority)
        if line.queue_id >= 0:
            topic.pinned[line] = None
        return batch

    def begin(
        self,
        topic: TopicQueues,
        line: QueueBuffer | None,
        kind: Kind,
        now_s: float,
        timeout_s: float,
        delay: bytes,
        priority: int,
    ) -> Batch:
        batch = Batch(
            topic.name,
            kind,
            -1 if line is None else line.queue_id,
            now_s,
            timeout_s,
            delay,
            broker_set="" if line is None else line.broker_set,
            priority=priority,
        )
        batch.ripe_s = now_s + self._linger_s
        self.unfinished[batch] = None
        topic.unfinished += 1
        self._active[topic] = None
        return batch

    def open_delayed(
        self,
        topic: TopicQueues,
        room_bytes: int,
        now_s: float,
        timeout_s: float,
        delay: bytes,
        priority: int,
    ) -> tuple[Batch, bool]:
        """The open batch for messages of any queue that are delivered later, and whether another
        one was closed for it: one with more than `room_bytes` is full.
        """
        key, delayed = (delay, timeout_s, priority), topic.delayed
        batch = delayed.open.get(key)
        is_full = batch is not None and batch.size_bytes > room_bytes
        if batch is not None and is_full:
            delayed.close(batch)
        if batch is None or is_full:
            batch = self.begin(topic, None, Kind.DELAYED, now_s, timeout_s, delay, priority)
            delayed.open[key] = batch
        return batch, is_full

    # Out

    def take(self, drain: Drain) -> None:
        self._take_retries(drain)
        for topic in list(self._active):
            if drain.is_full():
                break
            self._take_topic(topic, drain)
            del self._active[topic]
            if topic.has_waiting():
                self._active[topic] = None

    def _take_retries(self, drain: Drain) -> None:
        later: list[Batch] = []
        for batch in self._retrying:
            if batch.broker_set not in drain.well and self._can_move(batch, drain.well):
                self._displace(batch)
            elif batch.retry_s <= drain.now_s and drain.has_room(batch.broker_set):
                drain.add(batch)
            else:
                later.append(batch)
                if batch.broker_set in drain.room_bytes:
                    drain.look_again(batch.retry_s)
        self._retrying = later

    def _take_topic(self, topic: TopicQueues, drain: Drain) -> None:
        pinned_s = min(
            (batch.opened_s for line in topic.pinned if (batch := line.next())), default=math.inf
        )
        shared_s = min(
            (batch.opened_s for choice in topic.choices if (batch := choice.shared.next())),
            default=math.inf,
        )
        # The oldest one goes first: those with keys must not keep the others out for ever.
        if topic.delayed:
            self._take_delayed(topic, drain, min(pinned_s, shared_s))
        if shared_s <= pinned_s:
            self._take_shared(topic, drain)
        for line in list(topic.pinned):
            batch = line.next()
            if batch is None:
                del topic.pinned[line]
            elif line.busy is None and not line.is_ripe(drain.now_s):
                drain.look_again(batch.ripe_s)
            elif line.busy is None and drain.has_room(line.broker_set):
                self._bind(line.pop(), line, drain)
        while self._take_shared(topic, drain):
            pass
        if topic.delayed:
            self._take_delayed(topic, drain, math.inf)

    def _take_delayed(self, topic: TopicQueues, drain: Drain, opened_before_s: float) -> None:
        """Those that are not younger than that."""
        delayed, under_way = topic.delayed, self._delayed_in_flight
        while True:
            batch = delayed.next(drain.now_s)
            if batch is None:
                for waiting in itertools.islice(delayed.open.values(), 1):
                    drain.look_again(waiting.ripe_s)
                return
            if batch.opened_s > opened_before_s:
                return
            choice = topic.choices[batch.priority]
            sets = [one for one in drain.sets(choice) if under_way[one] < DELAYED_IN_FLIGHT_MAX]
            line = choice.next_queue(sets, is_idle=False)
            if line is None:
                return
            delayed.waiting.popleft()
            under_way[line.broker_set] += 1
            batch.place_at(line, *self._numbers(line.broker_set).take())
            drain.add(batch)

    def _take_shared(self, topic: TopicQueues, drain: Drain) -> bool:
        """One batch, of the highest priority that has one and a line for it."""
        for choice in reversed(topic.choices):
            batch = choice.shared.next()
            if batch is None:
                continue
            if not choice.shared.is_ripe(drain.now_s):
                drain.look_again(batch.ripe_s)
                continue
            line = choice.next_queue(drain.sets(choice), is_idle=True)
            if line is not None:
                self._bind(choice.shared.pop(), line, drain)
                return True
        return False

    def _bind(self, batch: Batch, line: QueueBuffer, drain: Drain) -> None:
        batch.place_at(line, *self._numbers(line.broker_set).take())
        line.busy = batch
        drain.add(batch)

    def _numbers(self, broker_set: str) -> Sequences:
        """Of each set its own: it knows only what it has stored itself."""
        found = self._sequences.get(broker_set)
        if found is None:
            found = self._sequences[broker_set] = Sequences(self._producer_id)
        return found

    # Back

    def retry(self, batch: Batch, at_s: float, *, elsewhere: bool = False) -> None:
        """It is taken once more, then, by the same set; by another one as soon as that is not well,
        if it may. `elsewhere`: in another queue, if it may and one is free.
        """
        topic = self.topics[batch.topic]
        if elsewhere and (batch.kind is Kind.ANY or batch.kind is Kind.DELAYED):
            # Not its own line, which it keeps busy.
            needs_line, sets = batch.kind is Kind.ANY, (batch.broker_set,)
            line = topic.choices[batch.priority].next_queue(sets, is_idle=needs_line)
            if line is not None:
                if needs_line:
                    topic.line(batch.broker_set, batch.queue_id).busy = None
                    line.busy = batch
                batch.queue_id = line.queue_id
        batch.retry_s = at_s
        batch.is_out = False
        self._retrying.append(batch)

    def _can_move(self, batch: Batch, well: Collection[str]) -> bool:
        sets = self.topics[batch.topic].choices[batch.priority].sets
        return batch.may_move and any(one in well for one in sets if one != batch.broker_set)

    def _displace(self, batch: Batch) -> None:
        """It waits for any set again, before all that wait."""
        self._vacate(batch)
        topic = self.topics[batch.topic]
        batch.displace()
        line = topic.buffer_of(batch)
        line.waiting.appendleft(batch)
        self._active[topic] = None

    def remove(self, batch: Batch, *, is_stored: bool = False) -> None:
        del self.unfinished[batch]
        self.topics[batch.topic].unfinished -= 1
        self._vacate(batch, is_stored=is_stored)
        if batch in self._retrying:
            self._retrying.remove(batch)

    def _vacate(self, batch: Batch, *, is_stored: bool = False) -> None:
        """Its place is free, and its number if that was certainly not used."""
        self.topics[batch.topic].buffer_of(batch).remove(batch)
        if batch.kind is Kind.DELAYED and batch.queue_id >= 0:
            self._delayed_in_flight[batch.broker_set] -= 1
        if batch.sequence and not is_stored and not batch.in_doubt:
            self._numbers(batch.broker_set).give_back(batch.producer_id, batch.sequence)

    def renumber(self, batch: Batch) -> bool:
        """The set takes no more batches of its producer id. Whether it has another one now."""
        numbers = self._numbers(batch.broker_set)
        if batch.in_doubt or not numbers.start_over(batch.producer_id):
            return False
        batch.producer_id, batch.sequence = numbers.take()
        return True

    def split(self, batch: Batch) -> dict[Batch, list[Batch]]:
        """Its queue is gone, and nothing of it was stored: its messages, and those that wait behind
        it, go where their keys lead now, before those that wait there. What there is instead of
        each batch that is no more.
        """
        batch.in_doubt = False
        topic = self.topics[batch.topic]
        line = topic.line(batch.broker_set, batch.queue_id)
        self.remove(batch)
        behind = []
        if line not in topic.writable:
            behind = [one for one in line.batches() if one.kind is Kind.KEY]
            behind.sort(key=lambda one: one is line.open)
            for one in behind:
                self.remove(one)
        self._active[topic] = None
        return {one: self._spread(topic, one) for one in (*reversed(behind), batch)}

    def _spread(self, topic: TopicQueues, batch: Batch) -> list[Batch]:
        parts: dict[QueueBuffer | None, Batch] = {}
        # The topic may be another one by now, of the same name and with fewer of them.
        batch.priority = min(batch.priority, max(topic.priorities - 1, 0))
        for message, future in zip(batch.messages, batch.futures, strict=True):
            is_keyed = batch.kind is Kind.KEY and message[3] is not None
            line = topic.queue_for_key(message[3] or 0, batch.priority) if is_keyed else None
            if line not in parts:
                parts[line] = batch.empty_copy(line)
            parts[line].add(message, future, len(message[0]) + MESSAGE_OVERHEAD_BYTES)
        for line, part in parts.items():
            self.unfinished[part] = None
            topic.unfinished += 1
            topic.buffer_of(part).waiting.appendleft(part)
            if line is not None:
                topic.pinned[line] = None
        return list(parts.values())


# An entry of the broker's log holds a batch as a whole.
BATCH_BYTES_MAX = 4 << 20


class BatchPart(NamedTuple):
    topic: str
    # None: any.
    line: QueueBuffer | None
    kind: Kind
    messages: list[Encoded]
    # Where they stood among all that were sent together.
    indices: list[int]
    delay: bytes
    priority: int = 0

    def add(
        self, accumulator: Accumulator, futures: Sequence[ResultFuture], timeout_s: float
    ) -> Outcome:
        return accumulator.add_batch(
            self.topic,
            self.messages,
            self.line,
            futures,
            timeout_s,
            kind=self.kind,
            delay=self.delay,
            priority=self.priority,
        )


def common_delay(messages: Sequence[Message | bytes | str]) -> bytes:
    """Of messages that are sent as one. IllegalDelay: they do not have the same."""
    delays = {delay_field(message) for message in messages}
    if len(delays) > 1:
        raise IllegalDelay("messages of one batch are delivered at the same time: send them apart")
    return delays.pop() if delays else b""


def split_batch(
    accumulator: Accumulator,
    topic_name: str,
    messages: Sequence[Encoded],
    queue_id: int | None,
    delay: bytes = b"",
    priorities: Sequence[int] = (),
    broker_set: str = "",
) -> list[BatchPart] | None:
    """None: the queues of the topic are not known yet. MessageTooLarge when they cannot be one;
    IllegalRequest: a queue without its set is not enough, or there is no such priority.
    `priorities` has that of each message, if any has one.
    """
    if not messages:
        return []
    topic = accumulator.topic(topic_name)
    if topic is None:
        return None
    if queue_id is not None:
        line, every = topic.fixed_queue(queue_id, broker_set), list(range(len(messages)))
        groups = [BatchPart(topic_name, line, Kind.FIXED, list(messages), every, delay)]
    else:
        groups = [
            BatchPart(
                topic_name,
                line,
                Kind.ANY if line is None else Kind.KEY,
                [messages[at] for at in indices],
                indices,
                delay,
                priority,
            )
            for (priority, line), indices in _by_line(topic, messages, priorities).items()
        ]
    for group in groups:
        _check_size(group)
    return groups


def _by_line(
    topic: TopicQueues, messages: Sequence[Encoded], priorities: Sequence[int]
) -> dict[tuple[int, QueueBuffer | None], list[int]]:
    """Which messages go to which line; those without a key with the first key of their priority."""
    found: dict[tuple[int, QueueBuffer | None], list[int]] = {}
    free: dict[int, list[int]] = {}
    firsts: dict[int, QueueBuffer] = {}
    for at, message in enumerate(messages):
        priority = priorities[at] if priorities and topic.priorities > 1 else 0
        if message[3] is None:
            topic.choice(priority)
            free.setdefault(priority, []).append(at)
        else:
            line = topic.queue_for_key(message[3], priority)
            firsts.setdefault(priority, line)
            found.setdefault((priority, line), []).append(at)
    for priority, indices in free.items():
        together = found.setdefault((priority, firsts.get(priority)), [])
        together += indices
        together.sort()
    return found


def priority_of(message: Message | bytes | str) -> int:
    return message.priority if isinstance(message, Message) else 0


def _check_size(group: BatchPart) -> None:
    size = sum(len(message[0]) + MESSAGE_OVERHEAD_BYTES for message in group.messages)
    if len(group.messages) > 1 and size > BATCH_BYTES_MAX:
        raise MessageTooLarge(
            f"a batch of {len(group.messages)} messages and {size} bytes for topic {group.topic}: "
            f"at most {BATCH_BYTES_MAX} are allowed; send them in parts"
        )
