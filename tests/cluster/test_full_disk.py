"""One node's disk is really full: the others go on, nothing is lost, it comes back with room."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.raft_cluster import Cluster, Process, poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# By its name it is the first that a leader hands over to.
SMALL_NODE = "n0"
DISK_BYTES = 24 << 20
ENTRY_BYTES = 64 << 10
FILL_ENTRIES = 64
FLAGS = SMALL | {
    "--store-segment-bytes": "4MiB",
    # Retention would make room by itself.
    "--retention-check-ms": "1d",
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The data directory of one node."""
    path = tmp_path / SMALL_NODE
    path.mkdir()
    if mount(path, f"size={DISK_BYTES}") != 0:
        pytest.skip("needs the right to mount a tmpfs: run as root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=120)  # noqa: S607


def mount(path: Path, options: str) -> int:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    return subprocess.run(command, check=False, capture_output=True, timeout=120).returncode


def make_leader(cluster: Cluster, name: str) -> None:
    def leads() -> bool:
        leader = cluster.leader()
        return leader.name == name or not leader.call("transfer")

    poll(leads, f"{name} leads")


def fill(cluster: Cluster, node: Process) -> None:
    """Until the node says that it is full, and lacks what the others took since. The leader takes
    the entries or refuses them.
    """

    def is_full() -> bool:
        leader = cluster.leader()
        leader.call("load", size=ENTRY_BYTES, in_flight=4, count=FILL_ENTRIES)
        if leader is node or not complaints(node):
            return False
        # One large entry that did not fit says little: small ones may still do.
        return bool(leader.status()["commit"] - node.status()["last"] >= FILL_ENTRIES)

    poll(is_full, "the node says that its disk is full")


def complaints(node: Process) -> list[str]:
    return [one["event"] for one in node.log_events() if "no space" in str(one)]


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_full_disk_on_one_node_stops_no_client_and_loses_nothing(
    tmp_path: Path, small_disk: Path, role: str
) -> None:
    with Cluster(tmp_path, flags=FLAGS) as cluster:
        node = cluster.nodes[SMALL_NODE]
        make_leader(cluster, SMALL_NODE if role == "leader" else "n1")
        with Load(cluster) as load:
            load.wait_for_more()
            fill(cluster, node)
            assert node.is_running
            load.wait_for_more()
            assert node.status()["last"] < cluster.leader().status()["commit"]
            assert mount(small_disk, f"remount,size={8 * DISK_BYTES}") == 0
            load.wait_for_more()
        judge(cluster, load.acknowledged)
        assert ("DISK_FULL" in load.errors) <= (role == "leader")
