"""Establishes what the segment files of a log hold and what is wrong with them, changing nothing.

The one set of rules: `recovery` acts on what is found here at a start, `inspect` shows it, also
beside a running broker. What a crash may leave behind the last sync is arbitrary: missing, torn,
out of order. What had been synced must be there. The durable mark in the `.idx` headers tells the
two apart. For an entry that is not intact, or not there, at log offset P:

    intact entry behind P?   P below the durable mark?   then
    no                       either                      a torn tail
    yes                      no                          torn too: it was never acknowledged
    yes                      yes, or the mark is lost    damage

The mark of a segment is read before its bytes, so that all it promises is there, whatever a running
broker appends meanwhile. Nothing is mapped; memory holds a chunk or one entry.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor

import numpy as np

from mq.errors import LogDamaged
from mq.store.format import (
    HEADER_BYTES,
    IDX_HEADER_BYTES,
    IDX_RECORD,
    IDX_RECORD_BYTES,
    EntryHeader,
    IdxHeader,
    decode_header,
    decode_idx_header,
    pack_idx_record,
    segment_name,
)
from mq.store.scan import Scan, Source, find_entry_after, scan_segment
from mq.store.segment import IDX_SUFFIX, LOG_SUFFIX
from mq.store.vfs import File, Vfs

# From this size on two threads check a segment.
_HALVES_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """A place behind which a file does not go on as it should.

    Not `is_damage`: a torn tail, which the next start cuts, or an entry that is just being written.
    """

    path: str
    position: int
    reason: str
    is_damage: bool
    torn_bytes: int = 0
    # More than a crash can explain, although the node starts.
    synced_bytes_lost: int = 0
    # Where the next intact entry of the file stands, if there is one.
    resumes_at: int | None = None


@dataclasses.dataclass(slots=True)
class Look:
    """One segment. `scan` has what was found in it, by reading or by believing its `.idx`, and what
    `link` made of it beside its neighbours.
    """

    base: int
    path: str
    mark: IdxHeader | None
    file_bytes: int
    scan: Scan = dataclasses.field(default_factory=Scan)
    is_checked: bool = False  # every byte was read; otherwise the sealed `.idx` was believed
    error: OSError | None = None  # of the disk, where the scan ends
    resumes_at: int | None = None
    idx_differs_at: int | None = None

    @property
    def end_log_offset(self) -> int:
        return self.base + self.scan.end

    @property
    def is_sealed(self) -> bool:
        """The `.idx` claims to be complete."""
        mark = self.mark
        return mark is not None and bool(mark.is_sealed) and mark.synced_bytes == self.file_bytes

    @property
    def is_sound(self) -> bool:
        return not self.scan.problem and self.idx_differs_at is None


# -- files ----------------------------------------------------------------------------------------


class _SteadyFile:
    """A file that keeps the size it had when it was opened.

    The broker cuts off prepared space when it seals a segment; here the zeros stay, so that a scan
    which counts on them comes to its end.
    """

    def __init__(self, file: File, on_read: Callable[[int], None] | None) -> None:
        self._file = file
        self._size = file.size()
        self._on_read = on_read
        self._seen = 0

    def pread(self, length: int, position: int) -> bytes:
        data = self._file.pread(length, position)
        self._report(position + len(data))
        missing = min(length, self._size - position) - len(data)
        return data + bytes(missing) if missing > 0 else data

    def pread_into(self, buffer: memoryview, position: int) -> int:
        count = self._file.pread_into(buffer, position)
        self._report(position + count)
        end = max(count, min(len(buffer), self._size - position))
        buffer[count:end] = bytes(end - count)
        return end

    def _report(self, end: int) -> None:
        if self._on_read is not None and end > self._seen:
            self._on_read(end - self._seen)
            self._seen = end

    def size(self) -> int:
        return self._size


@contextlib.contextmanager
def open_steady(
    vfs: Vfs, path: str, on_read: Callable[[int], None] | None = None
) -> Iterator[Source]:
    """For reading only. `on_read` is told how many more bytes of the file have been read."""
    with contextlib.closing(vfs.open(path, read_only=True)) as file:
        yield _SteadyFile(file, on_read)


def log_path(directory: str, base: int) -> str:
    return f"{directory}/{segment_name(base)}{LOG_SUFFIX}"


def idx_path(path: str) -> str:
    return path.removesuffix(LOG_SUFFIX) + IDX_SUFFIX


def segment_bases(vfs: Vfs, directory: str) -> list[int]:
    """Log offsets of the segments in a directory, in order."""
    bases = []
    for name in vfs.list_dir(directory):
        stem = name.removesuffix(LOG_SUFFIX)
        if stem == name:
            continue
        if not (len(stem) == 20 and stem.isdecimal()):
            raise LogDamaged(
                f"{directory}/{name}", 0, "not a segment's name (20 digits)", "Move the file away"
            )
        bases.append(int(stem))
    return sorted(bases)


# -- one segment ----------------------------------------------------------------------------------


def examine(
    vfs: Vfs,
    directory: str,
    base: int,
    *,
    check: bool,
    executor: Executor | None = None,
    on_read: Callable[[int], None] | None = None,
) -> Look:
    """`check`: reads it all, in one pass, even if its `.idx` is sealed and sound.

    An OSError in the middle of the log is a fact like others, see `Look.error`; it is raised when
    the files cannot be opened, as FileNotFoundError when there is no such segment.
    """
    path = log_path(directory, base)
    with contextlib.ExitStack() as files:
        idx = mark = None
        with contextlib.suppress(FileNotFoundError):
            idx = files.enter_context(open_steady(vfs, idx_path(path)))
            mark = _read_mark(idx, base)
        file = files.enter_context(open_steady(vfs, path, on_read))
        look = Look(base, path, mark, file.size())
        if check or idx is None or not _believe(look, file, idx):
            _check(look, file, idx, executor)
    return look


def _read_mark(idx: Source, base: int) -> IdxHeader | None:
    # The broker may be writing the header right now: then the second read finds it whole.
    for _ in range(2):
        mark = decode_idx_header(idx.pread(IDX_HEADER_BYTES, 0))
        if mark is not None:
            return mark if mark.base_log_offset == base else None
    return None


def _believe(look: Look, file: Source, idx: Source) -> bool:
    """Fills in what a scan would find, by a sealed `.idx` that ends where the log ends."""
    count = (idx.size() - IDX_HEADER_BYTES) // IDX_RECORD_BYTES
    if look.mark is None or not look.is_sealed or count < 1:
        return False
    first_index = look.mark.first_index
    _, first = locate(file, idx, 0, first_index)
    position, last = locate(file, idx, count - 1, first_index + count - 1)
    if not first or not last or position + HEADER_BYTES + last.length != look.file_bytes:
        return False
    look.scan = Scan(first, last, count, look.file_bytes)
    return True


def locate(
    file: Source, idx: Source, number: int, raft_index: int
) -> tuple[int, EntryHeader | None]:
    """Position and header of the entry of record `number` of the `.idx`, if that entry stands
    there.
    """
    with contextlib.suppress(OSError):
        record = idx.pread(IDX_RECORD_BYTES, IDX_HEADER_BYTES + number * IDX_RECORD_BYTES)
        position = int.from_bytes(record[:4], "little")
        header = decode_header(file.pread(HEADER_BYTES, position))
        if (
            header is not None
            and header.raft_index == raft_index
            and record == pack_idx_record(position, header.length, header.term, header.stored_at_ms)
        ):
            return position, header
    return 0, None


class _IdxComparison:
    """Takes the records of a scan and remembers where the `.idx` first differs from them."""

    def __init__(self, idx: Source | None, number: int = 0) -> None:
        self._idx = idx
        self._position = IDX_HEADER_BYTES + number * IDX_RECORD_BYTES
        self.differs_at: int | None = None

    def __call__(self, records: bytes) -> None:
        found = self._idx.pread(len(records), self._position) if self._idx else b""
        if found != records and self.differs_at is None:
            # No record is like those that stand for missing ones.
            rows = np.frombuffer(found.ljust(len(records), b"\xff"), IDX_RECORD)
            same = int((rows != np.frombuffer(records, IDX_RECORD)).argmax())
            self.differs_at = self._position + same * IDX_RECORD_BYTES
        self._position += len(records)


def _check(look: Look, file: Source, idx: Source | None, executor: Executor | None) -> None:
    look.is_checked = True
    try:
        if not _scan_halves(look, file, idx, executor):
            look.scan, comparison = Scan(), _IdxComparison(idx)
            scan_segment(file, comparison, look.scan)
            look.idx_differs_at = comparison.differs_at
    except OSError as error:
        look.scan.problem = f"the bytes from here on cannot be read ({error.strerror or error})"
        look.error = error
    scan = look.scan
    if look.mark is not None and scan.count and look.mark.first_index != scan.first_index:
        look.idx_differs_at = 0
    if scan.problem:
        look.resumes_at = find_entry_after(file, scan.end)


def _scan_halves(look: Look, file: Source, idx: Source | None, executor: Executor | None) -> bool:
    """Both halves of a large segment at once, on two threads. False when it is small, the `.idx`
    does not tell where the second half starts, or the first one has a problem: then one scan has to
    go through all of it.
    """
    mark = look.mark
    if executor is None or idx is None or mark is None or mark.synced_bytes < _HALVES_BYTES:
        return False
    records = range(1, (idx.size() - IDX_HEADER_BYTES) // IDX_RECORD_BYTES)
    half = mark.synced_bytes // 2
    middle = bisect.bisect_left(records, half, key=lambda i: _position(idx, i)) + 1
    _, before = locate(file, idx, middle - 1, mark.first_index + middle - 1)
    start, header = locate(file, idx, middle, mark.first_index + middle)
    if before is None or header is None:
        return False
    rest = Scan(last=before, end=start)
    comparisons = _IdxComparison(idx), _IdxComparison(idx, middle)
    later = executor.submit(scan_segment, file, comparisons[1], rest)
    try:
        scan = scan_segment(file, comparisons[0], look.scan, stop=start)
    finally:
        # Not left behind: the file will be closed.
        later.exception()
    if scan.problem or scan.end != start or scan.last != before:
        return False
    look.scan = dataclasses.replace(rest, first=scan.first, count=scan.count + rest.count)
    different = [each.differs_at for each in comparisons if each.differs_at is not None]
    look.idx_differs_at = min(different, default=None)
    later.result()
    return True


def _position(idx: Source, number: int) -> int:
    """The position of an entry by its record; past any position if there is no such record yet."""
    record = idx.pread(4, IDX_HEADER_BYTES + number * IDX_RECORD_BYTES)
    return int.from_bytes(record, "little") or 1 << 32


# -- all of them ----------------------------------------------------------------------------------


def link(looks: Sequence[Look], removed: Collection[int] = ()) -> None:
    """Finds segments that end before their mark, or do not go on where the one before them ends, if
    none between them was removed.
    """
    for look in looks:
        lost = look.mark.synced_bytes - look.scan.end if look.mark else 0
        if lost > 0 and not look.scan.problem:
            look.scan.problem = f"{lost} bytes that had been synced are gone"
    for before, look in itertools.pairwise(looks):
        if before.scan.problem or any(before.base < base < look.base for base in removed):
            continue
        missing = look.base - before.end_log_offset
        first, expected = look.scan.first, before.scan.last_index + 1
        if missing > 0:
            before.scan.problem = f"{missing} bytes are missing before the next segment"
        elif first is not None and first.raft_index != expected:
            if look.scan.count > 1:
                look.resumes_at = HEADER_BYTES + first.length
            look.scan = Scan(
                problem=f"raft index {first.raft_index} follows {expected - 1}",
                torn_bytes=look.scan.end + look.scan.torn_bytes,
            )


def judge(looks: Sequence[Look]) -> list[Problem]:
    """The problems in order. Nothing follows a torn tail: all that stands behind goes with it."""
    # The base of a segment of which nothing is synced says nothing about what is before it.
    marks = [(look.base, look.mark.synced_bytes) for look in looks if look.mark]
    durable = max((base + synced for base, synced in marks if synced), default=0)
    problems = []
    for i, look in enumerate(looks):
        if not look.scan.problem:
            continue
        is_entry_behind = look.resumes_at is not None or any(
            later.scan.count or later.resumes_at is not None for later in looks[i + 1 :]
        )
        lost = max(0, durable - look.end_log_offset)
        is_damage = is_entry_behind and (look.mark is None or lost > 0)
        problems.append(
            Problem(
                look.path,
                look.scan.end,
                look.scan.problem,
                is_damage=is_damage,
                torn_bytes=look.scan.torn_bytes,
                synced_bytes_lost=0 if is_damage else lost,
                resumes_at=look.resumes_at,
            )
        )
        if not is_damage:
            break
    return problems
