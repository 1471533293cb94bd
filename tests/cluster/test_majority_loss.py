"""A majority that loses the end of its log, which the third node has applied: with asynchronous
flush that one takes it back, with synchronous flush it stops and says what to do.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from mq.client import Admin, Consumer, Producer
from mq.store.commitlog import CommitLog
from mq.store.vfs import RealVfs
from tests.support.broker_set import BrokerSet
from tests.support.log_compare import compare

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

EACH = 60


def send(brokers: BrokerSet, name: str) -> set[bytes]:
    bodies = {f"{name}-{number}".encode() for number in range(EACH)}
    with Producer(brokers.servers) as producer:
        for body in bodies:
            assert producer.send("t", body).status == "SEND_OK"
    return bodies


def received(brokers: BrokerSet, group: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(brokers.servers, group, "t", start="earliest") as consumer:
        while len(found) < count:
            found += [one.body for one in consumer.poll(1_000, timeout_s=5.0)]
        found += [one.body for one in consumer.poll(1_000, timeout_s=1.0)]
    return found


def stop(brokers: BrokerSet, names: Iterable[str]) -> None:
    """In order: all that is applied is in a checkpoint."""
    for name in names:
        assert brokers.nodes[name].stop() == 0


def lose(directory: Path, last_index: int) -> None:
    """What the power of a machine takes with it that has not synced it."""
    with closing(
        CommitLog(
            RealVfs(), str(directory / "commitlog"), segment_bytes=1 << 30, verify_bytes=1 << 30
        )
    ) as log:
        assert log.last_index > last_index
        log.truncate(last_index + 1)


def lose_on_two_of_three(brokers: BrokerSet) -> tuple[set[bytes], set[bytes]]:
    """Returns what all have kept, and what n1 and n2, which lead now, have had since."""
    with Admin(brokers.servers) as admin:
        admin.create_topic("t", 4)
    kept = send(brokers, "kept")
    last_index = brokers.wait_same()
    lost = send(brokers, "lost")
    assert set(received(brokers, "before", 2 * EACH)) == kept | lost
    brokers.wait_same()
    stop(brokers, brokers.nodes)
    for directory in brokers.directories[1:]:
        lose(directory, last_index)
    brokers.start("n1", "n2")
    return kept, send(brokers, "new") | send(brokers, "newer")


def test_a_node_takes_back_what_it_has_applied_and_a_majority_has_lost(tmp_path: Path) -> None:
    with BrokerSet(tmp_path, "--store-flush", "async") as brokers:
        kept, new = lose_on_two_of_three(brokers)
        brokers.start("n0")
        last_index = brokers.wait_same()
        events = [line["event"] for line in brokers.nodes["n0"].log()]
        assert any("they are taken back here, too" in event for event in events)
        brokers.nodes[brokers.leader()].kill()
        found = received(brokers, "after", 3 * EACH)
        assert sorted(found) == sorted(kept | new)
    assert compare(brokers.directories, last_index) == []


def test_with_sync_flush_such_a_node_stops_changes_nothing_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    with BrokerSet(tmp_path) as brokers:
        kept, new = lose_on_two_of_three(brokers)
        n0 = brokers.nodes["n0"]
        for _ in range(2):
            assert n0.launch().wait() == 1
            (event,) = (line for line in n0.log() if line["event"] == "the replica stops")
            assert "a majority of this set has lost what was committed" in event["error"]
        assert set(received(brokers, "meanwhile", 3 * EACH)) == kept | new

        brokers.replace_disk("n0")
        last_index = brokers.wait_same()
        brokers.nodes[brokers.leader()].kill()
        assert sorted(received(brokers, "after", 3 * EACH)) == sorted(kept | new)
    assert compare(brokers.directories, last_index) == []
