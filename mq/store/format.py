"""Bytes of the CommitLog: entries and the `.idx` file beside each segment. docs/STORAGE.md is the
same for readers.

All integers are little-endian. An entry:

      0        4        8    9      12       16       24       32       40
      +--------+--------+----+------+--------+--------+--------+--------+-----------
      | magic  | crc32  |kind| zero | length |  raft  |  term  | stored | payload
      |"MQE\\1" |        |    |      |        | index  |        | at ms  | (length bytes)
      +--------+--------+----+------+--------+--------+--------+--------+-----------
                        |<------------------- crc32 covers ---------------------->

The last byte of the magic is the version. The crc stands before all that it covers, so that a
flipped bit in the kind or the length is found as surely as one in the payload. Nothing after the
last entry of a segment has the magic: preallocated space is zeros.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32  # the values of zlib.crc32 at four times its speed
from typing_extensions import Buffer

MAGIC = b"MQE\x01"
_HEADER = struct.Struct("<4sIB3xIQQQ")
_COVERED = struct.Struct("<B3xIQQQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
COVERED_FROM = 8


# The same header as a dtype, for many entries at once.
HEADER = np.dtype(
    [
        ("magic", "S4"),
        ("crc", "<u4"),
        ("kind", "u1"),
        ("zero", "V3"),
        ("length", "<u4"),
        ("raft_index", "<u8"),
        ("term", "<u8"),
        ("stored_at_ms", "<u8"),
    ]
)


class Kind(enum.IntEnum):
    NOOP = 0
    MESSAGES = 1
    COMMAND = 2
    CHECKPOINT = 3
    MEMBERSHIP = 4


KINDS = frozenset(Kind)


class EntryHeader(NamedTuple):
    crc: int
    kind: int
    length: int
    raft_index: int
    term: int
    stored_at_ms: int


def encode_header(
    kind: int, raft_index: int, term: int, stored_at_ms: int, payload: Sequence[Buffer], length: int
) -> bytes:
    """The header of an entry whose payload are these buffers, `length` bytes in all."""
    covered = _COVERED.pack(kind, length, raft_index, term, stored_at_ms)
    crc = crc32(covered)
    for part in payload:
        crc = crc32(part, crc)
    return MAGIC + _CRC.pack(crc) + covered


def decode_header(buffer: Buffer, position: int = 0) -> EntryHeader | None:
    """None when there is no entry at this position: other bytes, or too few of them."""
    if memoryview(buffer).nbytes - position < HEADER_BYTES:
        return None
    magic, *fields = _HEADER.unpack_from(buffer, position)
    return EntryHeader._make(fields) if magic == MAGIC else None


def is_intact(buffer: memoryview, header: EntryHeader) -> bool:
    """Whether the whole entry at the start of `buffer` is what its crc says."""
    end = HEADER_BYTES + header.length
    return len(buffer) >= end and crc32(buffer[COVERED_FROM:end]) == header.crc


# One record an entry, fixed width: raft index -> where and when.
IDX_RECORD = np.dtype(
    [
        ("position", "<u4"),  # of the entry's header, from the start of the segment
        ("length", "<u4"),  # of the payload
        ("term", "<u8"),
        ("stored_at_ms", "<u8"),
    ]
)
IDX_RECORD_BYTES = IDX_RECORD.itemsize
IDX_TERM_AT, IDX_TERM_BYTES = 8, 8
# A position has 32 bits: no segment is longer.
SEGMENT_BYTES_MAX = (1 << 32) - 1
pack_idx_record = struct.Struct("<IIQQ").pack

IDX_MAGIC = b"MQI\x01"
_IDX_COVERED = struct.Struct("<QQQI4x")
IDX_HEADER_BYTES = COVERED_FROM + _IDX_COVERED.size


class IdxHeader(NamedTuple):
    """Start of a `.idx` file: magic, crc32 of what follows, and these; padded with zeros to 40
    bytes.

    `synced_bytes` is the durable mark: so much of the segment had been synced when the header was
    written. The header itself is not synced, so that after a power loss the mark may be too small;
    it is never too large.
    """

    first_index: int
    base_log_offset: int
    synced_bytes: int
    is_sealed: int


def encode_idx_header(header: IdxHeader) -> bytes:
    covered = _IDX_COVERED.pack(*header)
    return IDX_MAGIC + _CRC.pack(crc32(covered)) + covered


def decode_idx_header(buffer: bytes) -> IdxHeader | None:
    """None when this is not the intact start of a `.idx` file."""
    if len(buffer) < IDX_HEADER_BYTES:
        return None
    covered = buffer[COVERED_FROM:IDX_HEADER_BYTES]
    if buffer[:COVERED_FROM] != IDX_MAGIC + _CRC.pack(crc32(covered)):
        return None
    return IdxHeader._make(_IDX_COVERED.unpack(covered))


def segment_name(log_offset: int) -> str:
    """File name without ending: the log offset of the segment's first byte."""
    return f"{log_offset:020d}"
