"""Goes through entries, of one segment file or in memory, checking every byte, and says where and
why they end.

`scan_segment` is for the facts and for the records of an `.idx`, `walk` for the content,
`check_entries` for entries that another node sent. The first two read in chunks into memory of
their own and never map the log, so that checking a gigabyte does not count a gigabyte as resident,
and a bad sector is an OSError, not a signal.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from isal.isal_zlib import crc32

from mq.errors import MalformedEntries
from mq.store.format import (
    COVERED_FROM,
    HEADER_BYTES,
    KINDS,
    MAGIC,
    SEGMENT_BYTES_MAX,
    EntryHeader,
    Kind,
    decode_header,
    is_intact,
    pack_idx_record,
)

CHUNK_BYTES = 1 << 20
_RECORDS = 4096
# No entry is larger: a length beyond it is damage, and is not read.
PAYLOAD_BYTES_MAX = 256 << 20


class Source(Protocol):
    """The part of `vfs.File` that reading needs."""

    def pread(self, length: int, position: int) -> bytes: ...

    def pread_into(self, buffer: memoryview, position: int) -> int: ...

    def size(self) -> int: ...


@dataclasses.dataclass(slots=True)
class Scan:
    """The result: `count` intact entries in [0, end), then `problem`, or nothing but zeros to the
    end of the file.
    """

    first: EntryHeader | None = None
    last: EntryHeader | None = None
    count: int = 0
    end: int = 0
    problem: str = ""
    torn_bytes: int = 0  # behind `end`, up to the last one that is not zero

    @property
    def first_index(self) -> int:
        return self.first.raft_index if self.first else 0

    @property
    def last_index(self) -> int:
        return self.last.raft_index if self.last else 0


class _Stream:
    """A file read forwards through one buffer, which stays in the processor's cache."""

    def __init__(self, file: Source, position: int) -> None:
        self._file = file
        # Room before the chunk, for what is left over from the one before it.
        size = min(CHUNK_BYTES, file.size())
        self._buffer = memoryview(bytearray(HEADER_BYTES + size))
        self._position = position  # in the file, of the chunk that is read next
        self._rest = self._buffer[:0]  # what was read and not taken yet

    def peek(self, length: int) -> memoryview:
        """The next bytes, as many as a header at most; fewer at the end of the file."""
        if len(self._rest) < length:
            start = HEADER_BYTES - len(self._rest)
            self._buffer[start:HEADER_BYTES] = bytes(self._rest)
            count = self._file.pread_into(self._buffer[HEADER_BYTES:], self._position)
            self._rest = self._buffer[start : HEADER_BYTES + count]
            self._position += count
        return self._rest[:length]

    def take_crc(self, length: int, crc: int) -> int:
        """Goes forward by so many bytes, which are there, and adds them to the checksum."""
        while True:
            part = self._rest[:length]
            crc = crc32(part, crc)
            self._rest = self._rest[len(part) :]
            length -= len(part)
            if length == 0 or not self.peek(1):
                return crc

    def skip(self, length: int) -> None:
        self._rest = self._rest[length:]


def scan_segment(
    file: Source,
    on_records: Callable[[bytes], None] | None = None,
    scan: Scan | None = None,
    stop: int | None = None,
) -> Scan:
    """`on_records` gets the `.idx` records of the intact entries, some thousand at a time.

    A `scan` that is given is gone on with from its `end`, and says how far reading came before an
    OSError. `stop`: not further than this position.
    """
    size = file.size()
    scan = scan or Scan()
    stream = _Stream(file, scan.end)
    records: list[bytes] = []
    while stop is None or scan.end < stop:
        header = decode_header(stream.peek(HEADER_BYTES))
        scan.problem = _problem(header, size, scan)
        if scan.problem or header is None:
            break
        stream.skip(COVERED_FROM)
        if stream.take_crc(HEADER_BYTES - COVERED_FROM + header.length, 0) != header.crc:
            scan.problem = "the checksum does not match"
            break
        records.append(pack_idx_record(scan.end, header.length, header.term, header.stored_at_ms))
        scan.first = scan.first or header
        scan.last = header
        scan.count += 1
        scan.end += HEADER_BYTES + header.length
        if len(records) == _RECORDS:
            _hand_over(records, on_records)
    _hand_over(records, on_records)
    if scan.problem:
        scan.torn_bytes = last_content(file, scan.end, size) - scan.end
        scan.problem = scan.problem if scan.torn_bytes else ""
    return scan


def _hand_over(records: list[bytes], on_records: Callable[[bytes], None] | None) -> None:
    if records and on_records is not None:
        on_records(b"".join(records))
    records.clear()


def _problem(header: EntryHeader | None, size: int, scan: Scan) -> str:
    """The reason why this is not the header of the entry that belongs here; empty if it may be."""
    if header is None:
        return "no entry starts here"
    if header.length > PAYLOAD_BYTES_MAX or scan.end + HEADER_BYTES + header.length > size:
        return f"the entry of {header.length} bytes is cut short"
    return misfit(header, scan.last)


def misfit(header: EntryHeader, last: EntryHeader | None) -> str:
    """The reason why this entry cannot follow the last one of its segment; empty if it can."""
    if last is None:
        is_checkpoint = header.kind == Kind.CHECKPOINT
        return "" if is_checkpoint else "the segment does not open with a checkpoint"
    if problem := disorder(header, last):
        return problem
    if header.kind == Kind.CHECKPOINT:
        return "a checkpoint stands inside of a segment"
    return ""


