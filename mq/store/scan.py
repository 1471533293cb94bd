"""Walks the entries of one segment file, checking every byte, and says where and why they end.

Used at start, to rebuild a lost `.idx`, and by `mq dump`. Reads in chunks into memory of its own
and never maps the log, so that checking a gigabyte does not count a gigabyte as resident, and a bad
sector is an OSError, not a signal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor, Future

from isal.isal_zlib import crc32

from mq.store.format import (
    COVERED_FROM,
    HEADER_BYTES,
    MAGIC,
    EntryHeader,
    Kind,
    decode_header,
    is_intact,
    pack_idx_record,
)
from mq.store.vfs import File

CHUNK_BYTES = 4 << 20
_RECORDS = 4096
# No entry is larger: a length beyond it is damage, and is not read.
PAYLOAD_BYTES_MAX = 256 << 20


@dataclasses.dataclass(slots=True)
class Scan:
    """What a walk found: `count` intact entries in [0, end), then `problem`, or nothing but zeros
    to the end of the file.
    """

    first_index: int = 0
    count: int = 0
    end: int = 0
    last_term: int = 0
    last_stored_at_ms: int = 0
    problem: str = ""


class _Stream:
    """A file read forwards through two buffers: one is filled, ahead of need, while the other is
    used.
    """

    def __init__(self, file: File, executor: Executor | None) -> None:
        self._file = file
        self._executor = executor
        # Room before each chunk, for what is left over from the one before it.
        size = HEADER_BYTES + min(CHUNK_BYTES, file.size())
        self._buffers = [memoryview(bytearray(size)) for _ in range(2)]
        self._position = 0  # in the file, of the chunk that is read next
        self._rest = self._buffers[1][:0]  # what was read and not taken yet
        self._ahead = self._read_ahead()

    def peek(self, length: int) -> memoryview:
        """The next bytes, as many as a header at most; fewer at the end of the file."""
        if len(self._rest) < length:
            kept = bytes(self._rest)
            count = self._ahead.result() if isinstance(self._ahead, Future) else self._ahead
            start = HEADER_BYTES - len(kept)
            buffer = self._buffers[0]
            buffer[start:HEADER_BYTES] = kept
            self._rest = buffer[start : HEADER_BYTES + count]
            self._buffers.reverse()
            self._position += count
            self._ahead = self._read_ahead()
        return self._rest[:length]

    def _read_ahead(self) -> Future[int] | int:
        chunk = self._buffers[0][HEADER_BYTES:]
        if self._executor is None:
            return self._file.pread_into(chunk, self._position)
        return self._executor.submit(self._file.pread_into, chunk, self._position)

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

    def close(self) -> None:
        """Waits for the read ahead: the file may be closed or cut after this."""
        if isinstance(self._ahead, Future):
            self._ahead.result()


def scan_segment(
    file: File,
    on_records: Callable[[bytes], None] | None = None,
    executor: Executor | None = None,
) -> Scan:
    """`on_records` gets the `.idx` records of the intact entries, some thousand at a time.

    With an executor the file is read on its thread, ahead of the check.
    """
    size = file.size()
    scan = Scan()
    stream = _Stream(file, executor)
    records: list[bytes] = []
    while True:
        header = decode_header(stream.peek(HEADER_BYTES))
        scan.problem = _problem(header, size, scan)
        if scan.problem or header is None:
            break
        stream.skip(COVERED_FROM)
        if stream.take_crc(HEADER_BYTES - COVERED_FROM + header.length, 0) != header.crc:
            scan.problem = "the checksum does not match"
            break
        records.append(pack_idx_record(scan.end, header.length, header.term, header.stored_at_ms))
        if scan.count == 0:
            scan.first_index = header.raft_index
        scan.count += 1
        scan.end += HEADER_BYTES + header.length
        scan.last_term, scan.last_stored_at_ms = header.term, header.stored_at_ms
        if len(records) == _RECORDS:
            _hand_over(records, on_records)
    stream.close()
    _hand_over(records, on_records)
    if scan.problem and last_content(file, scan.end, size) == scan.end:
        scan.problem = ""
    return scan


def _hand_over(records: list[bytes], on_records: Callable[[bytes], None] | None) -> None:
    if records and on_records is not None:
        on_records(b"".join(records))
    records.clear()


def _problem(header: EntryHeader | None, size: int, scan: Scan) -> str:
    """Why this is not the header of the entry that belongs here; empty when it may be."""
    if header is None:
        return "no entry starts here"
    if header.length > PAYLOAD_BYTES_MAX or scan.end + HEADER_BYTES + header.length > size:
        return f"the entry of {header.length} bytes is cut short"
    if scan.count == 0:
        is_checkpoint = header.kind == Kind.CHECKPOINT
        return "" if is_checkpoint else "the segment does not open with a checkpoint"
    if header.raft_index != scan.first_index + scan.count:
        return f"raft index {header.raft_index} follows {scan.first_index + scan.count - 1}"
    if header.term < scan.last_term:
        return f"term {header.term} follows term {scan.last_term}"
    if header.kind == Kind.CHECKPOINT:
        return "a checkpoint stands inside of a segment"
    return ""


def last_content(file: File, position: int, size: int) -> int:
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


def find_entry_after(file: File, position: int) -> int | None:
    """Position of the first intact entry behind `position`: the proof that damage there is not just
    a torn tail.
    """
    size = file.size()
    start = position + 1
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
