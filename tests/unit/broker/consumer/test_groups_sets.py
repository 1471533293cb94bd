"""A group whose topics have queues in other broker sets as well: what it has here, and how much."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker.consumer.membership import Group
from mq.broker.consumer.shares import Portion, Surroundings
from mq.broker.consumer.subscriber import Assigned
from mq.broker.queue import Queue
from mq.errors import IllegalRequest, PermissionDenied, TopicNotFound
from mq.wire.v1.cluster_pb2 import (
    TOPIC_ORDERED,
    BrokerSet,
    GreetResponse,
    NodeRoute,
    PeerSet,
    TopicRoute,
)
from mq.wire.v1.consumer_pb2 import MODE_BROADCAST, MODE_CLUSTERING, MODE_ORDERED
from tests.support.consensus import batch, eventually, on_loop, turns
from tests.unit.broker.consumer.group_scene import ALL, LATEST, drain, spec, t, world

if TYPE_CHECKING:
    import random

    from tests.support.consensus import Node

VERSIONS = itertools.count(1)


def tell(
    node: Node, name: str = "b", zones: str = "", *, is_readable: bool = True, **topics: int
) -> None:
    """Another set says what it has."""
    nodes = [
        NodeRoute(node_id=f"n{at}", address=f"{name}-{at}:1", zone=zone.strip())
        for at, zone in enumerate(zones or " ")
    ]
    routes = [
        TopicRoute(topic=topic, broker_set=name, read_queues=queues, is_readable=is_readable)
        for topic, queues in topics.items()
    ]
    said = GreetResponse(
        broker_set=BrokerSet(name=name, leader_id="n0", term=1, nodes=nodes),
        topics_version=next(VERSIONS),
        topics=routes,
    )
    node.broker.directory.heard("", f"{name}-0:1", said, node.now_ms)
    node.broker.directory.greeted(name, [f"{name}-0:1"], is_answered=True)
    node.pass_time(0)


# -- topics that are elsewhere ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED, MODE_BROADCAST])
@on_loop
async def test_a_topic_of_another_set_has_no_queues_here_until_it_comes(mode: int) -> None:
    here = await world(auto_create_topics="no")
    with pytest.raises(TopicNotFound):
        here.subscribe("one", mode, topic="far")
    tell(here.node, far=4)
    member = here.subscribe("one", mode, topic="far", start=LATEST)
    assert await drain(member) == [Assigned(here.groups.live("g").generation, [])]  # type: ignore[union-attr]
    await here.node.topic("far", 2)
    await eventually(lambda: member.queues == {Queue("far", 0), Queue("far", 1)})


@on_loop
async def test_members_that_pull_may_wait_for_a_topic_of_another_set_too() -> None:
    here = await world(auto_create_topics="no")
    with pytest.raises(TopicNotFound):
        here.groups.join("g", spec("one", topic="far"), [])
    tell(here.node, far=4)
    here.groups.join("g", spec("one", topic="far"), [])
    await here.node.topic("far", 2)
    assert len(here.assigned("one")) == 2
    # Where it starts is its own affair.
    assert here.groups.position("g", Queue("far", 0)) is None


@on_loop
async def test_a_queue_created_while_its_group_consumes_is_read_from_the_beginning() -> None:
    """Also when it stops before its first message, and comes back as one that wants the newest."""
    here = await world()
    tell(here.node, far=4)
    member = here.subscribe("one", topic="far", start=LATEST)
    await here.node.topic("far", 1)
    here.groups.unsubscribe(member, is_over=True)
    await here.node.send("far", b"first")
    await eventually(lambda: here.node.committed("g") == {Queue("far", 0): 0})
    again = here.subscribe("one", topic="far", start=LATEST)
    (assigned,) = [one for one in await drain(again) if isinstance(one, Assigned)]
    assert [one.queue_offset for one in assigned.positions] == [0]


@on_loop
async def test_a_part_that_is_switched_off_here_can_be_read_elsewhere() -> None:
    here = await world()
    await here.node.broker.catalog.alter("t", is_readable=False)
    with pytest.raises(PermissionDenied):
        here.subscribe("one")
    tell(here.node, t=4, is_readable=False)
    with pytest.raises(PermissionDenied):
        here.subscribe("one")
    tell(here.node, t=4)
    assert here.subscribe("one").queues == frozenset()


@on_loop
async def test_a_topic_of_another_set_is_not_created_here() -> None:
    here = await world(auto_create_topics="yes")
    tell(here.node, far=4)
    await here.node.broker.create_missing(["far", "new"])
    topics = here.node.machine.state.topics
    assert ("far" in topics, "new" in topics) == (False, True)
    with pytest.raises(TopicNotFound, match="which is in b: ask for its route"):
        await here.node.broker.submit(batch("far", b"by an old route"))
    await here.node.broker.submit(batch("newer", b"nobody has it"))
    assert ("far" in topics, "newer" in topics) == (False, True)


@on_loop
async def test_a_broker_asks_the_others_before_it_creates_what_seems_to_be_missing() -> None:
    here = await world(auto_create_topics="yes", seeds="b-0:1")
    directory = here.node.broker.directory
    assert not directory.is_complete

    async def answer() -> None:
        tell(here.node, far=4)

    await asyncio.gather(here.node.broker.create_missing(["far"]), answer())
    assert "far" not in here.node.machine.state.topics


@on_loop
async def test_parts_of_a_topic_are_of_one_kind() -> None:
    here = await world()
    tell(here.node, far=4)
    with pytest.raises(IllegalRequest, match="far is normal and has 0 priorities in broker set b"):
        await here.node.broker.catalog.create("far", 4, TOPIC_ORDERED)
    with pytest.raises(IllegalRequest, match="the same here"):
        await here.node.broker.catalog.create("far", 4, 0, priorities=2)
    await here.node.broker.catalog.create("far", 4, 0)


# -- draining --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
@on_loop
async def test_a_part_that_takes_no_messages_is_consumed_until_it_is_deleted(mode: int) -> None:
    here = await world()
    tell(here.node, t=4)
    member = here.subscribe("one", mode)
    await eventually(lambda: member.queues == ALL)
    await here.node.broker.catalog.alter("t", is_writable=False)
    assert member.queues == ALL
    assert here.subscribe("two", mode).queues == frozenset()
    here.hand_over(member)
    await eventually(lambda: len(here.assigned("two")) == 2)
    await here.node.broker.catalog.delete("t")
    assert not here.assigned("one") | here.assigned("two")
    here.hand_over(member)
    # A new member finds nothing, and is welcome; a part that comes back is theirs.
    late = here.subscribe("three", mode)
    assert late.queues == frozenset()
    await here.node.topic("t", 3)
    for one in (member, late):
        here.hand_over(one)
    await eventually(lambda: all(len(here.assigned(one)) == 1 for one in ("one", "two", "three")))


# -- shares ----------------------------------------------------------------------------------------


@on_loop
async def test_members_get_less_here_when_they_have_more_elsewhere() -> None:
    here = await world()
    tell(here.node, t=1)
    members = [here.subscribe(name) for name in ("A", "B", "C")]
    for _ in range(3):
        for one in members:
            here.hand_over(one)
    # A has the one of b, and so one of these: two have one more than the third.
    assert [len(one.queues) for one in members] == [1, 2, 1]
    assert frozenset().union(*(one.queues for one in members)) == ALL


@on_loop
async def test_shares_follow_what_other_sets_say_and_nothing_moves_when_they_say_the_same() -> None:
    here = await world()
    first, second = here.subscribe("A", zone="x"), here.subscribe("B", zone="z")
    here.hand_over(first)
    assert (len(first.queues), len(second.queues)) == (2, 2)
    live = here.groups.live("g")
    assert live is not None
    tell(here.node, "b", "z", t=2, other=9)
    for one in (second, first):
        here.hand_over(one)
    # B is near to b, so A has more of what is here.
    assert (len(first.queues), len(second.queues)) == (3, 1)
    generation = live.generation
    for _ in range(3):
        tell(here.node, "b", "z", t=2, other=11)
    assert live.generation == generation
    # An operator removes the set.
    here.node.machine.state.sets.put(PeerSet(name="b"))
    list(here.node.broker.directory.targets())
    here.node.pass_time(0)
    here.hand_over(first)
    assert (len(first.queues), len(second.queues)) == (2, 2)


@on_loop
async def test_every_member_of_a_broadcast_group_has_all_queues_of_all_sets() -> None:
    here = await world()
    tell(here.node, t=8)
    assert [here.subscribe(name, MODE_BROADCAST).queues for name in "AB"] == [ALL, ALL]


@on_loop
async def test_the_zones_of_all_nodes_are_near_whichever_leads() -> None:
    """node-0 is in the east and leads, another one is in the west."""
    for zone in ("east", "west"):
        here = await world()
        await here.node.topic("odd", 3)
        far, near = here.subscribe("A", topic="odd"), here.subscribe("B", topic="odd", zone=zone)
        # No member has anything to keep.
        await here.node.broker.catalog.alter("odd", is_readable=False)
        here.hand_over(far)
        here.hand_over(near)
        await here.node.broker.catalog.alter("odd", is_readable=True)
        assert (len(far.queues), len(near.queues)) == (1, 2)


@on_loop
async def test_a_group_of_one_set_shares_its_queues() -> None:
    here = await world()
    tell(here.node, other=8)
    first, second = here.subscribe("A"), here.subscribe("B")
    here.hand_over(first)
    await turns()
    assert first.queues | second.queues == ALL
    assert (len(first.queues), first.queues & t(0, 1)) == (2, t(0, 1))


# -- several sets at once --------------------------------------------------------------------------

SETS = {
    "a": Portion(4, frozenset("x")),
    "b": Portion(3, frozenset("xy")),
    "c": Portion(6, frozenset()),
}


def settled(name: str, steps: list[tuple[str, bool]], mode: int) -> Group:
    """The group as the set `name` has it, after members came, left and released queues."""
    group, locks = Group("g"), dict[Queue, str]()
    elsewhere = {one: portion for one, portion in SETS.items() if one != name}
    queues = {Queue("t", at): "" for at in range(SETS[name].queues)}
    for member_id, is_here in steps:
        if is_here:
            group.join(spec(member_id, mode, zone="xyz"[ord(member_id) % 3]), [], 0)
        else:
            group.leave(member_id)
        group.set_queues(queues, {}, Surroundings(name, SETS[name].zones, elsewhere))
        for _ in range(4):
            group.rebalance(0)
            locks |= group.lock_changes()
            group.set_locks(locks, 0)
            for one in list(group.members.values()):
                group.release(one.spec.member_id, group.in_hand(one.spec.member_id))
    given_here = [queue for one in group.members for queue in group.assigned(one)]
    assert sorted(given_here) == sorted(queues)
    return group


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.sampled_from("ABCDE"), min_size=1),
    st.sets(st.sampled_from("VWXYZ")),
    st.randoms(use_true_random=False),
    st.sampled_from([MODE_CLUSTERING, MODE_ORDERED]),
)
def test_sets_that_know_the_same_members_give_each_a_fair_share(
    staying: set[str], leaving: set[str], dice: random.Random, mode: int
) -> None:
    """Each set hears of them in its own order, and is not told the decisions of others."""
    totals = dict.fromkeys(staying, 0)
    for name in SETS:
        coming = [(one, True) for one in sorted(staying | leaving)]
        going = [(one, False) for one in sorted(leaving)]
        steps = dice.sample(coming, len(coming)) + dice.sample(going, len(going))
        group = settled(name, steps, mode)
        for one in staying:
            totals[one] += len(group.assigned(one))
    assert max(totals.values()) - min(totals.values()) <= 1
