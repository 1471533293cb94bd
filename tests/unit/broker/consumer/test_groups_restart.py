"""All nodes of a set were killed, no consumer was: a member that comes back goes on where it was,
also while the other sets of the cluster are not known again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mq.broker.consumer.subscriber import Assigned
from mq.wire.v1.cluster_pb2 import PeerSet
from mq.wire.v1.consumer_pb2 import MODE_CLUSTERING, MODE_ORDERED
from tests.support.consensus import Node, eventually, on_loop, turns
from tests.unit.broker.consumer.group_scene import ALL, World, drain, last_assignment, world
from tests.unit.broker.consumer.test_groups_sets import tell

if TYPE_CHECKING:
    from mq.broker.consumer.membership import Group
    from mq.broker.consumer.subscriber import Position, Subscriber
    from mq.broker.queue import Queue

# By what the sets have, A gets three of the four queues here and B one.
ZONES = {"A": "x", "B": "z"}


def tell_of_b(here: World) -> None:
    tell(here.node, "b", "z", t=2)


def restarted(here: World, **options: Any) -> World:
    """It leads again, and knows no member and no other set."""
    return World(Node(here.node.vfs_after_kill(), **options))


def group(here: World) -> Group:
    found = here.groups.live("g")
    assert found is not None
    return found


async def shared(mode: int) -> tuple[World, dict[str, frozenset[Queue]]]:
    """A node with its members; each queue has five messages, of which none is done."""
    here = await world()
    tell_of_b(here)
    members = [here.subscribe(name, mode, zone=zone) for name, zone in ZONES.items()]
    for one in members:
        here.hand_over(one)
    await eventually(lambda: [len(here.assigned(name)) for name in ZONES] == [3, 1])
    for queue_id in range(4):
        await here.node.send("t", *[b"%d" % at for at in range(5)], queue_id=queue_id)
    await eventually(lambda: len(here.node.committed("g")) == 4)
    return here, {name: here.assigned(name) for name in ZONES}


@pytest.mark.parametrize("order", ["AB", "BA"])
@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
@on_loop
async def test_a_member_that_returns_before_other_sets_are_known_keeps_its_queues_and_positions(
    mode: int, order: str
) -> None:
    """By an even share of this set alone, A would have to release a queue, and get it again from
    the last commit as soon as the other set is known.
    """
    before, hands = await shared(mode)
    here = restarted(before)
    for name in order:
        places = dict.fromkeys(hands[name], 5)
        one = here.subscribe(name, mode, zone=ZONES[name], positions=places)
        (assigned,) = [said for said in await drain(one) if isinstance(said, Assigned)]
        assert {at.queue: at.queue_offset for at in assigned.positions} == places
    generation = group(here).generation
    tell_of_b(here)
    here.node.pass_time(5_000)
    await turns()
    assert {name: here.assigned(name) for name in ZONES} == hands
    assert group(here).generation == generation


@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
@on_loop
async def test_a_stream_that_breaks_right_after_it_was_opened_costs_no_place(mode: int) -> None:
    before, hands = await shared(mode)
    here = restarted(before)
    places = dict.fromkeys(hands["A"], 5)
    for _ in range(3):
        one = here.subscribe("A", mode, zone="x", positions=places)
        assert one.queues == hands["A"]
        here.groups.unsubscribe(one, is_over=False)
        here.node.pass_time(500)
    one = here.subscribe("A", mode, zone="x", positions=places)
    (assigned,) = [said for said in await drain(one) if isinstance(said, Assigned)]
    assert {at.queue: at.queue_offset for at in assigned.positions} == places


async def moving(mode: int) -> tuple[World, Subscriber, Position]:
    """A node where A has to release one queue, in which it is done with four messages."""
    here, hands = await shared(mode)
    one = here.subscribe("A", mode, zone="x", positions=dict.fromkeys(hands["A"], 5))
    (assigned, *_) = await drain(one)
    assert isinstance(assigned, Assigned)
    here.node.machine.state.sets.put(PeerSet(name="b"))  # an operator removes the other set
    list(here.node.broker.directory.targets())
    here.node.pass_time(0)
    await drain(one)
    (moved,) = hands["A"] - here.assigned("A")
    (place,) = [at._replace(queue_offset=4) for at in assigned.positions if at.queue == moved]
    return here, one, place


@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
@on_loop
async def test_the_next_member_starts_where_the_last_one_was_also_at_a_new_leader(
    mode: int,
) -> None:
    """All may be killed as soon as it has the queue, or the lock, and before it was told."""
    here, one, place = await moving(mode)
    moved = place.queue
    here.groups.progress(one, [place])
    here.groups.released(one, {moved: None})
    locks = here.node.machine.state.offsets.locks
    await eventually(lambda: moved in here.assigned("B") or locks("g").get(moved) == "B")
    assert here.node.committed("g")[moved] == 4


@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
@on_loop
async def test_a_queue_may_come_back_while_its_release_is_written(mode: int) -> None:
    here, one, place = await moving(mode)
    here.groups.progress(one, [place])
    here.groups.released(one, {place.queue: place.epoch})
    here.groups.leave("g", "B")
    await eventually(lambda: here.assigned("A") == ALL)
    await turns()
    assert last_assignment(await drain(one))[place.queue].queue_offset in (4, 5)
    assert here.groups.owner("g", place.queue) == "A"


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
@on_loop
async def test_nothing_is_shared_out_before_other_sets_were_asked_or_had_their_time(
    mode: int, is_answered: bool
) -> None:
    here = restarted(await world(), seeds="b-0:1")
    members = [here.subscribe(name, mode, zone=zone) for name, zone in ZONES.items()]
    await turns()
    assert not any(one.queues for one in members)
    if is_answered:
        tell_of_b(here)
    else:
        here.node.pass_time(5_000)
    expected = [3, 1] if is_answered else [2, 2]
    await eventually(lambda: [len(one.queues) for one in members] == expected)
    # Each queue was given once.
    assert group(here).generation == 1
