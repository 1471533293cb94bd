"""Batches on their way: gathered into entries, each answered alone, bounded, and stored once."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from mq.broker import publishing
from mq.errors import (
    DiskFull,
    FlowControl,
    FlushTimeout,
    IllegalRequest,
    IllegalSequence,
    NotLeader,
    OutcomeUnknown,
    PermissionDenied,
    QueueNotFound,
    ReplicationTimeout,
    TopicNotFound,
)
from mq.store.format import Kind
from tests.support.consensus import Node, batch, on_loop, soon, turns

if TYPE_CHECKING:
    from mq.broker.publishing import Slot


def entries(node: Node) -> int:
    return sum(kind == Kind.MESSAGES for kind, _ in node.consensus.proposed)


async def results(slots: list[Slot]) -> list[tuple[int, int]]:
    stored = await soon(asyncio.gather(*(slot.outcome for slot in slots)))
    return [(one.queue_id, one.queue_offset) for one in stored]


@on_loop
async def test_batches_of_one_turn_are_one_entry_in_their_order() -> None:
    node = Node()
    await node.topic("t")
    publisher = node.broker.publisher
    slots = [publisher.submit(batch("t", b"%d" % n, queue_id=n % 2)) for n in range(100)]
    assert entries(node) == 0
    assert await results(slots) == [(n % 2, n // 2) for n in range(100)]
    assert entries(node) == 1
    assert (publisher.batches_total, publisher.messages_total) == (100, 100)
    assert publisher.bytes_total == sum(len(slot.batch.data) for slot in slots)
    assert publisher.in_flight_bytes == 0


@on_loop
async def test_an_entry_has_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that stands around the batches."""
    monkeypatch.setattr(publishing, "_GROUP_BYTES", 1_000)
    node = Node()
    await node.topic("t")
    slots = [node.broker.publisher.submit(batch("t", bytes(size))) for size in [2_000, *[40] * 50]]
    sizes = []
    append = node.consensus._append

    def measured(kind: Kind, payload: list[bytes], context: object) -> int:
        sizes.append(sum(map(len, payload)))
        return append(kind, payload, context)

    monkeypatch.setattr(node.consensus, "_append", measured)
    assert await results(slots) == [(0, at) for at in range(51)]
    assert sizes[0] > 2_000, "a larger batch is an entry of its own"
    assert all(size <= 1_000 for size in sizes[1:])
    assert len(sizes) < 10


@on_loop
async def test_a_batch_that_is_not_legal_is_refused_at_once() -> None:
    node = Node()
    await node.topic("t", 2)
    submit = node.broker.publisher.submit
    for bad, error in (
        (batch("gone", b"x"), TopicNotFound),
        (batch("t", b"x", queue_id=2), QueueNotFound),
        (batch("%SYS%OP", b"x"), TopicNotFound),
        (batch("t", b"x", sequence=1), IllegalRequest),
        (batch("t", b"x", producer_id="p"), IllegalRequest),
        (batch("t", b"x", producer_id="p" * 128, sequence=1), IllegalRequest),
        (batch("t", b"x", producer_id="a\x07", sequence=1), IllegalRequest),
        (batch("t", b"x", producer_id="p", sequence=1 << 63), IllegalRequest),
        (batch("t", b"x", producer_id="p", sequence=(1 << 64) - 1), IllegalRequest),
    ):
        with pytest.raises(error):
            submit(bad)
    await node.broker.catalog.alter("t", is_writable=False)
    with pytest.raises(PermissionDenied):
        submit(batch("t", b"x"))
    await turns()
    assert node.ends("t") == [0, 0, 0, 0]


@on_loop
async def test_the_largest_sequence_can_be_kept() -> None:
    node = Node()
    await node.topic("t")
    stored = await node.send("t", b"x", producer_id="p", sequence=(1 << 63) - 1)
    assert stored.queue_offset == 0
    node.store.checkpoint()
    node.machine.state.restore(node.machine.state.encode())
    assert (await node.send("t", b"x", producer_id="p", sequence=(1 << 63) - 1)).is_duplicate


@on_loop
async def test_a_node_that_does_not_lead_takes_nothing() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.depose()
    with pytest.raises(NotLeader) as raised:
        node.broker.publisher.submit(batch("t", b"x"))
    assert raised.value.address == "other:8081"


# -- once ------------------------------------------------------------------------------------------


@on_loop
async def test_one_that_is_stored_is_answered_with_its_place() -> None:
    node = Node()
    await node.topic("t")
    first = await node.send("t", b"x", producer_id="p", sequence=1)
    again = await node.send("t", b"x", queue_id=3, producer_id="p", sequence=1)
    assert again == first._replace(is_duplicate=True)
    assert node.ends("t") == [1, 0, 0, 0]


@on_loop
async def test_one_that_is_stored_is_known_though_its_queue_is_closed_by_now() -> None:
    node = Node()
    await node.topic("t")
    await node.send("t", b"x", queue_id=3, producer_id="p", sequence=1)
    await node.broker.catalog.alter("t", write_queues=1, is_writable=False)
    assert (await node.send("t", b"x", queue_id=3, producer_id="p", sequence=1)).is_duplicate
    await node.broker.catalog.delete("t")
    assert (await node.send("t", b"x", queue_id=3, producer_id="p", sequence=1)).is_duplicate


