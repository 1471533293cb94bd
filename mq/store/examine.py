"""Examines segment files of a log that may be in use, without changing them.

The rules are those of `recovery`: what is called damage here is what a node refuses to start on,
and a torn tail is what it would cut. The mark of a segment is read before its bytes, so that all it
promises is there, whatever a running broker appends meanwhile. Nothing is mapped; memory holds a
chunk or one entry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from typing_extensions import Buffer

from mq.errors import WrongDataDirectory
from mq.store.format import (
    HEADER_BYTES,
    IDX_HEADER_BYTES,
    IDX_RECORD,
    IDX_RECORD_BYTES,
    EntryHeader,
    IdxHeader,
    decode_header,
    decode_idx_header,
    is_intact,
    segment_name,
)
from mq.store.scan import (
    CHUNK_BYTES,
    PAYLOAD_BYTES_MAX,
    find_entry_after,
    last_content,
    scan_segment,
)
from mq.store.segment import IDX_SUFFIX, LOG_SUFFIX
from mq.store.vfs import File, Vfs


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


class Walked(NamedTuple):
    position: int
    header: EntryHeader
    payload: memoryview


@dataclasses.dataclass(slots=True)
class Look:
    """One segment as it was found: `count` entries in [0, end), the first and last as records."""

    base: int
    path: str
    mark: IdxHeader | None = None
    file_bytes: int = 0
    is_checked: bool = False  # every byte was read; otherwise the sealed `.idx` was believed
    first_index: int = 0
    count: int = 0
    end: int = 0
    first: np.void | None = None
    last: np.void | None = None
    problem: str = ""
    torn_bytes: int = 0
    resumes_at: int | None = None
    idx_differs_at: int | None = None

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1

    @property
    def idx_path(self) -> str:
        return self.path.removesuffix(LOG_SUFFIX) + IDX_SUFFIX

    @property
    def is_sealed(self) -> bool:
        """The `.idx` claims to be complete."""
        mark = self.mark
        return mark is not None and bool(mark.is_sealed) and mark.synced_bytes == self.file_bytes

    def take(self, records: bytes) -> None:
        rows = np.frombuffer(records, IDX_RECORD)
        if self.first is None:
            self.first = rows[0]
        self.last = rows[-1]
        self.count += len(rows)
        self.end = int(rows[-1]["position"]) + HEADER_BYTES + int(rows[-1]["length"])


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

    def view(self, length: int) -> memoryview:
        return self._file.view(length)

    # The rest of a File: the operating system refuses it, as the file is open for reading only.

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._file.pwritev(buffers, position)

    def allocate(self, position: int, length: int) -> None:
        self._file.allocate(position, length)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def open_steady(
    vfs: Vfs, path: str, on_read: Callable[[int], None] | None = None
) -> Iterator[File]:
    """For reading. FileNotFoundError: it was removed; WrongDataDirectory: it may not be read."""
    try:
        file = vfs.open(path, read_only=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(error, path) from error
    try:
        yield _SteadyFile(file, on_read)
    finally:
        file.close()


def unreadable(error: OSError, path: str) -> WrongDataDirectory:
    return WrongDataDirectory(f"{error.filename or path} cannot be read: {error.strerror or error}")


def walk(file: File, position: int, end: int) -> Iterator[Walked]:
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


def next_intact(file: File, position: int) -> int | None:
    """Position of the first intact entry behind `position`, as far as the file can be read."""
    try:
        return find_entry_after(file, position)
    except OSError:
        return None


# -- segments -------------------------------------------------------------------------------------


def examine(
    vfs: Vfs, directory: str, base: int, *, check: bool, on_read: Callable[[int], None] | None
) -> Look | None:
    """One segment; None when it was removed meanwhile. `check`: reads it all, even if its `.idx` is
    sealed and sound.
    """
    look = Look(base, f"{directory}/{segment_name(base)}{LOG_SUFFIX}")
    with contextlib.ExitStack() as files:
        idx = None
        with contextlib.suppress(FileNotFoundError):
            idx = files.enter_context(open_steady(vfs, look.idx_path))
            look.mark = _read_mark(idx, base)
        try:
            file = files.enter_context(open_steady(vfs, look.path, on_read))
        except FileNotFoundError:
            return None
        look.file_bytes = file.size()
        if check or idx is None or not _believe(look, file, idx):
            _check(look, file, idx)
    return look


def _read_mark(idx: File, base: int) -> IdxHeader | None:
    # The broker may be writing the header right now: then the second read finds it whole.
    for _ in range(2):
        mark = decode_idx_header(idx.pread(IDX_HEADER_BYTES, 0))
        if mark is not None:
            return mark if mark.base_log_offset == base else None
    return None


def _believe(look: Look, file: File, idx: File) -> bool:
    """Fills in the look from a sealed `.idx` that ends where the log ends."""
    count = (idx.size() - IDX_HEADER_BYTES) // IDX_RECORD_BYTES
    if not look.is_sealed or look.mark is None:
        return False
    try:
        first = decode_header(file.pread(HEADER_BYTES, 0))
        if count < 1 or first is None or first.raft_index != look.mark.first_index:
            return False
        last_at = IDX_HEADER_BYTES + (count - 1) * IDX_RECORD_BYTES
        records = [idx.pread(IDX_RECORD_BYTES, at) for at in (IDX_HEADER_BYTES, last_at)]
    except OSError:
        return False
    ends = np.frombuffer(b"".join(records), IDX_RECORD)
    if int(ends[1]["position"]) + HEADER_BYTES + int(ends[1]["length"]) != look.file_bytes:
        return False
    look.first_index, look.count, look.end = first.raft_index, count, look.file_bytes
    look.first, look.last = ends
    return True


def _check(look: Look, file: File, idx: File | None) -> None:
    idx_position = IDX_HEADER_BYTES

    def take(records: bytes) -> None:
        nonlocal idx_position
        look.take(records)
        # The `.idx` of the active segment is behind, and corrected at a start.
        if idx is not None and look.is_sealed and look.idx_differs_at is None:
            found = idx.pread(len(records), idx_position)
            if found != records:
                same = len(_common_prefix(found, records))
                look.idx_differs_at = idx_position + same // IDX_RECORD_BYTES * IDX_RECORD_BYTES
            idx_position += len(records)

    look.is_checked = True
    try:
        first = decode_header(file.pread(HEADER_BYTES, 0))
        look.first_index = first.raft_index if first else 0
        look.problem = scan_segment(file, take).problem
    except OSError as error:
        look.problem = f"the bytes from here on cannot be read ({error.strerror or error})"
    if not look.problem:
        return
    with contextlib.suppress(OSError):
        look.torn_bytes = last_content(file, look.end, file.size()) - look.end
    look.resumes_at = next_intact(file, look.end)
    with contextlib.suppress(OSError):
        # What was half written a moment ago is whole now: the look ends before it, cleanly.
        now = next(walk(file, look.end, look.end + 1), None)
        if now is not None and look.count and now.header.raft_index == look.last_index + 1:
            look.problem, look.torn_bytes, look.resumes_at = "", 0, None


def _common_prefix(one: bytes, other: bytes) -> bytes:
    length = min(len(one), len(other))
    differs = np.frombuffer(one, "u1", length) != np.frombuffer(other, "u1", length)
    return one[: int(differs.argmax()) if differs.any() else length]


def link(looks: Sequence[Look], removed: Collection[int]) -> None:
    """Finds segments that do not go on where the one before them ends, if none between them was
    removed.
    """
    for before, look in itertools.pairwise(looks):
        if before.problem or any(before.base < base < look.base for base in removed):
            continue
        missing = look.base - before.base - before.end
        if missing > 0:
            before.problem = f"{missing} bytes are missing before the next segment"
        elif look.count and look.first_index != before.last_index + 1:
            look.problem = f"raft index {look.first_index} follows {before.last_index}"
            if look.count > 1 and look.first is not None:
                look.resumes_at = HEADER_BYTES + int(look.first["length"])
            look.end = look.count = 0


def judge(looks: Sequence[Look]) -> list[Problem]:
    """Each problem by itself, with what stands behind it."""
    problems = []
    marks = [(look.base, look.mark.synced_bytes) for look in looks if look.mark]
    durable = max((base + synced for base, synced in marks if synced), default=0)
    is_loss_told = False
    for i, look in enumerate(looks):
        end = look.base + look.end
        is_followed = any(later.count for later in looks[i + 1 :])
        is_entry_behind = is_followed or look.resumes_at is not None
        lost = 0 if is_entry_behind or is_loss_told else max(0, durable - end)
        if look.problem or lost:
            is_loss_told = lost > 0
            problems.append(
                Problem(
                    look.path,
                    look.end,
                    look.problem or "the file ends here",
                    is_damage=is_entry_behind and (look.mark is None or end < durable),
                    torn_bytes=look.torn_bytes,
                    synced_bytes_lost=lost,
                    resumes_at=look.resumes_at,
                )
            )
        if look.idx_differs_at is not None:
            reason = "the record is not what the log says"
            problems.append(Problem(look.idx_path, look.idx_differs_at, reason, is_damage=True))
    return problems
