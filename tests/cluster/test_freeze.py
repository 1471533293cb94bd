"""SIGSTOP: a node that is there and does nothing, until it goes on as if no time had passed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.raft_cluster import DEADLINE_S, Cluster

if TYPE_CHECKING:
    from pathlib import Path


def test_a_frozen_leader_is_replaced_and_follows_when_it_goes_on(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            for _ in range(2):
                load.wait_for_more()
                frozen = cluster.leader()
                before = frozen.status()["term"]
                frozen.signal(signal.SIGSTOP)
                # It finds them when it goes on: it leads by its own word, and has to find out.
                late = [frozen.begin("propose", token=f"late {i}", size=2000) for i in range(5)]
                successor = cluster.leader(among=cluster.others(frozen))
                assert successor.status()["term"] > before
                load.wait_for_more()
                frozen.signal(signal.SIGCONT)
                answers = [each.get(timeout=DEADLINE_S) for each in late]
                assert all(answer is not None for answer in answers)
                errors = {answer["error"] for answer in answers if answer}
                assert errors <= {"NOT_LEADER", "OUTCOME_UNKNOWN"}
                frozen.wait_for("role", "follower")
        judge(cluster, load.acknowledged)


def test_a_frozen_follower_stops_nobody_and_catches_up(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            load.wait_for_more()
            leader = cluster.leader()
            frozen = cluster.others(leader)[0]
            term = leader.status()["term"]
            frozen.signal(signal.SIGSTOP)
            load.wait_for_more(500)
            frozen.signal(signal.SIGCONT)
            load.wait_for_more()
            # It was behind, and did not ask for an election.
            assert leader.status()["term"] == term
        judge(cluster, load.acknowledged)


def test_a_leader_that_hears_from_nobody_steps_down_and_says_so(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            load.wait_for_more()
            leader = cluster.leader()
            for node in cluster.others(leader):
                node.signal(signal.SIGSTOP)
            late = leader.begin("propose", token="late", size=10)  # noqa: S106
            leader.wait_for("role", "follower")
            answer = late.get(timeout=DEADLINE_S)
            assert answer is not None
            assert answer["error"] in {"NOT_LEADER", "OUTCOME_UNKNOWN"}
            for node in cluster.others(leader):
                node.signal(signal.SIGCONT)
            load.wait_for_more()
        judge(cluster, load.acknowledged)
