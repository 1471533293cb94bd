"""Leases as they will be when what is just being decided is applied.

Requests of one turn are decided one after the other, each on what the ones before it did. The draft
copies a queue's leases when they are changed first, and puts the changes down for the command that
does the same to the replicated state, on every node.
"""

from __future__ import annotations

from mq.broker.queue import Queue
from mq.broker.state.leases import Leases, QueueLeases
from mq.wire.v1 import state_pb2 as pb

# Lease, visible_at_ms, attempts; None: done.
Value = tuple[int, int, int] | None

# A change in its command, and the queue that it is of: rather more than less.
CHANGE_BYTES = 52
QUEUE_BYTES = 320


class _Changes:
    __slots__ = ("expected_next", "items")

    def __init__(self, expected_next: int | None) -> None:
        self.expected_next = expected_next
        self.items: list[tuple[int, int, Value]] = []


class Draft:
    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._queues: dict[tuple[str, Queue], QueueLeases] = {}
        self._changes: dict[tuple[str, Queue], _Changes] = {}
        # Of the command, about.
        self.size_bytes = 0

    def get(self, group: str, queue: Queue) -> QueueLeases | None:
        """To be read only."""
        return self._queues.get((group, queue)) or self._leases.get(group, queue)

    def begin(self, group: str, queue: Queue, queue_offset: int) -> None:
        """The group receives from the queue from now on, from there on."""
        place = group, queue
        self._queues[place] = QueueLeases(queue_offset)
        changes = self._changes[place] = _Changes(None)
        self.size_bytes += QUEUE_BYTES
        if queue_offset:
            changes.items.append((0, queue_offset, None))

    def put(self, group: str, queue: Queue, start: int, end: int, value: Value) -> None:
        """As `QueueLeases.put`. The group must receive from the queue."""
        if start >= end:
            return
        place = group, queue
        leases = self._queues.get(place)
        if leases is None:
            known = self._leases.get(group, queue)
            if known is None:
                raise ValueError(f"group {group} does not receive from {queue}")
            leases = self._queues[place] = QueueLeases(known.next, known.ranges)
            self._changes[place] = _Changes(known.next)
            self.size_bytes += QUEUE_BYTES
        leases.put(start, end, value)
        items = self._changes[place].items
        if items and items[-1][1] == start and items[-1][2] == value:
            items[-1] = items[-1][0], end, value
        else:
            items.append((start, end, value))
            self.size_bytes += CHANGE_BYTES

    def command(self) -> pb.Command | None:
        """None: nothing changes."""
        if not self._changes:
            return None
        queues = [
            pb.QueueLeases(
                group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                changes=[_wire(*one) for one in changes.items],
                next=changes.expected_next,
            )
            for (group, queue), changes in self._changes.items()
        ]
        return pb.Command(change_leases=pb.ChangeLeases(queues=queues))


def _wire(start: int, end: int, value: Value) -> pb.LeaseChange:
    if value is None:
        return pb.LeaseChange(start=start, end=end, is_done=True)
    lease, visible_at_ms, attempts = value
    return pb.LeaseChange(
        start=start, end=end, lease=lease, visible_at_ms=visible_at_ms, attempts=attempts
    )
