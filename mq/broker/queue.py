"""The name of a queue: what every part of the broker calls it by. Imports nothing of the broker."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple


class Queue(NamedTuple):
    topic: str
    queue_id: int


@lru_cache(maxsize=16)
def queues_of(topic: str, count: int) -> tuple[Queue, ...]:
    """Queues 0 to count - 1. Groups that consume a wide topic share the objects."""
    return tuple(map(Queue, itertools.repeat(topic, count), range(count)))
