"""Nodes come and go while the set serves."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.raft_cluster import DEADLINE_S, Cluster, Process, free_port, poll

if TYPE_CHECKING:
    from pathlib import Path

JOIN = {"--raft-join": "yes"}


def newcomer(cluster: Cluster, name: str) -> Process:
    """Not started yet, and no member; with an empty directory."""
    cluster.addresses.setdefault(name, f"127.0.0.1:{free_port()}")
    node = cluster.nodes[name] = cluster.make(name, **JOIN)
    shutil.rmtree(node.data, ignore_errors=True)
    return node


def change(cluster: Cluster, do: str, **fields: Any) -> None:
    """By the leader. It may have lost its office just now."""

    def is_done() -> bool:
        answer = cluster.leader().call(do, **fields)
        assert answer.get("error") in {None, "NOT_LEADER"}, answer
        return "error" not in answer

    poll(is_done, f"{do} {fields}")


def members(node: Process) -> list[str]:
    return sorted(node.status()["members"])


def test_a_node_that_is_added_counts_when_it_has_caught_up_and_one_that_is_removed_does_not(
    tmp_path: Path,
) -> None:
    # Patient: the leader that is asked to add a node has to lead until it has caught up.
    with Cluster(tmp_path, flags={**SMALL, "--raft-election-timeout-ms": "2000"}) as cluster:
        with Load(cluster) as load:
            load.wait_for_more(500)
            leader = cluster.leader()
            follower = cluster.others(leader)[0]
            added = newcomer(cluster, "n3")
            answer = leader.begin("add", node="n3", address=cluster.addresses["n3"])
            # Two of three go on; if the one that is not there were counted, two of four could not.
            follower.kill()
            load.wait_for_more()
            assert members(leader) == ["n0", "n1", "n2"]
            follower.start()
            added.start()
            fact = answer.get(timeout=DEADLINE_S)
            assert fact is not None
            assert "error" not in fact, fact
            assert members(leader) == ["n0", "n1", "n2", "n3"]
            assert added.status()["last"] >= fact["index"]
            added.wait_for("must_catch_up", False)
            load.wait_for_more()

            removed = cluster.others(cluster.leader(), added)[0]
            change(cluster, "remove", node=removed.name)
            poll(lambda: "no member" in removed.log_tail(), "it was told")
            assert removed.stop() == 0
            del cluster.nodes[removed.name]
            load.wait_for_more()
        poll(lambda: all(len(members(n)) == 3 for n in cluster.nodes.values()), "three members")
        judge(cluster, load.acknowledged)


def test_a_killed_node_is_removed_and_comes_back_under_its_name_with_an_empty_directory(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            load.wait_for_more()
            killed = cluster.others(cluster.leader())[0]
            killed.kill()
            load.wait_for_more()
            change(cluster, "remove", node=killed.name)
            assert members(cluster.leader()) == [n.name for n in cluster.others(killed)]
            load.wait_for_more()
            newcomer(cluster, killed.name).start()
            change(cluster, "add", node=killed.name, address=cluster.addresses[killed.name])
            assert members(cluster.leader()) == ["n0", "n1", "n2"]
            load.wait_for_more()
            cluster.others(cluster.nodes[killed.name])[0].kill()
            # The one that came back is needed for a majority now.
            load.wait_for_more()
            for node in cluster.nodes.values():
                if not node.is_running:
                    node.start()
        judge(cluster, load.acknowledged)


def test_an_illegal_change_is_refused_with_a_reason(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        leader = cluster.leader()
        follower = cluster.others(leader)[0]

        def refusal(asked: Process, do: str, **fields: Any) -> dict[str, Any]:
            answer = asked.call(do, **fields)
            return {key: answer.get(key) for key in ("error", "leader")}

        illegal = {"error": "ILLEGAL_MEMBERSHIP", "leader": None}
        nowhere = "127.0.0.1:1"
        assert refusal(leader, "add", node=follower.name, address=nowhere) == illegal
        assert refusal(leader, "add", node=leader.name, address=nowhere) == illegal
        assert refusal(leader, "remove", node="n9") == illegal
        assert refusal(leader, "remove", node=leader.name) == illegal
        not_leader = {"error": "NOT_LEADER", "leader": leader.name}
        assert refusal(follower, "add", node="n9", address=nowhere) == not_leader
        assert refusal(follower, "remove", node=leader.name) == not_leader
        # One at a time: n9 never comes.
        waiting = leader.begin("add", node="n9", address=nowhere)
        assert refusal(leader, "remove", node=follower.name) == illegal
        assert members(leader) == ["n0", "n1", "n2"]
        judge(cluster, [])
        assert waiting.get(timeout=DEADLINE_S) is not None
