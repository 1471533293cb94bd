"""One queue that a consumer has in hand: what was delivered and not taken yet, and how far it is.

Pure. Invariants: messages are taken in the order of the queue, each delivered one once; what is
reported never goes beyond what the broker has delivered under the epoch of the day. A new `version`
begins when the position was changed: what was taken before that is void, whenever it is finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mq.client.consumer.progress import Progress
from mq.client.decode import Decoded, Decoder, Frames
from mq.client.messages import QueueRef, ReceivedMessage


@dataclass(slots=True)
class Taken:
    """A message in the hands of whoever works on it."""

    queue: HeldQueue
    version: int
    message: ReceivedMessage
    frame_bytes: int
    failures: int = 0

    @property
    def is_void(self) -> bool:
        return self.version != self.queue.version


@dataclass(slots=True)
class _Cached:
    """A delivery, of which some messages may be taken already."""

    messages: Iterator[Decoded]
    count: int
    next_offset: int


class HeldQueue:
    def __init__(self, ref: QueueRef, queue_offset: int, epoch: int) -> None:
        self.ref = ref
        self.version = 0
        # Handlers at work, of any version.
        self.running = 0
        self.is_leaving = False
        # How far below the highest priority of its topic.
        self.rank = 0
        self.is_paused = False
        # Stands in the line of those that have something to take; `Holdings` keeps that line.
        self.is_offered = False
        # The broker is to hear of it; `Reports` knows what.
        self.is_noted = False
        # Failed, and their time has not come; those whose time came when the queue was leaving.
        self.waiting = 0
        self.postponed: list[Taken] = []
        # Where the user wants to go, and what of it the broker was told.
        self.sought: int | None = None
        self.sent_seek: int | None = None
        self._begin(queue_offset, epoch)

    def _begin(self, queue_offset: int, epoch: int) -> None:
        self.epoch = epoch
        self.progress = Progress(queue_offset)
        # Behind all that was delivered: what is wanted next.
        self.position = queue_offset
        # The same, under this epoch.
        self.received_to = queue_offset
        self.reported = queue_offset
        # What is durable, by a commit that was answered under this epoch.
        self.committed = -1
        self.done_bytes = 0
        self._cache: deque[_Cached] = deque()
        self.cached_messages = 0

    # Positions

    def restart(self, queue_offset: int, epoch: int) -> None:
        """What came before is void."""
        self.version += 1
        self.waiting = 0
        self.postponed.clear()
        self._begin(queue_offset, epoch)

    def keep(self, queue_offset: int, epoch: int) -> None:
        """The broker delivers again from a place that lies behind us: what is in hand stays, and
        what comes twice is left out.
        """
        self.epoch = epoch
        self.received_to = self.reported = queue_offset
        self.committed = -1

    def comes_back(self, queue_offset: int, epoch: int) -> bool:
        """It was to leave, and is assigned again, from the place that the broker knew: that is not
        beyond what is done, but may be any before it, because reports were lost with a stream. One
        that was moved as well, by an operator, has come a further epoch.
        """
        return epoch == self.epoch + 1 and queue_offset <= self.progress.done_to

    def seek(self, queue_offset: int) -> None:
        """Nothing is delivered until the broker says that it goes on from there."""
        self.restart(queue_offset, self.epoch)
        self.sought = queue_offset

    @property
    def reportable(self) -> int:
        """Everything before it is done, and was delivered under this epoch."""
        return min(self.progress.done_to, self.received_to)

    def forget_reports(self) -> None:
        """On a new stream nothing was said yet: what was on its way may be lost."""
        self.reported = -1

    def report(self) -> int:
        """`reportable`, which is about to be sent."""
        self.reported = self.reportable
        self.done_bytes = 0
        return self.reported

    # Messages

    @property
    def unfinished(self) -> int:
        """Delivered and not done, or done behind one that is not."""
        return self.cached_messages + self.progress.under_way

    def add(self, runs: Sequence[Frames], next_offset: int, decoder: Decoder) -> None:
        """A delivery under the epoch of the day."""
        first = runs[0].queue_offset if runs else next_offset
        if first < self.received_to:
            # The queue is shorter than it was: its topic is another one of the same name.
            self.restart(first, self.epoch)
        self.received_to = next_offset
        if next_offset <= self.position:
            return
        runs = [part for run in runs if (part := run.behind(self.position)).frame_sizes]
        count = sum(len(run.frame_sizes) for run in runs)
        self.position = next_offset
        messages = decoder.messages(self.ref, runs, self.ref.broker_set)
        self._cache.append(_Cached(messages, count, next_offset))
        self.cached_messages += count
        self._drop_empty()

    def take(self) -> Taken | None:
        """The next message; what nobody is to see is passed over. None: the cache is empty."""
        while self._cache:
            cached = self._cache[0]
            decoded = next(cached.messages)
            cached.count -= 1
            self.cached_messages -= 1
            if decoded.message is not None:
                self.progress.take(decoded.queue_offset)
            self._drop_empty()
            if decoded.message is not None:
                self.running += 1
                return Taken(self, self.version, decoded.message, decoded.frame_bytes)
        return None

    def _drop_empty(self) -> None:
        while self._cache and not self._cache[0].count:
            self.progress.skip_to(self._cache.popleft().next_offset)

    def finish(self, taken: Taken) -> None:
        """Its work is done."""
        self.running -= 1
        if not taken.is_void:
            self.progress.finish(taken.message.queue_offset)
            self.done_bytes += taken.frame_bytes
