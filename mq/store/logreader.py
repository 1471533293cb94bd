"""Reading a log: entries by raft index, bytes by log offset, both by time.

Indexes are contiguous from `first_index` to `last_index`, log offsets over segments. What leaves as
messages or entries is checked against the crc of its entry: always when it is read by raft index,
and when it is read as a range unless `verified` knows it. An entry that is not what was written, or
cannot be read, is reported to `damage` and raises MessagesDamaged. Nothing is kept in memory but
the list of segments. Reads may run on any thread, but segments that leave the log are closed under
them: see `apart`.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.errors import LogDamaged, MessagesDamaged, OffsetOutOfRange
from mq.store.damage import Damage, DamageKind, DamageLog
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
from mq.store.verified import VerifiedRanges, first_damaged

_READ_AHEAD_BYTES = 1 << 20
# What comes behind a region of old entries.
_REGIONS_AHEAD_BYTES = 4 << 20
# A buffer that is used again for whole entries of which a small part is wanted: new memory of that
# size costs more than the check. Larger ones are not kept.
_SCRATCH_BYTES_MAX = 16 << 20


class EntryRef(NamedTuple):
    """The place of an entry in the log."""

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
    """A segment, as retention sees it."""

    path: str
    base_log_offset: int
    size_bytes: int
    first_index: int
    last_stored_at_ms: int


class LogReader:
    def __init__(
        self,
        segments: list[Segment],
        damage: DamageLog | None = None,
        verified: VerifiedRanges | None = None,
    ) -> None:
        self._segments = segments
        # Taken and put back, so that each thread has one of its own.
        self._scratch: list[bytearray] = []
        self.damage = damage or DamageLog()
        self.verified = verified or VerifiedRanges()
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

    def segment_over(self, log_offset: int) -> Segment | None:
        """The segment that holds this byte; None when the log does not have it."""
        is_here = self.start_offset <= log_offset < self.end_offset
        return self._segment_at(log_offset) if is_here else None

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

    @property
    def checkpoint_indexes(self) -> list[int]:
        """Raft index of the entry that opens each segment."""
        return [segment.first_index for segment in self._segments]

    def segment_around(self, log_offset: int) -> tuple[int, int]:
        """Log offsets [start, end) of the segment that has this byte."""
        segment = self._segment_at(log_offset)
        return segment.base, segment.end_log_offset

    # -- reading ----------------------------------------------------------------------------------

    def read(self, log_offset: int, length: int) -> bytes:
        """Bytes as they stand, unchecked, also over the border of two segments."""
        segment = self._segment_at(log_offset)
        wanted = min(length, segment.end_log_offset - log_offset)
        data = segment.read(log_offset - segment.base, wanted)
        if len(data) < wanted:
            position = log_offset - segment.base + len(data)
            raise LogDamaged(segment.log_path, position, "the file is too short", ADVICE)
        return data if wanted == length else data + self.read(log_offset + wanted, length - wanted)

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes | memoryview]:
        """The bytes of each range [start, end) of log offsets, which are those of intact entries.
        MessagesDamaged.
        """
        return self._read_ranges(ranges, self._is_as_written)

    def read_ranges_in_memory(self, ranges: Iterable[tuple[int, int]]) -> list[bytes | memoryview]:
        """As `read_ranges`, right after `is_in_memory` said so of all of them: a second look would
        cost as much as reading them.
        """
        return self._read_ranges(ranges, self._was_appended)

    def _read_ranges(
        self,
        ranges: Iterable[tuple[int, int]],
        is_as_written: Callable[[Segment, int, int], bool],
    ) -> list[bytes | memoryview]:
        result: list[bytes | memoryview] = []
        base = limit = 0
        covers = self.verified.covers
        for start, end in ranges:
            if not base <= start < end <= limit:
                segment = self._segment_at(start)
                base, limit = segment.base, segment.end_log_offset
            if end > limit:
                parts = self._read_ranges([(start, limit), (limit, end)], is_as_written)
                result.append(b"".join(parts))
            elif segment.is_untouched() and (
                covers(start, end) or is_as_written(segment, start, end)
            ):
                data = self._pread(segment, start - base, end - base)
                # It was cut since: the check finds out where.
                is_whole = len(data) == end - start
                result.append(
                    data if is_whole else self._read_checked(segment, start - base, end - base)
                )
            else:
                result.append(self._read_checked(segment, start - base, end - base))
        return result

    def check(self, start: int, end: int) -> None:
        """Reads the entries that have bytes in [start, end), whatever is known of them.
        MessagesDamaged.
        """
        while start < end:
            segment = self._segment_at(start)
            stop = min(end, segment.end_log_offset)
            self._read_checked(segment, start - segment.base, stop - segment.base)
            start = stop

    def is_in_memory(self, start: int, end: int) -> bool:
        """Whether a read of these log offsets would most likely not wait for the disk."""
        while start < end:
            segment = self._segment_at(start)
            stop = min(end, segment.end_log_offset)
            if not segment.log.is_in_memory(start - segment.base, stop - start):
                self.verified.left_memory(stop)
                return False
            start = stop
        return True

    def apart(self, start: int, end: int) -> LogApart:
        """The part of the log between these log offsets, with file handles of its own."""
        return LogApart(
            [
                segment.twin(max(0, start - segment.base), min(end - segment.base, segment.end))
                for segment in self._segments
                if segment.base < end and start < segment.end_log_offset
            ],
            self.damage,
            self.verified,
        )

    def apart_through(self, raft_index: int) -> LogWalk:
        """The entries up to this one, which are committed, for a long walk on another thread."""
        segments = [one for one in self._segments if one.first_index <= raft_index]
        twins = [segment.twin_through(raft_index) for segment in segments]
        return LogWalk(twins, self.damage, self.verified)

    def region(self, first_index: int, bytes_max: int) -> Region:
        """The entries from `first_index` on as they stand, as many of its segment as fit
        `bytes_max`, but at least one. In one read, and unchecked: `CommitLog.extend` checks them
        where they arrive. What cannot be read is zeros, which are refused there.
        """
        segment = self._segment_of(first_index)
        records = segment.records()
        first = first_index - segment.first_index
        stop, end = _stop_within(records, first, len(records), bytes_max)
        position = int(records["position"][first])
        if segment.is_sealed:
            # A node that is far behind, which asks for the next one when it has this.
            segment.log.read_ahead(end, _REGIONS_AHEAD_BYTES)
        data = b""
        with contextlib.suppress(MessagesDamaged):
            data = self._pread(segment, position, end)
            if len(data) < end - position:
                self._read_checked(segment, position, end)
        data = data.ljust(end - position, b"\0")
        return Region(
            first_index, segment.first_index + stop - 1, int(records["term"][stop - 1]), data
        )

    def term_at(self, raft_index: int) -> int:
        """The term of an entry, by the `.idx` alone."""
        segment = self._segment_of(raft_index)
        return segment.term_of(raft_index - segment.first_index)

    def place_of(self, raft_index: int) -> tuple[int, int]:
        """Log offsets [start, end) of one entry, by the `.idx` alone."""
        segment = self._segment_of(raft_index)
        position, length = segment.place_of(raft_index - segment.first_index)
        start = segment.base + position
        return start, start + HEADER_BYTES + length

    def ref(self, raft_index: int) -> EntryRef:
        segment = self._segment_of(raft_index)
        record = segment.records()[raft_index - segment.first_index]
        position, length, term, stored_at_ms = record.item()
        try:
            kind = Kind(segment.read(position + 8, 1)[0])
        except (IndexError, OSError, ValueError):
            reason = f"entry {raft_index} is of no known kind"
            raise self._damaged(segment, raft_index - segment.first_index, reason) from None
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
            chunk = memoryview(self._pread(segment, position, position_end))
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
        """The times at which the entries that hold these bytes were stored; the offsets ascend."""
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

    def _pread(self, segment: Segment, start: int, end: int) -> bytes:
        """Positions [start, end) of a segment, or fewer where the file ends. MessagesDamaged when
        the disk does not give them.
        """
        try:
            return segment.read(start, end - start)
        except OSError as error:
            raise self._unreadable(segment, start, end, error) from error

    def _unreadable(
        self, segment: Segment, start: int, end: int, error: OSError
    ) -> MessagesDamaged:
        number, records = segment.records_between(start, end)
        reason = f"it cannot be read: {error.strerror or error}"
        number += _first_unreadable(segment, records)
        return self._damaged(segment, number, reason)

    def _is_as_written(self, segment: Segment, start: int, end: int) -> bool:
        """Whether this process wrote it and it never left the page cache."""
        if not self.verified.is_appended(start):
            return False
        if segment.log.is_in_memory(start - segment.base, end - start):
            return True
        self.verified.left_memory(end)
        return False

    def _was_appended(self, _segment: Segment, start: int, _end: int) -> bool:
        return self.verified.is_appended(start)

    def _read_checked(self, segment: Segment, start: int, end: int) -> bytes | memoryview:
        """Reads and checks the whole entries that these positions are part of."""
        number, records = segment.records_between(start, end)
        first, last = int(records["position"][0]), records[-1]
        stop = int(last["position"]) + HEADER_BYTES + int(last["length"])
        if 2 * (end - start) >= stop - first:
            data = memoryview(self._pread(segment, first, stop))
            self._check_read(segment, number, records, data)
            return data[start - first : end - first]
        # A small part must not keep the whole in memory.
        scratch = self._scratch.pop() if self._scratch else bytearray()
        if len(scratch) < stop - first:
            scratch = bytearray(stop - first)
        try:
            data = memoryview(scratch)
            data = data[: segment.log.pread_into(data[: stop - first], first)]
            self._check_read(segment, number, records, data)
            return bytes(data[start - first : end - first])
        except OSError as error:
            raise self._unreadable(segment, first, stop, error) from error
        finally:
            if len(scratch) <= _SCRATCH_BYTES_MAX:
                self._scratch.append(scratch)

    def _check_read(
        self, segment: Segment, number: int, records: npt.NDArray[np.void], data: memoryview
    ) -> None:
        """`data` is what the file has of these entries; `number` is that of the first."""
        first = int(records["position"][0])
        bad = first_damaged(data, records, segment.first_index + number)
        intact_end = first + len(data) if bad is None else int(records["position"][bad])
        if intact_end > first:
            self.verified.add(segment.base + first, segment.base + intact_end)
        if bad is not None:
            reason = f"entry {segment.first_index + number + bad} is not what was written"
            raise self._damaged(segment, number + bad, reason)

    def _damaged(self, segment: Segment, number: int, reason: str) -> MessagesDamaged:
        """Reports it."""
        position, length = segment.place_of(number)
        start, end = self.report(segment, position, HEADER_BYTES + length, reason)
        is_lost = self.damage.is_lost(start)
        return MessagesDamaged(segment.log_path, position, reason, start, end, is_lost=is_lost)

    def report(self, segment: Segment, position: int, size: int, reason: str) -> tuple[int, int]:
        """These bytes are not what was written: from now on they are not served. Returns their log
        offsets.
        """
        start = segment.base + position
        end = min(start + size, segment.end_log_offset)
        self.verified.distrust(start, end)
        self.damage.found(
            Damage(DamageKind.LOG, segment.log_path, position, reason, start=start, end=end)
        )
        return start, end

    def _decode(
        self, segment: Segment, chunk: memoryview, position: int, raft_index: int, count: int
    ) -> Iterator[Entry]:
        for _ in range(count):
            header = decode_header(chunk)
            if header is None or header.raft_index != raft_index or not is_intact(chunk, header):
                reason = f"entry {raft_index} is not what was written"
                raise self._damaged(segment, raft_index - segment.first_index, reason)
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
    """A part of a log for another thread. The log closes files under their readers when
    retention drops a segment or a follower starts over; here they stay until `close`.
    """

    def close(self) -> None:
        for segment in self._segments:
            segment.close()


class LogWalk(LogApart):
    """A log for another thread that may read all of it, with the files of one segment open at a
    time. FileNotFoundError: the segment is gone by now.
    """

    def _segment_of(self, raft_index: int) -> Segment:
        return self._opened(super()._segment_of(raft_index))

    def _segment_at(self, log_offset: int) -> Segment:
        return self._opened(super()._segment_at(log_offset))

    def _opened(self, segment: Segment) -> Segment:
        for other in self._segments:
            if other is not segment:
                other.close()
        segment.open()
        return segment


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


def _first_unreadable(segment: Segment, records: npt.NDArray[np.void]) -> int:
    """Tries the entries of these records one by one; the first if all can be read now."""
    for number, (position, length, _, _) in enumerate(records.tolist()):
        try:
            segment.read(position, HEADER_BYTES + length)
        except OSError:
            return number
    return 0
