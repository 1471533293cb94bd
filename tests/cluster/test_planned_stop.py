"""A planned stop: leadership moves first, so that no client waits for an election."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.raft_cluster import Cluster, Process

if TYPE_CHECKING:
    from pathlib import Path


def last_leadership(node: Process) -> tuple[str, int]:
    """Role and term, by its last word."""
    said = [one for one in node.log_events() if one["event"] == "leadership"]
    return said[-1]["role"], said[-1]["term"]


@pytest.mark.parametrize("way", ["told", "SIGTERM"])
def test_a_leader_that_is_stopped_hands_over_first(tmp_path: Path, way: str) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            load.wait_for_more()
            leader = cluster.leader()
            term = leader.status()["term"]
            if way == "told":
                leader.begin_stop()
            else:
                leader.signal(signal.SIGTERM)
            assert leader.wait_ended() == 0
            # It lived to see that another one leads, in the very next term.
            assert last_leadership(leader) == ("follower", term + 1)
            assert cluster.leader().status()["term"] == term + 1
            load.wait_for_more()
            leader.start()
        judge(cluster, load.acknowledged)


def test_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            for node in cluster.nodes.values():
                load.wait_for_more()
                assert node.stop() == 0
                load.wait_for_more()
                node.start()
                node.wait_for("ready", True)
            load.wait_for_more()
        judge(cluster, load.acknowledged)
