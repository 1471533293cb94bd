"""Which member was given which messages: the leader's memory, for operators.

A lease is a number, and the replicated state has no more of it. The newest grants are remembered
here; after a fail-over, and of leases with more than `GRANTS_MAX` newer ones, the member is not
known. Nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mq.broker.queue import Queue
from mq.broker.receive.grants import GrantedRun
from mq.broker.state.leases import Range

GRANTS_MAX = 20_000


class HeldRange(NamedTuple):
    """Messages [start, end) that one member has; empty: it is not known."""

    start: int
    end: int
    member_id: str


class LeaseHolders:
    def __init__(self) -> None:
        # The oldest first. Receives of one turn may share a lease.
        self._grants: dict[tuple[int, Queue], list[HeldRange]] = {}

    def note(self, member_id: str, runs: Iterable[GrantedRun]) -> None:
        grants = self._grants
        for one in runs:
            run = one.run
            end = run.queue_offset + run.message_count
            held = HeldRange(run.queue_offset, end, member_id)
            grants.setdefault((one.lease, one.queue), []).append(held)
        while len(grants) > GRANTS_MAX:
            del grants[next(iter(grants))]

    def forget(self) -> None:
        self._grants.clear()

    def of(self, queue: Queue, one: Range) -> Iterator[HeldRange]:
        """A range by its members, in the order of the queue."""
        at = one.start
        for held in sorted(self._grants.get((one.lease, queue), ())):
            start, end = max(held.start, at), min(held.end, one.end)
            if start >= end:
                continue
            if at < start:
                yield HeldRange(at, start, "")
            yield HeldRange(start, end, held.member_id)
            at = end
        if at < one.end:
            yield HeldRange(at, one.end, "")
