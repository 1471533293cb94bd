"""Copies the log of a broker set into a backup: all of it, or what is new since the last run.

The copy is a CommitLog of its own, extended as a follower extends its: entries are checked by their
checksums, raft indexes and terms before they are written, and a run that was interrupted leaves no
more than a tail to cut. What is in the backup already has to be the log that the source has: its
last entry is compared, which by Raft's rules speaks for all before it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.metadata
import os
import time
from typing import TYPE_CHECKING

from mq.cli.backup_manifest import (
    FILE_NAME,
    LOG_DIRECTORY,
    Manifest,
    SegmentRecord,
    digest,
    load,
    save,
)
from mq.errors import (
    DataDirectoryInUse,
    IllegalRequest,
    LogDamaged,
    MalformedEntries,
    StorageFailed,
)
from mq.raft.membership import read_members
from mq.store.commitlog import CommitLog
from mq.store.examine import log_path
from mq.store.format import HEADER_BYTES, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mq.cli.backup_sources import Chunk, Source
    from mq.store.logreader import SegmentInfo
    from mq.store.vfs import Vfs

_LOCK_NAME = "lock"
# Of the files; how large segments are, the source says.
_ROOM_BYTES = 64 << 20
_LATE_S = 3.0
_BEGIN_ANEW = "The backup cannot be gone on with: begin a new one in another directory"


class Copy:
    """The backup of one set. `on_progress` is called with the bytes copied and the bytes to
    copy.
    """

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        source: Source,
        on_progress: Callable[[int, int], None] = lambda _, __: None,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._vfs = vfs
        self._directory = directory
        self._source = source
        self._on_progress = on_progress
        self._on_note = on_note
        self._manifest: Manifest | None = None
        self._log: CommitLog
        self._rest = b""  # the start of an entry whose end is still to come
        self._recorded: dict[int, SegmentRecord] = {}
        self.copied_bytes = 0

    def run(self) -> Manifest:
        """Everything is here, and durable, that the source had when this was called.

        IllegalRequest: the log does not continue what is here, and nothing was changed. LogDamaged,
        Unreachable, DiskFull, StorageFailed: what was copied before is kept, and the next run goes
        on with it.
        """
        try:
            with self._opened():
                self._check_source()
                first = self._first_chunk()
                target = first.end_offset
                if target > self._log.end_offset:
                    self._copy_through(target, first)
                self._log.sync()
                self._save(is_complete=True)
        except OSError as error:
            raise StorageFailed(
                f"{error.filename or self._directory}: {error.strerror or error}. The backup did "
                "not end: make room or mend the disk, and run it again"
            ) from error
        assert self._manifest is not None  # noqa: S101 - it was just saved
        return self._manifest

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        vfs, directory = self._vfs, self._directory
        vfs.make_dirs(directory)
        try:
            lock = vfs.lock(f"{directory}/{_LOCK_NAME}")
        except BlockingIOError:
            raise DataDirectoryInUse(
                f"{directory}: another backup is being written there; wait for it"
            ) from None
        with contextlib.closing(lock):
            self._manifest = self._load()
            self._recorded = {
                one.log_offset: one for one in (self._manifest.segments if self._manifest else ())
            }
            try:
                self._log = CommitLog(
                    vfs,
                    f"{directory}/{LOG_DIRECTORY}",
                    segment_bytes=_ROOM_BYTES,
                    verify_bytes=0,
                    background=False,
                )
            except LogDamaged as error:
                raise LogDamaged(
                    error.path,
                    error.position,
                    error.reason,
                    _BEGIN_ANEW,
                ) from None
            with contextlib.closing(self._log):
                self._check_beginning()
                yield
                last = self._log.segments()[-1]
            # Still locked: the next run may begin at once, and write behind the end.
            self._trim(last)

    def _load(self) -> Manifest | None:
        """Refuses a directory whose log is no backup, before the log is opened."""
        manifest, log = load(self._vfs, self._directory), f"{self._directory}/{LOG_DIRECTORY}"
        if manifest is None and self._vfs.exists(log) and self._vfs.list_dir(log):
            raise IllegalRequest(
                f"{self._directory} has a {LOG_DIRECTORY} but no {FILE_NAME}: it is no backup; "
                "name another directory"
            )
        return manifest

    def _check_beginning(self) -> None:
        """A backup that was complete begins where it did. If its first files are gone, a run must
        not make a shorter one of it as if nothing were missing.
        """
        manifest, log = self._manifest, self._log
        if manifest is None or manifest.completed_at is None:
            return
        if self._is_empty or log.start_offset != manifest.start_offset:
            path = log_path(f"{self._directory}/{LOG_DIRECTORY}", manifest.start_offset)
            raise LogDamaged(path, 0, "the file is missing", _BEGIN_ANEW)

    @property
    def _is_empty(self) -> bool:
        return self._log.last_index < self._log.first_index

    # -- does it go on here? -----------------------------------------------------------------------

    def _check_source(self) -> None:
        manifest, source = self._manifest, self._source
        if manifest is not None and (manifest.cluster, manifest.broker_set) != (
            source.cluster,
            source.broker_set,
        ):
            raise IllegalRequest(
                f"{self._directory} is a backup of set {manifest.broker_set} in cluster "
                f"{manifest.cluster}, not of set {source.broker_set} in cluster {source.cluster}: "
                "name another directory"
            )

    def _first_chunk(self) -> Chunk:
        """The next bytes; or, where the backup is new, the first ones."""
        if self._is_empty:
            first = self._source.read(0)
            self._begin_at(first)
            return first
        ref = self._log.ref(self._log.last_index)
        kept = self._log.read(ref.log_offset, HEADER_BYTES)
        end_offset = self._log.end_offset
        found = self._read_late(ref.log_offset, HEADER_BYTES)
        if found.log_offset == ref.log_offset:
            if not found.data:
                raise IllegalRequest(
                    f"{self._source.name} has the log up to {found.end_offset}, the backup in "
                    f"{self._directory} up to {end_offset}: the node is far behind, or it is "
                    "another log. Wait, or begin a new backup in another directory"
                )
            if found.data != kept:
                raise IllegalRequest(
                    f"entry {ref.raft_index} of {self._source.name} is not the one in "
                    f"{self._directory}: the set was restored, or lost what had been acknowledged. "
                    "Keep this backup, and begin a new one in another directory"
                )
        return self._source.read(end_offset)

    def _read_late(self, log_offset: int, bytes_max: int) -> Chunk:
        """A node may be a moment behind the one that was read last time."""
        deadline_s = time.monotonic() + _LATE_S
        while True:
            found = self._source.read(log_offset, bytes_max)
            if found.data or time.monotonic() > deadline_s:
                return found
            time.sleep(_LATE_S / 10)

    def _begin_at(self, chunk: Chunk) -> None:
        """The first segment that is there; its checkpoint has the state of that moment."""
        header = decode_header(chunk.data)
        if header is None:
            raise IllegalRequest(f"{self._source.name} has no log yet: there is nothing to copy")
        self._log.start_over(header.raft_index, chunk.log_offset)
        self._rest, self._recorded = b"", {}
        # So that a run which is interrupted right now is known for what it is.
        self._save(is_complete=False)

    # -- copying -----------------------------------------------------------------------------------

    def _copy_through(self, target: int, chunk: Chunk) -> None:
        total = target - max(chunk.log_offset, self._log.end_offset)
        while True:
            position = self._log.end_offset + len(self._rest)
            if chunk.log_offset > position:
                self._jump(chunk, position)
            elif not chunk.data:
                raise IllegalRequest(
                    f"{self._source.name} ends at {chunk.end_offset}, and had {target} before: "
                    "it lost a part of its log, or is another node. Begin again"
                )
            self._take(chunk)
            self._on_progress(self.copied_bytes, max(total, self.copied_bytes))
            if self._log.end_offset >= target:
                return
            chunk = self._source.read(self._log.end_offset + len(self._rest))

    def _jump(self, chunk: Chunk, position: int) -> None:
        """Retention was quicker. A backup that was never complete just begins later."""
        lost = f"the log from {position} to {chunk.log_offset} was dropped by retention"
        if self._manifest is not None and self._manifest.completed_at is not None:
            raise IllegalRequest(
                f"{lost} before it was copied to {self._directory}: keep that backup, begin a new "
                "one in another directory, and run it more often than retention.hours"
            )
        self._on_note(f"{lost} meanwhile: beginning there")
        self._begin_at(chunk)

    def _take(self, chunk: Chunk) -> None:
        segment_before = self._log.last_checkpoint_index
        data = self._rest + chunk.data
        size = self._whole(data)
        if size:
            try:
                self._log.extend(memoryview(data)[:size])
            except MalformedEntries as error:
                raise self._damaged(str(error)) from error
        self._rest = data[size:]
        self.copied_bytes += len(chunk.data)
        if self._log.last_checkpoint_index > segment_before > 0:
            self._log.sync()
            self._save(is_complete=False)

    def _whole(self, data: bytes) -> int:
        """The number of bytes from the start that are whole entries."""
        position = 0
        while len(data) - position >= HEADER_BYTES:
            header = decode_header(data, position)
            if header is None:
                raise self._damaged(f"no entry starts at byte {position} of {len(data)}")
            end = position + HEADER_BYTES + header.length
            if end > len(data):
                break
            position = end
        return position

    def _damaged(self, reason: str) -> LogDamaged:
        return LogDamaged(
            f"the log of {self._source.name}",
            self._log.end_offset,
            reason,
            "Look at that node with `mq dump --verify`, and back up from another one",
        )

    # -- the manifest ------------------------------------------------------------------------------

    def _save(self, *, is_complete: bool) -> None:
        """Saves a manifest of what is durable."""
        log, now = self._log, dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        before, infos = self._manifest, log.segments()
        if not is_complete:
            # The last one has hardly begun: its checksum would be for nothing.
            infos = infos[:-1]
        records = [self._record(info, self._last_index(info)) for info in infos]
        self._recorded = {one.log_offset: one for one in records}
        last = log.ref(records[-1].last_index) if records else None
        self._manifest = Manifest(
            cluster=self._source.cluster,
            broker_set=self._source.broker_set,
            version=importlib.metadata.version("mq"),
            source=self._source.name,
            created_at=before.created_at if before else now,
            updated_at=now,
            completed_at=now if is_complete else before.completed_at if before else None,
            first_index=log.first_index,
            last_index=last.raft_index if last else log.first_index - 1,
            last_term=last.term if last else 0,
            start_offset=log.start_offset,
            end_offset=last.end_log_offset if last else log.start_offset,
            stored_at_ms=last.stored_at_ms if last else 0,
            members=read_members(log, records[-1].first_index) if records else {},
            segments=records,
        )
        save(self._vfs, self._directory, self._manifest)

    def _last_index(self, info: SegmentInfo) -> int:
        return self._log.index_at(info.base_log_offset + info.size_bytes - 1)

    def _record(self, info: SegmentInfo, last_index: int) -> SegmentRecord:
        known = self._recorded.get(info.base_log_offset)
        if known is not None and known.size == info.size_bytes:
            return known
        return SegmentRecord(
            log_offset=info.base_log_offset,
            size=info.size_bytes,
            sha256=digest(self._vfs, info.path, info.size_bytes),
            first_index=info.first_index,
            last_index=last_index,
        )

    def _trim(self, last: SegmentInfo) -> None:
        """Gives back the room that was prepared behind the end."""
        if (self._vfs.file_size(last.path) or 0) > last.size_bytes:
            os.truncate(last.path, last.size_bytes)
