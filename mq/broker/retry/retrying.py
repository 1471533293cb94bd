"""Messages that failed at a consumer: back on the group's retry topic after a while, or given up.

A request is one entry: copies for `%RETRY%<group>`, which are held back until they are due, those
that failed too often for `%DLQ%<group>`, and the group's progress as far as they make some. The
first batch of it carries the member's number of the request, so that one that comes again, also
after a fail-over, is found among what is stored and is not written twice. What is under way on this
leader is remembered here until it is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mq import names
from mq.broker.attribution import Actor
from mq.broker.consumer.commits import Commits
from mq.broker.consumer.groups import Groups
from mq.broker.core import Core, Service
from mq.broker.held import DELIVERY_ROOM_BYTES
from mq.broker.queue import Queue
from mq.broker.retry import retries
from mq.broker.retry.origins import batch_of
from mq.broker.state.dedup import StoredAt
from mq.errors import (
    IllegalDelay,
    IllegalRequest,
    MessageNotFound,
    MessageTooLarge,
    MqError,
    NotAssigned,
)
from mq.levels import DELAY_MS_MAX
from mq.store.batch import Batch
from mq.store.lookup import StoredMessage
from mq.store.reading import Found, Status
from mq.store.store import Store
from mq.wire.v1.consumer_pb2 import MODE_CLUSTERING, FailedMessage, QueuePosition
from mq.wire.v1.message_pb2 import Message
from mq.wire.v1.state_pb2 import Command, CommitPositions, GroupPositions

FAILED_MAX = 1_000
# The headers of batches, beside their messages.
_ENTRY_OVERHEAD_BYTES = 64 << 10
# Tag and length of a batch in its entry.
_BATCH_HEAD_BYTES = 6
_SEQUENCE_MAX = (1 << 63) - 1
# How often a request waits for progress that is on its way into the log: a consumer that reports
# all the time must not hold it up.
_FLUSHES_MAX = 3


class MessagePosition(NamedTuple):
    """The position of a message in its queue."""

    queue: Queue
    queue_offset: int

    @classmethod
    def of(cls, failed: FailedMessage) -> MessagePosition:
        return cls(Queue(failed.topic, failed.queue_id), failed.queue_offset)


class Failed(NamedTuple):
    """A message as delivered, its wanted delay (None: by its attempts), and the reason."""

    place: MessagePosition
    delay_ms: int | None = None
    reason: str = ""

    @property
    def queue(self) -> Queue:
        return self.place.queue


class RetryResult(NamedTuple):
    """The outcome for one message; with `error`, nothing was done."""

    error: MqError | None = None
    # Failures so far.
    attempts: int = 0
    # The time of the next delivery; 0: it is a dead letter.
    deliver_at_ms: int = 0


class _RetryPlan(NamedTuple):
    """The plan for one request: copies by due time, 0: at once; None: to the dead letters."""

    results: list[RetryResult]
    copies: dict[int | None, list[Message]]


class Retrying(Service):
    def __init__(self, core: Core, groups: Groups, commits: Commits) -> None:
        self._core = core
        self._groups = groups
        self._commits = commits
        # Requests whose entries are under way, by their id and number.
        self._under_way: dict[tuple[str, int], asyncio.Future[list[RetryResult]]] = {}

    async def retry(
        self, group: str, member_id: str, sequence: int, failed: Sequence[Failed]
    ) -> list[RetryResult]:
        """One result a message, durable when this returns. `sequence` 0: it may be done twice.

        UnknownMember, IllegalRequest, IllegalDelay, MessageTooLarge: nothing was written. Else as
        `Consensus.propose`: the same request again is done once.
        """
        self._core.leadership.check()
        _check(group, sequence, failed)
        key = retries.request_id(group, member_id), sequence
        if sequence:
            # First of all: a request that was done stays done, also if its queue has moved since.
            running = self._under_way.get(key)
            if running is not None:
                return await asyncio.shield(running)
            stored = self._core.state.producers.find(*key)
            if stored is not None:
                return self._results_of(group, stored, failed)
        work = asyncio.ensure_future(self._write(group, member_id, key, failed))
        if sequence:
            self._under_way[key] = work
            work.add_done_callback(lambda _: self._under_way.pop(key, None))
        # A caller may be cancelled: the request stays known until its entry is applied.
        return await asyncio.shield(work)

    def retries_max(self, group: str) -> int:
        """The number set for the group, or the configured one."""
        own = self._core.state.offsets.retries_max(group)
        return self._core.settings.config.broker.retries_max if own is None else own

    # -- one request ------------------------------------------------------------------------------

    async def _write(
        self, group: str, member_id: str, key: tuple[str, int], failed: Sequence[Failed]
    ) -> list[RetryResult]:
        queues = {one.queue for one in failed}
        await self._core.page_in.load(log_ranges(self._core.store, [one.place for one in failed]))
        flushes = _FLUSHES_MAX
        while True:
            # Checked again after each wait, so that the decision is on the current state. A member
            # that comes back to a new leader keeps its queues: it must not hear that it lost them.
            self._core.leadership.check()
            stored = self._core.state.producers.find(*key) if key[1] else None
            if stored is not None:
                return self._results_of(group, stored, failed)
            actor = self._check_member(group, member_id)
            refused = self._refused(group, member_id, failed)
            plan = self._plan(group, failed, self._core.now_ms(), refused)
            batches = _batches(group, plan.copies, *key)
            room = self._room_beside(batches)
            missing = {one.topic for one in batches if one.topic not in self._core.state.topics}
            if missing:
                for topic in sorted(missing):
                    await self._core.catalog.ensure_internal(topic)
            elif batches and flushes and self._commits.is_pending(group, queues):
                flushes -= 1
                await self._commits.flush()
            else:
                break
        if batches:
            attribution = self._core.writer.attribution
            if key[1]:
                attribution.producer(key[0], actor)
            command = self._acknowledged(group, failed, plan.results)
            if command is not None:
                command.commit_positions.groups[0].actors.extend(attribution.numbers([actor]))
            fits = command is not None and command.ByteSize() <= room
            await self._core.writer.write(command if fits else None, batches)
        return plan.results

    def _acknowledged(
        self, group: str, failed: Sequence[Failed], results: Sequence[RetryResult]
    ) -> Command | None:
        """A message that stands right where the group is, is done by the same entry: a consumer
        that is lost before it reports it does not leave it to be delivered twice. Those behind
        others that are not done have to wait for these. So has a queue whose progress is still on
        its way: that would land behind this entry, and undo it.
        """
        done = {one.place for one, result in zip(failed, results, strict=True) if not result.error}
        positions = []
        for queue in sorted({place.queue for place in done}):
            if self._commits.is_pending(group, [queue]):
                continue
            begin = at = self._groups.position(group, queue)
            while at is not None and MessagePosition(queue, at) in done:
                at += 1
            if at != begin:
                positions.append(
                    QueuePosition(topic=queue.topic, queue_id=queue.queue_id, queue_offset=at)
                )
        if not positions:
            return None
        commit = GroupPositions(group=group, positions=positions)
        return Command(commit_positions=CommitPositions(groups=[commit]))

    def _check_member(self, group: str, member_id: str) -> Actor:
        """The member. Raises UnknownMember; IllegalRequest where messages are retried in place."""
        spec = self._groups.member(group, member_id).spec
        if spec.mode != MODE_CLUSTERING:
            raise IllegalRequest(
                f"group {group} is ordered or broadcast: its members try messages again in place"
            )
        return spec.actor(group)

    def _room_beside(self, batches: Sequence[Batch]) -> int:
        """The room that the messages leave in their entry. Raises MessageTooLarge for a message
        that is nearly as large as an entry, with its origin: it could be stored, and never be
        delivered.
        """
        bytes_max = self._core.settings.config.store.entry_bytes_max - DELIVERY_ROOM_BYTES
        size = sum(len(one.data) + _BATCH_HEAD_BYTES for one in batches)
        if size > bytes_max:
            raise MessageTooLarge(
                f"{size} bytes, with what is said of the origin, do not fit one entry of "
                f"{bytes_max} bytes: try such a message again in place"
            )
        return bytes_max - size

    def _refused(
        self, group: str, member_id: str, failed: Sequence[Failed]
    ) -> Mapping[Queue, MqError]:
        """Queues that the member does not have."""
        return {
            queue: NotAssigned(
                f"queue {queue.queue_id} of {queue.topic} is not assigned to {member_id} in group "
                f"{group}"
            )
            for queue in {one.queue for one in failed}
            if self._groups.owner(group, queue) != member_id
        }

    def _results_of(
        self, group: str, stored: StoredAt, failed: Sequence[Failed]
    ) -> list[RetryResult]:
        """The results of a request that was done before, as far as they are still known."""
        return self._plan(group, failed, stored.stored_at_ms or self._core.now_ms(), {}).results

    def _plan(
        self, group: str, failed: Sequence[Failed], now_ms: int, refused: Mapping[Queue, MqError]
    ) -> _RetryPlan:
        config, retries_max = self._core.settings.config, self.retries_max(group)
        bytes_max = config.store.entry_bytes_max - _ENTRY_OVERHEAD_BYTES
        wanted = {one.place: one for one in failed if one.queue not in refused}
        results: dict[MessagePosition, RetryResult] = {}
        copies: dict[int | None, list[Message]] = {}
        for message in read_messages(self._core.store, wanted, bytes_max):
            place = MessagePosition(Queue(message.topic, message.queue_id), message.queue_offset)
            _, delay_ms, reason = wanted[place]
            attempts = 1 + retries.attempts_before(group, message)
            wait_ms = retries.next_step(attempts, retries_max, delay_ms)
            copy = retries.failed_copy(message, config.node.broker_set, attempts, reason)
            # What comes back at once is not held back.
            due_ms = now_ms + wait_ms if wait_ms else wait_ms
            copies.setdefault(due_ms, []).append(copy)
            at_ms = 0 if wait_ms is None else now_ms + wait_ms
            results[place] = RetryResult(None, attempts, at_ms)
        told = [
            results.get(one.place) or RetryResult(refused.get(one.queue) or _not_found(one.place))
            for one in failed
        ]
        return _RetryPlan(told, copies)


def _check(group: str, sequence: int, failed: Sequence[Failed]) -> None:
    names.check_group(group)
    if not 0 <= sequence <= _SEQUENCE_MAX:
        raise IllegalRequest(f"sequence = {sequence}: at most 2^63 - 1")
    if len(failed) > FAILED_MAX:
        raise IllegalRequest(f"{len(failed)} messages in one request: at most {FAILED_MAX}")
    for one in failed:
        if one.delay_ms is not None and not 0 <= one.delay_ms <= DELAY_MS_MAX:
            raise IllegalDelay(f"delay_ms = {one.delay_ms}: 0 to {DELAY_MS_MAX}, which is 40 days")


def _not_found(place: MessagePosition) -> MessageNotFound:
    queue, queue_offset = place
    return MessageNotFound(
        f"there is no message {queue_offset} in queue {queue.queue_id} of {queue.topic}, or it "
        "is gone"
    )


def _batches(
    group: str, copies: Mapping[int | None, list[Message]], producer_id: str, sequence: int
) -> list[Batch]:
    """One batch for each due time. The first one carries the id of the request."""
    batches: list[Batch] = []
    for due_ms, messages in copies.items():
        is_dead = due_ms is None
        topic = names.dead_letter_topic(group) if is_dead else names.retry_topic(group)
        is_first = sequence and not batches
        header = {"producer_id": producer_id, "sequence": sequence} if is_first else {}
        batches.append(batch_of(topic, 0, messages, deliver_at_ms=due_ms or 0, **header))
    return batches


def read_messages(
    store: Store, places: Iterable[MessagePosition], bytes_max: int
) -> Iterator[StoredMessage]:
    """Reads the messages that exist. Raises MessageTooLarge if their copies would not fit one
    entry.
    """
    room, count = bytes_max, 0
    for queue, queue_offset, end in _stretches(places):
        at = queue_offset
        while at < end:
            result = store.read(*queue, at, messages_max=end - at, bytes_max=max(1, room))
            if result.status not in (Status.FOUND, Status.TOO_SMALL, Status.NOTHING_MATCHED):
                break
            for run in result.runs:
                count += run.message_count
                room -= len(run.frames) + run.message_count * retries.COPY_OVERHEAD_BYTES
                # One alone is looked at when it is ready.
                if room < 0 and count > 1:
                    raise MessageTooLarge(
                        f"the messages of one request must fit one entry of {bytes_max} bytes: "
                        "send fewer of them in one request"
                    )
                yield from retries.stored_messages(queue, run)
            at = result.next_offset


def log_ranges(store: Store, places: Iterable[MessagePosition]) -> Iterator[tuple[int, int]]:
    """Where the messages stand that exist."""
    for queue, queue_offset, end in _stretches(places):
        found = store.find(*queue, queue_offset, messages_max=end - queue_offset)
        if isinstance(found, Found):
            yield from found.log_ranges


def _stretches(places: Iterable[MessagePosition]) -> Iterator[tuple[Queue, int, int]]:
    """Queue offsets [start, end) of neighbours: one read for all of them."""
    first: MessagePosition | None = None
    end = 0
    for place in sorted(places):
        if first is None or place != (first.queue, end):
            if first is not None:
                yield *first, end
            first = place
        end = place.queue_offset + 1
    if first is not None:
        yield *first, end
