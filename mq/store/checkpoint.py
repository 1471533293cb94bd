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

import struct
from collections.abc import Iterable
from itertools import groupby, repeat
from typing import NamedTuple

from google.protobuf.message import DecodeError
from isal.isal_zlib import crc32

from mq.store.consumequeue import QueueExtent, SavedQueue
from mq.store.keyindex import IndexPosition
from mq.store.vfs import Vfs, write_file_atomically
from mq.wire.v1 import log_pb2

MAGIC = b"MQC\x02"
_HEADER = struct.Struct("<4sI")


class DerivedState(NamedTuple):
    """The extent of the derived files after the entry `raft_index` was applied."""

    raft_index: int
    term: int
    queues: list[SavedQueue]
    key_index: IndexPosition
    broker_state: bytes


def encode_entry(queues: Iterable[QueueExtent], broker_state: bytes) -> bytes:
    """Payload of a CHECKPOINT entry. Same queues, same bytes, on every replica."""
    topics = _topics(SavedQueue(*queue) for queue in queues)
    for topic in topics:
        topic.ClearField("starts")
        topic.ClearField("tail_crcs")
    return log_pb2.Checkpoint(topics=topics, broker_state=broker_state).SerializeToString(
        deterministic=True
    )


def decode_entry(payload: memoryview) -> tuple[list[QueueExtent], bytes]:
    """The queues as they are when nothing before the entry is left, and the broker's state.
    ValueError: not a checkpoint.
    """
    try:
        checkpoint = log_pb2.Checkpoint.FromString(bytes(payload))
    except DecodeError as error:
        raise ValueError(f"not a checkpoint: {error}") from None
    queues = [
        QueueExtent(topic.topic, queue_id, end, end)
        for topic in checkpoint.topics
        for queue_id, end in zip(topic.queue_ids, topic.ends, strict=True)
    ]
    return queues, checkpoint.broker_state


def save(vfs: Vfs, path: str, state: DerivedState) -> None:
    """Durable when this returns; a crash leaves the old one or the new one."""
    full, newest, items, first_ms, tail_crc = state.key_index
    payload = log_pb2.DerivedCheckpoint(
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
        broker_state=state.broker_state,
    ).SerializeToString()
    write_file_atomically(vfs, path, _HEADER.pack(MAGIC, crc32(payload)) + payload)


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
