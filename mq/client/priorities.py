"""Topics with priorities: queue i of such a topic has the priority i modulo their number.

Pure. Which queue a message goes to, and whose turn it is among queues that have something. High
ones come first, but each tenth turn goes to the lowest, so that it never starves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from mq.errors import IllegalRequest

# One turn of so many goes from the lowest up.
TURNS_FOR_LOW = 10

Item = TypeVar("Item")


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


def priority_of(queue_id: int, priorities: int) -> int:
    """Of a queue; all are alike in a topic without priorities."""
    return queue_id % priorities if priorities > 1 else 0


class FairTurns:
    """Whose turn it is."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def choose(self, ready: Iterable[tuple[int, Item]]) -> Item:
        """Of (priority, item) in the order in which they became ready: the first one of the
        highest priority, each tenth time of the lowest. There must be one.
        """
        self._count += 1
        pick = min if self._count % TURNS_FOR_LOW == 0 else max
        return pick(ready, key=lambda one: one[0])[1]
