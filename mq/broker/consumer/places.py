"""Where a group can be in a queue, and where it begins in one of which it has no offset.

Invariant: the first sight of a topic fixes the place in all of its queues. Knows nothing of members
or of who has which queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mq.broker.consumer.commits import Commits
from mq.broker.queue import Queue
from mq.broker.state.machine import Machine
from mq.errors import IllegalOffset, MqError


class Start(NamedTuple):
    """Where a member starts in a queue without an offset: earliest, latest, or a time."""

    is_earliest: bool = False
    at_ms: int | None = None


class Places:
    def __init__(self, machine: Machine, commits: Commits) -> None:
        self._machine = machine
        self._commits = commits

    def check(self, queue: Queue, queue_offset: int) -> None:
        """IllegalOffset."""
        _, end = self.extent(queue)
        if queue_offset > end:
            raise IllegalOffset(
                f"{queue_offset} is behind the end of queue {queue.queue_id} of {queue.topic}, "
                f"which is {end}"
            )

    def extent(self, queue: Queue) -> tuple[int, int]:
        """Start and end; a queue that nobody has written to has neither."""
        found = self._machine.store.queues.get(*queue)
        return (found.start, found.end) if found else (0, 0)

    def start_offset(self, queue: Queue, start: Start) -> int:
        first, end = self.extent(queue)
        if start.at_ms is not None:
            found = self._machine.store.offset_at_time(*queue, start.at_ms)
            return end if found is None else found
        return first if start.is_earliest else end

    def begin(self, name: str, topics: Iterable[str], start: Start) -> None:
        """The first sight of a topic fixes the group's place in all of its queues. So a consumer
        that stops before its first commit misses nothing, nor does one when queues are added.
        """
        known = {queue.topic for queue in self._machine.state.offsets.positions(name)}
        for topic in topics:
            queues = [Queue(topic, at) for at in range(self.read_queues(topic))]
            if (
                queues
                and topic not in known
                and all(self._commits.position(name, queue) is None for queue in queues)
            ):
                self._commits.note(
                    name, {queue: self.start_offset(queue, start) for queue in queues}
                )

    def read_queues(self, topic: str) -> int:
        """Of what can be read."""
        try:
            return self._machine.state.topics.readable(topic).read_queues
        except MqError:
            return 0  # deleted, or switched off
