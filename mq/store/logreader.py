"""Reading a log: entries by raft index, bytes by log offset, both by time.

Indexes are contiguous from `first_index` to `last_index`, log offsets over segments. Every entry is
checked when it is read; nothing is kept in memory but the list of segments. Reads may run on any
thread, but segments that leave the log are closed under them: see `apart`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.errors import LogDamaged, OffsetOutOfRange
from mq.store.format import (
    HEADER_BYTES,
    KINDS,
    SEGMENT_BYTES_MAX,
    Kind,
    decode_header,
    is_intact,
)
from mq.store.recovery import ADVICE
from mq.store.segment import Segment

_READ_AHEAD_BYTES = 1 << 20


class EntryRef(NamedTuple):
    """Where an entry stands."""

    raft_index: int
    term: int
    kind: Kind
    stored_at_ms: int
    log_offset: int  # of the header
    length: int  # of the payload

    @property
    def payload_log_offset(self) -> int:
        return self.log_offset + HEADER_BYTES

    @property
    def end_log_offset(self) -> int:
        return self.payload_log_offset + self.length


class Entry(NamedTuple):
    ref: EntryRef
    payload: memoryview


class Region(NamedTuple):
    """Whole entries as they stand in the log, headers and payloads, all of one segment."""

    first_index: int
    last_index: int
    last_term: int
    data: bytes


class SegmentInfo(NamedTuple):
    """What retention decides on."""

    path: str
    base_log_offset: int
    size_bytes: int
    first_index: int
    last_stored_at_ms: int


class LogReader:
    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        # Where a log without segments stands: raft index and log offset of the entry to come.
        self._origin = 1, 0

    # -- facts ------------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        return self._segments[0].first_index if self._segments else self._origin[0]

    @property
    def last_index(self) -> int:
        if not self._segments:
            return self._origin[0] - 1
        last = self._segments[-1]
        return last.first_index + last.count - 1

    @property
    def last_checkpoint_index(self) -> int:
        """Raft index of the entry that opens the last segment; 0 when the log is empty."""
        return self._segments[-1].first_index if self._segments else 0

    @property
    def start_offset(self) -> int:
        return self._segments[0].base if self._segments else self._origin[1]

    @property
    def end_offset(self) -> int:
        return self._segments[-1].end_log_offset if self._segments else self._origin[1]

    def segments(self) -> list[SegmentInfo]:
        return [
            SegmentInfo(
                segment.log_path,
                segment.base,
                segment.end,
                segment.first_index,
                int(segment.records()["stored_at_ms"][-1]),
            )
            for segment in self._segments
        ]

    # -- reading ----------------------------------------------------------------------------------

    def read(self, log_offset: int, length: int) -> bytes:
        """Bytes as they stand, also over the border of two segments."""
        segment = self._segment_at(log_offset)
        wanted = min(length, segment.end_log_offset - log_offset)
        data = segment.read(log_offset - segment.base, wanted)
        if len(data) < wanted:
            position = log_offset - segment.base + len(data)
            raise LogDamaged(segment.log_path, position, "the file is too short", ADVICE)
        return data if wanted == length else data + self.read(log_offset + wanted, length - wanted)

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """The bytes of each range [start, end) of log offsets."""
        result = []
        base = limit = 0
        for start, end in ranges:
            if not base <= start < end <= limit:
                segment = self._segment_at(start)
                base, limit = segment.base, segment.end_log_offset
            data = segment.read(start - base, end - start) if end <= limit else b""
            result.append(data if len(data) == end - start else self.read(start, end - start))
        return result

    def is_in_memory(self, start: int, end: int) -> bool:
        """Whether a read of these log offsets would most likely not wait for the disk."""
        while start < end:
            segment = self._segment_at(start)
            stop = min(end, segment.end_log_offset)
            if not segment.log.is_in_memory(start - segment.base, stop - start):
                return False
            start = stop
        return True

    def apart(self, start: int, end: int) -> LogApart:
        """What the log has between these log offsets, by files of its own."""
        return LogApart(
            [
                segment.twin()
                for segment in self._segments
                if segment.base < end and start < segment.end_log_offset
            ]
        )

    def region(self, first_index: int, bytes_max: int) -> Region:
        """The entries from `first_index` on as they stand, as many of its segment as fit
        `bytes_max`, but at least one. In one read, and unchecked: `CommitLog.extend` checks them
        where they arrive.
        """
        segment = self._segment_of(first_index)
        records = segment.records()
        first = first_index - segment.first_index
        stop, end = _stop_within(records, first, len(records), bytes_max)
        position = int(records["position"][first])
        data = segment.read(position, end - position)
        if len(data) < end - position:
            reason = "the file is too short"
            raise LogDamaged(segment.log_path, position + len(data), reason, ADVICE)
        return Region(
            first_index, segment.first_index + stop - 1, int(records["term"][stop - 1]), data
        )

    def term_at(self, raft_index: int) -> int:
        """Of one entry, by the `.idx` alone."""
        segment = self._segment_of(raft_index)
        return segment.term_of(raft_index - segment.first_index)

    def ref(self, raft_index: int) -> EntryRef:
        segment = self._segment_of(raft_index)
        record = segment.records()[raft_index - segment.first_index]
        position, length, term, stored_at_ms = record.item()
        try:
            kind = Kind(segment.read(position + 8, 1)[0])
        except (IndexError, ValueError):
            reason = f"entry {raft_index} is of no known kind"
            raise LogDamaged(segment.log_path, position, reason, ADVICE) from None
        return EntryRef(raft_index, term, kind, stored_at_ms, segment.base + position, length)

    def entry(self, raft_index: int) -> Entry:
        return next(self.entries(raft_index, raft_index + 1))

    def entries(self, start: int, end: int) -> Iterator[Entry]:
        """The entries [start, end), read lazily, about a megabyte at a time, each one checked."""
        if start < end:
            self._segment_of(start)
        while start < end:
            segment = self._segment_of(start)
            records = segment.records()
            first = start - segment.first_index
            last = min(end - segment.first_index, len(records))
            position = int(records["position"][first])
            stop, position_end = _stop_within(records, first, last, _READ_AHEAD_BYTES)
            chunk = memoryview(segment.read(position, position_end - position))
            yield from self._decode(segment, chunk, position, start, stop - first)
            start = segment.first_index + stop

    def index_at(self, log_offset: int) -> int:
        """Raft index of the entry that holds this byte."""
        segment = self._segment_at(log_offset)
        positions = segment.records()["position"]
        # A number of the column's own type: for any other, numpy copies the whole column.
        found = np.searchsorted(positions, np.uint32(log_offset - segment.base), side="right")
        return segment.first_index + int(found) - 1

    def stored_at(self, log_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """When the entries that hold these bytes were stored; the offsets ascend."""
        result = np.empty(len(log_offsets), np.int64)
        done = 0
        while done < len(log_offsets):
            segment = self._segment_at(int(log_offsets[done]))
            stop = int(np.searchsorted(log_offsets, segment.end_log_offset))
            records = segment.records()
            positions = (log_offsets[done:stop] - segment.base).astype(np.uint32)
            found = np.searchsorted(records["position"], positions, side="right") - 1
            result[done:stop] = records["stored_at_ms"][found]
            done = stop
        return result

    def offset_at_time(self, stored_at_ms: int) -> int:
        """Log offset of the first entry stored at this time or later; `end_offset` when there is
        none.
        """
        i = bisect.bisect_left(
            self._segments,
            stored_at_ms,
            key=lambda segment: int(segment.records()["stored_at_ms"][-1]),
        )
        if i == len(self._segments):
            return self.end_offset
        segment = self._segments[i]
        records = segment.records()
        found = int(np.searchsorted(records["stored_at_ms"], np.uint64(max(stored_at_ms, 0))))
        return segment.base + int(records["position"][found])

    # -- inside -----------------------------------------------------------------------------------

    def _decode(
        self, segment: Segment, chunk: memoryview, position: int, raft_index: int, count: int
    ) -> Iterator[Entry]:
        for _ in range(count):
            header = decode_header(chunk)
            if header is None or header.raft_index != raft_index or not is_intact(chunk, header):
                reason = f"entry {raft_index} is not what was written"
                raise LogDamaged(segment.log_path, position, reason, ADVICE)
            _, kind, length, _, term, stored_at_ms = header
            if kind not in KINDS:
                reason = f"entry {raft_index} has kind {kind}, which this version does not know"
                raise LogDamaged(segment.log_path, position, reason, ADVICE)
            ref = EntryRef(
                raft_index, term, Kind(kind), stored_at_ms, segment.base + position, length
            )
            yield Entry(ref, chunk[HEADER_BYTES : HEADER_BYTES + length])
            chunk = chunk[HEADER_BYTES + length :]
            position += HEADER_BYTES + length
            raft_index += 1

    def _segment_of(self, raft_index: int) -> Segment:
        if not self.first_index <= raft_index <= self.last_index:
            raise OffsetOutOfRange(
                f"raft index {raft_index} is not in the log, "
                f"which has {self.first_index} to {self.last_index}"
            )
        newest = self._segments[-1]
        if raft_index >= newest.first_index:
            return newest
        return self._segments[
            bisect.bisect_right(self._segments, raft_index, key=lambda s: s.first_index) - 1
        ]

    def _segment_at(self, log_offset: int) -> Segment:
        if not self.start_offset <= log_offset < self.end_offset:
            raise OffsetOutOfRange(
                f"log offset {log_offset} is not in the log, "
                f"which has {self.start_offset} to {self.end_offset}"
            )
        return self._segments[
            bisect.bisect_right(self._segments, log_offset, key=lambda s: s.base) - 1
        ]


class LogApart(LogReader):
    """A part of a log for another thread. The log closes files under whoever reads them when
    retention drops a segment or a follower starts over; here they stay until `close`.
    """

    def close(self) -> None:
        for segment in self._segments:
            segment.close()


def _stop_within(
    records: npt.NDArray[np.void], first: int, last: int, bytes_max: int
) -> tuple[int, int]:
    """The number behind the last of [first, last) that ends within `bytes_max` of the start of
    `first`, which is always taken; and the position where that entry ends.
    """
    positions = records["position"]
    end = int(positions[last - 1]) + HEADER_BYTES + int(records["length"][last - 1])
    limit = min(int(positions[first]) + bytes_max, SEGMENT_BYTES_MAX)
    if end > limit:
        # A number of the column's own type: for any other, numpy copies the whole column.
        fits = int(np.searchsorted(positions[:last], np.uint32(max(limit, 0)), side="right")) - 1
        stop = max(fits, first + 1)
        if stop < last:
            return stop, int(positions[stop])
    return last, end
