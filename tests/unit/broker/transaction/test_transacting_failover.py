"""Transactions across fail-overs, restarts and retention: each still ends once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mq.errors import NotLeader, OutcomeUnknown
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, on_loop, soon, turns
from tests.unit.broker.transaction.transaction_scene import (
    begin,
    bodies,
    commit,
    messages,
    new_node,
    open_ones,
    pass_time,
    producer,
    questions,
    roll_back,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def restarted(node: Node, *, keep: float = 1.0) -> Node:
    """Up again, with so much of what was not synced."""
    node.vfs.crash(0, keep)
    again = Node(node.vfs)
    again.now_ms = node.now_ms
    return again


STEPS: list[tuple[str, Callable[[Node, int], Awaitable[Any]]]] = [
    ("commit", commit),
    ("rollback", roll_back),
    ("question", lambda node, _: pass_time(node, 6_000)),
    ("carry", lambda node, _: node.broker.transacting.carry(1 << 40)),
]


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize(("name", "step"), STEPS)
@on_loop
async def test_a_leader_that_dies_between_decision_and_answer(
    name: str, step: Callable[[Node, int], Awaitable[Any]], is_kept: bool
) -> None:
    """The entry is in the log of the next leader, or it is not: both are good."""
    node = await new_node()
    one = await begin(node, b"order", producer_id="p", sequence=1)
    node.consensus.is_held = True
    doing = asyncio.ensure_future(step(node, one))
    await turns()
    node.consensus.lose(OutcomeUnknown("the leader changed"))
    node.consensus.depose()
    await asyncio.gather(doing, return_exceptions=True)
    await turns()
    after = await restarted(node, keep=float(is_kept))
    has_ended = is_kept and name in ("commit", "rollback")
    assert [each.id for each in open_ones(after)] == ([] if has_ended else [one])
    assert bodies(after) == ([b"order"] if is_kept and name == "commit" else [])
    if name == "question":
        assert open_ones(after)[0].checks == int(is_kept)
    # A caller that missed the answer asks again: the result is the same, once.
    if name == "rollback":
        await roll_back(after, one)
        assert bodies(after) == []
    else:
        stored = await commit(after, one)
        assert (stored.queue_id, stored.queue_offset) == (0, 0)
        assert bodies(after) == [b"order"]
    # The half message sent again is no second transaction.
    assert await begin(after, b"order", producer_id="p", sequence=1) == one
    assert open_ones(after) == []


@on_loop
async def test_a_checkpoint_has_open_transactions_and_ends() -> None:
    node = await new_node()
    ended, kept = await begin(node, b"ended"), await begin(node, b"kept")
    stored = await commit(node, ended)
    await pass_time(node, 6_000)
    node.store.checkpoint()
    after = await restarted(node)
    assert [(each.id, each.checks) for each in open_ones(after)] == [(kept, 1)]
    assert await commit(after, ended) == stored
    assert (await commit(after, kept)).queue_offset == 1
    assert bodies(after) == [b"ended", b"kept"]
    assert after.machine.state.transactions.committed == 2


@on_loop
async def test_questions_go_on_with_the_next_leader() -> None:
    node = await new_node()
    one = await begin(node)
    living = producer(node)
    await pass_time(node, 6_000)
    assert len(questions(living)) == 1
    node.consensus.depose()
    node.broker.tick()
    with pytest.raises(NotLeader):
        await living.next()
    with pytest.raises(NotLeader):
        producer(node)
    with pytest.raises(NotLeader):
        await commit(node, one)
    node.broker.transacting.leave(living)
    node.consensus.elect()
    node.broker.tick()
    living = producer(node)
    await pass_time(node, 30_000)
    assert [asked.checks for asked, _ in questions(living)] == [2]


@on_loop
async def test_open_transactions_are_carried_so_that_the_log_before_them_can_go() -> None:
    node = await new_node()
    sent = [Message(body=b"%d" % at * 50_000, keys=["k"], tag="x") for at in range(30)]
    ids = [
        await begin(node, messages=[one], producer_id="p", sequence=at + 1)
        for at, one in enumerate(sent)
    ]
    end = node.store.log.end_offset
    assert node.broker.transacting.needs_log_before(end)
    assert not node.broker.transacting.needs_log_before(open_ones(node)[0].log_offset)
    ending = asyncio.ensure_future(commit(node, ids[0]))
    await node.broker.transacting.carry(end)
    await ending
    assert not node.broker.transacting.needs_log_before(end)
    assert [each.id for each in open_ones(node)] == ids[1:]
    await node.broker.transacting.carry(node.store.log.end_offset)  # and once more
    after = await restarted(node)
    assert [each.id for each in open_ones(after)] == ids[1:]
    for transaction_id in ids[1:]:
        await commit(after, transaction_id)
    assert messages(after, "t") == sent


@on_loop
async def test_a_carry_does_not_bring_back_what_ended_before_it() -> None:
    node = await new_node()
    one = await begin(node)
    node.consensus.is_held = True
    ending = asyncio.ensure_future(commit(node, one))
    await turns()
    carrying = asyncio.ensure_future(node.broker.transacting.carry(1 << 40))
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    await soon(ending)
    await soon(carrying)
    assert open_ones(node) == []
    assert bodies(node) == [b"order"]


@on_loop
async def test_a_cancelled_request_leaves_the_line_in_order() -> None:
    node = await new_node()
    one, other = await begin(node, b"one"), await begin(node, b"other")
    node.consensus.is_held = True
    first = asyncio.ensure_future(commit(node, one))
    await turns()
    second = asyncio.ensure_future(commit(node, other))
    await turns()
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    node.consensus.is_held = False
    node.consensus.commit()
    await turns()
    # The first was written, and stays so; the second never was.
    assert bodies(node) == [b"one"]
    assert (await commit(node, one)).queue_offset == 0
    assert (await commit(node, other)).queue_offset == 1


@on_loop
async def test_a_failure_of_the_log_is_logged_and_the_next_tick_goes_on() -> None:
    node = await new_node()
    living = producer(node)
    one = await begin(node)
    node.consensus.failure = OutcomeUnknown("trouble")
    await pass_time(node, 6_000)
    assert questions(living) == []
    with pytest.raises(OutcomeUnknown):
        await commit(node, one)
    node.consensus.failure = None
    for _ in range(30):  # some seconds
        await pass_time(node, 0)
    assert len(questions(living)) == 1
