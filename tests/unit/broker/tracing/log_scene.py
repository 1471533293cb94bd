"""A log in memory for traces: entries as they stand on disk, one after another, with the queue
offset of every message."""

from __future__ import annotations

from typing import Any

from mq.broker.queue import Queue
from mq.broker.tracing.copies import frame_at
from mq.broker.tracing.entries import TracedEntry
from mq.broker.tracing.events import EventKind
from mq.broker.tracing.life import Birth, Life
from mq.broker.tracing.traces import passes
from mq.store.batch import Batch, encode_payload, message_of_frame, parse_stored, prepare
from mq.store.format import HEADER_BYTES, Kind
from mq.store.logreader import Entry, EntryRef
from mq.wire.v1 import state_pb2 as pb
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message, Origin

SET = "set-0"


def batch(topic: str, *messages: Message | bytes, queue_id: int = 0, **header: Any) -> Batch:
    wires = [one if isinstance(one, Message) else Message(body=one) for one in messages]
    wire = WireBatch(topic=topic, queue_id=queue_id, messages=wires, **header)
    return parse_stored(prepare(wire.SerializeToString()))


class Log:
    def __init__(self) -> None:
        self.entries: list[TracedEntry] = []
        self.term = 3
        self.now_ms = 1_000
        self._end = 0
        self._ends: dict[Queue, int] = {}
        self._places: dict[tuple[Queue, int], int] = {}

    def add(self, *batches: Batch, at_ms: int = 0, **command: Any) -> TracedEntry:
        """An entry of these batches and this command."""
        self.now_ms = at_ms or self.now_ms + 10
        encoded = pb.Command(**command).SerializeToString() if command else b""
        kind = Kind.MESSAGES if batches else Kind.COMMAND
        payload = b"".join(encode_payload(batches, encoded)) if batches else encoded
        ref = EntryRef(len(self.entries) + 1, self.term, kind, self.now_ms, self._end, len(payload))
        entry = TracedEntry(Entry(ref, memoryview(payload)))
        for one, at in entry.batches:
            if not one.is_held:
                queue = Queue(one.topic, one.queue_id)
                for start in one.frame_starts.tolist():
                    self._places[queue, at + start] = self._ends.get(queue, 0)
                    self._ends[queue] = self._ends.get(queue, 0) + 1
        self._end += HEADER_BYTES + len(payload)
        self.entries.append(entry)
        return entry

    def resolve(self, queue: Queue, log_offset: int) -> int:
        return self._places.get((queue, log_offset), -1)

    def birth(self, entry: TracedEntry, batch_at: int = 0, message_at: int = 0) -> Birth:
        frame = frame_at(entry.batches[batch_at][0], message_at)
        message = Message.FromString(bytes(message_of_frame(frame)))
        return Birth(entry, batch_at, message_at, message)

    def life(self, entry: TracedEntry, batch_at: int = 0, message_at: int = 0) -> Life:
        """That of the message, as all entries say."""
        birth = self.birth(entry, batch_at, message_at)
        life = Life(birth, SET, self.resolve, passes)
        for one in self.entries:
            life.feed(one)
        return life

    def id_of(self, entry: TracedEntry, message_at: int = 0) -> str:
        found, at = entry.batches[0]
        return f"{SET}:{at + int(found.frame_starts[message_at])}"

    def copy(self, entry: TracedEntry, attempts: int, reason: str, body: bytes = b"m") -> Message:
        """A copy of the first message of the entry."""
        topic = entry.batches[0][0].topic
        origin = Origin(topic=topic, message_id=self.id_of(entry), attempts=attempts, reason=reason)
        return Message(body=body, origin=origin)


def positions(group: str, queue_offset: int, topic: str = "t", **fields: Any) -> dict[str, Any]:
    """The command that commits a position."""
    position = QueuePosition(topic=topic, queue_id=0, queue_offset=queue_offset)
    groups = [pb.GroupPositions(group=group, positions=[position], **fields)]
    return {"commit_positions": pb.CommitPositions(groups=groups)}


def leases(group: str, *changes: pb.LeaseChange, **fields: Any) -> dict[str, Any]:
    """The command that changes leases of queue 0 of `t`."""
    queue = pb.QueueLeases(group=group, topic="t", queue_id=0, changes=changes, **fields)
    return {"change_leases": pb.ChangeLeases(queues=[queue])}


def kinds(life: Life) -> list[str]:
    return [EventKind(one.kind).name.lower() for one in life.events]


def standings(life: Life, now: Any) -> dict[str, str]:
    return {one.group: one.standing.name.lower() for one in life.summaries(now)}
