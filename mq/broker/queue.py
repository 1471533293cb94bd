"""The name of a queue: what every part of the broker calls it by. Imports nothing of the broker."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple


class Queue(NamedTuple):
    topic: str
    queue_id: int


def queues_of(topic: str, count: int) -> tuple[Queue, ...]:
    """Queues 0 to count - 1. Groups that consume a wide topic share the objects, also when it gets
    wider or narrower.
    """
    known = _known_queues(topic)
    missing = range(len(known), count)
    # As `Queue(topic, at)` of each, without a call in Python.
    known += map(tuple.__new__, itertools.repeat(Queue), zip(itertools.repeat(topic), missing))
    return tuple(known[:count])


@lru_cache(maxsize=16)
def _known_queues(_topic: str) -> list[Queue]:
    return []
