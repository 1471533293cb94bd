"""Reads a data directory without touching it: for `mq dump`, also beside a running broker.

Opens files read-only, takes no lock, creates and repairs nothing. A running broker appends, cuts
and drops meanwhile: reading is bounded by the end that the log had when `look` was called, damage
is believed only when a second look finds it too, and segments that vanish are listed as removed.
Knows nothing of how it is printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
from collections.abc import Callable, Iterator

from mq.errors import MalformedBatch, WrongDataDirectory
from mq.store import checkpoint, identity
from mq.store.batch import decode_payload
from mq.store.checkpoint import DerivedState
from mq.store.examine import (
    Look,
    Problem,
    examine,
    idx_path,
    judge,
    link,
    locate,
    log_path,
    open_steady,
    segment_bases,
)
from mq.store.format import HEADER_BYTES, EntryHeader, Kind
from mq.store.holding import default_held_queue
from mq.store.scan import Source, Walked, find_entry_after, misfit, walk
from mq.store.segment import LOG_SUFFIX
from mq.store.vfs import Vfs

LOG_DIRECTORY = "commitlog"
CHECKPOINT_FILE = "checkpoint"
_KIND_NAMES = {int(kind): kind.name.lower() for kind in Kind}
_NO_ENTRY = EntryHeader(0, 0, 0, 0, 0, 0)


class SegmentState(enum.Enum):
    SEALED = "sealed"
    ACTIVE = "active"
    EMPTY = "empty"  # it is being opened, or a crash left it so
    CUT = "cut"  # it stands behind a torn tail: the next start removes it


class Ending(enum.Enum):
    """The end of the log, or the reason why it has none."""

    CLEAN = "clean"
    TORN = "torn"  # the next start cuts it, unless it is just being written
    DAMAGED = "damaged"  # a node does not start on it


class Fit(enum.Enum):
    """The result of comparing the checkpoint file with the log, as a start does."""

    FITS = "fits"
    MISFIT = "misfit"  # it speaks of another log: queues and index are rebuilt
    INVALID = "invalid"  # it is not what was written: the same


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointSummary:
    fit: Fit
    raft_index: int = 0
    term: int = 0
    queues: int = 0
    index_full_files: int = 0
    index_newest_items: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentSummary:
    """The numbers of the first and last entry are 0 when there are no entries."""

    path: str
    base_log_offset: int
    used_bytes: int
    file_bytes: int
    entries: int
    first_index: int
    last_index: int
    first_term: int
    last_term: int
    first_stored_at_ms: int
    last_stored_at_ms: int
    state: SegmentState
    is_checked: bool  # every byte was read; otherwise the sealed `.idx` was believed


@dataclasses.dataclass(frozen=True, slots=True)
class EntrySummary:
    raft_index: int
    term: int
    kind: str
    stored_at_ms: int
    log_offset: int
    size_bytes: int  # with the header
    batches: int
    messages: int
    topics: list[str]  # as they come
    problem: str  # why an intact entry cannot be decoded


@dataclasses.dataclass(frozen=True, slots=True)
class QueueSummary:
    topic: str
    queue_id: int
    first_offset: int
    end_offset: int
    messages: int


# -- the directory --------------------------------------------------------------------------------


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns an unreadable file into WrongDataDirectory with the reason."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WrongDataDirectory(
            f"{error.filename or path} cannot be read: {error.strerror or error}"
        ) from error


def read_identity(vfs: Vfs, directory: str) -> identity.Identity | None:
    """The owner of the directory; None when it has none yet, or a log that lost its node.toml.

    WrongDataDirectory: it is not a data directory, or may not be read.
    """
    if not vfs.exists(directory):
        raise WrongDataDirectory(f"{directory} does not exist")
    with _reading(directory):
        names = set(vfs.list_dir(directory)) - {identity.LOCK_NAME, "lost+found"}
        if any(
            name.endswith(LOG_SUFFIX) and name[: -len(LOG_SUFFIX)].isdecimal() for name in names
        ):
            parent = os.path.dirname(os.path.abspath(directory))
            raise WrongDataDirectory(
                f"{directory} holds segments of a log: name the data directory, {parent}"
            )
        if names and not names & {identity.FILE_NAME, LOG_DIRECTORY}:
            raise WrongDataDirectory(
                f"{directory} is not a data directory: it has neither {identity.FILE_NAME} nor "
                f"{LOG_DIRECTORY}, but {', '.join(sorted(names)[:3])}"
            )
        return identity.read(vfs, directory)


def read_checkpoint(vfs: Vfs, directory: str) -> tuple[bool, DerivedState | None]:
    """Whether there is a checkpoint file, and what it says if it is valid.

    Call it before `look`: then it speaks of nothing that came after the look.
    """
    path = f"{directory}/{CHECKPOINT_FILE}"
    # Opened once: the broker may replace the file by one of another size at any time.
    with (
        _reading(path),
        contextlib.suppress(FileNotFoundError),
        contextlib.closing(vfs.open(path, read_only=True)) as file,
    ):
        return True, checkpoint.decode(file.pread(file.size(), 0))
    return False, None


# -- the log --------------------------------------------------------------------------------------


class LogInspector:
    """Call `look` first. `problems` and `removed` may grow while entries are read."""

    def __init__(self, vfs: Vfs, directory: str) -> None:
        # Told how many more bytes of the log a look has read.
        self.on_read: Callable[[int], None] | None = None
        self.segments: list[SegmentSummary] = []
        self.problems: list[Problem] = []
        self._vfs = vfs
        self._directory = f"{directory}/{LOG_DIRECTORY}"
        self._removed: set[int] = set()

    @property
    def removed(self) -> list[str]:
        """Segments that vanished before they were read: dropped by retention or cut off by Raft."""
        return [log_path(self._directory, base) for base in sorted(self._removed)]

    @property
    def ending(self) -> Ending:
        if any(problem.is_damage for problem in self.problems):
            return Ending.DAMAGED
        return Ending.TORN if self.problems else Ending.CLEAN

    def file_bytes(self) -> int:
        """Bytes that a check of everything has to read."""
        paths = [log_path(self._directory, base) for base in self._bases()]
        return sum(self._vfs.file_size(path) or 0 for path in paths)

    def look(self, *, check_all: bool = False) -> None:
        """Finds the segments and where their entries end. `check_all` reads every byte; otherwise
        only segments are read whose `.idx` is not sealed and sound, such as the active one.
        """
        looks = self._examine_all(self._bases(), {}, check=check_all)
        if any(problem.is_damage or problem.synced_bytes_lost for problem in _problems(looks)):
            known = {look.base: look for look in looks[:-1] if look.is_sound}
            looks = self._examine_all([look.base for look in looks], known, check=True)
        self.problems = _problems(looks)
        torn = [problem.path for problem in self.problems if not problem.is_damage]
        filled = [look for look in looks if look.scan.count]
        kept = [look.path for look in filled if not torn or look.path <= torn[0]]
        self.segments = [_segment_summary(look, kept) for look in looks]

    def entries(self, from_index: int = 0, kind: Kind | None = None) -> Iterator[EntrySummary]:
        """Whatever is readable from this raft index on, also behind damage."""
        for segment, walked in self._walk_all(from_index):
            if kind is None or walked.header.kind == kind:
                yield _entry_summary(segment.base_log_offset, walked)

    def queues(self, saved: DerivedState | None) -> list[QueueSummary]:
        """The queues as the log has them, with entries that are not committed yet.

        A queue starts where the checkpoint that opens the log has its end. It ends where the newest
        checkpoint says, be it the last segment's or the file that fits, and the entries after it.
        """
        filled = [segment for segment in self._kept() if segment.entries]
        if not filled:
            return []
        openings = (self._opening_ends(segment) for segment in filled)
        starts = next((ends for ends in openings if ends is not None), {})
        ends = self._opening_ends(filled[-1]) or {}
        from_index = filled[-1].first_index + 1
        if saved is not None and saved.raft_index >= from_index and self.fits(saved):
            ends = {(queue.topic, queue.queue_id): queue.end for queue in saved.queues}
            from_index = saved.raft_index + 1
        for segment, walked in self._walk_all(from_index):
            if walked.header.kind != Kind.MESSAGES:
                continue
            try:
                for batch, _ in decode_payload(walked.payload, 0).batches:
                    key, count = (batch.topic, batch.queue_id), batch.message_count
                    if batch.is_held:
                        held = default_held_queue(batch)
                        key, count = (held.topic, held.queue_id), 1
                    ends[key] = ends.get(key, 0) + count
            except (MalformedBatch, IndexError) as error:
                self._add_damage(segment, walked.position, str(error))
        return [
            QueueSummary(*key, starts.get(key, 0), end, end - starts.get(key, 0))
            for key, end in sorted(ends.items())
        ]

    def checkpoint(self, saved: DerivedState | None) -> CheckpointSummary:
        if saved is None:
            return CheckpointSummary(Fit.INVALID)
        return CheckpointSummary(
            Fit.FITS if self.fits(saved) else Fit.MISFIT,
            saved.raft_index,
            saved.term,
            len(saved.queues),
            len(saved.key_index.full),
            saved.key_index.items,
        )

    def fits(self, saved: DerivedState) -> bool:
        """Whether the checkpoint file speaks of an entry of this log."""
        for segment in self._kept():
            if segment.entries and segment.first_index <= saved.raft_index <= segment.last_index:
                found = next(self._walk(segment, saved.raft_index), None)
                return found is not None and found.header.term == saved.term
        return False

    # -- inside -----------------------------------------------------------------------------------

    def _bases(self) -> list[int]:
        with _reading(self._directory):
            return segment_bases(self._vfs, self._directory)

    def _examine_all(self, bases: list[int], known: dict[int, Look], *, check: bool) -> list[Look]:
        looks = [known.get(base) or self._examine(base, check=check) for base in bases]
        there = [look for look in looks if look is not None]
        link(there, self._removed)
        return there

    def _examine(self, base: int, *, check: bool) -> Look | None:
        """None when the segment was removed meanwhile."""
        try:
            with _reading(self._directory):
                look = examine(self._vfs, self._directory, base, check=check, on_read=self.on_read)
                if look.scan.problem and look.error is None:
                    self._end_before_a_write(look)
                return look
        except FileNotFoundError:
            self._removed.add(base)
            return None

    def _end_before_a_write(self, look: Look) -> None:
        """A write that was half done a moment ago is complete now: the look ends before it,
        cleanly.
        """
        scan = look.scan
        with open_steady(self._vfs, look.path) as file, contextlib.suppress(OSError):
            now = next(walk(file, scan.end, scan.end + 1), None)
            if now is not None and not misfit(now.header, scan.last):
                scan.problem, scan.torn_bytes, look.resumes_at = "", 0, None

    def _kept(self) -> list[SegmentSummary]:
        return [segment for segment in self.segments if segment.state is not SegmentState.CUT]

    def _walk_all(self, from_index: int) -> Iterator[tuple[SegmentSummary, Walked]]:
        for segment in self._kept():
            if segment.last_index >= from_index or self._is_damaged(segment):
                for walked in self._walk(segment, from_index):
                    yield segment, walked

    def _walk(self, segment: SegmentSummary, from_index: int) -> Iterator[Walked]:
        """The entries of a segment up to the end that `look` found, and those behind damage."""
        try:
            with _reading(segment.path), open_steady(self._vfs, segment.path) as file:
                position: int | None = self._locate(segment, file, from_index)
                end = segment.used_bytes
                while position is not None:
                    with contextlib.suppress(OSError):  # of the disk: as bad as other bytes
                        for walked in walk(file, position, end):
                            position = walked.position + HEADER_BYTES + walked.header.length
                            if walked.header.raft_index >= from_index:
                                yield walked
                    if position < end and not self._is_damaged(segment):
                        self._look_again(segment)
                    is_damaged = self._is_damaged(segment)
                    position = find_entry_after(file, position) if is_damaged else None
                    end = segment.file_bytes
        except FileNotFoundError:
            self._removed.add(segment.base_log_offset)

    def _locate(self, segment: SegmentSummary, file: Source, raft_index: int) -> int:
        """Position of an entry by the `.idx`, if that tells the truth; else the segment's start."""
        number = raft_index - segment.first_index
        position = 0
        if 0 < number < segment.entries:
            path = idx_path(segment.path)
            with contextlib.suppress(OSError), open_steady(self._vfs, path) as idx:
                position, _ = locate(file, idx, number, raft_index)
        return position if position < segment.used_bytes else 0

    def _look_again(self, segment: SegmentSummary) -> None:
        """The `.idx` was believed, and the log is not what it says."""
        look = self._examine(segment.base_log_offset, check=True)
        if look is not None and look.scan.problem:
            self._add_damage(segment, look.scan.end, look.scan.problem, look.resumes_at)

    def _is_damaged(self, segment: SegmentSummary) -> bool:
        return any(each.is_damage and each.path == segment.path for each in self.problems)

    def _add_damage(
        self, segment: SegmentSummary, position: int, reason: str, resumes_at: int | None = None
    ) -> None:
        self.problems.append(
            Problem(segment.path, position, reason, is_damage=True, resumes_at=resumes_at)
        )

    def _opening_ends(self, segment: SegmentSummary) -> dict[tuple[str, int], int] | None:
        """The queues' ends in the checkpoint that opens a segment; None when it cannot be had."""
        opening = next(self._walk(segment, 0), None)
        if opening is None:
            return None
        try:
            queues = checkpoint.decode_queues(opening.payload)
        except ValueError as error:
            self._add_damage(segment, opening.position, str(error))
            return None
        return {(queue.topic, queue.queue_id): queue.end for queue in queues}


