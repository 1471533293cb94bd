"""Small CommitLogs for tests: entries in one line, a log on a faulty disk, what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import HEADER_BYTES, IDX_HEADER_BYTES, IDX_RECORD_BYTES, Kind
from mq.store.scan import scan_segment
from tests.support.faulty_vfs import FaultyVfs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.store.vfs import Vfs

DIRECTORY = "/data/commitlog"
SEGMENT_BYTES = 4096


class Content(NamedTuple):
    """All that an entry says, without where it stands."""

    raft_index: int
    term: int
    kind: Kind
    stored_at_ms: int
    payload: bytes


def disk(seed: int = 0, *, capacity_bytes: int | None = None) -> FaultyVfs:
    """With a durable, empty /data."""
    vfs = FaultyVfs(seed, capacity_bytes=capacity_bytes)
    vfs.make_dirs("/data")
    vfs.sync_tree("/")
    return vfs


def open_log(
    vfs: Vfs,
    *,
    directory: str = DIRECTORY,
    segment_bytes: int = SEGMENT_BYTES,
    verify_bytes: int = 1 << 30,
    zero_ahead: bool = False,
) -> CommitLog:
    """Without threads, because `FaultyVfs` is for one."""
    return CommitLog(
        vfs,
        directory,
        segment_bytes=segment_bytes,
        verify_bytes=verify_bytes,
        zero_ahead=zero_ahead,
        background=False,
    )


def new_log(
    vfs: Vfs,
    *,
    directory: str = DIRECTORY,
    segment_bytes: int = SEGMENT_BYTES,
    zero_ahead: bool = False,
) -> CommitLog:
    """With its first checkpoint, entry 1."""
    log = open_log(vfs, directory=directory, segment_bytes=segment_bytes, zero_ahead=zero_ahead)
    log.roll(checkpoint())
    return log


def message(payload: bytes = b"payload", *, term: int = 1, now_ms: int = 1000) -> NewEntry:
    return NewEntry(Kind.MESSAGES, term, now_ms, [payload])


def checkpoint(payload: bytes = b"state", *, term: int = 1, now_ms: int = 1000) -> NewEntry:
    return NewEntry(Kind.CHECKPOINT, term, now_ms, [payload])


def append(log: CommitLog, *payloads: bytes, term: int = 1, now_ms: int = 1000) -> None:
    log.append([message(payload, term=term, now_ms=now_ms) for payload in payloads])


def segments_of(log: CommitLog, *segments: Sequence[bytes]) -> None:
    """More segments, each with a checkpoint and these payloads, all of it synced."""
    for payloads in segments:
        log.roll(checkpoint())
        append(log, *payloads)
    log.sync()


def content(log: CommitLog) -> list[Content]:
    return [
        Content(ref.raft_index, ref.term, ref.kind, ref.stored_at_ms, bytes(payload))
        for ref, payload in log.entries(log.first_index, log.last_index + 1)
    ]


def payloads(log: CommitLog) -> list[bytes]:
    return [entry.payload for entry in content(log) if entry.kind != Kind.CHECKPOINT]


def entry_bytes(payload: bytes) -> int:
    return HEADER_BYTES + len(payload)


def files(vfs: FaultyVfs, ending: str = "") -> dict[str, bytes]:
    """Content by name of what is in the log's directory."""
    names = [name for name in vfs.list_dir(DIRECTORY) if name.endswith(ending)]
    return {name: vfs.read_all(f"{DIRECTORY}/{name}") for name in names}


def send(source: CommitLog, target: CommitLog, bytes_max: int) -> None:
    """All that the target does not have yet, a region at a time."""
    while target.last_index < source.last_index:
        target.extend(source.region(target.last_index + 1, bytes_max).data)


def same_files(vfs: FaultyVfs, other: FaultyVfs) -> None:
    """Two logs are the same: the bytes of all segments and their records, without what is prepared
    behind them and without the marks.
    """
    assert used(vfs) == used(other)


def used(vfs: FaultyVfs) -> dict[str, tuple[bytes, bytes]]:
    """The entries of each segment, and their records."""
    logs, idxs = files(vfs, ".log"), files(vfs, ".idx")
    found = {}
    for name, data in logs.items():
        end = scan_segment(vfs.open(f"{DIRECTORY}/{name}", read_only=True))
        records = idxs[name.replace(".log", ".idx")][IDX_HEADER_BYTES:]
        found[name] = data[: end.end], records[: end.count * IDX_RECORD_BYTES]
    return found
