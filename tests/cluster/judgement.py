"""The checks at the end of every scenario: nothing acknowledged is lost, nothing is there twice,
and all replicas are the same.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from click.testing import CliRunner

from mq.cli import main as cli
from mq.cli.dump import dump
from mq.store.batch import decode_payload
from mq.store.format import Kind
from mq.wire.v1.message_pb2 import Batch
from tests.cluster.load import Acknowledged
from tests.support.log_compare import Replica, compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.support.raft_cluster import Cluster, Process

# Files that fill within a scenario: segments roll, queues and index have several files each.
INDEX_SLOTS = 100
SMALL = {
    "--store-segment-bytes": "256KiB",
    "--store-checkpoint-log-bytes": "64KiB",
    "--store-queue-file-units": "300",
    "--store-index-slots": str(INDEX_SLOTS),
    "--store-index-items": "500",
}

cli.main.add_command(dump)


def judge(cluster: Cluster, acknowledged: Iterable[Acknowledged]) -> None:
    """All nodes run: compares them alive, stops all at once, compares what is on their disks."""
    commit_index = cluster.wait_same()
    directories = [node.data for node in cluster.nodes.values()]
    assert compare(directories, commit_index, derived=False) == []
    stop_all(cluster.nodes.values())
    assert compare(directories, commit_index, index_slots=INDEX_SLOTS) == []
    wanted = list(acknowledged)
    for directory in directories:
        check_acknowledged(directory, wanted)
        verify(directory)
    for node in cluster.nodes.values():
        assert "Traceback" not in node.log_file.read_text()


def stop_all(nodes: Iterable[Process]) -> None:
    nodes = list(nodes)
    for node in nodes:
        node.begin_stop()
    assert {node.name: node.wait_ended() for node in nodes} == {node.name: 0 for node in nodes}


def check_acknowledged(directory: Path, acknowledged: Iterable[Acknowledged]) -> None:
    """Each is in the log of this node, once, where and when it was said to be. What retention
    dropped is not asked for.
    """
    replica = Replica(directory)
    there = tokens(replica)
    assert [
        token for token, count in Counter(t for _, t in there.values()).items() if count > 1
    ] == []
    missing = [
        one
        for one in acknowledged
        if one.raft_index >= replica.first_index
        and there.get(one.raft_index) != (one.term, one.token)
    ]
    assert missing == [], f"acknowledged, and not in {directory}"


def tokens(replica: Replica) -> Mapping[int, tuple[int, str]]:
    """By raft index: term and token of each message."""
    return {
        walked.header.raft_index: (walked.header.term, message.body.decode().rstrip())
        for _, walked in replica.walked(replica.last_index)
        if walked.header.kind == Kind.MESSAGES
        for batch, _ in decode_payload(walked.payload, 0).batches
        for message in Batch.FromString(bytes(batch.data[batch.region_start :])).messages
    }


def verify(directory: Path) -> None:
    """As a person would."""
    result = CliRunner().invoke(cli.main, ["dump", str(directory), "--verify"])
    assert result.exit_code == 0, result.output
