"""One assigned queue of a consumer: its deliveries, ranges of messages in flight, and progress.

`PrefetchQueue` has the state of the queue, `CachedDelivery` that of one delivery of it, `InFlight`
a range of messages that was taken. `SetReports` collects what the queues of a broker set have to
report: seeks, progress and releases. A report is made once on a stream; a new stream starts with
the positions of all queues, and reports are made anew. Not locked: `PrefetchBuffer` calls all of it
under its own lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from mq.client.batches import MessageBatch
from mq.client.consumer.offsets import position
from mq.client.decode import Decoder, Runs
from mq.client.messages import QueueRef, ReceivedMessage
from mq.wire.v1 import consumer_pb2 as wire

# Messages that are made ahead of being taken, if they are small, and few are taken at a time.
_AHEAD_MAX, _AHEAD_BYTES, _FEW = 64, 1024, 16


class CachedDelivery:
    """One delivery of a queue: its messages, by their rows, and how far they are taken and done.

    Rows are taken in order and finished in any order, each once. Everything before `done_to` is
    finished or needs no work, and `done_to` never goes down. The cost of a step does not depend on
    the number of messages in flight.
    """

    __slots__ = (
        "_done",
        "_finished",
        "_made",
        "_made_at",
        "frame_bytes",
        "next_offset",
        "runs",
        "taken",
    )

    def __init__(self, runs: Runs, next_offset: int) -> None:
        self.runs = runs
        # Behind the last message, and those behind it that the filter of the broker left out.
        self.next_offset = next_offset
        # Bytes of a message, on average.
        self.frame_bytes = runs.frame_bytes(0, runs.count) / max(1, runs.count)
        # All rows before it are taken...
        self.taken = 0
        # ... or done; and rows that are done behind one that is not.
        self._done = 0
        self._finished: set[int] = set()
        # Messages that were made ahead, and the row of the first one.
        self._made: list[ReceivedMessage] = []
        self._made_at = 0

    @property
    def unfinished(self) -> int:
        """Messages that are not done, or done behind one that is not."""
        return self.runs.count - self._done

    @property
    def done_to(self) -> int:
        """The position at which the group continues if this consumer is lost."""
        return self.runs.queue_offset(self._done) if self.unfinished else self.next_offset

    def take(self, count: int, queue: QueueRef, decoder: Decoder) -> Sequence[ReceivedMessage]:
        """The messages of the next rows; rows that are filtered or unreadable are done."""
        start, end = self.taken, min(self.taken + count, self.runs.count)
        self.taken = end
        found: Sequence[ReceivedMessage]
        if count <= _FEW and end <= self._made_at + len(self._made):
            found = self._made[start - self._made_at : end - self._made_at]
        elif count <= _FEW and decoder.is_plain(queue, self.runs):
            # Some messages more cost little.
            ahead = _AHEAD_MAX if self.frame_bytes <= _AHEAD_BYTES else count
            made = decoder.messages(queue, self.runs, start, min(start + ahead, self.runs.count))
            self._made, self._made_at = [one for one in made if one is not None], start
            found = self._made[:count]
        else:
            found = MessageBatch(queue, self.runs, start, end, decoder)
            if len(found) < end - start:
                for row in set(range(start, end)).difference(found.rows):
                    self.finish(row, row + 1)
        if end == self.runs.count:
            self.runs.close()
        return found

    def finish(self, start: int, end: int) -> None:
        finished = self._finished
        if start > self._done:
            finished.update(range(start, end))
            return
        done = max(self._done, end)
        if finished:
            finished.difference_update(range(start, end))
            while done in finished:
                finished.remove(done)
                done += 1
        self._done = done


@dataclass(slots=True)
class InFlight:
    """Messages of one queue that were taken and are not finished: rows of one delivery."""

    queue: PrefetchQueue
    version: int
    delivery: CachedDelivery
    start: int
    end: int
    messages: Sequence[ReceivedMessage]

    @property
    def message(self) -> ReceivedMessage:
        """The only one, or the first."""
        return self.messages[0]

    @property
    def frame_bytes(self) -> int:
        return self.delivery.runs.frame_bytes(self.start, self.end)

    @property
    def is_void(self) -> bool:
        """The position of the queue was changed since: finishing the messages has no effect."""
        return self.version != self.queue.version

    @property
    def batch(self) -> MessageBatch | None:
        """Its messages, if they were taken as one object."""
        return self.messages if isinstance(self.messages, MessageBatch) else None

    def row(self, at: int) -> int:
        """The row of a message of it."""
        return self.start + at if self.batch is None else self.batch.rows[at]

    def queue_offset(self, at: int) -> int:
        return self.delivery.runs.queue_offset(self.row(at))

    def to_batch(self, decoder: Decoder) -> MessageBatch:
        """Its messages as one object."""
        if self.batch is not None:
            return self.batch
        messages = list(self.messages)
        return MessageBatch(
            self.queue.ref, self.delivery.runs, self.start, self.end, decoder, messages
        )

    @property
    def singles(self) -> list[InFlight]:
        return [self.part(at, at + 1) for at in range(len(self.messages))]

    def part(self, start: int, end: int) -> InFlight:
        """Some messages of it, to be finished by themselves."""
        if end - start == len(self.messages):
            return self
        rows = self.row(start), self.row(end - 1) + 1
        if self.batch is not None and end - start > 1:
            found: Sequence[ReceivedMessage] = self.batch.part(start, end)
        else:
            found = self.messages[start:end]
        return InFlight(self.queue, self.version, self.delivery, *rows, found)


class PrefetchQueue:
    """One assigned queue. All attributes but the first group are written by its own methods only.

    A new `version` begins when the position is changed: messages that were taken before that are
    void, whenever they are finished.
    """

    def __init__(self, ref: QueueRef, queue_offset: int, epoch: int) -> None:
        self.ref = ref
        # Written by PrefetchBuffer: the queue is no longer assigned, but not released yet...
        self.is_leaving = False
        # ... the user wants none of its messages...
        self.is_paused = False
        # ... and how far it is below the highest priority of its topic.
        self.rank = 0

        self.version = 0
        # Messages in flight, of any version: the queue is not released before there are none.
        self.running = 0
        # Failed messages of this version whose next attempt is here, and not due yet or postponed.
        self.waiting = 0
        self._postponed: list[InFlight] = []
        # The position that the user asked for, until the broker continues from there: nothing is
        # delivered or reported meanwhile.
        self.sought: int | None = None
        # The last one that the broker was told on this stream. None if `sought` is.
        self._sent_seek: int | None = None
        self._begin(queue_offset, epoch)

    def _begin(self, queue_offset: int, epoch: int) -> None:
        # Counted by the broker, anew on each stream: deliveries of another one are stale.
        self.epoch = epoch
        # Behind all that was delivered: the next message to ask for. Never below `done_to`.
        self.position = queue_offset
        # The same for this epoch; lower than `position` while the broker delivers again what is
        # here already.
        self._received_to = queue_offset
        # The progress that the broker was told on this stream; -1: none.
        self.reported = queue_offset
        # The offset that a commit has made durable under this epoch; -1: none.
        self.committed = -1
        # Messages that were finished since the last report, and about their bytes.
        self.unreported, self.unreported_bytes = 0, 0.0
        # In the order of the queue: deliveries that are not done, and those that are not taken.
        self._open: deque[CachedDelivery] = deque()
        self._cache: deque[CachedDelivery] = deque()
        # Messages that were taken and put back: they are the next.
        self._put_back: deque[InFlight] = deque()
        # Messages that are delivered and not taken, or put back.
        self.cached_messages = 0

    # Positions

    def restart(self, queue_offset: int, epoch: int) -> None:
        """Continues from there; all that was delivered and taken before is void."""
        self.version += 1
        self.waiting = 0
        self._postponed.clear()
        self._begin(queue_offset, epoch)

    def keep(self, queue_offset: int, epoch: int) -> None:
        """The broker delivers again from a position at or before ours: cached messages and those in
        flight stay, and duplicates are left out.
        """
        self.epoch = epoch
        self._received_to = self.reported = queue_offset
        self.committed = -1

    def seek(self, queue_offset: int) -> None:
        self.restart(queue_offset, self.epoch)
        self.sought = queue_offset

    def resume(self, queue_offset: int, epoch: int) -> bool:
        """The first assignment of a new stream. Returns True if the broker must hear of a seek."""
        self._sent_seek = None
        if self.position == queue_offset:
            self.sought = None
            self.keep(queue_offset, epoch)
            self.forget_reports()
        elif self.sought is None:
            # The broker knows better than this consumer, which asked for its own position.
            self.restart(queue_offset, epoch)
        else:
            self.epoch = epoch
            return True
        return False

    def move(self, queue_offset: int, epoch: int) -> bool:
        """A new epoch within a stream. Returns True if the broker must hear of a seek."""
        if self.sought != self._sent_seek:
            # The answer to an earlier seek: the user has asked for another position since.
            self.epoch, self._sent_seek = epoch, None
            return True
        if self.is_leaving and self.sought is None and self._comes_back(queue_offset, epoch):
            self.keep(queue_offset, epoch)
        else:
            self.restart(queue_offset, epoch)
            self.sought = self._sent_seek = None
        return False

    def _comes_back(self, queue_offset: int, epoch: int) -> bool:
        """The queue is assigned again before it was released. The broker continues from the
        progress that it knows: at most `done_to`, or less where reports were lost with a stream. A
        queue that an operator has moved meanwhile is one more epoch ahead.
        """
        return epoch == self.epoch + 1 and queue_offset <= self.done_to

    # Reports

    @property
    def done_to(self) -> int:
        """The position at which the group continues if this consumer is lost."""
        return self._open[0].done_to if self._open else self.position

    @property
    def reportable(self) -> int:
        """How far it is done, as far as it was delivered under this epoch: the broker rejects
        progress beyond its own deliveries.
        """
        return min(self.done_to, self._received_to)

    def forget_reports(self) -> None:
        """A new stream: reports of the last one may be lost."""
        self.reported = -1

    def next_seek(self) -> int | None:
        """The seek to send now; it counts as sent."""
        if self.sought is None or self._sent_seek is not None:
            return None
        self._sent_seek = self.sought
        return self.sought

    def next_progress(self) -> int | None:
        """The progress to send now; it counts as reported."""
        if self.sought is not None or self.reportable == self.reported:
            return None
        self.reported = self.reportable
        self.unreported, self.unreported_bytes = 0, 0.0
        return self.reported

    def commit(self, commit: PendingCommit) -> None:
        """It is durable; no news if the queue has moved meanwhile."""
        if (commit.version, commit.epoch) == (self.version, self.epoch):
            self.committed = commit.queue_offset

    # Messages

    @property
    def unfinished(self) -> int:
        """Messages that are delivered and not done, or done behind one that is not."""
        return sum(one.unfinished for one in self._open)

    def add(self, runs: Runs, next_offset: int) -> None:
        """A delivery of the current epoch."""
        first = runs.queue_offset(0) if runs.count else next_offset
        if first < self._received_to:
            # The queue is shorter than it was: the topic was deleted and created again.
            self.restart(first, self.epoch)
        self._received_to = next_offset
        if next_offset <= self.position:
            return
        if first < self.position:
            runs = runs.behind(self.position)
        self.position = next_offset
        delivery = CachedDelivery(runs, next_offset)
        self._open.append(delivery)
        self._drop_done()
        if runs.count:
            self._cache.append(delivery)
            self.cached_messages += runs.count

    def take(self, count: int, decoder: Decoder) -> InFlight | None:
        """The next messages of one delivery for a handler; filtered and unreadable ones are passed
        over. None: the cache is empty.
        """
        if self._put_back:
            return self._take_put_back(count)
        while self._cache:
            delivery = self._cache[0]
            start = delivery.taken
            messages = delivery.take(count, self.ref, decoder)
            end = delivery.taken
            self.cached_messages -= end - start
            if end == delivery.runs.count:
                self._cache.popleft()
            if messages:
                self.running += len(messages)
                return InFlight(self, self.version, delivery, start, end, messages)
            self._drop_done()
        return None

    def _take_put_back(self, count: int) -> InFlight:
        taken = self._put_back.popleft()
        if count < len(taken.messages):
            self._put_back.appendleft(taken.part(count, len(taken.messages)))
            taken = taken.part(0, count)
        self.cached_messages -= len(taken.messages)
        self.running += len(taken.messages)
        return taken

    def put_back(self, taken: InFlight) -> None:
        """No handler has seen the messages: they are the next again."""
        self.running -= len(taken.messages)
        if not taken.is_void:
            self._put_back.appendleft(taken)
            self.cached_messages += len(taken.messages)

    def _drop_done(self) -> None:
        while self._open and not self._open[0].unfinished:
            self._open.popleft()

    def finish(self, taken: InFlight) -> None:
        self.running -= len(taken.messages)
        if taken.version == self.version:
            delivery, start, end = taken.delivery, taken.start, taken.end
            delivery.finish(start, end)
            self.unreported += end - start
            self.unreported_bytes += delivery.frame_bytes * (end - start)
            if delivery is self._open[0]:
                self._drop_done()

    def give_up(self, taken: InFlight) -> None:
        """No handler works on the messages, and they are not done."""
        self.running -= len(taken.messages)

    def fail(self, taken: InFlight) -> bool:
        """The messages wait for another attempt, together. Returns False if they are void."""
        self.running -= len(taken.messages)
        if taken.is_void:
            return False
        # New objects: the handler may still look at the old ones.
        if taken.batch is not None:
            taken.messages = taken.batch.next_attempt()
        else:
            taken.messages = [replace(one, attempt=one.attempt + 1) for one in taken.messages]
        self.waiting += len(taken.messages)
        return True

    def take_again(self, taken: InFlight) -> None:
        """Failed messages are given out for their next attempt."""
        self.waiting -= len(taken.messages)
        self.running += len(taken.messages)

    def postpone(self, taken: InFlight) -> None:
        """A failed message is due, but the queue gives out nothing now."""
        self._postponed.append(taken)

    def take_postponed(self) -> list[InFlight]:
        postponed, self._postponed = self._postponed, []
        return postponed


class PendingCommit(NamedTuple):
    """The progress of a queue that is to be made durable."""

    queue: PrefetchQueue
    version: int
    epoch: int
    queue_offset: int


class Signal(Protocol):
    def tell(self, *, is_urgent: bool) -> None:
        """Called under the lock of the buffer, on any thread: must not call back."""
        ...


class Released(NamedTuple):
    """The state of a queue when its release was reported."""

    epoch: int
    done_to: int


class SetReports:
    """The pending reports of one broker set."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        # Queues with something to report, in the order in which it came up.
        self._pending: dict[PrefetchQueue, None] = {}
        # True from a signal to the next `outgoing`: one is enough for all that is not urgent.
        self._is_signalled = False
        # Queues whose release was reported on the current stream.
        self._released: dict[QueueRef, Released] = {}

    def note(self, queue: PrefetchQueue, *, is_urgent: bool = False) -> None:
        """The queue has something to report; what that is, `outgoing` finds out."""
        if queue in self._pending and not is_urgent:
            return
        self._pending[queue] = None
        if is_urgent or not self._is_signalled:
            self._is_signalled = True
            self._signal.tell(is_urgent=is_urgent)

    def is_pending(self, queue: PrefetchQueue) -> bool:
        """The next `outgoing` reports what there is of the queue then."""
        return queue in self._pending

    def outgoing(self) -> tuple[list[wire.SubscribeRequest], list[QueueRef]]:
        """The requests in the order in which to send them, and the queues that they release. A
        queue that leaves is released as soon as no handler works on it.
        """
        pending, self._pending = self._pending, {}
        self._is_signalled = False
        seek, progress, released = wire.Seek(), wire.Progress(), wire.Released()
        gone: list[QueueRef] = []
        for queue in pending:
            if (sought := queue.next_seek()) is not None:
                seek.positions.append(position(queue.ref, sought))
            if (done_to := queue.next_progress()) is not None:
                progress.positions.append(position(queue.ref, done_to, queue.epoch))
            if queue.is_leaving and not queue.running:
                topic, queue_id, _ = queue.ref
                released.queues.add(topic=topic, queue_id=queue_id, epoch=queue.epoch)
                self._released[queue.ref] = Released(queue.epoch, queue.done_to)
                gone.append(queue.ref)
        requests = []
        if seek.positions:
            requests.append(wire.SubscribeRequest(seek=seek))
        if progress.positions:
            requests.append(wire.SubscribeRequest(progress=progress))
        if released.queues:
            requests.append(wire.SubscribeRequest(released=released))
        return requests, gone

    # Releases

    def take_released(self, ref: QueueRef) -> Released | None:
        """The queue is assigned again: its state when it was released on this stream."""
        return self._released.pop(ref, None)

    def take_all_released(self) -> dict[QueueRef, Released]:
        """The releases of a stream that is over: the broker may not have heard of them."""
        released, self._released = self._released, {}
        return released
