"""How far a consumer has come in one queue, when messages are finished in any order.

Pure. Invariant: everything before `done_to` is finished or needs no work, and `done_to` never goes
down. Each step costs the same, however many messages are under way. A queue whose position is
changed gets a new one: what was taken before counts no more.
"""

from __future__ import annotations

from collections import deque


class Progress:
    """Messages are taken in the order of their queue, and each one finished once."""

    __slots__ = ("_finished", "_taken", "_taken_to")

    def __init__(self, queue_offset: int) -> None:
        self._taken_to = queue_offset
        # In the order of the queue; the first one is not finished.
        self._taken: deque[int] = deque()
        # Of those behind the first one.
        self._finished: set[int] = set()

    @property
    def done_to(self) -> int:
        """Where the group goes on if the consumer is lost."""
        return self._taken[0] if self._taken else self._taken_to

    @property
    def taken_to(self) -> int:
        """The next one that can be taken is not before this."""
        return self._taken_to

    @property
    def under_way(self) -> int:
        """Taken and not finished, or finished behind one that is not."""
        return len(self._taken)

    def take(self, queue_offset: int) -> None:
        if queue_offset < self._taken_to:
            raise ValueError(f"{queue_offset} is taken after {self._taken_to - 1}")
        self._taken.append(queue_offset)
        self._taken_to = queue_offset + 1

    def skip_to(self, queue_offset: int) -> None:
        """What was not taken before this one needs no work: a filter left it out."""
        self._taken_to = max(self._taken_to, queue_offset)

    def finish(self, queue_offset: int) -> None:
        taken, finished = self._taken, self._finished
        if taken[0] != queue_offset:
            finished.add(queue_offset)
            return
        taken.popleft()
        while taken and taken[0] in finished:
            finished.remove(taken.popleft())
