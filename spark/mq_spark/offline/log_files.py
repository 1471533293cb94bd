"""Finds the logs below a path, and how far each of them is known to be committed. Changes nothing.

A path is a backup (of one broker set or of several), the data directory of a node, or the CommitLog
directory of either. What counts of a log:

    a backup             what its manifest speaks of
    a data directory     all segments but the last, because the checkpoint that opens a segment is
                         written when all before it is committed; of the last one what the node had
                         applied by its own checkpoint file; and, in a set of one node, what it had
                         synced

What stands behind may be taken back by the other nodes, and is left out. So the directory of a node
that runs can be read too: it is as it was at its last checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

from mq.cli import backup_manifest
from mq.errors import LogDamaged
from mq.store import checkpoint, identity
from mq.store.examine import idx_path, log_path, segment_bases
from mq.store.format import HEADER_BYTES, IDX_HEADER_BYTES, Kind, decode_header, decode_idx_header
from mq.store.inspect import CHECKPOINT_FILE, LOG_DIRECTORY
from mq.store.scan import Walked, walk
from mq.store.segment import LOG_SUFFIX
from mq.store.vfs import File, RealVfs
from mq.wire.v1.log_pb2 import Checkpoint
from mq_spark.errors import MqSparkError

VFS = RealVfs()
# Of a log that stands alone: nothing in it tells whose it is.
UNKNOWN_SET = "unknown"
ADVICE = "Read another copy of the log, or set failOnDataLoss to false to read the rest"


class SegmentFile(NamedTuple):
    """The entries in [0, end) of the file are committed. Times are those of the first entry of this
    segment and of the next: no entry in between is older or younger.
    """

    path: str
    log_offset: int
    end: int
    first_stored_at_ms: int
    last_stored_at_ms: int | None


class Log(NamedTuple):
    """The log of one broker set. `rest_bytes` stand behind the end and are not known to be
    committed.
    """

    broker_set: str
    segments: tuple[SegmentFile, ...]
    rest_bytes: int


class _Place(NamedTuple):
    """`manifest` is None for a log that is no backup, `node` empty for one without an owner."""

    broker_set: str
    node: str
    directory: str
    manifest: backup_manifest.Manifest | None


# -- where they are --------------------------------------------------------------------------------


def find_logs(path: str) -> list[Log]:
    """At least one, each of another broker set. MqSparkError says why there is none; LogDamaged and
    WrongDataDirectory say which file is not as it should be.
    """
    return [_read(place) for place in _places(os.path.abspath(path))]


def _places(path: str) -> list[_Place]:
    if not os.path.isdir(path):
        raise MqSparkError(f"path = {path!r}: there is no such directory")
    parent = os.path.dirname(path)
    if _has_segments(path):
        # The log of a directory that says more of it.
        for directory in (parent, path):
            if os.path.basename(path) == LOG_DIRECTORY and (found := _place(directory)):
                return [found]
        return [_Place(UNKNOWN_SET, "", path, None)]
    if found := _place(path):
        return [found]
    below = [f"{path}/{name}" for name in VFS.list_dir(path)]
    known = [found for one in below if os.path.isdir(one) and (found := _place(one))]
    if not known:
        raise MqSparkError(
            f"path = {path!r} is no backup, data directory or commitlog: it has neither a "
            f"{backup_manifest.FILE_NAME} nor a {identity.FILE_NAME} nor segments (*{LOG_SUFFIX})"
        )
    _check_sets(path, known)
    return known


def _place(directory: str) -> _Place | None:
    """None: neither a backup nor a data directory."""
    log_directory = f"{directory}/{LOG_DIRECTORY}"
    manifest = backup_manifest.load(VFS, directory)
    if manifest is not None:
        return _Place(manifest.broker_set, "", log_directory, manifest)
    owner = identity.read(VFS, directory)
    if owner is not None:
        return _Place(owner.broker_set, owner.node, log_directory, None)
    if _has_segments(log_directory):
        return _Place(UNKNOWN_SET, "", log_directory, None)
    return None


def _check_sets(path: str, places: list[_Place]) -> None:
    seen: dict[str, str] = {}
    for place in places:
        other = seen.setdefault(place.broker_set, place.directory)
        if other != place.directory:
            raise MqSparkError(
                f"path = {path!r} has the log of set {place.broker_set} twice, in {other} and "
                f"{place.directory}: name one of them"
            )


def _has_segments(directory: str) -> bool:
    return any(
        name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdecimal()
        for name in (VFS.list_dir(directory) if os.path.isdir(directory) else ())
    )


# -- what they hold --------------------------------------------------------------------------------


def _read(place: _Place) -> Log:
    manifest = place.manifest
    if manifest is not None:
        ends = {one.log_offset: one.size for one in manifest.segments}
        return Log(place.broker_set, _segments(place, ends), 0)
    bases = segment_bases(VFS, place.directory)
    ends = {base: after - base for base, after in itertools.pairwise(bases)}
    rest_bytes = 0
    if bases:
        ends[bases[-1]], rest_bytes = _committed(place, bases[-1])
    return Log(place.broker_set, _segments(place, ends), rest_bytes)


def _segments(place: _Place, ends: dict[int, int]) -> tuple[SegmentFile, ...]:
    paths = [log_path(place.directory, base) for base in ends]
    times = [opened_at_ms(path) for path in paths]
    return tuple(
        SegmentFile(path, base, end, first_ms or 0, last_ms)
        for path, (base, end), first_ms, last_ms in zip(
            paths, ends.items(), times, [*times[1:], None], strict=True
        )
    )


def opened_at_ms(path: str) -> int | None:
    """The time of the first entry; None if it cannot be read, which its reader will report."""
    with contextlib.suppress(OSError), open_log(path) as file:
        header = decode_header(file.pread(HEADER_BYTES, 0))
        return header.stored_at_ms if header is not None else None
    return None


def _committed(place: _Place, base: int) -> tuple[int, int]:
    """Up to which position entries of the last segment are known to be committed, and how many
    bytes of intact entries stand behind it.
    """
    path = log_path(place.directory, base)
    # Before the log, so that neither speaks of what is not seen of it.
    saved, synced_bytes = _applied(place), _synced_bytes(path)
    applied_end = synced_end = position = last_index = 0
    is_alone = False
    with open_log(path) as file:
        for walked in walk(file, 0, file.size()):
            if walked.header.kind == Kind.CHECKPOINT:
                is_alone = _members(walked) == {place.node}
            position = walked.position + HEADER_BYTES + walked.header.length
            last_index = walked.header.raft_index
            if saved and (last_index, walked.header.term) == (saved.raft_index, saved.term):
                applied_end = position
    if is_alone:
        # A missing part is found and reported by the reader that gets there.
        synced_end = synced_bytes
    if saved and saved.raft_index > last_index:
        # So much was there, and more.
        applied_end = position + 1
    end = max(applied_end, synced_end)
    return end, max(0, position - end)


def _applied(place: _Place) -> checkpoint.DerivedState | None:
    """Up to where the node had applied its log, by its own word."""
    if not place.node:
        return None
    return checkpoint.load(VFS, f"{os.path.dirname(place.directory)}/{CHECKPOINT_FILE}")


def _members(opening: Walked) -> set[str]:
    members = Checkpoint.FromString(bytes(opening.payload)).members
    return {member.node_id for member in members}


def _synced_bytes(path: str) -> int:
    with contextlib.suppress(FileNotFoundError), open_log(idx_path(path)) as idx:
        mark = decode_idx_header(idx.pread(IDX_HEADER_BYTES, 0))
        return mark.synced_bytes if mark is not None else 0
    return 0


@contextlib.contextmanager
def open_log(path: str) -> Iterator[File]:
    with contextlib.closing(VFS.open(path, read_only=True)) as file:
        yield file


def damaged(path: str, position: int, reason: str) -> LogDamaged:
    return LogDamaged(path, position, reason, ADVICE)
