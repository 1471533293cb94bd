"""Parts of queues and of the key index, made again from the log.

What was applied follows from the log alone: a batch that is visible takes the next queue offsets of
its queue, and its keys the next items of the index. So a part needs the entries it was made of and
a place to count from: a unit that is known, or the checkpoint that opens a segment. The queue of a
batch with a delivery time depends on the state of the broker as well; that is replayed from
the same checkpoint (`HeldReplay`).

Reads only. LogDamaged: an entry that is needed is not what was written.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from mq.errors import QueueDamaged
from mq.names import HALF_TOPIC, SCHEDULE_TOPIC
from mq.store import checkpoint
from mq.store.batch import Batch, Decoded, decode_payload
from mq.store.consumequeue import UNIT, Units, message_units
from mq.store.format import Kind
from mq.store.holding import HeldQueue, default_held_queue, held_unit
from mq.store.keyindex import ITEM, FillingFile, Header, batch_keys
from mq.store.logreader import Entry, LogReader


class HeldReplay(Protocol):
    """Tells again which queue each held batch was put into. Sees all entries behind a checkpoint,
    in order.
    """

    def held_queue_for(self, batch: Batch) -> HeldQueue: ...

    def command(self, data: bytes) -> None:
        """Applied after the batches of its entry."""
        ...


# Makes a replay from the broker state of a checkpoint.
StartHeldReplay = Callable[[bytes], HeldReplay]


class DefaultHeldReplay:
    """The replay of a store without a broker: no command moves a lane."""

    def __init__(self, broker_state: bytes = b"") -> None:
        pass

    def held_queue_for(self, batch: Batch) -> HeldQueue:
        return default_held_queue(batch)

    def command(self, data: bytes) -> None:
        pass


class Stretch(NamedTuple):
    """Units [start, end) of a queue."""

    topic: str
    queue_id: int
    start: int
    end: int


class KnownUnit(NamedTuple):
    queue_offset: int
    log_offset: int


class _Origin(NamedTuple):
    """The start of a rebuild: the first unit of the queue at `log_offset` or behind it, in the
    entries from `raft_index` on, has this queue offset.
    """

    raft_index: int
    log_offset: int
    queue_offset: int
    replay: HeldReplay


def rebuild_units(
    log: LogReader,
    wanted: Stretch,
    known: KnownUnit | None,
    start_held_replay: StartHeldReplay,
    on_entry: Callable[[], None],
) -> Units:
    """`known` is a unit before the stretch, the nearer the less is read. `on_entry` is called often
    and may raise. QueueDamaged: the log does not have as many messages of the queue.
    """
    origin = _origin(log, wanted, known, start_held_replay)
    found = np.zeros(wanted.end - wanted.start, UNIT)
    queue_offset = origin.queue_offset
    name = wanted.topic.encode() if wanted.topic not in (SCHEDULE_TOPIC, HALF_TOPIC) else b""
    for entry in log.entries(origin.raft_index, log.last_index + 1):
        on_entry()
        for units in _units_of(entry, wanted, name, origin.replay):
            rows = units[units["log_offset"] >= np.uint64(origin.log_offset)]
            _put(found, rows, queue_offset - wanted.start)
            queue_offset += len(rows)
        if queue_offset >= wanted.end:
            return found
    raise QueueDamaged(
        f"queue {wanted.queue_id} of topic {wanted.topic} has messages up to {wanted.end - 1}, the "
        f"log only up to {queue_offset - 1}"
    )


def _put(found: Units, rows: Units, at: int) -> None:
    """Rows that stand at this place, as far as it is inside."""
    first, end = max(0, -at), min(len(rows), len(found) - at)
    if first < end:
        found[at + first : at + end] = rows[first:end]


def _units_of(entry: Entry, wanted: Stretch, name: bytes, replay: HeldReplay) -> list[Units]:
    """The units of the queue in one entry."""
    ref, payload = entry
    if ref.kind == Kind.COMMAND and not name:
        replay.command(bytes(payload))
    # Most entries are of other topics: looking for the name is much cheaper than parsing.
    if ref.kind != Kind.MESSAGES or (name and name not in bytes(payload)):
        return []
    decoded = decode_payload(payload, ref.payload_log_offset)
    found = [
        units
        for batch, at in decoded.batches
        if (units := _unit_of(batch, at, wanted, replay)) is not None
    ]
    if decoded.command and not name:
        replay.command(decoded.command)
    return found


def _unit_of(batch: Batch, log_offset: int, wanted: Stretch, replay: HeldReplay) -> Units | None:
    place = wanted.topic, wanted.queue_id
    if not batch.is_held:
        return message_units(batch, log_offset) if place == batch[:2] else None
    held = replay.held_queue_for(batch)
    return held_unit(batch, log_offset, held.mark) if place == held[:2] else None


def _origin(
    log: LogReader,
    wanted: Stretch,
    known: KnownUnit | None,
    start_held_replay: StartHeldReplay,
) -> _Origin:
    # The mark of a unit in a lane depends on what the broker had delivered then.
    if known is not None and wanted.topic != SCHEDULE_TOPIC:
        raft_index = log.index_at(known.log_offset)
        return _Origin(raft_index, known.log_offset, known.queue_offset, DefaultHeldReplay())
    indexes = log.checkpoint_indexes
    newest = bisect.bisect_right(
        indexes, wanted.start, key=lambda one: _opening(log, one, wanted).queue_offset
    )
    if newest == 0:
        raise QueueDamaged(
            f"queue {wanted.queue_id} of topic {wanted.topic}: the log does not go back to "
            f"{wanted.start}"
        )
    raft_index = indexes[newest - 1]
    opening = _opening(log, raft_index, wanted)
    # The checkpoint itself has no units.
    return _Origin(raft_index, 0, opening.queue_offset, start_held_replay(opening.broker_state))


class _Opening(NamedTuple):
    queue_offset: int  # where the queue ends
    broker_state: bytes


def _opening(log: LogReader, raft_index: int, wanted: Stretch) -> _Opening:
    """By the checkpoint that opens a segment."""
    queues, broker_state = checkpoint.decode_entry(log.entry(raft_index).payload)
    place = wanted.topic, wanted.queue_id
    return _Opening(next((one.end for one in queues if one[:2] == place), 0), broker_state)


def rebuild_index_file(log: LogReader, header: Header, on_entry: Callable[[], None]) -> FillingFile:
    """With all items in memory. Those of messages that are gone from the log are zeros, which end
    their chains. QueueDamaged: the log has more keys than the file.
    """
    first = max(header.first_log_offset, log.start_offset)
    parts = []
    count = 0
    for ref, payload in log.entries(log.index_at(first), log.last_index + 1):
        on_entry()
        if ref.log_offset > header.last_log_offset:
            break
        if ref.kind != Kind.MESSAGES:
            continue
        for batch, at in _batches(decode_payload(payload, ref.payload_log_offset)):
            hashes, offsets = batch_keys(batch, at)
            low, high = np.searchsorted(offsets, [first, header.last_log_offset + 1])
            if low < high:
                parts.append((hashes[low:high], offsets[low:high], ref.stored_at_ms))
                count += int(high - low)
    if count > header.items:
        raise QueueDamaged(
            f"the log has {count} keys from log offset {first} to {header.last_log_offset}, the "
            f"key index {header.items}"
        )
    filling = FillingFile(
        f"{header.first_log_offset:020d}", header.slots, header.first_ms, header.first_log_offset
    )
    if count < header.items:
        filling.newest.append(np.zeros(header.items - count, ITEM))
    for part in parts:
        filling.add(*part)
    return filling


def _batches(decoded: Decoded) -> list[tuple[Batch, int]]:
    """Those with keys in the index."""
    return [one for one in decoded.batches if len(one[0].key_hashes) and not one[0].is_held]
