"""Logs to be backed up, without a broker: a node of a set of one on a real directory, which is a
source of a backup itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq.cli.backup_copy import Copy
from mq.cli.backup_sources import Chunk
from mq.store.identity import Identity
from mq.store.store import Store
from mq.store.vfs import RealVfs
from tests.support.stores import (
    NODE,
    NOW_MS,
    SMALL,
    append_entry,
    apply_through,
    batch,
    messages_of,
    roll,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mq.cli.backup_manifest import Manifest

VFS = RealVfs()


class LogNode:
    """A node of a set of one, whose log grows as it is told."""

    def __init__(self, data: Path, identity: Identity = NODE, term: int = 1) -> None:
        self.data = data
        self.store = Store(VFS, str(data), SMALL, identity, background=False)
        self.name, self.cluster, self.broker_set = "n", identity.cluster, identity.broker_set
        self.reads, self.term = 0, term
        self.before_read: Callable[[int], None] = lambda _: None
        roll(self.store, 1, term)
        self.write(5)

    def write(self, count: int, size: int = 300, seed: int = 0) -> None:
        for number in range(count):
            given = batch(messages_of(2, size=size, seed=seed + number))
            ref = append_entry(self.store, [given], NOW_MS, self.term)
            apply_through(self.store, ref.raft_index)
        self.store.log.sync()

    def read(self, log_offset: int, bytes_max: int = 700) -> Chunk:
        """In pieces that cut entries anywhere."""
        self.reads += 1
        self.before_read(self.reads)
        log = self.store.log
        log_offset = max(log_offset, log.start_offset)
        if log_offset >= log.end_offset:
            return Chunk(log_offset, b"", log.end_offset)
        with_segment = log.apart(log_offset, log_offset + 1)
        end = min(log_offset + min(bytes_max, 700), with_segment.end_offset)
        with_segment.close()
        return Chunk(log_offset, log.read(log_offset, end - log_offset), log.end_offset)

    def drop_front(self) -> None:
        assert self.store.drop_front(1).segments == 1

    def close(self) -> None:
        self.store.close()


def back_up(node: LogNode, place: Path) -> Manifest:
    return Copy(VFS, str(place), node).run()
