"""The accumulator of a producer: threads add messages to batches, the event loop takes the batches
that are ready. One lock is between them.

Messages without a key and without a queue share one batch per topic, which is assigned to the next
free queue when it is full or its linger time is over; others wait in the buffer of their queue. A
batch that was sent to a broker set keeps its queue and its sequence there until it is finished; it
moves to another set only when it is certainly not stored. Memory is bounded over all broker sets.
Knows no network.
"""

from __future__ import annotations

import enum
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from mq.client.encode import Encoded, Prepared
from mq.client.producer.queues import (
    BODY_OVERHEAD_BYTES,
    MESSAGE_OVERHEAD_BYTES,
    Batch,
    BatchKind,
    Chosen,
    QueueBuffer,
    ResultFuture,
    SendFuture,
    Sequences,
    TopicQueues,
    WritableQueues,
)
from mq.errors import ClientClosed, IllegalDelay, MessageTooLarge
from mq.wire.v1.cluster_pb2 import TopicRoute

# Delayed batches in flight to one broker set. They occupy no queue, and the set remembers the
# places of only so many for repetitions after a lost answer.
DELAYED_IN_FLIGHT_MAX = 48
# Batches in one request. A broker takes twice as many.
REQUEST_BATCHES_MAX = 1_000


class AddResult(enum.Enum):
    """The result of an attempt to add a message."""

    ADDED = enum.auto()
    WAKE = enum.auto()  # added, and the loop has to be woken
    FULL = enum.auto()  # not added: wait for room
    UNROUTED = enum.auto()  # not added: set the route of the topic first


class Drain:
    """The batches of one `take`, and the time of the next one."""

    def __init__(
        self, now_s: float, room_bytes: int, free: Collection[str], healthy: Collection[str]
    ) -> None:
        self.now_s = now_s
        self.room_bytes = dict.fromkeys(free, room_bytes)
        self.room = dict.fromkeys(free, REQUEST_BATCHES_MAX)
        self.healthy = frozenset(healthy)
        self.batches: list[Batch] = []
        self.next_poll_s = math.inf

    def add(self, batch: Batch) -> None:
        batch.is_in_flight = True
        self.batches.append(batch)
        self.room_bytes[batch.broker_set] -= batch.size_bytes
        self.room[batch.broker_set] -= 1

    def is_full(self) -> bool:
        return not any(map(self.has_room, self.room_bytes))

    def has_room(self, broker_set: str) -> bool:
        """Returns False for a set that is not free; the loop polls again once it is."""
        left = self.room_bytes.get(broker_set)
        if left is None:
            return False
        if left <= 0 or not self.room[broker_set]:
            self.next_poll_s = self.now_s
            return False
        return True

    def sets(self, candidates: WritableQueues) -> list[str]:
        """The sets for a batch of any queue: the healthy ones, or all if none is healthy."""
        chosen = candidates.sets & self.healthy or candidates.sets
        return [one for one in chosen if self.has_room(one)]

    def poll_at(self, at_s: float) -> None:
        self.next_poll_s = min(self.next_poll_s, at_s)


