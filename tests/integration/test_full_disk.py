"""A file system that is really full: nothing is lost, reads go on, writing resumes."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from mq.config import StoreConfig
from mq.errors import DiskFull
from mq.store.batch import accept, prepare
from mq.store.identity import Identity
from mq.store.store import Store
from mq.store.vfs import RealVfs
from mq.wire.v1.message_pb2 import Batch, Message
from tests.support.stores import append_entry, apply_through

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MESSAGES = 100
BATCH = prepare(
    Batch(topic="t", messages=[Message(body=bytes(1000))] * MESSAGES).SerializeToString()
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24M", "tmpfs", str(tmp_path)],  # noqa: S607
        check=False,
        capture_output=True,
        timeout=120,
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a tmpfs: run as root")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True, timeout=120)  # noqa: S607


@contextlib.contextmanager
def open_store(directory: Path, flush: str) -> Iterator[Store]:
    """Left as it is in the end, as by a crash."""
    config = StoreConfig(
        flush="sync" if flush == "sync" else "async",
        segment_bytes=4 << 20,
        index_slots=1000,
        index_items=1000,
    )
    store = Store(RealVfs(), str(directory / "data"), config, Identity("c", "s", "n"))
    try:
        apply_through(store, store.log.last_index)
        yield store
    finally:
        store.abandon()


def put(store: Store) -> None:
    ref = append_entry(store, [accept(BATCH, 4 << 20)], 0)
    store.log.sync()
    apply_through(store, ref.raft_index)


def extent(store: Store) -> tuple[int, int]:
    queue = store.queues.get("t", 0)
    assert queue is not None
    return queue.start, queue.end


def fill(store: Store) -> int:
    """Until there is no space three times in a row: some may still be in preparation."""
    count = refusals = 0
    while refusals < 3:
        try:
            put(store)
        except DiskFull:
            refusals += 1
        else:
            count, refusals = count + 1, 0
    return count


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_full_disk_refuses_writes_keeps_what_it_has_and_goes_on_with_room(
    small_disk: Path, flush: str
) -> None:
    with open_store(small_disk, flush) as store:
        count = fill(store)
        assert count > 100
        assert extent(store) == (0, count * MESSAGES)
        assert store.read("t", 0, (count - 1) * MESSAGES).runs[0].message_count == MESSAGES
        assert store.drop_front(2).segments == 2
        for _ in range(20):
            put(store)
        start, end = extent(store)
        assert start > 0
        assert end == (count + 20) * MESSAGES
    with open_store(small_disk, flush) as store:
        assert extent(store) == (start, end)
