"""The replica that serves a reader: by distance, by zone, by health, and never to and fro."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.consumer.replicas import Follower, Reader, better_place, goes_back
from mq.broker.contracts import Leading, Peer
from mq.broker.queue import Queue
from mq.errors import NotLeader
from tests.support.consensus import Node, on_loop, turns

BACKLOG = 1000
FAR, NEAR = BACKLOG + 1, BACKLOG


def follower(name: str, zone: str = "", behind: int = 0) -> Follower:
    return Follower(Peer(name, f"{name}:8081", zone), behind)


B, C = follower("b"), follower("c")
WEST_B, EAST_C = follower("b", "west"), follower("c", "east")
LATE_B = follower("b", "west", BACKLOG // 2 + 1)


@pytest.mark.parametrize(
    ("reader", "own_zone", "followers", "expected"),
    [
        pytest.param(Reader("", NEAR), "", [B, C], ["", ""], id="near the end: the leader"),
        pytest.param(Reader("", FAR), "", [B, C], ["b", "c"], id="far behind: each in its turn"),
        pytest.param(Reader("", FAR), "", [], ["", ""], id="a group of one"),
        pytest.param(Reader("", FAR), "", [LATE_B, C], ["c", "c"], id="not one that is behind"),
        pytest.param(Reader("", FAR), "", [LATE_B], ["", ""], id="nobody is fit"),
        pytest.param(Reader("west", 1), "east", [WEST_B, EAST_C], ["b", "b"], id="its own zone"),
        pytest.param(Reader("west", 1), "west", [WEST_B], ["", ""], id="the leader is at home"),
        pytest.param(Reader("west", 1), "east", [LATE_B], ["", ""], id="at home nobody is fit"),
        pytest.param(Reader("west", 1), "east", [EAST_C], ["", ""], id="nobody is at home"),
        pytest.param(Reader("west", 1), "", [B], ["", ""], id="nodes without a zone"),
        pytest.param(Reader("", 1), "east", [B, WEST_B], ["", ""], id="a reader without a zone"),
        pytest.param(
            Reader("west", FAR), "west", [WEST_B, EAST_C], ["b", "b"], id="far: same zone first"
        ),
        pytest.param(Reader("west", FAR), "west", [EAST_C], ["c", "c"], id="far: then the others"),
    ],
)
def test_the_leader_names_a_place(
    reader: Reader, own_zone: str, followers: list[Follower], expected: list[str]
) -> None:
    found = [better_place(reader, own_zone, followers, BACKLOG, turn) for turn in range(2)]
    assert [one.node_id if one else "" for one in found] == expected


@pytest.mark.parametrize(
    ("reader", "own_zone", "leader_zone", "expected"),
    [
        pytest.param(Reader("", 500), "", "", False, id="not yet"),
        pytest.param(Reader("", 499), "", "", True, id="nearly caught up"),
        pytest.param(Reader("west", 0), "west", "east", False, id="at home, also at the end"),
        pytest.param(Reader("west", 0), "west", "west", True, id="the leader is as near"),
        pytest.param(Reader("west", 0), "east", "west", True, id="the leader is nearer"),
        pytest.param(Reader("", 0), "", "east", True, id="no zone is no home"),
    ],
)
def test_a_follower_sends_back(
    reader: Reader, own_zone: str, leader_zone: str, *, expected: bool
) -> None:
    assert goes_back(reader, own_zone, leader_zone, BACKLOG) is expected


ZONES = st.sampled_from(["", "east", "west"])


@given(
    st.integers(0, 3 * BACKLOG), ZONES, ZONES, st.lists(st.tuples(ZONES, st.integers(0, BACKLOG)))
)
def test_a_reader_sent_to_a_follower_is_not_sent_back_at_once(
    behind: int, zone: str, own_zone: str, others: list[tuple[str, int]]
) -> None:
    """The follower measures from its own end, which the leader knows."""
    followers = [follower(str(at), *one) for at, one in enumerate(others)]
    reader = Reader(zone, behind)
    place = better_place(reader, own_zone, followers, BACKLOG, 0)
    if place is not None:
        lag = followers[int(place.node_id)].behind_bytes
        there = Reader(zone, max(0, behind - lag))
        assert not goes_back(there, place.zone, own_zone, BACKLOG)


@on_loop
async def test_replicas_know_the_followers_and_their_progress() -> None:
    node = Node(backlog_bytes=1000)
    await node.topic("t")
    replicas = node.broker.replicas
    far = Reader("", 10_000)
    last = node.store.log.last_index
    here = Peer("node-0", "here:8081", "east", "", last)

    def named(*others: Peer) -> str:
        node.consensus.seen = [here, *others]
        replicas.refresh()
        place = replicas.better_place(far)
        return place.node_id if place else ""

    assert named() == "", "a leader is no follower of its own"
    assert named(Peer("b", "b:1", "", "", 0)) == "", "not connected, or it has to catch up"
    assert named(Peer("b", "", "", "", last)) == "", "not heard of"
    assert named(Peer("b", "b:1", "", "", last)) == "b"
    both = Peer("b", "b:1", "", "", last), Peer("c", "c:1", "", "", last)
    assert {named(*both), named(*both)} == {"b", "c"}, "in turn"
    for _ in range(20):
        await node.send("t", bytes(100))
    assert named(Peer("b", "b:1", "", "", last)) == "", "more than half a backlog behind by now"
    assert named(Peer("b", "b:1", "", "", node.store.log.last_index)) == "b"
    assert named(Peer("b", "b:1", "", "", node.store.log.last_index + 1)) == "", "not of this log"


@on_loop
async def test_a_follower_names_its_leader_if_there_is_one() -> None:
    node = Node()
    node.consensus.depose()
    node.broker.tick()
    leader = node.broker.replicas.leader()
    assert (leader.node_id, leader.address, leader.zone) == ("other", "other:8081", "west")
    node.consensus.followed = Leading(9, "other", "other:8081", "outside:1")
    assert node.broker.replicas.leader().external_address == "outside:1"
    for nobody in (Leading(9, None, None), Leading(9, "other", None), Leading(9, "node-0", "x:1")):
        node.consensus.followed = nobody
        with pytest.raises(NotLeader):
            node.broker.replicas.leader()


@on_loop
async def test_waiting_readers_are_woken_when_another_node_leads() -> None:
    node = Node()
    waiting = asyncio.create_task(node.broker.arrivals.wait(Queue("t", 0), 60.0))
    node.broker.tick()
    await turns()
    assert not waiting.done(), "nothing has changed"
    node.consensus.depose()
    node.broker.tick()
    assert await waiting
