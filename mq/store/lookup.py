"""Single messages: by id, which is the log offset of the message's frame, and by key.

The cold path of operators and of support: it opens messages, and reads the entry that holds them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from mq.errors import MalformedBatch, MessageNotFound, OffsetOutOfRange
from mq.hashing import text_hash
from mq.store.batch import decode_payload, message_of_frame
from mq.store.consumequeue import ConsumeQueue, ConsumeQueues
from mq.store.format import Kind
from mq.store.keyindex import KeyIndex, key_slot_hashes
from mq.store.logreader import LogReader
from mq.wire.v1.message_pb2 import Message

QUERY_RESULTS_MAX = 64


class StoredMessage(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    stored_at_ms: int
    message: Message


class Lookup:
    def __init__(self, log: LogReader, queues: ConsumeQueues, index: KeyIndex) -> None:
        self._log = log
        self._queues = queues
        self._index = index

    def by_id(self, log_offset: int) -> StoredMessage:
        """Raises MessageNotFound when no message that was applied starts at this log offset.

        MalformedBatch when it does, but its producer sent bytes that are no Message.
        """
        try:
            entry = self._log.entry(self._log.index_at(log_offset))
        except OffsetOutOfRange as error:
            raise MessageNotFound(f"no message at log offset {log_offset}: {error}") from None
        if entry.ref.kind == Kind.MESSAGES:
            for batch, offset in decode_payload(
                entry.payload, entry.ref.payload_log_offset
            ).batches:
                starts = batch.frame_starts + offset
                at = int(np.searchsorted(starts, log_offset))
                if at == len(starts) or int(starts[at]) != log_offset:
                    continue
                queue = self._queues.get(batch.topic, batch.queue_id)
                place = queue.first_at(log_offset) if queue else 0
                if queue is None or not _stands_at(queue, place, log_offset):
                    break
                start = log_offset - entry.ref.payload_log_offset
                frame = entry.payload[start : start + int(batch.frame_sizes[at])]
                message = _open(frame, log_offset)
                return StoredMessage(
                    batch.topic,
                    batch.queue_id,
                    place,
                    log_offset,
                    entry.ref.stored_at_ms,
                    message,
                )
        raise MessageNotFound(f"no message starts at log offset {log_offset}")

    def place(self, log_offset: int) -> tuple[int, int]:
        """Log offsets of all that `by_id` reads of the log; empty if there is nothing."""
        try:
            return self._log.place_of(self._log.index_at(log_offset))
        except OffsetOutOfRange:
            return log_offset, log_offset

    def places_by_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int = QUERY_RESULTS_MAX
    ) -> list[tuple[int, int]]:
        """As `place`, of the first candidates of `by_key`."""
        found = itertools.islice(self._candidates(topic, key, begin_ms, end_ms), limit)
        return [self.place(log_offset) for log_offset in found]

    def _candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets, newest first."""
        hashes = key_slot_hashes(np.array([text_hash(key)], np.uint64), text_hash(topic))
        last = -1
        for log_offset in self._index.find(int(hashes[0]), begin_ms, end_ms):
            if log_offset < self._log.start_offset:
                return  # the rest is older still, and gone from the log
            if log_offset != last:  # a message that has the key twice, or two keys of one hash
                yield log_offset
            last = log_offset

    def by_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int = QUERY_RESULTS_MAX
    ) -> list[StoredMessage]:
        """Messages of a topic with this key, stored in [begin, end), newest first, 64 at most."""
        found: list[StoredMessage] = []
        for log_offset in self._candidates(topic, key, begin_ms, end_ms):
            try:
                stored = self.by_id(log_offset)
            except (MalformedBatch, MessageNotFound):
                # A producer gave it a key and no content that could be read, or a file of the index
                # is damaged: no reason to hide the others.
                continue
            is_in_time = begin_ms <= stored.stored_at_ms < end_ms
            if stored.topic == topic and key in stored.message.keys and is_in_time:
                found.append(stored)
                if len(found) == min(limit, QUERY_RESULTS_MAX):
                    break
        return found


def _stands_at(queue: ConsumeQueue, queue_offset: int, log_offset: int) -> bool:
    """Not, when it was not applied yet, or its topic was deleted since."""
    if queue_offset == queue.end:
        return False
    return int(queue.read(queue_offset, queue_offset + 1)["log_offset"][0]) == log_offset


def _open(frame: memoryview, log_offset: int) -> Message:
    try:
        return Message.FromString(bytes(message_of_frame(frame)))
    except DecodeError as error:
        raise MalformedBatch(
            f"the message at log offset {log_offset} was stored as its producer sent it, "
            f"and cannot be read: {error}"
        ) from None
