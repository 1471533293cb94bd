"""TLS between real nodes: those of one authority talk, others are refused with a log line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.certificates import Authority
from tests.support.raft_cluster import Cluster, Process, poll

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.mark.parametrize("impostor", ["plain", "of another authority"])
def test_nodes_of_one_authority_talk_and_refuse_others(tmp_path: Path, impostor: str) -> None:
    flags = Authority(tmp_path / "ours").files().flags("raft")
    foreign = Authority(tmp_path / "foreign").files().flags("raft")
    if impostor == "plain":
        foreign = dict.fromkeys(flags, "")
    with Cluster(tmp_path, flags=SMALL | flags) as cluster:
        with Load(cluster) as load:
            load.wait_for_more()
            # The first dials the others, the last is dialed by them.
            for name in ("n0", "n2"):
                node = cluster.nodes[name]
                node.kill()
                intruder = cluster.nodes[name] = cluster.make(name, **foreign)
                intruder.log_file = tmp_path / f"intruder-{name}.log"
                others = cluster.others(intruder)
                before = {other.name: len(refusals(other)) for other in others}
                intruder.start()
                load.wait_for_more()
                wait_for_refusal(others, before)
                wait_for_refusal(list(cluster.nodes.values()), before, "TLS")
                assert intruder.status()["leader"] is None
                intruder.kill()
                cluster.nodes[name] = node
                node.start()
                load.wait_for_more()
        judge(cluster, load.acknowledged)


def refusals(node: Process) -> list[str]:
    """The reasons for refused connections, so far."""
    events = {"peer not reached", "connection not accepted"}
    reasons = [one["reason"] for one in node.log_events() if one["event"] in events]
    return [reason for reason in reasons if "Connect call failed" not in reason]


def wait_for_refusal(nodes: list[Process], before: Mapping[str, int], word: str = "") -> None:
    """One of them says something new, with this word."""

    def is_said() -> bool:
        new = (reason for node in nodes for reason in refusals(node)[before.get(node.name, 0) :])
        return any(word in reason for reason in new)

    poll(is_said, f"a log line of a refusal, with {word!r}")