def _problems(looks: list[Look]) -> list[Problem]:
    """Also of `.idx` files, which a start mends; that of the active segment is always behind."""
    reason = "the record is not what the log says"
    return judge(looks) + [
        Problem(idx_path(look.path), look.idx_differs_at, reason, is_damage=True)
        for look in looks
        if look.is_sealed and look.idx_differs_at is not None
    ]


def _segment_summary(look: Look, kept: list[str]) -> SegmentSummary:
    """`kept`: the paths of those with entries that a start does not remove."""
    scan = look.scan
    first, last = scan.first or _NO_ENTRY, scan.last or _NO_ENTRY
    state = SegmentState.CUT if scan.count else SegmentState.EMPTY
    if look.path in kept:
        state = SegmentState.ACTIVE if look.path == kept[-1] else SegmentState.SEALED
    return SegmentSummary(
        path=look.path,
        base_log_offset=look.base,
        used_bytes=scan.end,
        file_bytes=look.file_bytes,
        entries=scan.count,
        first_index=first.raft_index,
        last_index=last.raft_index,
        first_term=first.term,
        last_term=last.term,
        first_stored_at_ms=first.stored_at_ms,
        last_stored_at_ms=last.stored_at_ms,
        state=state,
        is_checked=look.is_checked,
    )


def _entry_summary(base: int, walked: Walked) -> EntrySummary:
    header = walked.header
    batches = messages = 0
    topics: dict[str, None] = {}
    problem = ""
    if header.kind == Kind.MESSAGES:
        try:
            for batch, _ in decode_payload(walked.payload, 0).batches:
                batches += 1
                messages += batch.message_count
                topics[batch.topic] = None
        except (MalformedBatch, IndexError) as error:
            problem = str(error)
    return EntrySummary(
        raft_index=header.raft_index,
        term=header.term,
        kind=_KIND_NAMES.get(header.kind, str(header.kind)),
        stored_at_ms=header.stored_at_ms,
        log_offset=base + walked.position,
        size_bytes=HEADER_BYTES + header.length,
        batches=batches,
        messages=messages,
        topics=list(topics),
        problem=problem,
    )