def disorder(header: EntryHeader, last: EntryHeader) -> str:
    """The reason why this entry cannot follow the last one, of this segment or the one before;
    empty if it can.
    """
    if header.raft_index != last.raft_index + 1:
        return f"raft index {header.raft_index} follows {last.raft_index}"
    if header.term < last.term:
        return f"term {header.term} follows term {last.term}"
    if header.stored_at_ms < last.stored_at_ms:
        return f"an entry of {header.stored_at_ms} ms follows one of {last.stored_at_ms} ms"
    return ""


class Checked(NamedTuple):
    """Entries that may be written behind the last one of a log."""

    is_opening: bool  # they start with a checkpoint, and so a segment
    last: EntryHeader
    last_position: int  # in its segment
    records: bytes  # for the `.idx`


def check_entries(data: memoryview, end: int, last: EntryHeader) -> Checked:
    """Raises MalformedEntries unless this is whole, intact entries that may follow `last`: from
    position `end` of its segment on, or in a new segment when they open with a checkpoint.
    """
    is_opening = False
    position = at = 0
    records: list[bytes] = []
    while at < len(data) or not records:
        header = decode_header(data, at)
        problem = _defect(header, data[at:])
        if header is not None and not problem:
            is_first = not records
            is_opening = is_opening or (is_first and header.kind == Kind.CHECKPOINT)
            position = at if is_opening else end + at
            problem = (disorder if is_first and is_opening else misfit)(header, last)
            if position + HEADER_BYTES + header.length > SEGMENT_BYTES_MAX:
                problem = problem or f"no segment is longer than {SEGMENT_BYTES_MAX} bytes"
        if header is None or problem:
            raise MalformedEntries(f"entries of {len(data)} bytes, at byte {at}: {problem}")
        records.append(pack_idx_record(position, header.length, header.term, header.stored_at_ms))
        last = header
        at += HEADER_BYTES + header.length
    return Checked(is_opening, last, position, b"".join(records))


def check_opening(data: memoryview, first_index: int) -> None:
    """Raises MalformedEntries unless a log may start with this: whole, intact entries from this
    raft index on, the first one a checkpoint.
    """
    before = EntryHeader(0, Kind.NOOP, 0, first_index - 1, 0, 0)
    if not check_entries(data, 0, before).is_opening:
        raise MalformedEntries(f"entry {first_index} opens the log, but is no checkpoint")


def _defect(header: EntryHeader | None, rest: memoryview) -> str:
    """The reason why no intact entry of a known kind stands here; empty if one does."""
    if header is None:
        return "no entry starts here"
    if header.length > PAYLOAD_BYTES_MAX or HEADER_BYTES + header.length > len(rest):
        return f"the entry of {header.length} bytes is cut short or too long"
    if not is_intact(rest, header):
        return "the checksum does not match"
    if header.kind not in KINDS:
        return f"kind {header.kind} is not known to this version"
    return ""


def last_content(file: Source, position: int, size: int) -> int:
    """End of the last byte that is not zero in [position, size); `position` when there is none."""
    last = position
    zeros = bytes(CHUNK_BYTES)
    while position < size:
        chunk = file.pread(min(CHUNK_BYTES, size - position), position)
        if not chunk:
            break
        # Comparing is ten times as quick as looking for the last byte, and mostly enough.
        if chunk != (zeros if len(chunk) == len(zeros) else bytes(len(chunk))):
            last = position + len(chunk.rstrip(b"\0"))
        position += len(chunk)
    return last


def find_entry_after(file: Source, position: int) -> int | None:
    """Position of the first intact entry behind `position`, as far as the file can be read: the
    proof that damage there is not just a torn tail.
    """
    size = file.size()
    start = position + 1
    with contextlib.suppress(OSError):
        while start < size:
            chunk = file.pread(CHUNK_BYTES, start)
            found = chunk.find(MAGIC)
            while found >= 0:
                header = decode_header(file.pread(HEADER_BYTES, start + found))
                if header is not None and header.length <= PAYLOAD_BYTES_MAX:
                    entry = memoryview(file.pread(HEADER_BYTES + header.length, start + found))
                    if is_intact(entry, header):
                        return start + found
                found = chunk.find(MAGIC, found + 1)
            if len(chunk) < CHUNK_BYTES:
                break
            start += len(chunk) - len(MAGIC) + 1
    return None


class Walked(NamedTuple):
    position: int
    header: EntryHeader
    payload: memoryview


def walk(file: Source, position: int, end: int) -> Iterator[Walked]:
    """The entries of [position, end), each one checked; ends before one that is not as it should
    be.
    """
    start, chunk = position, memoryview(b"")

    def at(position: int, length: int) -> memoryview:
        nonlocal start, chunk
        if position + length > start + len(chunk):
            start, chunk = position, memoryview(file.pread(max(length, CHUNK_BYTES), position))
        return chunk[position - start :]

    raft_index = None
    while position < end:
        header = decode_header(at(position, HEADER_BYTES))
        if header is None or header.length > PAYLOAD_BYTES_MAX:
            return
        size = HEADER_BYTES + header.length
        entry = at(position, size)
        if not is_intact(entry, header) or raft_index not in (None, header.raft_index):
            return
        yield Walked(position, header, entry[HEADER_BYTES:size])
        raft_index = header.raft_index + 1
        position += size
