"""A receive that is repeated since its answer was lost: what it was given comes again at once, to
its caller alone, and in order.
"""

from __future__ import annotations

from typing import Any

import pytest

from mq.broker.receive.grants import GrantedRun
from mq.broker.receive.leases import MARK_MAX, attempt_of, attempted, mark_of
from mq.errors import FlowControl
from tests.support.consensus import Node, on_loop, soon, turns
from tests.unit.broker.receive.receive_scene import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    ack,
    bodies,
    handles,
    receive,
    restarted,
    send_keyed,
    waiting,
)

# Two of one client, one of another.
FIRST, SECOND, OTHER = 7 << 32 | 1, 7 << 32 | 2, 8 << 32 | 1


async def node_with(*pairs: tuple[str, bytes]) -> Node:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, *pairs)
    return node


async def attempt(node: Node, number: int, **changes: Any) -> list[GrantedRun]:
    """Each mark is that of a member."""
    member_id = f"member {number >> 32}"
    return await receive(node, is_ordered=True, member_id=member_id, attempt=number, **changes)


def test_a_lease_tells_its_attempt_and_the_mark_of_its_receiver() -> None:
    for repetition in (0, 1, 255, 256, 1 << 63):
        for number in (FIRST, MARK_MAX << 32 | 5):
            lease = attempted(number, repetition)
            assert lease < 1 << 64
            assert (attempt_of(lease), mark_of(lease)) == (number, number >> 32)
    assert attempted(FIRST, 1) != attempted(FIRST, 2)


@on_loop
async def test_the_same_messages_come_at_once_and_no_others_of_their_keys() -> None:
    node = await node_with(("k", b"k1"), ("k", b"k2"), ("l", b"l1"))
    lost = await attempt(node, FIRST)
    again = await attempt(node, FIRST)
    assert bodies(again) == bodies(lost) == [b"k1", b"l1"]
    # It is the same attempt of the consumer, too.
    assert [one.attempt for one in again] == [1] * len(again)
    assert await ack(node, handles(lost)) == [False, False]
    assert await ack(node, handles(again)) == [True, True]
    assert bodies(await attempt(node, SECOND)) == [b"k2"]


@pytest.mark.parametrize("number", [SECOND, OTHER, 0])
@on_loop
async def test_another_attempt_gets_nothing_until_the_time_is_over(number: int) -> None:
    node = await node_with(("k", b"k1"), ("k", b"k2"))
    assert bodies(await attempt(node, FIRST)) == [b"k1"]
    assert await attempt(node, number) == []
    node.pass_time(INVISIBLE_MS - 1)
    assert await attempt(node, number) == []
    node.pass_time(1)
    (again,) = await attempt(node, number)
    assert (bodies([again]), again.attempt) == ([b"k1"], 2)
    # By then it is in other hands.
    assert await attempt(node, FIRST) == []


@on_loop
async def test_the_next_leader_knows_the_attempt() -> None:
    node = await node_with(("k", b"k1"), ("k", b"k2"))
    lost = await attempt(node, FIRST)
    node = restarted(node)
    assert await attempt(node, OTHER) == []
    again = await attempt(node, FIRST)
    assert (bodies(again), again[0].attempt) == ([b"k1"], 1)
    assert await ack(node, handles(lost)) == [False]
    node = restarted(node)
    third = await attempt(node, FIRST)
    assert await ack(node, handles(again)) == [False]
    assert await ack(node, handles(third)) == [True]
    assert bodies(await attempt(node, FIRST)) == [b"k2"]


@on_loop
async def test_what_is_acknowledged_does_not_come_again() -> None:
    node = await node_with(("k", b"k1"), ("l", b"l1"), ("m", b"m1"))
    lost = await attempt(node, FIRST)
    await ack(node, handles(lost)[1:2])
    assert bodies(await attempt(node, FIRST)) == [b"k1", b"m1"]


@on_loop
async def test_what_does_not_fit_into_the_repetition_goes_to_others_at_once() -> None:
    node = await node_with(("k", b"k1"), ("l", b"l1"), ("k", b"k2"))
    await attempt(node, FIRST)
    other = waiting(node, is_ordered=True, member_id="other")
    await turns()
    assert bodies(await attempt(node, FIRST, messages_max=1)) == [b"k1"]
    (found,) = await soon(other)
    assert (bodies([found]), found.attempt) == ([b"l1"], 1)


@on_loop
async def test_messages_of_all_queues_come_again() -> None:
    node = Node()
    await node.topic(TOPIC, 3)
    for queue_id in range(3):
        await node.send(TOPIC, b"%d" % queue_id, queue_id=queue_id)
    assert sorted(bodies(await attempt(node, FIRST))) == [b"0", b"1", b"2"]
    assert sorted(bodies(await attempt(node, FIRST))) == [b"0", b"1", b"2"]
    node = restarted(node)
    assert sorted(bodies(await attempt(node, FIRST))) == [b"0", b"1", b"2"]


@on_loop
async def test_a_caller_that_waits_in_vain_for_the_former_call_gets_what_comes_next() -> None:
    """The connection broke, and the broker has not noticed."""
    node = await node_with(("k", b"k1"))
    await ack(node, handles(await attempt(node, SECOND)))
    gone = waiting(node, is_ordered=True, member_id="member 7", attempt=FIRST)
    await turns()
    again = waiting(node, is_ordered=True, member_id="member 7", attempt=FIRST)
    assert await soon(gone) == []
    await send_keyed(node, ("k", b"k2"))
    assert bodies(await soon(again)) == [b"k2"]
    assert not node.broker.receiving._attempt_calls


@on_loop
async def test_of_two_calls_at_once_the_second_one_is_given_the_messages() -> None:
    node = await node_with(("k", b"k1"), ("k", b"k2"))
    for is_begun in (False, True):
        calls = [
            waiting(node, is_ordered=True, member_id="member 7", attempt=FIRST) for _ in range(2)
        ]
        first, second = [await soon(one) for one in calls]
        assert (first, bodies(second)) == ([], [b"k1"]), is_begun
    await ack(node, handles(second))
    assert bodies(await attempt(node, FIRST)) == [b"k2"]


@on_loop
async def test_the_end_of_the_former_call_takes_nothing_from_the_repetition() -> None:
    """Its answer cannot be written: what it was given goes back, but is in other hands by then."""
    node = await node_with(("k", b"k1"))
    lost = await attempt(node, FIRST)
    again = await attempt(node, FIRST)
    node.broker.receiving.give_back(GROUP, lost)
    await turns()
    assert await attempt(node, OTHER) == []
    assert await ack(node, handles(again)) == [True]


@on_loop
async def test_a_repetition_that_is_not_written_changes_nothing() -> None:
    node = await node_with(("k", b"k1"))
    lost = await attempt(node, FIRST)
    node.consensus.failure = FlowControl("full")
    with pytest.raises(FlowControl):
        await attempt(node, FIRST)
    node.consensus.failure = None
    assert await attempt(node, OTHER) == []
    assert bodies(await attempt(node, FIRST)) == bodies(lost)


@on_loop
async def test_attempts_that_are_done_are_forgotten_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq.broker.receive.members._ATTEMPTS_MAX", 8)
    node = await node_with(*[(str(at), b"%d" % at) for at in range(60)])
    kept = await attempt(node, FIRST, messages_max=2)
    for at in range(50):
        given = await attempt(node, SECOND + at, messages_max=1)
        assert await ack(node, handles(given)) == [True]
    (group,) = node.broker.receiving._receive_groups
    assert len(group._attempts or ()) < 20
    assert bodies(await attempt(node, FIRST, messages_max=2)) == bodies(kept)
