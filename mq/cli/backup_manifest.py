"""The content of a backup of one broker set, and the check that it is still there.

    <backup>/<set>/manifest.json     this
    <backup>/<set>/commitlog/...     a plain CommitLog directory: segments, byte for byte

The manifest speaks of a prefix of the set's log, which is a state that the set once had. It is
written when all that it speaks of is durable; what stands behind that comes from a run that was
interrupted, and the next one goes on with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from mq.errors import IllegalRequest, LogDamaged
from mq.store.examine import log_path, open_steady
from mq.store.format import EntryHeader
from mq.store.scan import Scan, disorder, scan_segment
from mq.store.vfs import Vfs, write_file_atomically

FORMAT_VERSION = 1
FILE_NAME = "manifest.json"
LOG_DIRECTORY = "commitlog"
ADVICE = "Take another backup of the set, if it still runs, or restore an older one"
_CHECKSUM = "sha256"
_CHUNK_BYTES = 1 << 20


def no_progress(_: int) -> None:
    """The default of `on_progress`: reports nothing."""


class SegmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    log_offset: int
    size: int
    sha256: str
    first_index: int
    last_index: int

    @property
    def end(self) -> int:
        return self.log_offset + self.size


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format_version: int = FORMAT_VERSION
    cluster: str
    broker_set: str
    # Of the program that wrote it.
    version: str
    # Where the log was read last: a node and its address, or a directory.
    source: str
    created_at: str
    updated_at: str
    # When all was here that the set had at the beginning of a run; None: never yet.
    completed_at: str | None
    first_index: int
    last_index: int
    last_term: int
    start_offset: int
    end_offset: int
    # Of the newest entry.
    stored_at_ms: int
    # Of the set at the end of the log: raft addresses by node.
    members: dict[str, str]
    segments: list[SegmentRecord]

    @property
    def size(self) -> int:
        return self.end_offset - self.start_offset


# -- the file --------------------------------------------------------------------------------------


def save(vfs: Vfs, directory: str, manifest: Manifest) -> None:
    """Durable when this returns."""
    document = msgspec.to_builtins(manifest)
    text = json.dumps(document | {_CHECKSUM: _checksum(document)}, indent=2) + "\n"
    write_file_atomically(vfs, f"{directory}/{FILE_NAME}", [text.encode()])


def _checksum(document: dict[str, Any]) -> str:
    """The checksum of all other fields, independent of the layout of the file."""
    fields = {key: value for key, value in document.items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def load(vfs: Vfs, directory: str) -> Manifest | None:
    """None when there is none. LogDamaged: it is not what was written."""
    path = f"{directory}/{FILE_NAME}"
    size = vfs.file_size(path)
    if size is None:
        return None
    with contextlib.closing(vfs.open(path, read_only=True)) as file:
        data = file.pread(size, 0)
    try:
        document: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        version = document.get("format_version")
        manifest = msgspec.convert(document, Manifest) if version == FORMAT_VERSION else None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogDamaged(path, 0, f"this is no manifest: {error}", ADVICE) from error
    if manifest is None:
        raise IllegalRequest(
            f"{path} has format version {version}; this program reads version {FORMAT_VERSION}"
        )
    if document.get(_CHECKSUM) != _checksum(document):
        raise LogDamaged(path, 0, "it is not what was written: its SHA-256 is another", ADVICE)
    _check_joined(path, manifest)
    return manifest


def _check_joined(path: str, manifest: Manifest) -> None:
    """The segments stand one behind the other, from the start to the end."""
    log_offset, raft_index = manifest.start_offset, manifest.first_index
    for segment in manifest.segments:
        if (segment.log_offset, segment.first_index) != (log_offset, raft_index):
            reason = f"no segment starts at log offset {log_offset} with entry {raft_index}"
            raise LogDamaged(path, 0, reason, ADVICE)
        log_offset, raft_index = segment.end, segment.last_index + 1
    if (log_offset, raft_index) != (manifest.end_offset, manifest.last_index + 1):
        raise LogDamaged(path, 0, f"its segments end at log offset {log_offset}", ADVICE)


def find(vfs: Vfs, directory: str) -> dict[str, str]:
    """The backups in a directory, by the name of the set: of one set, or one below the other.
    IllegalRequest when there is none.
    """
    if vfs.exists(f"{directory}/{FILE_NAME}"):
        places = [directory]
    else:
        names = sorted(vfs.list_dir(directory)) if os.path.isdir(directory) else []
        places = [f"{directory}/{one}" for one in names]
    found: dict[str, str] = {}
    for place in places:
        if os.path.isdir(place) and (manifest := load(vfs, place)) is not None:
            found[manifest.broker_set] = place
    if not found:
        raise IllegalRequest(
            f"{directory} is no backup: neither it nor a directory in it has a {FILE_NAME}"
        )
    return found


# -- checking --------------------------------------------------------------------------------------


def verify(
    vfs: Vfs, directory: str, manifest: Manifest, on_read: Callable[[int], None] = no_progress
) -> int:
    """Reads all of it: every checksum, and that the entries follow each other. How many there are.
    LogDamaged names the first file and position that are not as they should be.
    """
    last: EntryHeader | None = None
    entries = 0
    for segment in manifest.segments:
        path = log_path(f"{directory}/{LOG_DIRECTORY}", segment.log_offset)
        scan = _scan(vfs, path, segment, on_read)
        first = scan.first
        if first is None or scan.last is None:
            raise LogDamaged(path, 0, "it has no entries", ADVICE)
        problem = disorder(first, last) if last is not None else ""
        numbers = scan.first_index, scan.last_index
        if problem or numbers != (segment.first_index, segment.last_index):
            reason = problem or f"it has the entries {numbers[0]} to {numbers[1]}"
            raise LogDamaged(path, 0, reason, ADVICE)
        if digest(vfs, path, segment.size) != segment.sha256:
            reason = "the file is not the one of the manifest: its SHA-256 is another"
            raise LogDamaged(path, 0, reason, ADVICE)
        last, entries = scan.last, entries + scan.count
    if last is not None and last.term != manifest.last_term:
        raise LogDamaged(f"{directory}/{FILE_NAME}", 0, f"the last term is {last.term}", ADVICE)
    return entries


def _scan(vfs: Vfs, path: str, segment: SegmentRecord, on_read: Callable[[int], None]) -> Scan:
    size = vfs.file_size(path)
    if size is None:
        raise LogDamaged(path, 0, "the file is missing", ADVICE)
    with open_steady(vfs, path, on_read) as file:
        try:
            scan = scan_segment(file, stop=segment.size)
        except OSError as error:
            raise LogDamaged(path, 0, f"it cannot be read: {error.strerror}", ADVICE) from error
    if scan.problem or scan.end != segment.size:
        reason = scan.problem or f"{segment.size} bytes belong here, {scan.end} are intact"
        raise LogDamaged(path, scan.end, reason, ADVICE)
    return scan


def digest(vfs: Vfs, path: str, size: int) -> str:
    """SHA-256 of the first `size` bytes."""
    found = hashlib.sha256()
    for chunk in chunks(vfs, path, size):
        found.update(chunk)
    return found.hexdigest()


def chunks(vfs: Vfs, path: str, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, or as many as there are."""
    with contextlib.closing(vfs.open(path, read_only=True)) as file:
        position = 0
        while position < size:
            chunk = file.pread(min(_CHUNK_BYTES, size - position), position)
            if not chunk:
                return
            yield chunk
            position += len(chunk)
