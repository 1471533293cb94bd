"""Ranges of the log that are known to be intact: merged, bounded, forgotten when they must be."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mq.store.format import HEADER_BYTES, IDX_RECORD, Kind, encode_header
from mq.store.verified import CHUNK_BYTES, VerifiedRanges, first_damaged


def ranges(*spans: tuple[int, int], chunks_max: int = 8) -> VerifiedRanges:
    verified = VerifiedRanges(chunks_max=chunks_max, hot_bytes=1000)
    verified.start_at(1 << 40)
    for start, end in spans:
        verified.add(start, end)
    return verified


def test_ranges_merge_and_only_what_was_added_is_covered() -> None:
    verified = ranges((10, 20), (30, 40))
    assert verified.covers(10, 20)
    assert verified.covers(32, 33)
    assert not verified.covers(15, 35)
    verified.add(20, 30)
    assert verified.covers(10, 40)
    assert not verified.covers(9, 10)
    assert not verified.covers(39, 41)


def test_ranges_are_as_a_set_of_bytes_says() -> None:
    rng = random.Random(7)
    for _ in range(50):
        verified, known = ranges(), set[int]()
        base = CHUNK_BYTES - 50
        for _ in range(12):
            start = base + rng.randrange(100)
            end = start + rng.randrange(1, 20)
            verified.add(start, end)
            known.update(range(start, end))
            for _ in range(20):
                start = base + rng.randrange(110)
                end = start + rng.randrange(1, 30)
                assert verified.covers(start, end) == (known >= set(range(start, end)))


def test_the_least_recently_used_chunk_is_forgotten() -> None:
    verified = ranges((0, 10), (CHUNK_BYTES, CHUNK_BYTES + 10), chunks_max=2)
    assert verified.covers(0, 10)
    verified.add(5 * CHUNK_BYTES, 5 * CHUNK_BYTES + 10)
    assert verified.covers(0, 10)
    assert not verified.covers(CHUNK_BYTES, CHUNK_BYTES + 10)


def test_many_small_ranges_take_little_memory() -> None:
    verified = ranges(*((at, at + 1) for at in range(0, 4000, 2)))
    assert len(verified._chunks[0]) <= 64
    assert verified.covers(3998, 3999)


def test_appended_bytes_are_verified_for_a_while() -> None:
    verified = VerifiedRanges(hot_bytes=1000)
    verified.start_at(500)
    verified.appended(1200)
    assert verified.covers(500, 1200)
    assert not verified.covers(499, 1200)
    verified.appended(3000)
    assert not verified.covers(1999, 2010)
    assert verified.covers(2000, 3000)
    verified.cut(100)
    assert verified.covers(100, 110)


def test_own_writes_are_trusted_behind_the_last_byte_that_left_memory() -> None:
    verified = VerifiedRanges(hot_bytes=10)
    verified.start_at(500)
    verified.appended(100 << 20)
    assert verified.is_appended(500)
    assert not verified.is_appended(499)
    verified.left_memory(10 << 20)
    assert not verified.is_appended(10 << 20), "the kernel may have read ahead"
    assert verified.is_appended(20 << 20)
    verified.left_memory(600)
    assert not verified.is_appended(10 << 20), "what is missing once was missing"


def test_a_sealed_segment_is_not_taken_for_intact_without_a_look() -> None:
    verified = VerifiedRanges(hot_bytes=1000)
    verified.start_at(500)
    verified.appended(900)
    verified.sealed(900)
    verified.appended(1200)
    assert not verified.covers(899, 900)
    assert verified.is_appended(899)
    assert verified.covers(900, 1200)


def test_truncated_or_replaced_bytes_have_to_be_read_again() -> None:
    verified = ranges((0, 10), (CHUNK_BYTES, CHUNK_BYTES + 10))
    verified.discard(CHUNK_BYTES + 5, CHUNK_BYTES + 6)
    assert verified.covers(0, 10)
    assert not verified.covers(CHUNK_BYTES, CHUNK_BYTES + 1)
    verified.discard(0)
    assert not verified.covers(0, 1)


def entries(*lengths: int) -> tuple[bytearray, np.ndarray]:
    data, records = bytearray(), []
    for at, length in enumerate(lengths):
        payload = bytes([at]) * length
        records.append((1000 + len(data), length, 3, 70 + at))
        data += encode_header(Kind.MESSAGES, 5 + at, 3, 70 + at, [payload], length) + payload
    return data, np.array(records, IDX_RECORD)


@pytest.fixture(params=["one by one", "by columns"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by columns":
        monkeypatch.setattr("mq.store.verified._FEW_ENTRIES", 0)


@pytest.mark.usefixtures("way")
def test_intact_entries_pass() -> None:
    data, records = entries(100, 0, 3000)
    assert first_damaged(memoryview(data), records, 5) is None
    # More may stand behind.
    assert first_damaged(memoryview(data + b"x"), records, 5) is None


@pytest.mark.usefixtures("way")
def test_a_flipped_bit_anywhere_is_found_in_its_entry() -> None:
    data, records = entries(60, 0, 5)
    ends = np.cumsum([HEADER_BYTES + length for length in (60, 0, 5)])
    for at in range(len(data)):
        data[at] ^= 4
        found = first_damaged(memoryview(data), records, 5)
        assert found == int(np.searchsorted(ends, at, side="right"))
        data[at] ^= 4


@pytest.mark.parametrize("field", ["position", "length", "term", "stored_at_ms"])
@pytest.mark.usefixtures("way")
def test_a_record_of_the_idx_that_says_something_else_is_found(field: str) -> None:
    data, records = entries(60, 30, 5)
    records[field][1] += 1
    assert first_damaged(memoryview(data), records, 5) is not None


@pytest.mark.usefixtures("way")
def test_another_raft_index_is_found() -> None:
    data, records = entries(60, 30)
    assert first_damaged(memoryview(data), records, 6) == 0


@pytest.mark.usefixtures("way")
def test_a_file_that_is_too_short_is_found() -> None:
    data, records = entries(60, 30)
    assert first_damaged(memoryview(data)[:-1], records, 5) == 1
    assert first_damaged(memoryview(b""), records, 5) == 0