@on_loop
async def test_one_that_is_under_way_is_the_same_one() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.is_held = True
    submit = node.broker.publisher.submit
    first = submit(batch("t", b"x", producer_id="p", sequence=1))
    assert submit(batch("t", b"x", producer_id="p", sequence=1)) is first
    await turns()
    assert submit(batch("t", b"x", producer_id="p", sequence=1)) is first
    assert submit(batch("t", b"y", producer_id="q", sequence=1)) is not first
    await turns()
    node.consensus.commit()
    await soon(first.outcome)
    assert node.ends("t")[0] == 2


@on_loop
async def test_one_that_failed_may_come_again() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.failure = DiskFull("no space")
    with pytest.raises(DiskFull):
        await node.send("t", b"x", producer_id="p", sequence=1)
    node.consensus.failure = None
    assert not (await node.send("t", b"x", producer_id="p", sequence=1)).is_duplicate


@on_loop
async def test_one_whose_outcome_was_not_known_is_stored_once() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.is_held = True
    slot = node.broker.publisher.submit(batch("t", b"x", producer_id="p", sequence=1))
    await turns()
    node.consensus.lose(OutcomeUnknown("the leader changed"))
    with pytest.raises(OutcomeUnknown):
        await soon(slot.outcome)
    node.consensus.is_held = False
    node.consensus.elect()  # and with it what was in the log
    assert (await node.send("t", b"x", producer_id="p", sequence=1)).is_duplicate
    assert node.ends("t")[0] == 1


@on_loop
async def test_too_many_gaps_are_refused() -> None:
    node = Node()
    await node.topic("t")
    for number in range(256):
        await node.send("t", b"x", producer_id="p", sequence=2 * number + 1)
    with pytest.raises(IllegalSequence):
        node.broker.publisher.submit(batch("t", b"x", producer_id="p", sequence=9_999))


# -- one fails alone -------------------------------------------------------------------------------


@on_loop
async def test_a_failed_entry_fails_its_batches_and_no_others() -> None:
    node = Node()
    await node.topic("t")
    publisher = node.broker.publisher
    node.consensus.is_held = True
    lost = [publisher.submit(batch("t", b"lost"), tells_appended=True) for _ in range(3)]
    await turns()
    node.consensus.lose(OutcomeUnknown("the leader changed"))
    await turns()
    kept = publisher.submit(batch("t", b"kept"))
    await turns()
    node.consensus.commit()
    for slot in lost:
        with pytest.raises(OutcomeUnknown):
            await soon(slot.outcome)
    assert (await soon(kept.outcome)).queue_id == 0
    assert publisher.in_flight_bytes == 0
    assert publisher.batches_total == 1


@on_loop
async def test_a_sender_that_fails_on_its_outcome_keeps_it_from_no_other() -> None:
    node = Node()
    await node.topic("t")
    told: list[object] = []

    def fail(_: object) -> None:
        raise ZeroDivisionError

    publisher = node.broker.publisher
    for on_outcome in (fail, told.append):
        slot = publisher.submit(batch("t", b"x"), on_outcome=on_outcome)
    publisher.write()
    assert entries(node) == 1
    stored = await soon(slot.outcome)
    assert told == [stored]
    assert publisher.in_flight_bytes == 0
    node.consensus.failure = DiskFull("no")
    publisher.submit(batch("t", b"x"), on_outcome=told.append)
    await turns()
    assert told == [stored, node.consensus.failure]


@on_loop
async def test_a_slot_is_freed_with_its_outcome_and_not_by_the_cycle_collector() -> None:
    """Tens of thousands a second would keep it busy, and the loop for tens of milliseconds."""
    node = Node()
    await node.topic("t")
    told: list[object] = []
    slot = node.broker.publisher.submit(batch("t", b"1"))
    slot.on_outcome = functools.partial(lambda _, stored: told.append(stored), slot)
    outcome = slot.outcome
    gc.collect()
    gc.disable()
    try:
        freed = weakref.ref(slot.on_outcome)
        del slot
        await soon(outcome)
        await turns()
        assert len(told) == 1
        assert freed() is None
    finally:
        gc.enable()


@on_loop
async def test_the_leader_tells_when_it_has_a_batch() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.is_held = True
    slot = node.broker.publisher.submit(batch("t", b"x"), tells_appended=True)
    assert slot.appended is not None
    await soon(node.broker.on_leader(slot))
    assert not slot.outcome.done()
    node.consensus.commit()
    await soon(slot.outcome)


@on_loop
async def test_a_repeated_batch_in_flight_waits_for_its_outcome() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.is_held = True
    submit = node.broker.publisher.submit
    submit(batch("t", b"x", producer_id="p", sequence=1))
    again = submit(batch("t", b"x", producer_id="p", sequence=1), tells_appended=True)
    waiting = asyncio.create_task(node.broker.on_leader(again))
    await turns()
    assert not waiting.done()
    node.consensus.commit()
    await soon(waiting)


