"""Topics with priorities: queue i of such a topic has the priority i modulo their number, 0 the
lowest. Which queues a priority has, and which queue is served next.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.errors import IllegalRequest

# Every tenth turn goes to the queue that has waited longest, whatever its priority.
_FAIR_EACH = 10


def queues_of(priority: int, priorities: int, queues: int) -> range:
    """The queues of a priority. Raises IllegalRequest if the topic does not have it."""
    if priorities <= 1:
        return range(queues)
    if not 0 <= priority < priorities:
        raise IllegalRequest(
            f"priority {priority}: the topic has {priorities}, 0 (the lowest) to {priorities - 1}"
        )
    return range(priority, queues, priorities)


def queue_for(turn: int, priority: int, priorities: int, queues: int) -> int:
    """One of the queues of a priority; `turn` is the hash of an ordering key, or a counter."""
    candidates = queues_of(priority, priorities, queues)
    return candidates[turn % len(candidates)]


class FairTurns:
    """Chooses among queues that have messages, given in the order in which they began to wait."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def choose(self, ranks: Sequence[int]) -> int:
        """An index of `ranks`, which must not be empty; a rank is the distance of a queue from the
        highest priority.
        """
        self._count += 1
        if self._count % _FAIR_EACH == 0:
            return 0
        return min(range(len(ranks)), key=ranks.__getitem__)
