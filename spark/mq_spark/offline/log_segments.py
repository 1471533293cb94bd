"""The messages of one segment, as rows for `columns`: queue offsets are those that a broker gives.

The checkpoint that opens a segment has the ends of all queues, so that no other segment is needed.
From there on each batch takes the next queue offsets of its queue, in the order of the log, as when
a broker applies it; batches that are held back take none. Every entry is checked. Work is done per
batch and per chunk of the file, never per message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mq.client import QueueRef
from mq.client.arrow.runs import Rows
from mq.errors import LogDamaged, MalformedBatch
from mq.store.batch import Batch, decode_payload
from mq.store.checkpoint import decode_entry
from mq.store.format import HEADER_BYTES, EntryHeader, Kind, decode_header, is_intact
from mq.store.scan import PAYLOAD_BYTES_MAX, misfit
from mq.store.vfs import File
from mq_spark.offline.log_files import SegmentFile, damaged, open_log
from mq_spark.offline.log_topics import Queue, Visible

# Read at once: rows of one chunk and queue make one record batch.
_CHUNK_BYTES = 16 << 20


class Wanted(NamedTuple):
    """Messages of these topics that were stored in [from_ms, to_ms)."""

    visible: Visible
    from_ms: int = 0
    to_ms: int | None = None

    def is_in_time(self, stored_at_ms: int) -> bool:
        return self.from_ms <= stored_at_ms and (self.to_ms is None or stored_at_ms < self.to_ms)


class _Chunk(NamedTuple):
    """Whole, intact entries: where each one stands in `data`, and its header."""

    data: bytes
    position: int  # in the file
    entries: list[tuple[int, EntryHeader]]


class _Part(NamedTuple):
    """A batch, from its first message that is wanted on."""

    batch: Batch
    at: int  # of its data, in the chunk
    queue_offset: int  # of its first message
    skipped: int  # messages that are not wanted
    stored_at_ms: int


def segment_rows(
    broker_set: str, segment: SegmentFile, wanted: Wanted, chunk_bytes: int = _CHUNK_BYTES
) -> Iterator[tuple[QueueRef, Rows]]:
    """In the order of each queue. LogDamaged at the first entry that is not as it should be, behind
    the rows before it; OSError where the file cannot be read.
    """
    applied = _Applied(wanted)
    with open_log(segment.path) as file:
        for chunk in _chunks(file, segment, chunk_bytes):
            chunk_at = segment.log_offset + chunk.position
            problem: LogDamaged | None = None
            for at, header in chunk.entries:
                try:
                    applied.take(chunk, at, header, chunk_at)
                except (MalformedBatch, ValueError, IndexError) as error:
                    problem = damaged(segment.path, chunk.position + at, str(error))
                    break
            for (topic, queue_id), parts in applied.hand_over():
                yield QueueRef(topic, queue_id, broker_set), _rows(chunk.data, chunk_at, parts)
            if problem is not None:
                raise problem


class _Applied:
    """The ends of the queues, and what was put there since it was asked last."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._ends: dict[Queue, int] = {}
        self._parts: dict[Queue, list[_Part]] = defaultdict(list)

    def take(self, chunk: _Chunk, at: int, header: EntryHeader, chunk_at: int) -> None:
        """Raises ValueError, MalformedBatch or IndexError if the entry is intact, but not what it
        says.
        """
        start = at + HEADER_BYTES
        payload = memoryview(chunk.data)[start : start + header.length]
        if header.kind == Kind.CHECKPOINT:
            queues, _ = decode_entry(payload)
            self._ends = {(queue.topic, queue.queue_id): queue.end for queue in queues}
        elif header.kind == Kind.MESSAGES:
            for batch, batch_at in decode_payload(payload, start).batches:
                if not batch.is_held:
                    self._put(batch, batch_at, header.stored_at_ms, chunk_at)

    def _put(self, batch: Batch, at: int, stored_at_ms: int, chunk_at: int) -> None:
        queue = batch.topic, batch.queue_id
        queue_offset = self._ends.get(queue, 0)
        self._ends[queue] = queue_offset + batch.message_count
        visible = self._wanted.visible
        since = visible.since.get(batch.topic)
        if since is None or chunk_at + at < since or not self._wanted.is_in_time(stored_at_ms):
            return
        skipped = max(0, visible.starts.get(queue, 0) - queue_offset)
        if skipped < batch.message_count:
            self._parts[queue].append(_Part(batch, at, queue_offset, skipped, stored_at_ms))

    def hand_over(self) -> list[tuple[Queue, list[_Part]]]:
        parts = list(self._parts.items())
        self._parts.clear()
        return parts


def _rows(data: bytes, chunk_at: int, parts: list[_Part]) -> Rows:
    """`chunk_at`: log offset of the data."""
    frames_at = np.concatenate(
        [each.batch.frame_starts[each.skipped :] + each.at for each in parts]
    )
    counts = [each.batch.message_count - each.skipped for each in parts]
    first_of_each = np.cumsum([0, *counts[:-1]])
    queue_offsets = np.array([each.queue_offset + each.skipped for each in parts], np.int64)
    return Rows(
        data,
        frames_at,
        np.concatenate([each.batch.frame_sizes[each.skipped :] for each in parts]).astype(np.int64),
        np.repeat(queue_offsets - first_of_each, counts) + np.arange(len(frames_at)),
        frames_at + chunk_at,
        np.repeat(np.array([each.stored_at_ms for each in parts], np.int64), counts),
    )


# -- entries ---------------------------------------------------------------------------------------


def _chunks(file: File, segment: SegmentFile, chunk_bytes: int) -> Iterator[_Chunk]:
    """All entries of [0, end). LogDamaged."""
    position, last, next_bytes = 0, None, 0
    while position < segment.end:
        wanted_bytes = min(max(chunk_bytes, next_bytes), segment.end - position)
        data = file.pread(wanted_bytes, position)
        entries, end, problem = _whole_entries(data, last)
        if entries:
            yield _Chunk(data, position, entries)
            last = entries[-1][1]
        position += end
        # An entry may be longer than a chunk, or stand over the end of one.
        next_bytes = _entry_bytes(data, end)
        left_bytes = segment.end - position
        if not problem and left_bytes and len(data) < wanted_bytes:
            problem = "the file is too short"
        elif not problem and 0 < left_bytes < next_bytes:
            problem = "the entry is cut short"
        if problem:
            raise damaged(segment.path, position, problem)


def _whole_entries(
    data: bytes, last: EntryHeader | None
) -> tuple[list[tuple[int, EntryHeader]], int, str]:
    """Those at the start of `data`, where they end, and what is wrong with what comes then; nothing
    when it is only not there as a whole.
    """
    view = memoryview(data)
    entries: list[tuple[int, EntryHeader]] = []
    at = 0
    while len(data) - at >= HEADER_BYTES:
        header = decode_header(view, at)
        if header is None or header.length > PAYLOAD_BYTES_MAX:
            return entries, at, "no entry starts here"
        size = HEADER_BYTES + header.length
        if len(data) - at < size:
            break
        if not is_intact(view[at : at + size], header):
            return entries, at, "the checksum does not match"
        if problem := misfit(header, last):
            return entries, at, problem
        entries.append((at, header))
        last = header
        at += size
    return entries, at, ""


def _entry_bytes(data: bytes, at: int) -> int:
    """The bytes of the file that the next entry takes, as far as known."""
    header = decode_header(data, at)
    return HEADER_BYTES + (header.length if header is not None else 0)
