"""Opens the segments that are on disk: acts on what `examine` finds in them.

Damage is refused, and then nothing has been changed. A torn tail is cut, with a warning. `.idx`
files are mended where the log says otherwise, what a crash left unsealed is sealed, and all that is
kept is durable in the end. The steps are in such an order that a crash in between leaves the next
start with the same findings.

A cut below the durable mark means that the disk lost what it had synced; the report says how
much, because such a node must not vote on it.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor

from mq.errors import LogDamaged
from mq.logging import get_logger
from mq.store.examine import Look, Problem, examine, judge, link, segment_bases
from mq.store.format import IDX_HEADER_BYTES
from mq.store.scan import CHUNK_BYTES, scan_segment
from mq.store.segment import IDX_SUFFIX, LOG_SUFFIX, MENDED_SUFFIX, Segment
from mq.store.vfs import Vfs

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


def recover(
    vfs: Vfs, directory: str, verify_bytes: int, executor: Executor | None
) -> tuple[list[Segment], RecoveryReport]:
    """The good segments, all of them durable. Only a torn tail and `.idx` files are changed on
    disk. Raises LogDamaged, and OSError for what cannot be read: no fault of a disk is cut away.
    """
    looks = _examine_all(vfs, directory, verify_bytes, executor)
    report = RecoveryReport(checked_bytes=sum(look.scan.end for look in looks if look.is_checked))
    link(looks)
    problem = next(iter(judge(looks)), None)
    if problem is not None and problem.is_damage:
        raise LogDamaged(problem.path, problem.position, problem.reason, ADVICE)
    kept = [look for look in looks if problem is None or look.path <= problem.path]
    while kept and not kept[-1].scan.count:
        kept.pop()
    # From the end, and before the tail is cut: a crash in between leaves the same problem.
    for look in reversed(looks[len(kept) :]):
        Segment(vfs, directory, look.base, look.scan.first_index).remove()
    _remove_leftovers(vfs, directory)
    segments = [_restore(vfs, directory, look, is_last=look is kept[-1]) for look in kept]
    # A process that died may have synced no name yet: what is kept is durable only with its name.
    vfs.sync_dir(directory)
    if problem is not None:
        _report_cut(problem, looks, report)
    return segments, report


def _examine_all(
    vfs: Vfs, directory: str, verify_bytes: int, executor: Executor | None
) -> list[Look]:
    """Checks the newest segment, more of them up to `verify_bytes`, and any whose `.idx` cannot be
    believed.
    """
    looks: list[Look] = []
    budget = verify_bytes
    for base in reversed(segment_bases(vfs, directory)):
        check = not looks or budget > 0
        look = examine(vfs, directory, base, check=check, executor=executor)
        if look.error is not None:
            raise look.error
        if look.is_checked:
            budget -= look.file_bytes
        looks.append(look)
    return looks[::-1]


def _remove_leftovers(vfs: Vfs, directory: str) -> None:
    """An `.idx` whose `.log` is gone is what a crash in the middle of dropping a segment leaves."""
    names = set(vfs.list_dir(directory))
    for name in sorted(names):
        if name.endswith(MENDED_SUFFIX):
            # A crash came before it was put in its place.
            vfs.remove(f"{directory}/{name}")
        elif name.endswith(IDX_SUFFIX) and name.removesuffix(IDX_SUFFIX) + LOG_SUFFIX not in names:
            vfs.remove(f"{directory}/{name}")


def _restore(vfs: Vfs, directory: str, look: Look, *, is_last: bool) -> Segment:
    """The segment, cut at its problem if it has one; durable, and sealed unless it is the last."""
    segment = Segment(vfs, directory, look.base, look.scan.first_index)
    segment.count, segment.end = look.scan.count, look.scan.end
    _report_idx(vfs, segment.idx_path, look)
    if look.idx_differs_at is not None:
        _rewrite_records(vfs, segment)
    elif look.mark is not None:
        segment.synced = min(look.mark.synced_bytes, look.scan.end)
        segment.is_sealed = segment.is_seal_durable = look.is_sealed and not look.scan.problem
    if look.scan.problem:
        segment.truncate(segment.count)
    if not is_last and not segment.is_sealed:
        # The crash came between the roll and the sync that records it.
        segment.seal()
    if look.mark is None or segment.is_dirty:
        _write_again(segment)
        segment.sync()
    if look.mark is None:
        # Made anew; a crash must not lose it, for the reason that `Segment.create` gives.
        segment.idx.sync()
        vfs.sync_dir(directory)
    segment.open()
    return segment


def _report_idx(vfs: Vfs, path: str, look: Look) -> None:
    """Says that the `.idx` is about to be written again, and why."""
    size = vfs.file_size(path)
    position = look.idx_differs_at or 0
    if size is None:
        reason = "the file is missing"
    elif look.mark is None:
        reason, position = "its header is damaged", 0
    elif look.idx_differs_at is None:
        return
    elif position == 0:
        reason = "its header does not fit the log"
    else:
        reason = "it ends too early" if size <= position else "a record does not fit the log"
    log.warning(".idx written again from the log", file=path, position=position, reason=reason)


def _write_again(segment: Segment) -> None:
    """Writes again what no sync is known to have covered: if the last process ended with a failed
    sync, the kernel takes the pages for clean although they never reached the disk, and a new sync
    would succeed on nothing.
    """
    position = segment.synced
    while position < segment.end:
        chunk = segment.read(position, min(CHUNK_BYTES, segment.end - position))
        segment.log.pwritev([chunk], position)
        position += len(chunk)


def _rewrite_records(vfs: Vfs, segment: Segment) -> None:
    """From a second pass over the log: the first one was to change nothing."""
    vfs.open(segment.idx_path, create=True).close()
    position = IDX_HEADER_BYTES

    def write(records: bytes) -> None:
        nonlocal position
        segment.idx.pwritev([records], position)
        position += len(records)

    scan_segment(segment.log, write)


def _report_cut(problem: Problem, looks: list[Look], report: RecoveryReport) -> None:
    behind = [look.scan for look in looks if look.path > problem.path]
    report.cut_bytes = problem.torn_bytes + sum(scan.end + scan.torn_bytes for scan in behind)
    report.cut_path, report.cut_position = problem.path, problem.position
    report.reason, report.synced_bytes_lost = problem.reason, problem.synced_bytes_lost
    if report.cut_bytes or report.synced_bytes_lost:
        log.warning(
            "torn tail cut",
            file=report.cut_path,
            position=report.cut_position,
            bytes=report.cut_bytes,
            reason=report.reason,
            synced_bytes_lost=report.synced_bytes_lost,
        )
