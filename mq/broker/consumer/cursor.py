"""The progress of one member's stream in one queue: what was sent, what the client has reported as
done, and under which epoch.

Unless the client reads elsewhere, `done <= next_offset`; what stands between them counts against
the client's limits. An epoch ends when the position is changed or the queue is assigned again:
reports under an older one are stale. Reads nothing and sends nothing.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Sent(NamedTuple):
    """One delivery that the client has not reported as done."""

    end: int  # queue offset behind it
    messages: int
    size_bytes: int


class Cursor:
    __slots__ = (
        "_sent",
        "busy_since_s",
        "done",
        "epoch",
        "has_unsent_gap",
        "is_redirected",
        "is_told",
        "is_told_of_end",
        "next_offset",
        "stays_until_s",
        "told_epoch",
    )

    def __init__(self, queue_offset: int, epoch: int) -> None:
        self.next_offset = self.done = queue_offset
        self.epoch = epoch
        # The client knows that it has the queue under this epoch; and that it has to release it.
        self.is_told = self.is_told_of_end = False
        # The last epoch under which the client was told that it has the queue; None: it was not.
        self.told_epoch: int | None = None
        # Made when something is sent: of very many queues most are idle.
        self._sent: deque[Sent] | None = None
        # When the client got the first of what it has not reported as done, or made progress last;
        # 0: it has nothing of the queue.
        self.busy_since_s = 0.0
        # The filter left something out at the end of the queue: the client has to hear of it.
        self.has_unsent_gap = False
        # The client reads on elsewhere, from `next_offset` on; and not before this time again.
        self.is_redirected = False
        self.stays_until_s = 0.0

    def tell(self) -> None:
        """The client is told that it has the queue."""
        self.is_told, self.told_epoch = True, self.epoch

    def moved(self, queue_offset: int, epoch: int) -> Cursor:
        """The same queue from another position on: what was sent before is void."""
        cursor = Cursor(queue_offset, epoch)
        cursor.told_epoch = self.told_epoch
        return cursor

    def is_released_by(self, epoch: int | None) -> bool:
        """Whether a release under this epoch is one of the queue as the client knows it; an
        earlier one was overtaken by an assignment. None: a client that does not say.
        """
        return epoch is None or epoch == self.told_epoch

    def add_sent(self, delivery: Sent, now_s: float) -> None:
        if self._sent is None:
            self._sent = deque()
        self._sent.append(delivery)
        self.busy_since_s = self.busy_since_s or now_s

    def has_in_hand(self, next_offset: int, now_s: float) -> None:
        """The client has, from elsewhere, what stands between `done` and here."""
        self.next_offset = next_offset
        self._sent = None
        self.busy_since_s = 0.0
        if self.done < next_offset:
            self.add_sent(Sent(next_offset, next_offset - self.done, 0), now_s)

    def advance(self, done: int, now_s: float) -> int:
        """The client is done with what stands before. Returns the bytes of deliveries that are done
        as a whole by this.
        """
        self.done = done
        size_bytes = 0
        while self._sent and self._sent[0].end <= done:
            size_bytes += self._sent.popleft().size_bytes
        self.busy_since_s = now_s if self._sent else 0.0
        return size_bytes

    def cached(self) -> tuple[int, int]:
        """Messages and bytes that the client has and did not report as done."""
        messages = size_bytes = 0
        for end, count, size in self._sent or ():
            left = min(count, end - self.done)  # of one that is done in part
            messages += left
            size_bytes += size * left // count
        return messages, size_bytes


def claimed(next_offset: int, done: int, end: int, now_s: float) -> Cursor:
    """For a queue that a member came back with: it has the messages up to `next_offset`, and is
    done with those before `done`. Behind the `end`, it has messages that are lost, or those of
    another topic, which had the name before: they are void, and so are its reports.
    """
    cursor = Cursor(min(done, next_offset, end), 0)
    cursor.has_in_hand(min(next_offset, end), now_s)
    cursor.tell()
    if next_offset > end:
        cursor.epoch += 1
        cursor.is_told_of_end = True
    return cursor


def returned(former: Cursor | None, queue_offset: int) -> Cursor:
    """For a queue that is assigned, from `queue_offset` on; `former`: the client has not released
    it before. An epoch that the client was not told of is not used up: the client takes a queue
    that comes back under the next epoch for the same, and goes on with the messages it has.
    """
    if former is None:
        return Cursor(queue_offset, 0)
    if former.is_told and not former.is_told_of_end and queue_offset <= former.done:
        return former  # for the client it was never gone
    epoch = former.epoch + former.is_told
    if former.next_offset != queue_offset or former.is_redirected:
        return former.moved(queue_offset, epoch)
    # The client has what stands before: it counts, and is not done yet.
    former.epoch = epoch
    former.is_told = former.is_told_of_end = False
    return former
