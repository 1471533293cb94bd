"""Dead letters, for operators: listing, resending, purging.

A dead letter is sent again by a copy on the group's retry topic, counted from 0 and with the origin
that it has. When all are sent again, the copies and the end of the letters are one entry: a letter
is in one of the two places, whatever happens in between. What the group does at the same time only
adds letters, at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from mq import names
from mq.broker.core import Core
from mq.broker.queue import Queue
from mq.broker.retry import retries
from mq.broker.retry.origins import batch_of
from mq.broker.security.audit import Record
from mq.errors import IllegalRequest, MessageNotFound, TopicNotFound
from mq.store.batch import Batch
from mq.store.lookup import StoredMessage
from mq.store.reading import Status
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.state_pb2 import Command, PutGroup, TrimQueues

LIST_MAX = 1_000
_LIST_DEFAULT = 32
_LIST_BYTES = 2 << 20
# Limits of one entry of resent letters.
_ENTRY_MESSAGES = 500
_ENTRY_BYTES = 1 << 20


class Count(NamedTuple):
    group: str
    messages: int
    last_stored_at_ms: int


class Totals(NamedTuple):
    """Totals of a group since it was created."""

    dead_letters: int = 0
    # Copies that came back to it.
    retried: int = 0


class DeadLetters:
    def __init__(self, core: Core) -> None:
        self._core = core
        # Resends and purges of a group exclude each other.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # -- questions --------------------------------------------------------------------------------

    def counts(self) -> Iterator[Count]:
        """Every group that has some."""
        for topic, queue_id, start, end in self._core.store.queues.extents():
            if topic.startswith(names.DEAD_LETTER_PREFIX) and end > start:
                queue = self._core.store.queues.get(topic, queue_id)
                unit = queue.read(end - 1, end) if queue else None
                if unit is not None:
                    at = self._core.store.log.stored_at(unit["log_offset"].astype("i8"))
                    group = topic.removeprefix(names.DEAD_LETTER_PREFIX)
                    yield Count(group, end - start, int(at[0]))

    @property
    def messages(self) -> int:
        """The number of dead letters of all groups."""
        extents = self._core.store.queues.extents()
        return sum(
            end - start
            for topic, _, start, end in extents
            if topic.startswith(names.DEAD_LETTER_PREFIX)
        )

    def totals(self) -> dict[str, Totals]:
        """By group. The ends of queues only grow, on every node and over every restart."""
        found: dict[str, Totals] = {}
        for topic, _, _, end in self._core.store.queues.extents():
            if topic.startswith(names.DEAD_LETTER_PREFIX):
                group = topic.removeprefix(names.DEAD_LETTER_PREFIX)
                found[group] = found.get(group, Totals())._replace(dead_letters=end)
            elif topic.startswith(names.RETRY_PREFIX):
                group = topic.removeprefix(names.RETRY_PREFIX)
                found[group] = found.get(group, Totals())._replace(retried=end)
        return found

    def listed(
        self, group: str, queue_offset: int, messages_max: int
    ) -> tuple[list[StoredMessage], int]:
        """Letters from this offset on, and the next offset. Raises TopicNotFound if the group never
        had one.
        """
        queue = self._queue(group)
        count = min(messages_max or _LIST_DEFAULT, LIST_MAX)
        letters = self._read(queue, queue_offset, count, _LIST_BYTES)
        start, end = self._extent(queue)
        return letters, letters[-1].queue_offset + 1 if letters else min(
            max(queue_offset, start), end
        )

    # -- changes ----------------------------------------------------------------------------------

    async def resend_all(self, group: str) -> int:
        """Returns the number of messages sent again, of those that were there when it began. After
        a failure the rest stays where it is.
        """
        self._core.leadership.check()
        queue, count = self._queue(group), 0
        async with self._turn(group):
            end = self._extent(queue)[1]
            await self._core.catalog.ensure_internal(names.retry_topic(group))
            while (start := self._extent(queue)[0]) < end:
                letters = self._read(queue, start, min(_ENTRY_MESSAGES, end - start), _ENTRY_BYTES)
                if not letters:
                    break
                done_to = letters[-1].queue_offset + 1
                await self._write(_trim(queue, done_to), [_again(group, letters)])
                count += len(letters)
        return count

    async def resend(self, group: str, queue_offsets: Sequence[int]) -> int:
        """Sends these again; they stay where they are. Returns their number. Raises MessageNotFound
        if one is missing: then none was sent. One that retention drops meanwhile is left out.
        """
        self._core.leadership.check()
        queue, count = self._queue(group), 0
        if len(queue_offsets) > LIST_MAX:
            raise IllegalRequest(f"{len(queue_offsets)} letters at once: at most {LIST_MAX}")
        async with self._turn(group):
            wanted = sorted(set(queue_offsets))
            self._check_there(group, queue, wanted)
            await self._core.catalog.ensure_internal(names.retry_topic(group))
            letters = (
                one
                for at in wanted
                for one in self._read(queue, at, 1, 1)
                if one.queue_offset == at
            )
            for part in _parts(letters):
                await self._write(None, [_again(group, part)])
                count += len(part)
        return count

    async def purge(self, group: str, before_offset: int = 0) -> int:
        """Drops the letters before this one, 0: all. Returns their number."""
        self._core.leadership.check()
        queue = self._queue(group)
        async with self._turn(group):
            start, end = self._extent(queue)
            stop = min(before_offset or end, end)
            if stop > start:
                record = Record(
                    "purge_dead_letters", f"group:{group}", {"start": start}, {"start": stop}
                )
                await self._write(*self._core.audit.recorded(_trim(queue, stop), record))
        return max(0, stop - start)

    async def set_ordered(self, group: str, *, is_ordered: bool) -> None:
        """Whether consumers of RocketMQ's protocol get the messages of a key one at a time."""
        self._core.leadership.check()
        names.check_group(group)
        command = Command(put_group=PutGroup(group=group, is_ordered=is_ordered))
        before = {"is_ordered": self._core.state.offsets.is_ordered(group)}
        record = Record("alter_group", f"group:{group}", before, {"is_ordered": is_ordered})
        await self._core.writer.write(*self._core.audit.recorded(command, record))

    async def set_retries(self, group: str, retries_max: int) -> None:
        """Sets the number of retries of the group from now on."""
        self._core.leadership.check()
        names.check_group(group)
        if retries_max > retries.RETRIES_MAX:
            raise IllegalRequest(
                f"retries_max = {retries_max}: a group retries 0 to {retries.RETRIES_MAX} times"
            )
        command = Command(put_group=PutGroup(group=group, retries_max=retries_max))
        before = {"retries_max": self._core.state.offsets.retries_max(group)}
        record = Record("alter_group", f"group:{group}", before, {"retries_max": retries_max})
        await self._core.writer.write(*self._core.audit.recorded(command, record))

    async def _write(self, command: Command | None, batches: Sequence[Batch] = ()) -> None:
        """Not cancelled half-way: the next one would send the same letters again."""
        await self._core.writer.write_uncancelled(command, batches)

    # -- the queue --------------------------------------------------------------------------------

    def _turn(self, group: str) -> asyncio.Lock:
        return self._turns.setdefault(group, asyncio.Lock())

    def _queue(self, group: str) -> Queue:
        names.check_group(group)
        topic = names.dead_letter_topic(group)
        if topic not in self._core.state.topics:
            raise TopicNotFound(f"group {group} never had a dead letter")
        return Queue(topic, 0)

    def _check_there(self, group: str, queue: Queue, queue_offsets: Sequence[int]) -> None:
        start, end = self._extent(queue)
        gone = [one for one in queue_offsets if not start <= one < end]
        if gone:
            there = f"they are {start} to {end - 1}" if end > start else "it has none"
            raise MessageNotFound(f"group {group} has no dead letter {gone[0]}: {there}")

    def _extent(self, queue: Queue) -> tuple[int, int]:
        found = self._core.store.queues.get(*queue)
        return (found.start, found.end) if found else (0, 0)

    def _read(
        self, queue: Queue, queue_offset: int, count: int, bytes_max: int
    ) -> list[StoredMessage]:
        """At least one, if there is one."""
        at = max(queue_offset, self._extent(queue)[0])
        read = self._core.store.read
        result = read(*queue, at, messages_max=count, bytes_max=bytes_max)
        while result.status == Status.NOTHING_MATCHED:  # lost: see `ReadResult.lost`
            result = read(*queue, result.next_offset, messages_max=count, bytes_max=bytes_max)
        if result.status != Status.FOUND:
            return []
        return [one for run in result.runs for one in retries.stored_messages(queue, run)]


def _parts(letters: Iterable[StoredMessage]) -> Iterator[list[StoredMessage]]:
    """As much as fits one entry, or one that is larger."""
    part: list[StoredMessage] = []
    size = 0
    for letter in letters:
        length = letter.message.ByteSize()
        if part and (size + length > _ENTRY_BYTES or len(part) == _ENTRY_MESSAGES):
            yield part
            part, size = [], 0
        part.append(letter)
        size += length
    if part:
        yield part


def _again(group: str, letters: Sequence[StoredMessage]) -> Batch:
    copies = [retries.failed_copy(one, "", 0, "") for one in letters]
    return batch_of(names.retry_topic(group), 0, copies)


def _trim(queue: Queue, queue_offset: int) -> Command:
    start = QueuePosition(topic=queue.topic, queue_id=queue.queue_id, queue_offset=queue_offset)
    return Command(trim_queues=TrimQueues(starts=[start]))
