"""Makes the data directory of a node out of a backup: the same log, for a set with other members.

The members of a set stand in the checkpoint that opens the last segment of its log. So the
restored log gets one more segment, with the state after all entries of the backup and the new
members, in a later term. It is made of the backup and the members alone: restored on several nodes,
with the same members, it is the same on each, byte for byte, and they go on as one set.

All of it is made in a directory inside the target and moved in the end, `node.toml` last: what a
run that was interrupted leaves is no data directory, and the next one clears it away.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple
from zlib import crc32

from mq.broker.state.machine import Machine
from mq.broker.state.state import State
from mq.cli.backup_manifest import ADVICE, LOG_DIRECTORY, Manifest, chunks, no_progress, verify
from mq.config import StoreConfig
from mq.errors import DataDirectoryInUse, LogDamaged, StorageFailed, WrongDataDirectory
from mq.raft import handshake
from mq.raft.membership import checkpoint_entry, read_restorations
from mq.raft.vote import VoteFile
from mq.store.examine import log_path
from mq.store.identity import FILE_NAME, LOCK_NAME, Identity, take
from mq.store.store import Store
from mq.store.vfs import File, Vfs

_STAGING = "restore.tmp"
_VOTE = "vote"
# What a new node needs, in the order in which it is put in place: with the last, it is one.
_MOVED = (_VOTE, LOG_DIRECTORY, FILE_NAME)
# What stands in a directory that is as good as empty.
_NOT_CONTENT = frozenset({_STAGING, LOCK_NAME, "lost+found"})
# Applied at a time, so that memory does not grow with the log.
_APPLY_ENTRIES = 256
# See `_term`.
_TERMS = 1 << 16


class Restored(NamedTuple):
    identity: Identity
    members: dict[str, str]
    last_index: int  # with the checkpoint that has the new members
    term: int


def check_target(vfs: Vfs, data: str) -> None:
    """Raises WrongDataDirectory unless the directory is empty, or is not there yet."""
    names = set(vfs.list_dir(data)) if vfs.exists(data) else set()
    content = names - _NOT_CONTENT
    if _STAGING in names and FILE_NAME not in names:
        content -= set(_MOVED)  # a restore that was interrupted in its last step
    if content:
        raise WrongDataDirectory(
            f"{data} is not empty, it has {', '.join(sorted(content)[:3])}: nothing is restored "
            "over other data; name a new directory"
        )


def restore(
    vfs: Vfs,
    backup: str,
    manifest: Manifest,
    data: str,
    identity: Identity,
    members: Mapping[str, str],
    on_progress: Callable[[int], None] = no_progress,
) -> Restored:
    """Durable when this returns. `on_progress` is told how many more bytes were read; each byte is
    read three times. LogDamaged: the backup is not what it was, with file and position.
    WrongDataDirectory, StorageFailed.
    """
    check_target(vfs, data)
    verify(vfs, backup, manifest, on_progress)
    try:
        vfs.make_dirs(data)
        with contextlib.closing(_lock(vfs, data)):
            # Again: another process may have taken the directory while the backup was checked.
            check_target(vfs, data)
            return _make(vfs, backup, manifest, data, identity, members, on_progress)
    except OSError as error:
        raise StorageFailed(
            f"{error.filename or data}: {error.strerror or error}. The restore did not end: make "
            "room or mend the disk, and run it again"
        ) from error


def _lock(vfs: Vfs, data: str) -> File:
    try:
        return vfs.lock(f"{data}/{LOCK_NAME}")
    except BlockingIOError:
        raise DataDirectoryInUse(
            f"{data} is in use: a node runs on it, or another restore writes there"
        ) from None


def _make(
    vfs: Vfs,
    backup: str,
    manifest: Manifest,
    data: str,
    identity: Identity,
    members: Mapping[str, str],
    on_progress: Callable[[int], None],
) -> Restored:
    staging = f"{data}/{_STAGING}"
    # What another run may have left goes, the sign of it last.
    for name in (*_MOVED, _STAGING):
        _remove(vfs, f"{data}/{name}")
    # A log in a directory without an owner would be refused.
    take(vfs, staging, identity).close()
    vfs.make_dirs(f"{staging}/{LOG_DIRECTORY}")
    _copy(vfs, backup, manifest, staging, on_progress)
    restored = _open_new_segment(vfs, staging, manifest, identity, members, on_progress)
    _keep_vote(vfs, staging, restored)
    vfs.sync_tree(staging)
    _move(vfs, staging, data)
    return restored


def _copy(
    vfs: Vfs, backup: str, manifest: Manifest, staging: str, on_progress: Callable[[int], None]
) -> None:
    for segment in manifest.segments:
        source = log_path(f"{backup}/{LOG_DIRECTORY}", segment.log_offset)
        target = log_path(f"{staging}/{LOG_DIRECTORY}", segment.log_offset)
        found, position = hashlib.sha256(), 0
        with contextlib.closing(vfs.open(target, create=True)) as file:
            for chunk in chunks(vfs, source, segment.size):
                file.pwritev([chunk], position)
                found.update(chunk)
                position += len(chunk)
                on_progress(len(chunk))
            file.sync()
        if found.hexdigest() != segment.sha256:
            raise LogDamaged(source, 0, "the file changed while it was copied", ADVICE)


def _open_new_segment(
    vfs: Vfs,
    staging: str,
    manifest: Manifest,
    identity: Identity,
    members: Mapping[str, str],
    on_progress: Callable[[int], None],
) -> Restored:
    """The state comes from applying all entries, as on any replica. What was derived for that goes
    again: the node makes its own, by its own configuration.
    """
    state = State()
    store = Store(
        vfs,
        staging,
        StoreConfig(),
        identity,
        broker_state=state.encode,
        background=False,
    )
    try:
        log = store.log
        if (log.last_index, log.end_offset) != (manifest.last_index, manifest.end_offset):
            path = log_path(f"{staging}/{LOG_DIRECTORY}", manifest.segments[-1].log_offset)
            raise LogDamaged(path, 0, f"the copy ends at entry {log.last_index}", ADVICE)
        machine = Machine(state, store)
        while store.applied_index < log.last_index:
            before = store.applied_index
            for _ in machine.apply_through(before + _APPLY_ENTRIES):
                pass  # there is no broker to tell
            store.settle()
            ends = [log.ref(index).end_log_offset for index in (before, store.applied_index)]
            on_progress(ends[1] - ends[0])
        term = _term(manifest, members)
        restored = handshake.Restored(log.last_index + 1, _lineage(manifest, identity, members))
        entry = checkpoint_entry(
            store.checkpoint_payload(),
            members,
            (*read_restorations(log), restored),
            term=term,
            stored_at_ms=log.last_stored_at_ms,
        )
        last_index = log.roll(entry).raft_index
        log.sync()
    finally:
        store.abandon()
    for name in set(vfs.list_dir(staging)) - {LOG_DIRECTORY, FILE_NAME, LOCK_NAME}:
        _remove(vfs, f"{staging}/{name}")
    return Restored(identity, dict(members), last_index, term)


def _term(manifest: Manifest, members: Mapping[str, str]) -> int:
    """Later than any before, and another one for other members: two sets that were restored from
    one backup must not take each other's entries for their own, should they ever meet.
    """
    return manifest.last_term + 1 + crc32(_names(members).encode()) % _TERMS


def _lineage(manifest: Manifest, identity: Identity, members: Mapping[str, str]) -> int:
    """The lineage of the nodes that are restored together: no other node may talk to them. See
    `Past`.
    """
    words = [identity.cluster, identity.broker_set, _names(members)]
    words += [segment.sha256 for segment in manifest.segments]
    return int.from_bytes(hashlib.sha256("\n".join(words).encode()).digest()[:8], "big")


def _names(members: Mapping[str, str]) -> str:
    return ",".join(f"{node_id}={members[node_id]}" for node_id in sorted(members))


def _keep_vote(vfs: Vfs, staging: str, restored: Restored) -> None:
    """A node may be restored once more, after the others have gone on: then it has forgotten what
    it said to them, and must not help to elect a leader that lacks it. So none of three or more
    is trusted before all are there, which is how the first leader is elected. Of two, both are
    needed for anything, and the other one remembers.
    """
    vote = VoteFile(vfs, f"{staging}/{_VOTE}")
    with contextlib.closing(vote):
        vote.save(restored.term, None, must_catch_up=len(restored.members) > 2)


def _remove(vfs: Vfs, path: str) -> None:
    (vfs.remove_tree if os.path.isdir(path) else vfs.remove)(path)


def _move(vfs: Vfs, staging: str, data: str) -> None:
    for name in _MOVED:
        vfs.replace(f"{staging}/{name}", f"{data}/{name}")
        vfs.sync_dir(data)
    vfs.remove_tree(staging)
    vfs.sync_dir(data)
