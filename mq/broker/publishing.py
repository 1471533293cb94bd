"""Batches of producers on their way into the log.

Each batch is checked, looked up among those that are stored or in flight, and joins the group that
is written next: all that arrives in one turn of the loop is one entry, one write, one sync. What is
in flight is bounded in bytes; a producer with more waits for room and is not refused. Batches of an
owner get it in order; owners that wait take turns, so that one with very much delays itself alone.
An owner with nothing in flight does not wait for the window, only for memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from mq.broker.attribution import NOBODY, Actor
from mq.broker.catalog import Catalog
from mq.broker.commit_window import CommitWindow
from mq.broker.fair_queue import QUANTUM_BYTES, FairQueue
from mq.broker.leading import Leadership
from mq.broker.state.dedup import StoredAt
from mq.broker.state.machine import Machine, ProposedEntry
from mq.broker.topic_counts import TopicCounts
from mq.broker.writing import EntryWriter
from mq.errors import (
    FlowControl,
    FlushTimeout,
    IllegalRequest,
    IllegalSequence,
    MqError,
    ReplicationTimeout,
)
from mq.logging import get_logger
from mq.names import NAME_CHARACTERS_MAX
from mq.store.batch import Batch
from mq.store.logreader import EntryRef
from mq.wire.v1.state_pb2 import Command, Provenance

log = get_logger(__name__)

# Raises if a batch may not be written. Returns for how long its sender should pause, in ms.
Admit: TypeAlias = Callable[[Batch], int]

# An entry is closed at this size; a larger batch is an entry of its own.
_GROUP_BYTES = 1 << 20
# Batches in flight, however small.
_IN_FLIGHT_MAX = 8_000
# `sequence + 1` must still fit into int64.
_SEQUENCE_MAX = (1 << 63) - 1
# Tag and length of a batch in its entry.
_BATCH_HEAD_BYTES = 6
# Upper bound of a number in `Provenance.senders`, with its share of what is around it.
_SENDER_BYTES = 8


class Slot:
    """A batch in flight. `outcome` is where it is stored, or why it is not; `on_outcome` is called
    with it in the same turn; `appended` is done when the leader has it in its log.
    """

    __slots__ = (
        "appended",
        "batch",
        "entry",
        "on_outcome",
        "outcome",
        "owner",
        "sender",
        "senders",
        "throttle_ms",
    )

    def __init__(
        self,
        batch: Batch,
        outcome: asyncio.Future[StoredAt],
        on_outcome: Callable[[StoredAt | MqError], None] | None = None,
        owner: str = "",
    ) -> None:
        self.batch = batch
        self.owner = owner
        self.outcome = outcome
        self.on_outcome = on_outcome
        self.appended: asyncio.Future[EntryRef] | None = None
        self.entry: ProposedEntry | None = None
        # For how long its sender should pause.
        self.throttle_ms = 0
        # For traces: whose it is, or whose its messages are.
        self.sender: Actor | None = None
        self.senders: Sequence[tuple[Actor, int]] = ()


class _Turn:
    """A batch that waits for room."""

    __slots__ = ("granted", "is_waiting", "owner", "size")

    def __init__(self, owner: str, size: int, granted: asyncio.Future[None]) -> None:
        self.owner = owner
        self.size = size
        self.granted = granted
        self.is_waiting = True


class Publisher:
    def __init__(
        self,
        writer: EntryWriter,
        machine: Machine,
        leadership: Leadership,
        catalog: Catalog,
        *,
        resolve: Callable[[Batch], Batch],
        window: CommitWindow,
        entry_bytes_max: int,
    ) -> None:
        """`resolve` normalizes a batch that is to be held back; it raises if that is illegal."""
        self._writer = writer
        self._machine = machine
        self._leadership = leadership
        self._catalog = catalog
        self._resolve = resolve
        self._window = window
        self._group_bytes = min(_GROUP_BYTES, entry_bytes_max)
        self._entry_bytes_max = entry_bytes_max - _BATCH_HEAD_BYTES
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Slot] = []
        self._under_way: dict[tuple[str, int], Slot] = {}
        self._in_flight = 0
        self._in_flight_bytes = 0
        # Batches in flight, by owner.
        self._owners: dict[str, int] = {}
        # What waits for room.
        self._room: FairQueue[_Turn] = FairQueue()
        # Those that were given room and have not run since.
        self._granted = self._granted_bytes = 0
        self._is_wake_due = False
        self.batches_total = self.messages_total = self.bytes_total = 0
        self.by_topic = TopicCounts(machine.state.topics)

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    def has_room(self, size: int) -> bool:
        """Whether so much more may be submitted now, before nothing that waits for room."""
        return not self._room.waiting and self._fits(size)

    async def room(self, size: int, timeout_s: float, owner: str = "") -> None:
        """Returns when so much more may be submitted: by a user, or by a connection without one,
        which is then named to `submit`. FlowControl when that takes too long.
        """
        owners = self._owners
        if owners and (len(owners) > 1 or owner not in owners):
            self._window.share()
        if self.has_room(size) or self._is_sparse(owner, size):
            return
        turn = _Turn(owner, size, self._loop.create_future())
        self._room.add(owner, turn, size)
        self._wake()
        try:
            async with asyncio.timeout(timeout_s):
                await turn.granted
        except TimeoutError:
            raise FlowControl(
                f"{self._in_flight_bytes} bytes wait to be committed, and there was no room for "
                f"{size} more in {timeout_s:.0f} s: the disk or the other nodes are too slow"
            ) from None
        finally:
            if turn.is_waiting:
                self._room.remove(owner, turn, is_served=False)
            else:
                # The room is the caller's from here on, which submits before anything else runs.
                self._granted -= 1
                self._granted_bytes -= size
            self._wake_soon()

    def submit(
        self,
        batch: Batch,
        *,
        tells_appended: bool = False,
        on_outcome: Callable[[StoredAt | MqError], None] | None = None,
        admit: Admit | None = None,
        owner: str = "",
        sender: Actor | None = None,
        senders: Sequence[tuple[Actor, int]] = (),
    ) -> Slot:
        """Never waits. Raises if the batch is illegal; then nothing was written. `on_outcome` is
        for batches without a producer id, which are never known before. `admit` is not asked about
        those that are. `sender` is for traces; `senders` in its place, if there are several: each
        with the number of its messages, in their order.
        """
        self._leadership.check()
        if batch.producer_id:
            # Before its queue is looked at: one that is stored stays so, also when the queue is
            # closed or gone by now, and must not be sent elsewhere.
            known = self._known(batch)
            if known is not None:
                return known
        elif batch.sequence:
            raise IllegalRequest("a sequence needs a producer_id")
        self._catalog.writable(batch.topic, batch.queue_id)
        throttle_ms = admit(batch) if admit is not None else 0
        if batch.is_held or batch.delay_ms:
            batch = self._resolve(batch)
        slot = self.begin(batch, on_outcome, owner)
        slot.sender, slot.senders = sender, senders
        if throttle_ms:
            slot.throttle_ms = throttle_ms
        if tells_appended:
            slot.appended = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self.write)
        self._waiting.append(slot)
        return slot

    def check_new(self, batch: Batch) -> None:
        """Whether a batch with a number, which is not stored, could be written now. IllegalRequest,
        IllegalSequence, and whatever is wrong with its queue.
        """
        self.check_new_number(batch)
        self._catalog.writable(batch.topic, batch.queue_id)

    def check_new_number(self, batch: Batch) -> None:
        """As `check_new`, for a batch that the broker writes in the name of a producer."""
        _check_number(batch)
        if (batch.producer_id, batch.sequence) in self._under_way:
            raise IllegalSequence(
                f"batch {batch.sequence} of producer {batch.producer_id} is on its way already, by "
                "itself: send it one way only"
            )
        self._machine.state.producers.check(batch.producer_id, batch.sequence)

    def begin(
        self,
        batch: Batch,
        on_outcome: Callable[[StoredAt | MqError], None] | None = None,
        owner: str = "",
    ) -> Slot:
        """The batch is in flight, and known as such, until `end`: for callers that write it in an
        entry of their own.
        """
        slot = Slot(batch, self._loop.create_future(), on_outcome, owner)
        self._owners[owner] = self._owners.get(owner, 0) + 1
        if batch.producer_id:
            self._under_way[batch.producer_id, batch.sequence] = slot
        self._in_flight += 1
        self._in_flight_bytes += len(batch.data)
        return slot

    def timed_out(self, slot: Slot) -> MqError:
        """The error for a send without an outcome so far."""
        ref = slot.entry.ref if slot.entry else None
        durable = self._machine.store.log.durable_index
        if ref is not None and ref.raft_index > durable:
            return FlushTimeout(
                f"entry {ref.raft_index} is not on this leader's disk yet: it may become part of "
                "the log or not"
            )
        return ReplicationTimeout(
            "no majority of the broker set had the batch in time: it may become part of the log or "
            "not"
        )

    def _known(self, batch: Batch) -> Slot | None:
        _check_number(batch)
        producer_id, sequence = batch.producer_id, batch.sequence
        slot = self._under_way.get((producer_id, sequence))
        if slot is not None:
            return slot
        producers = self._machine.state.producers
        stored = producers.find(producer_id, sequence)
        if stored is None:
            producers.check(producer_id, sequence)
            return None
        slot = Slot(batch, self._loop.create_future())
        slot.outcome.set_result(stored)
        return slot

    # -- the group --------------------------------------------------------------------------------

    def write(self) -> None:
        """Everything that was submitted, as few entries as its size allows: at the end of a turn,
        or now, by a caller that knows of no more to come.
        """
        if not self._waiting:
            return
        slots, self._waiting = self._waiting, []
        first, size = 0, 0
        for at, slot in enumerate(slots):
            length = len(slot.batch.data) + _BATCH_HEAD_BYTES
            if size and size + length > self._group_bytes:
                self._propose(slots[first:at], size)
                first, size = at, 0
            size += length
        self._propose(slots[first:], size)

    def _propose(self, slots: list[Slot], size: int) -> None:
        batches = [slot.batch for slot in slots]
        told = [slot.appended for slot in slots if slot.appended is not None]
        senders = self._attributed(slots)
        command = None
        if senders and size + _SENDER_BYTES * len(senders) < self._entry_bytes_max:
            command = Command(provenance=Provenance(senders=senders))
        entry = ProposedEntry(batches, command, _teller(told) if told else None)
        for slot in slots:
            slot.entry = entry
        timed = self._window.propose(size)

        def done(error: MqError | None) -> None:
            self._window.end(timed, is_committed=error is None)
            self.end(slots, entry.stored, error)

        self._writer.propose(entry, done)

    def _attributed(self, slots: list[Slot]) -> list[int]:
        """`Provenance.senders` of the batches; empty: there is nothing to say."""
        attribution, is_known = self._writer.attribution, False
        found: list[int] = []
        for slot in slots:
            producer_id, sender = slot.batch.producer_id, slot.sender
            if producer_id:
                if sender is not None:
                    attribution.producer(producer_id, sender)
                continue
            for actor, count in slot.senders or ((sender or NOBODY, slot.batch.message_count),):
                number = attribution.number(actor)
                is_known = is_known or number > 0
                found += number, count
        return found if is_known else []

    def end(self, slots: list[Slot], stored: Sequence[StoredAt], error: MqError | None) -> None:
        """The batches are applied, or failed with this error."""
        for at, slot in enumerate(slots):
            batch, outcome = slot.batch, slot.outcome
            if batch.producer_id:
                self._under_way.pop((batch.producer_id, batch.sequence), None)
            self._in_flight_bytes -= len(batch.data)
            owner = slot.owner
            if count := self._owners[owner] - 1:
                self._owners[owner] = count
            else:
                del self._owners[owner]
            if error is None:
                self.batches_total += 1
                self.messages_total += batch.message_count
                self.bytes_total += len(batch.data)
                self.by_topic.add(batch.topic, batch.message_count, len(batch.data))
                outcome.set_result(stored[at])
                self._tell(slot, stored[at])
            else:
                outcome.set_exception(error)
                # Retrieve the exception so that asyncio does not warn: the caller may have gone.
                outcome.exception()
                if slot.appended is not None and not slot.appended.done():
                    slot.appended.set_exception(error)
                    slot.appended.exception()
                self._tell(slot, error)
        self._in_flight -= len(slots)
        self._wake()

    def _tell(self, slot: Slot, outcome: StoredAt | MqError) -> None:
        # It may hold the slot: such a circle would wait for the cycle collector, with its batch.
        tell, slot.on_outcome = slot.on_outcome, None
        if tell is None:
            return
        try:
            tell(outcome)
        except Exception:
            # One mistake must not leave the other batches without an outcome.
            log.exception("a sender failed on its outcome")

    def _fits(self, size: int) -> bool:
        """One batch may go beyond the window, or none that is larger ever would."""
        return self._in_flight + self._granted == 0 or (
            self._in_flight_bytes + self._granted_bytes < self._window.bytes
            and self._is_bounded(size)
        )

    def _is_bounded(self, size: int) -> bool:
        taken_bytes = self._in_flight_bytes + self._granted_bytes
        return (
            taken_bytes + size <= self._window.bytes_max
            and self._in_flight + self._granted < _IN_FLIGHT_MAX
        )

    def _is_sparse(self, owner: str, size: int) -> bool:
        """A small batch of an owner that has nothing in flight, and nothing that waits."""
        return (
            size <= QUANTUM_BYTES
            and owner not in self._owners
            and owner not in self._room
            and self._is_bounded(size)
        )

    def _wake_soon(self) -> None:
        """When what was just given room is submitted."""
        if self._room.waiting and not self._is_wake_due:
            self._is_wake_due = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Gives room to those that wait, as far as there is some."""
        self._is_wake_due = False
        room = self._room
        while room.waiting and (first := room.first()) is not None and self._fits(first.size):
            room.remove(first.owner, first, is_served=True)
            first.is_waiting = False
            self._granted += 1
            self._granted_bytes += first.size
            if not first.granted.done():  # else its caller is about to give it back
                first.granted.set_result(None)


def _check_number(batch: Batch) -> None:
    producer_id, sequence = batch.producer_id, batch.sequence
    if not 0 < len(producer_id) <= NAME_CHARACTERS_MAX or not producer_id.isprintable():
        raise IllegalRequest(
            f"a producer has an id of 1 to {NAME_CHARACTERS_MAX} printable characters"
        )
    if not 1 <= sequence <= _SEQUENCE_MAX:
        raise IllegalRequest(
            f"sequence = {sequence}: a producer numbers its batches from 1 on, up to 2^63 - 1"
        )


def _teller(told: list[asyncio.Future[EntryRef]]) -> Callable[[EntryRef], None]:
    def tell(ref: EntryRef) -> None:
        for future in told:
            if not future.done():
                future.set_result(ref)

    return tell
