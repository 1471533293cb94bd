"""Walks the entries of one segment file, checking every byte, and says where and why they end.

Used at start, to rebuild a lost `.idx`, and by `mq dump`. Reads in chunks into memory of its own
and never maps the log, so that checking a gigabyte does not count a gigabyte as resident, and a bad
sector is an OSError, not a signal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from mq.store.format import (
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


def scan_segment(file: File, on_records: Callable[[bytes], None] | None = None) -> Scan:
    """`on_records` gets the `.idx` records of the intact entries, some thousand at a time."""
    size = file.size()
    scan = Scan()
    chunk_start, chunk = 0, memoryview(b"")
    records: list[bytes] = []
    while True:
        offset = scan.end - chunk_start
        header = decode_header(chunk, offset)
        entry_end = offset + HEADER_BYTES + (header.length if header else 0)
        if (header is None or entry_end > len(chunk)) and chunk_start + len(chunk) < size:
            # The entry may go on behind this chunk: read from its start, as far as it can be legal.
            length = header.length if header and header.length <= PAYLOAD_BYTES_MAX else 0
            wanted = max(CHUNK_BYTES, HEADER_BYTES + length)
            if offset > 0 or wanted > len(chunk):
                _hand_over(records, on_records)
                chunk_start, chunk = scan.end, memoryview(file.pread(wanted, scan.end))
                continue
        scan.problem = _problem(chunk[offset:], header, scan)
        if scan.problem or header is None:
            break
        records.append(pack_idx_record(scan.end, header.length, header.term, header.stored_at_ms))
        if scan.count == 0:
            scan.first_index = header.raft_index
        scan.count += 1
        scan.end += HEADER_BYTES + header.length
        scan.last_term, scan.last_stored_at_ms = header.term, header.stored_at_ms
    _hand_over(records, on_records)
    if scan.problem and not _has_content(file, scan.end, size):
        scan.problem = ""
    return scan


def _hand_over(records: list[bytes], on_records: Callable[[bytes], None] | None) -> None:
    if records and on_records is not None:
        on_records(b"".join(records))
    records.clear()


def _problem(rest: memoryview, header: EntryHeader | None, scan: Scan) -> str:
    """Why the bytes in `rest` are not the entry that belongs here; empty when they are."""
    if header is None:
        return "no entry starts here"
    if len(rest) < HEADER_BYTES + header.length:
        return f"the entry of {header.length} bytes is cut short"
    if not is_intact(rest, header):
        return "the checksum does not match"
    if scan.count == 0:
        return (
            "" if header.kind == Kind.CHECKPOINT else "the segment does not open with a checkpoint"
        )
    if header.raft_index != scan.first_index + scan.count:
        return f"raft index {header.raft_index} follows {scan.first_index + scan.count - 1}"
    if header.term < scan.last_term:
        return f"term {header.term} follows term {scan.last_term}"
    if header.kind == Kind.CHECKPOINT:
        return "a checkpoint stands inside of a segment"
    return ""


def _has_content(file: File, position: int, size: int) -> bool:
    return last_content(file, position, size) > position


def last_content(file: File, position: int, size: int) -> int:
    """End of the last byte that is not zero in [position, size); `position` when there is none."""
    last = position
    while position < size:
        chunk = file.pread(min(CHUNK_BYTES, size - position), position)
        if not chunk:
            break
        content = len(chunk.rstrip(b"\0"))
        if content:
            last = position + content
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
