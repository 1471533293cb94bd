"""Mending a segment: what exactly is damaged in it, and a file in its place that is not.

A segment of a replica is the same on every node, byte for byte, so what is damaged here is copied
from where it is not: the owner fetches each `Gap`, and `is_filled_by` says whether what came is
what stood there. Nothing is believed that does not fit: crc, raft indexes, terms and times by the
`.idx`.

A sealed segment is copied beside, with the gaps filled, checked from its first byte to its last,
synced, and renamed over the old one. A crash in between leaves a file that the next start removes.
The segment that is written to is mended in place: what stood there was of no use.

This module blocks on the disk; it is for threads with files of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.errors import LogDamaged, MalformedEntries
from mq.store.format import (
    HEADER_BYTES,
    IDX_HEADER_BYTES,
    IDX_RECORD,
    EntryHeader,
    Kind,
    decode_header,
    is_intact,
)
from mq.store.scan import CHUNK_BYTES, check_entries, scan_segment
from mq.store.segment import MENDED_SUFFIX, Segment
from mq.store.verified import damaged_entries
from mq.store.vfs import Vfs

_ADVICE = "The node tries again; see `mq cluster health`"


class Gap(NamedTuple):
    """Whole entries that are damaged, one after another: positions [start, end) of the segment."""

    start: int
    end: int
    first_index: int
    records: npt.NDArray[np.void]  # of these entries; none when the `.idx` is damaged as well

    def entries(self, base: int) -> Iterator[tuple[int, int, int]]:
        """Position, and log offsets [start, end), of each; of all together if they are unknown."""
        if not len(self.records):
            yield self.start, base + self.start, base + self.end
        for position, length, _, _ in self.records.tolist():
            start = base + position
            yield position, start, start + HEADER_BYTES + length


class Survey(NamedTuple):
    """A segment, from its first byte to its last."""

    base: int
    entries: int
    end: int
    gaps: list[Gap]
    is_idx_damaged: bool


def survey(segment: Segment) -> Survey:
    """Reads all of it. `segment` is a twin that knows all records."""
    _, records = segment.records_between(0, segment.end)
    is_idx_damaged = not _is_chain(records, segment.end)
    if is_idx_damaged:
        gaps = _gaps_by_scan(segment)
    else:
        bad, is_idx_damaged = _check(segment, records)
        gaps = _joined(segment, records, bad)
    return Survey(segment.base, segment.count, segment.end, gaps, is_idx_damaged)


def _is_chain(records: npt.NDArray[np.void], end: int) -> bool:
    """Whether the entries of these records fill a segment of this size, in order."""
    positions = records["position"].astype(np.int64)
    ends = positions + records["length"] + HEADER_BYTES
    return bool(
        positions[0] == 0
        and ends[-1] == end
        and (positions[1:] == ends[:-1]).all()
        and (records["term"][1:] >= records["term"][:-1]).all()
        and (records["stored_at_ms"][1:] >= records["stored_at_ms"][:-1]).all()
    )


def _check(segment: Segment, records: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.bool_], bool]:
    """The damaged entries, and whether intact ones have a wrong record."""
    bad = np.zeros(len(records), np.bool_)
    is_idx_damaged = False
    positions = records["position"].astype(np.int64)
    at = 0
    while at < len(records):
        stop = max(at + 1, int(np.searchsorted(positions, positions[at] + CHUNK_BYTES)))
        part, first_index = records[at:stop], segment.first_index + at
        data = _read(segment, part)
        bad[at:stop] = damaged_entries(data, part, first_index)
        for number in np.flatnonzero(bad[at:stop]).tolist():
            start = int(part["position"][number] - part["position"][0])
            if _stands(data[start:], part[number], first_index + number):
                bad[at + number], is_idx_damaged = False, True
        at = stop
    return bad, is_idx_damaged


def _stands(data: memoryview, record: np.void, raft_index: int) -> bool:
    """Whether the entry is intact, and its record says something else of term or time."""
    header = decode_header(data)
    return (
        header is not None
        and (header.raft_index, header.length) == (raft_index, int(record["length"]))
        and is_intact(data, header)
    )


def _read(segment: Segment, records: npt.NDArray[np.void]) -> memoryview:
    """The bytes of these entries; zeros for those that the disk does not give."""
    start, last = int(records["position"][0]), records[-1]
    size = int(last["position"]) + HEADER_BYTES + int(last["length"]) - start
    try:
        return memoryview(segment.read(start, size).ljust(size, b"\0"))
    except OSError:
        if len(records) == 1:
            return memoryview(bytes(size))
        parts = (_read(segment, records[at : at + 1]) for at in range(len(records)))
        return memoryview(b"".join(parts))


def _joined(
    segment: Segment, records: npt.NDArray[np.void], bad: npt.NDArray[np.bool_]
) -> list[Gap]:
    numbers = np.flatnonzero(bad)
    groups = np.split(numbers, 1 + np.flatnonzero(np.diff(numbers) > 1)) if len(numbers) else []
    gaps = []
    for group in groups:
        first, last = int(group[0]), int(group[-1])
        end = int(records["position"][last]) + HEADER_BYTES + int(records["length"][last])
        gaps.append(
            Gap(
                int(records["position"][first]),
                end,
                segment.first_index + first,
                records[first : last + 1],
            )
        )
    return gaps


def _gaps_by_scan(segment: Segment) -> list[Gap]:
    """Without the `.idx`: from where the log is damaged, all of the segment."""
    with contextlib.suppress(OSError):
        scan = scan_segment(segment.log)
        if scan.end == segment.end and scan.count == segment.count:
            return []
        first_index = segment.first_index + scan.count
        return [Gap(scan.end, segment.end, first_index, np.empty(0, IDX_RECORD))]
    return [Gap(0, segment.end, segment.first_index, np.empty(0, IDX_RECORD))]


def is_filled_by(gap: Gap, data: bytes) -> bool:
    """Whether these bytes are the entries that stood there."""
    if len(data) != gap.end - gap.start:
        return False
    before = EntryHeader(0, Kind.NOOP, 0, gap.first_index - 1, 0, 0)
    try:
        found = check_entries(memoryview(data), gap.start, before)
    except MalformedEntries:
        return False
    if found.is_opening != (gap.start == 0):
        return False
    return not len(gap.records) or found.records == gap.records.tobytes()


def write_mended(vfs: Vfs, segment: Segment, pieces: Mapping[int, bytes], *, has_lost: bool) -> str:
    """A copy of the segment beside it, with these pieces, by position; returns its path. Durable,
    and every entry of it is intact, unless it has some that are lost. LogDamaged, OSError: there is
    none.
    """
    path = segment.log_path + MENDED_SUFFIX
    file = vfs.open(path, create=True)
    with contextlib.closing(file):
        file.truncate(0)
        position = 0
        while position < segment.end:
            piece = pieces.get(position)
            if piece is None:
                stop = min([segment.end, *(at for at in pieces if at > position)])
                piece = _read_raw(segment, position, min(stop, position + CHUNK_BYTES))
            file.pwritev([piece], position)
            position += len(piece)
        scan = scan_segment(file)
        if not has_lost and (scan.count, scan.end) != (segment.count, segment.end):
            raise LogDamaged(path, scan.end, scan.problem or "it has other entries", _ADVICE)
        file.sync()
    return path


def _read_raw(segment: Segment, start: int, end: int) -> bytes:
    """As it stands; what the disk does not give is zeros, a page at a time."""
    try:
        return segment.read(start, end - start).ljust(end - start, b"\0")
    except OSError:
        if end - start <= _PAGE_BYTES:
            return bytes(end - start)
        middle = start + max(_PAGE_BYTES, (end - start) // 2 // _PAGE_BYTES * _PAGE_BYTES)
        return _read_raw(segment, start, middle) + _read_raw(segment, middle, end)


_PAGE_BYTES = 4096


def write_mended_idx(vfs: Vfs, segment: Segment, log_path: str) -> str:
    """An `.idx` by what this file says, which is intact, beside the damaged one; returns its path.
    LogDamaged, OSError: there is none.
    """
    path = segment.idx_path + MENDED_SUFFIX
    with (
        contextlib.closing(vfs.open(path, create=True)) as file,
        contextlib.closing(vfs.open(log_path, read_only=True)) as source,
    ):
        file.truncate(0)
        position = IDX_HEADER_BYTES

        def write(records: bytes) -> None:
            nonlocal position
            file.pwritev([records], position)
            position += len(records)

        scan = scan_segment(source, write)
        if (scan.count, scan.end) != (segment.count, segment.end):
            raise LogDamaged(log_path, scan.end, scan.problem, _ADVICE)
        file.pwritev([segment.idx_header()], 0)
        file.sync()
    return path
