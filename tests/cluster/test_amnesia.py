"""A node that came back without entries it had acknowledged: it helps no candidate before it has
all of them again.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.raft_cluster import Cluster, start_all

if TYPE_CHECKING:
    from pathlib import Path

# Several election timeouts.
_WATCH_S = 3.0


def test_an_emptied_node_does_not_elect_one_that_lacks_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        leader = cluster.leader()
        late, emptied = cluster.others(leader)
        with Load(cluster) as load:
            load.wait_for_more()
            late.kill()
            load.wait_for_more()
        for node in (emptied, leader):
            node.kill()
        shutil.rmtree(emptied.data)
        start_all([late, emptied])
        # Only the one that is away has everything.
        deadline = time.monotonic() + _WATCH_S
        while time.monotonic() < deadline:
            assert {node.status()["role"] for node in (late, emptied)}.isdisjoint({"leader"})
        assert emptied.status()["must_catch_up"]
        leader.start()
        emptied.wait_for("must_catch_up", False)
        judge(cluster, load.acknowledged)


def test_an_emptied_node_catches_up_under_load(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            load.wait_for_more(200)
            follower = cluster.others(cluster.leader())[0]
            follower.kill()
            shutil.rmtree(follower.data)
            load.wait_for_more()
            follower.start()
            follower.wait_for("must_catch_up", False)
            load.wait_for_more()
        judge(cluster, load.acknowledged)


def test_a_new_group_of_empty_nodes_elects_a_leader(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        assert not any(node.status()["must_catch_up"] for node in cluster.nodes.values())
        judge(cluster, [])
