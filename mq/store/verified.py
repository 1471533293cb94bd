"""The bytes of the log that are known to be intact, and the check that makes them so.

Every entry has a crc, but consumers get slices out of the middle of entries. So the whole entry is
read and checked the first time a slice of it leaves the broker, and remembered here: as ranges of
log offsets, in chunks, the least recently used chunk forgotten first. The cache is small on
purpose: what is read again after a long time comes from the disk again, and is checked again.

What this process appended is trusted while it has not left the page cache, because that is what it
wrote. The kernel lets go of the oldest first, so a mark suffices: where something was missing, all
before is unknown, and so is what the kernel may have read ahead behind it. Readers do not ask for a
sealed segment whose file was written to since: nothing that is known of it counts.

Any thread may ask and add.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from mq.store.format import COVERED_FROM, HEADER, HEADER_BYTES, MAGIC, decode_header, is_intact

_CHUNK_BITS = 20
CHUNK_BYTES = 1 << _CHUNK_BITS
CHUNKS_MAX = 256
# Of one chunk. Entries are mostly read one after another, and their ranges merge.
_SPANS_MAX = 64
# Of what was appended last: taken to be in memory without a look.
HOT_BYTES = 32 << 20
_READ_AHEAD_BYTES = 4 << 20
# So many entries are checked sooner one by one than by columns.
_FEW_ENTRIES = 8


class VerifiedRanges:
    def __init__(self, *, chunks_max: int = CHUNKS_MAX, hot_bytes: int = HOT_BYTES) -> None:
        self._chunks_max = chunks_max
        self._hot_bytes = hot_bytes
        self._lock = threading.Lock()
        # By log offset / CHUNK_BYTES: spans [start, end), sorted, not touching each other.
        self._chunks: OrderedDict[int, list[tuple[int, int]]] = OrderedDict()
        # All that stands behind was appended by this process; the hot part not long ago, to the
        # newest segment.
        self._appended_from = self._hot_from = 0

    def start_at(self, end_offset: int) -> None:
        """Nothing that stands before is known."""
        with self._lock:
            self._chunks.clear()
            self._appended_from = self._hot_from = end_offset

    def appended(self, end_offset: int) -> None:
        """The log ends here now."""
        hot_from = end_offset - self._hot_bytes
        if hot_from > self._hot_from:
            with self._lock:
                self._hot_from = max(self._hot_from, hot_from)

    def sealed(self, end_offset: int) -> None:
        """A segment ends here, and the newest one begins."""
        with self._lock:
            self._hot_from = max(self._hot_from, end_offset)

    def cut(self, end_offset: int) -> None:
        """The log was truncated: what comes next is appended by this process."""
        self.discard(end_offset)
        self._appended_from = min(self._appended_from, end_offset)
        self._hot_from = min(self._hot_from, end_offset)

    def covers(self, start: int, end: int) -> bool:
        """Whether all of [start, end) is known to be intact."""
        if start >= self._hot_from:
            return True
        with self._lock:
            return all(
                self._has(number, start, end)
                for number in range(start >> _CHUNK_BITS, ((end - 1) >> _CHUNK_BITS) + 1)
            )

    def is_appended(self, log_offset: int) -> bool:
        """Whether this process wrote it, so that it is intact if it is still in memory."""
        return log_offset >= self._appended_from

    def left_memory(self, end: int) -> None:
        """Bytes before `end` have left the page cache."""
        with self._lock:
            self._appended_from = max(self._appended_from, end + _READ_AHEAD_BYTES)

    def distrust(self, start: int, end: int) -> None:
        """[start, end) is damaged, whatever was known of it."""
        with self._lock:
            self._appended_from = max(self._appended_from, end)
            self._hot_from = max(self._hot_from, end)
            for number in range(start >> _CHUNK_BITS, ((end - 1) >> _CHUNK_BITS) + 1):
                if self._has(number, start, end):
                    del self._chunks[number]

    def add(self, start: int, end: int) -> None:
        """[start, end) was read and found intact."""
        with self._lock:
            for number in range(start >> _CHUNK_BITS, ((end - 1) >> _CHUNK_BITS) + 1):
                base = number << _CHUNK_BITS
                self._merge(number, max(start, base), min(end, base + CHUNK_BYTES))
            while len(self._chunks) > self._chunks_max:
                self._chunks.popitem(last=False)

    def discard(self, start: int, end: int | None = None) -> None:
        """[start, end), or all from `start` on, has to be read again; with it some of what is
        around it.
        """
        first = start >> _CHUNK_BITS
        with self._lock:
            for number in list(self._chunks):
                if first <= number and (end is None or number << _CHUNK_BITS < end):
                    del self._chunks[number]

    def _has(self, number: int, start: int, end: int) -> bool:
        spans = self._chunks.get(number)
        if spans is None:
            return False
        self._chunks.move_to_end(number)
        base = number << _CHUNK_BITS
        start, end = max(start, base), min(end, base + CHUNK_BYTES)
        at = bisect.bisect_right(spans, start, key=lambda span: span[0]) - 1
        return at >= 0 and end <= spans[at][1]

    def _merge(self, number: int, start: int, end: int) -> None:
        spans = self._chunks.setdefault(number, [])
        self._chunks.move_to_end(number)
        first = bisect.bisect_left(spans, start, key=lambda span: span[1])
        last = bisect.bisect_right(spans, end, key=lambda span: span[0])
        if first < last:
            start, end = min(start, spans[first][0]), max(end, spans[last - 1][1])
        spans[first:last] = [(start, end)]
        if len(spans) > _SPANS_MAX:
            spans[:] = [(start, end)]


def first_damaged(data: memoryview, records: npt.NDArray[np.void], first_index: int) -> int | None:
    """The number of the first one of `damaged_entries`; None when all are intact."""
    if len(records) <= _FEW_ENTRIES:
        return _first_damaged_of_few(data, records, first_index)
    bad = damaged_entries(data, records, first_index)
    return int(bad.argmax()) if bad.any() else None


def _first_damaged_of_few(
    data: memoryview, records: npt.NDArray[np.void], first_index: int
) -> int | None:
    at = 0
    first_position = int(records["position"][0])
    for number, (position, length, term, stored_at_ms) in enumerate(records.tolist()):
        if position - first_position != at:
            return number - 1
        header = decode_header(data, at)
        if (
            header is None
            or header[2:] != (length, first_index + number, term, stored_at_ms)
            or not is_intact(data[at:], header)
        ):
            return number
        at += HEADER_BYTES + length
    return None


def damaged_entries(
    data: memoryview, records: npt.NDArray[np.void], first_index: int
) -> npt.NDArray[np.bool_]:
    """The entries that differ from their header or from their record in the `.idx`. `data` starts
    with the first of them; the records are consecutive. Python compares two numbers an entry.
    """
    starts = records["position"].astype(np.int64)
    starts -= starts[0]
    ends = starts + records["length"] + HEADER_BYTES
    bad = np.zeros(len(records), np.bool_)
    bad[:-1] = ends[:-1] != starts[1:]
    bad |= ends > len(data)
    # Where a place is wrong, nothing behind it can be looked at.
    count = int(bad.argmax()) if bad.any() else len(records)
    bad[count:] = True
    if not count:
        return bad
    places = starts[:count, None] + np.arange(HEADER_BYTES)
    headers = np.frombuffer(data, np.uint8)[places].view(HEADER).reshape(-1)
    indexes = np.arange(first_index, first_index + count, dtype=np.uint64)
    bad[:count] |= (headers["magic"] != MAGIC) | (headers["raft_index"] != indexes)
    for name in ("length", "term", "stored_at_ms"):
        bad[:count] |= headers[name] != records[name][:count]
    covered = zip((starts[:count] + COVERED_FROM).tolist(), ends[:count].tolist(), strict=True)
    crcs = [crc32(data[start:end]) for start, end in covered]
    bad[:count] |= headers["crc"] != np.array(crcs, np.uint32)
    return bad
