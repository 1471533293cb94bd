"""Who a producer is to a broker set, and the numbers of its batches there.

Batches are numbered from 1 on, and the broker allows only so many gaps: the number of a batch that
was certainly not stored is given to the next one. When there were too many gaps all the same, a
producer that chose its own name takes another one. Not safe for threads: the accumulator's lock is
held.
"""

from __future__ import annotations

import heapq
import uuid


class Sequences:
    """With `producer_id` None a name is made up; with an empty one there are no numbers at all."""

    def __init__(self, producer_id: str | None) -> None:
        self._is_own_name = producer_id is None
        self.producer_id = uuid.uuid4().hex if producer_id is None else producer_id
        self._next = 1
        self._free: list[int] = []

    def take(self) -> tuple[str, int]:
        """Producer id and sequence of the next batch; empty and 0 without idempotence."""
        if not self.producer_id:
            return "", 0
        if self._free:
            return self.producer_id, heapq.heappop(self._free)
        self._next += 1
        return self.producer_id, self._next - 1

    def give_back(self, producer_id: str, sequence: int) -> None:
        """The batch of this number was not stored, whatever attempt is looked at."""
        if sequence and producer_id == self.producer_id:
            heapq.heappush(self._free, sequence)

    def start_over(self, producer_id: str) -> bool:
        """The broker takes no more batches of this name. False: the name is the user's to keep."""
        if self._is_own_name and producer_id == self.producer_id:
            self.producer_id = uuid.uuid4().hex
            self._next = 1
            self._free.clear()
        return self._is_own_name
