"""The name of a queue: what every part of the broker calls it by. Imports nothing of the broker."""

from __future__ import annotations

from typing import NamedTuple


class Queue(NamedTuple):
    topic: str
    queue_id: int
