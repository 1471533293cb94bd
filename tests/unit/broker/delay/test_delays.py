"""Delivery of delayed messages by the leader: on time, once, whatever happens in between."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mq.broker.delay import delays as module
from mq.broker.delay import due
from mq.broker.state.machine import ProposedEntry
from mq.errors import DiskFull, FlowControl, MessageTooLarge, MqError, NotLeader, OutcomeUnknown
from mq.store.batch import accept, prepare
from mq.store.holding import LANE_MS, lane_of
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, batch, eventually, on_loop, soon, turns
from tests.support.stores import append_entry, read_all
from tests.unit.broker.delay.delay_scene import Scene

if TYPE_CHECKING:
    from collections.abc import Sequence


async def new_node(topic: str = "t", **options: Any) -> Node:
    node = Node(**options)
    await node.topic(topic)
    return node


async def settled(node: Node) -> None:
    """Everything that is due is delivered."""
    await eventually(lambda: node.broker.delays._task is None)


async def later(node: Node, ms: int) -> None:
    node.pass_time(ms)
    await settled(node)


def bodies(node: Node, queue_id: int = 0, topic: str = "t") -> list[bytes]:
    return [one.body for one in read_all(node.store, topic, queue_id)]


def waiting(node: Node) -> int:
    return node.machine.state.schedule.messages


def written_since(node: Node, count: int) -> list[ProposedEntry]:
    """Entries that were proposed, but for the first ones."""
    return [one for _, one in node.consensus.proposed[count:] if isinstance(one, ProposedEntry)]


# -- when ------------------------------------------------------------------------------------------


@on_loop
async def test_a_message_is_on_its_topic_when_its_time_has_come_and_not_before() -> None:
    node = await new_node()
    stored = await node.send("t", b"a", b"b", delay_ms=1_000, queue_id=2)
    assert (stored.queue_offset, stored.deliver_at_ms) == (-1, node.now_ms + 1_000)
    await later(node, 999)
    assert (bodies(node, 2), waiting(node)) == ([], 2)
    await later(node, 1)
    assert (bodies(node, 2), waiting(node)) == ([b"a", b"b"], 0)
    assert node.broker.delays.delivered_total == 2
    await later(node, 50 * LANE_MS)
    assert bodies(node, 2) == [b"a", b"b"]


@on_loop
async def test_messages_that_are_due_soon_need_no_tick() -> None:
    """A timer wakes the driver; an earlier message brings it forward."""
    node = await new_node()
    loop = asyncio.get_running_loop()
    began_s, began_ms = loop.time(), node.now_ms
    await node.send("t", b"late", delay_ms=900)
    await node.send("t", b"soon", delay_ms=60)
    for count, least_ms in ((1, 60), (2, 900)):
        # The clock runs by itself.
        while len(bodies(node)) < count:
            node.now_ms = began_ms + int((loop.time() - began_s) * 1_000)
            await asyncio.sleep(0.001)
        assert node.now_ms - began_ms >= least_ms
    assert bodies(node) == [b"soon", b"late"]


@on_loop
async def test_messages_of_a_queue_come_in_the_order_of_their_times() -> None:
    node = await new_node()
    for delay_ms in (700, 300, 500, 300):
        await node.send("t", b"%d" % delay_ms, delay_ms=delay_ms)
    await node.send("t", b"next lane", delay_ms=LANE_MS)
    await later(node, 2 * LANE_MS)
    assert bodies(node) == [b"300", b"300", b"500", b"700", b"next lane"]


@on_loop
async def test_a_time_that_is_over_is_now() -> None:
    node = await new_node()
    stored = await node.send("t", b"x", deliver_at_ms=node.now_ms - 5)
    assert (stored.queue_offset, stored.deliver_at_ms) == (0, 0)
    assert bodies(node) == [b"x"]


@on_loop
async def test_a_clock_that_is_set_back_makes_nothing_early_and_loses_nothing() -> None:
    node = await new_node()
    await node.send("t", b"first", delay_ms=100)
    await node.send("t", b"second", delay_ms=200)
    await later(node, 100)
    node.pass_time(-300_000)
    await node.send("t", b"new", delay_ms=1)
    await settled(node)
    assert bodies(node) == [b"first"]
    # Its lane has delivered a later time already: it waits for that, and not longer.
    await later(node, 299_999)
    assert bodies(node) == [b"first"]
    await later(node, 1)
    assert bodies(node) == [b"first", b"new"]
    await later(node, 100)
    assert bodies(node) == [b"first", b"new", b"second"]


@on_loop
async def test_a_clock_that_jumps_ahead_delivers_all_that_is_due() -> None:
    node = await new_node()
    for at in range(20):
        await node.send("t", b"%02d" % at, delay_ms=1_000 + at * 2 * LANE_MS)
    await later(node, 100 * LANE_MS)
    assert bodies(node) == [b"%02d" % at for at in range(20)]
    assert node.machine.state.schedule.lanes == {}


# -- fail-over -------------------------------------------------------------------------------------


@on_loop
async def test_a_restart_finds_what_waits() -> None:
    node = await new_node()
    await node.send("t", b"soon", delay_ms=100)
    await node.send("t", b"later", delay_ms=5 * LANE_MS)
    await later(node, 100)
    after = Node(node.vfs_after_kill(), now_ms=node.now_ms)
    await settled(after)
    assert (bodies(after), waiting(after)) == ([b"soon"], 1)
    await later(after, 5 * LANE_MS)
    assert bodies(after) == [b"soon", b"later"]


@pytest.mark.parametrize("is_kept", [True, False])
@on_loop
async def test_a_leader_that_dies_between_decision_and_answer_delivers_once(is_kept: bool) -> None:
    node = await new_node()
    await node.send("t", b"x", delay_ms=100)
    entries = node.store.log.last_index
    node.consensus.is_held = True
    node.pass_time(100)
    await eventually(lambda: node.store.log.last_index > entries)
    node.consensus.failure = NotLeader(None, None)
    node.consensus.lose(OutcomeUnknown("the leader changed"))
    node.consensus.depose()
    node.broker.tick()
    await turns()
    if not is_kept:
        node.machine.forget(entries + 1)
        node.store.log.truncate(entries + 1)
    after = Node(node.vfs_after_kill(), now_ms=node.now_ms)
    await settled(after)
    assert (bodies(after), waiting(after)) == ([b"x"], 0)


@on_loop
async def test_a_follower_delivers_nothing_and_a_new_leader_all() -> None:
    node = await new_node()
    await node.send("t", b"x", delay_ms=100)
    node.consensus.depose()
    node.broker.tick()
    node.pass_time(500)
    await turns(100)
    assert bodies(node) == []
    node.consensus.elect()
    await settled(node)
    assert bodies(node) == [b"x"]


@on_loop
async def test_a_delivery_does_not_skip_an_earlier_message_still_on_its_way_into_the_log() -> None:
    """A batch that is due before others, and is applied after they were looked at: the entry that
    delivers those must not say that all before them is gone.
    """
    node = await new_node()
    await node.send("t", b"second", delay_ms=50)
    node.consensus.is_held = True
    slot = await node.broker.submit(batch("t", b"first", delay_ms=10))
    await turns()
    node.pass_time(60)
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    node.consensus.depose()
    node.broker.tick()
    await soon(slot.outcome)
    node.consensus.elect()
    await settled(node)
    assert bodies(node) == [b"first", b"second"]


@pytest.mark.parametrize("is_stored", [True, False])
@on_loop
async def test_a_delivery_that_waited_for_an_earlier_message_goes_when_that_one_settles(
    is_stored: bool,
) -> None:
    node = await new_node()
    await node.send("t", b"second", delay_ms=50)
    node.consensus.is_held = True
    slot = await node.broker.submit(batch("t", b"first", delay_ms=10))
    await turns()
    entries = node.store.log.last_index
    node.pass_time(60)
    await turns()
    assert node.store.log.last_index == entries
    node.consensus.is_held = False
    if is_stored:
        node.consensus.commit()
    else:
        node.machine.forget(entries)
        node.store.log.truncate(entries)
        node.consensus.lose(FlowControl("busy"))
    await asyncio.wait([slot.outcome])
    expected = [b"first", b"second"] if is_stored else [b"second"]
    await eventually(lambda: bodies(node) == expected)  # without a tick


@on_loop
async def test_an_entry_that_may_still_come_is_not_written_again() -> None:
    """Its outcome is unknown, and the node leads again before it is applied."""
    node = await new_node()
    await node.send("t", b"x", delay_ms=100)
    node.consensus.is_held = True
    entries = node.store.log.last_index
    node.pass_time(100)
    await eventually(lambda: node.store.log.last_index > entries)
    node.consensus.lose(OutcomeUnknown("the leader changed"))
    node.consensus.term += 1
    tries = len(node.consensus.proposed)
    await asyncio.sleep(3 * module._BACKOFF_S)
    assert len(node.consensus.proposed) == tries
    node.consensus.is_held = False
    node.consensus.elect()
    await settled(node)
    assert (bodies(node), waiting(node)) == ([b"x"], 0)


@pytest.mark.parametrize("error", [FlowControl("busy"), DiskFull("full")])
@on_loop
async def test_a_delivery_that_cannot_be_written_is_tried_again(error: MqError) -> None:
    node = await new_node()
    await node.send("t", b"x", delay_ms=100)
    node.consensus.failure = error
    node.pass_time(100)
    await turns(50)
    assert bodies(node) == []
    node.consensus.failure = None
    await settled(node)
    assert bodies(node) == [b"x"]


@pytest.mark.parametrize("seed", range(12))
def test_random_trouble(seed: int) -> None:
    async def run() -> None:
        scene = Scene(seed)
        await scene.begin()
        for _ in range(40):
            await scene.step()
        await scene.end()

    asyncio.run(run())


# -- where -----------------------------------------------------------------------------------------


@on_loop
async def test_messages_of_a_topic_that_is_gone_are_dropped_and_counted() -> None:
    node = await new_node()
    await node.topic("gone")
    await node.send("gone", b"a", b"b", delay_ms=100)
    await node.send("t", b"c", delay_ms=100)
    await node.broker.catalog.delete("gone")
    await later(node, 100)
    assert bodies(node) == [b"c"]
    assert (node.broker.delays.dropped_total, waiting(node)) == (2, 0)
    assert node.broker.delays.delivered_total == 1


@on_loop
async def test_a_new_topic_of_the_same_name_does_not_get_them() -> None:
    node = await new_node()
    await node.send("t", b"old", delay_ms=100)
    await node.broker.catalog.delete("t")
    node.pass_time(1)
    await node.topic("t")
    await node.send("t", b"new", delay_ms=99)
    await later(node, 100)
    assert bodies(node) == [b"new"]
    assert node.broker.delays.dropped_total == 1


@on_loop
async def test_messages_wait_while_their_topic_is_being_deleted() -> None:
    node = await new_node()
    await node.topic("other")
    await node.send("t", b"x", delay_ms=100)
    node.consensus.is_held = True
    deleting = asyncio.ensure_future(node.broker.catalog.delete("t"))
    await turns()
    entries = node.store.log.last_index
    node.pass_time(100)
    await turns(50)
    assert node.store.log.last_index == entries
    node.consensus.lose(FlowControl("busy"))
    node.consensus.is_held = False
    with pytest.raises(FlowControl):
        await deleting
    node.machine.forget(entries)
    node.store.log.truncate(entries)
    await settled(node)
    assert bodies(node) == [b"x"]


@on_loop
async def test_a_topic_with_fewer_queues_gets_them_in_one_that_it_has() -> None:
    node = await new_node()
    await node.send("t", b"x", queue_id=3, delay_ms=100)
    await node.broker.catalog.alter("t", write_queues=2)
    await later(node, 100)
    assert bodies(node, 1) == [b"x"]


@on_loop
async def test_a_topic_that_takes_no_more_gets_what_was_accepted_before() -> None:
    node = await new_node()
    await node.send("t", b"x", delay_ms=100)
    await node.broker.catalog.alter("t", is_writable=False)
    await later(node, 100)
    assert bodies(node) == [b"x"]


@on_loop
async def test_keys_tags_and_properties_come_along() -> None:
    node = await new_node()
    sent = Message(body=b"x", tag="red", keys=["k1", "k2"], properties={"p": "v"})
    await node.send("t", messages=[sent], delay_ms=100)
    await node.send("t", messages=[Message(body=b"y", keys=["k3"])], delay_ms=100)
    assert list(node.store.lookup.by_key("t", "k1", 0, 1 << 50)) == []
    await later(node, 100)
    assert read_all(node.store, "t", 0)[0] == sent
    for key, body in (("k1", b"x"), ("k2", b"x"), ("k3", b"y")):
        (found,) = node.store.lookup.by_key("t", key, 0, 1 << 50)
        assert found.message.body == body


# -- much ------------------------------------------------------------------------------------------


@on_loop
async def test_one_entry_delivers_many_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ENTRY_BATCHES", 40)
    node = await new_node()
    for at in range(100):
        await node.send("t", b"%02d" % at, delay_ms=100, queue_id=at % 2)
    entries = len(node.consensus.proposed)
    await later(node, 100)
    assert [len(one.batches) for one in written_since(node, entries)] == [2, 2, 2]
    assert bodies(node, 0) == [b"%02d" % at for at in range(0, 100, 2)]
    assert bodies(node, 1) == [b"%02d" % at for at in range(1, 100, 2)]


@on_loop
async def test_large_batches_fit_their_entry() -> None:
    node = await new_node()
    limit = node.settings.config.store.entry_bytes_max
    one = batch("t", b"x" * (1 << 20), b"y" * (1 << 20), b"z" * (1 << 20), delay_ms=100)
    for _ in range(3):
        await soon((await node.broker.submit(one)).outcome)
    entries = len(node.consensus.proposed)
    await later(node, 100)
    sizes = [sum(len(each.data) for each in one.batches) for one in written_since(node, entries)]
    assert len(sizes) == 3
    assert max(sizes) < limit
    assert len(bodies(node)) == 9


@on_loop
async def test_a_batch_that_would_not_fit_with_its_command_is_refused() -> None:
    node = await new_node()
    limit = node.settings.config.store.entry_bytes_max
    size = limit - 300
    messages = [Message(body=b"x" * (size // 2)), Message(body=b"x" * (size // 2))]
    wire = WireBatch(topic="t", messages=messages, delay_ms=100)
    large = accept(prepare(wire.SerializeToString()), 4 << 20)
    assert len(large.data) <= limit
    with pytest.raises(MessageTooLarge):
        await node.broker.submit(large)
    assert waiting(node) == 0


@on_loop
async def test_lanes_beyond_the_windows_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due.Gathering.__init__, "__defaults__", (8,))
    monkeypatch.setattr(module, "_FILLED_MAX", 1)
    monkeypatch.setattr(module, "_ENTRY_BATCHES", 5)
    node = await new_node()
    delays_ms = [at * 7_919 % (3 * LANE_MS) + 1 for at in range(120)]
    for at, delay_ms in enumerate(delays_ms):
        await node.send("t", b"%03d" % at, delay_ms=delay_ms)
    node.consensus.depose()
    node.broker.tick()
    node.consensus.elect()
    now_ms = 0
    while now_ms < 3 * LANE_MS:
        now_ms += LANE_MS // 3
        await later(node, LANE_MS // 3)
        expected = sorted((one, at) for at, one in enumerate(delays_ms) if one <= now_ms)
        assert sorted(bodies(node)) == sorted(b"%03d" % at for _, at in expected)
    # Within a lane the order is that of the times.
    by_lane: dict[int, list[int]] = {}
    for body in bodies(node):
        due_ms = 1_000_000 + delays_ms[int(body)]
        by_lane.setdefault(lane_of(due_ms), []).append(due_ms)
    assert all(times == sorted(times) for times in by_lane.values())


@on_loop
async def test_many_batches_that_wait_cost_little_memory() -> None:
    node = await new_node()
    count = 20_000

    def schedule(batches: Sequence[Any]) -> None:
        refs = append_entry(node.store, batches, node.now_ms, node.consensus.term)
        node.store.log.sync()
        node.broker.apply_through(refs.raft_index)

    due_ms = node.now_ms + 10 * LANE_MS
    some = [batch("t", b"x" * 20, deliver_at_ms=due_ms + at) for at in range(500)]
    schedule(some)
    node.store.checkpoint()
    tracemalloc.start()
    for _ in range(count // 500 - 1):
        schedule(some)
        node.store.checkpoint()
    ours = [tracemalloc.Filter(inclusive=True, filename_pattern="*/mq/broker/*")]
    traces = tracemalloc.take_snapshot().filter_traces(ours).traces
    tracemalloc.stop()
    assert sum(one.size for one in traces) < 100_000
    assert node.machine.state.schedule.messages == count
    await later(node, 11 * LANE_MS)
    queue = node.store.queues.get("t", 0)
    assert queue is not None
    assert queue.end == count
    times = queue.read(0, count)["log_offset"].astype(np.int64)
    assert (np.diff(times) > 0).all()
