"""Topics with priorities: queue i of such a topic has the priority i modulo their number.

Pure. Which queue a message goes to, and whose turn it is among queues that have something. High
ones come first, but each tenth turn goes to whoever has waited longest, so that none starves.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.errors import IllegalRequest

# One turn of so many goes by who has waited longest.
_FAIR_EACH = 10


def queues_of(priority: int, priorities: int, queues: int) -> range:
    """The queues for messages of a priority. IllegalRequest: the topic has no such priority."""
    if priorities <= 1:
        return range(queues)
    if not 0 <= priority < priorities:
        raise IllegalRequest(
            f"priority {priority}: the topic has {priorities}, 0 (the lowest) to {priorities - 1}"
        )
    return range(priority, queues, priorities)


def queue_for(turn: int, priority: int, priorities: int, queues: int) -> int:
    """One of them: by the hash of an ordering key, or by turn."""
    choice = queues_of(priority, priorities, queues)
    return choice[turn % len(choice)]


class FairTurns:
    """Whose turn it is among queues that have something, the one first that has waited longest."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def choose(self, ranks: Sequence[int]) -> int:
        """Which of them, by how far each is below the highest priority. There must be one."""
        self._count += 1
        if self._count % _FAIR_EACH == 0:
            return 0
        return min(range(len(ranks)), key=ranks.__getitem__)
