"""Who belongs to the broker set, by the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.errors import MessagesDamaged
from mq.raft.membership import Membership, checkpoint_entry, read_members
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import HEADER_BYTES, Kind
from mq.wire.v1.log_pb2 import Checkpoint, TopicQueues
from mq.wire.v1.raft_pb2 import CheckpointMembers, Roster
from tests.support.faulty_vfs import FaultyVfs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mq.raft.frames import Frame

THREE = {"a": "a:1", "b": "b:1", "c": "c:1"}
TWO = {"a": "a:1", "b": "b:1"}


class Links:
    def __init__(self) -> None:
        self.peers: dict[str, str] = {}

    def send(self, peer_id: str, frame: Frame) -> None: ...

    def has_room(self, peer_id: str) -> bool:  # noqa: ARG002
        return True

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        self.peers = dict(addresses)


def open_log() -> CommitLog:
    return open_log_on(FaultyVfs(1), 1 << 16)


def open_log_on(vfs: FaultyVfs, segment_bytes: int) -> CommitLog:
    vfs.make_dirs("/data")
    return CommitLog(
        vfs, "/data/log", segment_bytes=segment_bytes, verify_bytes=1 << 20, background=False
    )


def roll(log: CommitLog, members: Mapping[str, str], term: int = 1) -> int:
    state = [Checkpoint(topics=[TopicQueues(topic="t")], broker_state=b"state").SerializeToString()]
    return log.roll(checkpoint_entry(state, members, term=term, stored_at_ms=0)).raft_index


def made(log: CommitLog) -> tuple[Membership, Links]:
    links = Links()
    return Membership("a", log, links, {"contact": "x:1"}), links


def roster(index: int, members: Mapping[str, str]) -> Roster:
    told = CheckpointMembers.FromString(
        checkpoint_entry([], members, term=0, stored_at_ms=0).payload[0]  # type: ignore[arg-type]
    )
    return Roster(checkpoint_index=index, members=told.members)


def test_members_are_those_of_the_last_checkpoint_beside_the_machines_state() -> None:
    log = open_log()
    roll(log, THREE)
    roll(log, TWO)
    assert read_members(log) == TWO
    assert read_members(log, 1) == THREE
    checkpoint = Checkpoint.FromString(bytes(log.entry(2).payload))
    assert checkpoint.broker_state == b"state"


def test_a_log_of_a_store_alone_has_the_members_of_the_configuration() -> None:
    log = open_log()
    log.roll(NewEntry(Kind.CHECKPOINT, 0, 0, [b""]))
    membership, links = made(log)
    assert membership.read() == {"contact": "x:1"}
    membership.refresh(1)
    assert membership.members == {"contact": "x:1"}
    assert links.peers == {"contact": "x:1"}


def test_former_members_are_linked_until_the_change_is_committed() -> None:
    log = open_log()
    roll(log, THREE)
    membership, links = made(log)
    assert membership.refresh(1)
    assert set(links.peers) == {"b", "c"}
    index = roll(log, TWO)
    assert membership.refresh(index - 1)
    assert membership.members == TWO
    assert set(links.peers) == {"b", "c"}
    assert not membership.refresh(index - 1)
    assert set(links.peers) == {"b", "c"}
    assert not membership.refresh(index)
    assert set(links.peers) == {"b"}


def test_a_new_segment_does_not_read_the_checkpoint_of_the_one_before_which_may_have_rotted() -> (
    None
):
    vfs = FaultyVfs(1)
    log = open_log_on(vfs, 1 << 16)
    roll(log, THREE)
    membership, links = made(log)
    membership.refresh(1)
    index = roll(log, TWO)
    vfs.flip_bit(f"/data/log/{0:020d}.log", HEADER_BYTES + 1)
    with pytest.raises(MessagesDamaged):
        read_members(log, 1)
    assert membership.refresh(index - 1)
    assert set(links.peers) == {"b", "c"}


def test_a_change_that_is_known_to_be_committed_has_no_former_members() -> None:
    log = open_log()
    roll(log, THREE)
    index = roll(log, TWO)
    membership, links = made(log)
    membership.refresh(index)
    assert set(links.peers) == {"b"}


def test_a_truncation_brings_the_members_before_back() -> None:
    log = open_log()
    roll(log, THREE)
    index = roll(log, TWO)
    membership, links = made(log)
    membership.refresh(1)
    log.truncate(index)
    membership.forget()
    assert membership.refresh(1)
    assert membership.members == THREE
    assert set(links.peers) == {"b", "c"}


def test_a_new_segment_with_the_same_members_is_no_news() -> None:
    log = open_log()
    roll(log, THREE)
    membership, _ = made(log)
    membership.refresh(1)
    index = roll(log, THREE)
    assert not membership.refresh(index)
    assert membership.roster().checkpoint_index == index


def test_a_roster_of_others_adds_links_but_no_members() -> None:
    log = open_log()
    roll(log, TWO)
    membership, links = made(log)
    membership.refresh(1)
    assert not membership.receive_roster(roster(1, {"z": "z:1"}))
    assert set(links.peers) == {"b"}
    assert not membership.receive_roster(roster(5, {"a": "a:1", "d": "d:1"}))
    assert membership.members == TWO
    assert links.peers == {"b": "b:1", "d": "d:1"}
    assert not membership.receive_roster(roster(5, {"e": "e:1"}))
    assert not membership.receive_roster(roster(4, {"e": "e:1"}))
    assert "e" not in links.peers
    assert membership.receive_roster(roster(6, {"e": "e:1"}))
    assert set(links.peers) == {"b", "e"}


def test_a_roster_of_others_is_dropped_when_the_own_log_reaches_it() -> None:
    log = open_log()
    roll(log, TWO)
    membership, links = made(log)
    membership.receive_roster(roster(2, {"d": "d:1"}))
    membership.refresh(1)
    assert "d" in links.peers
    membership.refresh(roll(log, THREE))
    assert set(links.peers) == {"b", "c"}


def test_a_node_that_is_being_added_is_linked() -> None:
    log = open_log()
    roll(log, TWO)
    membership, links = made(log)
    membership.refresh(1)
    membership.changes.begin_add(TWO, "d", "d:1", lambda _: None)
    membership.set_peers()
    assert links.peers == {"b": "b:1", "d": "d:1"}
