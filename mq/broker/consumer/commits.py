"""Offsets of groups on their way into the log: what many consumers report within a moment is one
entry.

A report of progress waits for nothing: when the leader is lost before it is committed, its group
goes on a little further back. An explicit commit is answered when it is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping

from mq.broker.attribution import NOBODY, Actor, Attribution
from mq.broker.queue import Queue
from mq.broker.state.machine import Machine
from mq.broker.writing import EntryWriter
from mq.errors import MqError, NotLeader
from mq.logging import get_logger
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.state_pb2 import Command, CommitPositions, GroupPositions

log = get_logger(__name__)

# How long progress may wait for more of it; less than a second of work is repeated after a crash.
_GATHER_S = 0.1
# Positions in one entry: about 64 KiB of them.
_POSITIONS_MAX = 2_000

Positions = dict[str, dict[Queue, int]]
Actors = dict[str, dict[Queue, Actor]]


class Commits:
    def __init__(self, writer: EntryWriter, machine: Machine) -> None:
        self._writer = writer
        self._machine = machine
        self._loop = asyncio.get_running_loop()
        # Not proposed yet, and proposed but not applied; the newer one counts.
        self._noted: Positions = {}
        self._under_way: Positions = {}
        # In atomic sends in flight; what is noted of the same queues meanwhile is newer.
        self._elsewhere: Positions = {}
        # Whose the noted ones are, as far as that is known.
        self._actors: Actors = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_writing = False

    def position(self, group: str, queue: Queue) -> int | None:
        """The newest that is known of: also what is not committed yet."""
        for positions in (self._noted, self._under_way):
            found = positions.get(group, {}).get(queue)
            if found is not None:
                return found
        return self._machine.state.offsets.positions(group).get(queue)

    def has_position(self, group: str, topic: str) -> bool:
        """Whether the group has one in some queue of the topic."""
        committed = self._machine.state.offsets.positions(group)
        every = (self._noted.get(group, {}), self._under_way.get(group, {}), committed)
        # Mostly in all of its queues.
        return any(Queue(topic, 0) in positions for positions in every) or any(
            queue.topic == topic for positions in every for queue in positions
        )

    def reached(self, group: str, queue: Queue) -> int:
        """The same, or the position in an atomic send that is in flight. No member may start there:
        if that entry fails, its work is not done.
        """
        found = self.position(group, queue) or 0
        return max(found, self._elsewhere.get(group, {}).get(queue, 0))

    def note(self, group: str, positions: Mapping[Queue, int], actor: Actor | None = None) -> None:
        """Committed soon."""
        if positions:
            self._note(group, positions, actor)
            self._write_in(_GATHER_S)

    def _note(self, group: str, positions: Mapping[Queue, int], actor: Actor | None) -> None:
        self._noted.setdefault(group, {}).update(positions)
        by = dict.fromkeys(positions, actor or NOBODY)
        self._actors.setdefault(group, {}).update(by)

    def commit(
        self, group: str, positions: Mapping[Queue, int], actor: Actor | None = None
    ) -> asyncio.Future[None]:
        """Done when they are durable; they count at once."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        if not positions:
            waiter.set_result(None)
            return waiter
        self._note(group, positions, actor)
        self._waiters.append(waiter)
        self._write_in(0)
        return waiter

    async def flush(self) -> None:
        """Everything reported so far is durable when this returns, or cannot be written."""
        if not self._noted and not self._is_writing:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        self._write_in(0)
        with contextlib.suppress(MqError):
            await waiter

    def is_pending(self, group: str, queues: Iterable[Queue]) -> bool:
        """Whether one of these has a position that is not in the log yet: `flush`, or what is
        written now might be undone by it.
        """
        known = (self._noted.get(group, {}), self._under_way.get(group, {}))
        return any(queue in positions for queue in queues for positions in known)

    def begin_elsewhere(self, positions: Positions) -> None:
        """An atomic send has these in flight, until `end_elsewhere`: a report of progress that
        it has overtaken must not take the group back.
        """
        self._elsewhere = positions

    def end_elsewhere(self) -> None:
        self._elsewhere = {}

    def forget(self) -> None:
        """This node steps down: members report to the next leader what they have."""
        # Not emptied: what is under way may be read by the task that writes it.
        self._noted, self._under_way, self._elsewhere = {}, {}, {}
        self._actors = {}
        waiters, self._waiters = self._waiters, []
        _tell(waiters, NotLeader(None, None))

    def drop_group(self, group: str) -> None:
        self._noted.pop(group, None)

    def drop_topic(self, topic: str) -> None:
        for positions in self._noted.values():
            for queue in [queue for queue in positions if queue.topic == topic]:
                del positions[queue]

    def _write_in(self, seconds: float) -> None:
        if self._is_writing:
            return  # what is noted now goes with the next
        if self._timer is not None:
            if seconds:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._write)

    def _write(self) -> None:
        self._timer = None
        if not self._noted and not self._waiters:
            return
        self._is_writing = True
        waiters, self._waiters = self._waiters, []
        self._under_way, self._noted = self._noted, {}
        actors, self._actors = self._actors, {}
        commands = _commands(self._under_way, actors, self._writer.attribution)
        self._task = self._loop.create_task(self._propose(commands, waiters))

    async def _propose(
        self, commands: Iterable[Command], waiters: list[asyncio.Future[None]]
    ) -> None:
        error: MqError | None = None
        try:
            for command in commands:
                await self._writer.write(command)
        except MqError as failure:
            error = failure
            log.info("offsets are not committed, consumers will report again", error=str(error))
        self._under_way = {}
        _tell(waiters, error)
        self._is_writing = False
        if self._noted or self._waiters:
            self._write_in(0 if self._waiters else _GATHER_S)


def _tell(waiters: Iterable[asyncio.Future[None]], error: MqError | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def _commands(positions: Positions, actors: Actors, attribution: Attribution) -> Iterator[Command]:
    """Each one is made when the one before it is written: very many would hold up the loop."""
    commit, count = CommitPositions(), 0
    for group, queues in positions.items():
        left = iter(queues.items())
        while chunk := list(itertools.islice(left, _POSITIONS_MAX - count)):
            wire = [
                QueuePosition(topic=queue.topic, queue_id=queue.queue_id, queue_offset=queue_offset)
                for queue, queue_offset in chunk
            ]
            known = actors.get(group, {})
            by = attribution.numbers(known.get(queue, NOBODY) for queue, _ in chunk)
            commit.groups.append(GroupPositions(group=group, positions=wire, actors=by))
            count += len(chunk)
            if count >= _POSITIONS_MAX:
                yield Command(commit_positions=commit)
                commit, count = CommitPositions(), 0
    if count:
        yield Command(commit_positions=commit)
