"""The bytes on disk: what is encoded is decoded, what is changed is noticed, and the layout is the
documented one.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mq.store.format import (
    HEADER_BYTES,
    IDX_HEADER_BYTES,
    IDX_RECORD,
    IDX_RECORD_BYTES,
    IdxHeader,
    Kind,
    decode_header,
    decode_idx_header,
    encode_header,
    encode_idx_header,
    is_intact,
    pack_idx_record,
    segment_name,
)

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)

# The formats of version 1. A change here is a change of every log in the field.
GOLDEN_ENTRY = (
    "4d514501"  # magic and version
    "b2bf71e9"  # crc32
    "01000000"  # kind: messages
    "05000000"  # length
    "0700000000000000"  # raft index
    "0300000000000000"  # term
    "0068e5cf8b010000"  # stored at, ms: 1_700_000_000_000
    "68656c6c6f"  # hello
)
GOLDEN_IDX = (
    "4d514901"  # magic and version
    "cef83272"  # crc32
    "0700000000000000"  # first index
    "0010000000000000"  # base log offset
    "2d00000000000000"  # synced bytes
    "01000000"  # is sealed
    "00000000"
)
GOLDEN_RECORD = "000100000500000003000000000000000068e5cf8b010000"


def encode(kind: int, raft_index: int, term: int, stored_at_ms: int, *payload: bytes) -> bytes:
    length = sum(map(len, payload))
    header = encode_header(kind, raft_index, term, stored_at_ms, payload, length)
    return bytes(header) + b"".join(payload)


@given(st.integers(0, 255), U64, U64, U64, st.lists(st.binary(max_size=50), max_size=4))
def test_an_entry_is_read_as_it_was_written(
    kind: int, raft_index: int, term: int, stored_at_ms: int, payload: list[bytes]
) -> None:
    entry = encode(kind, raft_index, term, stored_at_ms, *payload)
    header = decode_header(b"before" + entry, 6)
    assert header is not None
    assert header[1:] == (kind, len(entry) - HEADER_BYTES, raft_index, term, stored_at_ms)
    assert is_intact(memoryview(entry), header)
    assert is_intact(memoryview(entry + b"the next one"), header)


@given(U64, U64, U64, st.integers(0, 1))
def test_an_idx_header_is_read_as_it_was_written(
    first: int, base: int, synced: int, s: int
) -> None:
    header = IdxHeader(first, base, synced, s)
    encoded = encode_idx_header(header)
    assert len(encoded) == IDX_HEADER_BYTES
    assert decode_idx_header(encoded + b"records") == header


@given(U32, U32, U64, U64)
def test_an_idx_record_is_read_as_it_was_written(
    position: int, length: int, term: int, stored_at_ms: int
) -> None:
    packed = pack_idx_record(position, length, term, stored_at_ms)
    record = np.frombuffer(packed, IDX_RECORD)[0]
    assert record.item() == (position, length, term, stored_at_ms)
    assert len(packed) == IDX_RECORD_BYTES


def test_the_bytes_on_disk_are_those_of_version_1() -> None:
    assert encode(Kind.MESSAGES, 7, 3, 1_700_000_000_000, b"hel", b"lo").hex() == GOLDEN_ENTRY
    assert encode_idx_header(IdxHeader(7, 4096, 45, 1)).hex() == GOLDEN_IDX
    assert pack_idx_record(256, 5, 3, 1_700_000_000_000).hex() == GOLDEN_RECORD
    kinds = {"NOOP": 0, "MESSAGES": 1, "COMMAND": 2, "CHECKPOINT": 3, "MEMBERSHIP": 4}
    assert {kind.name: kind.value for kind in Kind} == kinds
    assert segment_name(1 << 32) == "00000000004294967296"


@given(U64, U64, U64, st.binary(max_size=300))
def test_the_standard_library_checks_an_entry(
    raft_index: int, term: int, stored_at_ms: int, payload: bytes
) -> None:
    entry = encode(Kind.MESSAGES, raft_index, term, stored_at_ms, payload)
    magic, crc, kind, length, *rest = struct.unpack_from("<4sIB3xIQQQ", entry)
    assert (magic, crc) == (b"MQE\x01", zlib.crc32(entry[8:]))
    assert (kind, length, rest) == (1, len(payload), [raft_index, term, stored_at_ms])
    idx = encode_idx_header(IdxHeader(raft_index, term, stored_at_ms, 0))
    assert struct.unpack_from("<4sI", idx) == (b"MQI\x01", zlib.crc32(idx[8:40]))


def is_noticed(entry: bytes) -> bool:
    header = decode_header(entry)
    return header is None or not is_intact(memoryview(entry), header)


def test_every_flipped_bit_of_an_entry_is_noticed() -> None:
    entry = encode(Kind.MESSAGES, 7, 3, 1_700_000_000_000, b"hello")
    for position in range(len(entry)):
        for bit in range(8):
            changed = bytearray(entry)
            changed[position] ^= 1 << bit
            assert is_noticed(bytes(changed)), f"bit {bit} of byte {position}"
            # Also when there is something behind it, so that a longer length can be satisfied.
            assert is_noticed(bytes(changed) + bytes(1 << 16)), f"bit {bit} of byte {position}"


def test_every_flipped_bit_of_an_idx_header_is_noticed() -> None:
    header = encode_idx_header(IdxHeader(7, 4096, 45, 1))
    for position in range(len(header)):
        for bit in range(8):
            changed = bytearray(header)
            changed[position] ^= 1 << bit
            assert decode_idx_header(bytes(changed)) is None, f"bit {bit} of byte {position}"


def test_an_entry_cut_anywhere_is_noticed() -> None:
    entry = encode(Kind.NOOP, 1, 1, 1, b"hello")
    for length in range(len(entry)):
        assert is_noticed(entry[:length]), f"cut at {length}"


def test_zeros_are_no_entry() -> None:
    assert decode_header(bytes(4096)) is None
    assert decode_idx_header(bytes(4096)) is None


@given(st.binary(max_size=100), st.sampled_from([b"", b"MQE\x01", b"MQI\x01"]), st.integers(0, 110))
def test_decoders_take_any_bytes(data: bytes, magic: bytes, position: int) -> None:
    data = magic + data
    decode_idx_header(data)
    decode_header(data, position)
    header = decode_header(data)
    assert header is None or not is_intact(memoryview(data), header)
