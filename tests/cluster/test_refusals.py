"""Data that a node does not start on, peers that the others refuse, and the reasons that both are
told.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.raft_cluster import Cluster, Gone, Process, poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def one_away(directory: Path) -> Iterator[tuple[Cluster, Load, Process]]:
    """A set that has written several segments, of which one follower is down. In the end it is
    started, and everything is as it should be.
    """
    with Cluster(directory, flags=SMALL) as cluster:
        with Load(cluster) as load:
            load.wait_for_more(500)
            node = cluster.others(cluster.leader())[-1]
            node.kill()
            yield cluster, load, node
            load.wait_for_more()
            node.start()
            load.wait_for_more()
        judge(cluster, load.acknowledged)


def wait_for_reason(nodes: list[Process], *words: str) -> None:
    """One of their log lines has them all."""

    def is_said() -> bool:
        lines = [str(one) for node in nodes for one in node.log_events()]
        return any(all(word in line for word in words) for line in lines)

    poll(is_said, f"a log line with {words}")


# -- its own files ---------------------------------------------------------------------------------


def test_a_node_with_a_damaged_vote_file_does_not_start(tmp_path: Path) -> None:
    with one_away(tmp_path) as (_, load, node):
        vote = node.data / "vote"
        content = vote.read_bytes()
        vote.write_bytes(bytes(4096) + content[4096:])
        with pytest.raises(Gone, match=f"{vote} is damaged at byte 0"):
            node.start()
        # Without the file it starts, and does not vote until it has all that was committed.
        vote.unlink()
        load.wait_for_more()
        node.start()
        wait_for_reason([node], "does not vote", "the vote file was lost")
        node.wait_for("must_catch_up", False)
        node.kill()


def test_a_node_whose_log_is_damaged_in_the_middle_says_where_and_does_not_start(
    tmp_path: Path,
) -> None:
    with one_away(tmp_path) as (_, _, node):
        segments = sorted((node.data / "commitlog").glob("*.log"))
        assert len(segments) > 1
        content = bytearray(segments[0].read_bytes())
        content[len(content) // 2] ^= 1
        segments[0].write_bytes(content)
        with pytest.raises(Gone, match=rf"{segments[0]} is damaged at byte \d+") as refused:
            node.start()
        assert "LOG_DAMAGED" in str(refused.value)
        assert segments[0].read_bytes() == content
        shutil.rmtree(node.data)  # as the error advises


def test_a_node_does_not_start_on_the_directory_of_another_one(tmp_path: Path) -> None:
    with one_away(tmp_path) as (cluster, _, node):
        aside = node.data.with_name("aside")
        node.data.rename(aside)
        other = cluster.others(node, cluster.leader())[0]
        shutil.copytree(other.data, node.data)
        with pytest.raises(Gone, match="WRONG_DATA_DIRECTORY"):
            node.start()
        shutil.rmtree(node.data)
        aside.rename(node.data)


# -- the others ------------------------------------------------------------------------------------


def test_a_stranger_is_refused_with_a_reason_on_both_sides(tmp_path: Path) -> None:
    with one_away(tmp_path) as (cluster, load, node):
        members = {**cluster.addresses, "n9": "127.0.0.1:1"}
        for number, (flag, value, words) in enumerate(
            [
                ("--node-cluster", "other", "belongs to cluster"),
                ("--node-broker-set", "other", "belongs to broker set"),
                (
                    "--raft-members",
                    ",".join("=".join(pair) for pair in members.items()),
                    "was started with other members",
                ),
            ]
        ):
            stranger = cluster.make(node.name, **{flag: value})
            stranger.data = tmp_path / f"stranger-{number}"
            stranger.log_file = tmp_path / f"stranger-{number}.log"
            try:
                stranger.start()
                wait_for_reason([stranger], words)
                wait_for_reason(cluster.others(node), words)
                load.wait_for_more()
                assert stranger.status()["last"] <= 1
            finally:
                stranger.kill()


def test_garbage_on_the_raft_ports_disturbs_no_node(tmp_path: Path) -> None:
    rng = random.Random(1)
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            load.wait_for_more()
            leader = cluster.leader()
            term = leader.status()["term"]
            for _ in range(20):
                for address in cluster.addresses.values():
                    host, port = address.split(":")
                    with (
                        socket.create_connection((host, int(port))) as intruder,
                        contextlib.suppress(OSError),
                    ):
                        intruder.sendall(os.urandom(rng.choice([1, 9, 4000, 200_000])))
                load.wait_for_more(20)
            assert leader.status()["term"] == term
            assert leader.status()["role"] == "leader"
        judge(cluster, load.acknowledged)
