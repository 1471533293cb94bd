"""Three real processes, and bytes that rot on the disk of one of them while it runs: never served,
found, and mended from the others. docs/OPERATIONS.md has a row for each.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from mq.client import Consumer
from mq.store.examine import segment_bases
from mq.store.vfs import RealVfs
from tests.conformance.calls import CHANNEL_OPTIONS, Calls, bodies_in, numbers, refusal_of
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import poll
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = "t"
COUNT = 512
BODY_BYTES = 1 << 10
FLAGS = (
    *("--store-segment-bytes", "64KiB", "--store-verify-bytes", "64KiB"),
    *("--store-flush", "async", "--store-entry-bytes-max", "64KiB"),
    *("--store-message-bytes-max", "32KiB"),
    # What these tests read is met by readers first.
    *("--store-scrub-bytes-per-s", "0"),
)
SCRUB = ("--store-scrub-bytes-per-s", "1MiB")
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSet]:
    """Eight segments and more. Every node was started since they were written, so that it has to
    look at the disk.
    """
    found = BrokerSet(tmp_path_factory.mktemp("rot"), *FLAGS)
    with found:
        with called(found, found.leader()) as leader:
            leader.create(TOPIC, queues=1)
            for at in range(0, COUNT, 16):
                leader.send(TOPIC, *(body + bytes(BODY_BYTES) for body in numbers(16, at)))
        found.wait_same()
        for name in found.nodes:
            assert found.nodes[name].stop() == 0
        found.start(*found.nodes)
        found.leader()
        yield found


@contextmanager
def called(brokers: BrokerSet, name: str) -> Iterator[Calls]:
    options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(brokers.address(name), options=options) as channel:
        yield Calls(channel)


def segments(brokers: BrokerSet, name: str) -> list[Path]:
    directory = brokers.directories[list(brokers.nodes).index(name)] / "commitlog"
    bases = segment_bases(RealVfs(), str(directory))
    return [directory / f"{base:020d}.log" for base in bases]


def rot(path: Path, number: int | None = None) -> bytes:
    """Flips a bit in the middle, or one of this message; what the file was."""
    whole = path.read_bytes()
    body = b"" if number is None else numbers(1, number)[0]
    position = whole.index(body + bytes(BODY_BYTES)) if body else len(whole.rstrip(b"\0")) // 2
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([whole[position] ^ 1]))
    assert path.read_bytes() != whole
    return whole


def read_all(brokers: BrokerSet, name: str) -> list[bytes]:
    """The numbers of all messages, from the node that the answers name; a retry helps."""
    found: list[bytes] = []
    at, address = 0, name
    while at < COUNT:
        with called(brokers, address) as calls:
            try:
                answer = calls("Pull", topic=TOPIC, queue_offset=at, messages_max=64)
            except grpc.RpcError as error:
                if dict(error.trailing_metadata())["mq-code"] != "MESSAGES_DAMAGED":
                    raise
                continue
            found += [body[:8] for body in bodies_in(answer.runs)]
            at = answer.next_offset
            places = {brokers.address(one): one for one in brokers.nodes}
            address = places[answer.read_from] if answer.read_from else address
    return found


def read_own(brokers: BrokerSet, name: str) -> list[bytes]:
    """The numbers of what a follower gives out itself. For the rest it names the leader."""
    found: list[bytes] = []
    with called(brokers, name) as calls:
        for at in range(0, COUNT, 16):
            answer = calls("Pull", topic=TOPIC, queue_offset=at, messages_max=16, any_replica=True)
            got = [body[:8] for body in bodies_in(answer.runs)]
            assert got == numbers(len(got), at)
            assert got or answer.read_from == brokers.address(brokers.leader())
            found += got
    return found


def first_refused(calls: Calls) -> int:
    """The offset at which a reader of the leader has to wait."""
    for at in range(0, COUNT, 16):
        try:
            calls("Pull", topic=TOPIC, queue_offset=at, messages_max=16)
        except grpc.RpcError as error:
            if refusal_of(error).code != "MESSAGES_DAMAGED":
                raise
            return at
    raise AssertionError("nothing is damaged")


def mq(*arguments: str) -> None:
    done = run_mq(*arguments)
    assert done.returncode == 0, done.stderr


def wait_mended(brokers: BrokerSet, name: str, path: Path, whole: bytes) -> None:
    def is_mended() -> bool:
        status = brokers.status(name)
        return (
            status is not None
            and not status.open_damages
            and any(one.file == str(path) and one.mended_at_ms for one in status.damages)
        )

    poll(is_mended, "the damage is mended", DEADLINE_S)
    assert path.read_bytes()[: len(whole)].rstrip(b"\0") == whole.rstrip(b"\0")
    events = [line["event"] for line in brokers.nodes[name].log()]
    assert "damage found: it is not served" in events
    assert "damage mended" in events


def test_rot_in_a_sealed_segment_of_the_leader_is_not_served_and_mended(brokers: BrokerSet) -> None:
    leader = brokers.leader()
    path = segments(brokers, leader)[1]
    whole = rot(path)
    assert read_all(brokers, leader) == numbers(COUNT)
    wait_mended(brokers, leader, path, whole)


def test_a_damaged_follower_sends_its_readers_away_and_mends_itself(brokers: BrokerSet) -> None:
    follower = brokers.others(brokers.leader())[0]
    brokers.restart(follower)
    path = segments(brokers, follower)[2]
    whole = rot(path)
    assert len(read_own(brokers, follower)) < COUNT
    wait_mended(brokers, follower, path, whole)


def test_rot_in_the_newest_segment_is_mended_in_place(brokers: BrokerSet) -> None:
    follower = brokers.others(brokers.leader())[0]
    brokers.restart(follower)
    path = segments(brokers, follower)[-1]
    whole = rot(path, COUNT - 1)
    inode = path.stat().st_ino
    assert len(read_own(brokers, follower)) < COUNT
    wait_mended(brokers, follower, path, whole)
    assert path.stat().st_ino == inode
    assert read_own(brokers, follower) == numbers(COUNT)


def test_rot_in_the_leader_does_not_keep_a_follower_from_a_new_disk(brokers: BrokerSet) -> None:
    leader = brokers.leader()
    follower = brokers.others(leader)[-1]
    paths = segments(brokers, leader)
    brokers.nodes[follower].kill()
    wholes = {path: rot(path) for path in (paths[0], paths[4])}
    brokers.replace_disk(follower)
    brokers.wait_same()
    assert brokers.leader() == leader
    for path, whole in wholes.items():
        wait_mended(brokers, leader, path, whole)
    assert read_own(brokers, follower) == numbers(COUNT)


@pytest.mark.parametrize("ending", [".log", ".idx"])
def test_rot_that_no_reader_meets_is_found_by_the_scrubber_and_mended(
    brokers: BrokerSet, ending: str
) -> None:
    """In a segment that is older than what a start checks."""
    follower = brokers.others(brokers.leader())[0]
    path = segments(brokers, follower)[3]
    assert brokers.nodes[follower].stop() == 0
    whole = path.read_bytes()
    damaged = rot(path.with_suffix(ending))
    brokers.nodes[follower].start(*SCRUB)
    wait_mended(brokers, follower, path, whole)
    assert path.with_suffix(ending).read_bytes() == damaged


def test_damage_that_only_a_node_that_is_away_can_mend_waits_for_it(brokers: BrokerSet) -> None:
    away, *damaged = brokers.nodes
    for name in brokers.nodes:
        assert brokers.nodes[name].stop() == 0
    paths = {name: segments(brokers, name)[5] for name in damaged}
    wholes = {name: rot(path) for name, path in paths.items()}  # the same entry on both
    brokers.start(*damaged)
    leader = brokers.leader()
    with called(brokers, leader) as calls:
        at = first_refused(calls)
        assert at > 0
        calls.send(TOPIC, b"sends go on")
        answer = calls("Pull", topic=TOPIC, queue_offset=COUNT - 16, messages_max=16)
        assert len(bodies_in(answer.runs)) == 16
    brokers.start(away)
    wait_mended(brokers, leader, paths[leader], wholes[leader])
    assert read_all(brokers, brokers.leader()) == numbers(COUNT)


def test_damage_that_a_start_finds_is_refused_and_the_way_back_is_an_empty_directory(
    brokers: BrokerSet,
) -> None:
    follower = brokers.others(brokers.leader())[0]
    node = brokers.nodes[follower]
    assert node.stop() == 0
    path = segments(brokers, follower)[1]
    rot(path)
    with pytest.raises(AssertionError, match=f"LOG_DAMAGED: {path} is damaged at byte"):
        node.start("--store-verify-bytes", "1GiB")
    brokers.replace_disk(follower)
    brokers.wait_same()
    assert read_own(brokers, follower) == numbers(COUNT)


def test_a_consumer_gets_everything_from_a_set_whose_nodes_are_all_damaged(
    brokers: BrokerSet,
) -> None:
    """Each in a segment of its own: the leader has damage, and the others have what it lacks."""
    for node in brokers.nodes.values():
        assert node.stop() == 0
    paths = {name: segments(brokers, name)[5 + at] for at, name in enumerate(brokers.nodes)}
    wholes = {name: rot(path) for name, path in paths.items()}
    brokers.start(*brokers.nodes)
    found: list[bytes] = []

    def is_all() -> bool:
        found.extend(one.body[:8] for one in consumer.poll(timeout_s=1.0))
        return len(found) >= COUNT

    with Consumer(brokers.servers, "readers", TOPIC, start="earliest") as consumer:
        poll(is_all, "everything came", DEADLINE_S)
    assert found[:COUNT] == numbers(COUNT)
    for name in brokers.nodes:
        read_own(brokers, name)
        wait_mended(brokers, name, paths[name], wholes[name])


def test_a_set_of_which_one_disk_is_left_is_restored_from_it(
    brokers: BrokerSet, tmp_path: Path
) -> None:
    for node in brokers.nodes.values():
        node.kill()
    left, *gone = brokers.directories
    for directory in gone:
        shutil.rmtree(directory)
    mq("backup", str(tmp_path), "--set", "set-0", "--from-data", str(left))
    left.rename(left.with_name("kept"))
    for name, directory in zip(brokers.nodes, brokers.directories, strict=True):
        place = ("--data", str(directory), "--node", name, "--members", brokers.members)
        mq("restore", str(tmp_path / "set-0"), *place)
    brokers.start(*brokers.nodes)
    assert read_all(brokers, brokers.leader()) == numbers(COUNT)
