"""Taking back messages that wait: either taken back or delivered, never both, never neither."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.delay import delays as delays_module
from mq.broker.delay import lanes as lanes_module
from mq.errors import FlowControl, MessageNotFound, NotLeader, OutcomeUnknown
from mq.store.holding import LANE_MS
from tests.support.consensus import Node, batch, on_loop, soon, turns
from tests.unit.broker.delay.test_delays import bodies, later, new_node, settled, waiting


async def recall(node: Node, log_offset: int, deliver_at_ms: int, topic: str = "t") -> None:
    await soon(node.broker.delays.recalls.recall(topic, log_offset, deliver_at_ms))


def places_of(*sent: bytes) -> list[int]:
    """The start of each message of a batch, from the first one on."""
    one = batch("t", *sent)
    return [int(start) for start in one.frame_starts - one.region_start]


@on_loop
async def test_a_message_that_was_taken_back_is_not_delivered() -> None:
    node = await new_node()
    stored = await node.send("t", b"a", b"bb", b"ccc", delay_ms=1_000)
    other = await node.send("t", b"other", delay_ms=1_000)
    second = stored.log_offset + places_of(b"a", b"bb", b"ccc")[1]
    await recall(node, second, stored.deliver_at_ms)
    assert waiting(node) == 3
    await recall(node, other.log_offset, other.deliver_at_ms)
    assert waiting(node) == 2
    await later(node, 1_000)
    assert bodies(node) == [b"a", b"ccc"]
    assert (waiting(node), node.machine.state.schedule.lanes) == (0, {})


@on_loop
async def test_a_recall_with_a_wrong_place_time_or_topic_is_refused() -> None:
    node = await new_node()
    await node.topic("u")
    stored = await node.send("t", b"a", b"bb", delay_ms=1_000)
    at, due_ms = stored.log_offset, stored.deliver_at_ms
    entries = node.store.log.last_index
    for log_offset, deliver_at_ms, topic in (
        (at + 1, due_ms, "t"),  # no message starts there
        (at - 1, due_ms, "t"),
        (at, due_ms + 1, "t"),  # another time
        (at, due_ms - 1, "t"),
        (at, due_ms + LANE_MS, "t"),
        (at, due_ms, "u"),  # another topic
        (0, due_ms, "t"),
        (1 << 62, due_ms, "t"),
        (at, 1 << 62, "t"),
    ):
        with pytest.raises(MessageNotFound):
            await recall(node, log_offset, deliver_at_ms, topic)
    assert node.store.log.last_index == entries
    await recall(node, at, due_ms)
    with pytest.raises(MessageNotFound):
        await recall(node, at, due_ms)  # taken back already
    await later(node, 1_000)
    with pytest.raises(MessageNotFound):
        await recall(node, at + places_of(b"a", b"bb")[1], due_ms)  # delivered
    assert bodies(node) == [b"bb"]


@on_loop
async def test_a_message_whose_lane_began_anew_is_not_mistaken_for_one_that_waits() -> None:
    node = await new_node()
    stored = await node.send("t", b"a", delay_ms=1_000)
    await later(node, 1_000)
    await node.send("t", b"b", delay_ms=1_000)
    with pytest.raises(MessageNotFound):
        await recall(node, stored.log_offset, stored.deliver_at_ms)
    await later(node, 1_000)
    assert bodies(node) == [b"a", b"b"]


@on_loop
async def test_a_delivery_under_way_wins_and_so_does_a_recall() -> None:
    node = await new_node()
    stored = await node.send("t", b"a", delay_ms=100)
    node.consensus.is_held = True
    entries = node.store.log.last_index
    node.pass_time(100)
    await turns()
    assert node.store.log.last_index == entries + 1
    recalling = asyncio.ensure_future(recall(node, stored.log_offset, stored.deliver_at_ms))
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    with pytest.raises(MessageNotFound):
        await recalling
    assert bodies(node) == [b"a"]

    stored = await node.send("t", b"b", delay_ms=100)
    node.consensus.is_held = True
    recalling = asyncio.ensure_future(recall(node, stored.log_offset, stored.deliver_at_ms))
    await turns()
    node.pass_time(100)
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    await recalling
    await settled(node)
    assert bodies(node) == [b"a"]
    assert waiting(node) == 0


@on_loop
async def test_a_delivery_under_way_wins_also_when_its_lane_begins_anew() -> None:
    node = await new_node()
    stored = await node.send("t", b"a", delay_ms=100)
    node.consensus.is_held = True
    node.pass_time(100)
    await turns()
    slot = await node.broker.submit(batch("t", b"b", delay_ms=1_000))
    recalling = asyncio.ensure_future(recall(node, stored.log_offset, stored.deliver_at_ms))
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    await soon(slot.outcome)
    with pytest.raises(MessageNotFound):
        await recalling
    assert bodies(node) == [b"a"]


@on_loop
async def test_one_of_many_that_are_due_in_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave in several entries: what was taken back of the last one is not forgotten."""
    monkeypatch.setattr(delays_module, "_ENTRY_BATCHES", 1)
    node = await new_node()
    stored = [await node.send("t", b"%d" % at, delay_ms=1_000) for at in range(3)]
    await recall(node, stored[2].log_offset, stored[2].deliver_at_ms)
    await later(node, 1_000)
    assert bodies(node) == [b"0", b"1"]


