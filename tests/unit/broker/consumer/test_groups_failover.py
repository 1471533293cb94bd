"""A group over a change of its leader: locks of ordered groups, held queues, a moment to come
back.
"""

from __future__ import annotations

import pytest

from mq.broker.consumer.subscriber import Position
from mq.broker.queue import Queue
from mq.errors import DiskFull, NotLeader
from mq.wire.v1.consumer_pb2 import MODE_ORDERED
from tests.support.consensus import Node, eventually, on_loop, soon, turns
from tests.unit.broker.consumer.group_scene import (
    ALL,
    EXPIRES_MS,
    World,
    drain,
    last_assignment,
    t,
    world,
)

# -- locks of ordered groups -----------------------------------------------------------------------


def locks(here: World) -> dict[Queue, str]:
    return dict(here.node.machine.state.offsets.locks("g"))


@on_loop
async def test_an_ordered_queue_is_given_when_its_lock_is_in_the_log() -> None:
    here = await world()
    here.node.consensus.is_held = True
    one = here.subscribe("m", MODE_ORDERED)
    await turns()
    assert one.queues == frozenset()
    here.node.consensus.is_held = False
    here.node.consensus.commit()
    await eventually(lambda: one.queues == ALL)
    assert locks(here) == dict.fromkeys(ALL, "m")
    here.groups.unsubscribe(one, is_over=True)
    await eventually(lambda: locks(here) == {})
    here.node.broker.tick()
    assert here.groups.live("g") is None


@on_loop
async def test_locks_that_cannot_be_written_are_written_later() -> None:
    here = await world()
    here.node.consensus.failure = DiskFull("no space")
    one = here.subscribe("m", MODE_ORDERED)
    await turns()
    assert one.queues == frozenset()
    here.node.consensus.failure = None
    here.node.pass_time(200)
    await eventually(lambda: one.queues == ALL)


@on_loop
async def test_a_new_leader_keeps_ordered_queues_for_their_owners() -> None:
    here = await world()
    one = here.subscribe("owner", MODE_ORDERED)
    await eventually(lambda: one.queues == ALL)
    again = World(Node(here.node.vfs_after_kill()))
    stranger = again.subscribe("stranger", MODE_ORDERED)
    await turns()
    again.node.pass_time(EXPIRES_MS - 1)
    again.groups.alive(stranger)
    await turns()
    assert stranger.queues == frozenset()
    owner = again.subscribe("owner", MODE_ORDERED, positions=dict.fromkeys(ALL, 0))
    await turns()
    assert len(owner.queues) == 2
    assert stranger.queues == frozenset()
    moved = again.hand_over(owner)
    await eventually(lambda: stranger.queues == moved)
    assert owner.queues | stranger.queues == ALL


@on_loop
async def test_a_member_that_does_not_return_loses_its_locks() -> None:
    here = await world()
    one = here.subscribe("owner", MODE_ORDERED)
    await eventually(lambda: one.queues == ALL)
    again = World(Node(here.node.vfs_after_kill()))
    stranger = again.subscribe("stranger", MODE_ORDERED)
    again.node.pass_time(EXPIRES_MS - 1)
    again.groups.alive(stranger)
    again.node.pass_time(1)
    await eventually(lambda: stranger.queues == ALL)
    assert locks(again) == dict.fromkeys(ALL, "stranger")


# -- leaders, topics, questions --------------------------------------------------------------------


@on_loop
async def test_a_leader_that_steps_down_sends_its_members_to_the_next() -> None:
    here = await world()
    one = here.subscribe("m")
    here.node.consensus.depose()
    here.node.broker.tick()
    with pytest.raises(NotLeader) as raised:
        await soon(one.next())
    assert raised.value.address == "other:8081"
    assert (here.groups.member_count, len(here.node.broker.arrivals)) == (0, 0)
    here.groups.unsubscribe(one, is_over=False)
    here.groups.progress(one, [Position(Queue("t", 0), 0, 0)])
    here.groups.released(one, dict.fromkeys(ALL))


@on_loop
async def test_after_a_fail_over_queues_wait_for_their_former_owners() -> None:
    here = await world()
    here.subscribe("first")
    await eventually(lambda: here.node.committed("g"))
    here.node.consensus.depose()
    here.node.broker.tick()
    here.node.consensus.elect()
    here.node.broker.tick()
    early = here.subscribe("early")
    assert early.queues == frozenset()
    claimed = dict.fromkeys(t(0, 1), 0)
    first = here.subscribe("first", positions=claimed)
    assert first.queues == t(0, 1)
    here.node.pass_time(4_499)
    assert early.queues == frozenset()
    here.node.pass_time(1)
    assert first.queues | early.queues == ALL


@on_loop
async def test_a_group_that_this_leader_has_met_does_not_wait_again() -> None:
    here = await world()
    here.subscribe("first")
    await eventually(lambda: here.node.committed("g"))
    here.node.consensus.depose()
    here.node.broker.tick()
    here.node.consensus.elect()
    here.node.broker.tick()
    one = here.subscribe("first", positions=dict.fromkeys(ALL, 0))
    assert one.queues == ALL
    here.groups.unsubscribe(one, is_over=True)
    assert here.subscribe("second").queues == ALL


# -- a log that a power loss made shorter ----------------------------------------------------------


def elect_again(here: World) -> None:
    here.node.consensus.depose()
    here.node.broker.tick()
    here.node.consensus.elect()
    here.node.broker.tick()


@on_loop
async def test_new_messages_at_the_offsets_of_lost_ones_are_delivered() -> None:
    here = await world()
    queue = Queue("t", 0)
    await here.node.send("t", b"1", b"2")
    elect_again(here)
    # The member has had five; three of them are gone, and their offsets are those of others.
    await here.node.send("t", b"new 3", b"new 4", b"new 5", b"new 6")
    one = here.subscribe("m", positions={queue: 5})
    assert last_assignment(await drain(one))[queue].queue_offset == 0


@on_loop
async def test_a_member_goes_on_behind_what_it_has_of_a_former_leader() -> None:
    here = await world()
    queue = Queue("t", 0)
    await here.node.send("t", b"1", b"2", b"3")
    elect_again(here)
    await here.node.send("t", b"4")
    one = here.subscribe("m", positions={queue: 3})
    assert last_assignment(await drain(one))[queue].queue_offset == 3
    here.groups.unsubscribe(one, is_over=False)
    # What this leader has sent counts as well.
    again = here.subscribe("m", positions={queue: 4})
    assert last_assignment(await drain(again))[queue].queue_offset == 4
