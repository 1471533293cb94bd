"""Two records of the same state: the CHECKPOINT entry that opens a segment, and the file
`<data>/checkpoint`.

The entry makes a segment self-contained: the state after all entries before it. The file says up to
which entry the derived files were built, so that a start replays only what came after it:

      0        4        8
      +--------+--------+-----------
      |"MQC\\2" | crc32  | DerivedCheckpoint (protobuf, to the end of the file)
      +--------+--------+-----------

The file is never ahead of what it speaks of: log, then derived files, then this are made durable,
in this order.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Collection, Iterable
from itertools import groupby, repeat
from typing import NamedTuple

from google.protobuf.message import DecodeError
from isal.isal_zlib import crc32

from mq.store.consumequeue import QueueExtent, SavedQueue
from mq.store.keyindex import IndexPosition
from mq.store.vfs import Vfs, write_file_atomically
from mq.wire import varint
from mq.wire.fields import fields, only
from mq.wire.v1 import log_pb2

MAGIC = b"MQC\x02"
_HEADER = struct.Struct("<4sI")
# Of the entry.
_TOPICS = log_pb2.Checkpoint.TOPICS_FIELD_NUMBER
_BROKER_STATE = log_pb2.Checkpoint.BROKER_STATE_FIELD_NUMBER


class DerivedState(NamedTuple):
    """The extent of the derived files after the entry `raft_index` was applied."""

    raft_index: int
    term: int
    queues: list[SavedQueue]
    key_index: IndexPosition
    broker_state: bytes


def encode_entry(queues: Iterable[QueueExtent], broker_state: bytes) -> list[bytes]:
    """Payload of a CHECKPOINT entry, in parts. Same queues, same bytes, on every replica."""
    topics = _topics(SavedQueue(*queue) for queue in queues)
    for topic in topics:
        topic.ClearField("starts")
        topic.ClearField("tail_crcs")
    head = log_pb2.Checkpoint(topics=topics).SerializeToString(deterministic=True)
    return [head, *_state(log_pb2.Checkpoint, broker_state)]


def decode_entry(payload: memoryview) -> tuple[list[QueueExtent], bytes]:
    """The queues as they are when nothing before the entry is left, and the broker's state.
    ValueError: not a checkpoint.
    """
    return decode_queues(payload), decode_state(payload)


def decode_queues(payload: memoryview) -> list[QueueExtent]:
    """The queues alone. ValueError: not a checkpoint."""
    try:
        found = log_pb2.Checkpoint.FromString(only(payload, [_TOPICS]))
    except DecodeError as error:
        raise ValueError(f"not a checkpoint: {error}") from None
    return [
        QueueExtent(topic.topic, queue_id, end, end)
        for topic in found.topics
        for queue_id, end in zip(topic.queue_ids, topic.ends, strict=True)
    ]


def decode_state(payload: memoryview, numbers: Collection[int] | None = None) -> bytes:
    """The broker's state, or some fields of it. ValueError: not a checkpoint."""
    states = [one for one in fields(payload) if one.number == _BROKER_STATE]
    state = payload[states[-1].content : states[-1].end] if states else b""
    return bytes(state) if numbers is None else only(state, numbers)


def save(vfs: Vfs, path: str, state: DerivedState) -> None:
    """Durable when this returns; a crash leaves the old one or the new one."""
    full, newest, items, first_ms, tail_crc = state.key_index
    head = log_pb2.DerivedCheckpoint(
        raft_index=state.raft_index,
        term=state.term,
        topics=_topics(state.queues),
        index=log_pb2.IndexState(
            full_files=full,
            newest_file=newest,
            newest_items=items,
            newest_first_ms=first_ms,
            newest_tail_crc=tail_crc,
        ),
    ).SerializeToString()
    payload = [head, *_state(log_pb2.DerivedCheckpoint, state.broker_state)]
    crc = functools.reduce(lambda crc, part: crc32(part, crc), payload, 0)
    write_file_atomically(vfs, path, [_HEADER.pack(MAGIC, crc), *payload])


def _state(
    message: type[log_pb2.Checkpoint | log_pb2.DerivedCheckpoint], broker_state: bytes
) -> list[bytes]:
    """The field `broker_state`, as protobuf encodes it, which would copy it several times: it may
    be tens of megabytes.
    """
    if not broker_state:
        return []
    return [
        varint.field_head(message.BROKER_STATE_FIELD_NUMBER, len(broker_state)),
        broker_state,
    ]


def load(vfs: Vfs, path: str) -> DerivedState | None:
    """None when there is none that can be trusted: then everything is rebuilt from the log."""
    size = vfs.file_size(path)
    if size is None:
        return None
    file = vfs.open(path, read_only=True)
    try:
        data = file.pread(size, 0)
    finally:
        file.close()
    return decode(data)


def decode(data: bytes) -> DerivedState | None:
    if len(data) < _HEADER.size:
        return None
    magic, crc = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != MAGIC or crc != crc32(payload):
        return None
    try:
        saved = log_pb2.DerivedCheckpoint.FromString(payload)
    except DecodeError:
        return None
    queues: list[SavedQueue] = []
    for topic in saved.topics:
        columns = topic.queue_ids, topic.starts, topic.ends, topic.tail_crcs
        if len(set(map(len, columns))) != 1:
            return None
        # By columns: ten thousand queues come through here at a start.
        queues.extend(map(SavedQueue, repeat(topic.topic), *columns))
    index = saved.index
    position = IndexPosition(
        tuple(index.full_files),
        index.newest_file,
        index.newest_items,
        index.newest_first_ms,
        index.newest_tail_crc,
    )
    return DerivedState(saved.raft_index, saved.term, queues, position, saved.broker_state)


def _topics(queues: Iterable[SavedQueue]) -> list[log_pb2.TopicQueues]:
    return [
        log_pb2.TopicQueues(
            topic=topic,
            queue_ids=[queue.queue_id for queue in members],
            starts=[queue.start for queue in members],
            ends=[queue.end for queue in members],
            tail_crcs=[queue.tail_crc for queue in members],
        )
        for topic, group in groupby(sorted(queues), key=lambda queue: queue.topic)
        if (members := list(group))
    ]
