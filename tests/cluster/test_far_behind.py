"""A follower that was away for half a gigabyte comes back: in bounded memory, and also when the
entries that it needs next are gone.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.judgement import INDEX_SLOTS, stop_all, verify
from tests.support.log_compare import compare
from tests.support.raft_cluster import Cluster, Process

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRY_BYTES = 256 << 10
LOG_BYTES = 512 << 20
LEAST_BYTES = 128 << 20
# Three logs, and room for whatever else writes to this disk.
COPIES = 4
# A fraction of the log: with memory for all that is missing, a node would have three times this.
RSS_MB_MAX = 150
FLAGS = {
    "--store-segment-bytes": "64MiB",
    "--store-flush": "async",
    "--store-index-slots": str(INDEX_SLOTS),
}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is room: gigabytes at once bring a shared disk to a halt, and nothing
    here is about the disk. pytest would keep them for later.
    """
    memory = Path("/dev/shm")  # noqa: S108
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > 2 * COPIES * LOG_BYTES
    with tempfile.TemporaryDirectory(dir=memory if has_room else tmp_path) as path:
        yield Path(path)


def fitting_bytes(directory: Path, wanted: int) -> int:
    """The wanted size, or less on a small disk."""
    fitting = shutil.disk_usage(directory).free // COPIES
    if fitting < LEAST_BYTES:
        pytest.skip(f"needs {COPIES * LEAST_BYTES >> 20} MiB of disk for three short logs")
    return min(wanted, fitting)


def write(leader: Process, size: int) -> None:
    answer = leader.call("load", 120, size=ENTRY_BYTES, in_flight=16, count=size // ENTRY_BYTES)
    assert answer["entries"] >= size // ENTRY_BYTES - 16


@pytest.mark.parametrize(
    ("wanted", "is_dropped"), [(LOG_BYTES, False), (384 << 20, True)], ids=["kept", "dropped"]
)
def test_a_follower_that_was_away_for_half_a_gigabyte_catches_up_in_bounded_memory(
    directory: Path, wanted: int, is_dropped: bool
) -> None:
    size = fitting_bytes(directory, wanted)
    with Cluster(directory, flags=FLAGS) as cluster:
        leader = cluster.leader()
        away, other = cluster.others(leader)
        write(leader, 16 << 20)
        cluster.wait_same()
        away.kill()
        write(leader, size)
        if is_dropped:
            for node in (leader, other):
                assert node.call("drop_front", count=4)["dropped"] > 0
            assert leader.status()["first"] > 1
        away.start()
        commit_index = cluster.wait_same(deadline_s=120)
        peaks = {node.name: node.rss_mb("VmHWM") for node in cluster.nodes.values()}
        assert max(peaks.values()) < RSS_MB_MAX, peaks
        assert away.status()["first"] == (leader.status()["first"] if is_dropped else 1)
        started_over = [one for one in away.log_events() if "starting over" in one["event"]]
        assert len(started_over) == is_dropped
        directories = [node.data for node in cluster.nodes.values()]
        stop_all(cluster.nodes.values())
        assert compare(directories, commit_index, index_slots=INDEX_SLOTS) == []
        for replica in directories:
            verify(replica)