@on_loop
async def test_a_late_outcome_names_where_it_is_stuck() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.is_held = True
    publisher = node.broker.publisher
    slot = publisher.submit(batch("t", b"x"))
    assert isinstance(publisher.timed_out(slot), ReplicationTimeout)
    await turns()
    assert isinstance(publisher.timed_out(slot), FlushTimeout)
    node.store.log.sync()
    assert isinstance(publisher.timed_out(slot), ReplicationTimeout)


# -- room ------------------------------------------------------------------------------------------


def crowded() -> Node:
    """Takes 800 KB, which do not leave."""
    node = Node(in_flight_bytes=800_000)
    node.consensus.is_held = True
    return node


async def make_topic(node: Node) -> None:
    node.consensus.is_held = False
    await node.topic("t")
    node.consensus.is_held = True


@on_loop
async def test_there_is_room_until_so_much_is_under_way() -> None:
    node = crowded()
    await make_topic(node)
    publisher = node.broker.publisher
    await soon(publisher.room(100 << 20, 1.0))  # nothing is under way: anything goes
    for _ in range(7):
        publisher.submit(batch("t", bytes(100_000)))
    await soon(publisher.room(1_000, 1.0))
    with pytest.raises(FlowControl, match="no room for 200000 more"):
        await soon(publisher.room(200_000, 0.01))
    assert publisher.in_flight_bytes > 700_000


@on_loop
async def test_sends_that_wait_for_room_get_it_in_turn() -> None:
    node = crowded()
    await make_topic(node)
    publisher = node.broker.publisher
    for _ in range(7):
        publisher.submit(batch("t", bytes(100_000)))
    order: list[str] = []

    async def wait(name: str, size: int) -> None:
        await publisher.room(size, 60)
        order.append(name)

    large = asyncio.create_task(wait("large", 400_000))
    await turns()
    small = asyncio.create_task(wait("small", 10))
    gives_up = asyncio.create_task(wait("gives up", 10))
    last = asyncio.create_task(wait("last", 10))
    await turns()
    assert order == [], "a small one does not overtake"
    gives_up.cancel()
    node.consensus.commit()
    await soon(asyncio.gather(large, small, last))
    assert order == ["large", "small", "last"]


@on_loop
async def test_owners_that_wait_for_room_take_turns() -> None:
    node = crowded()
    await make_topic(node)
    publisher = node.broker.publisher
    for owner in (*["flooder"] * 6, "quiet"):
        publisher.submit(batch("t", bytes(100_000)), owner=owner)
    order: list[str] = []

    async def wait(owner: str, size: int) -> None:
        await publisher.room(size, 60, owner)
        order.append(owner)

    waiting = [asyncio.create_task(wait("flooder", 300_000)) for _ in range(10)]
    await turns()
    waiting += [asyncio.create_task(wait("quiet", 10)) for _ in range(2)]
    await turns()
    node.consensus.commit()
    await soon(asyncio.gather(*waiting))
    # The first of the flooder's had its turn already, and waited for room.
    assert order == ["flooder", "quiet", "quiet", *["flooder"] * 9]


@on_loop
async def test_an_owner_with_nothing_in_flight_passes_those_that_wait() -> None:
    node = crowded()
    await make_topic(node)
    publisher = node.broker.publisher
    for size in (*[100_000] * 7, 60_000):
        publisher.submit(batch("t", bytes(size)), owner="flooder")
    waiting = [asyncio.create_task(publisher.room(60_000, 60, "flooder")) for _ in range(3)]
    await turns()
    await soon(publisher.room(1_000, 60, "quiet"))
    publisher.submit(batch("t", bytes(1_000)), owner="quiet")
    # But not with one after the other, nor with much, nor beyond what memory has.
    for owner, size in (("quiet", 1_000), ("large", 70_000), ("other", 50_000)):
        with pytest.raises(FlowControl):
            await soon(publisher.room(size, 0.01, owner))
    await turns()
    node.consensus.commit()
    await soon(asyncio.gather(*waiting))


@on_loop
async def test_small_batches_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_IN_FLIGHT_MAX", 10)
    node = crowded()
    await make_topic(node)
    publisher = node.broker.publisher
    for _ in range(10):
        publisher.submit(batch("t", b"x"))
    with pytest.raises(FlowControl):
        await soon(publisher.room(10, 0.01))
    await turns()
    node.consensus.commit()
    await soon(publisher.room(10, 1.0))


# -- topics that come with the first message -------------------------------------------------------


@on_loop
async def test_a_first_batch_creates_its_topic_where_that_is_allowed() -> None:
    node = Node()
    slots = await soon(
        asyncio.gather(*(node.broker.submit(batch("new", b"x", queue_id=7)) for _ in range(5)))
    )
    assert len(await results(slots)) == 5
    assert node.machine.state.topics.find("new").write_queues == 8
    commands = [kind for kind, _ in node.consensus.proposed if kind == Kind.COMMAND]
    assert len(commands) == 1, "of many that miss it one creates it"
    strict = Node(auto_create_topics="no")
    with pytest.raises(TopicNotFound):
        await soon(strict.broker.submit(batch("new", b"x")))