@on_loop
async def test_many_are_decided_together_and_one_message_only_once() -> None:
    node = await new_node()
    stored = [await node.send("t", b"%02d" % at, delay_ms=1_000) for at in range(30)]
    entries = node.store.log.last_index
    wanted = [*stored, stored[3]]
    results = await asyncio.gather(
        *(recall(node, one.log_offset, one.deliver_at_ms) for one in wanted),
        return_exceptions=True,
    )
    assert [one for one in results if one is not None] == [results[-1]]
    assert isinstance(results[-1], MessageNotFound)
    assert node.store.log.last_index <= entries + 2
    await later(node, 1_000)
    assert bodies(node) == []


@on_loop
async def test_a_cancelled_recall_cancels_no_other() -> None:
    node = await new_node()
    stored = [await node.send("t", b"%d" % at, delay_ms=1_000) for at in range(2)]
    node.consensus.is_held = True
    first, second = (
        asyncio.ensure_future(recall(node, one.log_offset, one.deliver_at_ms)) for one in stored
    )
    await turns()
    first.cancel()
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    await second


@on_loop
async def test_a_failed_recall_changes_nothing() -> None:
    node = await new_node()
    stored = await node.send("t", b"a", delay_ms=1_000)
    node.consensus.failure = FlowControl("busy")
    with pytest.raises(FlowControl):
        await recall(node, stored.log_offset, stored.deliver_at_ms)
    node.consensus.failure = None
    node.consensus.is_held = True
    recalling = asyncio.ensure_future(recall(node, stored.log_offset, stored.deliver_at_ms))
    await turns()
    node.consensus.lose(OutcomeUnknown("the leader changed"))
    node.consensus.depose()
    node.broker.tick()
    with pytest.raises(OutcomeUnknown):
        await recalling
    with pytest.raises(NotLeader):
        await recall(node, stored.log_offset, stored.deliver_at_ms)


@on_loop
async def test_waiting_recalls_fail_when_another_node_leads() -> None:
    node = await new_node()
    stored = [await node.send("t", b"%d" % at, delay_ms=1_000) for at in range(2)]
    node.consensus.is_held = True
    first = asyncio.ensure_future(recall(node, stored[0].log_offset, stored[0].deliver_at_ms))
    await turns()
    second = asyncio.ensure_future(recall(node, stored[1].log_offset, stored[1].deliver_at_ms))
    await turns()
    node.consensus.depose()
    node.broker.tick()
    with pytest.raises(NotLeader):
        await second
    node.consensus.lose(OutcomeUnknown("the leader changed"))
    with pytest.raises(OutcomeUnknown):
        await first


@on_loop
async def test_a_recall_survives_a_restart() -> None:
    node = await new_node()
    stored = await node.send("t", b"a", b"b", delay_ms=1_000)
    await recall(node, stored.log_offset, stored.deliver_at_ms)
    node.store.checkpoint()
    after = Node(node.vfs_after_kill(), now_ms=node.now_ms)
    with pytest.raises(MessageNotFound):
        await recall(after, stored.log_offset, stored.deliver_at_ms)
    await later(after, 1_000)
    assert bodies(after) == [b"b"]


@on_loop
async def test_a_recall_is_forgotten_when_its_time_is_over() -> None:
    node = await new_node()
    early = await node.send("t", b"early", delay_ms=100)
    await node.send("t", b"late", delay_ms=200)
    await node.send("t", b"last", delay_ms=300)
    await recall(node, early.log_offset, early.deliver_at_ms)
    assert waiting(node) == 2
    await later(node, 200)
    (lane,) = node.machine.state.schedule.lanes.values()
    assert (lane.recalled, waiting(node)) == ({}, 1)


@pytest.mark.parametrize("is_clamped", [False, True])
@on_loop
async def test_a_message_is_found_again_after_it_was_carried(
    is_clamped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "_SEARCH_BATCHES", 3)
    node = await new_node()
    if is_clamped:
        # The lane has delivered a later time: what comes for an earlier one has that as its mark.
        await node.send("t", b"before", delay_ms=60_000)
        await node.send("t", b"stays", delay_ms=120_000)
        await later(node, 60_000)
        node.pass_time(-50_000)
    stored = [await node.send("t", b"%d" % at, b"+%d" % at, delay_ms=1_000) for at in range(8)]
    second = places_of(b"0", b"+0")[1]
    for _ in range(2):
        await node.broker.delays.carry(node.store.log.end_offset)
    one = stored[5]
    await recall(node, one.log_offset + second, one.deliver_at_ms)
    with pytest.raises(MessageNotFound):
        await recall(node, one.log_offset + second, one.deliver_at_ms)
    with pytest.raises(MessageNotFound):
        await recall(node, one.log_offset + 1, one.deliver_at_ms)
    await later(node, 200_000)
    expected = [b"%s%d" % (sign, at) for at in range(8) for sign in (b"", b"+")]
    expected.remove(b"+5")
    assert [body for body in bodies(node) if body not in (b"before", b"stays")] == expected


@on_loop
async def test_a_message_that_is_carried_while_it_is_looked_for_is_found() -> None:
    node = await new_node()
    stored = await node.send("t", b"a", delay_ms=1_000)
    node.consensus.is_held = True
    carrying = asyncio.ensure_future(node.broker.delays.carry(node.store.log.end_offset))
    await turns()
    recalling = asyncio.ensure_future(recall(node, stored.log_offset, stored.deliver_at_ms))
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    await soon(carrying)
    await recalling
    await later(node, 1_000)
    assert bodies(node) == []
