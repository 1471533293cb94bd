"""TLS between real nodes: those of one authority talk, others are refused with a log line."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mq.client import Producer
from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.broker_set import BrokerSet
from tests.support.certificates import Authority
from tests.support.raft_cluster import Cluster, Process, poll

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.broker_process import BrokerProcess


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


def test_a_new_authority_takes_over_while_nodes_run(tmp_path: Path) -> None:
    """Nodes that were never restarted and nodes that were talk to each other all the time."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files, others = old.files(), new.files()
    flags = [each for one in files.flags("raft").items() for each in one]
    old_ca, new_ca = (Path(one.ca).read_bytes() for one in (files, others))
    with BrokerSet(tmp_path, *flags) as brokers, Producer(brokers.servers) as producer:
        steps = [
            {files.ca: old_ca + new_ca},
            {files.cert: Path(others.cert).read_bytes(), files.key: Path(others.key).read_bytes()},
            {files.ca: new_ca},
        ]
        for step, restarted in zip(steps, brokers.nodes, strict=True):
            for path, content in step.items():
                Path(path).write_bytes(content)
            for node in brokers.nodes.values():
                before = loaded(node)
                os.kill(node.pid, signal.SIGHUP)
                poll(lambda node=node, before=before: loaded(node) > before, "the new files")  # type: ignore[misc]
            brokers.restart(restarted)
            producer.send("t", b"x")
        # Now it is the new authority's certificates that each of them shows.
        for name in brokers.nodes:
            brokers.restart(name)
            producer.send("t", b"x")


def loaded(node: BrokerProcess) -> int:
    events = [line.get("event") for line in node.log()]
    return events.count("TLS files are loaded, for new connections")


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
