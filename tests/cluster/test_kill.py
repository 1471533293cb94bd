"""kill -9 under load, of the leader and of followers: acknowledged entries stay."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.raft_cluster import Cluster, start_all

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 10
SEED = 20_261


def test_ten_killed_leaders_lose_nothing_that_they_acknowledged(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            for _ in range(ROUNDS):
                load.wait_for_more()
                leader = cluster.leader()
                leader.kill()
                load.wait_for_more()
                leader.start()
        judge(cluster, load.acknowledged)
        assert len(load.acknowledged) >= 2 * ROUNDS * 50


def test_any_one_or_two_killed_nodes_lose_nothing(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            for count in (1, 2, 2, 1, 2):
                load.wait_for_more()
                victims = rng.sample(list(cluster.nodes.values()), count)
                for node in victims:
                    node.kill()
                start_all(victims)
        judge(cluster, load.acknowledged)


def test_all_three_killed_at_once_and_started_again_lose_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            for _ in range(4):
                load.wait_for_more()
                for node in cluster.nodes.values():
                    node.kill()
                start_all(cluster.nodes.values())
            load.wait_for_more()
        judge(cluster, load.acknowledged)


def test_a_group_of_one_keeps_what_it_acknowledged_through_five_kills(tmp_path: Path) -> None:
    with Cluster(tmp_path, count=1, flags=SMALL) as cluster:
        node = cluster.nodes["n0"]
        with Load(cluster) as load:
            for _ in range(5):
                load.wait_for_more(100)
                node.kill()
                node.start()
            load.wait_for_more()
        judge(cluster, load.acknowledged)
