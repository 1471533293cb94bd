"""Delayed messages outlive the log that they were written to: retention and carrying."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.delay import delays as module
from mq.errors import NotLeader, OutcomeUnknown
from mq.store.holding import LANE_MS
from mq.store.retention import Policy
from tests.support.consensus import Node, on_loop, soon, turns
from tests.support.stores import small_config
from tests.unit.broker.delay.test_delays import bodies, later, new_node, waiting, written_since

STORE = small_config(segment_bytes=8 << 10, checkpoint_log_bytes=4 << 10)
HOUR_MS = 3_600_000
POLICY = Policy(
    age_ms_max=72 * HOUR_MS,
    total_bytes_max=0,
    clean_expired_ratio=0.75,
    clean_oldest_ratio=0.85,
    refuse_writes_ratio=0.90,
)


async def retain(node: Node, policy: Policy = POLICY) -> int:
    """As the server does it; how many segments went."""
    broker, store = node.broker, node.store
    staying = store.expiring_before(policy, node.now_ms)
    if staying and broker.needs_log_before(staying):
        with store.ignoring_disk_limit():
            await broker.carry(staying)
    dropped = store.retain(policy, node.now_ms, broker.needs_log_before)
    store.log.remove_released()
    return dropped.segments


@on_loop
async def test_messages_of_forty_days_outlive_a_retention_of_three() -> None:
    node = await new_node(store=STORE)
    day_ms = 24 * HOUR_MS
    sent = {}
    for at in range(20):
        delay_ms = (40 - at) * day_ms
        stored = await node.send("t", b"%02d" % at, delay_ms=delay_ms)
        sent[b"%02d" % at] = stored
    first = sent[b"07"]
    dropped = 0
    for day in range(1, 41):
        node.pass_time(day_ms)
        for _ in range(30):
            await node.send("t", b"traffic" * 20, queue_id=1)
        await later(node, 0)
        dropped += await retain(node)
        expected = [b"%02d" % at for at in range(19, -1, -1) if 40 - at <= day]
        assert bodies(node) == expected[-len(bodies(node)) :]
        end = node.store.queues.get("t", 0)
        assert (end.end if end else 0) == len(expected)
        if day == 20:
            await node.broker.delays.recalls.recall("t", first.log_offset, first.deliver_at_ms)
            del sent[b"07"]
            break
    assert dropped > 5
    assert node.store.log.start_offset > first.log_offset
    # A start from the rest of the log knows as much.
    vfs = node.vfs_after_kill()
    vfs.remove("/data/checkpoint")
    after = Node(vfs, store=STORE, now_ms=node.now_ms)
    await later(after, 20 * day_ms)
    assert set(bodies(after)) >= {b"%02d" % at for at in range(20) if at != 7 and 40 - at > 20}
    assert b"07" not in bodies(after)
    assert after.machine.state.schedule.lanes == {}


@on_loop
async def test_segments_stay_as_long_as_something_in_them_waits() -> None:
    node = await new_node(store=STORE)
    await node.send("t", b"x", delay_ms=100 * HOUR_MS)
    while len(node.store.log.segments()) < 4:
        await node.send("t", b"traffic" * 20, queue_id=1)
    needed = node.broker.needs_log_before
    assert node.store.drop_front(2, is_needed_before=needed).segments == 0
    node.pass_time(80 * HOUR_MS)
    assert node.store.retain(POLICY, node.now_ms, needed).segments == 0
    # Not even when the disk is nearly full; as soon as it was written again, they go.
    node.vfs.capacity_bytes = (1 << 20) + int(node.vfs._used_bytes / 0.88)
    fills_88_percent = node.vfs.open("/ballast", create=True)
    fills_88_percent.truncate(int(0.88 * (1 << 20)))
    assert node.store.retain(POLICY, node.now_ms, needed).segments == 0
    assert await retain(node) == 3
    node.vfs.capacity_bytes = None
    await later(node, 20 * HOUR_MS)
    assert bodies(node) == [b"x"]
    assert not needed(1 << 60)


@on_loop
async def test_only_what_stands_before_is_carried_in_bounded_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ENTRY_BATCHES", 4)
    node = await new_node()
    for at in range(10):
        await node.send("t", b"%02d" % at, delay_ms=1_000 + at % 3 * LANE_MS)
    border = node.store.log.end_offset
    for at in range(10, 13):
        await node.send("t", b"%02d" % at, delay_ms=1_000 + at % 3 * LANE_MS)
    end, entries = node.store.log.end_offset, len(node.consensus.proposed)
    await soon(node.broker.delays.carry(border))
    assert [len(one.batches) for one in written_since(node, entries)] == [4, 4, 2]
    assert waiting(node) == 13
    assert not node.broker.delays.needs_log_before(border)
    assert node.broker.delays.needs_log_before(end)
    await soon(node.broker.delays.carry(border))
    assert len(node.consensus.proposed) == entries + 3
    await later(node, 3 * LANE_MS)
    assert sorted(bodies(node)) == [b"%02d" % at for at in range(13)]
    assert node.machine.state.schedule.lanes == {}


@on_loop
async def test_a_message_due_while_it_is_carried_is_delivered_once() -> None:
    node = await new_node()
    for at in range(5):
        await node.send("t", b"%d" % at, delay_ms=100)
    node.consensus.is_held = True
    carrying = asyncio.ensure_future(node.broker.delays.carry(node.store.log.end_offset))
    await turns()
    node.pass_time(100)
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    await soon(carrying)
    await later(node, 0)
    assert bodies(node) == [b"%d" % at for at in range(5)]
    assert waiting(node) == 0


@on_loop
async def test_a_picture_of_the_lane_from_before_is_not_used() -> None:
    """The window of the lane is filled, and then all of it stands elsewhere."""
    node = await new_node()
    await node.send("t", b"first", delay_ms=10)
    await node.send("t", b"second", delay_ms=100)
    await later(node, 10)
    await soon(node.broker.delays.carry(node.store.log.end_offset))
    await later(node, 90)
    assert bodies(node) == [b"first", b"second"]
    assert node.machine.state.schedule.lanes == {}


@pytest.mark.parametrize("is_kept", [True, False])
@on_loop
async def test_a_leader_that_dies_while_it_carries(is_kept: bool) -> None:
    node = await new_node()
    for at in range(3):
        await node.send("t", b"%d" % at, delay_ms=100)
    entries = node.store.log.last_index
    node.consensus.is_held = True
    carrying = asyncio.ensure_future(node.broker.delays.carry(node.store.log.end_offset))
    await turns()
    node.consensus.lose(OutcomeUnknown("the leader changed"))
    node.consensus.depose()
    node.broker.tick()
    with pytest.raises(OutcomeUnknown):
        await carrying
    if not is_kept:
        node.machine.forget(entries + 1)
        node.store.log.truncate(entries + 1)
    after = Node(node.vfs_after_kill(), now_ms=node.now_ms)
    await later(after, 100)
    assert bodies(after) == [b"0", b"1", b"2"]
    assert after.machine.state.schedule.lanes == {}


@on_loop
async def test_messages_of_a_topic_that_is_gone_are_not_carried() -> None:
    node = await new_node()
    await node.send("t", b"old", b"older", delay_ms=1_000)
    await node.topic("stays")
    await node.send("stays", b"x", delay_ms=1_000)
    await node.broker.catalog.delete("t")
    node.pass_time(1)
    await node.topic("t")
    await soon(node.broker.delays.carry(node.store.log.end_offset))
    assert (node.broker.delays.dropped_total, waiting(node)) == (2, 1)
    await later(node, 1_000)
    assert bodies(node) == []
    assert bodies(node, topic="stays") == [b"x"]


@on_loop
async def test_a_message_sent_after_carrying_is_not_taken_for_carried() -> None:
    node = await new_node()
    await node.send("t", b"before", delay_ms=1_000)
    await soon(node.broker.delays.carry(1 << 60))
    assert node.broker.needs_log_before(1 << 60)
    await node.send("t", b"after", delay_ms=1_000)
    node.consensus.depose()
    node.broker.tick()
    node.consensus.elect()
    await later(node, 1_000)
    assert sorted(bodies(node)) == [b"after", b"before"]
    assert not node.broker.needs_log_before(1 << 60)
    await node.send("t", b"new", delay_ms=1_000)
    assert node.broker.needs_log_before(1 << 60)


@on_loop
async def test_only_a_leader_carries() -> None:
    node = await new_node()
    await node.send("t", b"x", delay_ms=1_000)
    node.consensus.depose()
    node.broker.tick()
    with pytest.raises(NotLeader):
        await node.broker.delays.carry(1 << 40)
    assert node.broker.needs_log_before(node.store.log.end_offset)