class Accumulator:
    """Public methods take the lock; private ones expect that it is held."""

    def __init__(
        self,
        producer_id: str | None,
        *,
        linger_s: float,
        batch_bytes: int,
        buffer_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`producer_id`: see `Sequences`."""
        self._producer_id = producer_id
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[str, TopicQueues] = {}
        # Topics with open or waiting batches; the next one to be served is at the front.
        self._active: dict[TopicQueues, None] = {}
        self._retrying: list[Batch] = []
        # All batches that are not released, oldest first.
        self._unfinished: dict[Batch, None] = {}
        self._delayed_in_flight: Counter[str] = Counter()
        # Per broker set: a set knows only the sequences that it has stored itself.
        self._sequences: dict[str, Sequences] = {}
        self._bytes = 0
        self._is_closed = False
        self._room_callbacks: list[Callable[[], object]] = []
        # The loop takes batches at this time by itself; only an earlier one has to wake it.
        self._next_poll_s = math.inf

    # From any thread

    def add(
        self,
        topic_name: str,
        message: Encoded,
        queue_id: int | None,
        future: ResultFuture | None,
        timeout_s: float,
        broker_set: str = "",
        is_urgent: bool = False,  # noqa: FBT001, FBT002 # by position: called for each message
    ) -> AddResult:
        """An urgent message does not linger. Raises IllegalRequest for a priority that the topic
        does not have, or a queue without its set when several sets have the topic.
        """
        size = len(message[0]) + MESSAGE_OVERHEAD_BYTES
        delay = message[4]
        with self._lock:
            topic = self._topics.get(topic_name)
            if topic is None:
                return AddResult.UNROUTED
            if queue_id is None and message[3] is None and not delay and topic.priorities < 2:
                queue, kind, _ = chosen = topic.shared, BatchKind.ANY, 0
            else:
                queue, kind, _ = chosen = topic.choose_buffer(message, queue_id, broker_set)
            if not self._reserve(size):
                return AddResult.FULL
            if kind is BatchKind.DELAYED:
                return self._add_delayed(
                    topic, chosen, message, future, timeout_s, is_urgent=is_urgent
                )
            batch, due_s = queue.open, math.inf
            if (
                batch is None
                or batch.size_bytes + size > self._batch_bytes
                or batch.kind is not kind
                or batch.timeout_s != timeout_s
                or batch.delay != delay
            ):
                due_s = math.inf if batch is None else 0.0
                batch = self._open(topic, chosen, timeout_s, delay)
            batch.add(message, future, size)
            if is_urgent or batch.size_bytes >= self._batch_bytes:
                batch.ready_s = 0.0
            return self._added(min(due_s, batch.ready_s))

    def add_body(
        self,
        topic_name: str,
        body: bytes,
        born_at_ms: int,
        future: ResultFuture | None,
        timeout_s: float,
    ) -> bool:
        """Adds a message that is only a body to the open batch for any queue. Returns False if
        there is none with room: use `add`. A fast path: no batch is opened or closed by it, and
        the loop need not be woken.
        """
        size = len(body) + BODY_OVERHEAD_BYTES
        with self._lock:
            topic = self._topics.get(topic_name)
            if topic is None or (batch := topic.shared.open) is None:
                return False
            batch_bytes, all_bytes = batch.size_bytes + size, self._bytes + size
            if (
                batch_bytes > self._batch_bytes
                or all_bytes > self._buffer_bytes
                or batch.timeout_s != timeout_s
                or self._is_closed
            ):
                return False
            if batch.born_at_ms != born_at_ms:
                batch.begin_bodies(born_at_ms)
            batch.bodies.append(body)
            batch.size_bytes, self._bytes = batch_bytes, all_bytes
            index = batch.count
            batch.count = index + 1
            if isinstance(future, SendFuture):
                future.place = batch.outcome, index
            else:
                batch.outcome.attach(index, future)
            return True

    def _add_delayed(
        self,
        topic: TopicQueues,
        chosen: Chosen,
        message: Encoded,
        future: ResultFuture | None,
        timeout_s: float,
        *,
        is_urgent: bool,
    ) -> AddResult:
        """Adds a message of any queue that is delivered later."""
        size, delay = len(message[0]) + MESSAGE_OVERHEAD_BYTES, message[4]
        key, delayed = (delay, timeout_s, chosen[2]), topic.delayed
        batch = delayed.open.get(key)
        is_due = batch is not None and batch.size_bytes + size > self._batch_bytes
        if batch is not None and is_due:
            delayed.close(batch)
        if batch is None or is_due:
            batch = delayed.open[key] = self._begin(topic, chosen, timeout_s, delay)
        batch.add(message, future, size)
        if is_urgent or batch.size_bytes >= self._batch_bytes:
            delayed.close(batch)
            is_due = True
        return self._added(0.0 if is_due else batch.ready_s)

    def add_batch(
        self,
        topic_name: str,
        messages: Sequence[Encoded],
        queue_id: int | None,
        futures: Sequence[ResultFuture],
        timeout_s: float,
        broker_set: str = "",
    ) -> AddResult:
        """Adds messages as one batch for each queue that their keys lead to, behind those that were
        added before; all of them or none. Raises MessageTooLarge for a batch above the limit,
        IllegalDelay if delays differ, IllegalRequest as `add`.
        """
        delay = messages[0][4]
        if any(message[4] != delay for message in messages):
            raise IllegalDelay(
                "messages of one batch are delivered at the same time: send them apart"
            )
        sizes = [len(message[0]) + MESSAGE_OVERHEAD_BYTES for message in messages]
        with self._lock:
            topic = self._topics.get(topic_name)
            if topic is None:
                return AddResult.UNROUTED
            parts = _split(topic, messages, queue_id, broker_set)
            for indices in parts.values():
                _check_size(topic_name, [sizes[at] for at in indices])
            if not self._reserve(sum(sizes)):
                return AddResult.FULL
            for chosen, indices in parts.items():
                batch = self._begin_apart(topic, chosen, timeout_s, delay)
                for at in indices:
                    batch.add(messages[at], futures[at], sizes[at])
            return self._added(0.0)

    def add_prepared(
        self,
        topic_name: str,
        prepared: Prepared,
        queue_id: int | None,
        future: ResultFuture | None,
        timeout_s: float,
        broker_set: str = "",
    ) -> AddResult:
        """Adds a whole batch for any queue, or that one, behind those that were added before. The
        future is that of its first message. Raises IllegalRequest as `add`.
        """
        size = len(prepared.columns)
        with self._lock:
            topic = self._topics.get(topic_name)
            if topic is None:
                return AddResult.UNROUTED
            if queue_id is None:
                chosen = topic.of_priority(0).shared, BatchKind.ANY, 0
            else:
                chosen = topic.fixed_queue(queue_id, broker_set), BatchKind.FIXED, 0
            if not self._reserve(size):
                return AddResult.FULL
            batch = self._begin_apart(topic, chosen, timeout_s, b"")
            batch.prepared, batch.count, batch.size_bytes = prepared, prepared.count, size
            batch.outcome.attach(0, future)
            return self._added(0.0)

    def _begin_apart(
        self, topic: TopicQueues, chosen: Chosen, timeout_s: float, delay: bytes
    ) -> Batch:
        """A batch that takes no further messages."""
        queue, kind, _ = chosen
        if kind is BatchKind.DELAYED:
            batch = self._begin(topic, chosen, timeout_s, delay)
            topic.delayed.waiting.append(batch)
        else:
            batch = self._open(topic, chosen, timeout_s, delay)
            queue.close()
        return batch

    def topic(self, topic_name: str) -> TopicQueues | None:
        """Returns None if the route of the topic was not set."""
        return self._topics.get(topic_name)

    def call_when_room(self, callback: Callable[[], object]) -> None:
        """Calls it once, when a batch is released; at once if the accumulator is empty."""
        with self._lock:
            if self._bytes:
                self._room_callbacks.append(callback)
                return
        callback()

    def _reserve(self, size: int) -> bool:
        if self._is_closed:
            raise ClientClosed("the producer is closed: make another one")
        # A message of any size fits an empty buffer.
        if self._bytes and self._bytes + size > self._buffer_bytes:
            return False
        self._bytes += size
        return True

    def _added(self, due_s: float) -> AddResult:
        if due_s >= self._next_poll_s:
            return AddResult.ADDED
        self._next_poll_s = due_s
        return AddResult.WAKE

    def _open(self, topic: TopicQueues, chosen: Chosen, timeout_s: float, delay: bytes) -> Batch:
        """Closes the open batch of the buffer, and opens another one."""
        queue = chosen[0]
        queue.close()
        batch = queue.open = self._begin(topic, chosen, timeout_s, delay)
        if queue.queue_id >= 0:
            topic.pinned[queue] = None
        return batch

    def _begin(self, topic: TopicQueues, chosen: Chosen, timeout_s: float, delay: bytes) -> Batch:
        (queue, kind, priority), now_s = chosen, self._clock()
        batch = Batch(
            topic.name,
            kind,
            queue.queue_id,
            now_s,
            timeout_s,
            delay,
            queue.broker_set,
            priority,
            ready_s=now_s + self._linger_s,
        )
        self._unfinished[batch] = None
        topic.unfinished += 1
        self._active[topic] = None
        return batch

    # From the event loop: state

    def set_route(self, topic_name: str, parts: Sequence[TopicRoute], turn: int = 0) -> None:
        """Sets the queues of the topic in each set; at least one part must be writable. Batches of
        a new topic without a key start at the queue of that `turn`.
        """
        with self._lock:
            topic = self._topics.get(topic_name) or TopicQueues(topic_name, turn)
            topic.set_parts(parts)
            self._topics[topic_name] = topic

    def needs(self, broker_set: str) -> bool:
        """Returns whether a batch has to go to that set, or a topic in use could use it."""
        with self._lock:
            if any(batch.broker_set == broker_set for batch in self._retrying):
                return True
            topics = self._topics.values()
            return any(topic.unfinished and topic.may_use(broker_set) for topic in topics)

    def topics(self) -> list[str]:
        with self._lock:
            return list(self._topics)

    def suspend_wakeups(self) -> bool:
        """For a loop that cannot send now, and polls by itself when it can: `add` returns no WAKE.

        Returns True if the accumulator is empty; then the next message does wake the loop.
        """
        with self._lock:
            is_empty = self._bytes == 0
            self._next_poll_s = math.inf if is_empty else -math.inf
            return is_empty

    def expedite(self) -> set[Batch]:
        """For `flush`: ends the linger time of all batches, and returns the unfinished ones."""
        with self._lock:
            for batch in self._unfinished:
                batch.ready_s = 0.0
            return set(self._unfinished)

    def unsent(self) -> list[Batch]:
        """The unfinished batches that are not in flight."""
        with self._lock:
            return [batch for batch in self._unfinished if not batch.is_in_flight]

    @property
    def is_empty(self) -> bool:
        return self._bytes == 0

    def close(self) -> None:
        """From now on `add` raises ClientClosed."""
        with self._lock:
            self._is_closed = True

    # From the event loop: taking batches

    def take(
        self, room_bytes: int, free: Collection[str], healthy: Collection[str]
    ) -> tuple[list[Batch], float]:
        """Returns the batches to send now, up to `room_bytes` or one batch for each free set, and
        the latest time of the next call. Batches of any queue go to healthy sets, or to any set if
        none of their topic is healthy.

        A batch keeps its queue until `release`; after `retry` it is taken once more.
        """
        drain = Drain(self._clock(), room_bytes, free, healthy)
        with self._lock:
            self._take_retries(drain)
            for topic in list(self._active):
                if drain.is_full():
                    break
                self._take_topic(topic, drain)
                del self._active[topic]
                if topic.has_waiting():
                    self._active[topic] = None
            self._next_poll_s = drain.next_poll_s
        return drain.batches, drain.next_poll_s

    def _take_retries(self, drain: Drain) -> None:
        later: list[Batch] = []
        for batch in self._retrying:
            if batch.broker_set not in drain.healthy and self._can_move(batch, drain.healthy):
                self._unassign(batch)
            elif batch.retry_s <= drain.now_s and drain.has_room(batch.broker_set):
                drain.add(batch)
            else:
                later.append(batch)
                if batch.broker_set in drain.room_bytes:
                    drain.poll_at(batch.retry_s)
        self._retrying = later

    def _take_topic(self, topic: TopicQueues, drain: Drain) -> None:
        pinned_s = min(
            (batch.opened_s for queue in topic.pinned if (batch := queue.next())), default=math.inf
        )
        shared_s = min(
            (
                batch.opened_s
                for candidates in topic.by_priority
                if (batch := candidates.shared.next())
            ),
            default=math.inf,
        )
        # The oldest batch goes first: a stream of keyed messages must not starve the others.
        if topic.delayed:
            self._take_delayed(topic, drain, min(pinned_s, shared_s))
        if shared_s <= pinned_s:
            self._take_shared(topic, drain)
        for queue in list(topic.pinned):
            batch = queue.next()
            if batch is None:
                del topic.pinned[queue]
            elif queue.in_flight is None and not queue.is_ready(drain.now_s):
                drain.poll_at(batch.ready_s)
            elif queue.in_flight is None and drain.has_room(queue.broker_set):
                self._assign(queue.pop(), queue, drain)
        while self._take_shared(topic, drain):
            pass
        if topic.delayed:
            self._take_delayed(topic, drain, math.inf)

    def _take_delayed(self, topic: TopicQueues, drain: Drain, opened_before_s: float) -> None:
        """Takes the delayed batches that were opened up to that time."""
        delayed, in_flight = topic.delayed, self._delayed_in_flight
        while True:
            batch = delayed.next(drain.now_s)
            if batch is None:
                for waiting in itertools.islice(delayed.open.values(), 1):
                    drain.poll_at(waiting.ready_s)
                return
            if batch.opened_s > opened_before_s:
                return
            candidates = topic.by_priority[batch.priority]
            sets = [one for one in drain.sets(candidates) if in_flight[one] < DELAYED_IN_FLIGHT_MAX]
            queue = candidates.next_queue(sets, is_idle=False)
            if queue is None:
                return
            delayed.waiting.popleft()
            in_flight[queue.broker_set] += 1
            batch.assign(queue, *self._sequences_of(queue.broker_set).take())
            drain.add(batch)

    def _take_shared(self, topic: TopicQueues, drain: Drain) -> bool:
        """Takes one batch, of the highest priority that has a ready one and an idle queue."""
        for candidates in reversed(topic.by_priority):
            batch = candidates.shared.next()
            if batch is None:
                continue
            if not candidates.shared.is_ready(drain.now_s):
                drain.poll_at(batch.ready_s)
                continue
            queue = candidates.next_queue(drain.sets(candidates), is_idle=True)
            if queue is not None:
                self._assign(candidates.shared.pop(), queue, drain)
                return True
        return False

    def _assign(self, batch: Batch, queue: QueueBuffer, drain: Drain) -> None:
        batch.assign(queue, *self._sequences_of(queue.broker_set).take())
        queue.in_flight = batch
        drain.add(batch)

    def _sequences_of(self, broker_set: str) -> Sequences:
        found = self._sequences.get(broker_set)
        if found is None:
            found = self._sequences[broker_set] = Sequences(self._producer_id)
        return found

    # From the event loop: batches that come back

    def retry(self, batch: Batch, at_s: float, *, elsewhere: bool = False) -> None:
        """Lets the batch be taken once more at that time, for the same set, or for another one as
        soon as its own is not healthy, if it may move. `elsewhere`: for another queue, if it may
        and one is idle.
        """
        with self._lock:
            topic = self._topics[batch.topic]
            if elsewhere and (batch.kind is BatchKind.ANY or batch.kind is BatchKind.DELAYED):
                # Its own queue is not idle: the batch itself occupies it.
                needs_queue, sets = batch.kind is BatchKind.ANY, (batch.broker_set,)
                queue = topic.by_priority[batch.priority].next_queue(sets, is_idle=needs_queue)
                if queue is not None:
                    if needs_queue:
                        topic.queue(batch.broker_set, batch.queue_id).in_flight = None
                        queue.in_flight = batch
                    batch.queue_id = queue.queue_id
            batch.retry_s = at_s
            batch.is_in_flight = False
            self._retrying.append(batch)

    def release(self, batch: Batch, *, is_stored: bool) -> dict[Batch, list[Batch]]:
        """Frees the queue and the memory of a finished batch. Returns the batches that were
        dissolved because their keys move to other queues now, with their replacements.
        """
        with self._lock:
            self._remove(batch, is_stored=is_stored)
            self._bytes -= batch.size_bytes
            callbacks, self._room_callbacks = self._room_callbacks, []
            dissolved = {}
            topic = self._topics[batch.topic]
            if topic.leaving and batch.kind is BatchKind.KEY:
                queue = topic.queue(batch.broker_set, batch.queue_id)
                dissolved = self._dissolve(topic, topic.finished(queue, batch))
        for callback in callbacks:
            callback()
        return dissolved

    def renumber(self, batch: Batch) -> bool:
        """After the set refused the producer id of the batch: returns whether it has another."""
        with self._lock:
            sequences = self._sequences_of(batch.broker_set)
            if batch.in_doubt or not sequences.start_over(batch.producer_id):
                return False
            batch.producer_id, batch.sequence = sequences.take()
            return True

    def split(self, batch: Batch) -> dict[Batch, list[Batch]]:
        """After the queue of the batch was removed, and nothing of it stored: its messages, and
        those that wait behind it, go where their keys lead now, before those that wait there.
        Returns each batch that was dissolved, with its replacements.
        """
        with self._lock:
            batch.in_doubt = False
            topic = self._topics[batch.topic]
            queue = topic.queue(batch.broker_set, batch.queue_id)
            behind: list[Batch] = []
            # Nothing before a batch that occupies its queue is unanswered: all keys may move.
            if batch.kind is not BatchKind.DELAYED:
                if queue in topic.leaving:
                    behind = topic.let_go(queue)
                elif queue not in topic.writable:
                    behind = queue.keyed()
            return self._dissolve(topic, [batch, *(one for one in behind if one is not batch)])

    def _dissolve(self, topic: TopicQueues, batches: Sequence[Batch]) -> dict[Batch, list[Batch]]:
        """The messages of these batches, in this order, go where their keys lead now, before those
        that wait there.
        """
        if not batches:
            return {}
        for one in batches:
            self._remove(one)
        self._active[topic] = None
        return {one: self._redistribute(topic, one) for one in reversed(batches)}

    def _can_move(self, batch: Batch, healthy: Collection[str]) -> bool:
        sets = self._topics[batch.topic].by_priority[batch.priority].sets
        return batch.may_move and any(one in healthy for one in sets if one != batch.broker_set)

    def _unassign(self, batch: Batch) -> None:
        """Lets the batch wait for any set, before all others that wait."""
        self._free_place(batch)
        topic = self._topics[batch.topic]
        batch.unassign()
        topic.buffer_of(batch).waiting.appendleft(batch)
        self._active[topic] = None

    def _remove(self, batch: Batch, *, is_stored: bool = False) -> None:
        del self._unfinished[batch]
        self._topics[batch.topic].unfinished -= 1
        self._free_place(batch, is_stored=is_stored)
        if batch in self._retrying:
            self._retrying.remove(batch)

    def _free_place(self, batch: Batch, *, is_stored: bool = False) -> None:
        """Frees the queue of the batch, and its sequence if that was certainly not used."""
        self._topics[batch.topic].buffer_of(batch).remove(batch)
        if batch.kind is BatchKind.DELAYED and batch.queue_id >= 0:
            self._delayed_in_flight[batch.broker_set] -= 1
        if batch.sequence and not is_stored and not batch.in_doubt:
            self._sequences_of(batch.broker_set).give_back(batch.producer_id, batch.sequence)

    def _redistribute(self, topic: TopicQueues, batch: Batch) -> list[Batch]:
        # The topic may have been created anew, with fewer priorities.
        batch.priority = min(batch.priority, max(topic.priorities - 1, 0))
        parts: dict[QueueBuffer | None, Batch] = {}
        if batch.kind is BatchKind.KEY:
            places = []
            for message in batch.encoded_messages():
                key = message[3]
                queue = None if key is None else topic.queue_for_key(key, batch.priority)
                part = parts.get(queue) or parts.setdefault(queue, batch.empty_copy(queue))
                places.append((part.outcome, part.count))
                part.append(message, len(message[0]) + MESSAGE_OVERHEAD_BYTES)
            batch.outcome.move(places)
        else:
            parts[None] = batch.moved()
        for queue, part in parts.items():
            self._unfinished[part] = None
            topic.unfinished += 1
            topic.buffer_of(part).waiting.appendleft(part)
            if queue is not None:
                topic.pinned[queue] = None
        return list(parts.values())


# An entry of the broker's log holds a batch as a whole.
BATCH_BYTES_MAX = 4 << 20


def _split(
    topic: TopicQueues, messages: Sequence[Encoded], queue_id: int | None, broker_set: str
) -> dict[Chosen, list[int]]:
    """Indices of messages by buffer; those without a key join the first key of their priority."""
    found: dict[Chosen, list[int]] = {}
    last, indices = None, []
    for at, message in enumerate(messages):
        chosen = topic.choose_buffer(message, queue_id, broker_set)
        if chosen != last:
            last, indices = chosen, found.setdefault(chosen, [])
        indices.append(at)
    for chosen in [one for one in found if one[1] in (BatchKind.ANY, BatchKind.DELAYED)]:
        for keyed, own in found.items():
            if keyed[1] is BatchKind.KEY and keyed[2] == chosen[2]:
                found[keyed] = sorted(own + found.pop(chosen))
                break
    return found


def _check_size(topic: str, sizes: Sequence[int]) -> None:
    if len(sizes) > 1 and sum(sizes) > BATCH_BYTES_MAX:
        raise MessageTooLarge(
            f"a batch of {len(sizes)} messages and {sum(sizes)} bytes for topic {topic}: at most "
            f"{BATCH_BYTES_MAX} are allowed; send them in parts"
        )
