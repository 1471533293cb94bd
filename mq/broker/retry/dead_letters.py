"""Dead letters, for operators: listing, resending, purging.

A dead letter is sent again by a copy on the group's retry topic, counted from 0 and with the origin
that it has. When all are sent again, the copies and the end of the letters are one entry: a letter
is in one of the two places, whatever happens in between. What the group does at the same time only
adds letters, at the end.

Chosen letters stand in the middle of their queue, and stay there: the entry that sends them again,
or purges them, also says so to the replicated state (`mq.broker.state.letters`). Purged ones are
not shown any more; those that were sent again are not sent twice by mistake.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from mq import names
from mq.broker.core import Core
from mq.broker.queue import Queue
from mq.broker.retry import retries
from mq.broker.retry.origins import batch_of
from mq.broker.security.audit import Record
from mq.broker.state.machine import ProposedEntry
from mq.errors import FlowControl, IllegalRequest, MessageNotFound, MqError, TopicNotFound
from mq.store.batch import Batch
from mq.store.lookup import StoredMessage
from mq.store.reading import Found, Status
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.state_pb2 import Command, Many, PutGroup, SettleLetters, TrimQueues

LIST_MAX = 1_000
_LIST_DEFAULT = 32
_LIST_BYTES = 2 << 20
# Limits of one entry of resent letters.
_ENTRY_MESSAGES = 500
_ENTRY_BYTES = 1 << 20
# Letters of a group that were settled one by one: each is remembered until its queue is trimmed.
SETTLED_MAX = 100_000


class Count(NamedTuple):
    group: str
    messages: int
    last_stored_at_ms: int


class Totals(NamedTuple):
    """Totals of a group since it was created."""

    dead_letters: int = 0
    # Copies that came back to it.
    retried: int = 0


class LetterResult(enum.IntEnum):
    """The outcome of a chosen letter; the numbers are those of the wire."""

    RESENT = 1
    PURGED = 2
    ALREADY_RESENT = 3
    GONE = 4
    REFUSED = 5


class LetterOutcome(NamedTuple):
    queue_offset: int
    result: LetterResult
    # Of the copy.
    log_offset: int = -1
    text: str = ""


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
                group = topic.removeprefix(names.DEAD_LETTER_PREFIX)
                count = end - start - self._purged_from(group, start)
                if unit is not None and count > 0:
                    at = self._core.store.log.stored_at(unit["log_offset"].astype("i8"))
                    yield Count(group, count, int(at[0]))

    @property
    def messages(self) -> int:
        """The number of dead letters of all groups."""
        extents = self._core.store.queues.extents()
        return sum(
            end - start - self._purged_from(topic.removeprefix(names.DEAD_LETTER_PREFIX), start)
            for topic, _, start, end in extents
            if topic.startswith(names.DEAD_LETTER_PREFIX)
        )

    def _purged_from(self, group: str, start: int) -> int:
        """Retention may have taken some of those that were purged one by one."""
        return sum(one >= start for one in self._core.state.letters.purged(group))

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
        purged = self._core.state.letters.purged(group)
        start, end = self._extent(queue)
        at = _unpurged_from(max(queue_offset, start), purged)
        while letters := self._read(queue, at, count, _LIST_BYTES):
            at = letters[-1].queue_offset + 1
            left = [one for one in letters if one.queue_offset not in purged]
            if left:
                return left, at
        return [], min(at, end)

    async def load(self, group: str, queue_offset: int, messages_max: int) -> None:
        """Before `listed`: what it reads first is in memory then."""
        count = min(messages_max or _LIST_DEFAULT, LIST_MAX)
        await self._load(self._queue(group), [queue_offset], count, _LIST_BYTES)

    def resent(self, group: str) -> Collection[int]:
        """The queue offsets of letters that were sent again one by one."""
        return self._core.state.letters.resent(group)

    # -- changes ----------------------------------------------------------------------------------

    async def resend_all(self, group: str) -> int:
        """Returns the number of messages sent again, of those that were there when it began, those
        included that were sent again one by one. After a failure the rest stays where it is.
        """
        self._core.leadership.check()
        queue, count = self._queue(group), 0
        async with self._turn(group):
            end = self._extent(queue)[1]
            await self._core.catalog.ensure_internal(names.retry_topic(group))
            while (start := self._extent(queue)[0]) < end:
                await self._load(queue, [start], _ENTRY_MESSAGES, _ENTRY_BYTES)
                letters = self._read(queue, start, min(_ENTRY_MESSAGES, end - start), _ENTRY_BYTES)
                if not letters:
                    break
                done_to = letters[-1].queue_offset + 1
                purged = self._core.state.letters.purged(group)
                letters = [one for one in letters if one.queue_offset not in purged]
                batches = [_again(group, letters)] if letters else []
                await self._write(_trim(queue, done_to), batches)
                count += len(letters)
        return count

    async def resend(self, group: str, queue_offsets: Sequence[int]) -> int:
        """Sends these again; they stay where they are. Returns their number. Raises MessageNotFound
        if one is missing: then none was sent. One that retention drops meanwhile is left out.
        """
        self._core.leadership.check()
        queue, count = self._queue(group), 0
        self._check_count(group, queue_offsets)
        async with self._turn(group):
            wanted = sorted(set(queue_offsets))
            self._check_there(group, queue, wanted)
            await self._core.catalog.ensure_internal(names.retry_topic(group))
            await self._load(queue, wanted)
            letters = (
                one
                for at in wanted
                for one in self._read(queue, at, 1, 1)
                if one.queue_offset == at
            )
            for part in _parts(letters):
                await self._write_resent(group, queue, part)
                count += len(part)
        return count

    async def settle(
        self, group: str, queue_offsets: Sequence[int], *, resends: bool, again: bool = False
    ) -> list[LetterOutcome]:
        """Sends these again, or purges them, each with its own outcome, in the order of their
        offsets. `again`: also those that were sent again before. A failure to write concerns the
        letters that are not written: they are REFUSED, and the others count.
        """
        self._core.leadership.check()
        queue = self._queue(group)
        self._check_count(group, queue_offsets)
        async with self._turn(group):
            wanted = sorted(set(queue_offsets))
            outcomes = {at: LetterOutcome(at, LetterResult.GONE) for at in wanted}
            present = [at for at in wanted if self._is_there(group, queue, at)]
            if not resends:
                await self._purge_chosen(group, queue, present, outcomes)
                return [*outcomes.values()]
            await self._core.catalog.ensure_internal(names.retry_topic(group))
            known = () if again else self.resent(group)
            for at in present:
                if at in known:
                    outcomes[at] = LetterOutcome(at, LetterResult.ALREADY_RESENT)
            await self._resend_chosen(
                group, queue, [at for at in present if at not in known], outcomes
            )
        return [*outcomes.values()]

    async def _resend_chosen(
        self, group: str, queue: Queue, wanted: Sequence[int], outcomes: dict[int, LetterOutcome]
    ) -> None:
        await self._load(queue, wanted)
        letters = (
            one for at in wanted for one in self._read(queue, at, 1, 1) if one.queue_offset == at
        )
        for part in _parts(letters):
            try:
                places = await self._write_resent(group, queue, part)
            except MqError as error:
                for one in part:
                    at = one.queue_offset
                    outcomes[at] = LetterOutcome(at, LetterResult.REFUSED, text=str(error))
                continue
            for one, log_offset in zip(part, places, strict=True):
                at = one.queue_offset
                outcomes[at] = LetterOutcome(at, LetterResult.RESENT, log_offset)

    async def _purge_chosen(
        self, group: str, queue: Queue, wanted: Sequence[int], outcomes: dict[int, LetterOutcome]
    ) -> None:
        if not wanted:
            return
        start, end = self._extent(queue)
        purged = {*self._core.state.letters.purged(group), *wanted}
        first = min(_unpurged_from(start, purged), end)
        settle = SettleLetters(group=group, purged=wanted, start=start)
        commands = [Command(settle_letters=settle)]
        if first > start:
            # All letters before it were resent or purged.
            commands.append(_trim(queue, first))
        record = Record("purge_dead_letters", f"group:{group}", None, {"letters": [*wanted]})
        many = Command(many=Many(commands=commands))
        await self._write(*self._core.audit.recorded(many, record))
        for at in wanted:
            outcomes[at] = LetterOutcome(at, LetterResult.PURGED)

    async def _write_resent(
        self, group: str, queue: Queue, letters: Sequence[StoredMessage]
    ) -> list[int]:
        """Returns the log offsets of the copies."""
        batch = _again(group, letters)
        settle = SettleLetters(
            group=group,
            resent=[one.queue_offset for one in letters],
            start=self._extent(queue)[0],
        )
        entry = await self._write(Command(settle_letters=settle), [batch])
        first = entry.stored[0].log_offset - batch.region_start
        return [first + start for start in batch.frame_starts.tolist()]

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

    async def _write(self, command: Command | None, batches: Sequence[Batch] = ()) -> ProposedEntry:
        """Not cancelled half-way: the next one would send the same letters again."""
        return await self._core.writer.write_uncancelled(command, batches)

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
        gone = [one for one in queue_offsets if not self._is_there(group, queue, one)]
        if gone:
            there = f"they are {start} to {end - 1}" if end > start else "it has none"
            raise MessageNotFound(f"group {group} has no dead letter {gone[0]}: {there}")

    def _check_count(self, group: str, queue_offsets: Sequence[int]) -> None:
        """Raises IllegalRequest; FlowControl if too many are settled and still in the queue."""
        if len(queue_offsets) > LIST_MAX:
            raise IllegalRequest(f"{len(queue_offsets)} letters at once: at most {LIST_MAX}")
        letters = self._core.state.letters
        settled = len(letters.resent(group)) + len(letters.purged(group))
        if settled + len(queue_offsets) > SETTLED_MAX:
            raise FlowControl(
                f"{settled} dead letters of group {group} were settled one by one and are still in "
                f"their queue: at most {SETTLED_MAX}. Resend or purge all of them"
            )

    def _is_there(self, group: str, queue: Queue, queue_offset: int) -> bool:
        start, end = self._extent(queue)
        return start <= queue_offset < end and (
            queue_offset not in self._core.state.letters.purged(group)
        )

    def _extent(self, queue: Queue) -> tuple[int, int]:
        found = self._core.store.queues.get(*queue)
        return (found.start, found.end) if found else (0, 0)

    async def _load(
        self, queue: Queue, queue_offsets: Iterable[int], count: int = 1, bytes_max: int = 1
    ) -> None:
        """Before `_read` from each of these on."""
        ranges: list[tuple[int, int]] = []
        start, _ = self._extent(queue)
        for at in queue_offsets:
            place = (*queue, max(at, start))
            found = self._core.store.find(*place, messages_max=count, bytes_max=bytes_max)
            if isinstance(found, Found):
                ranges += found.log_ranges
        await self._core.page_in.load(ranges)

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


def _unpurged_from(queue_offset: int, purged: Collection[int]) -> int:
    return next(at for at in itertools.count(queue_offset) if at not in purged)


def _trim(queue: Queue, queue_offset: int) -> Command:
    start = QueuePosition(topic=queue.topic, queue_id=queue.queue_id, queue_offset=queue_offset)
    return Command(trim_queues=TrimQueues(starts=[start]))
