"""The expected content of a store, as plain lists: the model that `test_store_model` compares it
with.

Keeps every entry that was ever appended, also those that retention dropped: queue offsets are
places in these lists. Nothing here is shared with the store but the raft index and log offset that
an append returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.support import naive_wire

if TYPE_CHECKING:
    from mq.store.batch import Batch
    from mq.store.logreader import EntryRef
    from mq.wire.v1.message_pb2 import Message

Queue = tuple[str, int]


class Stored(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    stored_at_ms: int
    message: Message
    frame: bytes


@dataclass
class Entry:
    raft_index: int
    stored_at_ms: int
    payload: bytes | None = None  # None: a checkpoint
    # Queue and frame with its log offset of each message; where each batch starts.
    frames: list[tuple[Queue, int, bytes, Message]] = field(default_factory=list)
    batch_starts: list[int] = field(default_factory=list)


def entry_of(ref: EntryRef, stored_at_ms: int, news: list[tuple[Batch, list[Message]]]) -> Entry:
    entry = Entry(ref.raft_index, stored_at_ms, b"")
    for batch, messages in news:
        data = bytes(batch.data)
        payload = (entry.payload or b"") + naive_wire.field(1, data)
        entry.batch_starts.append(len(entry.frames))
        frames = [naive_wire.frame(message.SerializeToString()) for message in messages]
        # Frames are the end of their batch.
        at = ref.payload_log_offset + len(payload) - sum(map(len, frames))
        for frame, message in zip(frames, messages, strict=True):
            entry.frames.append(((batch.topic, batch.queue_id), at, frame, message))
            at += len(frame)
        entry.payload = payload
    return entry


class Model:
    def __init__(self) -> None:
        self.entries: list[Entry] = []  # entry n is at place n - 1
        self.first_index = 1
        self.durable_index = 0
        self.applied_index = 0
        self._queues: dict[Queue, list[Stored]] = {}
        self._starts: dict[Queue, int] = {}
        self._visible: tuple[int, int] = (0, 1)

    @property
    def last_index(self) -> int:
        return len(self.entries)

    @property
    def last_stored_at_ms(self) -> int:
        return self.entries[-1].stored_at_ms if self.entries else 0

    def add_checkpoint(self, now_ms: int) -> None:
        """A new segment, when all before it is applied; its checkpoint is an entry like others."""
        assert self.applied_index == self.last_index
        time = max(self.last_stored_at_ms, now_ms)
        self.entries.append(Entry(self.last_index + 1, time))

    def cut(self, last_index: int) -> None:
        del self.entries[last_index:]
        self._visible = (-1, -1)
        self.durable_index = min(self.durable_index, last_index)

    def queue_offsets_of(self, raft_index: int) -> list[int]:
        """The queue offset of the first message of each batch of an entry."""
        entry = self.entries[raft_index - 1]
        offsets = []
        for start in entry.batch_starts:
            queue, log_offset, *_ = entry.frames[start]
            before = [m for m in self.queues()[queue] if m.log_offset < log_offset]
            offsets.append(len(before))
        return offsets

    def queues(self) -> dict[Queue, list[Stored]]:
        """All messages that were ever visible; the place in the list is the queue offset."""
        self._refresh()
        return self._queues

    def start(self, queue: Queue) -> int:
        self._refresh()
        return self._starts.get(queue, 0)

    def there(self, queue: Queue) -> list[Stored]:
        return self.queues()[queue][self.start(queue) :]

    def by_key(self, topic: str, key: str, begin_ms: int, end_ms: int) -> list[Stored]:
        """Newest first."""
        found = [
            stored
            for queue, messages in self.queues().items()
            for stored in messages[self.start(queue) :]
            if queue[0] == topic and key in stored.message.keys
            if begin_ms <= stored.stored_at_ms < end_ms
        ]
        return sorted(found, key=lambda stored: -stored.log_offset)

    def _refresh(self) -> None:
        if self._visible == (self.applied_index, self.first_index):
            return
        self._visible = (self.applied_index, self.first_index)
        self._queues, self._starts = {}, {}
        for entry in self.entries[: self.applied_index]:
            for queue, log_offset, frame, message in entry.frames:
                messages = self._queues.setdefault(queue, [])
                place = (*queue, len(messages), log_offset, entry.stored_at_ms)
                messages.append(Stored(*place, message, frame))
                if entry.raft_index < self.first_index:
                    self._starts[queue] = len(messages)
