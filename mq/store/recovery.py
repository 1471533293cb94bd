"""Opens the segments that are on disk: checks them, cuts a torn tail, refuses damage.

What a crash may leave behind the last sync is arbitrary: missing, torn, out of order. What had been
synced must be there. The durable mark in the `.idx` headers tells the two apart. For the first
entry that is not intact, at log offset P:

    intact entry behind P?   P below the durable mark?   then
    no                       either                      torn tail: cut at P, with a warning
    yes                      no                          never acknowledged: cut, with a warning
    yes                      yes, or the mark is lost    damage: LogDamaged, no `.log` changes

A cut below the mark means that the disk lost what it had synced; the report says how much, for who
must not vote on it.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor

from mq.errors import LogDamaged
from mq.logging import get_logger
from mq.store.format import (
    HEADER_BYTES,
    IDX_HEADER_BYTES,
    IDX_RECORD_BYTES,
    IdxHeader,
    decode_header,
    decode_idx_header,
)
from mq.store.scan import Scan, find_entry_after, last_content, scan_segment
from mq.store.segment import IDX_SUFFIX, LOG_SUFFIX, Segment
from mq.store.vfs import File, Vfs

log = get_logger(__name__)

ADVICE = (
    "The node does not start on it, because acknowledged messages may stand behind this point. "
    "Remove the data directory and let the node copy the log from its peers, or restore a backup; "
    "`mq dump --verify` shows what is still readable"
)


@dataclasses.dataclass(slots=True)
class RecoveryReport:
    cut_bytes: int = 0
    cut_path: str = ""
    cut_position: int = 0
    reason: str = ""
    synced_bytes_lost: int = 0
    checked_bytes: int = 0


@dataclasses.dataclass(slots=True)
class _Found:
    """A segment on disk, before it is known to be good."""

    segment: Segment
    file_bytes: int
    mark: IdxHeader | None
    problem: str = ""


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


def recover(
    vfs: Vfs, directory: str, verify_bytes: int, executor: Executor | None
) -> tuple[list[Segment], RecoveryReport]:
    """The good segments, all of them durable. Only a torn tail and `.idx` files are changed on
    disk.
    """
    report = RecoveryReport()
    found = [_look_at(vfs, directory, base) for base in segment_bases(vfs, directory)]
    budget = verify_bytes
    for item in reversed(found):
        if item is found[-1] or budget > 0 or not _trust_idx(item):
            _check(vfs, item, executor)
            budget -= item.file_bytes
            report.checked_bytes += item.segment.end
    bad = _first_problem(found)
    if bad is not None:
        _judge(found, bad, report)
        found = _cut(found, bad, report)
    for name in vfs.list_dir(directory):
        # An `.idx` whose `.log` is gone is what a crash in the middle of dropping a segment leaves.
        if name.endswith(IDX_SUFFIX) and not vfs.exists(
            f"{directory}/{name.removesuffix(IDX_SUFFIX)}{LOG_SUFFIX}"
        ):
            vfs.remove(f"{directory}/{name}")
    segments = [item.segment for item in found]
    for item in found:
        if item is not found[-1] and not item.segment.is_sealed:
            # The crash came between the roll and the sync that records it.
            item.segment.seal()
        if item.mark is None or item.segment.is_dirty:
            item.segment.sync()
        if item.mark is None:
            # Made anew; a crash must not lose it, for the reason that `Segment.create` gives.
            item.segment.idx.sync()
            vfs.sync_dir(directory)
    return segments, report


def _look_at(vfs: Vfs, directory: str, base: int) -> _Found:
    segment = Segment(vfs, directory, base, first_index=0)
    mark = None
    if vfs.exists(segment.idx_path):
        mark = decode_idx_header(segment.idx.pread(IDX_HEADER_BYTES, 0))
        if mark is not None and mark.base_log_offset != base:
            mark = None
    return _Found(segment, vfs.file_size(segment.log_path) or 0, mark)


def _trust_idx(item: _Found) -> bool:
    """A sealed segment whose sealed `.idx` ends where the log ends needs no reading. Fills in the
    segment.
    """
    segment, mark = item.segment, item.mark
    if mark is None or not mark.is_sealed or mark.synced_bytes != item.file_bytes:
        return False
    count = (segment.idx.size() - IDX_HEADER_BYTES) // IDX_RECORD_BYTES
    first = decode_header(segment.read(0, HEADER_BYTES))
    if count < 1 or first is None or first.raft_index != mark.first_index:
        return False
    segment.first_index, segment.count, segment.end = mark.first_index, count, item.file_bytes
    last = segment.records()[-1]
    segment.synced, segment.is_sealed, segment.is_seal_durable = item.file_bytes, True, True
    return int(last["position"]) + HEADER_BYTES + int(last["length"]) == item.file_bytes


def _check(vfs: Vfs, item: _Found, executor: Executor | None) -> None:
    """Reads the whole segment; what its `.idx` says otherwise is corrected."""
    segment = item.segment
    if not vfs.exists(segment.idx_path):
        vfs.open(segment.idx_path, create=True).close()
    repair = _IdxRepair(segment.idx)
    scan: Scan = scan_segment(segment.log, repair.take, executor)
    segment.first_index, segment.count, segment.end = scan.first_index, scan.count, scan.end
    segment.synced = min(item.mark.synced_bytes, scan.end) if item.mark else 0
    segment.is_sealed = bool(item.mark and item.mark.is_sealed and scan.end == item.file_bytes)
    segment.is_seal_durable = segment.is_sealed
    if item.mark is not None and item.mark.first_index != scan.first_index and scan.count:
        repair.changed = True
    if repair.changed:
        segment.synced = 0
    item.problem = scan.problem


class _IdxRepair:
    """Compares the records of a scan with the file and writes where they differ."""

    def __init__(self, idx: File) -> None:
        self._idx = idx
        self._position = IDX_HEADER_BYTES
        self.changed = False

    def take(self, records: bytes) -> None:
        if self._idx.pread(len(records), self._position) != records:
            self._idx.pwritev([records], self._position)
            self.changed = True
        self._position += len(records)


def _first_problem(found: list[_Found]) -> int | None:
    """Position in the list of the first segment that is not whole or does not follow the one before
    it.
    """
    for i, item in enumerate(found):
        segment = item.segment
        if i > 0:
            before = found[i - 1].segment
            if before.end_log_offset < segment.base:
                missing = segment.base - before.end_log_offset
                found[i - 1].problem = f"{missing} bytes are missing before the next segment"
                return i - 1
            if segment.count and segment.first_index != before.last_index + 1:
                item.problem = f"raft index {segment.first_index} follows {before.last_index}"
                segment.end = segment.count = 0
        if segment.count == 0 and not item.problem:
            item.problem = "the segment is empty"
        if not item.problem and item.mark and segment.end < item.mark.synced_bytes:
            missing = item.mark.synced_bytes - segment.end
            item.problem = f"{missing} bytes that had been synced are gone"
        if item.problem:
            return i
    return None


def _judge(found: list[_Found], bad: int, report: RecoveryReport) -> None:
    item = found[bad]
    segment = item.segment
    log_offset = segment.end_log_offset
    # The base of a segment of which nothing is synced says nothing about what is before it.
    marks = [(other.segment.base, other.mark.synced_bytes) for other in found if other.mark]
    durable = max((base + synced for base, synced in marks if synced), default=0)
    entry_follows = find_entry_after(segment.log, segment.end) is not None or any(
        later.segment.count for later in found[bad + 1 :]
    )
    if entry_follows and (item.mark is None or log_offset < durable):
        for other in found:
            other.segment.close()
        raise LogDamaged(segment.log_path, segment.end, item.problem, ADVICE)
    report.synced_bytes_lost = max(0, durable - log_offset)


def _cut(found: list[_Found], bad: int, report: RecoveryReport) -> list[_Found]:
    """Cuts at the problem. Segments behind it go first, so that a crash in between leaves the same
    problem.
    """
    segment = found[bad].segment
    report.cut_path, report.cut_position = segment.log_path, segment.end
    report.reason = found[bad].problem
    report.cut_bytes = last_content(segment.log, segment.end, found[bad].file_bytes) - segment.end
    for later in reversed(found[bad + 1 :]):
        report.cut_bytes += last_content(later.segment.log, 0, later.file_bytes)
        later.segment.remove()
    if segment.count == 0:
        segment.remove()
        found = found[:bad]
    else:
        if segment.is_sealed:
            segment.unseal()
        segment.truncate(segment.count)
        segment.synced = 0
        found = found[: bad + 1]
    if report.cut_bytes or report.synced_bytes_lost:
        log.warning(
            "torn tail cut",
            file=report.cut_path,
            position=report.cut_position,
            bytes=report.cut_bytes,
            reason=report.reason,
            synced_bytes_lost=report.synced_bytes_lost,
        )
    return found
