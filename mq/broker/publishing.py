"""Batches of producers on their way into the log.

Each batch is checked, looked up among those that are stored or in flight, and joins the group that
is written next: all that arrives in one turn of the loop is one entry, one write, one sync. What is
in flight is bounded in bytes; a producer with more waits for room and is not refused. Batches of an
owner get it in order; owners that wait take turns, so that one with very much delays itself alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from mq.broker.catalog import Catalog
from mq.broker.fair_queue import FairQueue
from mq.broker.leading import Leadership
from mq.broker.state.dedup import StoredAt
from mq.broker.state.machine import Machine, ProposedEntry
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


class Slot:
    """A batch in flight. `outcome` is where it is stored, or why it is not; `on_outcome` is called
    with it in the same turn; `appended` is done when the leader has it in its log.
    """

    __slots__ = ("appended", "batch", "entry", "on_outcome", "outcome", "throttle_ms")

    def __init__(
        self,
        batch: Batch,
        outcome: asyncio.Future[StoredAt],
        on_outcome: Callable[[StoredAt | MqError], None] | None = None,
    ) -> None:
        self.batch = batch
        self.outcome = outcome
        self.on_outcome = on_outcome
        self.appended: asyncio.Future[EntryRef] | None = None
        self.entry: ProposedEntry | None = None
        # For how long its sender should pause.
        self.throttle_ms = 0


class Publisher:
    def __init__(
        self,
        writer: EntryWriter,
        machine: Machine,
        leadership: Leadership,
        catalog: Catalog,
        *,
        resolve: Callable[[Batch], Batch],
        in_flight_bytes_max: int,
        entry_bytes_max: int,
    ) -> None:
        """`resolve` normalizes a batch that is to be held back; it raises if that is illegal."""
        self._writer = writer
        self._machine = machine
        self._leadership = leadership
        self._catalog = catalog
        self._resolve = resolve
        self._bytes_max = in_flight_bytes_max
        self._group_bytes = min(_GROUP_BYTES, entry_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Slot] = []
        self._under_way: dict[tuple[str, int], Slot] = {}
        self._in_flight = 0
        self._in_flight_bytes = 0
        # What waits for room.
        self._room: FairQueue[asyncio.Event] = FairQueue()
        self.batches_total = self.messages_total = self.bytes_total = 0

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    def has_room(self, size: int) -> bool:
        """Whether so much more may be submitted now, before nothing that waits for room."""
        return not self._room.waiting and self._fits(size)

    async def room(self, size: int, timeout_s: float, owner: str = "") -> None:
        """Returns when so much more may be submitted: by a user, or by a connection without one.
        FlowControl when that takes too long.
        """
        if self.has_room(size):
            return
        turn, is_served = asyncio.Event(), False
        self._room.add(owner, turn, size)
        try:
            async with asyncio.timeout(timeout_s):
                while self._room.first() is not turn or not self._fits(size):
                    turn.clear()
                    await turn.wait()
            is_served = True
        except TimeoutError:
            raise FlowControl(
                f"{self._in_flight_bytes} bytes wait to be committed, and there was no room for "
                f"{size} more in {timeout_s:.0f} s: the disk or the other nodes are too slow"
            ) from None
        finally:
            self._room.remove(owner, turn, is_served=is_served)
            self._wake()

    def submit(
        self,
        batch: Batch,
        *,
        tells_appended: bool = False,
        on_outcome: Callable[[StoredAt | MqError], None] | None = None,
        admit: Admit | None = None,
    ) -> Slot:
        """Never waits. Raises if the batch is illegal; then nothing was written. `on_outcome` is
        for batches without a producer id, which are never known before. `admit` is not asked about
        those that are.
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
        slot = self.begin(batch, on_outcome)
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
        _check_number(batch)
        if (batch.producer_id, batch.sequence) in self._under_way:
            raise IllegalSequence(
                f"batch {batch.sequence} of producer {batch.producer_id} is on its way already, by "
                "itself: send it one way only"
            )
        self._machine.state.producers.check(batch.producer_id, batch.sequence)
        self._catalog.writable(batch.topic, batch.queue_id)

    def begin(
        self, batch: Batch, on_outcome: Callable[[StoredAt | MqError], None] | None = None
    ) -> Slot:
        """The batch is in flight, and known as such, until `end`: for callers that write it in an
        entry of their own.
        """
        slot = Slot(batch, self._loop.create_future(), on_outcome)
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
                self._propose(slots[first:at])
                first, size = at, 0
            size += length
        self._propose(slots[first:])

    def _propose(self, slots: list[Slot]) -> None:
        batches = [slot.batch for slot in slots]
        told = [slot.appended for slot in slots if slot.appended is not None]
        entry = ProposedEntry(batches, on_appended=_teller(told) if told else None)
        for slot in slots:
            slot.entry = entry
        self._writer.propose(entry, partial(self.end, slots, entry.stored))

    def end(self, slots: list[Slot], stored: Sequence[StoredAt], error: MqError | None) -> None:
        """The batches are applied, or failed with this error."""
        for at, slot in enumerate(slots):
            batch, outcome = slot.batch, slot.outcome
            if batch.producer_id:
                self._under_way.pop((batch.producer_id, batch.sequence), None)
            self._in_flight_bytes -= len(batch.data)
            if error is None:
                self.batches_total += 1
                self.messages_total += batch.message_count
                self.bytes_total += len(batch.data)
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
        if slot.on_outcome is None:
            return
        try:
            slot.on_outcome(outcome)
        except Exception:
            # One mistake must not leave the other batches without an outcome.
            log.exception("a sender failed on its outcome")

    def _fits(self, size: int) -> bool:
        is_bounded = self._in_flight_bytes + size <= self._bytes_max
        return self._in_flight == 0 or (is_bounded and self._in_flight < _IN_FLIGHT_MAX)

    def _wake(self) -> None:
        if self._room.waiting and (first := self._room.first()) is not None:
            first.set()


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
