"""Leases while they are being decided: the handles that name them, the draft of their changes, and
the entry that a turn of decisions becomes.

    lease = number 8 | queue id 4 | topic          little-endian; the rest is UTF-8

The number of a lease is random, new with every grant, and never 0. It makes a handle valid; topic
and queue only say where to look the number up. Clients treat a lease as opaque bytes. Where a later
leader has to know whose lease it is, its highest 24 bits are a mark of the receiver. The lease of a
receive that is repeated if its answer was lost says of which attempt it is:

    number = mark 24 | attempt 32 | repetition 8             the first two are hashes

Requests of one turn are decided one after the other, each on the state that the ones before it
left. The draft copies the leases of a queue when they are changed first, and records the changes
for the command that does the same to the replicated state, on every node. The entry holds that
command, and the batches that are one atom with it: dead letters, and the results of messages that
are acknowledged. It is bounded; a request that does not fit goes into the next turn.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from mq import names
from mq.broker.attribution import Actor, Attribution
from mq.broker.queue import Queue
from mq.broker.retry.retries import Letter, attempts_before, dead_letters, stored_messages
from mq.broker.state.dedup import StoredAt
from mq.broker.state.leases import Leases, QueueLeases, Range
from mq.broker.state.machine import ProposedEntry
from mq.broker.state.state import State
from mq.errors import MessageTooLarge, MqError
from mq.store.batch import Batch
from mq.store.reading import Status
from mq.store.store import Store
from mq.wire.v1 import state_pb2 as pb
from mq.wire.v1.consumer_pb2 import Handle as WireHandle

_HEAD = struct.Struct("<QI")
_MARK_SHIFT = 40
_UNMARKED = (1 << _MARK_SHIFT) - 1
_REPETITION_BITS = 8
_REPETITION_MAX = (1 << _REPETITION_BITS) - 1
MARK_MAX = (1 << 64 - _MARK_SHIFT) - 1
# The topics of a group have a prefix before the longest name.
_LEASE_BYTES_MAX = _HEAD.size + 160
# Upper bounds of a change in its command, and of its queue.
CHANGE_BYTES = 60
QUEUE_BYTES = 320
_SINGLE_HOLDER_BYTES = 4
# A turn accepts requests up to so many bytes of the entry, and of messages that were read.
_ENTRY_BYTES = 1 << 20
_READ_BYTES = 8 << 20
# Around batches and the command in their entry.
_MARGIN_BYTES = 1 << 10
_BATCH_HEAD_BYTES = 8
# Messages that become one batch of dead letters.
_LETTERS_MAX = 128
_LETTERS_BYTES_MAX = 1 << 20

# Lease, visible_at_ms, attempts; None: done.
LeaseValue = tuple[int, int, int] | None

# -- handles --------------------------------------------------------------------------------------


class Handle(NamedTuple):
    """Messages [start, end) of one lease."""

    queue: Queue
    lease: int
    start: int
    end: int


def marked(number: int, mark: int) -> int:
    """The number of a lease, out of a random one. A mark of 0 is none: all bits are random then."""
    return (mark << _MARK_SHIFT | number & _UNMARKED if mark else number) or 1


def mark_of(lease: int) -> int:
    """Of a lease without a mark, any number."""
    return lease >> _MARK_SHIFT


def attempted(attempt: int, repetition: int) -> int:
    """The number of a lease of an attempt, which has the mark of its receiver."""
    return attempt << _REPETITION_BITS | repetition & _REPETITION_MAX


def attempt_of(lease: int) -> int:
    """Of a lease that is of no attempt, any number."""
    return lease >> _REPETITION_BITS


def lease_bytes(queue: Queue, number: int) -> bytes:
    return _HEAD.pack(number, queue.queue_id) + queue.topic.encode()


def parse_handles(wire: Iterable[WireHandle]) -> list[Handle | None]:
    """None for each handle that no broker made."""
    handles: list[Handle | None] = []
    for one in wire:
        found = _parse_lease(one.lease)
        if found is None:
            handles.append(None)
        else:
            start = one.queue_offset
            handles.append(Handle(*found, start, start + (one.count or 1)))
    return handles


# Messages that were given out together have one lease, and are acknowledged one by one.
@functools.lru_cache(maxsize=1_024)
def _parse_lease(lease: bytes) -> tuple[Queue, int] | None:
    if not _HEAD.size < len(lease) <= _LEASE_BYTES_MAX:
        return None
    number, queue_id = _HEAD.unpack_from(lease)
    try:
        topic = lease[_HEAD.size :].decode()
    except UnicodeDecodeError:
        return None
    # 0 is the lease of messages that no receiver has.
    return (Queue(topic, queue_id), number) if number else None


# -- the draft ------------------------------------------------------------------------------------


class _Changes:
    __slots__ = ("expected_next", "items")

    def __init__(self, expected_next: int | None) -> None:
        self.expected_next = expected_next
        # The last one: why it was given back, for traces.
        self.items: list[tuple[int, int, LeaseValue, str]] = []


class LeaseDraft:
    def __init__(self, leases: Leases, attribution: Attribution | None = None) -> None:
        self._leases = leases
        self._attribution = attribution
        # For traces: who has the leases that are new, and messages of a lease that several share.
        self.holders: dict[int, Actor] = {}
        self.single_holders: dict[tuple[Queue, int], Actor] = {}
        self._queues: dict[tuple[str, Queue], tuple[QueueLeases, _Changes]] = {}
        # Upper bound of the command.
        self.size_bytes = 0

    def get(self, group: str, queue: Queue) -> QueueLeases | None:
        """Read only: `put` changes it."""
        drafted = self._queues.get((group, queue))
        return self._leases.get(group, queue) if drafted is None else drafted[0]

    def begin(self, group: str, queue: Queue, queue_offset: int) -> None:
        """The group begins to receive from the queue at this offset."""
        changes = _Changes(None)
        self._queues[group, queue] = QueueLeases(queue_offset), changes
        self.size_bytes += QUEUE_BYTES
        if queue_offset:
            changes.items.append((0, queue_offset, None, ""))

    def put(
        self,
        group: str,
        queue: Queue,
        start: int,
        end: int,
        value: LeaseValue,
        reason: str = "",
    ) -> None:
        """As `QueueLeases.put`. The group must receive from the queue."""
        if start >= end:
            return
        key = group, queue
        drafted = self._queues.get(key)
        if drafted is None:
            known = self._leases.get(group, queue)
            if known is None:
                raise ValueError(f"group {group} does not receive from {queue}")
            drafted = QueueLeases(known.next, known.ranges), _Changes(known.next)
            self._queues[key] = drafted
            self.size_bytes += QUEUE_BYTES
        leases, changes = drafted
        leases.put(start, end, value)
        items = changes.items
        if items and items[-1][1:] == (start, value, reason):
            items[-1] = items[-1][0], end, value, reason
        else:
            items.append((start, end, value, reason))
            self.size_bytes += CHANGE_BYTES + 4 * len(reason)

    def command(self) -> pb.Command | None:
        """None if nothing changes."""
        if not self._queues:
            return None
        command = pb.Command()
        for (group, queue), (_, changes) in self._queues.items():
            wire = command.change_leases.queues.add(
                group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                next=changes.expected_next,
            )
            # Setting fields is twice as fast as making messages and adding copies of them.
            add = wire.changes.add
            for start, end, value, reason in changes.items:
                change = add()
                change.start, change.end = start, end
                if value is None:
                    change.is_done = True
                else:
                    change.lease, change.visible_at_ms, change.attempts = value
                    if value[0] in self.holders:
                        change.actors.extend(self._holders(queue, start, end, value[0]))
                    if reason:
                        change.reason = reason
        return command

    def _holders(self, queue: Queue, start: int, end: int, lease: int) -> list[int]:
        """The numbers of those who get [start, end) by a new lease."""
        if self._attribution is None:
            return []
        holder, singles = self.holders[lease], self.single_holders
        if (queue, start) not in singles:
            return self._attribution.numbers([holder])
        every = (singles.get((queue, at), holder) for at in range(start, end))
        return self._attribution.numbers(every)


# -- one turn -------------------------------------------------------------------------------------


class AtomicBatches(Protocol):
    """Batches that are written together with the acknowledgement of what they were made of."""

    @property
    def batches(self) -> Sequence[Batch]: ...

    def stored_before(self) -> list[StoredAt] | None:
        """Their positions if the same request was done before; None: they can be written now.
        Raises what is wrong with them.
        """
        ...

    def begin(self) -> None:
        """They are in the entry that is written next."""
        ...

    def end(self, stored: list[StoredAt], error: MqError | None) -> None:
        """The entry is applied, or has failed."""
        ...


class NextTurn(Exception):
    """The request does not fit into this turn."""


class LeaseTurn:
    def __init__(
        self,
        state: State,
        store: Store,
        now_ms: int,
        broker_set: str,
        entry_bytes_max: int,
        attribution: Attribution | None = None,
    ) -> None:
        self.draft = LeaseDraft(state.leases, attribution)
        self.now_ms = now_ms
        self.read_bytes = 0
        self._state = state
        self._store = store
        self._broker_set = broker_set
        self._entry_bytes_max = entry_bytes_max - _MARGIN_BYTES
        self._full_bytes = min(_ENTRY_BYTES, self._entry_bytes_max // 2)
        self._batches: list[Batch] = []
        self._batch_bytes = 0
        # Positions to fill in when the entry is applied, the batches they are of, and their owner.
        self._added: list[tuple[list[StoredAt], int, int, AtomicBatches | None]] = []
        self._entry: ProposedEntry | None = None

    def hold_single(self, queue: Queue, queue_offset: int, actor: Actor) -> None:
        """The message is this one's, of a lease that several share."""
        self.draft.single_holders[queue, queue_offset] = actor
        self.draft.size_bytes += _SINGLE_HOLDER_BYTES

    @property
    def is_full(self) -> bool:
        size_bytes = self.draft.size_bytes + self._batch_bytes
        return size_bytes >= self._full_bytes or self.read_bytes >= _READ_BYTES

    def fits(self, size_bytes: int) -> bool:
        return self.draft.size_bytes + self._batch_bytes + size_bytes <= self._entry_bytes_max

    def check_fits(self, size_bytes: int) -> None:
        """Raises NextTurn, or MessageTooLarge if no turn has room for it."""
        if self.fits(size_bytes):
            return
        if not self.draft.size_bytes and not self._batches:
            raise MessageTooLarge(
                f"{size_bytes} bytes are too large for one entry: at most {self._entry_bytes_max}"
            )
        raise NextTurn

    def add(self, batches: Sequence[Batch], owner: AtomicBatches | None = None) -> list[StoredAt]:
        """Returns a list that has the positions of the batches when the turn is over."""
        stored: list[StoredAt] = []
        self._added.append((stored, len(self._batches), len(batches), owner))
        self._batches += batches
        self._batch_bytes += entry_bytes(batches)
        return stored

    def to_dead_letters(self, group: str, queue: Queue, one: Range, reason: str) -> int:
        """Messages of the range become dead letters of the group, as many as fit; those that
        retention dropped are done. Returns the queue offset that it reached. The dead-letter topic
        must exist.
        """
        if names.dead_letter_topic(group) not in self._state.topics:
            return one.start
        result = self._store.read(
            *queue,
            one.start,
            bytes_max=_LETTERS_BYTES_MAX,
            messages_max=min(_LETTERS_MAX, one.end - one.start),
        )
        reached = one.start
        if result.status == Status.TOO_SMALL:
            reached = min(result.start, one.end)
        elif result.status == Status.NOTHING_MATCHED:  # lost: see `ReadResult.lost`
            reached = min(result.next_offset, one.end)
        elif result.status == Status.FOUND:
            letters = [
                Letter(stored, attempts_before(group, stored) + one.attempts, reason)
                for run in result.runs
                for stored in stored_messages(queue, run)
            ]
            for count in (len(letters), 1):
                batch = dead_letters(group, self._broker_set, letters[:count])
                if self.fits(entry_bytes([batch])):
                    self.add([batch])
                    reached = one.start + count
                    break
        self.draft.put(group, queue, one.start, reached, None)
        return reached

    def entry(self) -> ProposedEntry | None:
        """None if nothing changes."""
        command = self.draft.command()
        if command is not None or self._batches:
            self._entry = ProposedEntry(self._batches, command)
        return self._entry

    def over(self, error: MqError | None) -> None:
        """The entry is applied, or has failed."""
        for stored, first, count, owner in self._added:
            if error is None and self._entry is not None:
                stored.extend(self._entry.stored[first : first + count])
            if owner is not None:
                owner.end(stored, error)


def entry_bytes(batches: Sequence[Batch]) -> int:
    """Upper bound of what the batches take of an entry."""
    return sum(len(batch.data) + _BATCH_HEAD_BYTES for batch in batches)
