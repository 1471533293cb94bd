"""The walk over a segment takes any bytes: it ends, inside of the file, and says why."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.store import scan
from mq.store.format import HEADER_BYTES, IDX_RECORD, Kind, encode_header
from mq.store.scan import PAYLOAD_BYTES_MAX, Scan, find_entry_after, last_content, scan_segment
from tests.support.faulty_vfs import FaultyFile
from tests.support.logs import disk

PATH = "/data/a"


def entry(
    raft_index: int, payload: bytes = b"", *, kind: Kind = Kind.MESSAGES, term: int = 1
) -> bytes:
    return bytes(encode_header(kind, raft_index, term, 0, [payload], len(payload))) + payload


def entries(*payload_sizes: int, first_index: int = 1) -> list[bytes]:
    """A checkpoint and so many messages, each of bytes of its own."""
    sizes = enumerate(payload_sizes, first_index + 1)
    rest = [entry(index, random.Random(index).randbytes(size)) for index, size in sizes]
    return [entry(first_index, b"state", kind=Kind.CHECKPOINT), *rest]


def file_of(data: bytes) -> FaultyFile:
    vfs = disk()
    vfs.write_all(PATH, data)
    return vfs.open(PATH)


def scanned(data: bytes) -> tuple[Scan, list[int]]:
    """And the positions in the records that were handed over."""
    records = bytearray()
    found = scan_segment(file_of(data), records.extend)
    return found, np.frombuffer(records, IDX_RECORD)["position"].tolist()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "CHUNK_BYTES", 64)


@pytest.mark.usefixtures("small_chunks")
def test_entries_are_found_across_the_borders_of_chunks() -> None:
    for shift in range(140):
        whole = entries(shift, 0, 1, 23, 24, 25, 63, 64, 65, 1000, 0, 0)
        data = b"".join(whole)
        for tail in (b"", bytes(1), bytes(1000)):
            found, positions = scanned(data + tail)
            assert (found.count, found.end, found.problem) == (len(whole), len(data), "")
            assert positions == np.cumsum([0, *map(len, whole[:-1])]).tolist()


@pytest.mark.usefixtures("small_chunks")
def test_a_scan_in_two_parts_finds_what_one_finds() -> None:
    whole = entries(*range(0, 300, 7))
    data = b"".join(whole) + bytes(100)
    for stop in np.cumsum([len(each) for each in whole]).tolist():
        found = scan_segment(file_of(data), stop=stop)
        assert (found.end, found.problem, found.torn_bytes) == (stop, "", 0)
        assert scan_segment(file_of(data), scan=found) == scan_segment(file_of(data))


@pytest.mark.parametrize(
    ("data", "count", "problem"),
    [
        (b"", 0, ""),
        (bytes(5000), 0, ""),
        (b"x", 0, "no entry starts here"),
        (entry(1), 0, "does not open with a checkpoint"),
        (b"".join(entries(10))[:-1], 1, "cut short"),
        (b"".join(entries(10))[:-20], 1, "no entry starts here"),
        (b"".join([*entries(), entry(3)]), 1, "raft index 3 follows 1"),
        (b"".join([*entries(), entry(1)]), 1, "raft index 1 follows 1"),
        (b"".join([*entries(), entry(2, term=0)]), 1, "term 0 follows term 1"),
        (b"".join([*entries(), entry(2, kind=Kind.CHECKPOINT)]), 1, "checkpoint stands inside"),
        (b"".join([*entries(9), b"\1"]), 2, "no entry starts here"),
        (b"".join([*entries(9), bytes(99), b"\1"]), 2, "no entry starts here"),
    ],
)
def test_a_walk_says_why_it_ends(data: bytes, count: int, problem: str) -> None:
    found, _ = scanned(data)
    assert found.count == count
    assert problem in found.problem
    assert bool(problem) == bool(found.problem)


@given(st.lists(st.integers(0, 90), max_size=5), st.data())
@settings(deadline=None)
def test_mutated_segments_give_only_entries_that_were_written(
    sizes: list[int], draw: st.DataObject
) -> None:
    whole = entries(*sizes)
    data = bytearray(b"".join(whole))
    position = draw.draw(st.integers(0, len(data) - 1))
    if draw.draw(st.booleans()):
        data[position] ^= 1 << draw.draw(st.integers(0, 7))
    else:
        length = draw.draw(st.integers(1, 60))
        data[position : position + length] = draw.draw(st.binary(max_size=60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "CHUNK_BYTES", 64)
        found, positions = scanned(bytes(data))
        after = find_entry_after(file_of(bytes(data)), position)
    assert found.end <= len(data)
    assert found.count == len(positions) <= len(whole)
    assert data[: found.end] == b"".join(whole[: found.count])
    assert after is None or any(data[after : after + len(one)] == one for one in whole)


@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from([b"MQE\x01", entry(1)]))))
@settings(deadline=None)
def test_any_bytes_can_be_walked(parts: list[bytes]) -> None:
    data = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "CHUNK_BYTES", 64)
        found, _ = scanned(data)
        after = find_entry_after(file_of(data), 0)
    assert found.end <= len(data)
    assert after is None or 0 < after < len(data)


@pytest.mark.usefixtures("small_chunks")
def test_the_next_entry_is_found_wherever_it_stands() -> None:
    one = entry(5, b"payload")
    for position in range(1, 200):
        data = bytearray(random.Random(position).randbytes(position) + one + b"behind")
        data[0] = 0
        assert find_entry_after(file_of(bytes(data)), 0) == position
        assert find_entry_after(file_of(bytes(data)), position) is None


def test_a_false_magic_does_not_hide_the_entry_behind_it() -> None:
    data = b"\0MQE\x01MQE\x01" + bytes(3) + b"MQE" + entry(5, b"payload")
    assert find_entry_after(file_of(data), 0) == 15


class CountingFile(FaultyFile):
    """Knows the longest read it was asked for."""

    longest = 0

    def pread(self, length: int, position: int) -> bytes:
        self.longest = max(self.longest, length)
        return super().pread(length, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        self.longest = max(self.longest, len(buffer))
        return super().pread_into(buffer, position)


def counting_file(data: bytes) -> CountingFile:
    vfs = disk()
    vfs.write_all(PATH, data)
    return CountingFile(vfs, vfs._names.file(PATH), PATH, read_only=True, locks=False)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("length", [PAYLOAD_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_length_that_cannot_be_is_not_read(length: int) -> None:
    giant = encode_header(Kind.CHECKPOINT, 1, 1, 0, [], length)
    file = counting_file(bytes(giant) + b"x" * 1000)
    assert "cut short" in scan_segment(file).problem
    assert find_entry_after(file, -1) is None
    assert file.longest <= 64


@pytest.mark.usefixtures("small_chunks")
def test_the_walk_needs_no_memory_for_a_large_entry() -> None:
    file = counting_file(b"".join(entries(10_000, 0)))
    assert scan_segment(file).count == 3
    assert file.longest <= HEADER_BYTES + 64


@pytest.mark.usefixtures("small_chunks")
def test_the_last_content_is_the_last_byte_that_is_not_zero() -> None:
    for end in (0, 1, 63, 64, 65, 128, 300):
        data = (b"\0" * (end - 1) + b"x" if end else b"") + bytes(200)
        assert last_content(file_of(data), 0, len(data)) == end
        assert last_content(file_of(data), end, len(data)) == end
