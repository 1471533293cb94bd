"""Are the replicas of a broker set the same? Compares their data directories, reading only, also
beside running nodes.

    the log      byte for byte and segment by segment, with the same names and borders, up to the
                 commit point; what retention dropped at the front of one is not missed
    its index    the `.idx` records of these entries
    derived      of each replica: the units of its queues and the items of its key index, as its
                 checkpoint counts them, against those that follow from its log

`python -m tests.support.log_compare DIR DIR DIR` compares up to what the checkpoints of the nodes
say is applied, which is committed, and ends with 1 when there is a difference.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mq.config import StoreConfig
from mq.hashing import text_hash
from mq.store import checkpoint
from mq.store.batch import decode_payload
from mq.store.consumequeue import UNIT_BYTES, Units, make_units
from mq.store.examine import idx_path
from mq.store.format import HEADER_BYTES, IDX_HEADER_BYTES, IDX_RECORD_BYTES, Kind
from mq.store.holding import default_held_queue
from mq.store.inspect import LogInspector, SegmentState, SegmentSummary, read_checkpoint
from mq.store.keyindex import HEADER_BYTES as INDEX_HEADER_BYTES
from mq.store.keyindex import ITEM, ITEM_BYTES, Header, item_blocks, key_slot_hashes
from mq.store.rowblocks import BLOCK_ROWS, CRC_BYTES
from mq.store.scan import walk
from mq.store.vfs import RealVfs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mq.store.checkpoint import DerivedState
    from mq.store.scan import Walked

_CHUNK_BYTES = 1 << 20
_VFS = RealVfs()
Queue: TypeAlias = tuple[str, int]


class Replica:
    """The files of one node as they are now."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Before the log, so that it speaks of nothing that came later.
        _, self.saved = read_checkpoint(_VFS, str(directory))
        self.inspector = LogInspector(_VFS, str(directory))
        self.inspector.look(check_all=True)
        kept = (SegmentState.SEALED, SegmentState.ACTIVE)
        self.segments = [each for each in self.inspector.segments if each.state in kept]

    @property
    def first_index(self) -> int:
        return self.segments[0].first_index if self.segments else 1

    @property
    def last_index(self) -> int:
        return self.segments[-1].last_index if self.segments else 0

    @property
    def applied_index(self) -> int:
        """Known to be applied, and so committed."""
        return self.saved.raft_index if self.saved else 0

    def parts(self, first_index: int, last_index: int) -> list[Part]:
        """The part of each segment that belongs to these entries."""
        return [
            self._part(segment, last_index)
            for segment in self.segments
            if segment.last_index >= first_index and segment.first_index <= last_index
        ]

    def _part(self, segment: SegmentSummary, last_index: int) -> Part:
        if segment.last_index <= last_index:
            size = segment.used_bytes
        else:
            last = next(self.inspector.entries(last_index))
            size = last.log_offset + last.size_bytes - segment.base_log_offset
        count = min(segment.last_index, last_index) - segment.first_index + 1
        return Part(Path(segment.path), segment.first_index, size, count)

    def walked(self, last_index: int) -> Iterator[tuple[int, Walked]]:
        """Entries up to `last_index`, each with the log offset of its segment."""
        for part in self.parts(0, last_index):
            with closing(_VFS.open(str(part.path), read_only=True)) as file:
                for one in walk(file, 0, part.size):
                    yield int(part.path.stem), one


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning of a segment, or all of it."""

    path: Path
    first_index: int
    size: int
    count: int

    @property
    def fact(self) -> tuple[str, int, int, int]:
        return self.path.name, self.first_index, self.size, self.count


def compare(
    directories: Sequence[Path],
    commit_index: int | None = None,
    *,
    derived: bool = True,
    index_slots: int = StoreConfig().index_slots,
) -> list[str]:
    """The differences, in words; empty if there are none.

    With a commit index, each must have all entries up to it. Without, each is compared up to where
    its checkpoint says that it has applied the log.
    """
    replicas = [Replica(directory) for directory in directories]
    found = [
        f"{replica.directory}: {problem.path} at {problem.position}: {problem.reason}"
        for replica in replicas
        for problem in replica.inspector.problems
        if problem.is_damage or problem.synced_bytes_lost
    ]
    reference = max(replicas, key=lambda replica: (replica.applied_index, replica.last_index))
    for replica in replicas:
        end = replica.applied_index if commit_index is None else commit_index
        if replica.last_index < end or reference.last_index < end:
            found.append(f"{replica.directory} ends with {replica.last_index}, before {end}")
        elif replica is not reference:
            found += compare_logs(reference, replica, end)
        if derived:
            found += check_derived(replica, index_slots)
    return found


def compare_logs(one: Replica, two: Replica, last_index: int) -> list[str]:
    """Up to an entry that both have, from the first one that both have."""
    first_index = max(one.first_index, two.first_index)
    parts = zip_longest(one.parts(first_index, last_index), two.parts(first_index, last_index))
    found = []
    for here, there in parts:
        if here is None or there is None or here.fact != there.fact:
            facts = [part and part.fact for part in (here, there)]
            return [f"segments of {one.directory} and {two.directory} differ: {facts}"]
        pairs = (
            (here.path, there.path, 0, here.size),
            (
                Path(idx_path(str(here.path))),
                Path(idx_path(str(there.path))),
                IDX_HEADER_BYTES,
                IDX_HEADER_BYTES + here.count * IDX_RECORD_BYTES,
            ),
        )
        for left, right, start, end in pairs:
            position = first_difference(left, right, start, end)
            if position is not None:
                found.append(f"{left} and {right} differ at byte {position}")
    return found


def first_difference(left: Path, right: Path, start: int, end: int) -> int | None:
    with left.open("rb", buffering=0) as one, right.open("rb", buffering=0) as two:
        for position in range(start, end, _CHUNK_BYTES):
            chunks = []
            for file in (one, two):
                file.seek(position)
                chunks.append(file.read(min(_CHUNK_BYTES, end - position)))
            if chunks[0] != chunks[1] or len(chunks[0]) < min(_CHUNK_BYTES, end - position):
                same = next(
                    (i for i, (a, b) in enumerate(zip(*chunks, strict=False)) if a != b),
                    min(map(len, chunks)),
                )
                return position + same
    return None


# -- what follows from the log ---------------------------------------------------------------------


def check_derived(replica: Replica, index_slots: int) -> list[str]:
    """The files of queues and index hold what the log says, as far as the checkpoint counts."""
    saved = replica.saved
    if saved is None or not replica.first_index <= saved.raft_index <= replica.last_index:
        return []  # a start would rebuild everything from the log
    starts, units, items = _derive(replica, saved.raft_index)
    found = []
    ends = {key: starts.get(key, 0) + len(rows) for key, rows in units.items()}
    counted = {(queue.topic, queue.queue_id): queue.end for queue in saved.queues}
    if counted != starts | ends:
        found.append(f"{replica.directory}: its checkpoint has {counted}, its log {starts | ends}")
    for (topic, queue_id), wanted in units.items():
        folder = replica.directory / "consumequeue" / topic / str(queue_id)
        if _units_in(folder, starts.get((topic, queue_id), 0), len(wanted)) != wanted.tobytes():
            found.append(f"{folder} is not what the log says")
    there = _items_in(replica.directory / "index", saved, index_slots)
    begin = replica.segments[0].base_log_offset
    if [item for item in there if item[1] >= begin] != items:
        found.append(f"{replica.directory}/index is not what the log says")
    return found


def _derive(
    replica: Replica, last_index: int
) -> tuple[dict[Queue, int], dict[Queue, Units], list[tuple[int, int]]]:
    """Queue offsets at the start of the log; units and items of all that is in it."""
    starts: dict[Queue, int] = {}
    units: dict[Queue, list[Units]] = {}
    items: list[tuple[int, int]] = []
    for base, walked in replica.walked(last_index):
        header = walked.header
        if header.kind == Kind.CHECKPOINT and header.raft_index == replica.first_index:
            queues = checkpoint.decode_queues(walked.payload)
            starts = {(queue.topic, queue.queue_id): queue.end for queue in queues}
        if header.kind != Kind.MESSAGES:
            continue
        for batch, log_offset in decode_payload(
            walked.payload, base + walked.position + HEADER_BYTES
        ).batches:
            if batch.is_held:
                held = default_held_queue(batch)
                place, size = np.array([log_offset]), np.array([len(batch.data)], np.uint32)
                rows = make_units(place, size, np.array([held.mark], np.uint64))
                units.setdefault((held.topic, held.queue_id), []).append(rows)
                continue
            offsets = batch.frame_starts + log_offset
            rows = make_units(offsets, batch.frame_sizes, batch.tag_hashes)
            units.setdefault((batch.topic, batch.queue_id), []).append(rows)
            hashes = key_slot_hashes(batch.key_hashes, text_hash(batch.topic))
            if len(hashes):
                owners = np.repeat(offsets, batch.key_counts)
                items += zip(hashes.tolist(), owners.tolist(), strict=True)
    return starts, {key: np.concatenate(rows) for key, rows in units.items()}, items


def _units_in(folder: Path, start: int, count: int) -> bytes:
    """Units from a queue offset on, as they stand: checksums are left out."""
    files = sorted(folder.iterdir()) if folder.exists() else []
    content = b"".join(_rows_of(file.read_bytes(), UNIT_BYTES) for file in files)
    skipped = start - int(files[0].name) if files else 0
    return content[skipped * UNIT_BYTES : (skipped + count) * UNIT_BYTES]


def _rows_of(content: bytes, row_bytes: int) -> bytes:
    """Blocks without the checksums behind them."""
    step = BLOCK_ROWS * row_bytes + CRC_BYTES
    parts = [content[at : at + step - CRC_BYTES] for at in range(0, len(content), step)]
    return b"".join(part[: len(part) // row_bytes * row_bytes] for part in parts)


def _items_in(folder: Path, saved: DerivedState, slots: int) -> list[tuple[int, int]]:
    """Hash and log offset of each, oldest first."""
    found: list[tuple[int, int]] = []
    full, newest, newest_count, *_ = saved.key_index
    for name in filter(None, (*full, newest)):
        content = (folder / name).read_bytes()
        count = newest_count
        if name != newest:
            header = Header.decode(content[:INDEX_HEADER_BYTES])
            if header is None:
                return []
            slots, count = header.slots, header.items
        rows = np.frombuffer(_rows_of(content[item_blocks(slots).at :], ITEM_BYTES), ITEM, count)
        found += zip(rows["hash"].tolist(), rows["log_offset"].tolist(), strict=True)
    return found


def main(arguments: list[str]) -> int:
    found = compare([Path(argument) for argument in arguments])
    sys.stdout.write("\n".join(found or ["the same"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
